"""WritePath: the setting that says how frames go to the disk, and what it means for one log."""

from __future__ import annotations

from typing import Literal

from wal.backends.journal.active import ActiveSegment
from wal.backends.journal.disk import Disk
from wal.backends.journal.linux_aio import AsyncWrite
from wal.backends.journal.loop_path import LOOP_BYTES_MAX
from wal.errors import InvalidArgumentError

__all__ = ["WritePath", "loop_bytes_max", "loop_write"]

WritePath = Literal["auto", "loop", "thread"]
"""How frames go to the disk: from the event loop wherever it can, from a thread alone, or (auto) from the loop where it is faster."""


def loop_write(disk: Disk, active: ActiveSegment, write_path: WritePath) -> AsyncWrite | None:
    """Returns the means to write from the loop; None if it is not to, or cannot and need not.

    Raises InvalidArgumentError if it has to and cannot.
    """
    if write_path == "thread":
        return None
    try:
        return disk.async_write(active.file)
    except OSError as error:
        if write_path == "auto":
            return None
        raise InvalidArgumentError(
            f"setting write_path='loop' cannot be used for {active.segment.path}: {error.strerror}; use 'auto' or 'thread'"
        ) from error


def loop_bytes_max(write_path: WritePath, frame_bytes_limit: int) -> int:
    """Returns the bytes of the largest frame that the loop writes. `frame_bytes_limit`: those of the largest frame of the log."""
    return frame_bytes_limit if write_path == "loop" else LOOP_BYTES_MAX
