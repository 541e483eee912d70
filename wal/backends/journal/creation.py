"""Creation: an empty log, made durably, over whatever an interrupted creation left.

Owns the order: first segment, then the control page, whose presence under a synced name says that the log is there. It never
touches a log that held a frame.
"""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

from wal.backends.journal.control import CONTROL_NAME, REPLACED_TERM, ControlPage, ControlRecord
from wal.backends.journal.disk import Disk
from wal.backends.journal.layout import HEADER_PAGE_BYTES, SECTOR_BYTES, Envelope, SegmentHeader, segment_name
from wal.backends.journal.preparer import ZEROS_SUFFIX, fill_with_zeros
from wal.backends.journal.segment import Segment, segment_bases
from wal.errors import CorruptionError, FormatError

__all__ = ["create_log"]


def create_log(disk: Disk, directory: Path, *, pchannel: str, incarnation: int, first_segment_bytes: int) -> None:
    """Makes an empty log in this directory, durably; FormatError when one that held a frame is there."""
    disk.make_directory(directory.parent)
    disk.make_directory(directory)
    if _held_a_frame(disk, directory):
        raise FormatError(f"{directory} already holds a log of pchannel {pchannel!r}: open it, or choose another name")
    control_path = directory / CONTROL_NAME
    if control_path.exists():
        with contextlib.closing(ControlPage(disk, control_path)) as control, control.locked():
            control.store(ControlRecord(incarnation, REPLACED_TERM, 0, (0, 0), 0, 0, closed=True))
    for path in list(directory.iterdir()):
        disk.unlink(path)
    header = SegmentHeader(incarnation, secrets.randbits(64), 0, first_segment_bytes)
    temporary = directory / f"first{ZEROS_SUFFIX}"
    file = disk.open(temporary, create=True)
    try:
        fill_with_zeros(file, header.size)
        file.write([header.pack()], 0)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, directory / segment_name(0))
    ControlPage.create(disk, control_path, ControlRecord(incarnation, 0, HEADER_PAGE_BYTES, (0, 0), 0, 0, closed=True))


def _held_a_frame(disk: Disk, directory: Path) -> bool:
    """Whether anything was ever appended here, as far as the files tell; damaged ones count as if."""
    control_path = directory / CONTROL_NAME
    if control_path.exists():
        with contextlib.closing(ControlPage(disk, control_path)) as control:
            record = control.load()
        if record is not None and (record.durable > HEADER_PAGE_BYTES or record.earliest != (0, 0)):
            return True
    bases = segment_bases(directory)
    if bases != [0]:
        return bool(bases)
    try:
        segment = Segment.load(disk, directory / segment_name(0))
    except CorruptionError:
        return True
    file = disk.open(segment.path, write=False)
    try:
        data = file.read(SECTOR_BYTES, HEADER_PAGE_BYTES)
    finally:
        file.close()
    envelope = Envelope.unpack(data, 0, generation=segment.header.generation, position=HEADER_PAGE_BYTES)
    return envelope is not None and envelope.length > 0
