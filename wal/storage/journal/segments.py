"""Segments: the files of one log, in order, each read frame by frame, and their indexes; everything that is returned is checked.

A `Segment` decodes a FrameView at (file, offset), for readers and for recovery: envelope, head, body. It never writes and never decides
what damage means; its CorruptionErrors name file and offset.

A `SegmentSet` owns the list of segments, the growing index of the last segment, and a bounded cache of the indexes of sealed ones. The list
is a tuple that is replaced, so that a reader keeps the tuple with which it began. Indexes of sealed segments are loaded from `.idx`, or
computed from the segment when that file is missing, damaged or out of date. The set never removes a segment; damage in a sealed one is an
error. The writer adds what it writes; in a process that only reads, the set follows the files (`ReadOnlySegments`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from wal.errors import CorruptionError, FormatError, InvalidArgumentError, caused
from wal.frame import HEADER_BYTES, FrameHeader, FrameView
from wal.storage.journal.disk import Disk, FrameFile, JournalFile
from wal.storage.journal.index import SegmentIndex, index_name
from wal.storage.journal.layout import ENVELOPE_BYTES, HEADER_PAGE_BYTES, SECTOR_BYTES, Envelope, SegmentHeader, segment_name, slot_bytes

_shared: Final[weakref.WeakSet[JournalFile]] = weakref.WeakSet()
"""Files under a shared flock. A forked child closes them, because it would keep their space allocated after a truncation."""
_CACHE_BYTES: Final = 64 << 20
"""The most memory for the indices of sealed segments (at least one is kept)."""


class SegmentSet:
    """The segments, of which the last one grows, with `last_index`. Thread-safe. An index that had to be computed is stored."""

    stores_indexes: ClassVar[bool] = True

    def __init__(self, disk: Disk, directory: Path, segments: tuple[Segment, ...], last_index: SegmentIndex) -> None:
        self._disk = disk
        self._directory = directory
        self.segments: tuple[Segment, ...] = segments
        self._last_index = last_index
        self._lock = threading.Lock()
        self._cache = IndexCache()

    def add(self, segment: Segment, index: SegmentIndex) -> None:
        """Adds a new last segment; the one before it is sealed."""
        with self._lock:
            sealed, self._last_index = self._last_index, index
            self._cache.keep(sealed)
            self.segments = (*self.segments, segment)

    def drop_below(self, position: int) -> tuple[Segment, ...]:
        """Forgets and returns the segments that are wholly below this position."""
        with self._lock:
            return self._drop_below(position)

    def _drop_below(self, position: int) -> tuple[Segment, ...]:
        following = [segment.base for segment in self.segments[1:]]
        count = sum(base <= position for base in following)
        dropped = self.segments[:count]
        if dropped:
            self.segments = self.segments[count:]
        for segment in dropped:
            self._cache.drop(segment.base)
        return dropped

    def bytes_below(self, position: int) -> int:
        """Returns the bytes of the segments that are wholly below this position."""
        segments = self.segments
        total = 0
        for segment, following in pairwise(segments):
            if following.base > position:
                break
            total += segment.header.size
        return total

    def index(self, segment: Segment) -> SegmentIndex:
        """Returns the index of this segment. Reads files; raises CorruptionError if it is damaged, FileNotFoundError if it is gone."""
        with self._lock:
            if segment.base == self._last_index.base:
                return self._last_index
            if (cached := self._cache.get(segment.base)) is not None:
                return cached
            following = self._after(segment)
        if following is None:
            raise FileNotFoundError(2, "the segment was truncated", str(segment.path))
        index, is_computed = sealed_index(self._disk, self._directory, segment, following)
        self._keep(segment, index, is_computed=is_computed)
        return index

    def reach(self, durable: int, earliest: int) -> tuple[int, int] | None:
        """Returns the newest event below `durable`, up to which the writer has indexed the frames."""
        segment = next(segment for segment in reversed(self.segments) if segment.base <= durable)
        index = self.index(segment)
        return index.last_event(0, index.ordinal(durable)) or segment.header.newest

    def remade(self, segment: Segment) -> SegmentIndex:
        """Returns the index computed from the segment up to its last known frame, for a reader whose index was wrong."""
        with self._lock:
            last, end, following = self._last_index, self._last_index.end, self._after(segment)
        if following is None:
            index = SegmentIndex(segment.base)
            if (failure := extend_index(self._disk, segment, index, end)) is not None:
                raise failure
            self._remade_last(last, index)
        else:
            index = scanned_index(self._disk, segment, following)
            self._keep(segment, index, is_computed=True)
        return index

    def open(self, segment: Segment, index: SegmentIndex, ordinals: Sequence[int], bytes_max: int) -> JournalFile:
        """Opens the segment's file, as `open_shared` does."""
        return open_shared(self._disk, segment.path)

    def _after(self, segment: Segment) -> Segment | None:
        return next((other for other in self.segments if other.base > segment.base), None)

    def _keep(self, segment: Segment, index: SegmentIndex, *, is_computed: bool) -> None:
        if is_computed and self.stores_indexes:
            with contextlib.suppress(OSError):  # it can be recomputed
                write_index(self._disk, self._directory, segment, index)
        with self._lock:
            self._cache.keep(index)

    def _remade_last(self, last: SegmentIndex, index: SegmentIndex) -> None:
        """Records that `last`, the index of the last segment, was computed again. The writer keeps the index to which it adds."""


