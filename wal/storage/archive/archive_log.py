"""ReadOnlyArchiveLog: one pchannel's log in an archive, read from its objects by ranges, without a lock and without a server.

`Archive` is the archive as its newest manifest describes it, or the one that reaches a given tick; `look` finds newer ones. Objects are
the segments that the reader of a journal reads (`wal.storage.journal.reader`): an `ArchiveFile` answers its reads out of blocks of the
objects. Requests: `Archive.open` makes at most three, a look for a newer manifest one, or two when there is one; a page that is read makes
one for the index of each object, unless it is in memory, and one for each range of at most `FETCH_BYTES`.

Memory of an archive: the blocks read last (`CACHE_BLOCKS`), and for each pchannel the indexes read last. An object that is gone is looked
for in a newer manifest, which may have a larger one in its place, or an earliest event above it: then the read raises TruncatedError.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from wal.errors import CorruptionError, FormatError, LogWentBackError, closed_log
from wal.frame import EncodedFrame, FrameHeader, FrameView, RunName
from wal.frame.codec import expand, load_zstd
from wal.message import Lineage, LogPosition
from wal.storage.archive.manifest import NEWEST, PREFIX, Chunk, Manifest, PChannelCopy, SegmentCopy, manifest_name, numbered
from wal.storage.archive.objects import BLOCK_BYTES, COMPRESSED, ObjectIndex, damaged_index, fetch, fetch_index, load_manifest
from wal.storage.archive.store import BackupStore
from wal.storage.base import FramePage, LogSnapshot, RowsPage, RowsRequest, StoredFrame
from wal.storage.journal.checkpoint import checkpoint_name, checkpoint_position, decode_checkpoint
from wal.storage.journal.control import ControlRecord
from wal.storage.journal.index import SegmentIndex
from wal.storage.journal.layout import SegmentHeader
from wal.storage.journal.lineage_file import LINEAGE_NAME, decode_lineage
from wal.storage.journal.reader import JournalReader
from wal.storage.journal.segmented_log import SegmentedLog
from wal.storage.journal.segments import IndexCache, Segment

FETCH_BYTES: Final = 4 << 20
"""The most bytes of a log that one request asks for, before compression; a larger frame is fetched whole."""
CACHE_BLOCKS: Final = 64
_GAP_BLOCKS: Final = 1
"""Wanted blocks that are at most this far apart are fetched with one request."""
_PAGE_BYTES_MAX: Final = 8 << 20
_HINT_BYTES: Final = 32
_TRIES: Final = 3
_T = TypeVar("_T")


class EmptyArchiveError(FormatError):
    """The store has no manifest."""


class Archive:
    """The archive in a store. Its calls block; thread-safe. `manifest` is set from `open` on.

    With `as_of`, a tick, it is the archive as of this tick: it has no later events, and ends there.
    """

    manifest: Manifest

    def __init__(self, store: BackupStore, *, poll_s: float, as_of: int | None) -> None:
        self.store: BackupStore = store
        self.as_of: int | None = as_of
        self.cache: BlockCache = BlockCache(store)
        self._poll_s = poll_s
        self._looked_at = float("-inf")
        self._stored_at_s = 0.0
        self._looking = threading.Lock()

    def open(self) -> None:
        """Finds the manifest. Raises FormatError without a backup, or for a newer version, CorruptionError if the newest is damaged."""
        with self._looking:
            self._find(0)

    @property
    def is_open(self) -> bool:
        """Whether a manifest was found."""
        return hasattr(self, "manifest")

    def look(self, *, now: bool = False) -> bool:
        """Looks for a newer manifest unless the last look was within `poll_s`, or at once (`now`). Returns whether there is one."""
        with self._looking:
            if not now and (self.as_of is not None or time.monotonic() < self._looked_at + self._poll_s):
                return False
            before = self.manifest
            self._find(before.number)
            return self.manifest is not before

    @property
    def tick(self) -> int:
        """The tick up to which the archive has every event."""
        return self.manifest.tick if self.as_of is None else min(self.as_of, self.manifest.tick)

    def _find(self, known: int) -> None:
        """Finds the wanted manifest; `known` is the number of an earlier one, 0 without one."""
        recent = known or self._hint()
        times = self.store.names(PREFIX, after=manifest_name(recent - 1) if recent else "")
        if self.as_of is not None or not numbered(times):
            times = self.store.names(PREFIX)
        names = numbered(times)
        if not names:
            raise EmptyArchiveError(f"{self.store.place} holds no backup: name where `wal backup` writes")
        at = len(names) - 1
        if self.as_of is not None:
            low, high = 0, at
            while low < high:  # the first manifest that reaches the tick
                middle = (low + high) // 2
                if load_manifest(self.store, names[middle][1]).tick >= self.as_of:
                    high = middle
                else:
                    low = middle + 1
            at = low
        number, name = names[at]
        if (number, times[name]) != (known, self._stored_at_s):  # of this number may be one of another archive, put in its place
            try:
                self.manifest = load_manifest(self.store, name)
            except FileNotFoundError as error:
                raise CorruptionError(f"{self.store.place}/{name} is missing", path=f"{self.store.place}/{name}", offset=0) from error
            self._stored_at_s = times[name]
        self._looked_at = time.monotonic()

    def _hint(self) -> int:
        try:
            data = self.store.get(NEWEST, _HINT_BYTES)
        except (FileNotFoundError, CorruptionError):
            return 0
        return int(data) if data.isdigit() else 0


class ReadOnlyArchiveLog(SegmentedLog):
    """One pchannel's log in an archive that is open.

    `cut(view, tick)` returns a frame without its events above a tick, None if nothing is left.
    """

    refresh_waits = True
    _segments: ArchiveSegments

    def __init__(self, archive: Archive, pchannel: str, cut: Callable[[FrameView, int], EncodedFrame | None]) -> None:
        self._archive = archive
        self._cut = cut
        copy = archive.manifest.pchannels[pchannel]
        self._segments = ArchiveSegments(archive, pchannel)
        lineage = Lineage(copy.incarnation)
        if (chunk := copy.files.get(LINEAGE_NAME)) is not None:
            lineage = decode_lineage(fetch(archive.store, chunk), Path(chunk.name), copy.incarnation)
        super().__init__(pchannel, copy.incarnation, lineage)
        self._reader = JournalReader(self._segments, pchannel=pchannel, incarnation=copy.incarnation, earliest=lambda: self.earliest)
        self._edge: tuple[int, LogPosition | None, LogPosition | None] | None = None

    def refresh(self) -> LogSnapshot:
        """Returns the log as of the newest manifest, which is looked for now and then."""
        return self.reach()

    def reach(self) -> LogSnapshot:
        self._load()
        self._archive.look()
        return super().reach()

    def is_current(self) -> bool:
        """Returns whether the archive still has this log, which was not restored since."""
        copy = self._archive.manifest.pchannels.get(self.pchannel)
        return copy is not None and copy.incarnation == self.incarnation

    def page(self, start: int, end: int, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        page = self._found(lambda: super(ReadOnlyArchiveLog, self).page(start, end, names, bytes_max))
        straddling = self._straddling()
        if straddling is None or not page.frames or page.frames[-1].position != straddling[0]:
            return page
        return self._without_later(page, straddling)

    def newest_tick(self) -> int:
        return min(super().newest_tick(), self._archive.tick)

    def rows_page(self, request: RowsRequest) -> RowsPage | None:
        if (straddling := self._straddling()) is not None and request.end > straddling[0]:
            if request.start >= straddling[0]:
                return None
            request = msgspec.structs.replace(request, end=straddling[0])
        return self._found(lambda: super(ReadOnlyArchiveLog, self).rows_page(request))

    def last_events(self, start: int, names: frozenset[str]) -> tuple[int, dict[RunName, LogPosition]]:
        def ask() -> tuple[int, dict[RunName, LogPosition]]:
            record, _ = self._reach()
            first = self._segments.segments[0].base
            return max(start, first), self._reader.last_events(max(start, first), record.durable, names)

        return self._found(ask)

    def keyed_page(self, start: int, end: int, bytes_max: int) -> FramePage:
        return self._found(lambda: self._reader.keyed_page(start, end, bytes_max))

    def kept(self) -> tuple[LogPosition, LogPosition]:
        return self.earliest, (0, 0)

    def checkpoint_position(self) -> int | None:
        files = self._archive.manifest.pchannels[self.pchannel].files
        return max((position for name in files if (position := checkpoint_position(name)) is not None), default=None)

    def checkpoint_state(self, position: int) -> bytes | None:
        chunk = self._archive.manifest.pchannels[self.pchannel].files.get(checkpoint_name(position))
        return None if chunk is None else decode_checkpoint(fetch(self._archive.store, chunk), Path(chunk.name), position, self.lineage)

    def close(self) -> None:
        self._closed = True

    def _found(self, call: Callable[[], _T]) -> _T:
        """Returns the result of a call, which is repeated with a newer manifest if an object was removed meanwhile."""
        for _ in range(_TRIES):
            number = self._archive.manifest.number
            try:
                return call()
            except CorruptionError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                self._archive.look(now=True)
                if self._archive.manifest.number == number:
                    raise
        return call()

    def _copy(self) -> PChannelCopy:
        return self._archive.manifest.pchannels[self.pchannel]

    def _load(self) -> ControlRecord:
        if self._closed:
            raise closed_log(f"of pchannel {self.pchannel!r}")
        archive = self._archive
        copy = archive.manifest.pchannels.get(self.pchannel)
        if copy is None or copy.incarnation != self.incarnation:
            raise LogWentBackError(
                f"the log of pchannel {self.pchannel!r} in the archive was restored from a backup: open it again; positions of what the "
                "backup has stay valid"
            )
        durable = copy.end if archive.as_of is None else self._end_as_of()[0]
        return ControlRecord(
            copy.incarnation, copy.term, durable, copy.earliest, archive.tick, copy.limit, closed=archive.as_of is not None
        )

    def _reach(self) -> tuple[ControlRecord, LogPosition | None]:
        record = self._load()
        self._segments.follow()
        self._newest = self._copy().newest if self._archive.as_of is None else self._end_as_of()[1]
        return record, self._newest

    def _end_as_of(self) -> tuple[int, LogPosition | None, LogPosition | None]:
        """Returns the end of the log as of a tick, the newest event below it, and the position and the first index above the tick of a
        frame with events on both sides of it, None without one.
        """
        if self._edge is None:
            tick, copy = self._archive.tick, self._copy()
            self._segments.follow()
            end, newest, straddling = copy.end, copy.newest, None
            segments = self._segments.segments
            for segment, stop in reversed(list(zip(segments, [*(each.base for each in segments[1:]), copy.end], strict=True))):
                index = self._segments.index(segment)
                ordinal = next((at for at in range(len(index)) if index.first_ticks[at] > tick and index.indices[at]), len(index))
                end = index.positions[ordinal] if ordinal < len(index) else stop
                newest = index.last_event(0, ordinal) or segment.header.newest
                if ordinal and index.indices[ordinal - 1] and index.first_ticks[ordinal - 1] + index.indices[ordinal - 1] - 1 > tick:
                    count = tick + 1 - index.first_ticks[ordinal - 1]
                    straddling = index.positions[ordinal - 1], count
                    newest = index.positions[ordinal - 1], count - 1
                if ordinal or segment.header.promised_tick <= tick:
                    break
            self._edge = end, newest, straddling
        return self._edge

    def _straddling(self) -> LogPosition | None:
        return None if self._archive.as_of is None else self._end_as_of()[2]

    def _without_later(self, page: FramePage, straddling: LogPosition) -> FramePage:
        """Returns the page without the events above the tick of the archive in its last frame."""
        (whole, *_) = self._found(lambda: self._reader.page(straddling[0], straddling[0] + 1, None, 1)).frames
        frame = self._cut(whole.view, self._archive.tick)
        frames = page.frames[:-1]
        if frame is not None:
            data = b"".join(frame.buffers)
            header = FrameHeader.unpack(data, 0)
            body = header.head_bytes
            view = FrameView.decode(data[:body], lambda start, end: data[body + start : body + end], header=header)
            frames = [*frames, StoredFrame(whole.position, whole.next_position, view)]
        return FramePage(frames, page.next_position, self._end_as_of()[1], min(page.promised_tick, self._archive.tick))


class ArchiveSegments:
    """The objects of a pchannel as the segments of its log, one for each, in the order of the log (see `SegmentSource`)."""

    def __init__(self, archive: Archive, pchannel: str) -> None:
        self.segments: tuple[Segment, ...] = ()
        self._archive = archive
        self._pchannel = pchannel
        self._copy: PChannelCopy | None = None
        self._objects: dict[str, tuple[SegmentCopy, Chunk]] = {}
        self._ends: dict[str, Sequence[int]] = {}
        self._cache = IndexCache()
        self._lock = threading.Lock()
        self.follow()

    def follow(self) -> None:
        """Takes the objects of the archive's present manifest."""
        copy = self._archive.manifest.pchannels.get(self._pchannel)
        if copy is None or copy is self._copy:
            return
        with self._lock:
            segments: list[Segment] = []
            objects: dict[str, tuple[SegmentCopy, Chunk]] = {}
            promised_tick, newest = 0, None
            place = self._archive.store.place
            for segment in copy.segments:
                for chunk in segment.chunks:
                    base, index = segment.base + chunk.start, chunk.index
                    incarnation = copy.incarnation if index is None else index.incarnation
                    if index is not None:
                        promised_tick, newest = index.promised_tick, index.newest
                    header = SegmentHeader(incarnation, segment.generation, base, chunk.size, promised_tick=promised_tick, newest=newest)
                    name = f"{place}/{chunk.name}"
                    segments.append(Segment(Path(chunk.name), header, name))
                    if name not in self._objects:
                        self._cache.drop(base)
                    objects[name] = segment, chunk
            self._objects, self.segments, self._copy = objects, tuple(segments), copy

    def index(self, segment: Segment) -> SegmentIndex:
        """Returns the index of this object. Raises CorruptionError if it is damaged, FileNotFoundError if it is gone."""
        with self._lock:
            copy, chunk = self._object(segment)
            if (cached := self._cache.get(segment.base)) is not None and chunk.name in self._ends:
                return cached
        index = self._fetched(copy, chunk)
        with self._lock:
            if segment.label in self._objects:
                self._cache.keep(index.frames)
                self._ends[chunk.name] = index.block_ends
        return index.frames

    def remade(self, segment: Segment) -> SegmentIndex:
        """Raises CorruptionError: an object and its index that contradict each other are not repaired."""
        _, chunk = self._object(segment)
        raise damaged_index(self._archive.store, chunk, f"it contradicts the object {chunk.name}")

    def open(self, segment: Segment, index: SegmentIndex, ordinals: Sequence[int], bytes_max: int) -> ArchiveFile:
        """Opens an object for reading these frames, up to about `bytes_max` bytes of them."""
        _, chunk = self._object(segment)
        blocks: list[int] = []
        size, limit = 0, min(bytes_max, _PAGE_BYTES_MAX)
        for ordinal in ordinals:
            start = index.positions[ordinal] - segment.base
            stop = start + index.lengths[ordinal]
            first = max(start // BLOCK_BYTES, blocks[-1] + 1 if blocks else 0)
            blocks += range(first, stop // BLOCK_BYTES + 1)
            size += index.lengths[ordinal]
            if size >= limit:
                break
        return ArchiveFile(self._archive.cache, chunk, self._ends[chunk.name], blocks)

    def _object(self, segment: Segment) -> tuple[SegmentCopy, Chunk]:
        if (entry := self._objects.get(segment.label)) is None:
            raise FileNotFoundError(2, "a newer manifest does not have it", segment.label)
        return entry

    def _fetched(self, segment: SegmentCopy, chunk: Chunk) -> ObjectIndex:
        store = self._archive.store
        if chunk.index is not None:
            return fetch_index(store, segment, chunk)
        if (damage := self._archive.manifest.damage_in(self._pchannel, segment, chunk)) is not None:
            path = f"{store.place}/{chunk.name}"
            text = f"{path} is damaged: the log was when it was copied, {damage}"
            raise CorruptionError(text, path=path, offset=damage.offset - chunk.start, expected="what was written there")
        raise FormatError(
            f"{store.place}/{chunk.name} has no index, as an earlier version wrote it: `wal backup upgrade {store.place}` makes it readable"
        )


class ArchiveFile:
    """One object of a segment, open for reading; `wanted` are the blocks that will be read, in ascending order."""

    def __init__(self, cache: BlockCache, chunk: Chunk, block_ends: Sequence[int], wanted: list[int]) -> None:
        self.path: Path = Path(chunk.name)
        self._cache = cache
        self._chunk = chunk
        self._block_ends = block_ends
        self._wanted = wanted
        self._blocks: dict[int, bytes] = {}

    def read(self, length: int, offset: int) -> bytes:
        """Returns the bytes at this offset; fewer only where the object ends."""
        end = min(offset + length, self._chunk.size)
        if offset >= end:
            return b""
        first, last = offset // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        parts = [self._block(block, last) for block in range(first, last + 1)]
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        return data[offset - first * BLOCK_BYTES : end - first * BLOCK_BYTES]

    def read_into(self, buffers: Sequence[memoryview], offset: int) -> bool:
        """Fills these buffers with the bytes from this offset on; returns whether the object had that many."""
        total = sum(map(len, buffers))
        data, at = memoryview(self.read(total, offset)), 0
        if len(data) < total:
            return False
        for buffer in buffers:
            buffer[:] = data[at : at + len(buffer)]
            at += len(buffer)
        return True

    def close(self) -> None:
        """Forgets the blocks."""
        self._blocks.clear()

    def _block(self, block: int, last: int) -> bytes:
        """Returns a block; if it has to be fetched, the wanted ones after it, and those up to `last`, come with it."""
        if (data := self._blocks.get(block)) is None and (data := self._cache.get(self._chunk.name, block)) is None:
            stop, limit = block + 1, block + FETCH_BYTES // BLOCK_BYTES
            while stop <= last:
                stop += 1
            for number in self._wanted:
                if stop <= number <= stop + _GAP_BLOCKS and number < limit:
                    stop = number + 1
            self._blocks.update(self._cache.fetch(self._chunk, self._block_ends, block, stop))
            data = self._blocks[block]
        return data


class BlockCache:
    """The blocks of objects that were fetched last. Thread-safe."""

    def __init__(self, store: BackupStore) -> None:
        self._store = store
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str, block: int) -> bytes | None:
        """Returns a block, None if it has to be fetched."""
        with self._lock:
            if (data := self._blocks.get((name, block))) is not None:
                self._blocks.move_to_end((name, block))
            return data

    def fetch(self, chunk: Chunk, block_ends: Sequence[int], first: int, stop: int) -> dict[int, bytes]:
        """Fetches the blocks [first, stop) of an object with one request. Raises FileNotFoundError if it is gone."""
        count = -(-chunk.size // BLOCK_BYTES)
        stop = min(stop, count)
        if chunk.name.endswith(COMPRESSED):
            edges = [0, *block_ends][first : stop + 1]
        else:
            edges = [min(block * BLOCK_BYTES, chunk.size) for block in range(first, stop + 1)]
        data = self._store.get_range(chunk.name, edges[0], edges[-1])
        if len(data) != edges[-1] - edges[0]:
            raise self._damaged(chunk, edges[0] + len(data), "it ends there")
        blocks: dict[int, bytes] = {}
        for number, (start, end) in enumerate(pairwise(edges), first):
            part = data[start - edges[0] : end - edges[0]]
            if chunk.name.endswith(COMPRESSED):
                try:
                    part = expand(_zstd(), part, min(BLOCK_BYTES, chunk.size - number * BLOCK_BYTES))
                except CorruptionError as error:
                    raise self._damaged(chunk, start, str(error)) from error
            blocks[number] = part
        with self._lock:
            for number, part in blocks.items():
                self._blocks[chunk.name, number] = part
            while len(self._blocks) > CACHE_BLOCKS:
                self._blocks.popitem(last=False)
        return blocks

    def _damaged(self, chunk: Chunk, offset: int, what: str) -> CorruptionError:
        path = f"{self._store.place}/{chunk.name}"
        expected = f"{chunk.size} bytes with CRC32C {chunk.crc:#010x}"
        return CorruptionError(
            f"{path} is damaged at offset {offset}: {what}; expected {expected}", path=path, offset=offset, expected=expected
        )


def _zstd() -> Any:
    try:
        return load_zstd()
    except ImportError as error:
        raise FormatError(f"the archive has compressed objects: {error}") from error
