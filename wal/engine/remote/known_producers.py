"""KnownProducers: what the pchannels of a log remember of producers of idempotent appends. The server that has a pchannel is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from wal.errors import InvalidArgumentError
from wal.pchannel import ProducerInfo
from wal.rpc.api import pchannel_calls_pb2, pchannel_pb2
from wal.rpc.connection import Connection
from wal.rpc.methods import FORGET_PRODUCER, LIST_PRODUCERS
from wal.rpc.reports import producers_from_proto

__all__ = ["KnownProducers"]


class KnownProducers:
    """The producers on these pchannels; `connection` returns the connection to the server that has a pchannel."""

    def __init__(self, pchannels: Iterable[str], connection: Callable[[str], Connection]) -> None:
        self._pchannels = pchannels
        self._connection = connection

    async def listed(self) -> list[ProducerInfo]:
        """Returns what every pchannel remembers of producers."""

        async def listed(pchannel: str) -> list[ProducerInfo]:
            request = pchannel_calls_pb2.PChannelRequest(pchannel=pchannel_pb2.PChannelInfo(name=pchannel))
            what = f"listing the producers of pchannel {pchannel}"
            return producers_from_proto(await self._connection(pchannel).read(LIST_PRODUCERS, request, what))

        return [info for infos in await asyncio.gather(*map(listed, self._pchannels)) for info in infos]

    async def forget(self, name: str) -> None:
        """Forgets a producer on every pchannel that knows it; raises InvalidArgumentError if none does."""

        async def forget(pchannel: str) -> InvalidArgumentError | None:
            request = pchannel_calls_pb2.ForgetProducerRequest(
                pchannel=pchannel_pb2.PChannelInfo(name=pchannel), name=name
            )
            try:
                await self._connection(pchannel).write(FORGET_PRODUCER, request, f"forgetting producer {name!r}")
            except InvalidArgumentError as error:
                return error
            return None

        refusals = await asyncio.gather(*map(forget, self._pchannels))
        if all(refusals) and refusals[0] is not None:
            raise refusals[0]
