"""`wal_crash` and `wal_power_cut`: the moment of death, the reports until then, and the content of the journal after that."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.testing import victims
from wal import bridge
from wal.errors import InvalidArgumentError

pytestmark = pytest.mark.one_loop
Crash = Callable[..., list[Any]]


def stored(directory: Path, *vchannels: str) -> list[int]:
    with bridge.blocking(directory) as log:  # a writer: it recovers as the service would
        return [
            int(body.payload)
            for vchannel in vchannels or ("orders",)
            for message in log.read(vchannel, follow=False)
            for body in message.bodies()
        ]


def test_append_dies_before_its_frame(wal_crash: Crash, wal_dir: Path) -> None:
    assert wal_crash(victims.append_one_by_one, wal_dir, 10, at="append", number=4) == [0, 1, 2]
    assert stored(wal_dir) == [0, 1, 2]


def test_written_frame_outlives_its_process(wal_crash: Crash, wal_dir: Path) -> None:
    assert wal_crash(victims.append_one_by_one, wal_dir, 10, at="sync", number=4) == [0, 1, 2]
    assert stored(wal_dir) == [0, 1, 2, 3], "the kernel has what was written"


def test_power_cut_drops_unsynced_frame(wal_power_cut: Crash, wal_dir: Path) -> None:
    assert wal_power_cut(victims.append_one_by_one, wal_dir, 10, at="sync", number=4) == [0, 1, 2]
    assert sorted(path.name for path in wal_dir.parent.iterdir()) == [wal_dir.name], "nothing is left beside the journal"
    assert stored(wal_dir) == [0, 1, 2]


def test_journal_goes_on_after_each_cut(wal_power_cut: Crash, wal_dir: Path) -> None:
    kept = []
    for number in range(1, 4):
        kept += wal_power_cut(victims.append_one_by_one, wal_dir, 10, at="sync", number=number)
    assert stored(wal_dir) == kept == [0, 0, 1]


def test_every_way_to_append_counts_once(wal_crash: Crash, wal_dir: Path) -> None:
    kinds = ["append", "keyed", "bulk", "append_txn", "txn", "nowait"]
    assert wal_crash(victims.append_in_every_way, wal_dir, at="append", number=len(kinds) + 1) == kinds


def test_save_dies_before_its_cursor_moves(wal_crash: Crash, wal_dir: Path) -> None:
    ticks = wal_crash(victims.save_often, wal_dir, at="save", number=3)
    assert len(ticks) == 2
    with bridge.blocking(wal_dir) as log:
        (cursor,) = log.cursors()
        assert cursor.position is not None
        assert cursor.position.time_tick == ticks[-1]
        with log.read("orders", cursor="billing", follow=False) as scanner:
            assert [message.payload for message in scanner] == [b"2", b"3", b"4"]


def test_random_cuts_keep_what_was_acknowledged(wal_power_cut: Crash, wal_dir: Path, soak: int) -> None:
    for seed in range(2 * soak):
        directory = wal_dir / str(seed)
        acknowledged = wal_power_cut(victims.append_at_once, directory, at="sync", number=2 + seed % 6, seed=seed)
        found = stored(directory, *(f"orders-{number}" for number in range(4)))
        assert set(acknowledged) <= set(found), seed
        assert len(found) == len(set(found)), seed


def test_failures_say_what_happened(wal_crash: Crash, wal_dir: Path) -> None:
    with pytest.raises(AssertionError, match="fail raised before append number 1") as caught:
        wal_crash(victims.fail)
    assert "RuntimeError: the service is broken" in str(caught.value)
    with pytest.raises(AssertionError, match=re.escape("append_one_by_one ended after 3 of append, before number 5: lower the number")):
        wal_crash(victims.append_one_by_one, wal_dir, 3, at="append", number=5)
    with pytest.raises(AssertionError, match=r"wait_for_ever ran for 0.5 s and did not come to append number 1, after [01] reports"):
        wal_crash(victims.wait_for_ever, timeout_s=0.5)


def test_wrong_arguments_are_refused(wal_crash: Crash) -> None:
    def inside(report: victims.Report) -> None:
        raise NotImplementedError

    with pytest.raises(InvalidArgumentError, match="inside is defined inside a function"):
        wal_crash(inside)
    with pytest.raises(TypeError, match="the process runs a function, not 'x'"):
        wal_crash("x")
    with pytest.raises(InvalidArgumentError, match="at='read' is not a moment"):
        wal_crash(victims.fail, at="read")
    with pytest.raises(InvalidArgumentError, match="number=0 is below 1"):
        wal_crash(victims.fail, number=0)
    with pytest.raises(TypeError, match=r"number must be an int, not 1\.0"):
        wal_crash(victims.fail, number=1.0)
