"""RowColumns: a run taken as it lies, and the same messages one by one, give the same rows, whatever came before in the batch."""

from __future__ import annotations

from itertools import accumulate, pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reading.frames import STEPS, Row, build
from tests.reading.logs import LOG, ModelLog
from wal.errors import CorruptionError
from wal.frame import FrameView
from wal.message import ImmutableMessage, MessageID, Origin, TimeTickMessage
from wal.reading import NO_TXN, All, EventFilter, Need, Progress, ReadOptions, RowColumns, Selection

BOUND = {"a": 3, "b": 2, "ü": 4}


def rows_of(columns: RowColumns) -> list[tuple[Any, ...]]:
    """The rows, read back from the packed columns."""
    count = columns.rows
    all_ids = b"".join(columns.ids)
    ids = [all_ids[at : at + columns.id_width] for at in range(0, len(all_ids), columns.id_width or 1)]
    ticks = [
        base + index
        for base, index in zip(
            memoryview(b"".join(columns.tick_bases)).cast("Q"),
            memoryview(b"".join(columns.indices)).cast("I"),
            strict=True,
        )
    ]
    codes = list(memoryview(columns.vchannels).cast("I")) or [0] * count
    types = list(memoryview(columns.types).cast("H")) or [2] * count
    txn_ids = list(memoryview(columns.txn_ids).cast("q")) or [NO_TXN] * count
    joined = b"".join(columns.payloads)
    assert len(joined) == columns.payload_bytes
    payloads = [
        joined[start:end]
        for start, end in pairwise(accumulate(memoryview(b"".join(columns.payload_lens)).cast("I"), initial=0))
    ]
    counts = list(memoryview(columns.properties_counts).cast("I")) or [0] * count
    pairs = list(zip(columns.keys, columns.values, strict=True))
    properties = [pairs[start:end] for start, end in pairwise(accumulate(counts, initial=0))]
    rows = list(
        zip(ids, ticks, [columns.names[code] for code in codes], types, txn_ids, payloads, properties, strict=True)
    )
    assert len(rows) == count
    return rows


def row_of(body: ImmutableMessage) -> tuple[Any, ...]:
    return (
        bytes(body.message_id),
        body.time_tick,
        body.vchannel,
        body._type,
        NO_TXN if body.txn_context is None else body.txn_context.txn_id,
        body.payload,
        list(body.properties.items()),
    )


@given(
    st.lists(STEPS, max_size=4),
    st.sampled_from([("a",), ("b",), ("a", "b", "ü")]),
    st.sampled_from([0, 1002, 2001]),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_a_batch_holds_what_the_messages_say(
    frames: list[Any], names: tuple[str, ...], tick_min: int, plain: bool, random: Random
) -> None:
    if plain:  # more of the frames that can be taken whole
        frames = [[step for step in steps if step[0] == "plain"] for steps in frames]
    log = ModelLog(frames, durable=len(frames))
    options = ReadOptions(names, All(), EventFilter(tick_min), follow=False)
    columns, expected = RowColumns(), []
    for whole in (True, False):
        progress = Progress(options)
        progress.begin(LOG, Selection({name: BOUND[name] for name in names}, floor=100), log.tail(), (0, 0))
        while (need := progress.step(log.tail())) is not Need.OVER:
            if need is Need.PAGE:
                progress.take(log.page(progress.at, progress.selection.names, random))
            elif whole and (found := progress.whole()) is not None:
                origin, run = found
                view = progress.frame.view
                columns.add_run(origin, run.name, view.header, view.packed(run))
            elif progress.assemble():
                if whole:
                    columns.add_messages(progress.messages)
                else:
                    expected += [row_of(body) for message in progress.messages for body in message.bodies()]
                progress.following = len(progress.messages)
    assert rows_of(columns) == expected


def test_indices_of_every_width() -> None:
    """The index in an id is big-endian, and written byte by byte only as far as a frame needs it."""
    columns = RowColumns()
    frame, _ = build([("plain", [Row(("b", 2), b"x", 2, {}) for _ in range(70_000)], ())])
    run = frame.view.find({"b"})[0]
    origin = Origin("p0", 7, 4096)
    columns.add_run(origin, "b", frame.view.header, frame.view.packed(run))
    ids = [row[0] for row in rows_of(columns)]
    assert ids == [bytes(origin.message_id(index)) for index in range(70_000)]
    assert MessageID.from_bytes(ids[-1]).index == 69_999


def test_a_time_tick_before_any_event_has_no_id() -> None:
    columns = RowColumns()
    columns.add_messages([TimeTickMessage(LOG, 0, 77, "", b"", 1, has_event=False)])
    columns.add_messages([TimeTickMessage(LOG, 3, 78, "", b"", 1)])
    assert columns.without_id == [0]
    assert [row[1] for row in rows_of(columns)] == [77, 78]


def test_properties_that_are_no_maps_are_damage() -> None:
    frame, _ = build([("plain", [Row(("b", 2), b"x", 2, {"k": "v"})], ())])
    view: FrameView = frame.view
    packed = view.packed(view.find({"b"})[0])
    broken = type(packed)(
        packed.count,
        packed.first_index,
        packed.indices,
        packed.payloads,
        packed.payload_lens,
        packed.types,
        memoryview(b"\xc1" * len(packed.properties)),
        packed.properties_lens,
    )
    with pytest.raises(CorruptionError, match="properties"):
        RowColumns().add_run(LOG, "b", view.header, broken)
