"""RowColumns: whole frames, and the same messages added one by one, give the same rows, whatever the batch held before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.read.frames import ORIGIN, STEPS, Row, build
from tests.read.logs import LOG, ModelLog, policies
from wal.errors import CorruptionError, InvalidArgumentError
from wal.frame import FrameView
from wal.message import ImmutableMessage, MessageID, Origin, TimeTickMessage, decode_properties
from wal.read.assembly import assemble
from wal.read.columns import COLUMNS, NO_TXN, RowColumns
from wal.read.frame_rows import frame_rows
from wal.read.options import EventFilter, ReadOptions, Selection
from wal.read.progress import Need, Progress

BOUND = {"a": 3, "b": 2, "ü": 4}


def rows_of(columns: RowColumns) -> list[tuple[Any, ...]]:
    """Returns the rows, read back from the packed columns; a column that was not gathered is None in each row."""
    count = columns.slots
    wanted = columns.columns
    all_ids = b"".join(columns.ids)
    ids = [all_ids[at : at + columns.id_width] for at in range(0, len(all_ids), columns.id_width or 1)]
    bases = [tick for tick, number in zip(columns.first_ticks, columns.tick_counts, strict=True) for _ in range(number)]
    places, ticks = (
        [base + at for base, at in zip(bases, chain.from_iterable(map(numbers_of, pieces)), strict=True)]
        for pieces in (columns.indices, columns.events)
    )
    codes = memoryview(b"".join(columns.vchannels)).cast("I")
    types = list(memoryview(b"".join(columns.types)).cast("H")) or [2] * count
    txn_ids = list(memoryview(b"".join(columns.txn_ids)).cast("q")) or [NO_TXN] * count
    assert columns.payload_bytes == sum(map(len, columns.payloads))
    assert columns.properties_bytes == sum(map(len, columns.properties))
    payloads = cut(columns.payloads, columns.payload_lens, count if "payload" in wanted else 0)
    stored = cut(columns.properties, columns.properties_lens, count)
    given = {
        "message_id": ids,
        "time_tick": ticks,
        "vchannel": [columns.names[code] for code in codes],
        "message_type": types,
        "txn_id": txn_ids,
        "payload": payloads,
        "properties": [list(decode_properties(one).items()) for one in stored],
    }
    rows = list(zip(*(given[name] if name in wanted else [None] * count for name in given), strict=True))
    keep = b"".join(columns.keep) or bytes([1]) * count
    order = [slot for slot in range(count) if keep[slot]]
    if not columns.in_order:
        order.sort(key=places.__getitem__)
    assert columns.rows == len(order)
    return [rows[slot] for slot in order]


def numbers_of(piece: bytes | int) -> Sequence[int]:
    return range(piece) if isinstance(piece, int) else memoryview(piece).cast("I")


def cut(pieces: Sequence[Any], lengths: Sequence[Any], count: int) -> list[bytes]:
    joined = b"".join(pieces)
    lens = memoryview(b"".join(lengths) or bytes(4 * count)).cast("I")
    assert len(lens) == count
    return [joined[start:end] for start, end in pairwise(accumulate(lens, initial=0))]


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


FRAMES = st.lists(STEPS, max_size=4)
NAMES = st.sampled_from([("a",), ("b",), ("a", "b", "ü")])
FILTERS = st.builds(
    EventFilter,
    st.sampled_from([0, 1001, 1002, 2001]),
    st.sampled_from([None, None, frozenset({2}), frozenset({3, 11}), frozenset({3, 910})]),
)
WANTED = st.sets(st.sampled_from(COLUMNS), min_size=1).map(sorted)


@given(FRAMES, NAMES, FILTERS, WANTED, st.booleans(), st.randoms(use_true_random=False))
def test_batch_holds_the_rows_of_its_messages(
    frames: list[Any], names: tuple[str, ...], wanted: EventFilter, chosen: list[str], plain: bool, random: Random
) -> None:
    """This holds whether a frame was added as rows or as messages."""

    def select(row: tuple[Any, ...], wanted: Sequence[str]) -> tuple[Any, ...]:
        """Returns the row with the wanted columns only."""
        names = ("message_id", "time_tick", "vchannel", "message_type", "txn_id", "payload", "properties")
        return tuple(value if name in wanted else None for name, value in zip(names, row, strict=True))

    def going(log: ModelLog, options: ReadOptions, random: Random) -> Iterator[Progress]:
        """Yields the read at each of its frames."""
        progress = Progress(options)
        progress.begin(LOG, Selection({name: BOUND[name] for name in options.vchannels}, floor=100), log.tail(), (0, 0))
        while (need := progress.step(log.tail())) is not Need.OVER:
            if need is Need.PAGE:
                progress.take(log.page(progress.at, progress.selection.names, random))
            elif need is Need.FRAME:
                yield progress
            progress.hand_over(len(progress.messages))

    if plain:
        frames = [[step for step in steps if step[0] == "plain"] for steps in frames]
    log = ModelLog(frames, durable=len(frames))
    policy = policies(log, random)
    until = random.choice([None, random.randrange(1000, 5000)])
    options = ReadOptions(names, policy, wanted, follow=False, until_time_tick=until)
    expected = [
        select(row_of(body), chosen)
        for progress in going(log, options, random)
        if progress.assemble()
        for message in progress.messages
        for body in message.bodies()
    ]
    for forms in (("rows",), ("messages", "rows")):
        columns = RowColumns(chosen)
        for progress in going(log, options, random):
            form = random.choice(forms)
            if random.random() < 0.5:
                progress.frame.view.check_body()
            if form == "rows" and (rows := progress.rows()) is not None:
                columns.add_frame(rows)
            elif progress.assemble():
                columns.add_messages(progress.messages)
        assert rows_of(columns) == expected


@given(STEPS, NAMES, st.integers(0, 12), st.integers(0, 12))
def test_cut_takes_whole_events(steps: Any, names: tuple[str, ...], first: int, end: int) -> None:
    """The rows of a range of events are those of the messages in it, and the last event is known."""
    frame, _ = build(steps)
    selection = Selection({name: BOUND[name] for name in names}, floor=100)
    messages = [message for message in assemble(frame, ORIGIN, selection, EventFilter()) if first <= message._index < end]
    rows = frame_rows(frame.view, ORIGIN, selection.runs(frame.view), first=first, end=end)
    columns = RowColumns()
    columns.add_frame(rows)
    assert rows_of(columns) == [row_of(body) for message in messages for body in message.bodies()]
    assert rows.last_event == max((message._index for message in messages), default=-1)


def test_wrong_choice_of_columns_is_refused() -> None:
    for columns, said in ((["payloads"], "payload"), ([], "vchannel"), (["payload", "payload"], "twice")):
        with pytest.raises(InvalidArgumentError, match=said):
            RowColumns(columns)
    with pytest.raises(TypeError):
        RowColumns("payload")


@pytest.mark.parametrize("change", ["bodies", "commit", "shared index"])
def test_transaction_that_contradicts_itself_is_damage(change: str) -> None:
    """A reader of rows gets the same error, with the same text, as a reader of messages."""

    def broken_commit(view: FrameView, change: str) -> FrameView:
        """Returns the frame with another ext of its second commit, with valid CRCs."""
        view.check_body()
        run = view.runs[1]
        body = bytearray(view.whole_body() or b"")
        if change == "bodies":
            body[run.body_end - 8 : run.body_end] = (2).to_bytes(4, "little") * 2
        elif change == "commit":
            body[run.body_end - 8 : run.body_end] = (2).to_bytes(4, "little") + (1).to_bytes(4, "little")
        else:
            body[run.body_end - 24 : run.body_end - 16] = (77).to_bytes(8, "little")
        view._checked[(0, len(view.runs.block_ends) - 1)] = bytes(body)
        return view

    frame, _ = build([("txn", [Row(("a", 3), b"x", 2, {}), Row(("b", 2), b"y", 2, {})], (("a", 3), ("b", 2)))])
    view = broken_commit(frame.view, change)
    selection = Selection({"a": 3, "b": 2}, floor=100)
    broken = type(frame)(frame.position, frame.next_position, view)
    with pytest.raises(CorruptionError) as said:
        assemble(broken, ORIGIN, selection, EventFilter())
    with pytest.raises(CorruptionError) as found:
        RowColumns().add_frame(frame_rows(view, ORIGIN, selection.runs(view)))
    assert str(found.value) == str(said.value)


def test_indices_of_every_width() -> None:
    """The index in an id is big-endian, and only the bytes that a frame needs are written."""
    columns = RowColumns()
    frame, _ = build([("plain", [Row(("b", 2), b"x", 2, {}) for _ in range(70_000)], ())])
    origin = Origin("p0", 7, 4096)
    columns.add_frame(frame_rows(frame.view, origin, frame.view.runs.find({"b"})))
    ids = [row[0] for row in rows_of(columns)]
    assert ids == [bytes(origin.message_id(index)) for index in range(70_000)]
    assert MessageID.from_bytes(ids[-1]).index == 69_999


def test_time_tick_before_any_event_has_no_id() -> None:
    columns = RowColumns()
    columns.add_messages([TimeTickMessage(LOG, 0, 77, "", b"", 1, has_event=False)])
    columns.add_messages([TimeTickMessage(LOG, 3, 78, "", b"", 1)])
    assert columns.without_id == [0]
    assert [row[1] for row in rows_of(columns)] == [77, 78]
