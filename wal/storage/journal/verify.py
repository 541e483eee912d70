"""Verification: every checksum of a journal at or below its durable end, and that its files agree with each other.

`verify_journal` reads each file of the directory once, and yields a `Damage` for each difference from what was written, by file and offset.
It checks the header page of each segment, each envelope, frame and its padding, the seal after the last frame, the chain of segments,
terms, sequences and ticks; the stored indexes, checkpoints, lineage and control pages. It owns no file and takes no lock but a reader's
shared flock on a segment. It needs no writer, and runs beside one: files that are truncated or replaced meanwhile are left out. It never
changes anything. Bytes above the durable end, spare files and reserves have no meaning, and are not read.

A frame is decoded whole, as a reader of all its vchannels decodes it; a frame that is not damaged but contradicts the one before it is a
Damage too. After a broken frame, verification continues at the next envelope of the segment.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import google_crc32c
import msgspec

from wal.errors import CorruptionError, FormatError, StorageError, WALError
from wal.frame import FrameHeader, FrameView, check_frame
from wal.message import Lineage
from wal.storage.files import FORMAT_NAME, MAP_NAME
from wal.storage.journal.archived_file import ARCHIVED_NAME, load_start
from wal.storage.journal.checkpoint import load_checkpoint
from wal.storage.journal.control import CONTROL_BYTES, CONTROL_NAME, FENCE_NAME, ControlRecord, ControlView
from wal.storage.journal.directory import check_format
from wal.storage.journal.disk import Disk
from wal.storage.journal.index import SegmentIndex, index_name
from wal.storage.journal.layout import (
    ENVELOPE_BYTES,
    HEADER_FIELDS_BYTES,
    HEADER_PAGE_BYTES,
    SECTOR_BYTES,
    Envelope,
    SegmentHeader,
    segment_name,
    slot_bytes,
)
from wal.storage.journal.lineage_file import load_lineage
from wal.storage.journal.segments import open_shared, segment_bases

_CHUNK_BYTES: Final = 2 << 20
"""The bytes of one read: a larger piece does not stay in the caches of a processor until its checksums are computed."""
_SLOT_BYTES: Final = len(ControlRecord(0, 0, 0, (0, 0), 0, 0, closed=False).pack(0))
_CHECKED_PARTS: Final = (
    (0, _SLOT_BYTES, "a slot"),
    (SECTOR_BYTES, _SLOT_BYTES, "a slot"),
    (2 * SECTOR_BYTES, 24, "the boot id"),
    (4 * SECTOR_BYTES, 20, "the intent to truncate"),
    (5 * SECTOR_BYTES, 32, "the start in the archive"),
)
"""The parts of a control page that end with their CRC32C: offset, length and name."""
_CONTROL_TRIES: Final = 100
LOST_CONTROL: Final = "it is missing, and the log was opened: it had a control page"


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a file that differs from what was written. `kind` names the kind of the file: "segment", "index", "checkpoint", …"""

    path: str
    offset: int
    problem: str
    kind: str


class VerifyProgress(msgspec.Struct):
    """The progress of a verification, for display: bytes read, and to be read in all; frames that were checked."""

    bytes_done: int = 0
    bytes_total: int = 0
    frames: int = 0


def verify_journal(directory: Path, progress: VerifyProgress, *, sample: float = 1.0) -> Iterator[Damage]:
    """Yields the damage in this journal. With a `sample` below 1 it reads this part of the sealed segments, evenly spread, and all else.

    Raises FormatError for a directory that is not a journal or has a newer version, StorageError for a file that cannot be read.
    """
    try:
        check_format(directory)
    except CorruptionError as error:
        yield _damage(error, directory / FORMAT_NAME, "format")
    names = {path.parent.name for name in (CONTROL_NAME, FENCE_NAME, MAP_NAME) for path in directory.glob(f"pchannels/*/{name}")}
    logs = [_Log(directory / "pchannels" / name) for name in sorted(names)]
    for log in logs:
        yield from log.load()
        progress.bytes_total += log.bytes_total(sample)
    for log in logs:
        yield from log.verify(progress, sample)


def check_frames(
    path: Path, header: SegmentHeader, read: Callable[[int, int], bytes], *, begin: int, end: int
) -> tuple[SegmentIndex, list[Damage]]:
    """Returns an index of the sound frames of a segment between the offsets `begin` and `end`, at both of which a frame begins or the log
    ends, and the damage there.

    `read(length, offset)` returns bytes of the segment, fewer only where it ends; the offsets that it is called with never descend.
    """
    checked = _SegmentCheck(path, header, header.base + end, VerifyProgress(), sealed=False, after=None, last=None, begin=begin)
    damages = list(checked.frames(read))
    return checked.index, damages


