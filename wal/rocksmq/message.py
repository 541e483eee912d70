"""What is produced, and what is consumed: the two messages of the seeds' RocksMQ."""

from __future__ import annotations

import msgspec

__all__ = ["ConsumerMessage", "ProducerMessage"]


class ProducerMessage(msgspec.Struct, frozen=True, gc=False):
    """A payload on its way into a channel; where one is wanted, its `bytes` alone will do."""

    payload: bytes


class ConsumerMessage(msgspec.Struct, frozen=True, gc=False):
    """A payload and its id: 64 bits, positive, ascending within a channel and not dense there."""

    message_id: int
    payload: bytes
