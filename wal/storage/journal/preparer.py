"""Preparer: the thread that prepares the next segment before it is needed, and does other work that can wait.

Owns: the files that are not segments yet: `<term:016x>-<n>.zeros` while they are being filled, `<term:016x>-<n>.spare` when they are ready,
whether filled with zeros or left by a truncation. A frame overwrites zeros (or frames of an earlier use), so its sync writes only data, no
allocations. Sizes double from one segment to the next up to `segment_bytes`.

A full disk causes no failure here: the append that needs the segment fails with NoSpaceError, and the next append tries again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from wal.errors import NoSpaceError, StorageError, WouldBlockError, caused
from wal.storage.journal.disk import Disk, JournalFile
from wal.storage.journal.layout import HEADER_PAGE_BYTES

SPARE_SUFFIX: Final = ".spare"
ZEROS_SUFFIX: Final = ".zeros"
_ZEROS: Final = bytes(1 << 20)
_SYNC_BYTES: Final = 4 << 20
"""A file is synced this often while it is filled, so that the sync of a frame meanwhile never waits for a whole segment."""
_SPARES_MAX: Final = 2
KEPT_FREE_BYTES: Final = 128 << 10
"""No file is begun that would leave less free space than this, because the metadata may have released its reserve for a moment."""
NO_SPACE: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""The errors of the operating system for a full disk."""
NO_DESCRIPTOR: Final = frozenset((errno.EMFILE, errno.ENFILE))
"""The errors when the process, or the machine, has too many open files."""


class Spare(msgspec.Struct, frozen=True, gc=False):
    """A file of `size` bytes, all allocated, that can become a segment."""

    path: Path
    size: int


class Preparer:
    """The preparer of one log that is open for writing. Any thread except the loop's may call `take` and `offer`."""

    def __init__(self, disk: Disk, directory: Path, *, name: str, term: int, segment_bytes: int, hint: Callable[[], str] = str) -> None:
        """`hint` returns the end of the error of a full disk."""
        self._disk = disk
        self._hint = hint
        self._directory = directory
        self._term = term
        self._segment_bytes = segment_bytes
        self._count = 0
        self._lock = threading.Condition()
        self._spares: list[Spare] = []
        self._preparing = False
        self.failure: StorageError | None = None
        """The defect of a job for which no caller waits; after it nothing more is written through the log."""
        self._failed_fill: OSError | None = None
        self._closed = False
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"wal-prepare-{name}", daemon=True)
        self._thread.start()

    def run(self, job: Callable[[], None]) -> None:
        """Runs a job in the thread, after the jobs before it. An OSError in it is dropped, so the job must be repeatable.

        Any other exception is a defect, and becomes the `failure`.
        """
        self._jobs.put(job)

    def prepare(self, size: int) -> None:
        """Starts to prepare a file of this size (at most `segment_bytes`), unless a spare is large enough."""
        size = min(size, self._segment_bytes)
        with self._lock:
            if self._preparing or self._closed or any(spare.size >= size for spare in self._spares):
                return
            self._preparing = True
        self._jobs.put(lambda: self._fill(size))

    def take(self, needed: int, size: int) -> Spare:
        """Returns a file of at least `needed` bytes, of about `size` if it has to be created; waits for it.

        Raises NoSpaceError without room for it, WouldBlockError without a descriptor for it, and any other OSError unchanged.
        """
        with self._lock:
            while self._preparing:
                self._lock.wait()
            if (spare := self._pop(needed)) is not None:
                return spare
            self._preparing = True
        size = -(-max(needed, min(size, self._segment_bytes)) // HEADER_PAGE_BYTES) * HEADER_PAGE_BYTES
        self._fill(size)
        with self._lock:
            if (spare := self._pop(needed)) is not None:
                return spare
            failure = self._failed_fill
        if failure is not None and failure.errno in NO_DESCRIPTOR:
            raise no_descriptor(failure, self._directory) from failure
        if failure is None or failure.errno not in NO_SPACE:
            raise failure or OSError(errno.ECANCELED, "the log is closing", str(self._directory))
        raise NoSpaceError(
            f"no room for the next segment in {self._directory}: free at least {size + KEPT_FREE_BYTES} bytes and append again"
            + self._hint()
        ) from failure

    def offer(self, path: Path, size: int) -> bool:
        """Takes over the file of a former segment, under a new name; returns False when there are enough spare files."""
        with self._lock:
            if self._closed or len(self._spares) >= _SPARES_MAX or size < self._segment_bytes:
                return False
            target = self._new_path(SPARE_SUFFIX)
        self._disk.rename(path, target)
        self._disk.sync_directory(self._directory)
        self.adopt(Spare(target, size))
        return True

    def adopt(self, spare: Spare) -> None:
        """Adds a file that is already prepared."""
        with self._lock:
            self._spares.append(spare)
            self._lock.notify_all()

    def close(self) -> None:
        """Stops the thread after it has finished its jobs; prepared files stay for the next opening."""
        with self._lock:
            self._closed = True
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except OSError:
                pass  # its work is repeated when needed
            except Exception as error:
                # No error may end this thread: the log waits for its jobs, and for its end.
                failure = caused(
                    StorageError(f"preparing segments in {self._directory} failed: {error!r}; please report it, and open the log again"),
                    error,
                )
                self.failure = self.failure or failure

    def _pop(self, needed: int) -> Spare | None:
        for spare in [spare for spare in self._spares if spare.size >= needed]:
            self._spares.remove(spare)
            if not self._disk.is_shared(spare.path):
                return spare
            self._disk.unlink(spare.path)
        return None

    def _fill(self, size: int) -> None:
        """Prepares a file of zeros, or records the error."""
        with self._lock:
            path = self._new_path(ZEROS_SUFFIX)
            self._failed_fill = None
        try:
            free = self._disk.free_bytes(self._directory)
            if free is not None and free < size + KEPT_FREE_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            file = self._disk.open(path, create=True)
            try:
                complete = fill_with_zeros(file, size, stop=lambda: self._closed)
            finally:
                file.close()
            if complete:
                ready = path.with_suffix(SPARE_SUFFIX)
                self._disk.rename(path, ready)
                self.adopt(Spare(ready, size))
            else:
                self._disk.unlink(path)
        except OSError as error:
            self._failed_fill = error
            with contextlib.suppress(OSError):
                self._disk.unlink(path)
        finally:
            with self._lock:
                self._preparing = False
                self._lock.notify_all()

    def _new_path(self, suffix: str) -> Path:
        self._count += 1
        return self._directory / f"{self._term:016x}-{self._count}{suffix}"


def no_descriptor(error: OSError, directory: Path) -> WouldBlockError:
    """Returns the error for an append that found no descriptor for the next segment."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    whose = f"this process, which may have {limit} files open," if error.errno == errno.EMFILE else "this machine"
    return WouldBlockError(
        f"the next segment in {directory} could not be opened, because {whose} has no file descriptor left; nothing was written: close "
        "some files, or raise the limit (ulimit -n), and append again"
    )


def fill_with_zeros(file: JournalFile, size: int, *, stop: Callable[[], bool] = lambda: False) -> bool:
    """Writes `size` zeros from the start of the file and syncs them; returns False when `stop` interrupted it."""
    file.bypass_cache()
    offset = 0
    while offset < size:
        if stop():
            return False
        count = min(len(_ZEROS), size - offset)
        file.write([memoryview(_ZEROS)[:count]], offset)
        offset += count
        if offset % _SYNC_BYTES == 0 or offset == size:
            file.sync()
    return True
