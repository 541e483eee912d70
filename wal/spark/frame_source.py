"""FrameSource: the source of a Spark read's frames; the seam between the readers and journals, nodes or Pulsar.

A source is a recipe: small, picklable, with nothing open. The driver sends it to every task; it is opened where frames are needed, once per
process (`opened`). The opened logs (`FrameLogs`) block, need no event loop, and serve one thread at a time.

ViewedVChannels: the known vchannels of a log, as its reader last saw them. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from typing import Protocol

import msgspec

from wal.channels.vchannel_map import VChannelView
from wal.message import Lineage, Origin
from wal.read.cursors.store import SavedCursors
from wal.spark.offsets import LogPosition
from wal.spark.options import ChannelChoice
from wal.spark.planning import FrameWeight
from wal.storage.base import FramePage

__all__ = [
    "FrameLogs",
    "FrameSource",
    "LogMoment",
    "ReadableVChannels",
    "ViewedVChannels",
]


class ViewedVChannels:
    """The vchannels of a view. See `ReadableVChannels`."""

    def __init__(self, view: VChannelView) -> None:
        self._view = view

    def current(self, name: str) -> int | None:
        info = self._view.records.get(name)
        return None if info is None else info.incarnation

    def is_over(self, pchannel: str, name: str, incarnation: int) -> bool:
        return self._view.is_over(pchannel, name, incarnation)

    def names(self) -> Collection[str]:
        return self._view.records.keys()

    def on(self, pchannel: str) -> dict[str, int]:
        records = self._view.records
        return {name: info.incarnation for name, info in records.items() if info.pchannel == pchannel}


class LogMoment(msgspec.Struct, frozen=True, gc=False):
    """One pchannel's log at one moment.

    `origin` identifies the log (its pchannel, incarnation and form of ids; the position is arbitrary). Events below `earliest` are
    truncated; `last_truncated` is the newest of them, if known. Everything at or below `promised_tick` is below position `durable_end`, and
    nothing above that tick may be shown. `closed`: no process is known to have the log open for writing. `lineage`: its restores.
    """

    origin: Origin
    earliest: LogPosition
    durable_end: int
    promised_tick: int
    closed: bool = False
    last_truncated: LogPosition | None = None
    lineage: Lineage = Lineage(0)


class ReadableVChannels(Protocol):
    """The vchannels that are known to exist: their incarnations, and which incarnations have ended."""

    def current(self, name: str) -> int | None:
        """Returns the current incarnation of this vchannel, or None if the vchannel is unknown."""

    def is_over(self, pchannel: str, name: str, incarnation: int) -> bool:
        """Returns whether this incarnation is known to have ended."""

    def names(self) -> Collection[str]:
        """Returns the vchannels that are known to exist."""

    def on(self, pchannel: str) -> dict[str, int]:
        """Returns the vchannels of this pchannel that are known to exist, with their incarnations."""


class FrameLogs(Protocol):
    """The open logs of a source.

    Errors are those of `wal.errors`: TruncatedError for a start that is gone, CorruptionError for damage, ClosedError for logs that were
    recreated.
    """

    def pchannels(self) -> Sequence[str]:
        """Returns the names of the pchannels. Their number may grow, never shrink."""

    def moment(self, pchannel: str) -> LogMoment:
        """Returns the log as it is now. Called about sixty times a second; takes microseconds, or one request to a server."""

    def vchannels(self) -> ReadableVChannels:
        """Returns the vchannels that are known now."""

    def names(self, pchannel: str, start: int, end: int, choice: ChannelChoice) -> frozenset[str] | None:
        """Returns the names of this choice among those in the frames in [start, end); None for all of them."""

    def log_position_after(self, pchannel: str, tick: int, start: int, end: int) -> LogPosition:
        """Returns the log position in [start, end) after all events with a tick up to this one; (end, 0) if none has a larger one."""

    def newest_tick(self, pchannel: str) -> int:
        """Returns the tick of the newest durable event, or 0 when there is none."""

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
        """Returns the weights of the frames in [start, end) that hold rows of this choice, in the order of the log.

        With a limit it ends after the frame that brings the total above `rows_max` rows or `bytes_max` bytes, and names only frames that
        hold rows. Without one, adjacent frames may share one weight, of which only `position`, `next_position` and `size` are valid.
        """

    def event_below(self, pchannel: str, since: LogPosition, place: LogPosition) -> LogPosition | None:
        """Returns the newest event below `place`, or None if none is known at or above `since`. Reads few or no frames."""

    def bytes_between(self, pchannel: str, start: int, end: int) -> int:
        """Returns about how many bytes of log are in [start, end), for all vchannels."""

    def pages(
        self, pchannel: str, start: int, end: int, names: frozenset[str] | None, bytes_max: int
    ) -> Generator[FramePage, None, None]:
        """Yields the frames in [start, end) that hold one of these names, in pages of about `bytes_max` bytes; `end` is durable.

        The last page's `next_position` is at or above `end`. Closing the generator releases its resources.
        """

    @property
    def cursors(self) -> SavedCursors:
        """The cursors of this log, for a process other than its writer."""

    def is_current(self) -> bool:
        """Returns whether these are still the logs at this location; False when another log has replaced them. This is cheap."""

    def writer_is_gone(self) -> bool:
        """Returns whether no process writes, so that promised ticks do not advance until one opens the log. False when that is unknown."""

    def close(self) -> None:
        """Releases all resources. Idempotent. Logs that are garbage-collected without it release them themselves."""


class FrameSource(Protocol):
    """The recipe of a source: hashable, picklable, and equal to other recipes of the same log."""

    def open(self) -> FrameLogs:
        """Opens the logs in this process. Blocks; raises FormatError or StorageError when there is nothing to read."""
