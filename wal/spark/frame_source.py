"""FrameSource: where a Spark read gets its frames from; the seam between the readers and journals, nodes or Pulsar.

A source is a recipe: small, picklable, without anything open. It goes from the driver to every task, and is opened where frames are
needed, once a process (`opened`). What is opened (`FrameLogs`) blocks, needs no event loop, and is used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from typing import Protocol

import msgspec

from wal.backends import FramePage
from wal.cursors import CursorStore
from wal.message import Origin
from wal.spark.offsets import Place
from wal.spark.options import ChannelChoice
from wal.spark.planning import FrameWeight

__all__ = ["FrameLogs", "FrameSource", "Lives", "LogMoment"]


class LogMoment(msgspec.Struct, frozen=True, gc=False):
    """One pchannel's log at one moment.

    `origin` names the log (pchannel, life, form of its ids; at any position). Events below `earliest` are truncated; `last_truncated` is
    the newest of them where that is known. Everything at or below the tick `promise` lies below position `durable_end`, and nothing above
    it may be shown. `closed`: nobody has the log open for writing, as far as is known.
    """

    origin: Origin
    earliest: Place
    durable_end: int
    promised_tick: int
    closed: bool = False
    last_truncated: Place | None = None


class Lives(Protocol):
    """What is known of vchannels: which lives of them there are, and which are over."""

    def current(self, name: str) -> int | None:
        """The incarnation of this vchannel now, None when it is not known."""

    def is_over(self, pchannel: str, name: str, incarnation: int) -> bool:
        """Whether this life is known to have ended."""

    def names(self) -> Collection[str]:
        """The vchannels that are known to exist."""

    def on(self, pchannel: str) -> dict[str, int]:
        """Returns the vchannels of this pchannel that are known to exist, with their incarnations."""


class FrameLogs(Protocol):
    """The logs of a source, opened. Errors are those of `wal.errors`: TruncatedError for a start that is gone, CorruptionError for damage,
    ClosedError for logs that were made anew.
    """

    def pchannels(self) -> Sequence[str]:
        """The names of the pchannels there are now; there may be more of them later, never fewer."""

    def moment(self, pchannel: str) -> LogMoment:
        """The log as it is now. Called at every poll, some sixty times a second: it should cost microseconds, or a question to a server."""

    def lives(self) -> Lives:
        """What is known of the vchannels now."""

    def names(self, pchannel: str, start: int, end: int, choice: ChannelChoice) -> frozenset[str] | None:
        """The names that are meant by this choice among those in the frames in [start, end); None for all of them."""

    def place_after(self, pchannel: str, tick: int, start: int, end: int) -> Place:
        """The place in the frames in [start, end) behind every event with a tick up to this one: (end, 0) when no event is above it."""

    def newest_tick(self, pchannel: str) -> int:
        """The tick of the newest durable event, 0 when there is none."""

    def weights(
        self,
        pchannel: str,
        start: int,
        end: int,
        choice: ChannelChoice,
        *,
        rows_max: int | None = None,
        bytes_max: int | None = None,
    ) -> list[FrameWeight]:
        """The frames in [start, end) that hold something of this choice, in their order, with what a read of each takes.

        With a limit it ends behind the frame with which there are more than `rows_max` rows or `bytes_max` bytes, and names only frames
        that hold rows. Without one, frames that lie beside each other may be answered as one, and only `position`, `next_position` and
        `size` have to be known of them.
        """

    def event_below(self, pchannel: str, since: Place, place: Place) -> Place | None:
        """Returns the newest event below `place`, None if none is known at or above `since`. Reads few frames, or none."""

    def bytes_between(self, pchannel: str, start: int, end: int) -> int:
        """About how many bytes of log lie in [start, end), whoever they are for."""

    def pages(
        self, pchannel: str, start: int, end: int, names: frozenset[str] | None, bytes_max: int
    ) -> Generator[FramePage, None, None]:
        """The frames in [start, end) that hold one of these names, in pages of about `bytes_max` bytes; `end` is durable.

        The last page's `next_position` is at or above `end`. A generator: closing it lets go of what it holds.
        """

    @property
    def cursors(self) -> CursorStore:
        """The cursors of this log, for a process beside its writer."""

    def is_current(self) -> bool:
        """Whether these are still the logs at this location: False when another log was put there. Cheap."""

    def writer_is_gone(self) -> bool:
        """Whether nobody can be writing any more: promises stay as they are until somebody opens the log. False when it is not known."""

    def close(self) -> None:
        """Lets go of everything. Idempotent. Logs that are just forgotten let go by themselves."""


class FrameSource(Protocol):
    """The recipe of a source: hashable, equal to another of the same log, picklable."""

    def open(self) -> FrameLogs:
        """Opens the logs in this process. Blocks; FormatError or StorageError when there is nothing to read."""
