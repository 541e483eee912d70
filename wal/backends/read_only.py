"""ReadOnlyPChannelLog: what a backend gives to a process that reads one pchannel's log and does not write it.

The log is written by another process, or by none. A snapshot says how far it reaches at one moment, and reads end there: frames above may
still be torn off and written again.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from wal.backends.base import FramePage

__all__ = ["LogSnapshot", "ReadOnlyPChannelLog"]


class LogSnapshot(msgspec.Struct, frozen=True, gc=False):
    """A log at one moment: everything at or below `promised_tick` lies below `durable_end`.

    `earliest` is the (position, index) of the first event that is not truncated, `newest` that of the newest event as far as it is known,
    None before any event. `closed` says that no writer has the log open; a writer that was killed did not say so.
    """

    term: int
    durable_end: int
    earliest: tuple[int, int]
    promised_tick: int
    closed: bool
    newest: tuple[int, int] | None

    @property
    def failure(self) -> BaseException | None:
        """None: another writer may open the log at any time, so no reader can know that nothing will follow."""
        return None


class ReadOnlyPChannelLog(Protocol):
    """One pchannel's log, open for reading. Its calls block and are thread-safe; it needs no event loop.

    An implementation guarantees that frames below the end of any snapshot come back whole and in order, or that a call raises:
    TruncatedError for what was truncated, also while it is read, CorruptionError for damage, StorageError when the log cannot be reached,
    and ClosedError after `close`, or when another log was created in its place.
    """

    pchannel: str
    incarnation: int
    """The incarnation of the log that is read. A log that is created again is another one."""
    refresh_waits: bool
    """Whether `refresh` waits, for a server say, so that an event loop has to call it in a thread."""

    @property
    def earliest(self) -> tuple[int, int]:
        """The (position, index) of the first event that is not truncated, as new as it is known without waiting."""

    @property
    def last_truncated(self) -> tuple[int, int] | None:
        """The newest event below `earliest`, None if it is not known or there is none; known from `reach` on. Waits for nothing."""

    def refresh(self) -> LogSnapshot:
        """Returns the log as it is now. Its `newest` may be older than its end."""

    def reach(self) -> LogSnapshot:
        """Returns the log as it is now, with the newest event for certain."""

    def page(self, start: int, end: int, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        """Returns frames in [start, end) that hold a run of one of these names, as `ReadableLog.read` does; `end` is durable."""

    def bytes_between(self, start: int, end: int) -> int:
        """Returns about how many bytes of log lie in [start, end). Waits for nothing."""

    def close(self) -> None:
        """Lets go of the log. Idempotent. Where `refresh_waits`, calls under way end with a ClosedError; elsewhere none may be."""
