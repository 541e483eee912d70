"""Salvage: the readable and the lost parts of a pchannel's log in which frames are damaged.

A `SalvagedLog` goes through the segments themselves, without their indexes, which end at damage. A frame counts if its envelope and its
checksums fit. After a broken frame, the next envelope of the segment is looked for, and the bytes between are a `LostPart`. The stored
index of the segment names the vchannels, events and ticks of the frames in it; without an index only the ticks around it are known. Nothing
is written, and the log must have no writer.
"""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from wal.errors import CorruptionError, FormatError, WALError
from wal.frame import FrameHeader, FrameView
from wal.message import LogPosition
from wal.storage.base import FramePage, LogSnapshot, StoredFrame
from wal.storage.journal.disk import Disk, JournalFile
from wal.storage.journal.index import SegmentIndex, index_name
from wal.storage.journal.layout import ENVELOPE_BYTES, HEADER_PAGE_BYTES, SECTOR_BYTES, Envelope, SegmentHeader, segment_name, slot_bytes
from wal.storage.journal.read_only_journal import ReadOnlyJournalLog
from wal.storage.journal.segments import segment_bases
from wal.storage.read_only import ReadOnlyStoredLog

_SEARCH_BYTES: Final = 2 << 20


class LostPart(msgspec.Struct, frozen=True, kw_only=True):
    """Positions [begin, end) of a pchannel's log that cannot be read, from `offset` of the file `path` on.

    `first_tick` to `last_tick` cover the ticks of the events in it. `vchannels`, `events` and the positions of the `first` and the `last`
    event come from the index of the segment; they are None without an index, and without an event.
    """

    pchannel: str
    incarnation: int
    path: str
    offset: int
    begin: int
    end: int
    first_tick: int
    last_tick: int
    vchannels: tuple[str, ...] | None = None
    events: int | None = None
    first: LogPosition | None = None
    last: LogPosition | None = None


