"""CopiesService: the coordinator's calls to this node about vchannels that end and about copies of broadcasts.

The broadcaster runs at the coordinator, and the copies are in the logs of the pchannels, wherever these are. A copy is in the log at most
once, which the pchannel's own table decides, so a call that was not answered may be repeated, here or at a later owner of the pchannel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final

from broadcaster.message import Content
from wal.channels.vchannels import VChannelInfo
from wal.errors import ChannelNotExistError, UnavailableError, WALError
from wal.message import BroadcastHeader, CopyOutcomes
from wal.node.copies_operator import CopiesOperator
from wal.node.directory_view import DirectoryView
from wal.node.node import StreamingNode
from wal.requests.nodes import BroadcastInLog, CopyBroadcast, EndVChannels, ForgetBroadcasts, ListCopies, ReadCopy
from wal.requests.request import Request
from wal.rpc.api.nodes_pb2 import ManagerCall
from wal.rpc.api.pchannel_pb2 import PChannelInfo
from wal.serve.hosted import Hosted
from wal.serve.manager import CallCheck
from wal.write.copies import names_of
from wal.write.pchannel import PChannel


class CopiesService:
    """Serves the pchannels that are `hosted` here to the coordinator."""

    def __init__(self, node: StreamingNode, view: DirectoryView, hosted: Hosted, check: CallCheck) -> None:
        self._node = node
        self._view = view
        self._hosted = hosted
        self._check = check
        self._operator = CopiesOperator(node)
        self._unsaved: dict[PChannel, set[int]] = {}
        """The broadcasts that were forgotten, and that a recovery may still find, by pchannel."""

    async def submit(self, request: Request[Any], info: PChannelInfo, call: ManagerCall) -> Any:
        """Returns the answer to a request of the leader, once it is checked whom the call means."""
        await self._check.check(call, info.name)
        return await _HANDLERS[type(request)](self, request, self._hosted.find(info))

    async def _end(self, request: EndVChannels, _pchannel: PChannel) -> None:
        infos = request.vchannels
        await self._know(info.name for info in infos)
        ending = tuple([info for info in infos if _is_same(self._view.records.get(info.name), info)])
        if ending:
            ended: asyncio.Future[WALError | None] = asyncio.get_running_loop().create_future()
            self._node.routes.end(ending, ended.set_result)
            for info in ending:
                self._view.forget(info)
            if (error := await asyncio.shield(ended)) is not None:
                raise error

    async def _append(self, request: CopyBroadcast, pchannel: PChannel) -> CopyOutcomes:
        names, content = request.vchannels, request.content
        await self._know(names)
        header = BroadcastHeader.from_bytes(request.header)
        self._node.oracle.adopt(header.broadcast_id)  # a tick of the coordinator, above all that the caller has seen
        try:
            if request.aborts:
                outcomes = await self._operator.append_aborts(pchannel.channel, names, header, content.payload.decode())
            else:
                outcomes = await self._operator.append_copies(pchannel.channel, names, content, header)
        except WALError:
            _check_fault(pchannel)
            raise
        if any(isinstance(outcome, WALError) for outcome in outcomes):
            _check_fault(pchannel)
        return outcomes

    async def _list(self, _request: ListCopies, pchannel: PChannel) -> tuple[BroadcastInLog, ...]:
        await self._view.catch_up()
        existing = {(info.name, info.incarnation) for info in self._view.durable()}
        listed = []
        for broadcast in pchannel.copies.table.listed():
            copies = list(names_of(broadcast.parts, aborts=False))
            listed.append(
                BroadcastInLog(
                    broadcast.header.to_bytes(),
                    tuple([name for name, _ in copies]),
                    tuple([name for name, _ in names_of(broadcast.parts, aborts=True)]),
                    tuple([name for name, incarnation in copies if (name, incarnation) not in existing]),
                )
            )
        return tuple(listed)

    async def _read(self, request: ReadCopy, pchannel: PChannel) -> Content:
        return await self._operator.content(pchannel.channel, request.broadcast_id)

    async def _forget(self, request: ForgetBroadcasts, pchannel: PChannel) -> tuple[int, ...]:
        table, checkpointer = pchannel.copies.table, pchannel.checkpointer
        assert checkpointer is not None, "an open pchannel has one"
        for gone in [other for other in self._unsaved if other.failure is not None]:
            del self._unsaved[gone]
        if pchannel not in self._unsaved:
            self._unsaved[pchannel] = set()
            checkpointer.on_forgotten = partial(self._forgotten, pchannel)
        unsaved = self._unsaved[pchannel]
        for broadcast_id in request.broadcast_ids:
            if table.get(broadcast_id) is not None:
                table.forget(broadcast_id)
                unsaved.add(broadcast_id)
        if request.checkpoint and table.forgotten:
            checkpointer.request()
        return tuple([each for each in request.broadcast_ids if each not in unsaved])

    def _forgotten(self, pchannel: PChannel, broadcast_ids: Collection[int]) -> None:
        self._unsaved[pchannel] -= set(broadcast_ids)

    async def _know(self, names: Iterable[str]) -> None:
        """Looks up those of these vchannels that this node does not know yet."""
        for name in names:
            if name not in self._view.records:
                await self._view.look_up(name)


def _check_fault(pchannel: PChannel) -> None:
    """Raises UnavailableError if the pchannel has failed here, with which the coordinator repeats the call in the pchannel's next term.

    The table of the pchannel has the copies that are durable, so only missing copies are appended there.
    """
    if (fault := pchannel.fault) is not None:
        raise UnavailableError(f"pchannel {pchannel.channel!r} has failed on this node: {fault}") from fault


def _is_same(known: VChannelInfo | None, info: VChannelInfo) -> bool:
    if known is None:
        return False
    if known.pchannel != info.pchannel:
        raise ChannelNotExistError(f"vchannel {info.name!r} is on pchannel {known.pchannel} now, not on {info.pchannel}")
    return known.incarnation == info.incarnation


_HANDLERS: Final[Mapping[type[Request[Any]], Callable[[CopiesService, Any, PChannel], Awaitable[Any]]]] = {
    EndVChannels: CopiesService._end,
    CopyBroadcast: CopiesService._append,
    ListCopies: CopiesService._list,
    ReadCopy: CopiesService._read,
    ForgetBroadcasts: CopiesService._forget,
}
"""By the type of a request."""
