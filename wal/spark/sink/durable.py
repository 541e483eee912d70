"""Durable: the few calls that the sink's files rest on, and the errors of the file system in the log's own words.

A file or a name that one of these has written is there after a crash of the machine, and its owner alone can read it. Whoever calls decides
what is written and when.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from wal.errors import NoSpaceError, StorageError
from wal.files import PRIVATE

__all__ = ["make_directory", "remove_file", "remove_tree", "replace_file", "storing", "sync_directory", "write_all"]


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
