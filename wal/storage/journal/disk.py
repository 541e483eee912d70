"""Disk: the few calls on which durability depends, in one place.

Owns: complete writes (partial writes are continued, at most 1,024 buffers per call), syncs, renames, and their counters. Every write and
every sync of a journal uses this class; a test passes its own Disk to the backend that fails, counts or cuts the power. It makes no
decisions: its errors are those of the operating system.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Final, Protocol

from wal.runtime.descriptors import open_file
from wal.runtime.system import allocate, direct_flag, sync_data, sync_file
from wal.storage.files import PRIVATE, FileAccess, HeldDirectory, free_bytes
from wal.storage.files.links import is_shared
from wal.storage.journal.layout import SECTOR_BYTES
from wal.storage.journal.linux_aio import AsyncWrite, syncs_writes

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_ALIGNED_BYTES: Final = 1 << 20
BUFFERS_MAX: Final = 1024
"""The most buffers that one pwritev accepts: IOV_MAX of Linux."""


class FrameFile(Protocol):
    """The bytes of a segment, open for reading."""

    @property
    def path(self) -> Path:
        """The path of the file, or its name in an archive."""

    def read(self, length: int, offset: int) -> bytes:
        """Returns the bytes at this offset; fewer only where the file ends."""

    def read_into(self, buffers: Sequence[memoryview], offset: int) -> bool:
        """Fills these buffers, at most `BUFFERS_MAX`, with the bytes from this offset on; returns whether the file had that many."""

    def close(self) -> None:
        """Releases the file. Idempotent."""


class JournalFile:
    """One open file. `writes`, `written_bytes` and `syncs` count the calls on it."""

    __slots__ = ("__weakref__", "_aligned", "fd", "path", "syncs", "writes", "written_bytes")

    def __init__(self, path: Path, fd: int) -> None:
        self.path: Path = path
        self.fd: int = fd
        self.writes: int = 0
        self.written_bytes: int = 0
        self.syncs: int = 0
        self._aligned: mmap.mmap | None = None  # data is copied here before a write that bypasses the page cache

    def bypass_cache(self) -> None:
        """Writes whole sectors directly to the disk from now on, where the file system and the disk support it.

        Segments are written once, in order, and synced at once. In the page cache each of their pages would cost an allocation, first when
        it is filled with zeros: some 2 ms per megabyte on a virtual machine, more than all other work on it. Readers still use the page
        cache; a direct write drops the pages that it overwrites.
        """
        try:
            flags = fcntl.fcntl(self.fd, fcntl.F_GETFL)
            fcntl.fcntl(self.fd, fcntl.F_SETFL, flags | direct_flag())
        except OSError:
            return  # this file system, or this operating system, always goes through the cache
        aligned = mmap.mmap(-1, _ALIGNED_BYTES)
        try:
            os.preadv(self.fd, [memoryview(aligned)[:SECTOR_BYTES]], SECTOR_BYTES)
        except OSError:
            self.use_cache()  # this disk has larger sectors than ours
        else:
            self._aligned = aligned

    @property
    def is_direct(self) -> bool:
        """Whether writes bypass the page cache."""
        return self._aligned is not None

    def use_cache(self) -> None:
        """Undoes `bypass_cache`."""
        self._aligned = None
        flags = fcntl.fcntl(self.fd, fcntl.F_GETFL)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, flags & ~direct_flag())

    def write(self, buffers: Sequence[bytes | memoryview], offset: int) -> None:
        """Writes all buffers, one after the other, from `offset` on."""
        for first in range(0, len(buffers), BUFFERS_MAX):
            remaining = buffers[first : first + BUFFERS_MAX] if first or len(buffers) > BUFFERS_MAX else buffers
            total = sum(map(len, remaining))
            done = 0
            while done < total:
                count = self._pwritev(remaining, offset)
                if count <= 0:
                    raise OSError(errno.EIO, "pwritev wrote nothing", str(self.path))
                self.writes += 1
                self.written_bytes += count
                offset += count
                done += count
                if done < total:
                    remaining = _without(remaining, count)

    def begin_write(self, write: AsyncWrite, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        """Begins to write and sync all buffers, without waiting; returns their length. An OSError means that nothing is written."""
        total = sum(map(len, buffers))
        _copy(buffers, write.buffer(total))
        write.submit(self.fd, total, offset)
        self.writes += 1
        self.written_bytes += total
        self.syncs += 1
        return total

    def sync(self) -> None:
        """Returns when everything written is on the disk."""
        self.syncs += 1
        self._fdatasync()

    def read(self, length: int, offset: int) -> bytes:
        """Returns the bytes at this offset; fewer only where the file ends."""
        data = os.pread(self.fd, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        done = len(data)
        while done < length and (data := os.pread(self.fd, length - done, offset + done)):
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def read_into(self, buffers: Sequence[memoryview], offset: int) -> bool:
        """Fills these buffers, at most `BUFFERS_MAX`, with the bytes from this offset on; returns whether the file had that many."""
        total = sum(map(len, buffers))
        if hasattr(os, "preadv") and os.preadv(self.fd, buffers, offset) == total:
            return True
        data, at = self.read(total, offset), 0  # no preadv on this system, or interrupted
        if len(data) < total:
            return False
        for buffer in buffers:
            buffer[:] = data[at : at + len(buffer)]
            at += len(buffer)
        return True

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def allocate(self, size: int) -> None:
        """Allocates the whole file up to this size; never shrinks it."""
        allocate(self.fd, 0, size)

    def cut(self, size: int) -> None:
        """Drops the bytes at and after this offset."""
        os.ftruncate(self.fd, size)

    def close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1  # in this order: a child that is forked meanwhile may close this file as well
            os.close(fd)

    def _pwritev(self, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        if self._aligned is not None:
            total = sum(map(len, buffers))
            if (offset | total) % SECTOR_BYTES == 0:
                return os.pwritev(self.fd, [self._copied(buffers, total)], offset)
            self.use_cache()  # only the rest of a partial write is not a whole number of sectors
        return os.pwritev(self.fd, buffers, offset)

    def _copied(self, buffers: Sequence[bytes | memoryview], total: int) -> memoryview:
        """Returns the bytes of the buffers at an address from which the disk can read."""
        assert self._aligned is not None
        if total > len(self._aligned):
            self._aligned = mmap.mmap(-1, 2 * total)
        _copy(buffers, self._aligned)
        return memoryview(self._aligned)[:total]

    def _fdatasync(self) -> None:
        sync_data(self.fd)


class Disk:
    """The file system as the journal uses it. `access` sets who may read the created files.

    Names in a held directory are looked up in that directory, not through its path, so that a writer whose directory was replaced never
    opens, renames or removes a file of the process that has the path now.
    """

    access: FileAccess = PRIVATE
    _held: Mapping[Path, HeldDirectory] = MappingProxyType({})  # replaced, never changed, so that lookups need no lock
    _holding: ClassVar = threading.Lock()

    def hold(self, directory: HeldDirectory) -> None:
        """Looks up names of this path in the held directory from now on, until `let_go`."""
        with self._holding:
            self._held = {**self._held, directory.path: directory}

    def let_go(self, directory: HeldDirectory) -> None:
        """Ends `hold`; a directory that was held later under the same path is not affected."""
        with self._holding:
            self._held = {path: holder for path, holder in self._held.items() if holder is not directory}

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> JournalFile:
        """Opens an existing file, or (`create`) a new empty one, for reading and, unless `write` is False, for writing."""
        flags = os.O_RDWR if write else os.O_RDONLY
        name, directory = self._lookup(path)
        with _full_names(path):
            if create:
                fd = self.access.create(name, flags | os.O_TRUNC, dir_fd=directory)
            else:
                fd = open_file(name, flags, dir_fd=directory)
            return self._file(path, fd)

    def replace(self, path: Path, data: bytes, *, temporary: Path) -> None:
        """Durably replaces a whole file: writes the new one beside it, syncs, renames, and syncs the directory."""
        file = self.open(temporary, create=True)
        try:
            file.write([data], 0)
            file.sync()
        finally:
            file.close()
        self.rename(temporary, path)
        self.sync_directory(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        """Renames a file; the new name is durable only after `sync_directory`."""
        old, old_directory = self._lookup(source)
        new, new_directory = self._lookup(target)
        with _full_names(source, target):
            os.rename(old, new, src_dir_fd=old_directory, dst_dir_fd=new_directory)

    def unlink(self, path: Path) -> None:
        """Removes a file; a missing one is not an error."""
        name, directory = self._lookup(path)
        with contextlib.suppress(FileNotFoundError), _full_names(path):
            os.unlink(name, dir_fd=directory)

    def rename_synced(self, source: Path, target: Path) -> None:
        """Durably renames a file within its directory. Renames nothing when no descriptor is free for the directory."""
        fd = self._open_directory(source.parent)
        try:
            self.rename(source, target)
            self._sync_names(source.parent, fd)
        finally:
            os.close(fd)

    def sync_directory(self, path: Path) -> None:
        """Returns when all names created, changed and removed in this directory are on the disk."""
        fd = self._open_directory(path)
        try:
            self._sync_names(path, fd)
        finally:
            os.close(fd)

    def make_directory(self, path: Path) -> None:
        """Durably creates a directory with `access`; missing parents get the mode that the umask leaves."""
        if path.is_dir():
            return
        self._make_parents(path.parent)
        self.access.make_directory(path)
        self.sync_directory(path.parent)

    def is_shared(self, path: Path) -> bool:
        """Returns whether this file has other names too, so that it must not be written in place."""
        name, directory = self._lookup(path)
        return is_shared(os.stat(name, dir_fd=directory))

    def free_bytes(self, path: Path) -> int | None:
        """Returns the bytes by which files in this directory may still grow; None if the file system does not report it."""
        return free_bytes(path)

    def boot(self) -> bytes:
        """Returns 16 bytes that differ after each start of the machine; empty if unknown."""
        try:
            return uuid.UUID(_BOOT_ID.read_text().strip()).bytes
        except (OSError, ValueError):
            return b""

    def async_write(self, file: JournalFile) -> AsyncWrite:
        """Returns the means to write such a file without waiting. Raises an OSError with the reason where there is none."""
        if not file.is_direct:
            raise OSError(errno.ENOTSUP, "its file system or its disk writes only through the page cache (no O_DIRECT)")
        if not syncs_writes(file.fd):
            raise OSError(errno.ENOTSUP, "its file system is neither ext4 nor XFS")
        return AsyncWrite()

    def sync_map(self, mapping: mmap.mmap, fd: int, path: Path) -> None:
        """Returns when a mapped file, which is open as `fd`, is on the disk."""
        mapping.flush()
        if not hasattr(os, "fdatasync"):
            sync_file(fd)  # on macOS, msync ends at the disk's own cache

    def _file(self, path: Path, fd: int) -> JournalFile:
        return JournalFile(path, fd)

    def _make_parents(self, path: Path) -> None:
        if path.is_dir():
            return
        self._make_parents(path.parent)
        path.mkdir(exist_ok=True)
        self.sync_directory(path.parent)

    def _sync_names(self, path: Path, fd: int) -> None:
        sync_file(fd)

    def _open_directory(self, path: Path) -> int:
        holder = self._held.get(path)
        name, directory = (path, None) if holder is None else (".", holder.fd)
        with _full_names(path):
            return open_file(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)

    def _lookup(self, path: Path) -> tuple[Path | str, int | None]:
        """Returns the name of a file, and the descriptor of the directory in which to look it up; None for the path as it is."""
        holder = self._held.get(path.parent)
        return (path, None) if holder is None else (path.name, holder.fd)


@contextlib.contextmanager
def _full_names(path: Path, target: Path | None = None) -> Iterator[None]:
    """Makes an OSError name whole paths, however the files were looked up."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        if target is not None:
            error.filename2 = str(target)
        raise


def _copy(buffers: Sequence[bytes | memoryview], target: mmap.mmap) -> None:
    """Copies the buffers, one after the other, to the start of the target."""
    at = 0
    for buffer in buffers:
        end = at + len(buffer)
        target[at:end] = buffer
        at = end


def _without(buffers: Sequence[bytes | memoryview], count: int) -> list[bytes | memoryview]:
    """Returns the buffers without their first `count` bytes."""
    at = 0
    while count >= len(buffers[at]):
        count -= len(buffers[at])
        at += 1
    return [memoryview(buffers[at])[count:], *buffers[at + 1 :]]
