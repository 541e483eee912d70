"""SinkFolder: the sink's files below a journal's directory.

    spark/
      lock                                        whoever publishes; a flock, so it goes with its process
      staged/<write id>/<batch id>/*.staged       chunks of tasks, one file an attempt
      manifests/<write id>-<batch id>.manifest    what is to be published, until it is
      published/<write id>                        the last batch of a streaming query that was published, as a decimal number
      *.tmp                                       being written

Owns what is durable in which order. A manifest decides a write; it goes only when everything in it is in the log and, for a streaming
query, its mark is stored. What is staged and named by no manifest counts for nothing: `sweep` removes it when it is old, or when the
query that staged it is past that batch. Only whoever holds the lock stores, marks and sweeps; tasks only add files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from wal.errors import CorruptionError, FormatError, NoSpaceError, StorageError
from wal.files import PRIVATE
from wal.spark.sink.manifest import Manifest, WriteKey, decode_manifest, encode_manifest

__all__ = ["SINK_NAME", "SinkFolder", "make_directory", "storing", "sync_directory", "write_all"]

SINK_NAME: Final = "spark"
"""The directory, in that of the journal."""
MARKS_MAX: Final = 65_536
"""Streaming queries whose last batch is remembered; of more, those that published longest ago are forgotten."""
_MANIFEST_SUFFIX: Final = ".manifest"
_TEMPORARY_SUFFIX: Final = ".tmp"


class SinkFolder:
    """`journal` is the directory of the journal, which need not exist yet."""

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        self.path: Path = journal / SINK_NAME
        self._staged = self.path / "staged"
        self._manifests = self.path / "manifests"
        self._marks = self.path / "published"

    @property
    def lock_path(self) -> Path:
        """The file whose flock whoever publishes holds."""
        return self.path / "lock"

    def staged(self, key: WriteKey) -> Path:
        """Where the tasks of this write stage."""
        return self._staged / key.write_id / str(key.batch_id)

    # -- manifests

    def store(self, manifest: Manifest) -> None:
        """Stores a manifest, in place of an older one of the same write; durable when it returns."""
        with storing(self._manifests):
            make_directory(self._manifests)
            path = self._manifest_path(manifest.key)
            replace_file(path, encode_manifest(manifest), temporary=path.with_suffix(_TEMPORARY_SUFFIX))

    def load(self, key: WriteKey) -> Manifest | None:
        """The manifest of this write; None when there is none. CorruptionError or FormatError with its path."""
        path = self._manifest_path(key)
        with storing(path):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                return None
        try:
            manifest = decode_manifest(data)
            if manifest.key != key:
                raise CorruptionError(f"it is of {manifest.key}", expected=f"the manifest of {key}")
        except CorruptionError as error:
            text = f"{path} is damaged: {error}; expected {error.expected}; restore it, or give the write up with wal.spark.sink.discard"
            raise CorruptionError(text, path=str(path), offset=0, expected=error.expected) from error
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from error
        return manifest

    def decided(self) -> list[WriteKey]:
        """The writes that have a manifest, by id and batch."""
        keys = []
        for name in _names(self._manifests):
            write_id, _, batch = name.removesuffix(_MANIFEST_SUFFIX).rpartition("-")
            if name.endswith(_MANIFEST_SUFFIX) and write_id and batch.isdecimal():
                keys.append(WriteKey(write_id, int(batch)))
        return sorted(keys)

    def is_published(self, key: WriteKey) -> bool:
        """Whether this batch of a streaming query, or a later one of it, was published as a whole."""
        last = self._last_published(key.write_id)
        return last is not None and key.batch_id <= last

    def finish(self, manifest: Manifest) -> None:
        """Everything in the manifest is in the log: remembers that, durably, and removes the write's files."""
        with storing(self.path):
            if manifest.stream:
                make_directory(self._marks)
                path = self._marks / manifest.key.write_id
                replace_file(path, b"%d\n" % manifest.key.batch_id, temporary=path.with_suffix(_TEMPORARY_SUFFIX))
            self.forget(manifest.key)

    def forget(self, key: WriteKey) -> None:
        """Removes a write's files: the manifest first, durably, so that no manifest ever names what is gone."""
        with storing(self.path):
            remove_file(self._manifest_path(key))
            self.drop_staged(key)

    # -- what is staged

    def drop_staged(self, key: WriteKey, *, files: Iterable[str] | None = None) -> None:
        """Removes what was staged for a write: all of it, or these files."""
        directory = self.staged(key)
        if files is None:
            remove_tree(directory)
        else:
            for file in files:
                (directory / file).unlink(missing_ok=True)
        for empty in (directory, directory.parent):
            with contextlib.suppress(OSError):  # not empty, or gone
                empty.rmdir()

    def missing(self, manifest: Manifest) -> list[str]:
        """The files of a manifest that are not there, or not as long as they were."""
        directory = self.staged(manifest.key)
        return [file.name for file in manifest.files if not _has_size(directory / file.name, file.size)]

    def sweep(self, *, age_s: float) -> int:
        """Removes what nobody will publish: staged by batches that are over, or not touched for `age_s`. Answers how many writes."""
        kept = set(self.decided())
        swept = 0
        for write_id in _names(self._staged):
            last = self._last_published(write_id)
            for batch in _names(self._staged / write_id):
                if not batch.isdecimal():
                    continue
                key = WriteKey(write_id, int(batch))
                if key in kept:
                    continue
                over = last is not None and key.batch_id <= last
                if over or _touched(self.staged(key)) < time.time() - age_s:
                    self.drop_staged(key)
                    swept += 1
        for directory in (self._manifests, self._marks):
            for name in _names(directory):
                if name.endswith(_TEMPORARY_SUFFIX):  # of a writer that was killed: whoever sweeps is the only one now
                    (directory / name).unlink(missing_ok=True)
        self._bound_marks(kept)
        return swept

    def _bound_marks(self, kept: Collection[WriteKey]) -> None:
        marks = _names(self._marks)
        if len(marks) <= MARKS_MAX:
            return
        busy = {key.write_id for key in kept}
        old = sorted((name for name in marks if name not in busy), key=lambda name: _touched(self._marks / name))
        for name in old[: len(marks) - MARKS_MAX]:
            (self._marks / name).unlink(missing_ok=True)
        sync_directory(self._marks)

    def _last_published(self, write_id: str) -> int | None:
        path = self._marks / write_id
        with storing(path):
            try:
                text = path.read_bytes()
            except FileNotFoundError:
                return None
        if not (text.endswith(b"\n") and text.strip().isdigit()):
            raise CorruptionError(
                f"{path} is damaged: it says {text[:40]!r}; write the number of the last batch of this query that is in the log into it",
                path=str(path),
                offset=0,
                expected="a decimal number and a line end",
            )
        return int(text)

    def _manifest_path(self, key: WriteKey) -> Path:
        return self._manifests / f"{key.write_id}-{key.batch_id}{_MANIFEST_SUFFIX}"


