"""The requests to the broker, each with the future of its answer, and Waiting: the calls of `consume` that wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from wal.errors import WouldBlockError
from wal.streams.rocksmq.channel import ConsumerGroup, ConsumerMessage
from wal.streams.rocksmq.keys import TurnWrites


@dataclass(slots=True, eq=False)
class ProduceRequest:
    """Adds these payloads; the result is the range of their ids."""

    reply: asyncio.Future[range]
    channel: str
    payloads: Sequence[bytes]
    size: int


@dataclass(slots=True, eq=False)
class ConsumeRequest:
    """Requests up to `count_max` messages. If no message is ready, the result is an empty list or, if it `waits`, the next messages."""

    reply: asyncio.Future[list[ConsumerMessage]]
    group: str
    channel: str
    count_max: int
    _: KW_ONLY
    waits: bool
    auto_ack: bool
    served_group: ConsumerGroup | None = None
    """The group, as it was when it got messages."""


@dataclass(slots=True, eq=False)
class WithdrawRequest:
    """Ends a wait, or returns the messages of a caller that was cancelled after its answer: the group's next call gets them."""

    consume: ConsumeRequest
    messages: list[ConsumerMessage]


@dataclass(slots=True, eq=False)
class ChangeRequest:
    """Calls `change` in the broker's turn. Its result is the answer, sent when the change is durable.

    It follows all earlier calls of `consume` for `channel`, if that is set. If it `wakes` consumers, the calls that wait there run again.
    """

    reply: asyncio.Future[Any] | None
    change: Callable[[TurnWrites], object]
    channel: str | None = None
    wakes: bool = False


WAITING_MAX: Final = 65_536
"""The maximum number of waiting calls of `consume`, over all channels."""


class Waiting:
    """The calls of `consume` that wait for messages, by channel and in order. Pure.

    At most WAITING_MAX calls wait in all. A channel without waiting calls takes no memory.
    """

    def __init__(self) -> None:
        self._by_channel: dict[str, deque[ConsumeRequest]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, consume: ConsumeRequest) -> None:
        """Adds a waiting call, after the others of its channel; raises WouldBlockError when too many wait."""
        if self._count >= WAITING_MAX:
            raise WouldBlockError(f"{WAITING_MAX} calls of consume wait for messages: end some of them first")
        self._by_channel.setdefault(consume.channel, deque()).append(consume)
        self._count += 1

    def remove(self, consume: ConsumeRequest) -> None:
        """Ends the wait of a call, if it waits."""
        waiting = self._by_channel.get(consume.channel)
        if waiting is not None and consume in waiting:
            waiting.remove(consume)
            self._count -= 1
            if not waiting:
                del self._by_channel[consume.channel]

    def of(self, channel: str, group: str | None = None) -> list[ConsumeRequest]:
        """Returns the calls that wait for this channel, only those of this group unless None."""
        return [each for each in self._by_channel.get(channel, ()) if group is None or each.group == group]

    def count(self, channel: str, group: str) -> int:
        """Returns the number of unanswered calls that wait for this channel as this group."""
        return sum(not consume.reply.done() for consume in self.of(channel, group))

    def take(self, channel: str) -> list[ConsumeRequest]:
        """Returns the calls that wait for this channel, and ends their wait."""
        waiting = list(self._by_channel.pop(channel, ()))
        self._count -= len(waiting)
        return waiting

    def take_all(self) -> list[ConsumeRequest]:
        """Returns all calls that wait, and ends their wait."""
        return [consume for channel in list(self._by_channel) for consume in self.take(channel)]
