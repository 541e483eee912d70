"""SinkFolder: the sink's files, in the journal's directory, or in the staging directory of a log on Pulsar.

    spark/
      lock                                        the lock of the publishing process; a flock, so the system releases it with the process
      log                                         on Pulsar: the id of this folder, and the log that it belongs to
      staged/<write id>/<batch id>/*.staged       chunks of tasks, one file an attempt
      manifests/<write id>-<batch id>.manifest    the decided content of a write, until it is published
      published/<write id>                        the last published batch of a streaming query: `41 crc32c 01234567`
      *.tmp                                       a file that is being written

Owns the order in which files become durable, and translates errors of the file system into the log's own. A written file survives a crash
of the machine, with its name, and only its owner can read it. A manifest decides a write; it is removed only when its content is in the log
and, for a streaming query, its mark is stored. Staged files that no manifest names do not count: `sweep` removes them when they are old, or
when their query is past that batch. Only the process that holds the lock stores, marks and sweeps; tasks only add files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

import google_crc32c

from wal.errors import CorruptionError, FormatError, InvalidArgumentError, NoSpaceError, StorageError
from wal.runtime.system import sync_file, sync_path
from wal.spark.sink.manifest import BatchManifest, WriteKey, decode_manifest, encode_manifest
from wal.storage.files import PRIVATE

SINK_NAME: Final = "spark"
"""The folder's name."""
MARKS_MAX: Final = 65_536
"""The number of streaming queries whose last batch is remembered. Above it, the marks of the queries that published longest ago are
removed.
"""
_MANIFEST_SUFFIX: Final = ".manifest"
_TEMPORARY_SUFFIX: Final = ".tmp"


class SinkFolder:
    """The folder in `directory`, which need not exist yet."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path: Path = directory / SINK_NAME
        self.lock_path: Path = self.path / "lock"
        self._log = self.path / "log"
        self._staged = self.path / "staged"
        self._manifests = self.path / "manifests"
        self._marks = self.path / "published"

    def staged(self, key: WriteKey) -> Path:
        """Returns the directory for the staged files of this write."""
        return self._staged / key.write_id / str(key.batch_id)

    # -- the log that the folder belongs to

    def claim(self, log: str) -> None:
        """Binds the folder to this log, durably; raises InvalidArgumentError when it belongs to another one. For the holder of the lock."""
        with storing(self._log):
            try:
                _, _, owner = self._read_log().partition("\n")
            except FileNotFoundError:
                text = f"{secrets.token_hex(8)}\n{log}\n"
                replace_file(self._log, text.encode(), temporary=self._log.with_suffix(_TEMPORARY_SUFFIX))
                return
        if owner.strip() != log:
            raise InvalidArgumentError(
                f"{self.path} holds the files of the sink for {owner.strip()}, and this is {log}: give each log a staging directory of its "
                f"own; if it is the same log under a new address, write that into {self._log}"
            )

    @property
    def id(self) -> str:
        """The folder's own id, which is part of its producers' names; empty in a journal, where no other folder publishes."""
        with storing(self._log), contextlib.suppress(FileNotFoundError):
            return self._read_log().partition("\n")[0]
        return ""

    def _read_log(self) -> str:
        data = self._log.read_bytes()
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            text = f"{self._log} is damaged: {error}; restore it"
            raise CorruptionError(text, path=str(self._log), offset=error.start, expected="the id of the folder, and its log") from error

    # -- manifests

    def store(self, manifest: BatchManifest) -> None:
        """Stores a manifest, replacing an older one of the same write; it is durable on return."""
        with storing(self._manifests):
            make_directory(self._manifests)
            path = self._manifest_path(manifest.key)
            replace_file(path, encode_manifest(manifest), temporary=path.with_suffix(_TEMPORARY_SUFFIX))

    def load(self, key: WriteKey) -> BatchManifest | None:
        """Returns the manifest of this write, or None. Raises CorruptionError or FormatError with the manifest's path."""
        path = self._manifest_path(key)
        with storing(path):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                return None
        try:
            manifest = decode_manifest(data)
            if manifest.key != key:
                raise CorruptionError(f"it is the manifest of {manifest.key}", expected=f"the manifest of {key}")
        except CorruptionError as error:
            text = f"{path} is damaged: {error}; expected {error.expected}; restore it, or give the write up with wal.spark.sink.discard"
            raise CorruptionError(text, path=str(path), offset=0, expected=error.expected) from error
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from error
        return manifest

    def decided(self) -> list[WriteKey]:
        """Returns the writes that have a manifest, by id and batch."""
        keys = []
        for name in _names(self._manifests):
            write_id, _, batch = name.removesuffix(_MANIFEST_SUFFIX).rpartition("-")
            if name.endswith(_MANIFEST_SUFFIX) and write_id and batch.isdecimal():
                keys.append(WriteKey(write_id, int(batch)))
        return sorted(keys)

    def is_published(self, key: WriteKey) -> bool:
        """Returns whether this batch of a streaming query, or a later one, was fully published."""
        last = self._last_published(key.write_id)
        return last is not None and key.batch_id <= last

    def finish(self, manifest: BatchManifest) -> None:
        """Records durably that the content of the manifest is in the log, and removes the write's files."""
        with storing(self.path):
            if manifest.stream:
                make_directory(self._marks)
                path = self._marks / manifest.key.write_id
                replace_file(path, _mark(manifest.key.batch_id), temporary=path.with_suffix(_TEMPORARY_SUFFIX))
            self.forget(manifest.key)

    def forget(self, key: WriteKey) -> None:
        """Removes a write's files: the manifest first, durably, so that no manifest ever names a missing file."""
        with storing(self.path):
            path = self._manifest_path(key)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
                sync_path(path.parent)
            self.drop_staged(key)

    # -- staged files

    def drop_staged(self, key: WriteKey, *, files: Iterable[str] | None = None) -> None:
        """Removes the staged files of a write: all of them, or these. Not synced: a sweep removes files that reappear."""
        directory = self.staged(key)
        if files is None:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            for file in files:
                (directory / file).unlink(missing_ok=True)
        for empty in (directory, directory.parent):
            with contextlib.suppress(OSError):  # not empty, or removed meanwhile
                empty.rmdir()

    def missing(self, manifest: BatchManifest) -> list[str]:
        """Returns the files of a manifest that are missing, or whose length has changed."""
        directory = self.staged(manifest.key)
        return [file.name for file in manifest.files if not _has_size(directory / file.name, file.size)]

    def sweep(self, *, age_s: float) -> int:
        """Removes staged files that will never be published: their batch is finished, or they were not touched for `age_s`.

        Returns the number of writes whose files it removed.
        """
        decided = set(self.decided())
        swept = 0
        for write_id in _names(self._staged):
            last = self._last_published(write_id)
            for batch in _names(self._staged / write_id):
                if not batch.isdecimal():
                    continue
                key = WriteKey(write_id, int(batch))
                if key in decided:
                    continue
                over = last is not None and key.batch_id <= last
                if over or _touched(self.staged(key)) < time.time() - age_s:
                    self.drop_staged(key)
                    swept += 1
        for directory in (self._manifests, self._marks):
            for name in _names(directory):
                if name.endswith(_TEMPORARY_SUFFIX):  # left by a killed process: only the sweeping process is active now
                    (directory / name).unlink(missing_ok=True)
        self._bound_marks(decided)
        return swept

    def _bound_marks(self, decided: Collection[WriteKey]) -> None:
        marks = _names(self._marks)
        if len(marks) <= MARKS_MAX:
            return
        busy = {key.write_id for key in decided}
        old = sorted((name for name in marks if name not in busy), key=lambda name: _touched(self._marks / name))
        for name in old[: len(marks) - MARKS_MAX]:
            (self._marks / name).unlink(missing_ok=True)
        sync_path(self._marks)

    def _last_published(self, write_id: str) -> int | None:
        path = self._marks / write_id
        with storing(path):
            try:
                text = path.read_bytes()
            except FileNotFoundError:
                return None
        match = re.fullmatch(rb"([0-9]{1,19})(?: crc32c [0-9a-f]{8})?\n", text)
        if match is None or (b" " in text and text != _mark(int(match[1]))):
            raise CorruptionError(
                f"{path} is damaged: it contains {text[:40]!r}; write the number of the last batch in the log into it",
                path=str(path),
                offset=0,
                expected="a decimal number and a line end",
            )
        return int(match[1])

    def _manifest_path(self, key: WriteKey) -> Path:
        return self._manifests / f"{key.write_id}-{key.batch_id}{_MANIFEST_SUFFIX}"


