"""CursorsInKV: the cursors of a log without a directory, one key each in its metadata.

Owns the keys below a root path to which nothing else writes. It blocks, so it runs in threads, while the KV answers on its loop; on that
loop it would deadlock.

The lock is a thread lock in the writer's process, so other processes cannot wait for it. Their cursors are protected all the same: while
the writer of a pchannel holds the lock to truncate it, there is a mark of the pchannel in the KV, from before it reads the cursors until
the new earliest event is stored. Another process (`CursorsBesideWriter`) stores its cursor, waits until there is no mark, and then reads
the earliest event. So either the writer saw the cursor, or the other process sees the truncation. That process holds no lock that could
block the writer.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from wal.channels.metadata import CURSOR_ROOT
from wal.channels.pchannels import PREFIX, PChannelMeta, encode
from wal.errors import (
    ChannelFencedError,
    ChannelNotExistError,
    ClosedError,
    CorruptionError,
    KeyNotExistError,
    StorageError,
    TruncatedError,
    WALError,
    WouldBlockError,
)
from wal.read.cursors.cursor import Cursor, CursorKey
from wal.read.cursors.files import decode_cursor, encode_cursor, file_name, file_prefix
from wal.read.cursors.store import LOCK_TIMEOUT_S, CursorStore, DamagedCursor, stale
from wal.storage.kv import KVBase


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
    """Cursors that exist as long as their log, in one process; and the lock of a store that only one process uses.

    See `CursorStore`.
    """

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


_T = TypeVar("_T")
ANSWER_TIMEOUT_S: Final = 30.0
MARK: Final = "truncating"
"""The beginning of the keys of marks, `truncating/<pchannel>`. No cursor's name begins so; a value is empty while there is no truncation.

