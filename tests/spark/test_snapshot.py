"""Snapshots: exactly the rows committed at or before a tick, over all vchannels and pchannels, with a writer or without one."""

from __future__ import annotations

import threading
import time
import warnings
from pathlib import Path
from random import Random

import pytest

from actors import SystemClock
from tests.spark.logs import write_everything
from tests.spark.queries import Row, batch
from tests.spark.writer import Payload, Writer, make_vchannels
from wal import Message, bridge
from wal.errors import WouldBlockError
from wal.read.read_only_core import ReadOnlyCore
from wal.read.sources import ReadOnlyJournalSource
from wal.spark import SnapshotWarning
from wal.timestamp import compose, parse


def ids(rows: list[Row]) -> set[tuple[str, bytes]]:
    found = {(row["vchannel"], row["message_id"]) for row in rows}
    assert len(found) == len(rows), "a row came twice"
    return found


def test_snapshot_at_every_tick_of_a_log(data_dir: Path) -> None:
    write_everything(data_dir, Random(3), steps=40)
    everything = batch(data_dir)
    ticks = sorted({row["time_tick"] for row in everything})
    for tick in [0, ticks[0] - 1, *Random(1).sample(ticks, 25), ticks[-1]]:
        rows = batch(data_dir, endingTimeTick=tick)
        assert ids(rows) == ids([row for row in everything if row["time_tick"] <= tick])
    first, last = ticks[len(ticks) // 3], ticks[2 * len(ticks) // 3]
    rows = batch(data_dir, startingTimeTick=first, endingTimeTick=last)
    assert ids(rows) == ids([row for row in everything if first <= row["time_tick"] <= last])


def test_snapshot_has_everything_appended_before(data_dir: Path) -> None:
    """The read also waits for the promised tick of an idle pchannel."""
    with bridge.blocking(data_dir, pchannels=3) as log:
        for number in range(3):
            log.create_vchannel(f"v{number}", pchannel=f"p{number}")
        for count, number in enumerate((0, 1, 2, 0, 1), start=1):
            log.raw_append(Message(f"v{number}", b"x"))
            assert len(batch(data_dir)) == count


def test_future_tick_is_awaited(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's clock does not advance until an append has followed the beginning of the read, on a slow machine too."""
    stopped_s: float | None = time.time()
    monkeypatch.setattr(SystemClock, "wall", staticmethod(lambda: time.time() if stopped_s is None else stopped_s))
    with bridge.blocking(data_dir, pchannels=2) as log:
        log.create_vchannel("a", pchannel="p0")
        log.create_vchannel("b", pchannel="p1")
        now, _ = parse(log.raw_append(Message("a", b"1")).time_tick)
        tick = compose(now + 10, 0)
        found: list[list[Row]] = []
        reading = threading.Thread(target=lambda: found.append(batch(data_dir, endingTimeTick=tick)))
        reading.start()
        between = log.raw_append(Message("b", b"2"))
        assert not found
        stopped_s = None
        while log.raw_append(Message("a", b"3")).time_tick <= tick:
            time.sleep(0.001)  # the clock must advance
        reading.join()
        assert between.time_tick <= tick
        (rows,) = found
        assert ids(rows) == ids([row for row in batch(data_dir) if row["time_tick"] <= tick])
        assert {b"1", b"2"} <= {row["payload"] for row in rows}


def test_tick_that_no_writer_promises_fails(data_dir: Path) -> None:
    with bridge.blocking(data_dir) as log:
        tick = log.raw_append(Message("a", b"1")).time_tick
    later = compose(parse(tick)[0] + 1000 * 3600, 0)
    with pytest.raises(WouldBlockError, match=r"p0 has not promised time tick.*tickTimeoutMs"):
        batch(data_dir, endingTimeTick=later, tickTimeoutMs=20)
    assert len(batch(data_dir, endingTimeTick=tick, tickTimeoutMs=0)) == 1


def test_snapshot_is_exact_while_another_process_writes(data_dir: Path, soak: int) -> None:
    make_vchannels(data_dir)
    snapshots = []
    with Writer(data_dir, pause_s=0.004) as writer:
        for _ in range(10 * soak):
            snapshots.append(batch(data_dir))
        writer.finish()
    everything = batch(data_dir)
    assert len({len(rows) for rows in snapshots}) > 6, "the log did not grow meanwhile"
    for rows in snapshots:
        tick = max(row["time_tick"] for row in rows)  # the newest durable tick at the time of the plan
        assert ids(rows) == ids([row for row in everything if row["time_tick"] <= tick])
    check_whole(everything)


def check_whole(rows: list[Row]) -> None:
    """Checks that each transaction has all its bodies, each once, and that none was rolled back."""
    txns: dict[tuple[str, int, int], list[Payload]] = {}
    for row in rows:
        payload = Payload.parse(row["payload"])
        assert payload.outcome == "done"
        txns.setdefault(payload.txn, []).append(payload)
    for bodies in txns.values():
        assert sorted(body.at for body in bodies) == [*range(bodies[0].count)]


def test_snapshot_after_a_kill_has_promised_rows(data_dir: Path, soak: int) -> None:
    make_vchannels(data_dir)
    left_out = 0
    for run in range(3 * soak):
        with Writer(data_dir, run=str(run), pause_s=0.001) as writer:
            writer.kill_now()
        promised_tick = promised(data_dir)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            rows = batch(data_dir)
            everything = batch(data_dir, endingOffsets='{"p0": "latest", "p1": "latest"}')
        assert ids(rows) == ids([row for row in everything if row["time_tick"] <= promised_tick])
        assert [one.category for one in caught] == [SnapshotWarning] * (len(rows) < len(everything))
        left_out += len(rows) < len(everything)
    assert left_out, "no kill left a row above the promise"


def promised(data: Path) -> int:
    """Returns the largest promised tick that all pchannels have reached."""
    journal = ReadOnlyCore(ReadOnlyJournalSource(data))
    journal.open()
    try:
        return min(log.refresh().promised_tick for log in journal.logs.values())
    finally:
        journal.close()


def test_ticks_in_a_log_of_many_segments(data_dir: Path) -> None:
    """Segments below a tick are skipped by the header of the next one, without reading their indexes."""
    with bridge.blocking(data_dir, pchannels=2, segment_bytes=1 << 20) as log:
        for number in range(2):
            log.create_vchannel(f"v{number}", pchannel=f"p{number}")
        for step in range(40):
            log.append_bulk([Message(f"v{step % 2}", bytes(2000)) for _ in range(50)])
    assert len([*data_dir.glob("pchannels/p0/*.wal")]) > 1
    everything = batch(data_dir)
    ticks = sorted(row["time_tick"] for row in everything)
    for tick in (ticks[0], *ticks[40::97], ticks[-1]):
        below = batch(data_dir, endingTimeTick=tick)
        assert ids(below) == ids([row for row in everything if row["time_tick"] <= tick])
        assert len(batch(data_dir, startingTimeTick=tick + 1)) == len(everything) - len(below)
