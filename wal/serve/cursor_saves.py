"""The saves of cursors by transactions: from a request on a stream, and the outcome as a client gets it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from wal.channels.slices import SLICE
from wal.errors import InvalidArgumentError
from wal.message import AppendResult
from wal.node.cursor_requests import catch_up, check_position, held_by_another
from wal.node.node import StreamingNode
from wal.read.cursors.cursor import STATE_BYTES_MAX, CursorKey, pattern_home
from wal.read.cursors.records import CursorRecord
from wal.requests.cursors import CursorSave, check_cursor_key, check_saved
from wal.runtime.threads import in_thread
from wal.write.cursor_table import ConsumerLostError, CursorChange


async def change_of(node: StreamingNode, save: CursorSave) -> CursorChange:
    """Returns the save of a cursor by a transaction; raises InvalidArgumentError for one that cannot be made."""
    # Many names, whose checks would keep the loop, are checked in a thread.
    if len(save.key.vchannels) > SLICE:
        await in_thread(_check, save)
    else:
        _check(save)
    key, cursor = save.key, save.cursor
    if cursor is not None:
        await catch_up(node, cursor)
        home = pattern_home(node.routes.known.pchannels) if key.pattern else cursor.pchannel
        if (pchannel := node.pchannels.get(home)) is None:
            raise InvalidArgumentError(
                f"{key} is of pchannel {home!r}, which is not on this node: save it where it is read, or (of a pattern) in a "
                "transaction on that pchannel"
            )
        await check_position(node, cursor, pchannel)
        cursor = msgspec.structs.replace(cursor, saved_at=node.cursors.wall(), stale="", moved_at=0.0, moving=False)
    if not save.fence:
        if cursor is None or save.number or save.state:
            raise InvalidArgumentError(f"a save of {key} without a consumer has a position and nothing else")
        return CursorChange(key, cursor, after=save.after, moves=True)
    if not save.number or len(save.state) > STATE_BYTES_MAX:
        raise InvalidArgumentError(
            f"commit {save.number} of a consumer with {key} has {len(save.state)} bytes of state: number commits from 1 on, and save "
            f"at most {STATE_BYTES_MAX} bytes"
        )
    return CursorChange(key, cursor, save.fence, save.number, save.state)


def _check(save: CursorSave) -> None:
    check_cursor_key(save.key)
    if save.cursor is not None:
        check_saved(save.cursor)
        if save.cursor.key != save.key:
            raise InvalidArgumentError(f"a save of {save.key} has the position of {save.cursor.key}: give that of the same cursor")


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
