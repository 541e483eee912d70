"""TickCutter keeps its guarantee: every read, from the beginning or after any tick, cuts the messages alike."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from wal.message import ImmutableMessage, Origin
from wal.read.options import ReadPosition
from wal.streams.flowgraph.nodes.scanner_node import TickCutter, TickOfLog
from wal.timestamp import LOGICAL_BITS

MILLISECOND = 1 << LOGICAL_BITS


@given(
    random=st.randoms(use_true_random=False),
    interval_ms=st.sampled_from([0, 1, 2, 7]),
    messages_max=st.sampled_from([1, 3, 100]),
    bytes_max=st.sampled_from([1, 90, 1000]),
)
def test_cuts_do_not_depend_on_the_start(random: Random, interval_ms: int, messages_max: int, bytes_max: int) -> None:
    class Log:
        """Random frames of messages with ascending ticks, as a scanner returns them."""

        def __init__(self, random: Random) -> None:
            self.random = random
            self.frames: list[list[ImmutableMessage]] = []
            tick = 7
            for position in range(random.randrange(1, 12)):
                frame = []
                for index in range(random.randrange(1, 8)):
                    tick += random.choice([1, 1, 1, MILLISECOND // 3, 5 * MILLISECOND])
                    payload = bytes(random.choice([0, 1, 60]))
                    frame.append(ImmutableMessage(Origin("p0", 1, position), index, tick, "v", payload))
                self.frames.append(frame)
            self.last = tick

        def read(self, cutter: TickCutter, after: ReadPosition | None = None) -> list[TickOfLog]:
            """Reads everything after a position, with promises at random moments, and one after everything."""
            ticks: list[TickOfLog] = []
            for frame in self.frames:
                rest = [message for message in frame if after is None or message.time_tick > after.time_tick]
                if not rest:
                    continue
                ticks += cutter.add(rest)
                if self.random.random() < 0.3:
                    end = ReadPosition(rest[-1].message_id, rest[-1].time_tick)
                    ticks += cutter.promise(rest[-1].time_tick, end)
            last = self.frames[-1][-1].message_id
            ticks += cutter.promise(self.last + 20 * MILLISECOND, ReadPosition(last, self.last + 20 * MILLISECOND))
            return ticks

    def cutter() -> TickCutter:
        return TickCutter(interval_ms=interval_ms, messages_max=messages_max, bytes_max=bytes_max)

    log = Log(random)
    ticks = log.read(cutter())
    assert [message for tick in ticks for message in tick.messages] == [m for frame in log.frames for m in frame]
    assert all(earlier.time_tick < later.time_tick for earlier, later in pairwise(ticks))
    before = -1
    for tick in ticks:
        assert all(before < message.time_tick <= tick.time_tick for message in tick.messages)
        assert len(tick.messages) <= messages_max
        assert sum(len(m.payload) for m in tick.messages) <= bytes_max or len(tick.messages) == 1
        before = tick.time_tick
    full = [(tick.time_tick, tick.messages) for tick in ticks if tick.messages]
    assert [(t.time_tick, t.messages) for t in log.read(cutter()) if t.messages] == full, "whatever the promises are"
    for at, tick in enumerate(ticks):
        done = len([earlier for earlier in ticks[: at + 1] if earlier.messages])
        again = [(t.time_tick, t.messages) for t in log.read(cutter(), tick.position) if t.messages]
        assert again == full[done:]


def test_tick_ends_with_frame_or_interval() -> None:
    def message(position: int, tick: int) -> ImmutableMessage:
        return ImmutableMessage(Origin("p0", 1, position), 0, tick, "v", b"")

    frames = TickCutter(interval_ms=0, messages_max=10, bytes_max=10)
    assert [tick.time_tick for tick in frames.add([message(0, 5), message(0, 6)])] == [6]
    assert list(frames.promise(6, None)) == []
    assert [(tick.time_tick, tick.messages) for tick in frames.promise(9, None)] == [(9, [])]

    intervals = TickCutter(interval_ms=2, messages_max=10, bytes_max=10)
    width = 2 * MILLISECOND
    assert list(intervals.add([message(0, 5), message(0, 6)])) == []
    assert list(intervals.promise(width - 1, None)) == [], "the interval has not ended"
    assert list(intervals.add([message(1, width)])) == []
    (first,) = intervals.promise(width, None)
    assert (first.time_tick, len(first.messages)) == (width, 3)
    assert list(intervals.add([message(2, width + 1)])) == []
    assert [(t.time_tick, len(t.messages)) for t in intervals.add([message(3, 3 * width)])] == [(2 * width, 1)]
    assert [t.time_tick for t in intervals.promise(9 * width + 1, None)] == [3 * width, 9 * width]
