"""A read resumes exactly at the log position that another read had reached, even if everything below is truncated."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.read.frames import seen
from tests.read.logs import LOG, TICKS_A_FRAME, ModelLog
from tests.read.test_progress import BOUND, Reader, bound, reads
from wal.message import ImmutableMessage
from wal.read.options import All, ReadOptions, ReadPosition, Selection, StartAfter, StartFrom
from wal.read.progress import Progress

Stops = list[tuple[int, bool, int | None, bool]]

STOPS = st.lists(
    st.tuples(
        st.integers(0, 6),
        st.booleans(),
        st.none() | st.builds(lambda frame, index: frame * TICKS_A_FRAME + index, st.integers(0, 5), st.integers(0, 6)),
        st.booleans(),
    ),
    max_size=5,
)
"""Parts of a read: messages taken, `follow`, `until_time_tick`, and whether it drops its fetched messages, as a closed scanner does."""


@given(reads(), STOPS)
def test_read_in_pieces_delivers_each_message_once(read: tuple[ModelLog, ReadOptions, Random], stops: Stops) -> None:
    class ResumedReader(Reader):
        """A reader that resumes at another reader's position, in a log that begins there."""

        def __init__(
            self, log: ModelLog, options: ReadOptions, random: Random, start: tuple[int, int], position: ReadPosition | None
        ) -> None:
            self.log, self.random = log, random
            self.progress = Progress(options)
            self.begun = log.durable
            selection = Selection({name: BOUND.get(name) for name in options.vchannels}, floor=100)
            self.progress.go_on(start, position)
            assert self.progress.begin(LOG, selection, log.tail(), start) is None
            assert self.progress.reached.position == start
            assert self.progress.position == position

    log, options, random = read
    first = ReadOptions(options.vchannels, options.policy, options.event_filter)
    reader = Reader(log, first, random)
    begun = reader.begun
    messages: list[ImmutableMessage] = []
    for stop, follow, until, lets_go in [*stops, (0, True, None, False)]:
        for _ in range(stop):
            if (message := reader.next()) is None:
                break
            messages.append(message)
        progress = reader.progress
        start, position = progress.reached.position, progress.position
        if position is not None:
            assert start > (position.message_id.position, position.message_id.index)
        if lets_go:
            progress.let_go()
            assert (progress.reached.position, progress.position) == (start, position)
        piece = ReadOptions(options.vchannels, All(), options.event_filter, follow, until)
        reader = ResumedReader(log, piece, random, start, position)
    messages += reader.rest()
    assert list(map(seen, messages)) == log.delivered(first, bound(first), begun=begun)


@given(reads())
def test_saved_start_is_where_the_policy_begins(read: tuple[ModelLog, ReadOptions, Random]) -> None:
    log, options, random = read
    reader = Reader(log, options, random)
    policy = options.policy
    start = reader.progress.reached.position
    if isinstance(policy, StartFrom):
        assert start == (policy.message_id.position, policy.message_id.index)
    elif isinstance(policy, StartAfter):
        assert start == (policy.message_id.position, policy.message_id.index + 1)
    elif isinstance(policy, All):
        assert start == (0, 0)
    else:
        assert start == (log.tail().durable_end, 0)


@given(reads())
def test_at_the_tail_nothing_is_left_to_read(read: tuple[ModelLog, ReadOptions, Random]) -> None:
    log, options, random = read
    reader = Reader(log, ReadOptions(options.vchannels, options.policy, options.event_filter), random)
    reader.rest()
    assert reader.progress.reached.position == (log.tail().durable_end, 0)


@given(reads())
def test_log_position_below_the_earliest_event_is_truncated(read: tuple[ModelLog, ReadOptions, Random]) -> None:
    log, options, _ = read
    progress = Progress(options)
    progress.go_on((5, 1), None)
    lost = progress.begin(LOG, Selection({}, floor=0), log.tail(), (5, 2))
    assert lost is not None
    assert (lost.position, lost.index) == (5, 1)