class FramesCheck:
    """Checks the frames of a segment that an index has, one after the other. Tables are not parsed, as `check_frames` does for several
    times the processor time.
    """

    def __init__(self, header: SegmentHeader) -> None:
        self._header = header
        self._last: tuple[int, int] | None = None
        self._tick = header.promised_tick

    def are_sound(self, data: bytes, offset: int, index: SegmentIndex, start: int) -> bool:
        """Returns whether the bytes of the segment from `offset` on have the frames of this index, from the position `start` on, as they
        were written: each checksum and the padding, after the frames of the call before.
        """
        columns = index.positions, index.lengths, index.head_lens, index.indices, index.first_ticks, index.promises
        first = index.ordinal(start)
        for position, length, *fields in zip(*[column[first:] for column in columns], strict=True):
            at = position - self._header.base - offset
            envelope = Envelope.unpack(data, at, generation=self._header.generation, position=position)
            begin, slot_end = at + ENVELOPE_BYTES, at + slot_bytes(length)
            if envelope is None or envelope.length != length or _first_byte(data, begin + length, slot_end) >= 0:
                return False
            try:
                frame = check_frame(data, begin)
            except WALError:
                return False
            if [frame.head_bytes, frame.indices, frame.first_tick, frame.promised_tick] != fields or frame.frame_bytes != length:
                return False
            if (self._last is not None and not _follows(frame, *self._last)) or (frame.indices and frame.first_tick <= self._tick):
                return False
            self._last = frame.term, frame.sequence
            self._tick = max(self._tick, frame.promised_tick)
        return True


