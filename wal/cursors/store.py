"""CursorStore: where cursors are kept, and the one order of saves and truncations.

Owns the lock between those who save and the one who truncates: under it a saver looks at the earliest event, then stores; under it
whoever truncates looks at all cursors, then stores the new earliest event. So no saved cursor is ever overtaken by a
truncation that did not see it, and none is saved behind one. Everything here blocks, briefly; on a loop it runs in threads.

It never decides whether a cursor is still of use: `standing` does. A damaged one is loud for its own use, and shown to who looks at all.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator

import msgspec

from wal.cursors.cursor import Cursor, CursorKey
from wal.errors import ChannelNotExistError, InvalidArgumentError, TruncatedError, WALError

__all__ = ["LOCK_TIMEOUT_S", "CursorStore", "DamagedCursor"]

LOCK_TIMEOUT_S = 10.0
"""How long a call waits for others to let go of the lock, which they hold for milliseconds unless they were stopped."""


class DamagedCursor(msgspec.Struct, frozen=True):
    """A cursor that cannot be read: `file` is what it lies in, `error` says what is wrong and what helps."""

    file: str
    error: WALError


class CursorStore(abc.ABC):
    """Cursors by their key. Thread-safe."""

    def save(
        self,
        cursor: Cursor,
        *,
        earliest: Callable[[], tuple[int, int]],
        since_s: float | None = None,
        forward_only: bool = False,
    ) -> bool:
        """Stores a cursor in the place of what was saved before; durable when it returns. With `forward_only` one that stands there, or
        further, in the same lives is left as it is; whether the cursor was stored.

        `earliest` is asked, under the lock, for the first event of the log. TruncatedError when the cursor's start lies below it, or when
        what was saved has turned stale; InvalidArgumentError when that is of another life of the pchannel; ChannelNotExistError when it is
        of a later life of a vchannel; CorruptionError when it is damaged. WouldBlockError when the lock cannot be had in time, which is
        counted from `since_s`.
        """
        with self.locked(since_s=since_s):
            before = self.load(cursor.key)
            if before is not None:
                incarnations = list(zip(before.incarnations, cursor.incarnations, strict=True))
                if any(old is not None and new is not None and new < old for old, new in incarnations):
                    raise ChannelNotExistError(
                        f"{cursor.key} was saved by a reader of a later life of them: the ones read here were dropped"
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
                raise TruncatedError(
                    f"{cursor.key} cannot be saved at {cursor.start[0]}:{cursor.start[1]} of pchannel {cursor.pchannel}: the log was "
                    f"truncated up to {first[0]}:{first[1]}; read on from there"
                )
            self._put(cursor)
        self.sync()
        return True

    def change(self, expected: Cursor, changed: Cursor | None) -> bool:
        """Inside `locked`: stores `changed` (None: deletes it) if `expected` is what is stored; whether it was."""
        if self.load(expected.key) != expected:
            return False
        if changed is None:
            self._remove(expected.key)
        else:
            self._put(changed)
        return True

    def delete(self, keep: Callable[[Cursor], bool]) -> None:
        """Deletes, under the lock, the cursors that `keep` does not want; damaged ones stay. Durable when it returns."""
        with self.locked():
            for cursor in self.load_all():
                if isinstance(cursor, Cursor) and not keep(cursor):
                    self._remove(cursor.key)
        self.sync()

    @abc.abstractmethod
    def delete_named(self, name: str, vchannels: tuple[str, ...] | None) -> None:
        """Deletes, under the lock, the cursor of this name and set, or all of this name, damaged ones too; none is fine.

        Durable when it returns.
        """

    @abc.abstractmethod
    def load(self, key: CursorKey) -> Cursor | None:
        """The cursor, None when there is none; CorruptionError (FormatError for a newer version) when it cannot be read."""

    @abc.abstractmethod
    def load_all(self) -> list[Cursor | DamagedCursor]:
        """All of them, by name and vchannels, damaged ones last."""

    @abc.abstractmethod
    def acquire(self, timeout_s: float, *, since_s: float | None = None) -> None:
        """Takes the lock, also between processes; WouldBlockError when others hold it for longer than that.

        `since_s`: the monotonic time from which that is counted, for who stood in a line before; None: now.
        """

    @abc.abstractmethod
    def release(self) -> None:
        """Lets go of the lock. In whichever thread; it does not wait."""

    @contextlib.contextmanager
    def locked(self, timeout_s: float = LOCK_TIMEOUT_S, *, since_s: float | None = None) -> Iterator[None]:
        """`with` this nobody else saves, deletes or truncates."""
        self.acquire(timeout_s, since_s=since_s)
        try:
            yield
        finally:
            self.release()

    @abc.abstractmethod
    def sync(self) -> None:
        """Makes what was stored and deleted, by anybody, survive a power cut. Do it before truncating on the strength of it."""

    @abc.abstractmethod
    def _put(self, cursor: Cursor) -> None: ...

    @abc.abstractmethod
    def _remove(self, key: CursorKey) -> None: ...


def stale(cursor: Cursor) -> str:
    """What to say of a stale cursor."""
    return f"{cursor.key} is stale: {cursor.stale}; delete_cursor({cursor.key.name!r}) and begin anew"


def other_incarnation(cursor: Cursor) -> str:
    """What to say of a cursor of another life of its pchannel."""
    return (
        f"{cursor.key} was saved in another life of pchannel {cursor.pchannel} (incarnation {cursor.incarnation:x}): "
        f"delete_cursor({cursor.key.name!r}) and begin anew"
    )
