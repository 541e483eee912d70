"""Progress is compared with a naive model, for any pages, any moment at which the log grows, and any stop and resume."""

from __future__ import annotations

import tracemalloc
from itertools import islice, pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.read.frames import STEPS, Row, seen
from tests.read.logs import LOG, STRIDE, TICKS_A_FRAME, ModelLog, policies
from tests.read.test_columns import row_of, rows_of
from wal.errors import ClosedError, CorruptionError, InvalidArgumentError
from wal.frame import FrameView
from wal.message import ImmutableMessage, MessageID, MessageType, Origin, TimeTickMessage
from wal.read.columns import RowColumns
from wal.read.options import All, EventFilter, Latest, ReadOptions, ReadPosition, Selection, StartAfter, StartFrom
from wal.read.progress import Need, Progress

BOUND = {"a": 3, "b": 2}
RANDOMS = st.randoms(use_true_random=False)


class Reader:
    """Drives a progress as a scanner does, with random pages of a log that grows at random moments."""

    def __init__(self, log: ModelLog, options: ReadOptions, random: Random) -> None:
        self.log, self.random = log, random
        self.progress = Progress(options)
        self.begun = log.durable
        selection = Selection({name: BOUND.get(name) for name in options.vchannels}, floor=100)
        assert self.progress.begin(LOG, selection, log.tail(), (0, 0)) is None

    def next(self) -> ImmutableMessage | None:
        """Returns the next message; None when the read has ended, or waits at the end of a log that no longer grows."""
        progress = self.progress
        while progress.following >= len(progress.messages):
            if self.log.durable < len(self.log.frames) and self.random.random() < 0.3:
                self.log.durable += 1
            need = progress.advance(self.log.tail())
            if need is Need.PAGE:
                assert progress.at < progress.page_end <= self.log.tail().durable_end
                progress.take(self.log.page(progress.at, progress.selection.names, self.random))
            elif need is Need.OVER:
                return None
            elif need is Need.TAIL:
                if self.log.durable == len(self.log.frames):
                    return None
                self.log.durable += 1
        return next(progress.coming or progress.open())

    def rest(self) -> list[ImmutableMessage]:
        messages = []
        while (message := self.next()) is not None:
            messages.append(message)
        return messages


@st.composite
def reads(draw: st.DrawFn, *, time_ticks: bool = False) -> tuple[ModelLog, ReadOptions, Random]:
    frames = draw(st.lists(STEPS, max_size=5))
    random = draw(RANDOMS)
    log = ModelLog(frames, durable=draw(st.integers(0, len(frames))))
    names = draw(st.sampled_from([("a",), ("b",), ("a", "b")]))
    types = draw(st.sampled_from([None, None, frozenset({int(MessageType.DELETE)})]))
    until = st.builds(lambda frame, index: frame * TICKS_A_FRAME + index, st.integers(0, len(frames) + 1), st.integers(0, 6))
    options = ReadOptions(
        names,
        policies(log, random),
        EventFilter(draw(st.sampled_from([0, 0, 1003, 2001])), types),
        draw(st.booleans()),
        draw(st.one_of(st.none(), until)),
        None,
        time_ticks,
    )
    return log, options, random


def bound(options: ReadOptions) -> dict[str, int]:
    return {name: BOUND[name] for name in options.vchannels}


@given(reads())
def test_read_delivers_what_the_model_says(read: tuple[ModelLog, ReadOptions, Random]) -> None:
    log, options, random = read
    reader = Reader(log, options, random)
    assert list(map(seen, reader.rest())) == log.delivered(options, bound(options), begun=reader.begun)


@given(reads(), st.lists(st.integers(0, 4), max_size=4))
def test_position_resumes_exactly(read: tuple[ModelLog, ReadOptions, Random], stops: list[int]) -> None:
    """A read that is stopped and resumed after any number of messages delivers each message once."""
    log, options, random = read
    options = ReadOptions(options.vchannels, options.policy, options.event_filter)
    reader = Reader(log, options, random)
    begun = reader.begun
    messages: list[ImmutableMessage] = []
    for stop in stops:
        for _ in range(stop):
            if (message := reader.next()) is not None:
                messages.append(message)
        position = reader.progress.position
        reader.progress.let_go()
        assert reader.progress.position == position
        if position is not None:
            assert ReadPosition.parse(str(position)) == position
            options = ReadOptions(options.vchannels, All(), options.event_filter, resume=position)
            reader = Reader(log, options, random)
            assert reader.progress.position == position
        elif messages or isinstance(options.policy, Latest):
            assert not messages
            break  # the log was empty when the read began: a new read would begin at another position
        else:
            reader = Reader(log, options, random)
            begun = reader.begun
    messages += reader.rest()
    first = ReadOptions(options.vchannels, read[1].policy, options.event_filter)
    assert list(map(seen, messages)) == log.delivered(first, bound(first), begun=begun)


