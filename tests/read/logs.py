"""A log of random frames as plain lists, the pages that a backend would return, and the messages that a read should deliver."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from tests.read.frames import Event, Row, build, expected
from wal.frame import RunName
from wal.message import MessageID, Origin
from wal.read.options import All, Latest, ReadOptions, StartAfter, StartFrom
from wal.storage.base import FramePage, StoredFrame

LOG = Origin("p0", 7, 0)
TICKS_A_FRAME = 1000
STRIDE = 1 << 20
"""The distance between the positions of two frames."""

Steps = list[tuple[str, list[Row], tuple[RunName, ...]]]


class ModelTail(msgspec.Struct):
    """The durable end of a `ModelLog`."""

    durable_end: int
    promised_tick: int
    newest: tuple[int, int] | None
    failure: BaseException | None = None


class ModelLog:
    """Consecutive frames, of which the first `durable` can be read."""

    def __init__(self, frames: list[Steps], *, durable: int) -> None:
        self.frames: list[StoredFrame] = []
        self.events: list[list[Event]] = []
        for number, steps in enumerate(frames):
            frame, events = build(steps, position=number * STRIDE, first_tick=_tick(number), sequence=number)
            self.frames.append(frame)
            self.events.append(events)
        self.durable = durable

    def tail(self) -> ModelTail:
        """Returns the end as it is now."""
        promised_tick = self.frames[self.durable - 1].view.header.promised_tick if self.durable else 0
        newest = None
        for number in range(self.durable):
            if indices := self.frames[number].view.header.indices:
                newest = (number * STRIDE, indices - 1)
        return ModelTail(self.durable * STRIDE, promised_tick, newest)

    def page(self, start: int, names: frozenset[str] | None, random: Random) -> FramePage:
        """Returns the wanted frames among a random number of durable frames from `start` on."""
        assert names is not None, "a read of the model names its vchannels"
        first = -(-start // STRIDE)
        end = random.randint(first + 1, max(self.durable, first + 1))
        looked_at = self.frames[first:end]
        last_event = None
        for frame in looked_at:
            if frame.view.header.indices:
                last_event = (frame.position, frame.view.header.indices - 1)
        return FramePage(
            [frame for frame in looked_at if frame.view.runs.find(names) or random.random() < 0.2],
            end * STRIDE,
            last_event,
            max((frame.view.header.promised_tick for frame in looked_at), default=0),
        )

    def delivered(self, options: ReadOptions, bound: dict[str, int], *, begun: int) -> list[tuple[Any, ...]]:
        """Returns the messages, in the form of `seen`, of a read that begins with `begun` durable frames and continues to the end of the
        log."""
        messages: list[tuple[Any, ...]] = []
        for number, events in enumerate(self.events):
            position = number * STRIDE
            if not options.follow and number >= begun:
                break
            chosen = []
            for event in events:
                first = min([at for at, _ in event.rows] + [event.index])
                start = options.policy
                after = options.resume.message_id if options.resume is not None else None
                if isinstance(start, StartAfter):
                    after = start.message_id
                if isinstance(start, Latest) and number < begun:
                    continue
                if isinstance(start, StartFrom) and (position, event.index) < _key(start.message_id):
                    continue
                if after is not None and (position, first) <= _key(after):
                    continue
                if options.until_time_tick is not None and _tick(number) + event.index > options.until_time_tick:
                    continue
                chosen.append(event)
            event_filter = options.event_filter
            messages += expected(
                chosen,
                bound,
                event_filter.tick_min,
                event_filter.types,
                origin=Origin(LOG.pchannel, LOG.incarnation, position),
                first_tick=_tick(number),
            )
        return messages

    def ids(self) -> list[MessageID]:
        """Returns the ids of all durable events and bodies."""
        return [
            Origin(LOG.pchannel, LOG.incarnation, number * STRIDE).message_id(at)
            for number in range(self.durable)
            for event in self.events[number]
            for at in sorted({event.index, *(at for at, _ in event.rows)})
        ]


def policies(log: ModelLog, random: Random) -> All | Latest | StartFrom | StartAfter:
    """Returns a policy that a read of this log may have."""
    if (ids := log.ids()) and random.random() < 0.6:
        return random.choice((StartFrom, StartAfter))(random.choice(ids))
    return random.choice((All(), Latest()))


def _tick(number: int) -> int:
    return (number + 1) * TICKS_A_FRAME


def _key(message_id: MessageID) -> tuple[int, int]:
    return (message_id.position, message_id.index)
