"""Acker: the actor that acknowledges the messages of one channel; one call to the medium covers all that waited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from actors import Actor
from wal.msgstream.errors import failure
from wal.msgstream.medium import MediumConsumer

__all__ = ["Ack", "Acker"]

PENDING_MAX: Final = 64
"""The most packs that wait for their acknowledgement in a channel; then `room` waits."""


class Ack(msgspec.Struct):
    """Acknowledge these messages. `reply` is None if nobody waits for it."""

    msg_ids: list[bytes]
    reply: asyncio.Future[None] | None = None


class Acker(Actor):
    """Takes `Ack`s. An error ends it: it goes to `fail`, and to everybody who waits for a reply."""

    def __init__(self, consumer: MediumConsumer, *, fail: Callable[[BaseException], None]) -> None:
        self.acked: int = 0
        self._consumer = consumer
        self._fail = fail
        self._failure: BaseException | None = None
        self._went_on = asyncio.Event()

    async def room(self) -> None:
        """Returns when there is room for an `Ack`, or when the actor has ended."""
        while self.ref.pending >= PENDING_MAX and self._failure is None:
            self._went_on.clear()
            await self._went_on.wait()

    async def receive(self, batch: list[Any]) -> None:
        acks: list[Ack] = list(batch)
        msg_ids = acks[0].msg_ids if len(acks) == 1 else [msg_id for ack in acks for msg_id in ack.msg_ids]
        if self._failure is None:
            try:
                await self._consumer.ack(msg_ids)
                self.acked += len(msg_ids)
            except Exception as error:
                self._end(error)
        for ack in acks:
            if ack.reply is not None and not ack.reply.done():
                if self._failure is None:
                    ack.reply.set_result(None)
                else:
                    ack.reply.set_exception(self._failure)
        batch.clear()
        self._went_on.set()

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        self._end(cause)
        for ack in unhandled:
            if ack.reply is not None and not ack.reply.done():
                ack.reply.set_exception(failure(cause))

    def _end(self, cause: BaseException) -> None:
        self._failure = failure(cause)
        self._fail(self._failure)
        self._went_on.set()
