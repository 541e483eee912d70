"""The errors that only message streams raise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wal.errors import WALError

__all__ = ["PartialSendError"]


class PartialSendError(WALError):
    """A medium sent some of the messages, but not all; raised from the cause. Streams turn it into an error of the cause's class.

    `.durable` has, by channel, the ids of the messages in the order in which they were to be sent; None for one that is not known to be
    durable.
    """

    def __init__(self, text: str, *, durable: Mapping[str, Sequence[bytes | None]]) -> None:
        super().__init__(text)
        self.durable: Mapping[str, Sequence[bytes | None]] = durable
