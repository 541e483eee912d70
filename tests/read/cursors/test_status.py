"""The status of a saved cursor, given the current log."""

from __future__ import annotations

from typing import Any

import pytest

from tests.read.cursors.samples import cursor
from wal import CursorInfo
from wal.errors import ClosedError, InvalidArgumentError, TruncatedError
from wal.read.cursors.status import CursorStatus, LogRange, LogView, cursor_status, resumable, shown
from wal.storage.base import Unread
from wal.timestamp.timestamp import compose


def view(*, incarnation: int = 77, earliest: tuple[int, int] = (0, 0), **lives: int) -> LogView:
    places = {"p0": LogRange(incarnation, earliest, 10_000), "p1": LogRange(88, (5, 0), 20_000)}
    return LogView(places, lives.get, max(lives.values(), default=0) + 1)


def test_status_of_a_cursor(subtests: pytest.Subtests) -> None:
    cases = [
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

    for saved, log, expected in cases:
        with subtests.test(repr(saved)):
            assert cursor_status(saved, log) is expected
            info = shown(saved, log, now_s=1e9)
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


def test_pchannel_that_moved_away_is_asked_for_elsewhere() -> None:
    with pytest.raises(ClosedError, match="'p9' was moved"):
        resumable(cursor(), view(orders=1), pchannel="p9")


def test_vchannel_on_another_pchannel_is_read_whole() -> None:
    early = cursor(incarnations=(None,), start=(9_000, 0), event=(8_000, 1))
    found = resumable(early, view(orders=3), pchannel="p1")
    assert found is not None
    assert (found.pchannel, found.incarnation, found.start, found.position) == ("p1", 88, (5, 0), None)


def test_lag_is_the_log_after_the_cursor() -> None:
    for start, lag_bytes in (((4096, 3), 5904), ((10_000, 0), 0), ((10_001, 0), 0)):
        info = shown(cursor(start=start), view(orders=1), now_s=1e9)
        assert info is not None
        assert info.lag_bytes == lag_bytes
        assert str(info.position) == "p0:4d:4096:2@123456789"


def test_lag_is_estimated_by_the_index() -> None:
    def shown_with(unread: Unread | None, **fields: Any) -> CursorInfo:
        def unread_for(names: frozenset[str], start: tuple[int, int], end: int) -> Unread:
            assert (names, start, end) == (frozenset(("orders",)), (4096, 3), 10_000)
            assert unread is not None
            return unread

        log = LogRange(77, (0, 0), 10_000, unread_for=None if unread is None else unread_for)
        saved = cursor(start=(4096, 3), saved_at=1_000.0, **fields)
        info = shown(saved, LogView({"p0": log}, lambda _: 1, 2), now_s=2_000.0)
        assert info is not None
        return info

    read_tick, oldest_tick = compose(1_500_000), compose(1_750_000)
    info = shown_with(Unread(700, 5, oldest_tick), time_tick=read_tick)
    assert (info.lag_bytes, info.lag_messages, info.lag_s, info.moved_at) == (700, 5, 250.0, 1_000.0)
    info = shown_with(None, time_tick=read_tick, moved_at=900.0)
    assert (info.lag_bytes, info.lag_messages, info.lag_s, info.moved_at) == (5904, None, 500.0, 900.0)
    assert shown_with(None, time_tick=0).lag_s is None
    info = shown_with(Unread(0, 0), time_tick=read_tick)
    assert (info.lag_bytes, info.lag_messages, info.lag_s) == (0, 0, 0.0)
