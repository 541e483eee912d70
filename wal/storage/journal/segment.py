"""Segment: one file of the log, read frame by frame; everything that it returns is checked.

Owns: decoding a FrameView at (file, offset), for readers and for recovery: envelope, head, body. It never writes and never decides what
damage means; its CorruptionErrors name file and offset.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from wal.errors import CorruptionError, FormatError, InvalidArgumentError
from wal.frame import HEADER_BYTES, FrameHeader, FrameView
from wal.storage.journal.disk import Disk, JournalFile
from wal.storage.journal.index import SegmentIndex
from wal.storage.journal.layout import (
    ENVELOPE_BYTES,
    HEADER_PAGE_BYTES,
    SECTOR_BYTES,
    Envelope,
    SegmentHeader,
    segment_name,
    slot_bytes,
)

__all__ = ["Body", "ScanEnd", "Segment", "Window", "damaged", "segment_bases"]


class Segment(msgspec.Struct, frozen=True, gc=False):
    """A segment of the log: its path and its header."""

    path: Path
    header: SegmentHeader

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
                raise damaged(
                    CorruptionError(f"the file has {file.size()} bytes", expected=f"{header.size} bytes"), path, 0
                )
        finally:
            file.close()
        if path.name != segment_name(header.base):
            raise damaged(
                CorruptionError(f"its header says base {header.base:#x}", expected="the base in its name"), path, 0
            )
        return cls(path, header)

    def frame(self, window: Window, position: int, *, lazy: int = 0) -> tuple[FrameView, Body]:
        """Returns the frame at this position, its head checked (`lazy`: as in `FrameView.decode`), and the source of its body.

        Raises CorruptionError when there is no frame.
        """
        offset = position - self.base
        envelope = Envelope.unpack(
            window.get(offset, ENVELOPE_BYTES), 0, generation=self.header.generation, position=position
        )
        if envelope is None or envelope.length == 0:
            raise damaged(CorruptionError("no frame begins here", expected="an envelope"), self.path, offset)
        return self._view(window, offset, envelope, lazy=lazy)

    def frame_header(self, file: JournalFile, position: int) -> FrameHeader:
        """Returns the header of the frame at this position without checking its CRC. Raises CorruptionError when no frame begins there."""
        data = file.read(ENVELOPE_BYTES + HEADER_BYTES, position - self.base)
        envelope = Envelope.unpack(data, 0, generation=self.header.generation, position=position)
        if envelope is None or envelope.length == 0:
            raise damaged(
                CorruptionError("no frame begins here", expected="an envelope"), self.path, position - self.base
            )
        return FrameHeader.unpack(data, ENVELOPE_BYTES)

    def scan(self, file: JournalFile, index: SegmentIndex, *, bodies_from: int, until: int | None = None) -> ScanEnd:
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
            envelope = Envelope.unpack(
                window.get(offset, ENVELOPE_BYTES), 0, generation=self.header.generation, position=index.end
            )
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
                return ScanEnd(
                    offset, extent=min(slot, self.header.size - offset), broken=damaged(error, self.path, offset)
                )
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
            raise damaged(error, self.path, offset) from error


class ScanEnd(msgspec.Struct, frozen=True, gc=False):
    """Where a scan stopped: at `offset`, before a seal, before a `broken` frame that claims `extent` bytes, or before nothing."""

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
            raise InvalidArgumentError(
                "this run was not read with the page: name its vchannel in the read, or read with names=None"
            )
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

    def __init__(self, file: JournalFile, *, ahead: int = 0) -> None:
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


def read_header(file: JournalFile) -> SegmentHeader:
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
        raise FormatError(f"{directory} holds a .wal file whose name is no base of a segment: move it away") from error


def damaged(error: CorruptionError, path: Path, offset: int) -> CorruptionError:
    """Returns the error with file and offset in its text."""
    if error.path:
        return error
    text = f"{path} is damaged at offset {offset}: {error}; expected {error.expected or _UNSTATED}"
    return CorruptionError(text, path=str(path), offset=offset, expected=error.expected)


_HEADS_BYTES: Final = 64 << 10
_BODIES_BYTES: Final = 1 << 20
_UNSTATED: Final = "what was written there"