class _Log:
    """The files of one pchannel."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._disk = Disk()
        self._record: ControlRecord | None = None
        self._lineage: Lineage | None = None

    def load(self) -> Iterator[Damage]:
        """Reads the control page, the lineage and the start in an archive; yields the damage in them."""
        path = self._directory / CONTROL_NAME
        try:
            view = ControlView(path)
        except FileNotFoundError:
            # A writer that recreates a log removes its page last, so that the signs of an opened log are gone by then.
            if any((self._directory / name).exists() for name in (FENCE_NAME, MAP_NAME)):
                yield Damage(path=str(path), offset=0, problem=LOST_CONTROL, kind="control" if segment_bases(self._directory) else "log")
            return
        except CorruptionError as error:
            yield _damage(error, path, "control")
            return
        try:
            self._record = view.load()
            if view.map_noted and not (self._directory / MAP_NAME).exists():
                yield Damage(path=str(self._directory / MAP_NAME), offset=0, problem="it is missing, and was written once", kind="map")
        except CorruptionError as error:
            yield _damage(error, path, "control")
        finally:
            view.close()
        yield from _control_damage(path)
        if self._record is not None:
            try:
                self._lineage = load_lineage(self._directory, self._record.incarnation)
            except CorruptionError as error:
                yield _damage(error, self._directory / "lineage", "lineage")
        try:
            load_start(self._directory)
        except CorruptionError as error:
            yield _damage(error, self._directory / ARCHIVED_NAME, ARCHIVED_NAME)

    def bytes_total(self, sample: float) -> int:
        """Returns the approximate number of bytes to read."""
        record = self._record
        if record is None:
            return 0
        return int(max(0, record.durable - record.earliest[0]) * sample)

    def verify(self, progress: VerifyProgress, sample: float) -> Iterator[Damage]:
        record = self._record
        if record is None:
            return
        yield from self._checkpoints()
        try:
            bases = segment_bases(self._directory)
        except FormatError as error:
            yield _damage(error, self._directory, "segment")
            return
        durable, earliest = record.durable, record.earliest[0]
        stored_bases = [base for base in bases if base < durable or base == bases[0]]
        if not stored_bases or stored_bases[0] > earliest:
            yield Damage(
                path=str(self._directory), offset=0, kind="segment",
                problem=f"the segment that holds position {earliest}, the earliest event, is missing",
            )  # fmt: skip
        headers: dict[int, SegmentHeader] = {}
        for base in stored_bases:
            for damage in self._header(base, headers):
                if not self._is_gone(base, stored_bases):
                    yield damage
        last: tuple[int, int] | None = None
        every = max(1, round(1 / sample))
        for number, (base, following) in enumerate(pairwise([*stored_bases, 0])):
            header, after = headers.get(base), headers.get(following) if following else None
            if following and after is not None and header is not None:
                for problem in _chain(header, after):
                    yield Damage(path=str(self._path(following)), offset=0, kind="segment", problem=problem)
            if header is None or (following and number % every):
                last = None
                continue
            end = min(durable, following or durable)
            checked = _SegmentCheck(self._path(base), header, end, progress, sealed=bool(following), after=after, last=last)
            damages = list(self._whole(checked))
            damages += self._index(checked)
            if damages and self._is_gone(base, stored_bases):
                continue
            yield from damages
            last = checked.last

    def _whole(self, checked: _SegmentCheck) -> Iterator[Damage]:
        try:
            file = open_shared(self._disk, checked.path)
            try:
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
                yield from checked.frames(file.read)
            finally:
                file.close()
        except FileNotFoundError:
            yield Damage(path=str(checked.path), offset=0, problem="the file is missing", kind="segment")
        except OSError as error:
            raise StorageError(f"{checked.path} cannot be read: {error.strerror or error}") from error

    def _path(self, base: int) -> Path:
        return self._directory / segment_name(base)

    def _is_gone(self, base: int, held: list[int]) -> bool:
        """Returns whether this segment was truncated since the verification began, so that the log no longer needs it."""
        view = ControlView(self._directory / CONTROL_NAME)
        try:
            earliest = view.load().earliest[0]
        except WALError:
            return False
        finally:
            view.close()
        assert self._record is not None
        at = held.index(base)
        return earliest > self._record.earliest[0] and at + 1 < len(held) and held[at + 1] <= earliest

    def _header(self, base: int, headers: dict[int, SegmentHeader]) -> Iterator[Damage]:
        path = self._path(base)
        try:
            file = self._disk.open(path, write=False)
        except FileNotFoundError:
            yield Damage(path=str(path), offset=0, problem="the file is missing", kind="segment")
            return
        try:
            page, size = file.read(HEADER_PAGE_BYTES, 0), file.size()
        finally:
            file.close()
        try:
            header = SegmentHeader.unpack(page)
        except (CorruptionError, FormatError) as error:
            yield _damage(error, path, "segment")
            return
        headers[base] = header
        if (at := _first_byte(page, HEADER_FIELDS_BYTES)) >= 0:
            yield Damage(path=str(path), offset=at, problem="the padding of the header page is not zero", kind="segment")
        if page[12:16] != bytes(4):
            yield Damage(path=str(path), offset=12, problem="the padding of the header page is not zero", kind="segment")
        if header.base != base:
            yield Damage(path=str(path), offset=0, problem=f"its header has base {header.base:#x}", kind="segment")
        if size < header.size:
            yield Damage(path=str(path), offset=size, problem=f"it has {size} bytes; expected {header.size}", kind="segment")
        if self._lineage is not None and not self._lineage.covers(header.incarnation, base):
            yield Damage(path=str(path), offset=0, problem=f"it is of incarnation {header.incarnation:#x}", kind="segment")

    def _index(self, checked: _SegmentCheck) -> Iterator[Damage]:
        path = self._directory / index_name(checked.header.base)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error
        header = checked.header
        try:
            stored = SegmentIndex.decode(data, base=header.base, incarnation=header.incarnation, generation=header.generation)
        except CorruptionError as error:
            yield _damage(error, path, "index")
            return
        if (valid_bytes := _index_bytes(data)) < len(data):
            yield Damage(path=str(path), offset=valid_bytes, problem="a part of the index does not match its CRC32C", kind="index")
        if not checked.is_whole:
            return
        end = min(stored.end, checked.index.end)
        count = stored.ordinal(end)
        names = [frozenset((name,)) for name in {*stored.names(), *checked.index.names()}]
        same = all(stored.wanted(name, 0, count) == checked.index.wanted(name, 0, count) for name in names)
        if not same or not stored.same_frames(checked.index, end):
            yield Damage(path=str(path), offset=0, problem="it contradicts the segment", kind="index")

    def _checkpoints(self) -> Iterator[Damage]:
        if self._lineage is None:
            return
        for path in sorted(self._directory.glob("checkpoint-" + "[0-9a-f]" * 16)):
            try:
                load_checkpoint(self._directory, int(path.name.removeprefix("checkpoint-"), 16), lineage=self._lineage)
            except CorruptionError as error:
                yield _damage(error, path, "checkpoint")


class _SegmentCheck:
    """The check of one segment up to `end`. Afterwards `index` has its frames, `last` (term, sequence) of the last one, and `is_whole` is
    True if every frame was sound.
    """

    def __init__(
        self,
        path: Path,
        header: SegmentHeader,
        end: int,
        progress: VerifyProgress,
        *,
        sealed: bool,
        after: SegmentHeader | None,
        last: tuple[int, int] | None,
        begin: int = HEADER_PAGE_BYTES,
    ) -> None:
        self.path = path
        self.header = header
        self.index: SegmentIndex = SegmentIndex(header.base)
        self.last: tuple[int, int] | None = last
        self.is_whole: bool = True
        self._begin = begin
        self._end = end
        self._progress = progress
        self._sealed = sealed
        self._after = after
        self._tick = 0

    def frames(self, read: Callable[[int, int], bytes]) -> Iterator[Damage]:
        """Yields the damage in the frames. Raises what `read` raises."""
        base, end = self.header.base, self._end
        if self.last is not None and self.last != (self.header.previous_term, self.header.previous_sequence):
            yield self._found(0, f"it continues frame {self.header.previous_sequence} of term {self.header.previous_term}, not {self.last}")
        if self._begin == HEADER_PAGE_BYTES:
            self.last = (self.header.previous_term, self.header.previous_sequence)
        self._tick = self.header.promised_tick
        offset, data, start = self._begin, b"", 0
        while base + offset < end:
            at = offset - start
            need = ENVELOPE_BYTES if len(data) - at < ENVELOPE_BYTES else 0
            if not need:
                envelope = Envelope.unpack(data, at, generation=self.header.generation, position=base + offset)
                need = 0 if envelope is None else slot_bytes(envelope.length)
            if len(data) - at < max(need, ENVELOPE_BYTES):
                data, start, at = read(max(need, _CHUNK_BYTES), offset), offset, 0
                if len(data) < ENVELOPE_BYTES:
                    yield self._found(offset, f"the log ends here; expected frames up to {end}")
                    return
            envelope = Envelope.unpack(data, at, generation=self.header.generation, position=base + offset)
            if envelope is None or envelope.length == 0:
                yield self._found(offset, "no frame begins here; expected an envelope")
                offset = self._resume(read, offset)
                data, start = b"", offset
                if offset < 0:
                    return
                continue
            slot = slot_bytes(envelope.length)
            if len(data) - at < slot:
                data, start, at = read(max(slot, _CHUNK_BYTES), offset), offset, 0
            problem = self._frame(data, at, envelope, offset)
            if problem is not None:
                yield self._found(*problem)
                following = self._resume(read, offset)
                self._progress.bytes_done += (following if following >= 0 else end - base) - offset
                offset = following
                if offset < 0:
                    return
                continue
            self._progress.frames += 1
            self._progress.bytes_done += slot
            offset += slot
        if self._sealed and offset + ENVELOPE_BYTES <= self.header.size:
            seal = read(ENVELOPE_BYTES, offset)
            envelope = Envelope.unpack(seal, 0, generation=self.header.generation, position=base + offset)
            if envelope is None or envelope.length:
                yield self._found(offset, "the seal of the segment is damaged; expected an envelope of length 0")
        if self._after is not None and self.is_whole and self.last != (self._after.previous_term, self._after.previous_sequence):
            yield self._found(
                offset, f"the next segment continues frame {self._after.previous_sequence} of term {self._after.previous_term}"
            )

    def _frame(self, data: bytes, at: int, envelope: Envelope, offset: int) -> tuple[int, str] | None:
        """Checks the frame after this envelope and adds it to the index; returns the offset of the damage in the file and the problem."""
        first, stop = at + ENVELOPE_BYTES, at + ENVELOPE_BYTES + envelope.length
        slot_end = at + slot_bytes(envelope.length)
        if len(data) < slot_end:
            return offset, f"the frame is cut short: {len(data) - at} of {slot_end - at} bytes"
        if (padded := _first_byte(data, stop, slot_end)) >= 0:
            return offset + padded - at, "the padding of a frame is not zero"
        try:
            header = FrameHeader.unpack(data, first)
            if header.frame_bytes != envelope.length:
                return offset, f"a frame of {header.frame_bytes} bytes stands in an envelope for {envelope.length}"
            body = first + header.head_bytes
            view = FrameView.decode(data[first:body], lambda begin, end: data[body + begin : body + end], header=header)
            view.check_body()
        except WALError as error:
            return offset, str(error)
        if self.last is not None:
            term, sequence = self.last
            if self.is_whole and not _follows(header, term, sequence):
                return offset, f"frame {header.sequence} of term {header.term} follows frame {sequence} of term {term}"
        if header.indices and header.first_tick <= self._tick:
            return offset, f"a frame begins with tick {header.first_tick}, not above the promised tick {self._tick} before it"
        self.last = header.term, header.sequence
        self._tick = max(self._tick, header.promised_tick)
        self.index.add_view(self.header.base + offset, view)
        return None

    def _resume(self, read: Callable[[int, int], bytes], offset: int) -> int:
        """Returns the offset of the next frame after a broken one, or -1."""
        stop = min(self.header.size, self._end - self.header.base)
        for at in range(offset + SECTOR_BYTES, stop, _CHUNK_BYTES):
            data = read(min(_CHUNK_BYTES, stop - at), at)
            next_frame = Envelope.find(data, generation=self.header.generation, base=self.header.base, offset=at)
            if next_frame >= 0:
                return next_frame
        return -1

    def _found(self, offset: int, problem: str) -> Damage:
        self.is_whole = False
        return Damage(path=str(self.path), offset=offset, problem=problem, kind="segment")


def _follows(header: FrameHeader, term: int, sequence: int) -> bool:
    """Returns whether a frame may be the next one after the frame of this term and sequence."""
    return header.sequence == sequence + 1 if header.term == term else header.term > term and header.sequence == 0


def _chain(header: SegmentHeader, after: SegmentHeader) -> Iterator[str]:
    if after.previous_base != header.base or not 0 <= after.base - header.base <= header.size:
        yield f"it follows the segment at {after.previous_base:#x}; expected the segment at {header.base:#x}: one between them is missing"


def _control_damage(path: Path) -> Iterator[Damage]:
    """Yields the damage in the parts and the padding of a control page. A store in progress breaks a part for an instant only."""
    damages: list[Damage] = []
    for _ in range(_CONTROL_TRIES):
        page = path.read_bytes()[:CONTROL_BYTES]
        damages = []
        for at, length, name in _CHECKED_PARTS:
            part = page[at : at + length]
            if part.strip(b"\0") and google_crc32c.value(part[:-4]) != struct.unpack("<I", part[-4:])[0]:
                damages.append(Damage(path=str(path), offset=at, problem=f"{name} does not match its CRC32C", kind="control"))
        marks = sorted([(at, length) for at, length, _ in _CHECKED_PARTS] + [(3 * SECTOR_BYTES, 4)])
        for (begin, used), (end, _) in pairwise([*marks, (CONTROL_BYTES, 0)]):
            if (bad := _first_byte(page, begin + used, end)) >= 0:
                damages.append(Damage(path=str(path), offset=bad, problem="the padding of the control page is not zero", kind="control"))
        if page[3 * SECTOR_BYTES : 3 * SECTOR_BYTES + 4] not in (b"WALV", bytes(4)):
            damages.append(Damage(path=str(path), offset=3 * SECTOR_BYTES, problem="the note about the map is damaged", kind="control"))
        if not damages:
            return
    yield from damages


def _first_byte(data: bytes, start: int, end: int | None = None) -> int:
    """Returns where the first byte other than zero is in data[start:end], or -1."""
    part = data[start:end]
    if not part or part.count(0) == len(part):
        return -1
    return start + len(part) - len(part.lstrip(b"\0"))


def _index_bytes(data: bytes) -> int:
    """Returns the number of bytes of a stored index that are parts with matching CRCs."""
    at = 0
    while at < len(data):
        if len(data) - at < 24:
            break
        (length,) = struct.unpack_from("<Q", data, at + 8)
        if not 24 <= length <= len(data) - at:
            break
        (crc,) = struct.unpack_from("<I", data, at + length - 4)
        if google_crc32c.value(data[at : at + length - 4]) != crc:
            break
        at += length
    return at


def _damage(error: WALError, path: Path, kind: str) -> Damage:
    offset = error.offset if isinstance(error, CorruptionError) and error.offset is not None else 0
    return Damage(path=str(path), offset=offset, problem=str(error), kind=kind)