@contextlib.contextmanager
def storing(path: Path) -> Iterator[None]:
    """Errors of the operating system become a NoSpaceError (room can be made, then retried) or a StorageError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpaceError(
                f"there is no room for the files of the sink in {path}: free some space, and run it again"
            ) from error
        raise StorageError(f"the files of the sink in {path} cannot be written or read: {error}") from error


def replace_file(path: Path, data: bytes, *, temporary: Path) -> None:
    """Puts a whole file in place: written beside it, synced, renamed, directory synced."""
    fd = PRIVATE.create(temporary, os.O_WRONLY | os.O_TRUNC)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path)
    sync_directory(path.parent)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Writes all of it at the file's end."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def make_directory(path: Path) -> None:
    """Makes a directory and those above it that are missing."""
    if path.is_dir():
        return
    if path.parent != path:
        make_directory(path.parent)
    PRIVATE.make_directory(path)
    sync_directory(path.parent)


def remove_file(path: Path) -> None:
    """Removes a file, if there is one."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    sync_directory(path.parent)


def remove_tree(path: Path) -> None:
    """Removes a directory and what is in it, as far as it is there. Not synced: whoever looks for leftovers finds it again."""
    shutil.rmtree(path, ignore_errors=True)


def sync_directory(path: Path) -> None:
    """Returns when names made, changed and removed in this directory are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _names(directory: Path) -> list[str]:
    with storing(directory):
        try:
            return sorted(os.listdir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return []


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def _touched(path: Path) -> float:
    """When a file, or the newest of a directory, was last written to; now, when it is going away."""
    return max(_times(path), default=time.time())


def _times(path: Path) -> Iterator[float]:
    try:
        yield path.stat().st_mtime
        if path.is_dir():
            for entry in os.scandir(path):
                yield entry.stat().st_mtime
    except FileNotFoundError:
        return