class IndexCache:
    """The most recently used indices of sealed segments by base, bounded by their memory (at least one is kept)."""

    __slots__ = ("_indices", "_size")

    def __init__(self) -> None:
        self._indices: OrderedDict[int, tuple[SegmentIndex, int]] = OrderedDict()
        self._size = 0

    def get(self, base: int) -> SegmentIndex | None:
        cached = self._indices.get(base)
        if cached is None:
            return None
        self._indices.move_to_end(base)
        return cached[0]

    def keep(self, index: SegmentIndex) -> None:
        """Keeps an index to which no more frames are added."""
        self.drop(index.base)
        size = index.memory_bytes()
        self._indices[index.base] = (index, size)
        self._size += size
        while self._size > _CACHE_BYTES and len(self._indices) > 1:
            _, (_, size) = self._indices.popitem(last=False)
            self._size -= size

    def drop(self, base: int) -> None:
        """Forgets the index of a segment that is gone."""
        if (cached := self._indices.pop(base, None)) is not None:
            self._size -= cached[1]


def last_truncated(segments: tuple[Segment, ...], earliest: tuple[int, int]) -> tuple[int, int] | None:
    """Returns the newest event below `earliest` if a segment begins there; None if it is unknown."""
    if earliest[1] == 0:
        for segment in segments:
            if segment.base == earliest[0]:
                return segment.header.newest
    return None


def truncated_tick(segments: tuple[Segment, ...], earliest: tuple[int, int]) -> int | None:
    """Returns the tick that was promised before `earliest` if a segment begins there; None if it is not known."""
    if earliest[1] == 0:
        for segment in segments:
            if segment.base == earliest[0]:
                return segment.header.promised_tick
    return None


def open_shared(disk: Disk, path: Path) -> JournalFile:
    """Opens the segment's file under a shared flock: while it is open the writer does not reuse it.

    Raises FileNotFoundError when the file is gone, or was reused between the two steps, so that the name no longer leads to it.
    """
    file = disk.open(path, write=False)
    _shared.add(file)
    try:
        # Any user who can read a segment could lock it exclusively for ever, so the reader does not wait; and a file system may not support
        # such locks. Without the lock the writer may reuse a truncated segment while it is read. The bytes are invalid then, and the reader
        # finds the truncation.
        with contextlib.suppress(OSError):
            fcntl.flock(file.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(file.fd), os.stat(path)):
            raise FileNotFoundError(2, "the segment was truncated while it was being opened", str(path))
    except BaseException:
        file.close()
        raise
    return file


def sealed_index(disk: Disk, directory: Path, segment: Segment, following: Segment) -> tuple[SegmentIndex, bool]:
    """Returns the index of the segment before `following`, and whether it was computed from the segment instead of loaded.

    Raises CorruptionError when the segment is damaged or the next one does not continue it, FileNotFoundError when it is gone.
    """
    index = load_index(disk, directory, segment)
    if index is not None and not _fits(index, segment, following):
        index = None
    if index is not None and index.end == following.base:
        return index, False
    return scanned_index(disk, segment, following, index), True


