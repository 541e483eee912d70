"""Restore: makes a journal of a backup, and marks it as restored, so that its readers detect the events that it lacks.

The log is built in a directory beside its target, opened once, and renamed to the target in the last step. An interruption leaves the
target unchanged. If the target is an empty directory, a mount point for example, the building directory is inside it, and another attempt
removes the remains of an interruption. A restore never overwrites a log.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from wal.channels.metadata import save_metadata
from wal.channels.pchannels import checkpoint_records
from wal.errors import CorruptionError, FormatError, LockedError, NoSpaceError, StorageError
from wal.location import parse_location
from wal.node.archiving.forgetting import manifests
from wal.node.local.restored import mark_restored
from wal.operate.backup.backup import fetch_cursor, fetch_metadata, journal_path, verify
from wal.operate.backup.point import RestorePlan, cursor_at, cut_journal, metadata_at, moment_of, plan, write_control
from wal.runtime.descriptors import open_file, write_file
from wal.runtime.system import is_foreign, sync_path
from wal.runtime.threads import in_thread
from wal.settings import Settings
from wal.storage.archive.manifest import Manifest, PChannelCopy
from wal.storage.archive.objects import fetch, fetch_part
from wal.storage.archive.store import BackupStore, open_store
from wal.storage.files import CURSORS_LOCK_NAME, FORMAT_NAME, LOCK_NAME, META_NAME, PRIVATE, FileAccess, FileLock
from wal.storage.journal.control import FENCE_NAME
from wal.storage.journal.directory import claim_format
from wal.storage.journal.disk import Disk
from wal.storage.journal.layout import segment_name
from wal.storage.journal.read_only_journal import ReadOnlyJournal
from wal.storage.kv import SqliteKV

_MARK: Final = ".restoring.lock"
_BUILDING: Final = ".restoring"
_META_FILES: Final = frozenset((META_NAME, f"{META_NAME}-wal", f"{META_NAME}-shm", f"{META_NAME}-reserve"))
_PRIVATE_FILES: Final = _META_FILES | {LOCK_NAME, CURSORS_LOCK_NAME, FENCE_NAME}
_PARTS: Final = _META_FILES | {_MARK, _BUILDING, LOCK_NAME, CURSORS_LOCK_NAME, "pchannels", "cursors"}
"""The files that an interrupted restore may have left in its target."""


async def restore(
    target: str, location: str, *, up_to: int | None = None, if_absent: bool = False, progress: Callable[[int, int], None] | None = None
) -> Manifest | None:
    """Restores the journal at `location` from the backups at `target`: the log as of the tick `up_to` (None: of the newest backup).

    A tick above the newest backup restores that backup, at its tick. Returns the manifest of the used backup, with the tick up to which the
    log is restored. That tick is below `up_to` in two cases. One frame may have events on both sides of `up_to` together with records of
    the log itself, such as the cursor of a transaction. And if the log was restored between two backups, the tick is that of the earlier
    one.

    `progress` is called in another thread with the bytes that were restored so far, and those to restore in all.

    The location must be missing or empty; with `if_absent` an existing journal is left unchanged, and None is returned. An empty directory
    keeps its owner. Its group may read the restored log if it may read the directory; others may not.

    Raises FormatError for a location in use and for a target without a backup, InvalidArgumentError if no backup reaches back to `up_to`,
    CorruptionError for a damaged backup, NoSpaceError without room, LockedError while another process restores to this location. Any error
    leaves the location unchanged.
    """
    directory, store = journal_path(location), await in_thread(open_store, target)
    if not await in_thread(_is_free, directory, if_absent):
        return None
    chosen = _chosen(*await in_thread(manifests, store), store, up_to)
    site = await in_thread(_site, directory)
    try:
        metadata, tick = await in_thread(_build, site.building, site.access, store, chosen, progress)
        kv = await SqliteKV.open(site.building / META_NAME)
        try:
            await save_metadata(kv, metadata)
        finally:
            await kv.close()
        await mark_restored(parse_location(str(site.building)), Settings())
        await in_thread(site.finish)
    finally:
        await in_thread(site.close)
    return msgspec.structs.replace(chosen.top, tick=tick)


async def verify_whole(target: str) -> list[str]:
    """Reads every object of all backups, restores the newest one to a temporary directory, and reads every frame of it.

    Returns a sentence for each missing or damaged part. Raises as `restore` does, NoSpaceError for example.
    """
    findings = await verify(target)
    if findings:
        return findings
    folder = await in_thread(tempfile.mkdtemp, prefix="wal-verify-")
    try:
        manifest = await restore(target, f"{folder}/log")
        assert manifest is not None
        await in_thread(_read_all, Path(folder, "log"), manifest)
    except CorruptionError as error:
        findings.append(str(error))
    finally:
        await in_thread(shutil.rmtree, folder, True)
    return findings


def _read_all(directory: Path, manifest: Manifest) -> None:
    """Reads every frame of a restored log. Raises CorruptionError for damage, and for a log that ends before the backup's end."""
    with closing(ReadOnlyJournal(directory)) as journal:
        for name, pchannel in manifest.pchannels.items():
            with closing(journal.open(name)) as log:
                end = log.reach().durable_end
                for _ in log.frames(log.earliest[0], end, 16 << 20):
                    pass
                if end < pchannel.end:
                    raise CorruptionError(f"pchannel {name} of backup {manifest.number} ends at {end}", expected=f"{pchannel.end}")