@given(reads())
def test_position_tells_what_was_handed_over(read: tuple[ModelLog, ReadOptions, Random]) -> None:
    """The tick and the event of the position are at or above those of the message, and below those of the next."""
    log, options, random = read
    reader = Reader(log, options, random)
    ticks: list[tuple[int, int]] = []
    ids: list[MessageID | None] = []
    while (message := reader.next()) is not None:
        position = reader.progress.position
        assert position is not None
        ticks.append((message.time_tick, position.time_tick))
        ids.append(position.message_id)
        assert message.message_id <= position.message_id
        assert reader.progress.reached.tick >= message.time_tick
    for (_, promised), (following, _) in pairwise(ticks):
        assert promised < following
    assert ids == sorted(ids)  # type: ignore[type-var]


@given(reads(time_ticks=True))
def test_time_tick_is_above_all_later_messages(read: tuple[ModelLog, ReadOptions, Random]) -> None:
    log, options, random = read
    reader = Reader(log, options, random)
    messages = reader.rest()
    plain = [message for message in messages if not isinstance(message, TimeTickMessage)]
    assert list(map(seen, plain)) == log.delivered(options, bound(options), begun=reader.begun)
    ticks = [message.time_tick for message in messages]
    for before, message, after in zip(ticks, messages[1:], [*messages[2:], None], strict=False):
        if isinstance(message, TimeTickMessage):
            assert before <= message.time_tick
            assert after is None or message.time_tick < after.time_tick
            if message.message_id is not None and reader.progress.position is not None:
                assert message.message_id <= reader.progress.position.message_id
    if options.until_time_tick and options.follow and log.tail().promised_tick >= options.until_time_tick:
        assert ticks[-1] == options.until_time_tick
        assert isinstance(messages[-1], TimeTickMessage)


@given(reads())
def test_frames_as_rows_equal_their_assembled_messages(read: tuple[ModelLog, ReadOptions, Random]) -> None:
    """A read that takes frames as rows delivers the same rows, and reaches the same position."""
    log, options, random = read
    reader = Reader(log, options, random)
    twin = Reader(log, options, random)
    log.durable = len(log.frames)
    progress, other = reader.progress, twin.progress
    rows = RowColumns()
    for _ in range(10_000):
        need = progress.step(log.tail())
        if need is Need.FRAME:
            found = progress.rows()
            if found is not None:
                rows.add_frame(found)
            elif progress.assemble():
                rows.add_messages(progress.messages)
                progress.hand_over(len(progress.messages))
        elif need is Need.PAGE:
            progress.take(log.page(progress.at, progress.selection.names, random))
        else:
            break
    messages = twin.rest()
    assert rows_of(rows) == [row_of(body) for message in messages for body in message.bodies()]
    if options.until_time_tick is None:  # the pages decide how many events above that tick it passes
        assert progress.reached == other.reached
    assert other.message_count == len(messages)


# -- single cases


def plain(*payloads: bytes) -> list[tuple[str, list[Row], tuple[tuple[str, int], ...]]]:
    return [("plain", [Row(("b", 2), payload, 2, {}) for payload in payloads], ())]


def progress_over(log: ModelLog, *, earliest: tuple[int, int] = (0, 0), **given: Any) -> tuple[Progress, MessageID | None]:
    progress = Progress(ReadOptions.of(("b",), **given))
    return progress, progress.begin(LOG, Selection({"b": 2}, floor=100), log.tail(), earliest)


def test_truncated_start_differs_from_the_last_dropped_event() -> None:
    log = ModelLog([plain(b"1", b"2", b"3")], durable=1)
    ids = log.ids()
    assert progress_over(log, earliest=(0, 2), deliver_policy=StartFrom(ids[1]))[1] == ids[1]
    assert progress_over(log, earliest=(0, 2), deliver_policy=StartAfter(ids[0]))[1] == ids[0]
    assert progress_over(log, earliest=(0, 2), deliver_policy=StartAfter(ids[1]))[1] is None
    progress, truncated = progress_over(log, earliest=(0, 2), deliver_policy=StartAfter(ids[0]))
    assert truncated == ids[0]
    assert progress.begin(LOG, progress.selection, log.tail(), (0, 2), after=ids[1]) is None


