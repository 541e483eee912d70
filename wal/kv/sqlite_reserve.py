"""SqliteReserve: bytes of the disk that are kept beside a sqlite file, so that a full disk is no dead end for it.

Owns the file `<name>-reserve`: RESERVE_BYTES that are allocated and mean nothing. The store releases them when a write finds no room,
writes, gives back at least as much, and fills the reserve again. It is best effort: a reserve that cannot be filled now is filled when
there is room, and nothing fails for want of it. Blocks; belongs to the thread of the file.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from wal.files import FileAccess

__all__ = ["RESERVE_BYTES", "SqliteReserve"]

RESERVE_BYTES: Final = 128 << 10
"""Thirty-two pages: what an operation on a few records writes, several times over."""
_STEP_BYTES: Final = 4096


class SqliteReserve:
    """The reserve of the sqlite file at `path`. `held` is the number of bytes that it keeps now."""

    def __init__(self, path: str) -> None:
        self._file = Path(path)
        self._path = Path(f"{path}-reserve")
        self.held: int = 0

    def fill(self) -> None:
        """Allocates what is missing, as far as there is room."""
        if self.held >= RESERVE_BYTES:
            return
        try:
            fd = FileAccess.like(self._file).private.create(self._path, os.O_RDWR)
        except OSError:
            return  # no room for a name: the next opening or transaction tries again
        try:
            held = min(os.fstat(fd).st_size, RESERVE_BYTES)
            with contextlib.suppress(OSError):
                os.posix_fallocate(fd, held, RESERVE_BYTES - held)
                held = RESERVE_BYTES
            with contextlib.suppress(OSError):
                while held < RESERVE_BYTES:
                    os.posix_fallocate(fd, held, _STEP_BYTES)
                    held += _STEP_BYTES
            os.ftruncate(fd, held)  # an attempt that failed may have made it longer
            os.fsync(fd)
            self.held = held
        except OSError:
            self.held = 0  # what it keeps is not known
        finally:
            os.close(fd)

    def release(self) -> int:
        """Gives the bytes back to the disk, and returns how many there were."""
        held, self.held = self.held, 0
        try:
            os.truncate(self._path, 0)
        except OSError:
            return 0
        return held