def _is_free(directory: Path, if_absent: bool) -> bool:
    if not directory.exists():
        return True
    names = (
        {path.name for path in directory.iterdir() if path.name in _PARTS or not is_foreign(path.name)}
        if directory.is_dir()
        else {str(directory)}
    )
    if FORMAT_NAME in names:
        if if_absent:
            return False
    elif not names or (_MARK in names and names <= _PARTS):
        return True
    raise FormatError(f"{directory} is not empty: nothing was restored; name a directory that is missing or empty")


def _chosen(backups: list[Manifest], damaged: dict[int, CorruptionError], store: BackupStore, up_to: int | None) -> RestorePlan:
    if damaged and up_to is None and (not backups or max(damaged) > backups[-1].number):
        remedy = f"restore up to {moment_of(backups[-1].tick)} for the one before" if backups else "no other backup exists"
        raise CorruptionError(
            f"the newest backup at {store.place} cannot be read: {damaged[max(damaged)]}; {remedy}", expected="a manifest"
        )
    if not backups:
        raise FormatError(f"{store.place} holds no backup: name where `wal backup` put one")
    return plan(backups, up_to, store.place)


def _build(
    building: Path, access: FileAccess, store: BackupStore, chosen: RestorePlan, progress: Callable[[int, int], None] | None
) -> tuple[dict[str, str], int]:
    """Writes the files of the journal, and returns its metadata and its tick. Blocks."""
    disk = Disk()
    disk.access = access
    top, base = chosen.top, chosen.base
    metadata = fetch_metadata(store, top)
    try:
        claim_format(disk, building)
        pchannels = chosen.pchannels()
        done, total = 0, sum(chunk.size for pchannel in pchannels.values() for segment in pchannel.segments for chunk in segment.chunks)
        for name, pchannel in pchannels.items():
            folder = building / "pchannels" / name
            folder.mkdir(parents=True)
            for size in _write_pchannel(disk, folder, store, top.tick, pchannel):
                done += size
                if progress is not None:
                    progress(done, total)
        tick, at_tick = top.tick, None
        if chosen.tick is not None or len(top.pchannels) > 1:  # with several pchannels, one may lack a copy of a broadcast
            before = {} if base is None else fetch_metadata(store, base)
            begins = {name: record.position for name, record in checkpoint_records(metadata).items()}
            if base is not None:
                saved = checkpoint_records(before)
                begins |= {name: saved[name].position if name in saved else 0 for name in base.pchannels}
            at_tick = cut_journal(building, disk, chosen, begins)
            tick, metadata = at_tick.tick, metadata_at(chosen, at_tick, before, metadata)
        files = {} if base is None else {file: fetch_cursor(store, file, chunk) for file, chunk in base.files.items()}
        for file, chunk in top.files.items():
            data = fetch_cursor(store, file, chunk)
            if base is None or (at_tick is not None and cursor_at(data, at_tick)):
                files[file] = data
        for file, data in files.items():
            path = building / file
            path.parent.mkdir(exist_ok=True)
            write_file(path, data)
    except OSError as error:
        raise _failed(building, error) from error
    return metadata, tick


