"""HeldNames and HeldDirectory: the names of open files, and whether they still lead to those files.

An open file outlives its name. After `rm -rf`, a rename or a mount over the directory, writes and syncs still succeed, but no process will
ever find their data; a lock on such a file excludes no other process. So the owner of the files compares its open files with the files
under the names, and stops when they differ. The first difference is final: if a name comes back later, another process may have used it
meanwhile.

Owns: the identity (device and inode) of each watched file, and the error. Identities are safe to compare while the file is open, because
its inode is not reused until it is closed. No file under a watched name is ever opened here.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import weakref
from collections.abc import Callable
from errno import ENOENT, ENOTDIR, ESTALE
from pathlib import Path
from typing import Final

from wal.errors import StorageError
from wal.runtime.descriptors import open_file

_GONE: Final = frozenset((ENOENT, ENOTDIR, ESTALE))
_log: Final = logging.getLogger("wal.journal")


class HeldNames:
    """Absolute paths, each with the file that must be there. Thread-safe; `check` blocks for the duration of a few `stat` calls.

    `within`: the names on which these depend; they are checked first. `released` is called when a name leads to another file, before that
    counts as a loss: it raises if the names now belong to another owner, which may use them freely.
    """

    def __init__(self, *, within: HeldNames | None = None, released: Callable[[], object] | None = None) -> None:
        self._within = within
        self._released = released
        self._lock = threading.Lock()
        self._files: dict[Path, os.stat_result] = {}
        self._lost = ""

    def watch(self, path: Path, status: os.stat_result) -> None:
        """Requires from now on that the file with this status is at `path`; the caller keeps that file open until `unwatch`."""
        with self._lock:
            self._files[path] = status

    def unwatch(self, path: Path) -> None:
        """Allows the name to disappear, or lead to another file, from now on."""
        with self._lock:
            self._files.pop(path, None)

    def check(self) -> None:
        """Raises a final StorageError if a name does not lead to its file, or did not at an earlier call."""
        if self._lost:
            raise StorageError(self._lost)
        if self._within is not None:
            self._within.check()
        difference = self._difference()
        if difference is not None:
            # The directory may disappear while its files are compared: a second check finds that, and the error names the directory.
            if self._within is not None:
                self._within.check()
            self._lose(*(self._difference() or difference))

    def holds(self) -> bool:
        """Returns whether every name leads to its file. Unlike `check` it has no consequence."""
        return not self._lost and (self._within is None or self._within.holds()) and self._difference() is None

    def _difference(self) -> tuple[Path, os.stat_result, str] | None:
        """Returns the first name that does not lead to its file, and what is wrong with it."""
        with self._lock:
            files = list(self._files.items())
        return next(((path, status, why) for path, status in files if (why := _difference(path, status))), None)

    def _lose(self, path: Path, status: os.stat_result, why: str) -> None:
        # This runs outside the lock, because it may wait for another lock.
        if self._released is not None:
            self._released()
        with self._lock:
            # The owner may have released the name between the copy and the check; then nothing is lost.
            if self._files.get(path) is not status:
                return
            first, self._lost = not self._lost, self._lost or why
        if first:
            _log.error("%s", self._lost)
        raise StorageError(self._lost)


class HeldDirectory(HeldNames):
    """A directory that stays open, with the names in it. `fd` is its descriptor until `close`.

    Names that are resolved with `dir_fd=fd` stay in this directory, wherever its path leads.
    """

    def __init__(self, path: Path, *, within: HeldNames | None = None, released: Callable[[], object] | None = None) -> None:
        """Opens the directory; raises any OSError unchanged. `path` is absolute."""
        super().__init__(within=within, released=released)
        self.path = path
        self.fd: int = open_file(path, os.O_RDONLY | os.O_DIRECTORY)
        # An owner that is garbage-collected without close() leaks nothing.
        self._closing = weakref.finalize(self, os.close, self.fd)
        self.watch(path, os.fstat(self.fd))

    def close(self) -> None:
        """Releases the directory and all names. Idempotent."""
        with self._lock:
            self._files.clear()
            self.fd = -1
            self._closing()


def _difference(path: Path, held: os.stat_result) -> str:
    """Returns the fault of this name; empty if there is none."""
    kind = "directory" if stat.S_ISDIR(held.st_mode) else "file"
    try:
        status = os.stat(path)
    except OSError as error:
        if error.errno not in _GONE:
            return (
                f"the {kind} {path} cannot be looked at under the open log: {error.strerror}; so nothing is written or read through "
                "this opening any more: close it, make the path reachable for this process, and open the log again"
            )
    else:
        if os.path.samestat(held, status):
            return ""
    return (
        f"the {kind} {path} was removed or replaced under the open log, so nothing is written or read through this opening any more: "
        "close it, restore the directory if you can, and open the log again"
    )
