"""Truncation: where the log begins, where its recovery begins, and what happens to the segments below both.

Owns the order of the steps: the earliest event is stored and synced before any file is removed, and a file is removed only when the
checkpoint of the next recovery has passed it too. Then the segment becomes a spare, if no reader holds it and there are not enough spares,
else it is removed. Its index is removed after it: a thread that is just storing the index sees that the segment is gone, and removes the
index again (`remove_stale_index`). The active segment always stays.
"""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import msgspec

from wal.backends.journal.control import ControlPage
from wal.backends.journal.disk import Disk
from wal.backends.journal.index import index_name
from wal.backends.journal.preparer import Preparer
from wal.backends.journal.segment import Segment
from wal.backends.journal.segments import SegmentSet
from wal.errors import StorageError

__all__ = ["Truncation"]


class Truncation:
    """Truncates one log that is open for writing. `recycled` and `removed` count segments. Blocks, so it runs in threads."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        control: ControlPage,
        segments: SegmentSet,
        preparer: Preparer,
        *,
        checkpoint: int | None,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._control = control
        self._segments = segments
        self._preparer = preparer
        self._lock = threading.Lock()
        self.checkpoint = checkpoint
        """The position where recovery begins: no file at or above it is removed, truncated or not. None: nothing is held for a recovery."""
        self.recycled: int = 0
        self.removed: int = 0

    def truncate(self, earliest: tuple[int, int]) -> tuple[int, int]:
        """Makes this the earliest event unless a later one already is; returns the resulting one. Raises ChannelFencedError,
        StorageError."""
        with self._lock:
            try:
                with self._control.locked():
                    record = self._control.load_owned()
                    if earliest <= record.earliest:
                        return record.earliest
                    self._control.store(msgspec.structs.replace(record, earliest=earliest))
                    self._control.sync()
                self._drop(earliest[0])
            except OSError as error:
                raise StorageError(f"truncating the log in {self._directory} failed: {error.strerror}") from error
        return earliest

    def release(self, checkpoint: int) -> bool:
        """Lets recovery begin here from now on; returns False if it already begins later. Raises ChannelFencedError, StorageError."""
        with self._lock:
            if self.checkpoint is not None and checkpoint < self.checkpoint:
                return False
            try:
                with self._control.locked():
                    record = self._control.load_owned()
                self.checkpoint = checkpoint
                self._drop(record.earliest[0])
            except OSError as error:
                raise StorageError(f"giving space back in {self._directory} failed: {error.strerror}") from error
        return True

    def _drop(self, earliest: int) -> None:
        below = earliest if self.checkpoint is None else min(earliest, self.checkpoint)
        dropped = self._segments.drop_below(below)
        for segment in dropped:
            self._release(segment)
            self._disk.unlink(self._directory / index_name(segment.base))
        if dropped:
            self._disk.sync_directory(self._directory)

    def _release(self, segment: Segment) -> None:
        try:
            file = self._disk.open(segment.path)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._preparer.offer(segment.path, segment.header.size):
                self.recycled += 1
                return
        except BlockingIOError:
            pass  # A reader here or in another process holds the segment: it keeps the open file, and the name is removed.
        finally:
            file.close()
        self._disk.unlink(segment.path)
        self.removed += 1
