"""RemoteCursors: the cursors of a log on the network. The server that has a pchannel keeps its cursors; nothing is kept here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import msgspec

from wal.cursors import Cursor, CursorInfo, CursorKey
from wal.pchannel import ReadablePChannel
from wal.rpc.api import frames_pb2, pchannel_calls_pb2, pchannel_pb2
from wal.rpc.connection import Connection
from wal.rpc.cursor_state import cursor_from_proto, cursor_to_proto, info_from_proto, key_to_proto
from wal.rpc.methods import DELETE_CURSORS, LIST_CURSORS, LOAD_CURSOR, SAVE_CURSOR

__all__ = ["RemoteCursors"]


class RemoteCursors:
    """See `wal.cursors.Cursors`. `connection` returns the connection to the server that has a pchannel."""

    def __init__(self, pchannels: Mapping[str, ReadablePChannel], connection: Callable[[str], Connection]) -> None:
        self._pchannels = pchannels
        self._connection = connection

    async def load(self, key: CursorKey, *, pchannel: str) -> Cursor | None:
        """Returns the cursor to resume from on this pchannel, None when nothing is saved."""
        request = pchannel_calls_pb2.LoadCursorRequest(pchannel=_named(pchannel), key=key_to_proto(key))
        answer = await self._connection(pchannel).read(LOAD_CURSOR, request, f"loading {key}")
        return cursor_from_proto(answer.cursor) if answer.HasField("cursor") else None

    async def save(self, cursor: Cursor, *, earliest: Callable[[], tuple[int, int]], since_s: float) -> None:
        """Stores a reader's position durably. Without an answer it is sent again: saving the same position twice does no harm."""
        # The smallest position of a later frame may be above the end of the log, where blocks are aligned; nothing lies between the two.
        start = min(cursor.start, (self._pchannels[cursor.pchannel].tail.durable_end, 0))
        cursor = msgspec.structs.replace(cursor, start=start, saved_at=time.time())
        request = pchannel_calls_pb2.SaveCursorRequest(
            pchannel=_named(cursor.pchannel), cursor=cursor_to_proto(cursor), waited_s=time.monotonic() - since_s
        )
        await self._connection(cursor.pchannel).repeat(SAVE_CURSOR, request, f"saving {cursor.key}")

    async def infos(self) -> list[CursorInfo]:
        """Returns all cursors, by name and vchannels."""

        async def listed(pchannel: str) -> list[CursorInfo]:
            request = pchannel_calls_pb2.PChannelRequest(pchannel=_named(pchannel))
            answer = await self._connection(pchannel).read(LIST_CURSORS, request, "listing the cursors")
            return [info_from_proto(state) for state in answer.cursors]

        pages = await asyncio.gather(*map(listed, self._pchannels))
        found = {(info.name, info.vchannels): info for page in pages for info in page}
        return [found[key] for key in sorted(found)]

    async def delete(self, name: str, vchannels: tuple[str, ...] | None) -> None:
        """Deletes the cursor of this name and set, or all of this name; a missing cursor is fine."""
        names = None if vchannels is None else frames_pb2.VChannelNames(names=vchannels)

        async def delete(pchannel: str) -> None:
            request = pchannel_calls_pb2.DeleteCursorsRequest(pchannel=_named(pchannel), name=name, vchannels=names)
            await self._connection(pchannel).repeat(DELETE_CURSORS, request, f"deleting cursor {name!r}")

        await asyncio.gather(*map(delete, self._pchannels))


def _named(pchannel: str) -> pchannel_pb2.PChannelInfo:
    return pchannel_pb2.PChannelInfo(name=pchannel)
