"""ReadOnlyJournal and ReadOnlyJournalLog: a journal that this process only reads, with or without an active writer.

They own the read-only mapping of each pchannel's control page, and the known part of its segments. They return the right bytes of durable
frames, or raise TruncatedError for frames that are gone; any other inconsistency is a CorruptionError. They never write, never create a
file, take no lock but the shared flock on a segment while they read it, and need no event loop: calls block, and any thread may call.
Without a writer, also after one was killed, the log ends at the durable position of the control page; it continues there when another
writer has opened it.

`absence` checks whether a directory is a journal, by its file `FORMAT` and the control page of a pchannel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from wal.errors import ClosedError, CorruptionError, FormatError, LogWentBackError, StorageError, TruncatedError, WALError, closed_log
from wal.frame import RunName
from wal.message import Lineage, LogPosition
from wal.storage.base import FramePage
from wal.storage.files import FORMAT_NAME, MAP_NAME, HeldDirectory, HeldNames
from wal.storage.journal.checkpoint import load_checkpoint, newest_checkpoint
from wal.storage.journal.control import CONTROL_NAME, FENCE_NAME, REPLACED_TERM, ControlRecord, ControlView
from wal.storage.journal.directory import check_format, is_being_written
from wal.storage.journal.disk import Disk
from wal.storage.journal.index import SegmentIndex
from wal.storage.journal.layout import segment_name
from wal.storage.journal.lineage_file import load_lineage
from wal.storage.journal.reader import JournalReader
from wal.storage.journal.segmented_log import SegmentedLog
from wal.storage.journal.segments import Segment, SegmentSet, damaged, extend_index, load_index, segment_bases

_T = TypeVar("_T")
_LogT = TypeVar("_LogT", bound="ReadOnlyJournalLog")
_CONTROL_PAGES: Final = f"pchannels/*/{CONTROL_NAME}"


def absence(directory: Path, *, remedy: str, waited_s: float = 0.0) -> FormatError | None:
    """Returns None if the directory is a journal that can be opened, else the error that names the missing part, with this remedy.

    `waited_s`: the time already spent waiting for a journal. Raises FormatError if no writer would create a journal there, because the path
    is a file or a journal of a newer version. Blocks.
    """
    try:
        if directory.exists() and not directory.is_dir():
            raise FormatError(f"{directory} is a file: name a directory for the journal")
        has_format = (directory / FORMAT_NAME).exists()
        if has_format:
            check_format(directory)
            if _pchannels(directory):
                return None
    except OSError as error:
        raise StorageError(f"{error.filename or directory} cannot be read: {error.strerror or error}") from error
    after = f"after waiting {waited_s:g} s for a process to open it for writing, " if waited_s else ""
    if has_format:
        return FormatError(f"{directory} holds a journal that was never opened for writing to the end: {after}it has no log; {remedy}")
    return FormatError(f"{directory} holds no journal: {after}it has no {FORMAT_NAME}; {remedy}")


def _pchannels(directory: Path) -> list[str]:
    """Returns the names of the pchannels with a control page, or with a fence or a map of vchannels, which prove that there was a page."""
    opened = [path for name in (FENCE_NAME, MAP_NAME) for path in directory.glob(f"pchannels/*/{name}")]
    names = [path.parent.name for path in directory.glob(_CONTROL_PAGES)]
    for sign in opened:
        path = sign.with_name(CONTROL_NAME)
        # A writer that recreates a log removes its page last, so that the sign is gone by then.
        if path.parent.name not in names and not path.exists() and sign.exists():
            expected = "the control page of a log that was opened"
            raise CorruptionError(
                f"{path} is missing; expected {expected}; it is made again when the log is opened for writing",
                path=str(path),
                offset=0,
                expected=expected,
            )
    return names


class ReadOnlyJournal:
    """The journal in a directory. Raises FormatError without a journal, or for a newer version."""

    def __init__(self, directory: Path, *, disk: Disk | None = None) -> None:
        self._directory = Path(directory)
        self._disk = Disk() if disk is None else disk
        _storage_errors(self._directory, lambda: check_format(self._directory))
        self.held: Final = _storage_errors(self._directory, lambda: HeldDirectory(self._directory))
        """The directory, open until `close`. Its check fails once the directory has been removed or replaced."""

    def pchannels(self) -> list[str]:
        """Returns the names of the pchannels with a log, in the order of their numbers. More may be added later.

        Raises CorruptionError for a pchannel that was opened once, and has lost its control page.
        """
        names = _storage_errors(self._directory, lambda: _pchannels(self._directory))
        return sorted(names, key=lambda name: (len(name), name))

    def open(self, pchannel: str, *, written: SegmentSet | None = None) -> ReadOnlyJournalLog:
        """Opens the log of this pchannel, in its writer's process with the segments that are `written`.

        Raises FormatError without a log, CorruptionError if its control page is damaged.
        """
        return self.open_as(partial(ReadOnlyJournalLog, written=written), pchannel)

    def open_as(self, make: Callable[..., _LogT], pchannel: str) -> _LogT:
        """Opens the log of this pchannel as `make`, a subclass of `ReadOnlyJournalLog`, does. Raises as `open` does."""
        return make(self._disk, self._directory / "pchannels" / pchannel, pchannel, within=self.held)

    def close(self) -> None:
        """Releases the directory; its logs must be closed first. Idempotent."""
        self.held.close()


class ReadOnlyJournalLog(SegmentedLog):
    """One pchannel's log in a journal, opened by `ReadOnlyJournal.open`."""

    refresh_waits = False

    def __init__(
        self, disk: Disk, directory: Path, pchannel: str, *, within: HeldNames | None = None, written: SegmentSet | None = None
    ) -> None:
        self.directory = directory
        self._disk = disk
        try:
            self._control = _storage_errors(directory, lambda: ControlView(directory / CONTROL_NAME))
        except FileNotFoundError as error:
            raise FormatError(
                f"{directory} holds no log of pchannel {pchannel!r}: it is created when the journal is opened for writing"
            ) from error
        try:
            record = self._control.load()
        except BaseException:
            self._control.close()
            raise
        # A writer that recreates the log first marks the old control page.
        self._held = HeldNames(within=within, released=self._load)
        self._held.watch(directory / CONTROL_NAME, self._control.status)
        self._lost: StorageError | None = None
        try:
            lineage = load_lineage(directory, record.incarnation)
        except BaseException:
            self._control.close()
            raise
        super().__init__(pchannel, record.incarnation, lineage)
        self._segments: SegmentSet = written or ReadOnlySegments(disk, directory, lineage=lineage)
        self._reader = JournalReader(self._segments, pchannel=pchannel, incarnation=record.incarnation, earliest=lambda: self.earliest)

    def check(self) -> None:
        """Checks that the mapped control page is still the file at its path; blocks for as long as a few `stat` calls take.

        Raises StorageError, now and at every later call on the log, if the directory was removed or replaced, and ClosedError if the writer
        recreated the log.
        """
        self._load()
        try:
            self._held.check()
        except StorageError as error:
            self._lost = error
            raise

    def is_current(self) -> bool:
        """Returns whether the log at this path is still the opened one; blocks for as long as a few `stat` calls take."""
        try:
            self._load()
        except WALError:
            return False
        return self._held.holds()

    def last_events(self, start: int, names: frozenset[str]) -> tuple[int, dict[RunName, LogPosition]]:
        with self._damage_or_loss():
            while True:
                record, _ = self._reach()
                first = segment_bases(self.directory)[0]
                begin = max(start, first)
                try:
                    return begin, self._held_reader(begin, record).last_events(begin, record.durable, names)
                except (CorruptionError, TruncatedError, FileNotFoundError):
                    if segment_bases(self.directory)[0] == first:
                        raise  # otherwise segments were freed while they were read

    def _held_reader(self, start: int, record: ControlRecord) -> JournalReader:
        """Returns the reader of the frames from `start` on, which may be truncated and stored only for a recovery."""
        if start >= self._segments.segments[0].base:
            return self._reader
        segments = ReadOnlySegments(self._disk, self.directory, lineage=self.lineage)
        segments.reach(record.durable, start)
        return JournalReader(segments, pchannel=self.pchannel, incarnation=self.incarnation, earliest=lambda: self.earliest)

    def kept(self) -> tuple[LogPosition, LogPosition]:
        intended = self._control.intended()
        earliest = self._load().earliest
        if intended > earliest and is_being_written(self.directory.parent.parent) is False:
            intended = 0, 0
        return earliest, intended

    def keyed_page(self, start: int, end: int, bytes_max: int) -> FramePage:
        with self._damage_or_loss():
            record, _ = self._reach()
            return self._held_reader(start, record).keyed_page(start, end, bytes_max)

    def checkpoint_position(self) -> int | None:
        return newest_checkpoint(self.directory)

    def checkpoint_state(self, position: int) -> bytes | None:
        with self._damage_or_loss():
            return load_checkpoint(self.directory, position, lineage=self.lineage)

    def check_map(self, *, missing: bool) -> None:
        """Raises CorruptionError for a map of vchannels that is missing, unless no map was ever written, or that belongs to another log.

        Raises the errors of `check` if the log was recreated or its directory replaced, which explains both.
        """
        self.check()
        if not missing or self._control.map_noted:
            path = self.directory / MAP_NAME
            damage = "it is missing" if missing else "it is the map of another log"
            expected = f"the map of the vchannels of incarnation {self.incarnation:x}"
            raise CorruptionError(
                f"{path} is damaged: {damage}; expected {expected}; it is written again when the log is opened for writing",
                path=str(path),
                offset=0,
                expected=expected,
            )

    def close(self) -> None:
        self._closed = True
        self._control.close()

    @property
    def local_earliest(self) -> LogPosition:
        return self._stored().earliest

    def _load(self) -> ControlRecord:
        return self._seen(self._stored())

    def _seen(self, record: ControlRecord) -> ControlRecord:
        """Returns the content of the control page as readers see it."""
        return record

    def _stored(self) -> ControlRecord:
        if self._closed:
            raise closed_log(f"of pchannel {self.pchannel!r}")
        if self._lost is not None:
            raise self._lost
        record = self._control.load()
        if record.term != REPLACED_TERM and record.incarnation != self.incarnation:
            raise LogWentBackError(
                f"the log of pchannel {self.pchannel!r} was restored from a copy: open it again; positions of what the copy has stay valid"
            )
        if record.term == REPLACED_TERM:
            raise ClosedError(
                f"the log of pchannel {self.pchannel!r}, which was empty, was created again by another process: open it again to continue"
            )
        return record

    @contextlib.contextmanager
    def _damage_or_loss(self) -> Iterator[None]:
        """Raises StorageError for damage in a directory that was removed or replaced, since this log is not damaged then."""
        try:
            yield
        except (CorruptionError, StorageError):
            self.check()
            raise

    def _reach(self) -> tuple[ControlRecord, tuple[int, int] | None]:
        """Indexes all frames that are durable now; returns the control record and the newest event below its durable position."""
        record = self._stored()
        while True:
            try:
                newest = self._segments.reach(record.durable, record.earliest[0])
            except (CorruptionError, OSError) as error:
                before, record = record, self._stored()
                if record.earliest != before.earliest:
                    continue  # it was truncated while it was read
                if isinstance(error, CorruptionError):
                    raise
                if not isinstance(error, FileNotFoundError):
                    raise StorageError(f"reading {error.filename or self.directory} failed: {error.strerror}") from error
                missing = CorruptionError("the file is gone", expected="a segment of this log")
                raise damaged(missing, Path(error.filename or self.directory), 0) from error
            self._newest = newest
            return self._seen(record), newest


