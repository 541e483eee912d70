"""`blocking(…).open()` and `.close()`: a log without `with`, as a notebook keeps it open from cell to cell."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from wal import Message, bridge
from wal.errors import ClosedError, FormatError, InvalidArgumentError


def test_log_is_opened_and_closed_by_calls(data: str) -> None:
    opening = bridge.blocking(data)
    log = opening.open()
    log.raw_append(Message("orders", b"one"))
    opening.close()
    opening.close()
    with pytest.raises(ClosedError):
        log.raw_append(Message("orders", b"two"))
    with bridge.blocking(data) as again, again.read("orders", follow=False) as scanner:
        assert [message.payload for message in scanner] == [b"one"]


def test_log_that_was_opened_closes_itself_too(data: str) -> None:
    log = bridge.blocking(data).open()
    log.close()
    log.close()
    with bridge.blocking(data):
        pass


def test_closing_what_was_never_opened_does_nothing(data: str) -> None:
    bridge.blocking(data).close()
    assert not os.path.exists(data)


@pytest.mark.parametrize("closed_by", ["opening", "log"])
def test_closed_log_can_be_opened_again(data: str, closed_by: str) -> None:
    opening = bridge.blocking(data)
    for number in range(3):
        log = opening.open()
        log.raw_append(Message("orders", b"%d" % number))
        (opening if closed_by == "opening" else log).close()
    with opening as log, log.read("orders", follow=False) as scanner:
        assert [message.payload for message in scanner] == [b"0", b"1", b"2"]


def test_second_open_is_refused_harmlessly(data: str) -> None:
    opening = bridge.blocking(data)
    log = opening.open()
    with pytest.raises(InvalidArgumentError, match=r"is open already.*close\(\)"):
        opening.open()
    with pytest.raises(InvalidArgumentError, match="is open already"), opening:
        pass
    log.raw_append(Message("orders", b"still open"))
    opening.close()


def test_many_opening_threads_have_one_winner(data: str) -> None:
    opening = bridge.blocking(data)
    barrier = threading.Barrier(8)

    def try_open() -> bool:
        barrier.wait()
        try:
            opening.open()
        except InvalidArgumentError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda _: try_open(), range(8))) == 1
    opening.close()


def test_opening_that_failed_can_be_tried_again(data: str) -> None:
    opening = bridge.blocking(data, read_only=True)
    with pytest.raises(FormatError):
        opening.open()
    opening.close()
    with bridge.blocking(data) as writer:
        writer.raw_append(Message("orders", b"one"))
        with opening as log, log.read("orders") as scanner:  # not `vchannels()`, where a new name arrives a moment later
            assert next(scanner).payload == b"one"


def test_relative_directory_is_resolved_at_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    opening = bridge.blocking("data", kv="meta.sqlite3")
    opening.open()
    opening.close()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    opening.open()
    opening.close()
    assert os.listdir() == []
