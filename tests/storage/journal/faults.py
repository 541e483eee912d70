"""Disks that fail, observe or wait as the test configures them; everything else is real."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from wal.storage.journal.disk import Disk, JournalFile
from wal.storage.journal.linux_aio import AsyncWrite


class WatchedDisk(Disk):
    """Records, for each read of a segment, whether a writer could have taken the file meanwhile."""

    def __init__(self) -> None:
        self.free: list[bool] = []
        self.watching = False

    def _file(self, path: Path, fd: int) -> JournalFile:
        return _WatchedFile(self, path, fd)


class _WatchedFile(JournalFile):
    __slots__ = ("_disk",)

    def __init__(self, disk: WatchedDisk, path: Path, fd: int) -> None:
        super().__init__(path, fd)
        self._disk = disk

    def read(self, length: int, offset: int) -> bytes:
        if self._disk.watching and self.path.suffix == ".wal":
            fd = os.open(self.path, os.O_RDONLY)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._disk.free.append(True)
            except BlockingIOError:
                self._disk.free.append(False)
            finally:
                os.close(fd)
        return super().read(length, offset)


class GatedDisk(Disk):
    """A disk on which files with `name` in their names (checkpoints, by default) cannot be opened while `gate` is clear: opening waits."""

    def __init__(self, name: str = "checkpoint-") -> None:
        self.name = name
        self.gate = threading.Event()
        self.gate.set()

    def _file(self, path: Path, fd: int) -> JournalFile:
        if self.name in path.name:
            self.gate.wait()
        return super()._file(path, fd)


class HeldDisk(Disk):
    """A disk on which the creation of the first file with `name` in its name waits until `go` is set."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.held = threading.Event()
        self.go = threading.Event()
        self._lock = threading.Lock()

    async def until_held(self) -> None:
        """Waits until a thread waits for `go`."""
        assert await asyncio.to_thread(self.held.wait, 10), f"nobody made a file with {self.name!r} in its name"

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> JournalFile:
        if create and self.name in path.name:
            with self._lock:
                first = not self.held.is_set()
                self.held.set()
            if first:
                self.go.wait()
        return super().open(path, create=create, write=write)


class RemovalDisk(Disk):
    """A disk on which a thread that removes a segment, or keeps its file as a spare, waits until `go` is set."""

    def __init__(self) -> None:
        self.held = threading.Event()
        self.go = threading.Event()

    def rename(self, source: Path, target: Path) -> None:
        self._wait(source)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._wait(path)
        super().unlink(path)

    def _wait(self, path: Path) -> None:
        if path.suffix == ".wal":
            self.held.set()
            self.go.wait()


class MeetingDisk(Disk):
    """A disk that notes in `met` whether a save of a checkpoint and the filling of its reserve ever open their files at the same time.

    Each of them waits for the other for a moment while it opens its file.
    """

    def __init__(self) -> None:
        self.met = False
        self._saves = threading.Event()
        self._fills = threading.Event()

    def _file(self, path: Path, fd: int) -> JournalFile:
        if path.name.startswith("checkpoint-"):
            self._meet(self._saves, self._fills)
        elif path.name == "checkpoint.reserve":
            self._meet(self._fills, self._saves)
        return super()._file(path, fd)

    def _meet(self, mine: threading.Event, other: threading.Event) -> None:
        mine.set()
        self.met = other.wait(0.2) or self.met
        mine.clear()


