"""The directory of a journal: FORMAT has its version, LOCK the process that writes it, permissions the users that may read it. Also creates
new, empty logs.

Owns the files `FORMAT` and `LOCK`. `FORMAT` is one of a few texts, whose version numbers differ in at least two bits. So a text that
differs from one of them in one byte is damage and not a newer version. The lock is a flock, so it ends with its process, however that
exits; the pid in the file is used only in the error message. Only the user who writes the journal can open `LOCK`, so that no other user
can lock it.

Permissions follow the setting, else the journal's current mode, else they are for the owner alone. The mode of `FORMAT` records them: it is
changed last, so that the next opening repeats an interrupted change, and an opening that finds the right mode checks no other file. So the
cost of an opening does not depend on the number of files. Files that every user may read, as all files were in earlier versions, lose that
mode with a warning: new segments would lock those readers out anyway, at an arbitrary moment.

A new log is created durably, over the files that an interrupted creation left: first the segment, then the control page, whose presence
under a synced name means that the log exists. A log that ever had a frame is never changed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import time
from pathlib import Path
from typing import Final

import msgspec

from wal.errors import CorruptionError, FormatError, LockedError, StorageError
from wal.runtime.system import is_foreign
from wal.storage.files import CURSORS_LOCK_NAME, FORMAT_NAME, LOCK_NAME, PRIVATE, FileAccess, FileLock, LockHolder
from wal.storage.files.links import check_only_name
from wal.storage.journal.control import CONTROL_NAME, FENCE_NAME, REPLACED_TERM, ControlPage, ControlRecord
from wal.storage.journal.disk import Disk
from wal.storage.journal.layout import HEADER_PAGE_BYTES, SECTOR_BYTES, Envelope, SegmentHeader, segment_name
from wal.storage.journal.preparer import ZEROS_SUFFIX, fill_with_zeros
from wal.storage.journal.segments import Segment, segment_bases

_KIND: Final = "wal-journal"
_VERSION: Final = 3
"""Since this version the metadata have checksums. It also covers version 2, a journal with cursors that move with transactions."""
_TEXTS: Final = tuple(f"{_KIND} {version}\n".encode() for version in (1, 2, _VERSION))
_NEWER: Final = re.compile(rb"%s ([1-9][0-9]*)\n" % _KIND.encode())
_FORMAT_TEMPORARY: Final = "FORMAT.tmp"
_TRIES: Final = 1000
_PAUSE_S: Final = 0.001
_INHERITED_S: Final = 1.0
"""How long opening waits for a child whose parent was killed just after the fork: the child releases the lock as soon as it runs."""
_INHERITED_PAUSE_S: Final = 0.01


class DirectoryLock:
    """The lock on the journal, from `acquire` to `release`, or until the process ends. A forked child does not share it."""

    def __init__(self, file: FileLock) -> None:
        self._file = file

    @classmethod
    def acquire(cls, directory: Path, access: FileAccess = PRIVATE) -> DirectoryLock:
        """Takes the lock. Raises LockedError with the pid of the process that has it (this process if it opened the journal twice), and
        StorageError if the journal was copied by hard links.
        """
        path = directory / LOCK_NAME
        file = FileLock.open(path, access)
        try:
            check_only_name(path, os.fstat(file.fd))
            until = time.monotonic() + _INHERITED_S
            while not _take(file):
                holder = LockHolder.find(file.fd)
                if not holder.inherited or time.monotonic() > until:
                    raise _locked_error(directory, holder)
                time.sleep(_INHERITED_PAUSE_S)
            LockHolder.note(file.fd)
        except BaseException:
            file.close()
            raise
        return cls(file)

    def status(self) -> os.stat_result:
        """Returns the status of the locked file, even if its name now leads to another file."""
        return os.fstat(self._file.fd)

    def release(self) -> None:
        """Releases the lock. Idempotent."""
        self._file.close()


def _take(file: FileLock) -> bool:
    """Takes the lock; returns False when a writer has it. A process that only checks whether the journal is free shares the lock for an
    instant; this function waits for that.
    """
    for _ in range(_TRIES):
        if file.try_lock():
            return True
        if not file.try_lock(shared=True):
            return False  # a writer's lock cannot be shared
        file.unlock()
        time.sleep(_PAUSE_S)
    return file.try_lock()


def _locked_error(directory: Path, holder: LockHolder) -> LockedError:
    where, remedy = holder.text, "close it there first"
    if holder.pid == os.getpid():
        where = f"this process ({holder.pid})"
        remedy = "await close() of that log, in its event loop, or in any other once that one has ended"
    return LockedError(
        f"the journal {directory} is open for writing in {where}: {remedy}, or read beside it with open_wal(…, read_only=True); several "
        "processes write one log through a server, `wal standalone`",
        pid=holder.pid,
    )


def is_being_written(directory: Path) -> bool | None:
    """Returns whether a process has the journal open for writing; None when this user may not open the lock file.

    It shares the lock for an instant; see `_take`.
    """
    try:
        file = FileLock.look(directory / LOCK_NAME)
    except OSError:
        return None
    try:
        return not file.try_lock(shared=True)
    except StorageError:  # the file system has no such locks
        return None
    finally:
        file.close()


def claim_format(disk: Disk, directory: Path) -> None:
    """Makes an empty or missing directory a journal. Raises FormatError when it contains anything but a journal of a known version;
    `lost+found` and names that begin with a dot do not count.
    """
    if directory.exists() and not directory.is_dir():
        raise FormatError(f"{directory} is a file: name a directory for the journal")
    if (directory / FORMAT_NAME).exists():
        check_format(directory)
        return
    disk.make_directory(directory)
    others = sorted(entry.name for entry in directory.iterdir() if entry.name not in _OURS and not is_foreign(entry.name))
    if others:
        raise FormatError(
            f"{directory} is not a journal: it has no {FORMAT_NAME} but holds {', '.join(others[:5])}; "
            "name an empty directory, or restore the file"
        )
    raise_format(disk, directory)


def check_format(directory: Path) -> None:
    """Raises FormatError unless the directory is a journal of a known version, CorruptionError if its file FORMAT is damaged."""
    path = directory / FORMAT_NAME
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if directory.is_file():
            raise FormatError(f"{directory} is a file: name a directory for the journal") from None
        raise FormatError(f"{directory} holds no journal: it has no {FORMAT_NAME}; a journal is made by opening it for writing") from None
    if text in _TEXTS:
        return
    newer = _NEWER.fullmatch(text)
    if newer and not (len(text) == len(_TEXTS[-1]) and _differing_bits(text, _TEXTS[-1]) == 1):
        version = newer[1].decode()
        raise FormatError(f"{path} has version {version}; this version of the package reads up to {_VERSION}: upgrade to open it")
    if any(len(text) == len(expected) and sum(map(int.__ne__, text, expected)) == 1 for expected in _TEXTS):
        raise CorruptionError(
            f"{path} is damaged: its text is {text!r}; `wal repair` writes it again", path=str(path), offset=0, expected=repr(_TEXTS[-1])
        )
    raise FormatError(f"{path} contains {text[:40]!r}, not {_KIND!r} and a version: this is not a journal")


def _differing_bits(one: bytes, other: bytes) -> int:
    return sum((mine ^ its).bit_count() for mine, its in zip(one, other, strict=True))


def raise_format(disk: Disk, directory: Path) -> None:
    """Records durably that the journal has the format of this version; older versions refuse the journal from then on."""
    path, text = directory / FORMAT_NAME, _TEXTS[-1]
    if not path.exists() or path.read_bytes() != text:
        disk.unlink(directory / _FORMAT_TEMPORARY)
        disk.replace(path, text, temporary=directory / _FORMAT_TEMPORARY)


_SINK_NAME: Final = "spark"
"""The folder where tasks of Spark's sink may have staged files before the journal exists; see docs/reference/files.md."""
_OURS: Final = frozenset((FORMAT_NAME, LOCK_NAME, _FORMAT_TEMPORARY, _SINK_NAME))


