"""The status of a saved cursor, given the current log."""

from __future__ import annotations

import pytest

from tests.cursors.samples import cursor
from wal.errors import InvalidArgumentError, TruncatedError
from wal.read.cursors.status import CursorStatus, LogRange, LogView, cursor_status, resumable, shown


def view(*, incarnation: int = 77, earliest: tuple[int, int] = (0, 0), **lives: int) -> LogView:
    places = {"p0": LogRange(incarnation, earliest, 10_000), "p1": LogRange(88, (5, 0), 20_000)}
    return LogView(places, lives.get, max(lives.values(), default=0) + 1)


CASES = [
    (cursor(), view(orders=1), CursorStatus.LIVE),
    (cursor(incarnations=(None,)), view(), CursorStatus.LIVE),
    (cursor(incarnations=(None,)), view(orders=4), CursorStatus.LIVE),
    (cursor(vchannels=["a", "b"]), view(a=1, b=2), CursorStatus.LIVE),
    (cursor(incarnations=(9,)), view(other=5), CursorStatus.LIVE),  # created since this map was read
    (cursor(), view(other=5), CursorStatus.DROPPED),
    (cursor(), view(orders=2), CursorStatus.DROPPED),
    (cursor(vchannels=["a", "b"]), view(a=1, b=3), CursorStatus.DROPPED),
    (cursor(stale="old"), view(orders=2), CursorStatus.DROPPED),
    (cursor(stale="old"), view(orders=1), CursorStatus.STALE),
    (cursor(), view(orders=1, incarnation=78), CursorStatus.OTHER_INCARNATION),
    (cursor(pchannel="p7"), view(orders=1), CursorStatus.OTHER_INCARNATION),
    (cursor(start=(10, 3)), view(orders=1, earliest=(10, 3)), CursorStatus.LIVE),
    (cursor(start=(10, 2)), view(orders=1, earliest=(10, 3)), CursorStatus.TRUNCATED),
]


@pytest.mark.parametrize(("saved", "log", "expected"), CASES, ids=range(len(CASES)))
def test_status_of_a_cursor(saved: object, log: LogView, expected: CursorStatus) -> None:
    assert cursor_status(saved, log) is expected  # type: ignore[arg-type]
    info = shown(saved, log)  # type: ignore[arg-type]
    assert (info is None) == (expected is CursorStatus.DROPPED)
    if info is not None:
        assert info.stale == (expected in (CursorStatus.STALE, CursorStatus.TRUNCATED))


def test_cursor_that_a_reader_resumes_from() -> None:
    log = view(orders=1, earliest=(10, 3))
    assert resumable(None, log, pchannel="p0") is None
    assert resumable(cursor(), log, pchannel="p0") == cursor()
    assert resumable(cursor(incarnations=(9,)), view(orders=10), pchannel="p0") is None
    for wrong, error in (
        (cursor(stale="too old"), TruncatedError),
        (cursor(start=(10, 2)), TruncatedError),
        (cursor(incarnation=78), InvalidArgumentError),
    ):
        with pytest.raises(error, match=r"'billing' of 'orders'.*delete_cursor\('billing'\)"):
            resumable(wrong, log, pchannel="p0")


def test_vchannel_created_on_another_pchannel_is_read_from_its_start() -> None:
    early = cursor(incarnations=(None,), start=(9_000, 0), event=(8_000, 1))
    found = resumable(early, view(orders=3), pchannel="p1")
    assert found is not None
    assert (found.pchannel, found.incarnation, found.start, found.position) == ("p1", 88, (5, 0), None)


def test_lag_is_the_log_after_the_cursor() -> None:
    for start, lag_bytes in (((4096, 3), 5904), ((10_000, 0), 0), ((10_001, 0), 0)):
        info = shown(cursor(start=start), view(orders=1))
        assert info is not None
        assert info.lag_bytes == lag_bytes
        assert str(info.position) == "p0:4d:4096:2@123456789"