class FaultyDisk(Disk):
    """`room`: bytes by which files may still grow (ENOSPC beyond it). `partial`: a pwritev writes at most this many bytes.

    `written`: (offset, length) of each pwritev of a segment. `fail_sync`, `fail_write`: the next sync or write of a segment fails with EIO,
    once. `syncs`: the number of syncs of each file name. `submit_error`: the error number with which the loop's next write is refused,
    once. `short`: the next one writes fewer bytes, once. `frozen`: while it is set, completions of the loop's writes are not seen there;
    `begun` counts these writes, and `reaped` the writes that the loop saw complete.
    """

    def __init__(self) -> None:
        self.room: int | None = None
        self.partial: int | None = None
        self.fail_sync = False
        self.fail_write = False
        self.syncs: Counter[str] = Counter()
        self.submit_error = 0
        self.short = False
        self.frozen = False
        self.begun = 0
        self.reaped = 0
        self.buffers_max = 0
        self.written: list[tuple[int, int]] = []
        self.lock = threading.Lock()

    def _file(self, path: Path, fd: int) -> JournalFile:
        return _FaultyFile(self, path, fd)

    def async_write(self, file: JournalFile) -> AsyncWrite:
        super().async_write(file).close()  # raises where there is none
        return _FaultyWrite(self)


class _FaultyWrite(AsyncWrite):
    __slots__ = ("_disk", "_result")

    def __init__(self, disk: FaultyDisk) -> None:
        super().__init__()
        self._disk = disk
        self._result: int | None = None

    def submit(self, fd: int, length: int, offset: int) -> None:
        disk = self._disk  # without its lock, which a thread may hold for long
        if disk.submit_error:
            number, disk.submit_error = disk.submit_error, 0
            raise OSError(number, os.strerror(number))
        self._result = None
        if disk.fail_write or disk.fail_sync:
            length = length if disk.fail_sync else 512
            disk.fail_write = disk.fail_sync = False
            self._result = -errno.EIO
        elif disk.short:
            disk.short = False
            length -= 512
        disk.begun += 1
        super().submit(fd, length, offset)

    def reap(self) -> int | None:
        result = None if self._disk.frozen else self._changed(super().reap())
        self._disk.reaped += result is not None
        return result

    def wait(self, wait_s: float) -> int | None:
        return self._changed(super().wait(wait_s))

    def _changed(self, result: int | None) -> int | None:
        return result if result is None or self._result is None else self._result


class _FaultyFile(JournalFile):
    __slots__ = ("_disk",)

    def __init__(self, disk: FaultyDisk, path: Path, fd: int) -> None:
        super().__init__(path, fd)
        self._disk = disk

    def _pwritev(self, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        disk = self._disk
        with disk.lock:
            disk.buffers_max = max(disk.buffers_max, len(buffers))
            if disk.fail_write and self.path.suffix == ".wal":
                disk.fail_write = False
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))
            length = sum(map(len, buffers))
            if self.path.suffix == ".wal":
                disk.written.append((offset, length))
            growth = offset + length - self.size()
            if disk.room is not None and growth > 0:
                if growth > disk.room:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
                disk.room -= growth
            if disk.partial is not None and length > disk.partial:
                return super()._pwritev([b"".join(buffers)[: disk.partial]], offset)
        return super()._pwritev(buffers, offset)

    def begin_write(self, write: AsyncWrite, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        length = super().begin_write(write, buffers, offset)
        self._disk.written.append((offset, length))
        self._disk.syncs[self.path.name] += 1
        return length

    def allocate(self, size: int) -> None:
        disk = self._disk
        with disk.lock:
            growth = max(0, size - self.size())
            if disk.room is not None and growth > disk.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            super().allocate(size)

    def _fdatasync(self) -> None:
        disk = self._disk
        with disk.lock:
            disk.syncs[self.path.name] += 1
            if disk.fail_sync and self.path.suffix == ".wal":
                disk.fail_sync = False
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))
        super()._fdatasync()


class BrokenDisk(Disk):
    """Raises an error, once, when a file whose name has this ending is opened, or renamed and synced, while `error` is set."""

    def __init__(self, suffix: str, error: Exception | None = None) -> None:
        self.suffix = suffix
        self.error = error
        self.raised = threading.Event()

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> JournalFile:
        self._raise(path)
        return super().open(path, create=create, write=write)

    def rename_synced(self, source: Path, target: Path) -> None:
        self._raise(target)
        super().rename_synced(source, target)

    def _raise(self, path: Path) -> None:
        if self.error is not None and path.name.endswith(self.suffix):
            error, self.error = self.error, None
            self.raised.set()
            raise error
