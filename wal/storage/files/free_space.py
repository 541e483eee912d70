"""Free space: the free bytes of a file system, and a reserve of them for a full disk. Everything here blocks."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from wal.runtime.system import allocate, sync_file
from wal.storage.files.access import FileAccess
from wal.storage.files.links import is_shared

RESERVE_BYTES: Final = 128 << 10
"""Thirty-two pages: several times what an operation on a few records writes."""
_STEP_BYTES: Final = 4096


def free_bytes(path: str | Path) -> int | None:
    """Returns the bytes by which files on the file system of `path` may still grow; None if the file system does not report it. Blocks."""
    stat = os.statvfs(path)
    blocks = stat.f_bavail if os.geteuid() else stat.f_bfree
    return blocks * stat.f_frsize if stat.f_blocks else None


class SpaceReserve:
    """Disk space reserved beside the sqlite file at `path`, so that a full disk does not stop it for good.

    It owns the file `<name>-reserve`: RESERVE_BYTES of allocated, meaningless bytes. The store releases them when a write finds no room,
    writes, frees at least as much, and fills the reserve again. The reserve is best effort: if it cannot be filled now, it is filled when
    there is room, and nothing fails without it. `held` is the current size of the reserve in bytes.
    """

    def __init__(self, path: str) -> None:
        self._file = Path(path)
        self._path = Path(f"{path}-reserve")
        self.held: int = 0

    def fill(self) -> None:
        """Allocates the missing bytes, or as many as the disk has room for."""
        if self.held >= RESERVE_BYTES:
            return
        try:
            with contextlib.suppress(FileNotFoundError):
                if is_shared(os.stat(self._path)):
                    os.unlink(self._path)
            fd = FileAccess.like(self._file).private.create(self._path, os.O_RDWR)
        except OSError:
            return  # no space for a name: the next opening or transaction retries
        try:
            size = min(os.fstat(fd).st_size, RESERVE_BYTES)
            with contextlib.suppress(OSError):
                allocate(fd, size, RESERVE_BYTES - size)
                size = RESERVE_BYTES
            with contextlib.suppress(OSError):
                while size < RESERVE_BYTES:
                    allocate(fd, size, _STEP_BYTES)
                    size += _STEP_BYTES
            os.ftruncate(fd, size)  # a failed attempt may have made the file longer
            sync_file(fd)
            self.held = size
        except OSError:
            self.held = 0  # its size is unknown
        finally:
            os.close(fd)

    def release(self) -> int:
        """Frees the bytes, and returns their number."""
        size, self.held = self.held, 0
        try:
            os.truncate(self._path, 0)
        except OSError:
            return 0
        return size