def test_foreign_and_future_ids_are_refused() -> None:
    log = ModelLog([plain(b"1"), plain(b"2")], durable=1)
    with pytest.raises(InvalidArgumentError, match="another pchannel"):
        progress_over(log, deliver_policy=StartFrom(Origin("p1", 7, 0).message_id(0)))
    with pytest.raises(InvalidArgumentError, match="another incarnation"):
        progress_over(log, deliver_policy=StartFrom(Origin("p0", 8, 0).message_id(0)))
    with pytest.raises(InvalidArgumentError, match="above the durable end"):
        progress_over(log, deliver_policy=StartFrom(Origin("p0", 7, STRIDE).message_id(0)))


def test_failure_of_a_log_raises_at_the_end() -> None:
    log = ModelLog([plain(b"1")], durable=1)
    progress, _ = progress_over(log)
    assert progress.advance(log.tail()) is Need.PAGE
    progress.take(log.page(progress.at, progress.selection.names, Random(1)))
    tail = log.tail()
    tail.failure = ClosedError("closed")
    assert progress.advance(tail) is Need.MESSAGES
    with pytest.raises(ClosedError):
        progress.advance(tail)


def test_moved_read_continues_at_the_other_end() -> None:
    here, there = ModelLog([], durable=0), ModelLog([plain(b"1"), plain(b"2")], durable=1)
    progress, _ = progress_over(here)
    assert progress.advance(here.tail()) is Need.TAIL
    progress.move(LOG, there.tail())
    assert progress.advance(there.tail()) is Need.TAIL
    there.durable = 2
    assert progress.advance(there.tail()) is Need.PAGE
    progress.take(there.page(progress.at, progress.selection.names, Random(1)))
    assert progress.advance(there.tail()) is Need.MESSAGES
    assert [message.payload for message in progress.messages] == [b"2"]


def test_damage_leaves_the_position_before_it() -> None:
    log = ModelLog([plain(b"1"), plain(b"2")], durable=2)
    progress, _ = progress_over(log)
    assert progress.advance(log.tail()) is Need.PAGE
    page = log.page(0, progress.selection.names, Random(1))
    while page.next_position < 2 * STRIDE:
        page = log.page(0, progress.selection.names, Random(page.next_position))
    progress.take(page)
    assert progress.advance(log.tail()) is Need.MESSAGES
    next(progress.open())
    before = progress.position
    view: FrameView = page.frames[1].view
    view._body = lambda start, end: bytes(end - start)
    with pytest.raises(CorruptionError):
        progress.advance(log.tail())
    assert progress.position == before


def test_handing_messages_over_copies_no_others() -> None:
    """A reader may take the messages of a frame one by one; then each must not cost as much as all that follow."""
    log = ModelLog([[("plain", [Row(("a", 3), b"1", 2, {})] * 4096, ())]], durable=1)
    reader = Reader(log, ReadOptions(("a",), All(), EventFilter()), Random(1))
    assert reader.next() is not None
    progress = reader.progress
    tracemalloc.start()
    try:
        for taken in range(2, 100):
            progress.hand_over(1)
            assert progress.following == taken
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4096
    assert len(progress.page(1 << 80)) == 4096 - 99
    progress.hand_over(1 << 80)
    assert (progress.following, len(progress.page())) == (4096, 0)


@given(st.lists(st.tuples(st.sampled_from(["one", "page", "open"]), st.integers(1, 4)), max_size=12))
def test_messages_come_once_however_they_are_taken(steps: list[tuple[str, int]]) -> None:
    rows = [Row(("a", 3), bytes((number,)), 2, {}) for number in range(16)]
    log = ModelLog([[("plain", rows, ())]], durable=1)
    progress = Reader(log, ReadOptions(("a",), All(), EventFilter()), Random(1)).progress
    assert progress.advance(log.tail()) is Need.PAGE
    progress.take(log.page(0, progress.selection.names, Random(1)))
    assert progress.advance(log.tail()) is Need.MESSAGES
    payloads: list[bytes] = []
    for step, count in steps:
        if step == "page":
            page = progress.page(count)
            progress.hand_over(len(page))
            payloads += page.payloads
        elif step == "open":
            payloads += [message.payload for message in islice(progress.coming or progress.open(), count)]
        elif progress.following < len(progress.messages):
            payloads.append(progress.messages[progress.following].payload)
            progress.hand_over(1)
        assert progress.following == len(payloads)
    assert payloads == [row.payload for row in rows[: len(payloads)]]
