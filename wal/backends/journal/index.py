"""SegmentIndex: where the frames of one segment lie and which vchannels each of them holds. Pure.

Owns: a few numbers a frame in arrays, the ordinals of the frames of each vchannel and of those with keyed events, and the bytes of
`<base:016x>.idx`. It answers what a reader or a recovery needs before it touches the segment itself: which frames to fetch, how far a
stretch goes, its newest event and its largest promise. It is derived: whatever it says can be had again from the segment.

One thread adds while others ask: a reader passes ordinals below those of frames known to be durable, and arrays only grow.

    <base:016x>.idx   magic "WALX" | version u32 | incarnation u64 | generation u64 | base u64 | end u64 | last_term u64 |
                      last_sequence i64 | frames u32 | wide u32 | keyed u32 | names u32 | names_len u32
                      a column each: position u64, first_tick u64, promise u64, length u32, head_len u32, indices u32
                      ordinals (u32 each) of the frames for every reader, then of those with keyed events
                      for each name: name_len u16, frames u32; names; ordinals
                      crc32c u32 of everything before it

An index of version 1 did not know keyed events; it counts as missing, and is made again from the segment.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

import google_crc32c

from wal.backends.journal.layout import HEADER_PAGE_BYTES, slot_bytes
from wal.errors import CorruptionError
from wal.frame import KEYED, FrameHeader, FrameView, RunKind

__all__ = ["SegmentIndex", "index_name"]


class SegmentIndex:
    """The frames of the segment with this base, in order; `end` is the position behind the last one."""

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
    )

    def __init__(self, base: int) -> None:
        self.base = base
        self.end = base + HEADER_PAGE_BYTES
        self.last: tuple[int, int] | None = None
        """(term, sequence) of the last frame, None when there is no frame."""
        self.positions = array("Q")
        self.first_ticks = array("Q")
        self.promises = array("Q")
        self.lengths = array("I")
        self.head_lens = array("I")
        self.indices = array("I")
        self._names: dict[str, array[int]] = {}
        self._wide = array("I")
        self._keyed = array("I")

    def __len__(self) -> int:
        return len(self.positions)

    def add(self, position: int, header: FrameHeader, names: Iterable[str], *, pchannel_wide: bool) -> None:
        """The next frame of the segment; a name may repeat."""
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
        if header.compatible & KEYED:
            self._keyed.append(ordinal)
        length = header.frame_bytes
        self.first_ticks.append(header.first_tick)
        self.promises.append(header.promise)
        self.lengths.append(length)
        self.head_lens.append(header.head_bytes)
        self.indices.append(header.indices)
        self.last = (header.term, header.sequence)
        self.end = position + slot_bytes(length)
        self.positions.append(position)

    def add_view(self, position: int, view: FrameView) -> None:
        """The next frame, from its decoded head."""
        runs = list(view.runs)
        names = [run.name for run in runs if run.kind in _NAMED]
        wide = len(names) < len(runs) and any(run.kind == RunKind.PCHANNEL for run in runs)
        self.add(position, view.header, names, pchannel_wide=wide)

    def ordinal(self, position: int) -> int:
        """The ordinal of the first frame at or after this position."""
        return bisect_left(self.positions, position)

    def wanted(self, names: frozenset[str] | None, first: int, end: int) -> list[int]:
        """The ordinals in [first, end) of the frames that a reader of these names has to see; all for None."""
        if names is None:
            return list(range(first, end))
        rows = [self._wide, *[row for name in names if (row := self._names.get(name)) is not None]]
        stretches = [stretch for row in rows if (stretch := row[bisect_left(row, first) : bisect_left(row, end)])]
        if len(stretches) == 1:
            return list(stretches[0])
        return sorted(set().union(*stretches))

    def keyed(self, first: int, end: int) -> list[int]:
        """The ordinals in [first, end) of the frames that hold keyed events."""
        row = self._keyed
        return list(row[bisect_left(row, first) : bisect_left(row, end)])

    def last_event(self, first: int, end: int) -> tuple[int, int] | None:
        """(position, index) of the newest event in the frames [first, end)."""
        for ordinal in range(end - 1, first - 1, -1):
            if count := self.indices[ordinal]:
                return self.positions[ordinal], count - 1
        return None

    def promise(self, first: int, end: int) -> int:
        """The largest promise of the frames [first, end), 0 for none."""
        return max(self.promises[first:end], default=0)

    def memory_bytes(self) -> int:
        """About what this index takes in memory."""
        return (
            36 * len(self)
            + 4 * (len(self._wide) + len(self._keyed))
            + sum(4 * len(row) + 200 for row in list(self._names.values()))
        )

    def encode(self, *, incarnation: int, generation: int) -> bytes:
        """The bytes of the index file. No frame is added while it runs."""
        names = [name.encode() for name in self._names]
        rows = list(self._names.values())
        term, sequence = self.last or (0, -1)
        head = _HEAD.pack(
            _MAGIC,
            _VERSION,
            incarnation,
            generation,
            self.base,
            self.end,
            term,
            sequence,
            len(self),
            len(self._wide),
            len(self._keyed),
            len(names),
            sum(map(len, names)),
        )
        data = b"".join(
            (
                head,
                *map(_pack, (self.positions, self.first_ticks, self.promises)),
                *map(_pack, (self.lengths, self.head_lens, self.indices, self._wide, self._keyed)),
                struct.pack(f"<{len(names)}H{len(names)}I", *map(len, names), *map(len, rows)),
                *names,
                *map(_pack, rows),
            )
        )
        return data + _CRC.pack(google_crc32c.value(data))

    @classmethod
    def decode(cls, data: bytes, *, base: int, incarnation: int, generation: int) -> SegmentIndex:
        """The index in these bytes. Damage, another version, or the index of another segment is a CorruptionError."""
        if len(data) < _HEAD.size + _CRC.size:
            raise CorruptionError(
                f"an index of {len(data)} bytes is cut short", expected=f"{_HEAD.size} bytes of header"
            )
        body = data[: -_CRC.size]
        (crc,) = _CRC.unpack_from(data, len(body))
        if google_crc32c.value(body) != crc:
            raise CorruptionError("an index does not match its CRC32C", expected=f"{crc:#010x}")
        magic, version, *identity, end, term, sequence, frames, wide, keyed, names, names_len = _HEAD.unpack_from(body)
        if (magic, version) != (_MAGIC, _VERSION) or identity != [incarnation, generation, base]:
            raise CorruptionError("an index belongs to another segment", expected=f"generation {generation:#x}")
        index = cls(base)
        index.end = end
        index.last = (term, sequence) if frames else None
        at = _HEAD.size
        index.positions, at = _unpack("Q", body, at, frames)
        index.first_ticks, at = _unpack("Q", body, at, frames)
        index.promises, at = _unpack("Q", body, at, frames)
        index.lengths, at = _unpack("I", body, at, frames)
        index.head_lens, at = _unpack("I", body, at, frames)
        index.indices, at = _unpack("I", body, at, frames)
        index._wide, at = _unpack("I", body, at, wide)
        index._keyed, at = _unpack("I", body, at, keyed)
        counts = struct.unpack_from(f"<{names}H{names}I", body, at)
        at += names * 6
        text, name_at = body[at : at + names_len], 0
        at += names_len
        for length, count in zip(counts[:names], counts[names:], strict=True):
            name = text[name_at : name_at + length].decode()
            name_at += length
            index._names[name], at = _unpack("I", body, at, count)
        return index


_HEAD: Final = struct.Struct("<4sIQQQQQqIIIII")
_CRC: Final = struct.Struct("<I")
_MAGIC: Final = b"WALX"
_VERSION: Final = 2
_NAMED: Final = frozenset((int(RunKind.VCHANNEL), int(RunKind.COPY)))
assert array("I").itemsize == 4
assert array("Q").itemsize == 8


def index_name(base: int) -> str:
    """The file name of the index of the segment with this base."""
    return f"{base:016x}.idx"


def _pack(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()


def _unpack(code: str, data: bytes, at: int, count: int) -> tuple[array[int], int]:
    column = array(code)
    end = at + count * column.itemsize
    column.frombytes(data[at:end])
    if sys.byteorder == "big":
        column.byteswap()
    return column, end
