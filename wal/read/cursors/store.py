"""CursorStore: the storage of cursors, and the one order of saves and truncations.

Owns the lock between saves and truncations. Under it a save reads the earliest event, then stores the cursor; under it a truncation reads
all cursors, then stores the new earliest event. So no truncation passes a saved cursor that it did not see, and no cursor is saved below
the earliest event. Every call blocks, briefly; on a loop it runs in threads.

It never decides whether a cursor can still be used: `cursor_status` does. Using a damaged cursor is an error; a list of all cursors
includes it.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from wal.errors import ChannelNotExistError, InvalidArgumentError, NotLocalError, TruncatedError, WALError
from wal.message import Lineage
from wal.read.cursors.cursor import Cursor, CursorKey

LOCK_TIMEOUT_S = 10.0
"""How long a call waits for the lock, which others hold for milliseconds unless they were stopped."""


class DamagedCursor(msgspec.Struct, frozen=True):
    """A cursor that cannot be read: `file` names its file, `error` gives the defect and the remedy."""

    file: str
    error: WALError


class SavedCursors(abc.ABC):
    """The cursors of a log, for a process that reads it. Another process may store them. Thread-safe."""

    @abc.abstractmethod
    def load(self, key: CursorKey) -> Cursor | None:
        """Returns the cursor, or None when there is none. Raises CorruptionError (FormatError for a newer version) when it cannot be
        read."""

    @abc.abstractmethod
    def saved_keys(self) -> list[CursorKey]:
        """Returns the keys of all cursors that can be read, by name and vchannels."""

    @abc.abstractmethod
    def save(
        self, cursor: Cursor, *, earliest: Callable[[], tuple[int, int]], since_s: float | None = None, forward_only: bool = False
    ) -> bool:
        """Stores a cursor; see `CursorStore.save`."""


class CursorStore(SavedCursors):
    """Cursors by their key, with the lock between saves and truncations."""

    async def begin(self, pchannels: Iterable[str]) -> None:
        """Prepares for truncating these pchannels, and no others; the writer calls it whenever one comes or goes."""

    def saved_keys(self) -> list[CursorKey]:
        return [cursor.key for cursor in self.load_all() if isinstance(cursor, Cursor)]

    def save(
        self, cursor: Cursor, *, earliest: Callable[[], tuple[int, int]], since_s: float | None = None, forward_only: bool = False
    ) -> bool:
        """Stores a cursor, replacing the saved one; durable when it returns. Returns whether it was stored: with `forward_only`, a saved
        cursor at the same log position or later, in the same incarnations, stays.

        `earliest` is called under the lock and returns the first event of the log. Raises TruncatedError when the cursor's start is below
        it, or when the saved cursor is stale; InvalidArgumentError when the saved one is of another incarnation of the pchannel;
        ChannelNotExistError when it is of a later incarnation of a vchannel; NotLocalError when it is a copy, whose cursor moves with
        transactions and has to be saved at its home; CorruptionError when it is damaged; WouldBlockError when the lock cannot be taken
        in time, counted from `since_s`.
        """
        with self.locked(since_s=since_s):
            before = self.load(cursor.key)
            if before is not None:
                incarnations = list(zip(before.incarnations, cursor.incarnations, strict=True))
                if (later := later_incarnation(before, cursor)) is not None:
                    raise later
                if before.home:
                    raise NotLocalError(
                        f"{cursor.key} moves with transactions and is kept in the log of pchannel {before.home}: save it in the process "
                        "that writes that log, or through a server of it"
                    )
                if not any(old is not None and new is not None and new > old for old, new in incarnations):
                    if (before.pchannel, before.incarnation) != (cursor.pchannel, cursor.incarnation) and any(
                        old is not None for old, _ in incarnations
                    ):
                        raise InvalidArgumentError(other_incarnation(before))
                    if before.stale:
                        raise TruncatedError(stale(before))
                    if forward_only and before.incarnations == cursor.incarnations and before.start >= cursor.start:
                        return False
            first = earliest()
            if cursor.start < first:
                raise below_earliest(cursor, first)
            self._put(cursor)
        self.sync()
        return True

    def put(self, cursor: Cursor) -> None:
        """Stores a cursor, whatever is stored. Call it only inside `locked`, and `sync` afterwards."""
        self._put(cursor)

    def change(self, expected: Cursor, changed: Cursor | None) -> bool:
        """Stores `changed` (None: deletes the cursor) if `expected` is stored; returns whether it was. Call it only inside `locked`."""
        if self.load(expected.key) != expected:
            return False
        if changed is None:
            self._remove(expected.key)
        else:
            self._put(changed)
        return True

    def adopt(self, lineages: Mapping[str, Lineage]) -> None:
        """Moves the cursors of logs that were restored since to the incarnations that these have now, by pchannel.

        A cursor whose event was lost stays as it is: using it raises LogWentBackError.
        """
        with self.locked():
            for cursor in self.load_all():
                if isinstance(cursor, Cursor) and (moved := adopted(cursor, lineages)) is not None:
                    self._put(moved)
        self.sync()

    def delete(self, keep: Callable[[Cursor], bool]) -> None:
        """Deletes, under the lock, the cursors for which `keep` returns False; damaged ones stay. Durable when it returns."""
        with self.locked():
            for cursor in self.load_all():
                if isinstance(cursor, Cursor) and not keep(cursor):
                    self._remove(cursor.key)
        self.sync()

    @abc.abstractmethod
    def delete_named(self, name: str, vchannels: tuple[str, ...] | None) -> None:
        """Deletes, under the lock, the cursor of this name and set, or all of this name, damaged ones too; a missing one is fine.

        Durable when it returns.
        """

    @abc.abstractmethod
    def load_all(self) -> list[Cursor | DamagedCursor]:
        """Returns all cursors, by name and vchannels, damaged ones last."""

    @abc.abstractmethod
    def acquire(self, timeout_s: float, *, since_s: float | None = None) -> None:
        """Takes the lock, also between processes. Raises WouldBlockError when others hold it for longer than `timeout_s`.

        `since_s`: the monotonic time from which that is counted, for a caller that has already waited; None: now.
        """

    @abc.abstractmethod
    def release(self) -> None:
        """Releases the lock. Any thread may call it; it does not wait."""

    @contextlib.contextmanager
    def locked(self, timeout_s: float = LOCK_TIMEOUT_S, *, since_s: float | None = None) -> Iterator[None]:
        """Holds the lock: inside `with`, no other caller saves, deletes or truncates."""
        self.acquire(timeout_s, since_s=since_s)
        try:
            yield
        finally:
            self.release()

    @abc.abstractmethod
    def sync(self) -> None:
        """Makes all stored and deleted cursors, from any caller, survive a power cut. Call it before a truncation that relies on them."""

    @abc.abstractmethod
    def _put(self, cursor: Cursor) -> None: ...

    @abc.abstractmethod
    def _remove(self, key: CursorKey) -> None: ...


def adopted(cursor: Cursor, lineages: Mapping[str, Lineage]) -> Cursor | None:
    """Returns the cursor in the present incarnation of its log; None if the log was not restored since, or has lost its event."""
    if (lineage := lineages.get(cursor.pchannel)) is None or (restore := lineage.since(cursor.incarnation)) is None:
        return None
    # Without an event, nothing was passed below `start`, which may be the fork itself.
    if (cursor.event or (cursor.start[0] - 1, 0))[0] >= restore.fork:
        return None
    return msgspec.structs.replace(cursor, incarnation=lineage.incarnation, start=min(cursor.start, (restore.fork, 0)))


def stale(cursor: Cursor) -> str:
    """Returns the error text for a stale cursor."""
    return f"{cursor.key} is stale: {cursor.stale}; delete_cursor({cursor.key.name!r}) and begin again"


def below_earliest(cursor: Cursor, first: tuple[int, int]) -> TruncatedError:
    """Returns the error for saving a cursor below the first event of the log."""
    return TruncatedError(
        f"{cursor.key} cannot be saved at {cursor.start[0]}:{cursor.start[1]} of pchannel {cursor.pchannel}: the log was "
        f"truncated up to {first[0]}:{first[1]}; read on from there"
    )


def later_incarnation(before: Cursor, cursor: Cursor) -> ChannelNotExistError | None:
    """Returns the error for a save by a reader of an incarnation that was dropped since; None if it reads none."""
    if any(old is not None and new is not None and new < old for old, new in zip(before.incarnations, cursor.incarnations, strict=True)):
        return ChannelNotExistError(
            f"{cursor.key} was saved by a reader of a later incarnation of its vchannels: those read here were dropped"
        )
    return None


def other_incarnation(cursor: Cursor) -> str:
    """Returns the error text for a cursor of another incarnation of its pchannel."""
    return (
        f"{cursor.key} was saved in another incarnation of pchannel {cursor.pchannel} ({cursor.incarnation:x}): "
        f"delete_cursor({cursor.key.name!r}) and begin again"
    )