def _write_pchannel(disk: Disk, folder: Path, store: BackupStore, tick: int, pchannel: PChannelCopy) -> Iterator[int]:
    """Writes the files of a pchannel; yields the bytes of each chunk of a segment when it is written."""
    for segment in pchannel.segments:
        with open(folder / segment_name(segment.base), "xb", opener=open_file) as file:
            for chunk in segment.chunks:
                yield file.write(fetch_part(store, segment, chunk))
            file.truncate(segment.size)
    for name, chunk in pchannel.files.items():
        write_file(folder / name, fetch(store, chunk))
    write_control(disk, folder, pchannel, pchannel.end, tick)


def _site(directory: Path) -> _Site:
    """Returns the site at which a log for this directory is built."""
    try:
        return _InsideSite(directory) if directory.is_dir() else _BesideSite(directory)
    except OSError as error:
        raise _failed(directory, error) from error


class _Site:
    """The directory in which a log is built, until `finish` moves it to its location. `close` leaves only a finished log."""

    building: Path
    access: FileAccess

    def finish(self) -> None:
        """Moves the log to its location, durably. Raises FormatError if another process created something there meanwhile."""
        raise NotImplementedError

    def close(self) -> None:
        """Removes the remains of the building directory."""
        shutil.rmtree(self.building, ignore_errors=True)

    def _sync(self) -> None:
        """Sets the access of all files and syncs them."""
        for folder, _, files in os.walk(self.building):
            for path in (*(Path(folder, file) for file in files), Path(folder)):
                (self.access.private if path.name in _PRIVATE_FILES else self.access).give(path)
                sync_path(path)


class _BesideSite(_Site):
    """A directory beside a missing location: it is renamed to the location."""

    def __init__(self, directory: Path) -> None:
        directory.parent.mkdir(parents=True, exist_ok=True)
        self.building = Path(tempfile.mkdtemp(prefix=f"{directory.name}.restoring-", dir=directory.parent))
        self.access = PRIVATE
        self._directory = directory

    def finish(self) -> None:
        self._sync()
        try:
            self.building.rename(self._directory)  # replaces an empty directory, and no other
        except OSError as error:
            raise FormatError(
                f"{self._directory} was made by somebody else meanwhile, and is left as it is: {error.strerror or error}"
            ) from error
        sync_path(self._directory.parent)


class _InsideSite(_Site):
    """A directory inside an empty location: its content is moved up, FORMAT last, which makes the location a journal.

    Nothing can be renamed to a mount point, and a directory that an administrator has created keeps its owner. The lock on the file `_MARK`
    is held meanwhile; the file shows that the remains of a killed restore can be removed.
    """

    def __init__(self, directory: Path) -> None:
        self.building = directory / _BUILDING
        self.access = FileAccess.like(directory)
        self._directory = directory
        self._lock = FileLock.open(directory / _MARK, self.access)
        if not self._lock.try_lock():
            self._lock.close()
            raise LockedError(f"another process restores a log to {directory}: wait for it, or name another directory", pid=None)
        try:
            _is_free(directory, if_absent=False)  # the directory may have changed before the lock was taken
            self._clear()
            self.building.mkdir(mode=0o700)
        except BaseException:
            self._unlock()
            raise

    def finish(self) -> None:
        self._sync()
        self.access.give(self._directory)
        try:
            for name in sorted(os.listdir(self.building), key=lambda name: name == FORMAT_NAME):
                if name == FORMAT_NAME:
                    sync_path(self._directory)
                os.rename(self.building / name, self._directory / name)
        except OSError as error:
            raise _failed(self._directory, error) from error
        sync_path(self._directory)

    def close(self) -> None:
        try:
            super().close()
            if not (self._directory / FORMAT_NAME).exists():
                self._clear()
        finally:
            self._unlock()

    def _unlock(self) -> None:
        try:
            (self._directory / _MARK).unlink(missing_ok=True)
        finally:
            self._lock.close()

    def _clear(self) -> None:
        """Removes the remains of an interrupted restore."""
        for name in _PARTS - {_MARK}:
            path = self._directory / name
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _failed(path: Path, error: OSError) -> StorageError | NoSpaceError:
    kind = NoSpaceError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
    return kind(f"{path} cannot be written: {error.strerror}")
