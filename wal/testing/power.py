"""PowerCutDisk: a Disk on which the power fails, and the content of the files after that.

It records the previous content of every 512-byte sector written since the last sync of its file, every name changed since the last sync of
its directory, and the mapped control page as of its last sync. When the power fails, each such sector independently keeps the old or the
new content, the control page too. A random number of the newest changes of names is undone (a file system's journal keeps their order).
Without a random generator all unsynced changes are lost. The result is a directory to recover from.

It covers the journal's operations on its `Disk`: frames, segments, checkpoints and control pages. The metadata (sqlite) and the files of
cursors are synced before a call that changes them returns, and are left unchanged.
"""

from __future__ import annotations

import concurrent.futures
import errno
import mmap
import os
import queue
import random
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from wal.storage.journal.disk import Disk, JournalFile
from wal.storage.journal.layout import SECTOR_BYTES
from wal.storage.journal.linux_aio import AsyncWrite


class PowerCutDisk(Disk):
    """Fails after `operations` writes, syncs and changes of names: either the power, which leaves `left_over`, or only the process.

    After a crash the files are as the kernel has them, synced or not; `go_on` passes them to the next process. A stopped disk can be
    pickled, so that another process cuts the power once this one is dead.
    """

    def __init__(self, rng: random.Random | None, root: Path, left_over: Path) -> None:
        self._rng = rng
        self.root = root
        self.left_over = left_over
        self._operations = 0
        self._power = True
        self._lock = threading.RLock()
        self._sectors: dict[int, dict[int, bytes]] = {}
        self._names: dict[Path, list[tuple[str, str, str, Path | None]]] = {}
        self._maps: dict[Path, bytes] = {}
        self._kept = 0
        self._attic = root.parent / f"{root.name}-attic"
        self._attic.mkdir(parents=True, exist_ok=True)
        for control in root.glob("pchannels/*/control"):
            self._maps[control] = control.read_bytes()
        self.dead: bool = False
        self._failed = False  # the power; a disk may also be dead because its process is
        self._boot = os.urandom(16) if rng is None else rng.randbytes(16)  # the boot of this machine; the next boot has another id

    def go_on(self, operations: int, *, power: bool) -> None:
        """Begins a process that ends after this many operations, by a power cut or (`power` False) by its own crash."""
        with self._lock:
            self._operations = operations
            self._power = power
            self.dead = False

    def stop(self) -> None:
        """Rejects every operation from now on, after the running one in another thread."""
        with self._lock:
            self.dead = True

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_held", "access")}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, _lock=threading.RLock())

    def cut(self) -> None:
        """Makes the power fail now, if it has not yet."""
        with self._lock:
            if not self._failed:
                self._fail()

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> JournalFile:
        if not create:
            return super().open(path, write=write)
        with self._lock:
            self._step()
            existed = path.exists()
            file = super().open(path, create=True)
            if not existed:
                self._change(path.parent, ("create", path.name, "", None))
            return file

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            self._step()
            old_link = self._keep(target) if target.exists() else None
            super().rename(source, target)
            self._change(source.parent, ("rename", source.name, target.name, old_link))
            if target.name == "control":
                self._maps[target] = target.read_bytes()

    def unlink(self, path: Path) -> None:
        with self._lock:
            self._step()
            if path.exists():
                old_link = self._keep(path)
                super().unlink(path)
                self._change(path.parent, ("unlink", path.name, "", old_link))

    def _sync_names(self, path: Path, fd: int) -> None:
        with self._lock:
            self._step()
            for _, _, _, old_link in self._names.pop(path, []):
                if old_link is not None:
                    if old_link.stat().st_nlink == 1:
                        self._sectors.pop(old_link.stat().st_ino, None)
                    old_link.unlink()

    def boot(self) -> bytes:
        return self._boot

    def sync_map(self, mapping: mmap.mmap, fd: int, path: Path) -> None:
        with self._lock:
            self._step()
            self._maps[path] = mapping[:]

    def write(self, fd: int, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        with self._lock:
            if self.dead:
                raise _off()
            old = self._sectors.setdefault(os.fstat(fd).st_ino, {})
            length = sum(map(len, buffers))
            for sector in range(offset // SECTOR_BYTES, -(-(offset + length) // SECTOR_BYTES)):
                if sector not in old:
                    old[sector] = os.pread(fd, SECTOR_BYTES, sector * SECTOR_BYTES).ljust(SECTOR_BYTES, b"\0")
            count = os.pwritev(fd, buffers, offset)
            self._step()
            return count

    def sync(self, fd: int) -> None:
        with self._lock:
            self._step()
            self._sectors.pop(os.fstat(fd).st_ino, None)

    def _file(self, path: Path, fd: int) -> JournalFile:
        return _PowerCutFile(self, path, fd)

    def async_write(self, file: JournalFile) -> AsyncWrite:
        return _PowerCutWrite(self)

    def _step(self) -> None:
        if self.dead:
            raise _off()
        self._operations -= 1
        if self._operations < 0:
            self.dead = True
            if self._power:
                self._fail()
            raise _off()

    def _change(self, directory: Path, change: tuple[str, str, str, Path | None]) -> None:
        self._names.setdefault(directory, []).append(change)

    def _keep(self, path: Path) -> Path:
        self._kept += 1
        link = self._attic / str(self._kept)
        os.link(path, link)
        return link

    def _fail(self) -> None:
        self.dead = self._failed = True
        for directory, _, files in os.walk(self.root):
            source = Path(directory)
            target = self.left_over / source.relative_to(self.root)
            target.mkdir(parents=True, exist_ok=True)
            names: dict[str, Path] = {name: source / name for name in files}
            changes = self._names.get(source, [])
            for kind, name, renamed, old_link in reversed(changes[0 if self._rng is None else self._rng.randint(0, len(changes)) :]):
                if kind == "create":
                    names.pop(name, None)
                elif kind == "rename":
                    if renamed in names:
                        names[name] = names.pop(renamed)
                    if old_link is not None:
                        names[renamed] = old_link
                elif old_link is not None:
                    names[name] = old_link
            for name, path in names.items():
                (target / name).write_bytes(self._content(path, source / name))
                shutil.copymode(path, target / name)
        shutil.rmtree(self._attic, ignore_errors=True)

    def _content(self, path: Path, place: Path) -> bytes:
        data = bytearray(path.read_bytes())
        for sector, old in self._sectors.get(path.stat().st_ino, {}).items():
            if self._is_lost():
                data[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES] = old
        synced = self._maps.get(place)
        if synced is not None:
            for at in range(0, len(data), SECTOR_BYTES):
                if self._is_lost():
                    data[at : at + SECTOR_BYTES] = synced[at : at + SECTOR_BYTES]
        return bytes(data)

    def _is_lost(self) -> bool:
        """Draws whether an unsynced sector keeps its previous content."""
        return self._rng is None or self._rng.random() < 0.5


class _PowerCutWrite(AsyncWrite):
    """A write of the loop that a thread makes on the disk above, as the kernel would: it writes, syncs, and signals the completion."""

    __slots__ = ("_completions", "_disk", "_kernel")

    def __init__(self, disk: PowerCutDisk) -> None:
        super().__init__()
        self._disk = disk
        self._kernel = concurrent.futures.ThreadPoolExecutor(1)
        self._completions: queue.SimpleQueue[int] = queue.SimpleQueue()

    def submit(self, fd: int, length: int, offset: int) -> None:
        self._kernel.submit(self._carry_out, fd, self.buffer(length)[:length], offset)

    def reap(self) -> int | None:
        super().reap()
        try:
            return self._completions.get_nowait()
        except queue.Empty:
            return None

    def wait(self, wait_s: float) -> int | None:
        try:
            return self._completions.get(timeout=wait_s)
        except queue.Empty:
            return None

    def end(self) -> None:
        self._kernel.shutdown()
        super().end()

    def _carry_out(self, fd: int, data: bytes, offset: int) -> None:
        try:
            result = self._disk.write(fd, [data], offset)
            self._disk.sync(fd)
        except OSError:
            result = -errno.EIO
        self._completions.put(result)
        os.eventfd_write(self.event_fd, 1)


class _PowerCutFile(JournalFile):
    __slots__ = ("_disk",)

    def __init__(self, disk: PowerCutDisk, path: Path, fd: int) -> None:
        super().__init__(path, fd)
        self._disk = disk

    def bypass_cache(self) -> None:
        """Does nothing: every write goes through the disk above, wherever its bytes are in memory."""

    @property
    def is_direct(self) -> bool:
        return True

    def _pwritev(self, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        return self._disk.write(self.fd, buffers, offset)

    def _fdatasync(self) -> None:
        self._disk.sync(self.fd)


def _off() -> OSError:
    return OSError(errno.EIO, "the power is off")
