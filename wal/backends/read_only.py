"""ReadOnlyPChannelLog: a backend's interface for a process that reads one pchannel's log and does not write it.

Another process writes the log, or none does. A snapshot has its end at one moment, and reads end there: frames above may still be cut off
and rewritten.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from wal.backends.base import FramePage
from wal.frame import RunName
from wal.message import Lineage, LogPosition

__all__ = ["LogSnapshot", "ReadOnlyPChannelLog", "ReadOnlyStoredLog"]


class LogSnapshot(msgspec.Struct, frozen=True, gc=False):
    """A log at one moment: everything at or below `promised_tick` is below `durable_end`.

    `earliest` is the (position, index) of the first event that is not truncated, `newest` that of the newest known event, None before any
    event. `closed` says that no writer has the log open; a killed writer leaves it False.
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

    An implementation guarantees that frames below the end of any snapshot are read whole and in order, or that a call raises:
    TruncatedError for truncated frames, also if truncated during the read, CorruptionError for damage, StorageError when the log cannot be
    reached, and ClosedError after `close`, or when the log was recreated.
    """

    pchannel: str
    incarnation: int
    """The incarnation of the log that is read. A recreated log has another one."""
    lineage: Lineage
    """The restores that the log has gone through."""
    refresh_waits: bool
    """Whether `refresh` blocks, for a server say, so that an event loop must call it in a thread."""

    @property
    def earliest(self) -> tuple[int, int]:
        """The (position, index) of the first event that is not truncated, as far as known without blocking."""

    @property
    def last_truncated(self) -> tuple[int, int] | None:
        """The newest event below `earliest`, None if there is none or it is not known; known after `reach`. Never blocks."""

    def refresh(self) -> LogSnapshot:
        """Returns the log as it is now. Its `newest` may be older than its end."""

    def reach(self) -> LogSnapshot:
        """Returns the log as it is now, with the newest event for certain."""

    def page(self, start: int, end: int, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        """Returns frames in [start, end) that hold a run of one of these names, as `ReadableLog.read` does; `end` is durable."""

    def bytes_between(self, start: int, end: int) -> int:
        """Returns the approximate number of bytes of log in [start, end). Never blocks."""

    def bytes_for(self, names: frozenset[str], start: tuple[int, int], end: int) -> int:
        """Returns what `ReadableLog.bytes_for` does. It may block."""

    def close(self) -> None:
        """Releases the log. Idempotent. If `refresh_waits`, calls in progress raise ClosedError; otherwise no call may be in progress."""


class ReadOnlyStoredLog(ReadOnlyPChannelLog, Protocol):
    """A log that is read where it is stored, with what its writer stores for recovery. Its calls block and are thread-safe."""

    def last_events(self, start: int, names: frozenset[str]) -> tuple[int, dict[RunName, LogPosition]]:
        """Returns the newest durable event at or after `start` of each of these vchannels, truncated or not, and where it began to look.

        That is after `start` if the log does not hold everything from there on any more. Of several incarnations of a name only the
        newest is certain to be there.
        """

    def checkpoint_position(self) -> int | None:
        """Returns the position of the newest state that is stored for recovery, or None if there is none."""

    def checkpoint_state(self, position: int) -> bytes | None:
        """Returns the state stored for this position, None if a newer one has replaced it meanwhile. CorruptionError if it is damaged."""
