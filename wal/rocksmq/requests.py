"""What the broker is told: one struct for each call, with the future of its answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from wal.errors import WouldBlockError
from wal.rocksmq.channel import ConsumerMessage, Group

__all__ = ["WAITING_MAX", "Ack", "Change", "Consume", "Produce", "Retain", "Seek", "Waiting", "Withdraw"]


class Produce:
    """Add these payloads; the answer is the range of their ids."""

    __slots__ = ("channel", "payloads", "reply", "size")

    def __init__(self, reply: asyncio.Future[range], channel: str, payloads: Sequence[bytes], size: int) -> None:
        self.reply: asyncio.Future[range] = reply
        self.channel: str = channel
        self.payloads: Sequence[bytes] = payloads
        self.size: int = size


class Consume:
    """Up to `count_max` messages; without any the answer is an empty list, or comes when there are some if it `waits`."""

    __slots__ = ("auto_ack", "channel", "count_max", "group", "reply", "taken", "waits")

    def __init__(
        self,
        reply: asyncio.Future[list[ConsumerMessage]],
        group: str,
        channel: str,
        count_max: int,
        *,
        waits: bool,
        auto_ack: bool,
    ) -> None:
        self.reply: asyncio.Future[list[ConsumerMessage]] = reply
        self.group: str = group
        self.channel: str = channel
        self.count_max: int = count_max
        self.waits: bool = waits
        self.auto_ack: bool = auto_ack
        self.taken: Group | None = None
        """The group, as it was when it was given messages."""


class Withdraw:
    """Who asked does not wait any more, or was cancelled when it had its answer: what it was given goes to the group's next call."""

    __slots__ = ("consume", "messages")

    def __init__(self, consume: Consume, messages: list[ConsumerMessage]) -> None:
        self.consume: Consume = consume
        self.messages: list[ConsumerMessage] = messages


class _Answered:
    __slots__ = ("reply",)

    def __init__(self, reply: asyncio.Future[Any]) -> None:
        self.reply: asyncio.Future[Any] = reply


class Seek(_Answered):
    """Put the group behind this id, or before it if `inclusive`; None: behind everything."""

    __slots__ = ("channel", "group", "inclusive", "message_id")

    def __init__(
        self, reply: asyncio.Future[None], group: str, channel: str, message_id: int | None, *, inclusive: bool
    ) -> None:
        super().__init__(reply)
        self.group: str = group
        self.channel: str = channel
        self.message_id: int | None = message_id
        self.inclusive: bool = inclusive


class Ack(_Answered):
    """The group has consumed everything up to this id."""

    __slots__ = ("channel", "group", "message_id")

    def __init__(self, reply: asyncio.Future[None], group: str, channel: str, message_id: int) -> None:
        super().__init__(reply)
        self.group: str = group
        self.channel: str = channel
        self.message_id: int = message_id


class Change(_Answered):
    """`kind` of "create" or "destroy", of a channel, or of a group of it."""

    __slots__ = ("channel", "group", "kind", "latest")

    def __init__(
        self, reply: asyncio.Future[None], kind: str, channel: str, group: str | None = None, *, latest: bool = False
    ) -> None:
        super().__init__(reply)
        self.kind: str = kind
        self.channel: str = channel
        self.group: str | None = group
        self.latest: bool = latest


class Retain:
    """Look what retention may drop; the answer is the number of pages that went."""

    __slots__ = ("reply",)

    def __init__(self, reply: asyncio.Future[int] | None) -> None:
        self.reply: asyncio.Future[int] | None = reply


WAITING_MAX: Final = 65_536
"""Calls of `consume` that may wait for messages, over all channels."""


class Waiting:
    """Nobody waits at first."""

    def __init__(self) -> None:
        self._by_channel: dict[str, deque[Consume]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, consume: Consume) -> None:
        """It waits from now on, behind the others of its channel; WouldBlockError when too many do."""
        if self._count >= WAITING_MAX:
            raise WouldBlockError(f"{WAITING_MAX} calls of consume wait for messages: end some of them first")
        self._by_channel.setdefault(consume.channel, deque()).append(consume)
        self._count += 1

    def remove(self, consume: Consume) -> None:
        """It does not wait any more, if it did."""
        waiting = self._by_channel.get(consume.channel)
        if waiting is not None and consume in waiting:
            waiting.remove(consume)
            self._count -= 1
            if not waiting:
                del self._by_channel[consume.channel]

    def of(self, channel: str, group: str | None = None) -> list[Consume]:
        """Who waits for this channel, as this group unless None."""
        return [each for each in self._by_channel.get(channel, ()) if group is None or each.group == group]

    def count(self, channel: str, group: str) -> int:
        """Returns how many calls wait for this channel as this group."""
        return sum(not consume.reply.done() for consume in self.of(channel, group))

    def take(self, channel: str) -> list[Consume]:
        """Those who wait for this channel; they do not any more."""
        waiting = list(self._by_channel.pop(channel, ()))
        self._count -= len(waiting)
        return waiting

    def take_all(self) -> list[Consume]:
        """All who wait; nobody does any more."""
        return [consume for channel in list(self._by_channel) for consume in self.take(channel)]