_READ_BY_READERS: Final = ("pchannels", "cursors")
_FOR_WRITERS: Final = (CURSORS_LOCK_NAME, "spark")
"""Names that only writers use. For Spark's sink, only the directory becomes private, so that no other user can enter it."""
_OTHERS_READ: Final = 0o044
_log: Final = logging.getLogger("wal.journal")


def choose_access(directory: Path, group_readable: bool | None) -> FileAccess:
    """Returns the access of the journal in this directory, which need not exist yet; None keeps the current access."""
    access = FileAccess.like(directory / FORMAT_NAME)
    return access if group_readable is None else msgspec.structs.replace(access, group_readable=group_readable)


def carry_out(directory: Path, access: FileAccess, *, asked: bool) -> None:
    """Applies this access to the files of an existing journal. Unless `asked`, it warns when readers lose their access."""
    mark = directory / FORMAT_NAME
    before = mark.stat().st_mode
    if access.is_given(mark) and access.is_given(directory):
        return
    access.give(directory)
    for name in _FOR_WRITERS:
        if (path := directory / name).exists():
            access.private.give(path)
    for name in _READ_BY_READERS:
        for root, _, files in os.walk(directory / name):
            access.give(Path(root))
            for file in files:
                (access.private if file == FENCE_NAME else access).give(Path(root, file))
    access.give(mark)
    if not access.is_given(mark):
        _log.warning(
            "the files of %s can be read by other users of this machine, and their file system does not let that be changed: "
            "keep the log on another one",
            directory.absolute(),
        )
    elif before & _OTHERS_READ & ~access.file_mode and not asked:
        _log.warning(
            "the files of %s could be read by other users of this machine (mode %04o), and can be read by their owner alone from now on: "
            "open the log with group_readable=True to let their group read them",
            directory.absolute(),
            before & 0o777,
        )


def create_log(disk: Disk, directory: Path, *, pchannel: str, incarnation: int, first_segment_bytes: int) -> None:
    """Durably creates an empty log in this directory. Raises FormatError when it has a log that ever held a frame."""
    disk.make_directory(directory.parent)
    disk.make_directory(directory)
    if _held_a_frame(disk, directory):
        raise FormatError(
            f"{directory} already holds a log of pchannel {pchannel!r}, which the metadata do not have: they are lost, or elsewhere "
            "(setting kv). Open it with its own metadata, or restore a backup; it can be read as it is (read_only=True)"
        )
    control_path = directory / CONTROL_NAME
    if control_path.exists():
        with contextlib.closing(ControlPage(disk, control_path)) as control, control.locked():
            control.store(ControlRecord(incarnation, REPLACED_TERM, 0, (0, 0), 0, 0, closed=True))
    # The page goes last: without it, the fence and the map of vchannels are evidence of its loss.
    for path in sorted(directory.iterdir(), key=lambda path: path == control_path):
        if not is_foreign(path.name):
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
    """Returns whether the log ever had a frame, according to its files; damaged files count as yes."""
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
