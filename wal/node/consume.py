"""Consume: the streams on which clients read a pchannel, as messages in the contract's form, or as frames in ours.

A stream is written no faster than its client reads: HTTP/2 makes this side wait, with at most a page in memory, and nobody else notices.
"""

from __future__ import annotations

from typing import Any

from wal.engine.local.log import LocalLog
from wal.network import Method
from wal.node.draining import Draining
from wal.node.frame_feed import FrameFeed
from wal.node.hosted import Hosted
from wal.node.message_feed import MessageFeed
from wal.node.tick_rounds import TickRounds
from wal.rpc.api import streaming_pb2 as proto
from wal.rpc.headers import consumer_in
from wal.rpc.methods import CONSUME
from wal.rpc.serving import Handler

__all__ = ["ConsumeService"]


class ConsumeService:
    """Serves the streams that read the pchannels that are `hosted` here."""

    def __init__(self, log: LocalLog, hosted: Hosted, draining: Draining) -> None:
        self._log = log
        self._hosted = hosted
        self._draining = draining
        self._rounds: dict[str, TickRounds] = {}

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handler of Consume."""
        return {CONSUME: self._consume}

    async def _consume(self, context: Any) -> None:
        created = consumer_in(context.invocation_metadata() or ())
        pchannel = self._hosted.find(created.pchannel)
        rounds = self._rounds.get(pchannel.channel)
        if rounds is None or rounds.pchannel is not pchannel:
            rounds = self._rounds[pchannel.channel] = TickRounds(pchannel)
        if created.HasField("frames"):
            await FrameFeed(context, self._log, self._draining, rounds, created.frames).run()
        else:
            await MessageFeed(context, self._log, self._draining, rounds, created).run()
        await context.write(proto.ConsumeResponse(close=proto.CloseConsumerResponse()))
