"""CursorsInKV: the cursors of a log without a directory, one key each in its metadata.

Owns the keys below a root path that nobody else writes to. The log's process alone saves cursors there, so the lock is one of its
threads. It blocks, so it runs in threads, while the KV is asked on its loop; never on that loop itself, where it would wait for itself.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import threading
import time
from collections.abc import Coroutine
from typing import Any, Final, Protocol, TypeVar

from wal.cursors.codec import decode_cursor, encode_cursor, file_name, file_prefix
from wal.cursors.cursor import Cursor, CursorKey
from wal.cursors.store import CursorStore, DamagedCursor
from wal.errors import CorruptionError, KeyNotExistError, StorageError, WALError, WouldBlockError

__all__ = ["CursorsInKV", "MemoryCursors"]

_T = TypeVar("_T")
ANSWER_TIMEOUT_S: Final = 30.0


class _LockedByThreads(CursorStore):
    """A CursorStore of one process, whose lock is one of its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def acquire(self, timeout_s: float, *, since_s: float | None = None) -> None:
        waited_s = 0.0 if since_s is None else time.monotonic() - since_s
        if not self._lock.acquire(timeout=max(0.0, timeout_s - waited_s)):
            raise WouldBlockError(f"the cursors are held for more than {timeout_s} s by another call: try again")

    def release(self) -> None:
        self._lock.release()


class MemoryCursors(_LockedByThreads):
    """See `CursorStore`."""

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
        """There is no power to be cut."""

    def _put(self, cursor: Cursor) -> None:
        self._cursors[cursor.key] = cursor

    def _remove(self, key: CursorKey) -> None:
        self._cursors.pop(key, None)


class CursorTexts(Protocol):
    """What is needed of a KV."""

    async def load(self, key: str) -> str: ...

    async def load_with_prefix(self, prefix: str) -> tuple[list[str], list[str]]: ...

    async def save(self, key: str, value: str) -> None: ...

    async def remove(self, key: str) -> None: ...

    async def remove_with_prefix(self, prefix: str) -> None: ...


class CursorsInKV(_LockedByThreads):
    """See `CursorStore`. Made on the loop of the KV, whose keys are all cursors' (give it a root path of its own)."""

    def __init__(self, kv: CursorTexts) -> None:
        self._kv = kv
        super().__init__()
        self._loop = asyncio.get_running_loop()

    def delete_named(self, name: str, vchannels: tuple[str, ...] | None) -> None:
        with self.locked():
            if vchannels is not None:
                self._remove(CursorKey(name, vchannels))
            else:
                self._ask(self._kv.remove_with_prefix(file_prefix(name)))

    def load(self, key: CursorKey) -> Cursor | None:
        name = file_name(key)
        try:
            text = self._ask(self._kv.load(name))
        except KeyNotExistError:
            return None
        return _decode(name, text)

    def load_all(self) -> list[Cursor | DamagedCursor]:
        cursors: list[Cursor] = []
        damaged: list[DamagedCursor] = []
        for name, text in zip(*self._ask(self._kv.load_with_prefix("")), strict=True):
            try:
                cursors.append(_decode(name, text))
            except WALError as error:
                damaged.append(DamagedCursor(name, error))
        cursors.sort(key=lambda cursor: cursor.key)
        return [*cursors, *damaged]

    def sync(self) -> None:
        """What the KV has taken is durable."""

    def _put(self, cursor: Cursor) -> None:
        self._ask(self._kv.save(file_name(cursor.key), base64.b64encode(encode_cursor(cursor)).decode()))

    def _remove(self, key: CursorKey) -> None:
        self._ask(self._kv.remove(file_name(key)))

    def _ask(self, call: Coroutine[Any, Any, _T]) -> _T:
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result(ANSWER_TIMEOUT_S)
        except TimeoutError as error:
            future.cancel()
            raise StorageError(
                f"the metadata did not answer within {ANSWER_TIMEOUT_S:g} s about cursors", outcome_unknown=True
            ) from error


def _decode(name: str, text: str) -> Cursor:
    remedy = "delete the cursor (delete_cursor) to begin anew; it holds retention until then"
    try:
        cursor = decode_cursor(base64.b64decode(text, validate=True))
        if file_name(cursor.key) != name:
            raise CorruptionError(f"it holds {cursor.key}", expected="the cursor that its name is made of")
    except binascii.Error as error:
        raise CorruptionError(f"the cursor {name} is no Base64; {remedy}", expected="Base64") from error
    except CorruptionError as error:
        raise CorruptionError(
            f"the cursor {name} is damaged: {error}; expected {error.expected}; {remedy}", expected=error.expected
        ) from error
    return cursor
