"""The requests about cursors, executed on a node.

A saved position comes from a client, so it is compared with the log before it is stored: a cursor of another log, or a cursor beyond the
end of this log, would hold nothing back, and its reader would miss messages. That also holds for the saves of transactions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from wal.errors import InvalidArgumentError, ResourceAcquiredError
from wal.node.node import StreamingNode
from wal.read.cursors.cursor import Cursor, CursorInfo, CursorKey
from wal.requests.cursors import ClaimCursor, CursorClaim, DeleteCursors, KeepCursor, ListCursors, LoadCursor, NameCursorHome, SaveCursor
from wal.requests.request import Request
from wal.requests.rights import Right, calling_client, check_right
from wal.requests.work import JoinCursor, KeepMember, LeaveCursor, ListMembers, SettleWork, SharedCursor, TakeWork
from wal.write.cursor_table import ConsumerLostError
from wal.write.pchannel import PChannel

PROMISE_S: Final = 0.5
"""How long the save of a position waits for the promise of its tick."""


async def _load(node: StreamingNode, request: LoadCursor, pchannel: PChannel) -> Cursor | None:
    return await node.cursors.load(request.key, pchannel=pchannel.channel)


async def _save(node: StreamingNode, request: SaveCursor, pchannel: PChannel) -> bool:
    key = request.cursor.key
    await catch_up(node, request.cursor)
    await check_position(node, request.cursor, pchannel)
    return await node.cursors.save(
        msgspec.structs.replace(request.cursor, stale="", moved_at=0.0, moving=False),
        forward_only=request.forward_only,
        check_moving=lambda: check_right(Right.WRITE, f"move {key}, a cursor of consumers or transactions"),
    )


async def _list(node: StreamingNode, request: ListCursors, pchannels: Sequence[PChannel]) -> tuple[CursorInfo, ...]:
    listed = [await node.cursors.infos(pchannel=pchannel.channel) for pchannel in pchannels]
    return tuple(listed[0]) if len(listed) == 1 else request.join(listed)


async def _delete(node: StreamingNode, request: DeleteCursors, _pchannels: Sequence[PChannel]) -> None:
    await node.cursors.delete(request.name, request.vchannels)


async def _home(node: StreamingNode, request: NameCursorHome, pchannel: PChannel) -> str:
    return (await node.cursor_home(request.key, pchannel=pchannel.channel)).pchannel


async def _claim(node: StreamingNode, request: ClaimCursor, pchannel: PChannel) -> CursorClaim:
    return await node.claims.lease(request.key, pchannel, holder=request.holder, lease_ms=request.lease_ms, client=calling_client())


async def _keep(node: StreamingNode, request: KeepCursor, pchannel: PChannel) -> None:
    if request.release:
        await node.claims.end_lease(request.key, pchannel, request.fence)
        return
    try:
        node.claims.renew(request.key, pchannel, request.fence, holder=request.holder, client=calling_client())
    except ConsumerLostError as error:
        raise held_by_another(error, request.key) from error


async def _members(node: StreamingNode, _request: ListMembers, pchannels: Sequence[PChannel]) -> tuple[SharedCursor, ...]:
    return node.shared.listed([pchannel.channel for pchannel in pchannels])


HANDLERS: Final[Mapping[type[Request[Any]], Callable[[StreamingNode, Any, Any], Awaitable[Any]]]] = {
    LoadCursor: _load,
    SaveCursor: _save,
    ListCursors: _list,
    DeleteCursors: _delete,
    NameCursorHome: _home,
    ClaimCursor: _claim,
    KeepCursor: _keep,
    JoinCursor: lambda node, request, pchannel: node.shared.join(request, pchannel),
    TakeWork: lambda node, request, _: node.shared.take(request),
    SettleWork: lambda node, request, _: node.shared.settle(request),
    KeepMember: lambda node, request, _: node.shared.keep(request),
    ListMembers: _members,
    LeaveCursor: lambda node, request, _: node.shared.leave(request),
}
"""See `wal.node.submit`."""


def held_by_another(error: ConsumerLostError, key: CursorKey) -> ResourceAcquiredError:
    """Returns the error with which a client learns that its consumer has lost the cursor.

    To a client SESSION_LOST means that the server has lost the pchannel, so it would look for another one.
    """
    return ResourceAcquiredError(str(error), keys=(key.name,))


async def catch_up(node: StreamingNode, cursor: Cursor) -> None:
    """Updates this node's view of vchannels if the client that saves this cursor has a newer one."""
    known = node.routes.known
    if any(incarnation is not None and incarnation >= known.next_incarnation for incarnation in cursor.incarnations):
        await known.catch_up()


async def check_position(node: StreamingNode, cursor: Cursor, pchannel: PChannel) -> None:
    """Raises InvalidArgumentError unless the cursor is of this log, and at or below its durable end."""
    if cursor.key.pattern:
        if cursor.time_tick > pchannel.tail.promised_tick:
            # A merge passes a tick once each pchannel has promised it; where a read begins, the promise here may lag for a moment.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROMISE_S):
                    await pchannel.wait_promised(cursor.time_tick)
        if cursor.time_tick > (promised_tick := pchannel.tail.promised_tick):
            raise InvalidArgumentError(
                f"{cursor.key} is at tick {cursor.time_tick}, above {promised_tick}, the newest tick of the log: save a tick that was read"
            )
        return
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
            f"{cursor.key} has an incarnation of a vchannel that does not exist yet (the next one is {following}): "
            "give the incarnations of the read"
        )