def scanned_index(disk: Disk, segment: Segment, following: Segment, begun: SegmentIndex | None = None) -> SegmentIndex:
    """Returns the index of the segment before `following`, computed from the segment, or continued from the stored index `begun`.

    Raises the same errors as `sealed_index`.
    """
    index = begun or SegmentIndex(segment.base)
    file = open_shared(disk, segment.path)
    try:
        end = segment.scan(file, index, bodies_from=following.base)
        if index.end != following.base and begun is not None:  # the stored index may be wrong: the segment decides
            index = SegmentIndex(segment.base)
            end = segment.scan(file, index, bodies_from=following.base)
    finally:
        file.close()
    if index.end != following.base:
        raise end.broken or damaged(
            CorruptionError(f"the segment ends at position {index.end}", expected=f"{following.base}, where the next one begins"),
            segment.path,
            end.offset,
        )
    header = following.header
    last = _last(index, segment)
    if last != (header.previous_term, header.previous_sequence):
        raise damaged(
            CorruptionError(
                f"the next segment continues frame {header.previous_sequence} of term {header.previous_term}",
                expected=f"frame {last[1]} of term {last[0]}, the last one here",
            ),
            following.path,
            0,
        )
    return index


def extend_index(disk: Disk, segment: Segment, index: SegmentIndex, durable: int) -> CorruptionError | None:
    """Adds the frames of the last segment up to `durable` to its index; returns the error that stopped it, or None."""
    try:
        file = open_shared(disk, segment.path)
    except FileNotFoundError as error:
        missing = caused(CorruptionError("the file is gone", expected="a segment of this log"), error)
        return damaged(missing, segment.path, 0)
    try:
        end = segment.scan(file, index, bodies_from=durable, until=durable)
    finally:
        file.close()
    if index.end >= durable:
        return None
    return end.broken or damaged(
        CorruptionError("the log ends here", expected=f"frames up to position {durable}, which the control page says are durable"),
        segment.path,
        end.offset,
    )


def load_index(disk: Disk, directory: Path, segment: Segment, *, end_max: int | None = None) -> SegmentIndex | None:
    """Returns the stored index of this segment, up to `end_max`; None without a valid one.

    Its last frame is compared with the segment. Raises FileNotFoundError when the segment is gone.
    """
    try:
        file = disk.open(directory / index_name(segment.base), write=False)
    except FileNotFoundError:
        return None
    try:
        data = file.read(file.size(), 0)
    finally:
        file.close()
    header = segment.header
    try:
        index = SegmentIndex.decode(data, base=header.base, incarnation=header.incarnation, generation=header.generation, end_max=end_max)
    except CorruptionError:
        return None
    return index if _agrees(disk, segment, index) else None


def _agrees(disk: Disk, segment: Segment, index: SegmentIndex) -> bool:
    """Returns whether the segment has the last frame of this index at the index's position."""
    if not len(index):
        return True
    file = disk.open(segment.path, write=False)
    try:
        header = segment.frame_header(file, index.positions[-1])
    except CorruptionError:
        return False
    finally:
        file.close()
    return (header.frame_bytes, header.head_bytes, header.indices, header.first_tick, header.promised_tick) == (
        index.lengths[-1],
        index.head_lens[-1],
        index.indices[-1],
        index.first_ticks[-1],
        index.promises[-1],
    ) and (header.term, header.sequence) == index.last


def _fits(index: SegmentIndex, segment: Segment, following: Segment) -> bool:
    """Returns whether a stored index can be that of a segment, or the beginning of it, according to the next segment's header."""
    header = following.header
    if index.end != following.base:
        return index.end < following.base
    count = len(index)
    return (
        _last(index, segment) == (header.previous_term, header.previous_sequence)
        and index.promise(0, count) <= header.promised_tick
        and (index.last_event(0, count) or segment.header.newest) == header.newest
    )


def _last(index: SegmentIndex, segment: Segment) -> tuple[int, int]:
    """Returns (term, sequence) of the last frame in this segment or before it."""
    return index.last or (segment.header.previous_term, segment.header.previous_sequence)


