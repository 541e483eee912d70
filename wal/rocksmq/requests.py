"""What the broker is told: one struct for each call, with the future of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from wal.rocksmq.channel import Group
from wal.rocksmq.message import ConsumerMessage

__all__ = ["Ack", "Change", "Consume", "Produce", "Retain", "Seek", "Withdraw"]


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
