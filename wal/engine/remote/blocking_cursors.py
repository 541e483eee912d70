"""BlockingCursors: the cursors of a log on the network, for threads without an event loop. The servers keep them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec

from wal.cursors import Cursor, CursorKey, SavedCursors
from wal.engine.remote.blocking import BlockingRemote
from wal.rpc.api import pchannel_calls_pb2 as proto
from wal.rpc.api import pchannel_pb2
from wal.rpc.cursor_state import cursor_from_proto, cursor_to_proto, info_from_proto, key_to_proto
from wal.rpc.methods import LIST_CURSORS, LOAD_CURSOR, SAVE_CURSOR

__all__ = ["BlockingCursors"]


class BlockingCursors(SavedCursors):
    """The cursors of this log. `ends` returns, by pchannel, where the log is known to end."""

    def __init__(self, remote: BlockingRemote, ends: Callable[[], Mapping[str, int]]) -> None:
        self._remote = remote
        self._ends = ends

    def load(self, key: CursorKey) -> Cursor | None:
        """Returns the cursor to resume from, or None if nothing is saved. Raises TruncatedError for a stale one."""
        for pchannel in self._remote.log.pchannels:
            request = proto.LoadCursorRequest(pchannel=_named(pchannel), key=key_to_proto(key))
            answer = self._remote.ask(LOAD_CURSOR, request, f"loading {key}", pchannel=pchannel)
            if answer.HasField("cursor"):
                return cursor_from_proto(answer.cursor)
        return None

    def saved_keys(self) -> list[CursorKey]:
        found: set[CursorKey] = set()
        for pchannel in self._remote.log.pchannels:
            request = proto.PChannelRequest(pchannel=_named(pchannel))
            answer = self._remote.ask(LIST_CURSORS, request, "listing the cursors", pchannel=pchannel)
            infos = map(info_from_proto, answer.cursors)
            found.update(CursorKey(info.name, info.vchannels) for info in infos)
        return sorted(found)

    def save(
        self,
        cursor: Cursor,
        *,
        earliest: Callable[[], tuple[int, int]],
        since_s: float | None = None,
        forward_only: bool = False,
    ) -> bool:
        """Stores a cursor, see `CursorStore.save`; the server compares it with its own first event instead of `earliest`."""
        # The smallest position of a later frame may be above the end of the log, where blocks are aligned; nothing lies between the two.
        cursor = msgspec.structs.replace(cursor, start=min(cursor.start, (self._ends()[cursor.pchannel], 0)))
        waited_s = 0.0 if since_s is None else time.monotonic() - since_s
        request = proto.SaveCursorRequest(
            pchannel=_named(cursor.pchannel),
            cursor=cursor_to_proto(cursor),
            waited_s=waited_s,
            forward_only=forward_only,
        )
        return self._remote.ask(SAVE_CURSOR, request, f"saving {cursor.key}", pchannel=cursor.pchannel).saved


def _named(pchannel: str) -> pchannel_pb2.PChannelInfo:
    return pchannel_pb2.PChannelInfo(name=pchannel)
