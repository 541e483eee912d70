"""Deliver policies: where a read begins."""

from __future__ import annotations

import msgspec

from wal.message import MessageID

__all__ = ["All", "DeliverPolicy", "Latest", "StartAfter", "StartFrom"]


class All(msgspec.Struct, frozen=True):
    """From the oldest message that has not been truncated."""


class Latest(msgspec.Struct, frozen=True):
    """Only what becomes durable after the read began."""


class _At(msgspec.Struct, frozen=True):
    message_id: MessageID

    def __post_init__(self) -> None:
        if not isinstance(self.message_id, MessageID):
            raise TypeError(
                f"{type(self).__name__} takes a MessageID, not {type(self.message_id).__name__}: "
                "use MessageID.parse(text) or MessageID.from_bytes(data)"
            )


class StartFrom(_At, frozen=True):
    """From this message, inclusive. The id of a body stands for its transaction."""


class StartAfter(_At, frozen=True):
    """From the message after this one. The id of a body stands for its transaction."""


DeliverPolicy = All | Latest | StartFrom | StartAfter
