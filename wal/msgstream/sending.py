"""Sends messages to several channels at once, and says what is durable if a channel fails."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from wal.msgstream.errors import PartialSendError
from wal.msgstream.medium import MediumProducer, Outgoing

__all__ = ["send_parts", "send_to_each"]


async def send_to_each(producers: Mapping[str, MediumProducer], messages: Sequence[Outgoing]) -> dict[str, list[bytes]]:
    """Sends the messages to all channels at once: the broadcast of a medium that has none of its own. Raises as `send_parts` does."""
    return await send_parts({channel: (producer, messages) for channel, producer in producers.items()})


async def send_parts(parts: Mapping[str, tuple[MediumProducer, Sequence[Outgoing]]]) -> dict[str, list[bytes]]:
    """Sends to each channel its messages, all channels at once, and returns the ids by channel.

    It waits for every channel. If one fails, and any message is durable on any channel, it raises PartialSendError from the first failure;
    if none is, the first failure.
    """
    if len(parts) == 1:
        ((channel, (producer, messages)),) = parts.items()
        return {channel: await producer.send(messages)}
    calls = [producer.send(messages) for producer, messages in parts.values()]
    outcomes = dict(zip(parts, await asyncio.gather(*calls, return_exceptions=True), strict=True))
    ids = {channel: outcome for channel, outcome in outcomes.items() if not isinstance(outcome, BaseException)}
    failures = [outcome for outcome in outcomes.values() if isinstance(outcome, BaseException)]
    if not failures:
        return ids
    durable: dict[str, Sequence[bytes | None]] = dict(ids)
    for failure in failures:
        if isinstance(failure, PartialSendError):
            durable.update(failure.durable)
    first = failures[0]
    if not durable or not isinstance(first, Exception):
        raise first
    cause = first.__cause__ if isinstance(first, PartialSendError) and first.__cause__ is not None else first
    raise PartialSendError(str(cause), durable=durable) from cause
