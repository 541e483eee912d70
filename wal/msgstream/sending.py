"""send_to_each: the broadcast of a medium that has none of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from wal.msgstream.errors import PartialSendError
from wal.msgstream.medium import MediumProducer, Outgoing

__all__ = ["send_to_each"]


async def send_to_each(producers: Mapping[str, MediumProducer], messages: Sequence[Outgoing]) -> dict[str, list[bytes]]:
    """Sends the messages to all channels at once and returns their ids by channel.

    It waits for every channel. If one fails, and any message is durable on any channel, it raises PartialSendError from the first failure;
    if none is, the first failure.
    """
    calls = [producer.send(messages) for producer in producers.values()]
    outcomes = dict(zip(producers, await asyncio.gather(*calls, return_exceptions=True), strict=True))
    failures = [outcome for outcome in outcomes.values() if isinstance(outcome, BaseException)]
    for failure in failures:
        if not isinstance(failure, Exception):
            raise failure
    if not failures:
        return {channel: ids for channel, ids in outcomes.items() if not isinstance(ids, BaseException)}
    durable: dict[str, Sequence[bytes | None]] = {}
    for channel, outcome in outcomes.items():
        if isinstance(outcome, PartialSendError):
            durable.update(outcome.durable)
        elif not isinstance(outcome, BaseException):
            durable[channel] = outcome
    if not durable:
        raise failures[0]
    first = failures[0].__cause__ if isinstance(failures[0], PartialSendError) else failures[0]
    raise PartialSendError(str(first), durable=durable) from first
