"""JournalFrames: a journal on this host as a source of frames, read directly from its files, with or without a running writer.

Implements `FrameLogs` with the indexes of the journal's segments, which tell what a frame holds without reading it. Only a read of some of
many vchannels reads the heads of their frames.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Generator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from wal.errors import ClosedError, CorruptionError, StorageError, TruncatedError
from wal.read.cursors.store import CursorStore
from wal.read.read_only import ReadOnlyCore
from wal.read.sources import ReadOnlyJournalSource
from wal.spark.frame_source import LogMoment, ViewedVChannels
from wal.spark.offsets import LogPosition
from wal.spark.options import ChannelChoice
from wal.spark.planning import FrameWeight, weight_of
from wal.storage.base import FramePage
from wal.storage.journal.control import CONTROL_NAME
from wal.storage.journal.directory import is_being_written
from wal.storage.journal.index import SegmentIndex
from wal.storage.journal.read_only import ReadOnlyJournalLog

__all__ = ["JournalFrames", "JournalSource"]

_GRAIN: Final = 64
"""The most frames that share one weight when no limit needs each frame; smaller segments have smaller groups."""
_MATCHED_MAX: Final = 64
"""The number of segments, the last ones searched, whose matching names are cached."""


class JournalSource(msgspec.Struct, frozen=True):
    """The journal in this directory, an absolute path: every executor must see the same files there."""

    directory: str

    def open(self) -> JournalFrames:
        """Raises FormatError when there is no journal."""
        return JournalFrames(Path(self.directory))


class JournalFrames:
    """See `FrameLogs`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._journal = ReadOnlyJournalSource(directory)
        self._core = ReadOnlyCore(self._journal)
        self._core.open()
        self._files = {name: _file(log) for name, log in self._journal.logs.items()}
        self._reached: dict[str, LogPosition] = {}
        self._matched: OrderedDict[tuple[str, int, ChannelChoice], tuple[int, frozenset[str]]] = OrderedDict()

    def pchannels(self) -> Sequence[str]:
        self._core.look()
        return list(self._journal.logs)

    def moment(self, pchannel: str) -> LogMoment:
        log = self._log(pchannel)
        state = log.refresh()
        if self._reached.get(pchannel) != state.earliest:  # the segments tell what was truncated last
            state = log.reach()
            self._reached[pchannel] = state.earliest
        return LogMoment(
            self._core.origin(log),
            state.earliest,
            state.durable_end,
            state.promised_tick,
            state.closed,
            log.last_truncated,
            log.lineage,
        )

    def vchannels(self) -> ViewedVChannels:
        return ViewedVChannels(self._core.look())

    def names(self, pchannel: str, start: int, end: int, choice: ChannelChoice) -> frozenset[str] | None:
        if choice.everything or choice.names is not None:
            return None if choice.names is None else frozenset(choice.names)
        found: set[str] = set()
        for index, _, _ in self._log(pchannel).indices(start, end):
            found |= self._matching(pchannel, index, choice)
        return frozenset(found)

    def log_position_after(self, pchannel: str, tick: int, start: int, end: int) -> LogPosition:
        for index, first, stop in self._log(pchannel).indices(start, end, above=tick):
            if stop == first or index.promise(first, stop) <= tick:
                continue
            for ordinal in range(first, stop):
                first_tick = index.first_ticks[ordinal]
                if index.indices[ordinal] and first_tick + index.indices[ordinal] - 1 > tick:
                    return index.positions[ordinal], max(0, tick + 1 - first_tick)
        return end, 0

    def newest_tick(self, pchannel: str) -> int:
        log = self._log(pchannel)
        newest = log.reach().newest
        if newest is None or newest < log.earliest:
            return 0
        try:
            for index, first, stop in log.indices(newest[0], newest[0] + 1):
                if first < stop:
                    return int(index.first_ticks[first]) + newest[1]
        except TruncatedError:
            pass  # truncated meanwhile, like everything before it
        return 0

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
        limited = rows_max is not None or bytes_max is not None
        if limited and not choice.everything:
            return self._scanned_frames(pchannel, start, end, choice, rows_max, bytes_max)
        found: list[FrameWeight] = []
        rows = size = 0
        for index, first, stop in self._log(pchannel).indices(start, end):
            ordinals = (
                range(first, stop)
                if choice.everything
                else index.wanted(self._matching(pchannel, index, choice), first, stop)
            )
            grain = 1 if limited else max(1, min(_GRAIN, len(ordinals) // _GRAIN))
            for at in range(0, len(ordinals), grain):
                some = ordinals[at : at + grain]
                if limited and not index.indices[some[0]]:
                    continue
                weight = FrameWeight(
                    index.positions[some[0]],
                    index.positions[some[-1] + 1] if some[-1] + 1 < len(index) else index.end,
                    index.first_ticks[some[0]],
                    index.promises[some[-1]],
                    sum(index.indices[ordinal] for ordinal in some),
                    sum(index.lengths[ordinal] for ordinal in some),
                )
                found.append(weight)
                rows, size = rows + weight.rows, size + weight.size
                if (rows_max is not None and rows > rows_max) or (bytes_max is not None and size > bytes_max):
                    return found
        return found

    def event_below(self, pchannel: str, since: LogPosition, place: LogPosition) -> LogPosition | None:
        if place[1]:
            return place[0], place[1] - 1
        log = self._log(pchannel)
        found = None
        try:
            at = max(since[0], log.earliest[0])
            end = min(place[0], log.refresh().durable_end)
            while at < end:
                page = log.page(at, end, frozenset(), 1)  # the index answers: no frame is read
                found = page.last_event or found
                at = page.next_position
        except TruncatedError:
            return None
        return found

    def bytes_between(self, pchannel: str, start: int, end: int) -> int:
        return end - start

    def pages(
        self, pchannel: str, start: int, end: int, names: frozenset[str] | None, bytes_max: int
    ) -> Generator[FramePage, None, None]:
        log = self._log(pchannel)
        if (durable := log.refresh().durable_end) < end:
            raise CorruptionError(
                f"pchannel {pchannel!r} in {self._directory} is durable up to position {durable} only, and {end} was planned from: "
                "this is an older copy of the log, or another one",
                path=str(self._directory),
                offset=durable,
                expected=f"a log that is durable up to position {end}",
            )
        while start < end:
            page = log.page(start, end, names, bytes_max)
            yield page
            start = page.next_position

    @property
    def cursors(self) -> CursorStore:
        return self._journal.cursors

    def is_current(self) -> bool:
        return all(_file(self._journal.logs[name]) == file for name, file in self._files.items())

    def writer_is_gone(self) -> bool:
        if all(log.refresh().closed for log in self._journal.logs.values()):
            return True
        return is_being_written(self._directory) is False

    def close(self) -> None:
        self._core.close()

    def _log(self, pchannel: str) -> ReadOnlyJournalLog:
        log = self._journal.logs.get(pchannel)
        if log is None:
            self._core.look()
            log = self._journal.logs.get(pchannel)
        if log is None:
            raise ClosedError(
                f"{self._directory} holds no log of pchannel {pchannel!r}: another journal has replaced it, or the path is another one"
            )
        return log

    def _matching(self, pchannel: str, index: SegmentIndex, choice: ChannelChoice) -> frozenset[str]:
        """Returns the names in this index that belong to the choice; each name is matched once."""
        if choice.names is not None:
            return frozenset(choice.names)
        key = pchannel, index.base, choice
        seen, found = self._matched.get(key, (0, frozenset()))
        names = index.names()
        if seen < len(names):
            found |= choice.among(islice(names, seen, None))
            self._matched[key] = len(names), found
            while len(self._matched) > _MATCHED_MAX:  # a stream goes through segments for years
                self._matched.popitem(last=False)
        return found

    def _scanned_frames(
        self, pchannel: str, start: int, end: int, choice: ChannelChoice, rows_max: int | None, bytes_max: int | None
    ) -> list[FrameWeight]:
        """Returns the weights of frames of some vchannels, from the heads of the frames, which may hold thousands of other vchannels."""
        names = self.names(pchannel, start, end, choice)
        assert names is not None
        found: list[FrameWeight] = []
        rows = size = 0
        for frame in self._log(pchannel).heads(start, end, names):
            if (weight := weight_of(frame, names)) is None:
                continue
            found.append(weight)
            rows, size = rows + weight.rows, size + weight.size
            if (rows_max is not None and rows > rows_max) or (bytes_max is not None and size > bytes_max):
                break
        return found


def _file(log: ReadOnlyJournalLog) -> tuple[int, int, int] | None:
    """Returns the identity of the control page there, which changes when the log is recreated."""
    try:
        status = os.stat(log.directory / CONTROL_NAME)
        log.refresh()
        return status.st_dev, status.st_ino, log.incarnation
    except (OSError, ClosedError, StorageError):
        return None
