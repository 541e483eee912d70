"""Open files whose numbers are above those of the standard streams, 0 to 2.

A process may close a standard stream, as a daemon does, and the next file that is opened gets its number. Then whatever writes to that
stream (a traceback, the C part of a library) writes into the file, and a later `dup2` replaces it. So no file of a log has such a number,
as in SQLite: all code of the product opens files by these functions. `tests/runtime/test_descriptors.py` checks that.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from pathlib import Path
from typing import Final

_FIRST: Final = 3


def open_file(path: Path | str, flags: int, mode: int = 0o666, *, dir_fd: int | None = None) -> int:
    """Opens a file as `os.open` does, and never under the number of a standard stream. It can be the `opener` of Python's `open`."""
    return above_streams(os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=dir_fd))


def above_streams(fd: int) -> int:
    """Returns a descriptor of the same open file with a number above the standard streams; a lower one is closed."""
    if fd >= _FIRST:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST)
    finally:
        os.close(fd)


def map_file(fd: int, size: int, *, access: int = mmap.ACCESS_DEFAULT) -> mmap.mmap:
    """Maps the first bytes of an open file. A mapping has a descriptor of its own, which is above those of the standard streams too."""
    streams = []
    try:
        while (free := os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)) < _FIRST:
            streams.append(free)
        os.close(free)
        return mmap.mmap(fd, size, access=access)
    finally:
        for free in streams:
            os.close(free)


def write_file(path: Path, data: bytes) -> None:
    """Writes a whole file, as `Path.write_bytes` does."""
    with open(path, "wb", opener=open_file) as file:
        file.write(data)


def pipe() -> tuple[int, int]:
    """Returns the ends of a new pipe, for reading and for writing."""
    reader, writer = os.pipe()
    return above_streams(reader), above_streams(writer)