def _storage_errors(path: Path, call: Callable[[], _T]) -> _T:
    """Returns the result of the call. Raises any OSError except FileNotFoundError as StorageError."""
    try:
        return call()
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise StorageError(f"{error.filename or path} cannot be read: {error.strerror or error}") from error


class ReadOnlySegments(SegmentSet):
    """The segments of a log that another process may write, in the order of the log. The last one contains the durable end.

    They are those between the earliest event and the durable position, as `reach` found them. The index of the last one grows from the
    file: only heads of frames are read, and envelopes and CRCs are checked. It reads exactly up to the caller's durable position, because
    frames above it may still be cut off and rewritten. It never writes, not even an index that it had to compute.

    A segment that is missing or damaged may just have been truncated: the caller reads the control page again before it trusts the error.
    """

    stores_indexes = False

    def __init__(self, disk: Disk, directory: Path, *, lineage: Lineage) -> None:
        super().__init__(disk, directory, (), SegmentIndex(0))
        self._lineage = lineage
        self._stored = False
        """Whether the index of the last segment began as its stored index."""

    def reach(self, durable: int, earliest: int) -> tuple[int, int] | None:
        """Indexes all frames below `durable` and forgets the segments below `earliest`; returns the newest event below `durable`.

        Raises CorruptionError or FileNotFoundError if a segment between the two positions is damaged or gone.
        """
        with self._lock:
            if self._extend(durable) is not None:
                self._list(durable, earliest)
                if (failure := self._extend(durable)) is not None:
                    if not self._stored:
                        raise failure
                    # The stored index may be wrong: the segment decides.
                    self._last_index, self._stored = SegmentIndex(self.segments[-1].base), False
                    if (failure := self._extend(durable)) is not None:
                        raise failure
            self._drop_below(earliest)
            index = self._last_index
            return index.last_event(0, index.ordinal(durable)) or self.segments[-1].header.newest

    def _remade_last(self, last: SegmentIndex, index: SegmentIndex) -> None:
        with self._lock:
            if self._last_index is last and last.end == index.end:
                self._last_index, self._stored = index, False

    def _extend(self, durable: int) -> CorruptionError | None:
        """Adds the frames of the last segment up to `durable` to its index; returns the error that stopped it, or None."""
        if not self.segments:
            return CorruptionError("no segment is known yet")
        if self._last_index.end >= durable:
            return None
        return extend_index(self._disk, self.segments[-1], self._last_index, durable)

    def _list(self, durable: int, earliest: int) -> None:
        """Lists the segments from the `earliest` event's to the segment that contains `durable`."""
        bases = segment_bases(self._directory)
        first = max((i for i, base in enumerate(bases) if base <= earliest), default=-1)
        if first < 0:
            raise damaged(
                CorruptionError(
                    f"the segment that holds position {earliest} is missing", expected=f"a segment with a base of at most {earliest:#x}"
                ),
                self._directory,
                0,
            )
        listed = {segment.base: segment for segment in self.segments}
        segments = [listed.get(base) or self._load(base) for base in bases[first:] if base == bases[first] or base < durable]
        last, before = segments[-1], self._last_index
        if not self.segments or last.base != before.base:
            index = load_index(self._disk, self._directory, last, end_max=durable)
            self._stored = index is not None
            if index is None:
                index = SegmentIndex(last.base)
            if any(segment.base == before.end and segment.header.previous_base == before.base for segment in segments):
                self._cache.keep(before)  # its segment was the last one, and is complete now
            self._last_index = index
        self.segments = tuple(segments)

    def _load(self, base: int) -> Segment:
        segment = Segment.load(self._disk, self._directory / segment_name(base))
        if not self._lineage.covers(segment.header.incarnation, base):
            raise damaged(
                CorruptionError(f"it is of incarnation {segment.header.incarnation:#x}", expected=f"{self._lineage.incarnation:#x}"),
                segment.path,
                0,
            )
        return segment
