"""Recovery: which files of the last writer are trusted, and what is repaired before the next writer begins.

Owns: opening a log in a higher term. All of it happens with the control page locked, after the term was raised there, so the last writer is
fenced and the files do not change meanwhile.

1. The control page: the newer valid slot. With no valid slot, the page is rebuilt from the segments: term and promised tick of the last
   frame, the earliest event at the start of the first segment, and no frame known to be durable.
2. The header chain, from the segment of the earliest event or that of the checkpoint, whichever is earlier: each header names the
   segment before it. A gap is an error. Segments below both are removed, as the last writer was about to do.
3. The last segment is scanned, from the end of its stored index if it has one. The bodies of frames at or below the durable
   position are not checked, whether the process or the machine stopped: each was synced before the control page recorded it, and readers
   check every block. A broken frame there, or one before a later valid envelope, is damage and an error. Any other broken frame is a
   torn tail: at most one frame was ever unsynced. If the machine still runs since the last writer opened the log, the control page
   is as that writer left it; then an envelope is searched only where a next frame could begin, else in the rest of the segment.
4. The directory is synced: a process that ended between naming a segment and this sync left it to the next opening. The torn tail is
   zeroed. The last accepted frame is written once more, because a failed sync may have left it in the page cache only, marked clean;
   then the segment is synced. Only after that are its frames shown.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

import msgspec

from wal.errors import CorruptionError
from wal.message import Lineage
from wal.storage.base import LogState, not_above, other_log
from wal.storage.files.links import check_only_name
from wal.storage.journal.active_segment import ActiveSegment
from wal.storage.journal.control import CONTROL_NAME, ControlPage, ControlRecord
from wal.storage.journal.disk import Disk, JournalFile
from wal.storage.journal.index import SegmentIndex, index_name
from wal.storage.journal.layout import SECTOR_BYTES, Envelope, segment_name, slot_bytes
from wal.storage.journal.lineage_file import load_lineage
from wal.storage.journal.preparer import SPARE_SUFFIX, ZEROS_SUFFIX, Spare
from wal.storage.journal.segments import ScanEnd, Segment, damaged, load_index, segment_bases

_SEARCH_BYTES: Final = 4 << 20
_SEARCH_SAME_BOOT_BYTES: Final = 8 << 20
"""More bytes than a frame has by default, so that the frame after a broken one begins within them."""


class RecoveredLog(msgspec.Struct, frozen=True, gc=False):
    """A log that is ready to be written: its state, its segments (the last one active), files that can become segments, and `leftovers`,
    large files of the last writer that can be removed later."""

    state: LogState
    control: ControlPage
    lineage: Lineage
    segments: tuple[Segment, ...]
    active: ActiveSegment
    spares: list[Spare]
    leftovers: list[Path]

    def close(self) -> None:
        self.active.file.close()
        self.control.close()


def recover_log(disk: Disk, directory: Path, *, pchannel: str, incarnation: int, term: int, checkpoint: int | None = None) -> RecoveredLog:
    """Takes over the log in this term; see the top of the file. `checkpoint`: see `LogBackend.open`."""
    control_path = directory / CONTROL_NAME
    bases = segment_bases(directory)
    lineage = load_lineage(directory, incarnation)
    if not bases and not control_path.exists():
        raise CorruptionError(f"{directory} holds no log of pchannel {pchannel!r}", path=str(directory), expected="a log")
    if not control_path.exists():
        disk.open(control_path, create=True).close()
    with contextlib.ExitStack() as undo:
        control = ControlPage(disk, control_path)
        undo.callback(control.close)
        with control.locked():
            record = control.load()
            before = record or _rebuilt(disk, directory)
            boot = disk.boot()
            search_bytes = _SEARCH_SAME_BOOT_BYTES if record is not None and control.is_of_boot(boot) else None
            # After a restore was recorded in the metadata, this opening is the first one to record it in the page.
            if before.incarnation != incarnation and lineage.since(before.incarnation) is None:
                raise other_log(pchannel, before.incarnation, incarnation, path=str(control_path))
            if term <= before.term:
                raise not_above(pchannel, before.term, term)
            control.store(msgspec.structs.replace(before, incarnation=incarnation, term=term, closed=False))
            control.own(pchannel, term)
            control.sync()
            segments = _chain(disk, directory, before, checkpoint, lineage)
            spares, leftovers = _tidy(disk, directory, before, segments)
            if not before.closed:
                disk.sync_directory(directory)  # the name of the last segment may still be in the kernel's memory only
            active, torn = _tail(disk, directory, before, segments[-1], checkpoint, search_bytes=search_bytes)
            undo.callback(active.file.close)
            state = _state(before, active, torn)
            control.store(
                msgspec.structs.replace(
                    before, incarnation=incarnation, term=term, closed=False, durable=state.end, promised_tick=state.promised_tick
                )
            )
            control.note_boot(boot)
        undo.pop_all()
    return RecoveredLog(state, control, lineage, segments, active, spares, leftovers)


def _state(before: ControlRecord, active: ActiveSegment, torn: int) -> LogState:
    """Returns the state of the log. After a crash, ticks up to the oracle's limit may have been promised to readers, because later stores
    may be lost."""
    index = active.index
    header = active.segment.header
    promised = max(header.promised_tick, index.promise(0, len(index)))
    promised_tick = max(before.promised_tick, promised, 0 if before.closed else before.limit)
    newest = index.last_event(0, len(index)) or header.newest
    term, sequence = index.last or (header.previous_term, header.previous_sequence)
    return LogState(index.end, term, sequence, promised_tick, before.earliest, before.closed, newest, torn)


def _chain(disk: Disk, directory: Path, before: ControlRecord, checkpoint: int | None, lineage: Lineage) -> tuple[Segment, ...]:
    """Returns the segments from the earliest event or the checkpoint on, after checking that each follows the one before; removes lower
    segments.
    """
    bases = segment_bases(directory)
    position = before.earliest[0] if checkpoint is None else min(before.earliest[0], checkpoint)
    first = max((i for i, base in enumerate(bases) if base <= position), default=-1)
    if first < 0:
        raise CorruptionError(
            f"the segment that holds position {position}, where the log or its recovery begins, is missing from {directory}",
            path=str(directory),
            expected=f"a segment with a base of at most {position:#x}",
        )
    for base in bases[:first]:
        disk.unlink(directory / segment_name(base))
        disk.unlink(directory / index_name(base))
    segments: list[Segment] = []
    for base in bases[first:]:
        segment = Segment.load(disk, directory / segment_name(base))
        header = segment.header
        if not lineage.covers(header.incarnation, base):
            raise damaged(
                CorruptionError(f"it is of incarnation {header.incarnation:#x}", expected=f"{lineage.incarnation:#x}"), segment.path, 0
            )
        if segments:
            previous = segments[-1].header
            if header.previous_base != previous.base or not 0 <= base - previous.base <= previous.size:
                raise damaged(
                    CorruptionError(
                        f"it follows the segment at {header.previous_base:#x}",
                        expected=f"the segment at {previous.base:#x}: one between them is missing",
                    ),
                    segment.path,
                    0,
                )
        segments.append(segment)
    return tuple(segments)


def _tidy(disk: Disk, directory: Path, before: ControlRecord, segments: tuple[Segment, ...]) -> tuple[list[Spare], list[Path]]:
    """Removes unfinished files of an earlier writer; returns the spare files if it closed the log, and large files that can be removed."""
    keep = {segment.base for segment in segments}
    spares: list[Spare] = []
    leftovers: list[Path] = []
    for path in sorted(directory.iterdir()):
        if path.suffix == SPARE_SUFFIX and before.closed and path.name.startswith(f"{before.term:016x}-"):
            spares.append(Spare(path, path.stat().st_size))
        elif path.suffix in (ZEROS_SUFFIX, SPARE_SUFFIX):
            leftovers.append(path)
        elif path.suffix == ".tmp" or (path.suffix == ".idx" and not any(path.name == index_name(base) for base in keep)):
            disk.unlink(path)
    return spares, leftovers


def _tail(
    disk: Disk, directory: Path, before: ControlRecord, segment: Segment, checkpoint: int | None, *, search_bytes: int | None
) -> tuple[ActiveSegment, int]:
    """Returns the last segment, cut after its last whole frame and synced, and how many torn bytes were cut. `search_bytes`: see `_cut`."""
    durable = max(before.durable, before.earliest[0], checkpoint or 0)
    stored = load_index(disk, directory, segment, end_max=durable)
    index = stored or SegmentIndex(segment.base)
    file = disk.open(segment.path)
    try:
        check_only_name(segment.path, os.fstat(file.fd))
        end = segment.scan(file, index, bodies_from=before.durable)
        if index.end < durable and stored is not None:  # the stored index may be wrong: the segment decides
            index = SegmentIndex(segment.base)
            end = segment.scan(file, index, bodies_from=before.durable)
        if index.end < durable:
            raise end.broken or damaged(
                CorruptionError("the log ends here", expected=f"frames up to position {durable}, which was durable"),
                segment.path,
                end.offset,
            )
        if not before.closed or end.broken is not None:
            _cut(file, segment, index, end, search_bytes)
        file.bypass_cache()
    except BaseException:
        file.close()
        raise
    return ActiveSegment(segment, file, index), 0 if end.broken is None else end.extent


def _cut(file: JournalFile, segment: Segment, index: SegmentIndex, end: ScanEnd, search_bytes: int | None) -> None:
    """Cuts off the tail if the `search_bytes` after it (None: the rest of the segment) have no valid envelope."""
    header = segment.header
    stop = header.size if search_bytes is None else min(header.size, end.offset + max(search_bytes, 2 * end.extent))
    for offset in range(end.offset + SECTOR_BYTES, stop, _SEARCH_BYTES):
        data = file.read(min(_SEARCH_BYTES, stop - offset), offset)
        later = Envelope.find(data, generation=header.generation, base=header.base, offset=offset)
        if later >= 0:
            raise end.broken or damaged(
                CorruptionError("no frame begins here", expected=f"a frame, since one follows at offset {later}"), segment.path, end.offset
            )
    if end.offset < header.size:
        file.write([bytes(end.extent)], end.offset)
    if len(index):
        offset = index.positions[-1] - segment.base
        file.write([file.read(slot_bytes(index.lengths[-1]), offset)], offset)
    file.sync()


def _rebuilt(disk: Disk, directory: Path) -> ControlRecord:
    """Returns the record rebuilt from the segments, for a control page without a valid slot."""
    bases = segment_bases(directory)
    if not bases:
        raise damaged(
            CorruptionError("neither slot is valid, and the log has no segment", expected="a control page"), directory / CONTROL_NAME, 0
        )
    segment = Segment.load(disk, directory / segment_name(bases[-1]))
    index = SegmentIndex(segment.base)
    file = disk.open(segment.path, write=False)
    try:
        segment.scan(file, index, bodies_from=segment.base)
    finally:
        file.close()
    header = segment.header
    term, _ = index.last or (header.previous_term, header.previous_sequence)
    return ControlRecord(header.incarnation, term, 0, (bases[0], 0), header.promised_tick, 0, closed=False)