Version 0.1.0 had one mark for all pchannels, under this key itself, and its writer may still set it.
"""
MARKS_MAX: Final = 64
"""The most marks that one operation saves; etcd takes 128 by default."""
_POLL_S: Final = 0.01
_RETRY_S: Final = 0.5


class CursorTexts(Protocol):
    """The methods of a KV that are used here."""

    async def load(self, key: str) -> str: ...

    async def load_with_prefix(self, prefix: str) -> tuple[list[str], list[str]]: ...

    async def save(self, key: str, value: str) -> None: ...

    async def multi_save(self, kvs: Mapping[str, str]) -> None: ...

    async def remove(self, key: str) -> None: ...

    async def remove_with_prefix(self, prefix: str) -> None: ...

    def compare_and_swap(self, key: str, expected: str | None, value: str) -> Coroutine[Any, Any, bool]: ...


class CursorsInKV(LockedByThreads):
    """See `CursorStore`. Create it on the loop of the KV, all of whose keys are cursors (give it its own root path)."""

    def __init__(self, kv: CursorTexts) -> None:
        self._kv = kv
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._mark = ""
        self._marked: tuple[str, ...] = ()
        self._keys: tuple[str, ...] = ()
        """The keys of the marks of the pchannels that this process may truncate."""

    async def begin(self, pchannels: Iterable[str]) -> None:
        """Prepares for truncating these pchannels, and no others: removes the marks of earlier writers, which can no longer truncate them.

        The writer calls it on its loop before it truncates, and whenever a pchannel comes or goes.
        """
        keys = tuple([f"{MARK}/{name}" for name in pchannels])
        await self._save_marks((MARK, *(key for key in keys if key not in self._keys)), "")
        self._keys = keys

    def acquire(self, timeout_s: float, *, since_s: float | None = None) -> None:
        super().acquire(timeout_s, since_s=since_s)
        self._mark = secrets.token_hex(8)
        self._marked = self._keys
        try:
            if self._marked:
                self._ask(self._save_marks(self._marked, self._mark))
        except BaseException:
            self.release()  # the mark may have been stored anyway
            raise

    def release(self) -> None:
        removing = self._remove_marks(self._marked, self._mark)  # not waited for
        try:
            asyncio.run_coroutine_threadsafe(removing, self._loop)
        except RuntimeError:  # the loop has ended: the next writer removes the mark
            removing.close()
        super().release()

    async def _save_marks(self, keys: tuple[str, ...], mark: str) -> None:
        for first in range(0, len(keys), MARKS_MAX):
            await self._kv.multi_save(dict.fromkeys(keys[first : first + MARKS_MAX], mark))

    async def _remove_marks(self, keys: tuple[str, ...], mark: str) -> None:
        """Removes these marks, retrying while the metadata is unreachable: no other process can save a cursor until then.

        The mark of a later truncation stays. The next writer removes a mark that still exists when the KV is closed.
        """
        left = list(keys)
        while left:
            try:
                await self._kv.compare_and_swap(left[-1], mark, "")
                left.pop()
            except ClosedError:
                return
            except WALError:
                await asyncio.sleep(_RETRY_S)

    @contextlib.contextmanager
    def locked(self, timeout_s: float = LOCK_TIMEOUT_S, *, since_s: float | None = None) -> Iterator[None]:
        # A save or a deletion needs no mark: it truncates nothing.
        super().acquire(timeout_s, since_s=since_s)
        try:
            yield
        finally:
            super().release()

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
        return cursor_in(name, text)

    def load_all(self) -> list[Cursor | DamagedCursor]:
        cursors: list[Cursor] = []
        damaged: list[DamagedCursor] = []
        for name, text in zip(*self._ask(self._kv.load_with_prefix("")), strict=True):
            if name == MARK or name.startswith(f"{MARK}/"):
                continue
            try:
                cursors.append(cursor_in(name, text))
            except WALError as error:
                damaged.append(DamagedCursor(name, error))
        cursors.sort(key=lambda cursor: cursor.key)
        return [*cursors, *damaged]

    def sync(self) -> None:
        """Does nothing, because every answer of the KV is durable."""

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
            raise StorageError(f"the metadata did not answer within {ANSWER_TIMEOUT_S:g} s about cursors", outcome_unknown=True) from error


class CursorsBesideWriter(CursorsInKV):
    """The cursors of a log that another process writes; see the top of the file."""

    def save(
        self, cursor: Cursor, *, earliest: Callable[[], tuple[int, int]], since_s: float | None = None, forward_only: bool = False
    ) -> bool:
        """See `CursorStore.save`. `earliest` must ask the metadata each time. Raises WouldBlockError if the writer truncates for too
        long."""
        before = self.load(cursor.key)
        if not super().save(cursor, earliest=earliest, since_s=since_s, forward_only=forward_only):
            return False
        until = time.monotonic() + LOCK_TIMEOUT_S
        while self._is_truncating(cursor.pchannel):
            if time.monotonic() > until:
                raise WouldBlockError(
                    f"the writer of the log has been truncating for more than {LOCK_TIMEOUT_S:g} s, or was killed while it did: save the "
                    "cursor again, once a writer has opened the log"
                )
            time.sleep(_POLL_S)
        stored = self.load(cursor.key)
        if stored is not None and stored.stale:
            raise TruncatedError(stale(stored))
        if cursor.start < (first := earliest()):
            if before is None:
                self._remove(cursor.key)
            else:
                self._put(before)
            raise TruncatedError(
                f"{cursor.key} cannot be saved at {cursor.start[0]}:{cursor.start[1]} of pchannel {cursor.pchannel}: the log was "
                f"truncated up to {first[0]}:{first[1]} meanwhile; read on from there"
            )
        return True

    def acquire(self, timeout_s: float, *, since_s: float | None = None) -> None:
        raise NotImplementedError("only the process that writes the log truncates it")

    def _is_truncating(self, pchannel: str) -> bool:
        for key in (f"{MARK}/{pchannel}", MARK):
            with contextlib.suppress(KeyNotExistError):
                if self._ask(self._kv.load(key)):
                    return True
        return False


def cursor_in(name: str, text: str) -> Cursor:
    """Returns the cursor that the key `name` has in the KV. Raises CorruptionError if it is damaged."""
    remedy = "delete the cursor (delete_cursor) to begin again; it holds back retention until then"
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


class FencedCursors(CursorsInKV):
    """The cursors of the pchannels that a streaming node has, in the metadata that all nodes share.

    Unlike those of a log in one process they are fenced. Every change compares the claim of the cursor's pchannel, in the same operation of
    etcd: a save, a deletion or a mark that is still on its way when another node takes the pchannel over changes nothing, and raises
    ChannelFencedError. So nobody else moves the new owner's cursors. Cursors of pchannels that are not here are read, and left alone. Who
    may move a cursor that has a home is asked before, in `wal/node/cursor_claims.py`.

    `claim` returns the record of a pchannel in the term in which it is here, or None.
    """

    def __init__(self, kv: KVBase, claim: Callable[[str], PChannelMeta | None]) -> None:
        super().__init__(kv.under(CURSOR_ROOT))
        self._metadata = kv
        self._claim = claim
        self._begun: dict[str, PChannelMeta | None] = {}
        """The claims under which the marks of earlier owners were removed, by the keys of the marks."""

    async def begin(self, pchannels: Iterable[str]) -> None:
        names = tuple(pchannels)
        claims = {f"{MARK}/{name}": self._claim(name) for name in names}
        # A pchannel that was elsewhere meanwhile may have come back with a mark.
        self._keys = tuple(key for key in self._keys if claims.get(key) == self._begun.get(key))
        await super().begin(names)
        self._begun = claims

    def delete_named(self, name: str, vchannels: tuple[str, ...] | None) -> None:
        with self.locked():
            self._ask(self._delete(file_prefix(name) if vchannels is None else file_name(CursorKey(name, vchannels))))

    def _put(self, cursor: Cursor) -> None:
        text = base64.b64encode(encode_cursor(cursor)).decode()
        self._ask(self._change((cursor.pchannel,), saves={_key(file_name(cursor.key)): text}))

    def _remove(self, key: CursorKey) -> None:
        self._ask(self._delete(file_name(key)))

    async def _save_marks(self, keys: tuple[str, ...], mark: str) -> None:
        if MARK in keys:  # that of version 0.1.0, for all pchannels at once
            await self._kv.save(MARK, mark)
        here = [key for key in keys if self._claim(key.removeprefix(f"{MARK}/")) is not None]
        for first in range(0, len(here), MARKS_MAX // 2):
            some = here[first : first + MARKS_MAX // 2]
            await self._change([key.removeprefix(f"{MARK}/") for key in some], saves=dict.fromkeys(map(_key, some), mark))

    async def _delete(self, prefix: str) -> None:
        """Deletes the cursors whose keys begin so and whose pchannels are here; also damaged ones, which say nothing of a pchannel."""
        keys, texts = await self._kv.load_with_prefix(prefix)
        for key, text in zip(keys, texts, strict=True):
            pchannels: tuple[str, ...] = ()
            with contextlib.suppress(WALError):
                pchannels = (cursor_in(key, text).pchannel,)
            if not pchannels or self._claim(pchannels[0]) is not None:
                await self._change(pchannels, compare={_key(key): text}, removals=(_key(key),))

    async def _change(
        self,
        pchannels: Sequence[str],
        *,
        compare: Mapping[str, str] | None = None,
        saves: Mapping[str, str] | None = None,
        removals: Sequence[str] = (),
    ) -> None:
        """Changes the metadata while these pchannels are here in their terms. Does nothing if a key of `compare` differs."""
        claims: dict[str, str] = {}
        for name in pchannels:
            if (meta := self._claim(name)) is None:
                raise ChannelNotExistError(f"pchannel {name} is not on this node any more: its cursors are kept where it is now")
            claims[PREFIX + name] = encode(meta)
        failed = await self._metadata.change_if(claims | dict(compare or {}), saves=saves, removals=removals)
        if failed in claims:
            raise ChannelFencedError(
                f"{failed} was claimed by another node: the cursor was not changed here; ask AssignmentDiscover where the pchannel is"
            )


def _key(name: str) -> str:
    return f"{CURSOR_ROOT}/{name}"
