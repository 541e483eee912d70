"""CursorCalls: the calls of PChannelService about cursors: load, save, list, delete, and those of consumers at the home of a cursor.

A saved position comes from a client, so it is compared with the log before it is stored: a cursor of another log, or one that is ahead of
what the log holds, would hold back nothing and lose what its reader has not seen. That also holds for the saves of transactions, which come
on a Produce stream: `change_from_proto`.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from wal.channels.slices import checked_names
from wal.errors import InvalidArgumentError, ResourceAcquiredError
from wal.message import AppendResult
from wal.network import Method
from wal.node.node import StreamingNode
from wal.read.cursors.cursor import STATE_BYTES_MAX, Cursor, CursorKey, check_cursor
from wal.read.cursors.records import CursorRecord
from wal.requests.rights import Right, check_right
from wal.rpc.api import pchannel_calls_pb2 as proto
from wal.rpc.converters import cursor_from_proto, cursor_to_proto, event_from_proto, info_to_proto, key_from_proto
from wal.rpc.headers import client_in
from wal.rpc.methods import CLAIM_CURSOR, DELETE_CURSORS, KEEP_CURSOR, LIST_CURSORS, LOAD_CURSOR, NAME_CURSOR_HOME, SAVE_CURSOR
from wal.rpc.serving import Handler
from wal.serve.hosted import Hosted
from wal.write.cursor_table import ConsumerLostError, CursorChange
from wal.write.pchannel import PChannel

LEASE_MS: Final = (100, 600_000)
"""The shortest and the longest lease of a consumer, in milliseconds."""
HOLDER_BYTES_MAX: Final = 64


class CursorCalls:
    """Serves the cursors of an open log, for the pchannels that are `hosted` here."""

    def __init__(self, node: StreamingNode, hosted: Hosted) -> None:
        self._node = node
        self._hosted = hosted

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handlers of these calls."""
        return {
            LOAD_CURSOR: self._load,
            SAVE_CURSOR: self._save,
            LIST_CURSORS: self._list,
            DELETE_CURSORS: self._delete,
            NAME_CURSOR_HOME: self._home,
            CLAIM_CURSOR: self._claim,
            KEEP_CURSOR: self._keep,
        }

    async def _load(self, request: proto.LoadCursorRequest, _context: object) -> proto.LoadCursorResponse:
        pchannel = self._hosted.find(request.pchannel)
        await checked_names(request.key.vchannels)
        cursor = await self._node.cursors.load(_checked(key_from_proto(request.key)), pchannel=pchannel.channel)
        return proto.LoadCursorResponse(cursor=None if cursor is None else cursor_to_proto(cursor))

    async def _save(self, request: proto.SaveCursorRequest, _context: object) -> proto.SaveCursorResponse:
        pchannel, cursors = self._hosted.find(request.pchannel), self._node.cursors
        await checked_names(request.cursor.key.vchannels)
        request_cursor = cursor_from_proto(request.cursor)
        _checked(request_cursor.key)
        await _catch_up(self._node, request_cursor)
        _check_position(self._node, request_cursor, pchannel)
        cursor = msgspec.structs.replace(request_cursor, stale="")
        saved = await cursors.save(
            cursor,
            forward_only=request.forward_only,
            check_moving=lambda: check_right(Right.WRITE, f"move {cursor.key}, a cursor of consumers or transactions"),
        )
        return proto.SaveCursorResponse(saved=saved)

    async def _list(self, request: proto.PChannelRequest, _context: object) -> proto.Cursors:
        pchannel = self._hosted.find(request.pchannel)
        infos = await self._node.cursors.infos(pchannel=pchannel.channel)
        return proto.Cursors(cursors=map(info_to_proto, infos))

    async def _delete(self, request: proto.DeleteCursorsRequest, _context: object) -> None:
        self._hosted.find(request.pchannel)
        name = check_cursor(request.name)
        names = None
        if request.HasField("vchannels"):
            names = _checked(CursorKey.of(name, await checked_names(request.vchannels.names))).vchannels
        await self._node.cursors.delete(name, names)

    async def _home(self, request: proto.CursorHomeRequest, _context: object) -> proto.CursorHome:
        pchannel = self._hosted.find(request.pchannel)
        await checked_names(request.key.vchannels)
        home = await self._node.cursor_home(_checked(key_from_proto(request.key)), pchannel=pchannel.channel)
        return proto.CursorHome(pchannel=home.pchannel)

    async def _claim(self, request: proto.ClaimCursorRequest, context: Any) -> proto.CursorClaim:
        pchannel = self._hosted.find(request.pchannel)
        await checked_names(request.key.vchannels)
        key = _checked(key_from_proto(request.key))
        shortest, longest = LEASE_MS
        if not shortest <= request.lease_ms <= longest:
            raise InvalidArgumentError(f"lease_ms={request.lease_ms} is out of range: {shortest} to {longest}")
        if not 0 < len(request.holder) <= HOLDER_BYTES_MAX:
            raise InvalidArgumentError(f"holder has {len(request.holder)} bytes: 1 to {HOLDER_BYTES_MAX}, for example 16 random ones")
        claim = await self._node.claims.lease(
            key, pchannel, holder=request.holder, lease_ms=request.lease_ms, client=client_in(context.invocation_metadata() or ())
        )
        cursor = None if claim.position is None else cursor_to_proto(claim.position)
        return proto.CursorClaim(fence=claim.fence, cursor=cursor, state=claim.state)

    async def _keep(self, request: proto.KeepCursorRequest, context: Any) -> None:
        pchannel = self._hosted.find(request.pchannel)
        key = _checked(key_from_proto(request.key))
        if request.release:
            await self._node.claims.end_lease(key, pchannel, request.fence)
        else:
            try:
                client = client_in(context.invocation_metadata() or ())
                self._node.claims.renew(key, pchannel, request.fence, holder=request.holder, client=client)
            except ConsumerLostError as error:
                raise held_by_another(error, key) from error


