"""MemoryCursors: cursors that exist as long as their log, in one process; and the lock of a store that only one process uses."""

from __future__ import annotations

import threading
import time

from wal.cursors.cursor import Cursor, CursorKey
from wal.cursors.store import CursorStore, DamagedCursor
from wal.errors import WouldBlockError

__all__ = ["LockedByThreads", "MemoryCursors"]


class LockedByThreads(CursorStore):
    """A CursorStore of one process, with a thread lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def acquire(self, timeout_s: float, *, since_s: float | None = None) -> None:
        waited_s = 0.0 if since_s is None else time.monotonic() - since_s
        if not self._lock.acquire(timeout=max(0.0, timeout_s - waited_s)):
            raise WouldBlockError(f"the cursors are held for more than {timeout_s} s by another call: try again")

    def release(self) -> None:
        self._lock.release()


class MemoryCursors(LockedByThreads):
    """Cursors that exist as long as their log; see `CursorStore`."""

    def __init__(self) -> None:
        super().__init__()
        self._cursors: dict[CursorKey, Cursor] = {}

    def delete_named(self, name: str, vchannels: tuple[str, ...] | None) -> None:
        with self.locked():
            for key in list(self._cursors):
                if key.name == name and vchannels in (None, key.vchannels):
                    del self._cursors[key]

    def load(self, key: CursorKey) -> Cursor | None:
        return self._cursors.get(key)

    def load_all(self) -> list[Cursor | DamagedCursor]:
        return [cursor for _, cursor in sorted(self._cursors.copy().items())]

    def sync(self) -> None:
        """Does nothing, because memory survives no power cut."""

    def _put(self, cursor: Cursor) -> None:
        self._cursors[cursor.key] = cursor

    def _remove(self, key: CursorKey) -> None:
        self._cursors.pop(key, None)