def write_index(disk: Disk, directory: Path, segment: Segment, index: SegmentIndex) -> None:
    """Stores the index of a segment to which no frame is being added; a truncated segment keeps none."""
    path = directory / index_name(segment.base)
    data = index.encode(incarnation=segment.header.incarnation, generation=segment.header.generation)
    disk.replace(path, data, temporary=path.with_name(f"{path.name}.{threading.get_ident()}.tmp"))
    remove_stale_index(disk, directory, segment)


def remove_stale_index(disk: Disk, directory: Path, segment: Segment) -> None:
    """Removes the index again if any writer's truncation has removed the segment meanwhile. Called after every write of an index.

    A truncation removes the name of the segment first, then its index. So it removes an index that was written earlier, and this function
    removes an index that was written later.
    """
    if not segment.path.exists():
        disk.unlink(directory / index_name(segment.base))


def _let_go() -> None:
    """Closes the shared files in a forked child: the reads in progress are those of its parent."""
    for file in list(_shared):
        file.close()


os.register_at_fork(after_in_child=_let_go)


class Segment(msgspec.Struct, frozen=True, gc=False):
    """A segment of the log: its path and its header."""

    path: Path
    header: SegmentHeader
    name: str = ""
    """Its name in errors, if that is not the path."""

    @property
    def label(self) -> str:
        """The name of the segment in errors."""
        return self.name or str(self.path)

    @property
    def base(self) -> int:
        return self.header.base

    @classmethod
    def load(cls, disk: Disk, path: Path) -> Segment:
        """Returns the segment in this file, its header checked."""
        file = disk.open(path, write=False)
        try:
            header = read_header(file)
            if file.size() < header.size:
                raise damaged(CorruptionError(f"the file has {file.size()} bytes", expected=f"{header.size} bytes"), path, 0)
        finally:
            file.close()
        if path.name != segment_name(header.base):
            raise damaged(CorruptionError(f"its header has base {header.base:#x}", expected="the base in its name"), path, 0)
        return cls(path, header)

    def frame(self, window: Window, position: int, *, lazy: int = 0) -> tuple[FrameView, Body]:
        """Returns the frame at this position, its head checked (`lazy`: as in `FrameView.decode`), and the source of its body.

        Raises CorruptionError when no frame is there.
        """
        offset = position - self.base
        envelope = Envelope.unpack(window.get(offset, ENVELOPE_BYTES), 0, generation=self.header.generation, position=position)
        if envelope is None or envelope.length == 0:
            raise damaged(CorruptionError("no frame begins here", expected="an envelope"), self.label, offset)
        return self._view(window, offset, envelope, lazy=lazy)

    def frame_header(self, file: FrameFile, position: int) -> FrameHeader:
        """Returns the header of the frame at this position without checking its CRC. Raises CorruptionError when no frame begins there."""
        data = file.read(ENVELOPE_BYTES + HEADER_BYTES, position - self.base)
        envelope = Envelope.unpack(data, 0, generation=self.header.generation, position=position)
        if envelope is None or envelope.length == 0:
            raise damaged(CorruptionError("no frame begins here", expected="an envelope"), self.label, position - self.base)
        return FrameHeader.unpack(data, ENVELOPE_BYTES)

    def scan(self, file: FrameFile, index: SegmentIndex, *, bodies_from: int, until: int | None = None) -> ScanEnd:
        """Adds the frames from `index.end` on to the index, up to position `until`, or up to the first offset without a whole frame.

        Bodies of frames that end above position `bodies_from` are checked too. Frames below it were synced before they were acknowledged,
        and readers check every block that they return.
        """
        window = Window(file)
        while True:
            offset = index.end - self.base
            if offset >= self.header.size or (until is not None and index.end >= until):
                return ScanEnd(offset)
            window.ahead = _HEADS_BYTES if index.end < bodies_from else _BODIES_BYTES
            if until is not None:
                window.ahead = min(window.ahead, until - index.end)
            envelope = Envelope.unpack(window.get(offset, ENVELOPE_BYTES), 0, generation=self.header.generation, position=index.end)
            if envelope is None:
                return ScanEnd(offset)
            if envelope.length == 0:
                return ScanEnd(offset, sealed=True)
            slot = slot_bytes(envelope.length)
            try:
                view, _ = self._view(window, offset, envelope)
                if index.end + slot > bodies_from:
                    view.check_body()
            except CorruptionError as error:
                return ScanEnd(offset, extent=min(slot, self.header.size - offset), broken=damaged(error, self.label, offset))
            index.add_view(index.end, view)

    def _view(self, window: Window, offset: int, envelope: Envelope, *, lazy: int = 0) -> tuple[FrameView, Body]:
        try:
            at = offset + ENVELOPE_BYTES
            header = FrameHeader.unpack(window.get(at, HEADER_BYTES))
            if header.frame_bytes != envelope.length or offset + slot_bytes(envelope.length) > self.header.size:
                raise CorruptionError(
                    f"a frame of {header.frame_bytes} bytes stands in an envelope for {envelope.length}",
                    expected=f"the same, within a segment of {self.header.size} bytes",
                )
            body = Body(window, at + header.head_bytes)
            return FrameView.decode(window.get(at, header.head_bytes), body, lazy=lazy, header=header), body
        except CorruptionError as error:
            raise damaged(error, self.label, offset) from error


