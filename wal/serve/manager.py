"""NodeManager: the calls with which the coordinator gives pchannels to this node and takes them back.

How it works. `Assign` opens a pchannel in a term: the claim in etcd must have exactly this term, the vchannels are caught up, and no tick
up to the floor is given. `Remove` closes it, and answers a floor for whoever opens it next. Both are executed in the order of their terms
(`Hosting`), run to their end when the caller is gone, and may be repeated: a repeated call waits for the first one. `CollectStatus` returns
this node's pchannels, the progress of openings, and this node's clock.

Every call names the start of the node that it means and the leader that calls: a node that was restarted at the same address is another
node, and a deposed leader is refused after the first call of its successor.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from wal.channels.pchannels import load_pchannel
from wal.errors import ChannelFencedError, ClosedError, SessionLostError, UnmatchedChannelTermError, WALError
from wal.network import Method
from wal.node.directory_view import DirectoryView
from wal.node.node import StreamingNode
from wal.read.lease import Lease, lost_lease
from wal.rpc.api import nodes_pb2, pchannel_pb2
from wal.rpc.api import streaming_pb2 as proto
from wal.rpc.methods import ASSIGN, COLLECT_STATUS, REMOVE
from wal.rpc.serving import Handler
from wal.runtime.tasks import retrieve
from wal.storage.kv import KVBase
from wal.write.pchannel import PChannel

_KEPT: Final = 4096
"""The most outcomes of openings that are kept for calls that are repeated."""


class CallCheck:
    """Checks the addressed node and the calling leader of a coordinator's calls. `leader` returns the present leader's token from etcd.

    Tokens rise from leader to leader, unless etcd was restored from an older copy: then a coordinator with a lower token leads, and etcd is
    read.
    """

    def __init__(self, server_id: int, lease: Lease, leader: Callable[[], Awaitable[int]]) -> None:
        self._server_id = server_id
        self._lease = lease
        self._ask_leader = leader
        self._leader = 0

    async def check(self, call: nodes_pb2.ManagerCall, pchannel: str = "") -> None:
        """Raises SessionLostError for a call that means another start of this node, ChannelFencedError for one of an earlier leader.

        The latter takes a call of etcd's, a call of the newest leader none.
        """
        if call.server_id != self._server_id:
            raise SessionLostError(
                f"this call means node {call.server_id:x}, and at this address is node {self._server_id:x} now: the other one is gone"
            )
        if not self._lease.alive:
            raise lost_lease(pchannel or "of this node")
        while call.leader < (newest := self._leader):
            if call.leader != await self._ask_leader():
                raise ChannelFencedError(
                    f"this call is of the leader with token {call.leader}, and the one with {newest} has been here: it leads no more"
                )
            if self._leader == newest:
                break
        self._leader = call.leader


class NodeManager:
    """Serves the management of this node's pchannels. `claims` is the KV of the claims."""

    def __init__(self, node: StreamingNode, view: DirectoryView, claims: KVBase, check: CallCheck, *, wall: Callable[[], float]) -> None:
        self.stopping: bool = False
        """Whether this node takes no pchannel any more."""
        self.removed: asyncio.Event = asyncio.Event()
        """Set with each pchannel that was taken away."""
        self._node = node
        self._view = view
        self._claims = claims
        self._check = check
        self._wall = wall
        self._calls: dict[tuple[str, int, bool], asyncio.Task[None]] = {}
        """The calls that were made, by pchannel, term and whether they open it."""

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handlers of the manager service."""
        return {ASSIGN: self._assign, REMOVE: self._remove, COLLECT_STATUS: self._status}

    async def close(self) -> None:
        """Waits for the calls under way."""
        self.stopping = True
        if calls := [call for call in self._calls.values() if not call.done()]:
            await asyncio.wait(calls)

    async def _assign(self, request: proto.StreamingNodeManagerAssignRequest, _context: object) -> proto.StreamingNodeManagerAssignResponse:
        info = request.pchannel
        await self._check.check(request.call, info.name)
        if self.stopping:
            raise ClosedError("this node is being stopped, and takes no pchannel: assign it elsewhere")
        await self._once(info, True, lambda: self._open(info, request.floor))
        return proto.StreamingNodeManagerAssignResponse()

    async def _remove(self, request: proto.StreamingNodeManagerRemoveRequest, _context: object) -> proto.StreamingNodeManagerRemoveResponse:
        info = request.pchannel
        await self._check.check(request.call, info.name)
        await self._once(info, False, lambda: self._close(info))
        self.removed.set()
        return proto.StreamingNodeManagerRemoveResponse(floor=self._node.oracle.last)

    async def _status(
        self, request: proto.StreamingNodeManagerCollectStatusRequest, _context: object
    ) -> proto.StreamingNodeManagerCollectStatusResponse:
        await self._check.check(request.call)
        vchannels = dict.fromkeys(self._node.pchannels, 0)
        for info in self._view.records.values():
            if info.pchannel in vchannels:
                vchannels[info.pchannel] += 1
        hosted = [
            nodes_pb2.HostedPChannel(
                pchannel=pchannel_pb2.PChannelInfo(name=name, term=pchannel.log.term),
                available=not _has_failed(pchannel),
                failed=_has_failed(pchannel),
                vchannels=vchannels[name],
            )
            for name, pchannel in self._node.pchannels.items()
        ]
        opening = [
            nodes_pb2.HostedPChannel(pchannel=pchannel_pb2.PChannelInfo(name=name, term=term), progress=self._node.hosting.progress(name))
            for (name, term, _), call in self._calls.items()
            if not call.done()
        ]
        return proto.StreamingNodeManagerCollectStatusResponse(
            balance_attributes=proto.StreamingNodeBalanceAttributes(),
            pchannels=[*hosted, *opening],
            wall_s=self._wall(),
            stopping=self.stopping,
        )

    async def _once(self, info: pchannel_pb2.PChannelInfo, opens: bool, make: Callable[[], Awaitable[None]]) -> None:
        """Makes a call once, and waits for its outcome, which is the same for all who repeat it."""
        key = info.name, info.term, opens
        call = self._calls.get(key)
        if call is None:
            for old in [old for old, made in self._calls.items() if made.done()][: max(0, len(self._calls) - _KEPT)]:
                del self._calls[old]
            call = self._calls[key] = asyncio.ensure_future(_made(make))
            call.add_done_callback(retrieve)
        await asyncio.shield(call)

    async def _open(self, info: pchannel_pb2.PChannelInfo, floor: int) -> None:
        meta = await load_pchannel(self._claims, info.name)
        if meta.term != info.term:
            raise UnmatchedChannelTermError(
                f"pchannel {info.name!r} was to be opened in term {info.term}, and its claim has term {meta.term}: nothing was opened"
            )
        await self._view.catch_up()
        self._node.oracle.adopt(floor)  # of the node that had the pchannel before, whatever its clock was
        await self._node.hosting.open(meta)

    async def _close(self, info: pchannel_pb2.PChannelInfo) -> None:
        with contextlib.suppress(WALError):  # it is closed all the same
            await self._node.hosting.close_one(info.name, info.term)


def _has_failed(pchannel: PChannel) -> bool:
    """Returns whether a pchannel writes nothing any more: its log has failed, or there was a defect in its actor."""
    return pchannel.fault is not None or pchannel.failure is not None


async def _made(make: Callable[[], Awaitable[None]]) -> None:
    await make()
