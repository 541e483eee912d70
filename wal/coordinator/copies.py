"""CopiesOnNodes: the broadcaster's access to the log of a cluster (`broadcaster.AppendOperator`).

It locates vchannels, and calls the nodes of their pchannels. The pchannel's table ensures that a copy is in a log at most once, so every
call may be repeated, at the next owner of the pchannel as well. `copies` calls every pchannel of the log, and waits for those without a
node. Until all have answered, a broadcast of an earlier leader could be started a second time.

Forgotten broadcasts are sent to the nodes periodically, until a checkpoint there no longer lists them. A node that got them before such a
checkpoint, or that has the pchannel only since then, gets them again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from broadcaster.message import Content, CopiesInLog
from broadcaster.operator import CopiesAnswer
from wal.coordinator.nodes import AssignedNodes
from wal.coordinator.vchannels import VChannels
from wal.errors import ChannelNotExistError, WALError, WouldBlockError
from wal.message import BroadcastHeader, CopyOutcomes, MessageType
from wal.requests.nodes import BroadcastInLog, CopyBroadcast, ForgetBroadcasts, ListCopies, ReadCopy
from wal.runtime.tasks import end_tasks
from wal.timestamp import TimestampOracle

FORGET_S: Final = 5.0
"""The interval at which nodes get the forgotten broadcasts."""
_PATIENCE_S: Final = 1e9
"""A promised broadcast waits for a pchannel without a node."""
_log: Final = logging.getLogger("wal.cluster")


class CopiesOnNodes:
    """An `AppendOperator` over the nodes. `close` it after its broadcaster."""

    def __init__(self, nodes: AssignedNodes, vchannels: VChannels, oracle: TimestampOracle) -> None:
        self._nodes = nodes
        self._vchannels = vchannels
        self._oracle = oracle
        self._forgetting: dict[str, set[int]] = {}
        """The broadcasts that the nodes still have to forget, by pchannel."""
        self._on_forgotten: Callable[[str, Collection[int]], None] = lambda pchannel, ids: None
        self._checkpoint = False
        self._telling = asyncio.get_running_loop().create_task(self._tell(), name="broadcasts to forget")

    async def close(self) -> None:
        """Ends the calls to nodes. Idempotent."""
        await end_tasks(self._telling)

    def allocate_id(self) -> int:
        """Returns a fresh tick of the coordinator's own. Raises WouldBlockError if none is available without waiting."""
        tick = self._oracle.take(1)
        if tick is None:
            raise WouldBlockError("no time tick is saved ahead at the moment, the metadata answers slowly: try again soon")
        return tick

    async def wait_for_ids(self) -> None:
        """Waits until ticks are saved ahead."""
        await self._oracle.extend()

    def check(self, vchannels: Sequence[str]) -> None:
        """Raises the errors of an append to one of these vchannels. Creates none of them."""
        self._vchannels.check_new(vchannels)

    def places_nowait(self, vchannels: Sequence[str]) -> None:
        """Returns None: `places` has to be awaited."""
        return

    async def places(self, vchannels: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Returns the pchannels of these vchannels, after creating missing ones."""
        existing = self._vchannels
        existing.check_new(vchannels)
        for name in vchannels:
            if name not in existing.records:
                existing.create_nowait(name)
        while saving := [existing.saving[name] for name in vchannels if name in existing.saving]:
            await asyncio.gather(*map(asyncio.shield, saving))
        places: dict[str, list[str]] = {}
        for name in vchannels:
            if (info := existing.records.get(name)) is None:
                raise ChannelNotExistError(f"vchannel {name!r} was dropped meanwhile: nothing was written")
            places.setdefault(info.pchannel, []).append(name)
        return places

    def located(self, vchannels: Sequence[str]) -> Mapping[str, str]:
        """Returns the pchannels of the existing ones of these vchannels."""
        records = self._vchannels.records
        return {name: records[name].pchannel for name in vchannels if name in records}

    def append_copies_nowait(
        self, pchannel: str, vchannels: Sequence[str], content: Content, header: BroadcastHeader, answer: CopiesAnswer
    ) -> bool:
        """Returns False: a call has to be awaited."""
        return False

    async def append_copies(self, pchannel: str, vchannels: Sequence[str], content: Content, header: BroadcastHeader) -> CopyOutcomes:
        """Appends one copy for each vchannel; see `AppendOperator`."""
        return await self._append(pchannel, vchannels, content, header, aborts=False)

    async def append_aborts(self, pchannel: str, vchannels: Sequence[str], header: BroadcastHeader, reason: str) -> CopyOutcomes:
        """Appends an ABORT_BROADCAST for each vchannel; see `AppendOperator`."""
        content = Content(reason.encode(), int(MessageType.ABORT_BROADCAST))
        return await self._append(pchannel, vchannels, content, header, aborts=True)

    async def copies(self) -> Sequence[CopiesInLog]:
        """Returns the copies in all logs of broadcasts that are not forgotten."""
        listed: list[CopiesInLog] = []
        answers = await asyncio.gather(*(self._list(name) for name in self._vchannels.pchannels))
        for name, answer in zip(self._vchannels.pchannels, answers, strict=True):
            for broadcast in answer:
                header = BroadcastHeader.from_bytes(broadcast.header)
                listed.append(CopiesInLog(name, header, broadcast.vchannels, broadcast.aborted))
        return listed

    async def content(self, pchannel: str, broadcast_id: int) -> Content:
        """Reads the content of a copy from this log."""
        return await self._nodes.submit(pchannel, ReadCopy(broadcast_id), wait_s=_PATIENCE_S)

    def forget(self, broadcast_id: int, pchannels: Collection[str]) -> None:
        """Requests that the nodes drop a finished broadcast from their recovery state."""
        for name in pchannels:
            self._forgetting.setdefault(name, set()).add(broadcast_id)

    async def dropped(self, broadcast_ids: Collection[int]) -> Mapping[int, Collection[str]]:
        """Returns, by broadcast, the vchannels that had their copy and were dropped since, from the nodes' records."""
        ids, dropped = set(broadcast_ids), dict[int, list[str]]()
        for answer in await asyncio.gather(*(self._list(name) for name in self._vchannels.pchannels)):
            for broadcast in answer:
                broadcast_id = BroadcastHeader.from_bytes(broadcast.header).broadcast_id
                if broadcast.dropped and broadcast_id in ids:
                    dropped.setdefault(broadcast_id, []).extend(broadcast.dropped)
        return dropped

    def on_dropped(self, callback: Callable[[str], None]) -> None:
        """Calls `callback(vchannel)` each time a vchannel was durably dropped."""
        self._vchannels.on_dropped = callback

    def on_forgotten(self, callback: Callable[[str, Collection[int]], None]) -> None:
        """Calls `callback(pchannel, broadcast_ids)` once no recovery of the pchannel restores them any more."""
        self._on_forgotten = callback

    def request_checkpoint(self) -> None:
        """Requests checkpoints from the nodes where that would make room."""
        self._checkpoint = True

    async def _list(self, pchannel: str) -> tuple[BroadcastInLog, ...]:
        return await self._nodes.submit(pchannel, ListCopies(), wait_s=_PATIENCE_S)

    async def _append(
        self, pchannel: str, vchannels: Sequence[str], content: Content, header: BroadcastHeader, *, aborts: bool
    ) -> CopyOutcomes:
        request = CopyBroadcast(tuple(vchannels), header.to_bytes(), content, aborts)
        return await self._nodes.submit(pchannel, request, wait_s=_PATIENCE_S)

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(FORGET_S)
            checkpoint, self._checkpoint = self._checkpoint, False
            for name, ids in list(self._forgetting.items()):
                if not ids or self._nodes.place(name) is None:
                    continue
                try:
                    forgotten = await self._nodes.submit(name, ForgetBroadcasts(tuple(ids), checkpoint), wait_s=0.0)
                except WALError as error:
                    _log.debug("the node of pchannel %s was not told what to forget: %s", name, error)
                    continue
                ids.difference_update(forgotten)
                if forgotten:
                    self._on_forgotten(name, forgotten)
