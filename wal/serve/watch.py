"""WatchVChannels: the stream by which clients know which vchannels exist. All else that concerns a log as a whole is a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

from wal.channels.slices import SLICE
from wal.channels.vchannels import VChannelInfo
from wal.coordinator.coordinator import Coordinator
from wal.errors import WouldBlockError
from wal.network import Method
from wal.requests.vchannels import Existence, VChannelState, VChannelStates
from wal.rpc.api import cluster_pb2 as proto
from wal.rpc.converter import struct_to_proto
from wal.rpc.draining import Draining
from wal.rpc.methods import WATCH_VCHANNELS
from wal.rpc.serving import Handler

BEHIND_MAX: Final = 65_536
"""The most vchannels that changed since a watcher was last told: with more, telling it everything again costs less."""


class WatchService:
    """Pushes vchannels with saved records to watchers, so a crash never takes back a vchannel that a client has seen.

    Its streams end when `draining` begins.
    """

    def __init__(self, coordinator: Coordinator, draining: Draining) -> None:
        self._vchannels = coordinator.vchannels
        self._pchannels = coordinator.pchannels
        self._draining = draining

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handler of WatchVChannels."""
        return {WATCH_VCHANNELS: self._watch}

    async def _watch(self, _request: proto.WatchVChannelsRequest, _context: object) -> AsyncIterator[bytes]:
        directory = self._vchannels.directory
        changed: dict[str, VChannelState] = {}
        woken = asyncio.Event()

        def note(changes: Iterable[tuple[VChannelInfo, bool]]) -> None:
            if len(changed) <= BEHIND_MAX:  # otherwise it has missed some already
                changed.update(
                    (info.name, VChannelState(info, Existence.EXISTS if exists else Existence.DROPPED)) for info, exists in changes
                )
            woken.set()

        directory.watchers[note] = None
        stop_waiting = self._draining.on_begin(woken.set)
        try:
            yield await self._all()
            while True:
                await woken.wait()
                woken.clear()
                if self._draining.begun:
                    raise self._draining.error()
                if len(changed) > BEHIND_MAX:
                    raise WouldBlockError(
                        f"{len(changed)} vchannels changed while this client read nothing, and {BEHIND_MAX} are kept for it: watch again"
                    )
                news, floors = list(changed.values()), self._floors()
                changed.clear()
                yield await _encoded(news, floors)
        finally:
            stop_waiting()
            directory.watchers.pop(note, None)

    async def _all(self) -> bytes:
        # The floors first: a vchannel that is created meanwhile is not below them.
        floors = self._floors()
        return await _encoded([VChannelState(info, Existence.EXISTS) for info in self._vchannels.durable()], floors)

    def _floors(self) -> dict[str, int]:
        return dict.fromkeys(self._pchannels, self._vchannels.directory.saved_next)


async def _encoded(states: list[VChannelState], floors: dict[str, int]) -> bytes:
    """Encodes the states in slices: encoded messages that follow each other are one."""
    parts = [struct_to_proto(VChannelStates(floors=floors), proto.VChannelStates).SerializeToString()]
    for first in range(0, len(states), SLICE):
        part = VChannelStates(tuple(states[first : first + SLICE]))
        parts.append(struct_to_proto(part, proto.VChannelStates).SerializeToString())
        await asyncio.sleep(0)
    return b"".join(parts)
