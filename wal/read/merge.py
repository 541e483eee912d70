"""Merge: the messages of several pchannels in one order, that of their ticks. Pure.

Each pchannel is a lane, whose messages come in ascending order. Two pchannels of a cluster may use the same tick, so the order is that of
the key (tick, name of the pchannel), and all readers see the same one, in each run.

    put, cover --> lanes --take--> messages up to the limit --> the caller

A lane has the messages that came and were not taken yet, and `covered`: all of its later messages have greater ticks. So the smallest key
that may still come is known, the `limit`: every message below it can be taken, and nothing at or above it. A lane that has nothing for
this reader only moves `covered`, which follows the promised ticks of its pchannel.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from operator import attrgetter
from typing import Final

import msgspec

from wal.message import ImmutableMessage, ImmutableTxnMessage, LogPosition
from wal.read.assembly import NO_MESSAGES, MessagePage
from wal.read.options import TickPosition

Key = tuple[int, str]
"""The tick of an event, and the name of its pchannel: the order of a merge."""


class MergeLane:
    """The messages of one pchannel that were not taken yet: those of `messages` from `at` on."""

    __slots__ = ("at", "covered", "messages", "name")

    def __init__(self, name: str, covered: int) -> None:
        self.name = name
        self.messages: MessagePage = NO_MESSAGES
        self.at = 0
        self.covered = covered
        """All messages that are not in `messages` have greater ticks; it never goes back."""

    @property
    def is_empty(self) -> bool:
        return self.at == len(self.messages)

    @property
    def next_tick(self) -> int:
        """The tick of the next message; the lane is not empty."""
        return self.messages.tick(self.at)

    def take(self, limit: Key) -> MessagePage:
        """Takes the messages with keys below the limit."""
        tick = limit[0] + (self.name < limit[1])
        first, messages = self.at, self.messages
        stop = bisect_left(range(len(messages)), tick, lo=first, key=messages.tick)
        self.at = stop
        if first == 0 and stop == len(messages):
            self.messages, self.at = NO_MESSAGES, 0
            return messages
        return messages.part(first, stop)

    def take_all(self) -> MessagePage:
        """Takes the messages."""
        messages = self.messages.part(self.at, len(self.messages)) if self.at else self.messages
        self.messages, self.at = NO_MESSAGES, 0
        return messages


class Merge:
    """See the top of the file. `start` is the position after which the merge begins; `names` are those of the pchannels."""

    __slots__ = ("_names", "begun", "lanes")

    def __init__(self, names: Iterable[str], start: TickPosition | None = None) -> None:
        self._names: Final = sorted(names)
        self.begun: dict[str, tuple[int, LogPosition]] = {}
        """By pchannel: a tick that no event has which was truncated before the read began, nor a lower one, and its first event then."""
        self.lanes: dict[str, MergeLane] = {name: MergeLane(name, -1 if start is None else start.covered(name)) for name in self._names}

    def add(self, name: str) -> None:
        """Adds a pchannel whose events are all later than what was handed over."""
        lane = MergeLane(name, self.limit[0])
        insort(self._names, name)
        self.lanes[name] = lane

    def put(self, name: str, messages: MessagePage, covered: int) -> None:
        """Takes the next messages of a pchannel whose lane is empty; all later ones have ticks above `covered`."""
        lane = self.lanes[name]
        assert lane.is_empty, "the messages of a lane are taken before others come"
        lane.messages, lane.at = messages, 0
        lane.covered = max(lane.covered, covered)

    def cover(self, name: str, tick: int) -> None:
        """Records that a pchannel has delivered all its messages up to this tick."""
        lane = self.lanes[name]
        lane.covered = max(lane.covered, tick)

    @property
    def limit(self) -> Key:
        """The smallest key that may still come."""
        return min([(lane.covered + 1, lane.name) for lane in self.lanes.values()], default=(0, ""))

    @property
    def next_tick(self) -> int | None:
        """The tick of the first message that was not taken, which waits for the lanes that do not cover it; None if there is none."""
        return min((lane.next_tick for lane in self.lanes.values() if not lane.is_empty), default=None)

    def take(self) -> MessagePage:
        """Takes all messages that no other can come before, in order. Afterwards the lane with the limit is empty."""
        if len(self.lanes) == 1:
            return next(iter(self.lanes.values())).take_all()
        limit = self.limit
        lanes = map(self.lanes.__getitem__, self._names)
        pages = [lane.take(limit) for lane in lanes if not lane.is_empty and (lane.next_tick, lane.name) < limit]
        if not pages:
            return NO_MESSAGES
        if len(pages) == 1:
            return pages[0]
        messages = [message for page in pages for message in page.build()]
        messages.sort(key=_BY_TICK)  # it keeps the order of the names where ticks are the same
        return MessagePage(messages)

    def drop(self, name: str, vchannel: str, indices: range, types: frozenset[int] | None = None) -> None:
        """Takes messages of a vchannel out of the lane of this pchannel; see `without`."""
        lane = self.lanes[name]
        if not lane.is_empty:
            lane.messages, lane.at = MessagePage(without(lane.messages.build()[lane.at :], name, vchannel, indices, types)), 0

    def position_before(self, key: Key) -> TickPosition | None:
        """Returns the position of a reader that was handed everything below this key, and not what has it; None before the first tick."""
        if not self._names:
            return None
        tick, name = key
        at = bisect_left(self._names, name)
        before = (tick, self._names[at - 1]) if at else (tick - 1, self._names[-1])
        return None if before[0] < 0 else self.position_after(before)

    def position_after(self, key: Key) -> TickPosition:
        """Returns the position of a reader that was handed everything up to this key."""
        position = TickPosition.at(*key)
        begun = [(name, *first) for name, (lost, first) in self.begun.items() if position.covered(name) < lost]
        return msgspec.structs.replace(position, begun=tuple(begun)) if begun else position


def key_of(message: ImmutableMessage) -> Key:
    """Returns the key of a message."""
    return message.time_tick, message._origin.pchannel


_BY_TICK: Final = attrgetter("time_tick")


def without(
    messages: list[ImmutableMessage], pchannel: str, vchannel: str, indices: range, types: frozenset[int] | None = None
) -> list[ImmutableMessage]:
    """Returns these messages without a vchannel's messages at these indices of its frame, and transactions without such bodies.

    A transaction with no other vchannel is left out, and where a read wants certain `types`, one without other bodies.
    """
    left: list[ImmutableMessage] = []
    for message in messages:
        if message._origin.pchannel != pchannel or message._index not in indices:
            left.append(message)
        elif not isinstance(message, ImmutableTxnMessage):
            if message.vchannel != vchannel:
                left.append(message)
        elif vchannel not in message.vchannels:
            left.append(message)
        else:
            names = tuple([name for name in message.vchannels if name != vchannel])
            bodies = tuple([body for body in message.bodies() if body.vchannel != vchannel])
            if names and (bodies or types is None):
                only = names[0] if len(names) == 1 else ""
                left.append(msgspec.structs.replace(message, vchannel=only, vchannels=names, messages=bodies))
    return left