async def change_from_proto(node: StreamingNode, save: proto.CursorSave) -> CursorChange:
    """Returns the save of a cursor by a transaction; raises InvalidArgumentError for one that cannot be made."""
    await checked_names(save.key.vchannels)
    key, cursor = _checked(key_from_proto(save.key)), None
    if save.HasField("cursor"):
        cursor = cursor_from_proto(save.cursor)
        if cursor.key != key:
            raise InvalidArgumentError(f"a save of {key} has the position of {cursor.key}: give that of the same cursor")
        await _catch_up(node, cursor)
        if (pchannel := node.pchannels.get(cursor.pchannel)) is None:
            raise InvalidArgumentError(f"{key} is of pchannel {cursor.pchannel!r}, which is not on this node: save it where it is read")
        _check_position(node, cursor, pchannel)
        cursor = msgspec.structs.replace(cursor, saved_at=node.cursors.wall(), stale="")
    if not save.fence:
        if cursor is None or save.number or save.state:
            raise InvalidArgumentError(f"a save of {key} without a consumer has a position and nothing else")
        return CursorChange(key, cursor, after=event_from_proto(save.after) if save.HasField("after") else None, moves=True)
    if not save.number or len(save.state) > STATE_BYTES_MAX:
        raise InvalidArgumentError(
            f"commit {save.number} of a consumer with {key} has {len(save.state)} bytes of state: number commits from 1 on, and save "
            f"at most {STATE_BYTES_MAX} bytes"
        )
    return CursorChange(key, cursor, save.fence, save.number, save.state)


def held_by_another(error: ConsumerLostError, key: CursorKey) -> ResourceAcquiredError:
    """Returns the error with which a client learns that its consumer has lost the cursor.

    To a client SESSION_LOST means that the server has lost the pchannel, so it would look for another one.
    """
    return ResourceAcquiredError(str(error), keys=(key.name,))


def outcome_of(commit: asyncio.Future[Any], key: CursorKey) -> asyncio.Future[Any]:
    """Returns the outcome of a transaction that saves this cursor, as a client gets it."""
    outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def settled(commit: asyncio.Future[Any]) -> None:
        if outcome.done():
            return
        if commit.cancelled():
            outcome.cancel()
        elif (error := commit.exception()) is None:
            result = commit.result()
            outcome.set_result(AppendResult(None, None, None) if result is None or isinstance(result, CursorRecord) else result)
        else:
            outcome.set_exception(held_by_another(error, key) if isinstance(error, ConsumerLostError) else error)

    commit.add_done_callback(settled)
    return outcome


async def _catch_up(node: StreamingNode, cursor: Cursor) -> None:
    known = node.routes.known
    if any(incarnation is not None and incarnation >= known.next_incarnation for incarnation in cursor.incarnations):
        await known.catch_up()  # a client may know more than this node


def _check_position(node: StreamingNode, cursor: Cursor, pchannel: PChannel) -> None:
    """Raises InvalidArgumentError unless the cursor is of this log, and at or below its durable end."""
    log, end = pchannel.log, pchannel.tail.durable_end
    here = (pchannel.channel, log.incarnation, pchannel.form)
    if (cursor.pchannel, cursor.incarnation, cursor.form) != here:
        raise InvalidArgumentError(
            f"{cursor.key} is of pchannel {cursor.pchannel!r} in incarnation {cursor.incarnation:x}, and this log is of "
            f"{pchannel.channel!r} in incarnation {log.incarnation:x}: save a position that was read from this log"
        )
    newest = max(cursor.start[0], 0 if cursor.event is None else cursor.event[0])
    if newest > end:
        raise InvalidArgumentError(
            f"{cursor.key} is at {newest} of pchannel {pchannel.channel}, above its durable end {end}: save a position that was read"
        )
    following = node.routes.known.next_incarnation
    if any(incarnation is not None and incarnation >= following for incarnation in cursor.incarnations):
        raise InvalidArgumentError(
            f"{cursor.key} has an incarnation of a vchannel that does not exist yet (the next one is {following}): give those that "
            "were read"
        )


def _checked(key: CursorKey) -> CursorKey:
    """Returns the key of a cursor whose vchannels are checked. Raises InvalidArgumentError for a bad name, and without a vchannel."""
    check_cursor(key.name)
    if not key.vchannels:
        raise InvalidArgumentError(f"cursor {key.name!r} has no vchannels: name at least one")
    return key