@contextlib.contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turns errors of the operating system into a NoSpaceError (make room, then retry) or a StorageError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpaceError(f"no room for the files of the sink in {path}: free some space, and run it again") from error
        raise StorageError(f"the files of the sink in {path} cannot be written or read: {error}") from error


def replace_file(path: Path, data: bytes, *, temporary: Path) -> None:
    """Replaces a whole file: writes a temporary one, syncs and renames it, and syncs the directory."""
    fd = PRIVATE.create(temporary, os.O_WRONLY | os.O_TRUNC)
    try:
        write_all(fd, data)
        sync_file(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path)
    sync_path(path.parent)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Writes all of the data at the end of the file."""
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(fd, remaining) :]


def make_directory(path: Path) -> None:
    """Creates a directory and its missing parents."""
    if path.is_dir():
        return
    if path.parent != path:
        make_directory(path.parent)
    PRIVATE.make_directory(path)
    sync_path(path.parent)


def _names(directory: Path) -> list[str]:
    with storing(directory):
        try:
            return sorted(os.listdir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return []


def _mark(batch_id: int) -> bytes:
    """Returns the content of a mark. A mark of an earlier version, or written by hand, is the number alone; no flipped bit turns one form
    into the other.
    """
    number = b"%d" % batch_id
    return b"%s crc32c %08x\n" % (number, google_crc32c.value(number))


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def _touched(path: Path) -> float:
    """Returns the time of the last write to a file, or to the newest file of a directory; now, if it is being removed."""
    return max(_times(path), default=time.time())


def _times(path: Path) -> Iterator[float]:
    try:
        yield path.stat().st_mtime
        if path.is_dir():
            for entry in os.scandir(path):
                yield entry.stat().st_mtime
    except FileNotFoundError:
        return
