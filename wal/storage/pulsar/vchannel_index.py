"""VChannelIndex: which vchannels have frames in which extents of a log on Pulsar, sparse and bounded, so that reads pass over the rest.

How it works. The log from `start` on is divided into extents of at least `FRAMES_MIN` frames, each with a bitmap of the vchannels in it.
Beyond `EXTENTS_MAX` extents, or `BITMAP_BYTES_MAX` of all bitmaps together, neighbours are merged and extents become twice as long: the
index never grows further, and gets coarser with the log. A read passes over a hole, a row of extents without its vchannels, if it is long
enough to be worth another reader of the topic, or reaches the end. So it fetches its own frames, the rest of the extents at both ends of
each run, and holes that are short.

Guarantees: a frame with a vchannel of the read, or for every reader, is never in a hole. Frames outside the index, before `start`, from
`end` on, or in a gap, may have any vchannels. Names count, not incarnations.

The writer of a log keeps it, and stores it with each checkpoint; a log without a stored one begins a new index. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable
from itertools import zip_longest
from typing import Final

import msgspec

from wal.errors import CorruptionError, corruption
from wal.message import LogPosition

FRAMES_MIN: Final = 64
EXTENTS_MAX: Final = 1024
BITMAP_BYTES_MAX: Final = 1 << 19
"""512 KiB: 4,096 vchannels in each of 1,024 extents."""
NAMES_MAX: Final = 1 << 17
"""With more names than this, a new index is begun: this one would be larger than its savings."""
HOLE_MIN: Final = 2 * FRAMES_MIN
"""The frames of a hole that are cheaper to pass over than to fetch: another reader of the topic takes some milliseconds."""
_VERSION: Final = 1
_ANYTHING: Final = 1
"""The bit of an extent that may have frames for every reader."""


class _Extent(msgspec.Struct):
    """The extent that begins at `start`. `last_event` and `promised_tick` are those of the whole log up to its end."""

    start: int
    frames: int
    members: int
    last_event: LogPosition | None
    promised_tick: int


class _StoredIndex(msgspec.Struct, array_like=True):
    """An index as it is stored. Positions have more than 64 bits, so they are bytes."""

    version: int
    end: bytes
    grain: int
    names: list[str]
    extents: list[tuple[bytes, int, bytes, bytes, int, int]]
    """start, frames, members, position and index of the last event (index -1: none), promised tick"""


class Hole(msgspec.Struct, frozen=True, gc=False):
    """No frame up to `end` is for the reader. `last_event` and `promised_tick`: the state of the log there."""

    end: int
    last_event: LogPosition | None
    promised_tick: int


class VChannelIndex:
    """See the top of the file. Frames are added in the order of the log."""

    def __init__(self) -> None:
        self.end: int | None = None
        """The position after the newest frame that was added; None before any."""
        self._grain = FRAMES_MIN
        self._extents: list[_Extent] = []
        self._starts: list[int] = []
        self._numbers: dict[str, int] = {}
        """The bit of each vchannel, from 1 on."""
        self._bytes = 0

    @property
    def start(self) -> int | None:
        """The position at which the index begins, or None."""
        return self._starts[0] if self._starts else None

    def begin(self, position: int) -> None:
        """Begins a new part of the index: the next frame that is added follows this position. Frames between `end` and this position are
        unknown.
        """
        if self.end is None:
            self.end = position
        elif position > self.end:
            self._open(self.end)
            self._extents[-1].members = _ANYTHING
            self._extents[-1].frames = self._grain
            self._bytes += 1
            self.end = position

    def passed(self, position: int) -> None:
        """Reports that all frames below this position were added."""
        if self.end is not None:
            self.end = max(self.end, position)

    def add(self, position: int, names: Iterable[str], *, indices: int, promised_tick: int, for_all: bool = False) -> None:
        """Adds the frame at this position, with events of these vchannels and this many indices, unless it was added before.

        `for_all`: every reader has to see it.
        """
        if self.end is None:
            self.end = position
        elif position < self.end:
            return
        if not self._extents or self._extents[-1].frames >= self._grain:
            self._open(self.end)
        extent, numbers = self._extents[-1], self._numbers
        members = before = extent.members
        for name in names:
            number = numbers.get(name)
            if number is None:
                number = numbers[name] = len(numbers) + 1
            members |= 1 << number
        if for_all:
            members |= _ANYTHING
        extent.members = members
        extent.frames += 1
        if indices:
            extent.last_event = (position, indices - 1)
        extent.promised_tick = max(extent.promised_tick, promised_tick)
        self._bytes += _size(members) - _size(before)
        self.end = position + 1
        while len(self._extents) > EXTENTS_MAX or (self._bytes > BITMAP_BYTES_MAX and len(self._extents) > 1):
            self._merge()
        if len(numbers) > NAMES_MAX:
            self._extents, self._starts, self._numbers, self._bytes = [], [], {}, 0

    def drop_below(self, position: int) -> None:
        """Forgets the extents that end at or below this position."""
        count = max(bisect_right(self._starts, position) - 1, 0)
        if count:
            self._bytes -= sum(_size(extent.members) for extent in self._extents[:count])
            del self._extents[:count], self._starts[:count]

    def hole(self, start: int, end: int, names: Collection[str]) -> Hole | None:
        """Returns the hole at `start` for a read of these vchannels up to `end`, or None if frames are to be fetched there."""
        at = self._at(start)
        if at is None:
            return None
        mask, extents = self._wanted(names), self._extents
        following, frames = at, 0
        while following < len(extents) and not mask & extents[following].members:
            frames += extents[following].frames
            following += 1
        assert self.end is not None
        if following == len(extents) and end >= self.end:
            stop = self.end
        else:
            following = min(following, bisect_right(self._starts, end) - 1)
            stop = self._starts[following] if following > at else start
            if frames < HOLE_MIN and stop < end:
                return None
        if stop <= start:
            return None
        last = extents[following - 1]
        return Hole(stop, last.last_event, last.promised_tick)

    def run_end(self, start: int, end: int, names: Collection[str]) -> int:
        """Returns where the fetching of a read that has no hole at `start` ends: at the next hole, or at `end`."""
        at = self._at(start)
        if at is None:
            return end if self.start is None or self.start <= start else min(end, self.start)
        mask, extents = self._wanted(names), self._extents
        hole, frames = None, 0
        for number in range(at, len(extents)):
            if self._starts[number] >= end:
                return end
            if mask & extents[number].members:
                hole, frames = None, 0
                continue
            hole, frames = (number if hole is None else hole), frames + extents[number].frames
            if frames >= HOLE_MIN and hole > at:
                return self._starts[hole]
        assert self.end is not None
        if hole is not None and hole > at and end >= self.end:
            return self._starts[hole]
        return end

    def encode(self) -> bytes:
        """Returns the bytes to store. Names that no extent has are left out."""
        used = 0
        for extent in self._extents:
            used |= extent.members
        names = [name for name, number in self._numbers.items() if used >> number & 1]
        moves = [] if len(names) == len(self._numbers) else [self._numbers[name] for name in names]
        extents = [
            (
                _bytes(extent.start),
                extent.frames,
                _bytes(_moved(extent.members, moves)),
                _bytes(extent.last_event[0] if extent.last_event else 0),
                extent.last_event[1] if extent.last_event else -1,
                extent.promised_tick,
            )
            for extent in self._extents
        ]
        return _encoder.encode(_StoredIndex(_VERSION, _bytes(self.end or 0), self._grain, names, extents))

    @classmethod
    def decode(cls, data: bytes) -> VChannelIndex:
        """Returns the index in these bytes. Raises CorruptionError for any other content or version."""
        with corruption("the index of vchannels cannot be read", expected="an index of vchannels"):
            stored = _decoder.decode(data)
        if stored.version != _VERSION:
            raise CorruptionError(f"the index of vchannels has version {stored.version}", expected=str(_VERSION))
        index = cls()
        if stored.extents:
            index.end = _number(stored.end)
        index._grain = stored.grain
        index._extents = [
            _Extent(_number(start), frames, _number(members), None if at < 0 else (_number(event), at), tick)
            for start, frames, members, event, at, tick in stored.extents
        ]
        index._starts = [extent.start for extent in index._extents]
        index._numbers = {name: number for number, name in enumerate(stored.names, 1)}
        index._bytes = sum(_size(extent.members) for extent in index._extents)
        return index

    def _at(self, position: int) -> int | None:
        """Returns the number of the extent with this position; None outside the index."""
        if self.end is None or not self._starts or not self._starts[0] <= position < self.end:
            return None
        return bisect_right(self._starts, position) - 1

    def _wanted(self, names: Collection[str]) -> int:
        numbers, mask = self._numbers, _ANYTHING
        for name in names:
            if (number := numbers.get(name)) is not None:
                mask |= 1 << number
        return mask

    def _open(self, start: int) -> None:
        newest = self._extents[-1] if self._extents else None
        last_event, tick = (None, 0) if newest is None else (newest.last_event, newest.promised_tick)
        self._extents.append(_Extent(start, 0, 0, last_event, tick))
        self._starts.append(start)

    def _merge(self) -> None:
        """Merges neighbours; extents are twice as long from now on too."""
        merged: list[_Extent] = []
        for first, second in zip_longest(self._extents[::2], self._extents[1::2]):
            if second is not None:
                first.frames += second.frames
                first.members |= second.members
                first.last_event, first.promised_tick = second.last_event, second.promised_tick
            merged.append(first)
        self._grain *= 2
        self._extents, self._starts = merged, [extent.start for extent in merged]
        self._bytes = sum(_size(extent.members) for extent in merged)


def _size(bitmap: int) -> int:
    return (bitmap.bit_length() + 7) // 8


def _bytes(number: int) -> bytes:
    return number.to_bytes(_size(number), "little")


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _moved(members: int, moves: list[int]) -> int:
    """Returns a bitmap with the bits `moves` at 1, 2 and so on; without moves, the same one."""
    if not moves:
        return members
    # Digits, not shifts: a shift copies the whole bitmap, and a checkpoint moves thousands of bits in each of a thousand of them.
    digits = f"{members:b}"[::-1].ljust(max(moves) + 1, "0")
    moved = "".join(map(digits.__getitem__, moves))
    return members & _ANYTHING | int(moved[::-1], 2) << 1


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_StoredIndex)
