"""ProduceService: Produce, which opens the streams on which clients append."""

from __future__ import annotations

import itertools
from typing import Any

from wal.engine.local.log import LocalLog
from wal.network import Method
from wal.node.draining import Draining
from wal.node.hosted import Hosted
from wal.node.produce import ProduceStream
from wal.node.sessions import Sessions
from wal.node.tails import identity_of, tail_of
from wal.rpc.api import streaming_pb2 as proto
from wal.rpc.headers import producer_in
from wal.rpc.methods import PRODUCE
from wal.rpc.serving import Handler
from wal.settings import ServerBounds

__all__ = ["ProduceService"]


class ProduceService:
    """Serves the streams that write the pchannels that are `hosted` here."""

    def __init__(self, log: LocalLog, hosted: Hosted, draining: Draining, bounds: ServerBounds) -> None:
        self._log = log
        self._hosted = hosted
        self._draining = draining
        self._bounds = bounds
        self._producer_ids = itertools.count(1)
        self._sessions = Sessions()

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handler of Produce."""
        return {PRODUCE: self._produce}

    async def _produce(self, context: Any) -> None:
        created = producer_in(context.invocation_metadata() or ())
        pchannel = self._hosted.find(created.pchannel)
        stream = ProduceStream(
            context, self._log, self._hosted, self._draining, pchannel, session=created.session, bounds=self._bounds
        )
        async with self._sessions.newest(pchannel.channel, created.session, stream):
            await context.write(
                proto.ProduceResponse(
                    create=proto.CreateProducerResponse(
                        producer_id=next(self._producer_ids), log=identity_of(pchannel), tail=tail_of(pchannel)
                    )
                )
            )
            await stream.run()