class SalvagedLog(ReadOnlyJournalLog):
    """The log of a pchannel in the directory `pchannels/NAME` of a journal, as far as it can be read."""

    def __init__(self, directory: Path) -> None:
        """Raises the errors of an opening: CorruptionError if its control page is damaged, which repair rebuilds."""
        super().__init__(Disk(), directory, directory.name)
        self._files = Disk()
        self._positions = array("Q")
        self._slots = array("Q")
        self._bases: list[int] = []
        self._newest_event: LogPosition | None = None
        self._parts: list[LostPart] | None = None

    @property
    def lost(self) -> list[LostPart]:
        """The lost parts, in the order of the log. The first call reads all of it."""
        if self._parts is None:
            self._parts = list(self._walk())
        return self._parts

    def reach(self) -> LogSnapshot:
        assert self.lost is not None
        return self._snapshot(self._load(), self._newest_event)

    refresh = moment = reach
    position_after = ReadOnlyStoredLog.position_after
    event_below = ReadOnlyStoredLog.event_below
    newest_tick = ReadOnlyStoredLog.newest_tick
    heads = ReadOnlyStoredLog.heads

    def page(self, start: int, end: int, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        """Returns the readable frames in [start, end), whatever vchannels they contain."""
        assert self.lost is not None
        frames: list[StoredFrame] = []
        newest: LogPosition | None = None
        promised = size = 0
        next_position = end
        with contextlib.ExitStack() as files:
            file, base = None, -1
            for at in range(bisect_left(self._positions, start), bisect_left(self._positions, end)):
                position, slot = self._positions[at], self._slots[at]
                if size >= bytes_max:
                    next_position = position
                    break
                if file is None or base != self._bases[bisect_left(self._bases, position) - 1]:
                    base = self._bases[bisect_left(self._bases, position) - 1]
                    file = self._files.open(self.directory / segment_name(base), write=False)
                    files.callback(file.close)
                view = _view(file.read(slot, position - base), ENVELOPE_BYTES)
                if view is None:
                    raise CorruptionError(f"{file.path} was damaged at offset {position - base} while it was being read: try again")
                frames.append(StoredFrame(position, position + slot, view))
                size += view.header.frame_bytes
                promised = max(promised, view.header.promised_tick)
                newest = (position, view.header.indices - 1) if view.header.indices else newest
        return FramePage(frames, next_position, newest, promised)

    # -- the walk through the segments

    def _walk(self) -> Iterator[LostPart]:
        """Records the frames that can be read, and yields the parts between them."""
        record = self._load()
        earliest = at = record.earliest[0]
        tick = 0
        gaps: list[tuple[int, int, int]] = []
        bases = segment_bases(self.directory)
        first = max((base for base in bases if base <= earliest), default=earliest)
        self._bases = [base for base in bases if first <= base < record.durable]
        for base, stop in pairwise([*self._bases, record.durable]):
            if base > at:
                gaps.append((at, base, tick))  # the segment is missing
            at = max(at, base + HEADER_PAGE_BYTES)
            for position, slot, view in self._frames(base, stop):
                header = view.header
                if position >= earliest:
                    if position > at:
                        gaps.append((at, position, tick))
                    yield from (self._part(*gap, header.first_tick - 1) for gap in gaps)
                    gaps.clear()
                    self._positions.append(position)
                    self._slots.append(slot)
                    at = position + slot
                    if header.indices:
                        self._newest_event = position, header.indices - 1
                tick = max(tick, header.promised_tick)
            if at < stop:
                gaps.append((at, stop, tick))
            at = max(at, stop)
        yield from (self._part(*gap, record.promised_tick) for gap in gaps)

    def _frames(self, base: int, stop: int) -> Iterator[tuple[int, int, FrameView]]:
        """Yields (position, bytes with envelope and padding, frame) of the frames in a segment that can be read."""
        with contextlib.closing(self._files.open(self.directory / segment_name(base), write=False)) as file:
            if (generation := _generation(file, base)) is None:
                return
            offset = HEADER_PAGE_BYTES
            while base + offset < stop:
                envelope = Envelope.unpack(file.read(ENVELOPE_BYTES, offset), 0, generation=generation, position=base + offset)
                slot = 0 if envelope is None else slot_bytes(envelope.length)
                view = _view(file.read(slot, offset), ENVELOPE_BYTES) if slot and base + offset + slot <= stop else None
                if view is not None:
                    yield base + offset, slot, view
                    offset += slot
                    continue
                for start in range(offset + SECTOR_BYTES, stop - base, _SEARCH_BYTES):
                    data = file.read(min(_SEARCH_BYTES, stop - base - start), start)
                    if (next_offset := Envelope.find(data, generation=generation, base=base, offset=start)) >= 0:
                        offset = next_offset
                        break
                else:
                    return

    def _part(self, begin: int, end: int, before: int, after: int) -> LostPart:
        """Returns the part [begin, end), which has ticks above `before` and up to `after`."""
        base = max((base for base in self._bases if base <= begin), default=begin)
        part = LostPart(
            pchannel=self.pchannel,
            incarnation=self.incarnation,
            path=str(self.directory / segment_name(base)),
            offset=begin - base,
            begin=begin,
            end=end,
            first_tick=min(before + 1, after),
            last_tick=after,
        )
        index = self._index(base)
        if index is None or index.end < end:
            return part
        ordinals = range(index.ordinal(begin), index.ordinal(end))
        with_events = [ordinal for ordinal in ordinals if index.indices[ordinal]]
        names = tuple(sorted(index.names_in(ordinals.start, ordinals.stop)))
        if not with_events:
            return msgspec.structs.replace(part, vchannels=names, events=0)
        return msgspec.structs.replace(
            part,
            vchannels=names,
            events=sum(index.indices[ordinal] for ordinal in with_events),
            first=(index.positions[with_events[0]], 0),
            last=(index.positions[with_events[-1]], index.indices[with_events[-1]] - 1),
            first_tick=index.first_ticks[with_events[0]],
            last_tick=index.first_ticks[with_events[-1]] + index.indices[with_events[-1]] - 1,
        )

    def _index(self, base: int) -> SegmentIndex | None:
        """Returns the stored index of a segment, None without a readable one."""
        try:
            with contextlib.closing(self._files.open(self.directory / segment_name(base), write=False)) as file:
                generation = _generation(file, base)
            data = (self.directory / index_name(base)).read_bytes()
        except OSError:
            return None
        for incarnation in () if generation is None else (self.incarnation, *(restore.parent for restore in self.lineage.restores)):
            with contextlib.suppress(CorruptionError):
                return SegmentIndex.decode(data, base=base, incarnation=incarnation, generation=generation or 0)
        return None


def _generation(file: JournalFile, base: int) -> int | None:
    """Returns the generation of a segment: from its header, or if that is damaged, from its first envelope. None if both are."""
    with contextlib.suppress(CorruptionError, FormatError):
        header = SegmentHeader.unpack(file.read(HEADER_PAGE_BYTES, 0))
        return header.generation if header.base == base else None
    data = file.read(ENVELOPE_BYTES, HEADER_PAGE_BYTES)
    generation = int.from_bytes(data[8:16], "little")
    envelope = Envelope.unpack(data, 0, generation=generation, position=base + HEADER_PAGE_BYTES)
    return None if envelope is None else generation


def _view(slot: bytes, first: int) -> FrameView | None:
    """Returns the frame at the offset `first`, None if it is damaged."""
    try:
        header = FrameHeader.unpack(slot, first)
        body = first + header.head_bytes
        view = FrameView.decode(slot[first:body], lambda begin, end: slot[body + begin : body + end], header=header)
        view.check_body()
    except WALError:
        return None
    return view


def salvaged(directory: Path) -> list[LostPart]:
    """Returns the lost parts of the pchannel's log in `directory`. Raises the errors of `SalvagedLog`."""
    with contextlib.closing(SalvagedLog(directory)) as log:
        return log.lost
