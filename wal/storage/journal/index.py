"""SegmentIndex: the positions of the frames of one segment, and the vchannels in each of them. Pure.

Owns: a few numbers per frame in arrays, the ordinals of the frames of each vchannel and of the frames with keyed events, and the bytes of
`<base:016x>.idx`. A reader or a recovery asks it before it reads the segment itself: which frames to fetch, where an extent ends, its
newest event and its largest promised tick. An index is derived: all of it can be recomputed from the segment.

One thread adds frames while others query: a reader passes ordinals of frames known to be durable, and arrays only grow.

    <base:016x>.idx   one part for all of a sealed segment; while a segment is written, parts one after the other, each with the frames
                      after those of the part before it; an invalid part ends the index there
      part            magic "WALX" | version u32 | length u64 (of the part) | incarnation u64 | generation u64 | base u64 | end u64 |
                      last_term u64 | last_sequence i64 | first u32 (ordinal) | frames u32 | wide u32 | keyed u32 | names u32 |
                      names_len u32
                      a column each: position u64, first_tick u64, promise u64, length u32, head_len u32, indices u32
                      ordinals (u32 each) of the frames for every reader, then of those with keyed events
                      for each name: name_len u16, frames u32; names; ordinals
                      crc32c u32 of everything before it in the part

An index of version 1 has no keyed events; it counts as missing, and is recomputed from the segment.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Collection, Container, Iterable, Sequence
from itertools import accumulate, islice, pairwise
from operator import gt, lt
from typing import Final

import google_crc32c
import msgspec

from wal.errors import CorruptionError
from wal.frame import HEADER_BYTES, RECOVERED, FrameHeader, FrameView, RunKind
from wal.storage.base import Unread
from wal.storage.journal.layout import ENVELOPE_BYTES, HEADER_PAGE_BYTES, SECTOR_BYTES, slot_bytes

PART_HEAD: Final = struct.Struct("<4sIQQQQQQqIIIIII")
PART_CRC: Final = struct.Struct("<I")
_SLOT_ROUND: Final = ENVELOPE_BYTES + SECTOR_BYTES - 1
_FRAME_BYTES: Final = 36
"""The bytes of one frame in all columns."""
PART_MAGIC: Final = b"WALX"
PART_VERSION: Final = 2


class StoredPart:
    """The content of one stored part, read whole and checked before an index takes it over.

    A matching CRC proves that the part is unchanged, not that a journal wrote it. So each count and length is checked against the bytes,
    each frame against the one before it, and each ordinal against the frames.
    """

    def __init__(self, start: int, first: int, frames: int, wide: int, keyed: int, names: int, names_len: int) -> None:
        self._start = start
        self._first = first
        self._frames = frames
        self._counts = (wide, keyed, names, names_len)
        self.columns: list[array[int]] = []
        self.wide: array[int] = array("I")
        self.keyed: array[int] = array("I")
        self.rows: dict[str, array[int]] = {}

    def read(self, body: bytes, end: int) -> None:
        """Reads the part whose bytes, without their CRC, are `body`, and whose last frame ends at `end`. Raises CorruptionError."""
        frames, (wide, keyed, names, names_len) = self._frames, self._counts
        counts_at = PART_HEAD.size + frames * _FRAME_BYTES + 4 * (wide + keyed)
        text_at = counts_at + 6 * names
        rows_at = text_at + names_len
        if rows_at > len(body):
            raise _inconsistent(f"its counts ask for {rows_at} bytes", f"at most the {len(body)} that it has")
        counts = struct.unpack_from(f"<{names}H{names}I", body, counts_at)
        name_lens, row_lens = counts[:names], counts[names:]
        if rows_at + 4 * sum(row_lens) != len(body) or sum(name_lens) != names_len:
            raise _inconsistent("the lengths of its names and rows", f"together the {len(body)} bytes that it has")
        at = PART_HEAD.size
        for form in "QQQIII":
            at = self._take_column(form, body, at)
        self.wide, at = _unpack("I", body, at, wide)
        self.keyed, at = _unpack("I", body, at, keyed)
        self._check_frames(end)
        self._read_rows(body[text_at:rows_at], name_lens, body, rows_at, row_lens)
        for row in (self.wide, self.keyed, *self.rows.values()):
            self._check_ordinals(row)

    def _take_column(self, form: str, body: bytes, at: int) -> int:
        column, at = _unpack(form, body, at, self._frames)
        self.columns.append(column)
        return at

    def _read_rows(self, text: bytes, name_lens: Sequence[int], body: bytes, at: int, row_lens: Sequence[int]) -> None:
        try:
            names = [text[start:end].decode() for start, end in pairwise(accumulate(name_lens, initial=0))]
        except UnicodeDecodeError as error:
            raise _inconsistent(f"its names are not UTF-8: {error}", "UTF-8") from error
        for name, count in zip(names, row_lens, strict=True):
            self.rows[name], at = _unpack("I", body, at, count)
        if len(self.rows) != len(names) or not all(row_lens):
            raise _inconsistent("a name has two rows, or one without a frame", "one row for each name")

    def _check_frames(self, end: int) -> None:
        """Checks that the frames follow each other without a gap, and that none is shorter than its head."""
        positions, first_ticks, _, lengths, head_lens, indices = self.columns
        # This is `slot_bytes` of each frame, without a call for each of many thousands.
        ends = [at + (length + _SLOT_ROUND & -SECTOR_BYTES) for at, length in zip(positions, lengths, strict=True)]
        if [self._start, *ends] != [*positions, end]:
            raise _inconsistent("its frames do not follow each other", f"frames from {self._start} to {end}")
        if any(map(gt, head_lens, lengths)) or min(head_lens, default=HEADER_BYTES) < HEADER_BYTES:
            raise _inconsistent("a head is shorter than a header, or longer than its frame", f"{HEADER_BYTES} bytes up")
        if max(first_ticks, default=0) + max(indices, default=0) > 1 << 64:
            raise _inconsistent("a frame has ticks above 64 bits", "ticks of 64 bits")

    def _check_ordinals(self, row: array[int]) -> None:
        first, stop = self._first, self._first + self._frames
        if row and (row[0] < first or row[-1] >= stop or not all(map(lt, row, islice(row, 1, None)))):
            raise _inconsistent("the ordinals of its frames do not ascend", f"ordinals from {first} up to {stop}")


def _inconsistent(actual: str, expected: str) -> CorruptionError:
    return CorruptionError(f"an index contradicts itself: {actual}", expected=expected)


def pack_column(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()


def _unpack(form: str, data: bytes, at: int, count: int) -> tuple[array[int], int]:
    """Returns the column of `count` entries at `at`, and its end; the caller has checked that the bytes are there."""
    column = array(form)
    end = at + count * column.itemsize
    column.frombytes(data[at:end])
    if sys.byteorder == "big":
        column.byteswap()
    return column, end


class IndexPart(msgspec.Struct, frozen=True, gc=False):
    """The frames [first, stop) of an index, as they are stored: `end` is the position after them, `last` (term, sequence) of the last
    one."""

    first: int
    stop: int
    end: int
    last: tuple[int, int] | None


class SegmentIndex:
    """The frames of the segment with this base, in order; `end` is the position after the last one."""

    __slots__ = (
        "_keyed",
        "_names",
        "_wide",
        "base",
        "end",
        "first_ticks",
        "head_lens",
        "indices",
        "last",
        "lengths",
        "positions",
        "promises",
        "runs",
    )

    def __init__(self, base: int, start: int | None = None) -> None:
        """`start`: the position of the first frame, None for the one after the header page of a segment."""
        self.base: int = base
        self.end: int = base + HEADER_PAGE_BYTES if start is None else start
        self.last: tuple[int, int] | None = None
        """(term, sequence) of the last frame, None without a frame."""
        self.runs: int = 0
        """The runs of all frames that were added here, without those of a stored index."""
        self.positions: array[int] = array("Q")
        self.first_ticks: array[int] = array("Q")
        self.promises: array[int] = array("Q")
        self.lengths: array[int] = array("I")
        self.head_lens: array[int] = array("I")
        self.indices: array[int] = array("I")
        self._names: dict[str, array[int]] = {}
        self._wide = array("I")
        self._keyed = array("I")

    def __len__(self) -> int:
        return len(self.positions)

    def add(self, position: int, header: FrameHeader, names: Iterable[str], *, pchannel_wide: bool) -> None:
        """Adds the next frame of the segment; a name may repeat."""
        ordinal = len(self.positions)
        index = self._names
        for name in names:
            ordinals = index.get(name)
            if ordinals is None:
                index[name] = array("I", (ordinal,))
            elif ordinals[-1] != ordinal:
                ordinals.append(ordinal)
        if pchannel_wide:
            self._wide.append(ordinal)
        if header.compatible & RECOVERED:
            self._keyed.append(ordinal)
        length = header.frame_bytes
        self.first_ticks.append(header.first_tick)
        self.promises.append(header.promised_tick)
        self.lengths.append(length)
        self.head_lens.append(header.head_bytes)
        self.indices.append(header.indices)
        self.runs += header.runs
        self.last = (header.term, header.sequence)
        self.end = position + slot_bytes(length)
        self.positions.append(position)

    def add_view(self, position: int, view: FrameView) -> None:
        """Adds the next frame from its decoded head."""
        runs = list(view.runs)
        names = [run.name for run in runs if run.kind in _NAMED]
        wide = len(names) < len(runs) and any(run.kind == RunKind.PCHANNEL for run in runs)
        self.add(position, view.header, names, pchannel_wide=wide)

    def ordinal(self, position: int) -> int:
        """Returns the ordinal of the first frame at or after this position."""
        return bisect_left(self.positions, position)

    def wanted(self, names: frozenset[str] | None, first: int, end: int) -> list[int]:
        """Returns the ordinals in [first, end) of the frames that a reader of these names needs; all of them for None."""
        if names is None:
            return list(range(first, end))
        rows = [self._wide, *[row for name in names if (row := self._names.get(name)) is not None]]
        extents = [extent for row in rows if (extent := _cut(row, first, end))]
        if len(extents) == 1:
            return list(extents[0])
        return sorted(set().union(*extents))

    def unread_for(self, names: frozenset[str], start: tuple[int, int], end: int) -> Unread:
        """Returns a summary of the frames below `end` that contain one of these names, at or after the event `start`."""
        first, stop, below = self.ordinal(start[0]), self.ordinal(end), 0
        if first < stop and self.positions[first] == start[0]:
            below = start[1]
            if below >= self.indices[first]:
                first, below = first + 1, 0  # the events of this frame are all below
        rows = [row for name in names if (row := self._names.get(name)) is not None]
        ordinals = set().union(*(_cut(row, first, stop) for row in rows))
        if not ordinals:
            return Unread(0, 0)
        oldest = min(ordinals)
        below = below if oldest == first else 0
        events = sum(self.indices[ordinal] for ordinal in ordinals) - below
        return Unread(sum(self.lengths[ordinal] for ordinal in ordinals), events, self.first_ticks[oldest] + below)

    def newest(self, names: Container[str] | None, first: int, end: int) -> list[int]:
        """Returns the ordinals in [first, end) of the newest frame there of each of these vchannels; of every one for None."""
        ordinals: set[int] = set()
        for name, row in list(self._names.items()):  # a copy, because names may be added meanwhile
            if (names is None or name in names) and (at := bisect_left(row, end)) and row[at - 1] >= first:
                ordinals.add(row[at - 1])
        return sorted(ordinals)

    def same_frames(self, other: SegmentIndex, end: int) -> bool:
        """Returns whether both indices have the same frames below this position."""
        count, others = self.ordinal(end), other.ordinal(end)
        return self.positions[:count] == other.positions[:others] and self.lengths[:count] == other.lengths[:others]

    def names(self) -> Collection[str]:
        """Returns the names of the vchannels in these frames, in the order of their first frames."""
        return self._names.keys()

    def names_in(self, first: int, end: int) -> list[str]:
        """Returns the names of the vchannels in the frames with the ordinals [first, end)."""
        return [name for name, row in self._names.items() if _cut(row, first, end)]

    def keyed(self, first: int, end: int) -> list[int]:
        """Returns the ordinals in [first, end) of the frames with keyed events."""
        return list(_cut(self._keyed, first, end))

    def last_event(self, first: int, end: int) -> tuple[int, int] | None:
        """Returns (position, index) of the newest event in the frames [first, end)."""
        for ordinal in range(end - 1, first - 1, -1):
            if count := self.indices[ordinal]:
                return self.positions[ordinal], count - 1
        return None

    def promise(self, first: int, end: int) -> int:
        """Returns the largest promised tick of the frames [first, end), 0 for no frames."""
        return max(self.promises[first:end], default=0)

    def cut(self, first: int, stop: int, *, base: int, start: int) -> SegmentIndex:
        """Returns an index of the frames with the ordinals [first, stop), which follow each other from position `start` on.

        `base` is its own. Afterwards `last` is unknown.
        """
        index = SegmentIndex(base, start)
        for name in ("positions", "first_ticks", "promises", "lengths", "head_lens", "indices"):
            getattr(index, name).extend(getattr(self, name)[first:stop])
        if first < stop:
            index.end = self.positions[stop - 1] + slot_bytes(self.lengths[stop - 1])
        index._wide, index._keyed = (_shifted(row, first, stop) for row in (self._wide, self._keyed))
        rows = {name: _shifted(row, first, stop) for name, row in list(self._names.items())}  # a copy, because names may be added meanwhile
        index._names = {name: row for name, row in rows.items() if row}
        return index

    def same_content(self, other: SegmentIndex) -> bool:
        """Returns whether both indices have the same content."""
        names = ("positions", "first_ticks", "promises", "lengths", "head_lens", "indices", "end", "_wide", "_keyed", "_names")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def memory_bytes(self) -> int:
        """Returns the approximate memory of this index in bytes."""
        return 36 * len(self) + 4 * (len(self._wide) + len(self._keyed)) + sum(4 * len(row) + 200 for row in list(self._names.values()))

    def part(self, first: int) -> IndexPart:
        """Returns the frames from this ordinal to the newest; only the thread that adds frames calls it."""
        return IndexPart(first, len(self), self.end, self.last)

    def encode(self, *, incarnation: int, generation: int, part: IndexPart | None = None) -> bytes:
        """Returns the bytes of this part, or of the whole index as one part (then no frame may be added while it runs)."""
        part = part or self.part(0)
        first, stop = part.first, part.stop
        wide, keyed = (_cut(row, first, stop) for row in (self._wide, self._keyed))
        names: list[bytes] = []
        rows: list[array[int]] = []
        for name in list(self._names):  # a copy, because names may be added meanwhile
            row = self._names[name]
            if row[-1] >= first and (row := _cut(row, first, stop)):
                names.append(name.encode())
                rows.append(row)
        term, sequence = part.last or (0, -1)
        columns = b"".join(
            (
                *[pack_column(column[first:stop]) for column in (self.positions, self.first_ticks, self.promises)],
                *[pack_column(column[first:stop]) for column in (self.lengths, self.head_lens, self.indices)],
                pack_column(wide),
                pack_column(keyed),
                struct.pack(f"<{len(names)}H{len(names)}I", *map(len, names), *map(len, rows)),
                *names,
                *map(pack_column, rows),
            )
        )
        head = PART_HEAD.pack(
            PART_MAGIC,
            PART_VERSION,
            PART_HEAD.size + len(columns) + PART_CRC.size,
            incarnation,
            generation,
            self.base,
            part.end,
            term,
            sequence,
            first,
            stop - first,
            len(wide),
            len(keyed),
            len(names),
            sum(map(len, names)),
        )
        data = head + columns
        return data + PART_CRC.pack(google_crc32c.value(data))

    @classmethod
    def decode(
        cls, data: bytes, *, base: int, incarnation: int, generation: int, end_max: int | None = None, start: int | None = None
    ) -> SegmentIndex:
        """Returns the index in these bytes, up to the first part that is invalid or passes `end_max`. `start` is that of `__init__`.

        Raises CorruptionError for a first part that is damaged, of another version or of another segment.
        """
        index = cls(base, start)
        identity = [incarnation, generation, base]
        at = 0
        while at < len(data) or not at:
            try:
                following = index._take(data, at, identity, end_max)
            except CorruptionError:
                if not at:
                    raise
                break
            if following is None:
                break
            at = following
        return index

    def _take(self, data: bytes, at: int, identity: list[int], end_max: int | None) -> int | None:
        """Adds the part at `at`; returns where the next one begins, or None when this one passes `end_max`."""
        if len(data) - at < PART_HEAD.size + PART_CRC.size:
            raise CorruptionError(f"an index of {len(data)} bytes is cut short", expected=f"{PART_HEAD.size} bytes of header")
        magic, version, length, *stored, end, term, sequence, first, frames, wide, keyed, names, names_len = PART_HEAD.unpack_from(data, at)
        if (magic, version) != (PART_MAGIC, PART_VERSION) or stored != identity or first != len(self):
            raise CorruptionError("an index belongs to another segment", expected=f"generation {identity[1]:#x}")
        if not PART_HEAD.size + PART_CRC.size <= length <= len(data) - at:
            raise CorruptionError(f"an index of {len(data)} bytes is cut short", expected=f"a part of {length} bytes")
        body = data[at : at + length - PART_CRC.size]
        (crc,) = PART_CRC.unpack_from(data, at + len(body))
        if google_crc32c.value(body) != crc:
            raise CorruptionError("an index does not match its CRC32C", expected=f"{crc:#010x}")
        if end_max is not None and end > end_max:
            return None
        part = StoredPart(self.end, first, frames, wide, keyed, names, names_len)
        part.read(body, end)
        self._extend(part)
        self.end = end
        if frames:
            self.last = (term, sequence)
        following: int = at + length
        return following

    def _extend(self, part: StoredPart) -> None:
        for column, more in zip(
            (self.positions, self.first_ticks, self.promises, self.lengths, self.head_lens, self.indices), part.columns, strict=True
        ):
            column.extend(more)
        self._wide.extend(part.wide)
        self._keyed.extend(part.keyed)
        for name, row in part.rows.items():
            if name in self._names:
                self._names[name].extend(row)
            else:
                self._names[name] = row


_NAMED: Final = frozenset((int(RunKind.VCHANNEL), int(RunKind.COPY)))
assert array("I").itemsize == 4
assert array("Q").itemsize == 8


def index_name(base: int) -> str:
    """Returns the file name of the index of the segment with this base."""
    return f"{base:016x}.idx"


def _cut(row: array[int], first: int, stop: int) -> array[int]:
    """Returns the ordinals in [first, stop)."""
    return row[bisect_left(row, first) : bisect_left(row, stop)]


def _shifted(row: array[int], first: int, stop: int) -> array[int]:
    """Returns the ordinals in [first, stop), counted from `first`."""
    return array("I", [ordinal - first for ordinal in _cut(row, first, stop)])