class ScanEnd(msgspec.Struct, frozen=True, gc=False):
    """The end of a scan: at `offset`, before a seal, before a `broken` frame that claims `extent` bytes, or before nothing."""

    offset: int
    sealed: bool = False
    extent: int = SECTOR_BYTES
    broken: CorruptionError | None = None


class Body:
    """The BodySource of a frame in a file. It keeps the bytes that it fetched (`fetched` counts them); after `close` it has only those."""

    __slots__ = ("_kept", "_offset", "_window", "fetched")

    def __init__(self, window: Window, offset: int) -> None:
        self._window: Window | None = window
        self._offset = offset
        self._kept: list[tuple[int, int, bytes]] = []
        self.fetched: int = 0

    def __call__(self, start: int, end: int) -> bytes:
        for first, last, data in self._kept:
            if first <= start and end <= last:
                return data[start - first : end - first]
        if self._window is None:
            raise InvalidArgumentError("this run was not read with the page: name its vchannel in the read, or read with names=None")
        data = self._window.get(self._offset + start, end - start)
        self._kept.append((start, end, data))
        self.fetched += len(data)
        return data

    def close(self) -> None:
        """Releases the file: from now on a view never reads one."""
        self._window = None


class Window:
    """Reads a file through a buffer of `ahead` bytes, so that neighbouring bytes cost one call."""

    __slots__ = ("_data", "_file", "_start", "ahead")

    def __init__(self, file: FrameFile, *, ahead: int = 0) -> None:
        self._file = file
        self.ahead: int = ahead
        self._data = b""
        self._start = 0

    def get(self, offset: int, length: int) -> bytes:
        """Returns the bytes at this offset; fewer where the file ends."""
        at = offset - self._start
        if at < 0 or at + length > len(self._data):
            self._data = self._file.read(max(length, self.ahead), offset)
            self._start = offset
            at = 0
        return self._data[at : at + length]


def read_header(file: FrameFile) -> SegmentHeader:
    """Returns the header of an open segment."""
    try:
        return SegmentHeader.unpack(file.read(HEADER_PAGE_BYTES, 0))
    except CorruptionError as error:
        raise damaged(error, file.path, 0) from error


def segment_bases(directory: Path) -> list[int]:
    """Returns the bases of the segments in this directory, ascending, from their file names."""
    try:
        return sorted(int(path.stem, 16) for path in directory.glob("*.wal"))
    except ValueError as error:
        raise FormatError(f"{directory} holds a .wal file whose name is not the base of a segment: move it away") from error


def damaged(error: CorruptionError, path: Path | str, offset: int) -> CorruptionError:
    """Returns the error with file and offset in its text."""
    if error.path:
        return error
    text = f"{path} is damaged at offset {offset}: {error}; expected {error.expected or _UNSTATED}"
    return CorruptionError(text, path=str(path), offset=offset, expected=error.expected)


_HEADS_BYTES: Final = 64 << 10
_BODIES_BYTES: Final = 1 << 20
_UNSTATED: Final = "what was written there"
