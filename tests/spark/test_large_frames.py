"""Frames whose rows are many times larger than the frame, or are absent: a reader holds a bounded part of them."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.spark.logs import NAMES, write_everything
from tests.spark.queries import batch, plan, read_all, schema, source
from wal import BroadcastMessage, Message, MessageType, MessageTypes, bridge
from wal.bridge import record_batches
from wal.read.columns import RowColumns
from wal.read.frame_rows import FrameRows, in_parts
from wal.spark import row_reader

KIB = 1 << 10


def broadcast(data: Path, *, copies: int, size: int) -> None:
    with bridge.blocking(data) as log:
        log.raw_append(Message("v0", b"before"))
        vchannels = [f"v{number}" for number in range(copies)]
        log.broadcast().append(BroadcastMessage(vchannels=vchannels, payload=b"x" * size, needs_ack=False))
        log.raw_append(Message("v0", b"after"))


def test_wide_broadcast_is_read_in_slices(data_dir: Path) -> None:
    """All copies share one payload in the log; as rows they may be more than memory holds, or than Arrow's offsets can count."""
    broadcast(data_dir, copies=300, size=200 * KIB)
    reader, partitions = plan(data_dir)
    sizes = [(one.num_rows, one.nbytes) for partition in partitions for one in reader.read(partition)]
    assert sum(rows for rows, _ in sizes) == 302
    assert max(size for _, size in sizes) < 2 * row_reader.BATCH_BYTES
    with record_batches(data_dir, [f"v{number}" for number in range(300)], follow=False, bytes_max=1 << 20) as batches:
        found = [(one.num_rows, one.nbytes) for one in batches]
    assert sum(rows for rows, _ in found) == 302
    assert max(size for _, size in found) < 3 << 20


def test_position_never_skips_copies_that_were_not_delivered(data_dir: Path) -> None:
    broadcast(data_dir, copies=20, size=400 * KIB)
    names = [f"v{number}" for number in range(20)]
    rows = batch(data_dir)
    for taken in range(1, 6):
        with record_batches(data_dir, names, follow=False, bytes_max=1 << 20) as batches:
            given = [row["message_id"] for _ in range(taken) for row in next(batches).to_pylist()]
            position = batches.position
        with record_batches(data_dir, names, follow=False, resume=position) as batches:
            given += [row["message_id"] for one in batches for row in one.to_pylist()]
        assert set(given) == {row["message_id"] for row in rows}


@pytest.mark.parametrize("seed", range(3))
def test_parts_of_a_frame_are_its_rows(data_dir: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The frames have a part for each copy, and hold everything else as well."""
    write_everything(data_dir, Random(seed), steps=30)
    whole = batch(data_dir, maxPartitions=1)
    parts = 0

    def one_by_one(rows: FrameRows, *, bytes_max: int) -> list[FrameRows]:
        nonlocal parts
        found = list(in_parts(rows, bytes_max=1))
        parts += len(found) > 1
        return found

    monkeypatch.setattr(row_reader, "in_parts", one_by_one)
    assert batch(data_dir, maxPartitions=1) == whole
    assert {row["vchannel"] for row in whole} == set(NAMES)
    assert parts


def test_rows_that_are_left_out_take_no_memory(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frames have transactions of other types than requested: a reader that gathered them until a row comes would hold the log."""
    with bridge.blocking(data_dir) as log:
        for _ in range(5):
            with log.txn("a") as txn:
                txn.append(b"x" * KIB)
                txn.append(Message("a", b"x" * KIB, message_type=MessageType.DELETE))
        log.raw_append(Message("a", b"wanted", message_type=MessageType.IMPORT))
    gathered: list[tuple[int, int]] = []
    add_frame = RowColumns.add_frame

    def watched(self: RowColumns, rows: FrameRows) -> None:
        add_frame(self, rows)
        gathered.append((self.slots, self.payload_bytes))

    monkeypatch.setattr(RowColumns, "add_frame", watched)
    wanted = schema("payload", "txn_id")
    _, partitions = plan(data_dir, includeTypes="IMPORT")
    assert read_all(source(data_dir).reader(wanted), partitions, wanted) == [{"payload": b"wanted", "txn_id": None}]
    with record_batches(data_dir, "a", follow=False, filters=MessageTypes(MessageType.IMPORT)) as batches:
        assert [row["payload"] for one in batches for row in one.to_pylist()] == [b"wanted"]
    assert len(gathered) >= 2 * 6
    assert set(gathered) == {(0, 0), (1, 6)}
