"""FileAccess: which users of the machine may read a file, and which user owns it.

Owns the modes of every created file and directory: 0600 and 0700, or 0640 and 0750 where a group may read. They are exact: the umask of the
process has no effect on them, and is never changed. The special bits of a directory stay, among them setgid, with which an administrator
passes the group of readers to everything below.

A file that root creates in a log of another user gets that user as its owner, as in sqlite: an administrator who runs a command with sudo
must not leave files there that the service of the log cannot open.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

import msgspec

from wal.runtime.descriptors import open_file
from wal.storage.files.links import is_shared

FORMAT_NAME: Final = "FORMAT"
"""The file that makes a directory a journal. Its mode decides for the whole journal whether the group may read."""
MAP_NAME: Final = "vchannels"
"""The map of the vchannels of a pchannel, beside its log."""
META_NAME: Final = "meta.sqlite3"
"""The metadata of a journal, unless they are in another store (setting kv)."""
_GROUP_READS: Final = 0o040
_OTHERS_OR_GROUP_WRITES: Final = 0o027
_PERMISSIONS: Final = 0o777


class FileAccess(msgspec.Struct, frozen=True):
    """The modes of new files. `owner`: the user and group that get the files that root creates; None leaves them to root."""

    group_readable: bool = False
    owner: tuple[int, int] | None = None

    @classmethod
    def like(cls, path: Path) -> FileAccess:
        """Returns the access of a file or directory, for files created beside it: private unless only the owner and the group may read it.

        It is also private if the file does not exist or this user cannot access it.
        """
        try:
            status = path.stat()
        except OSError:
            return PRIVATE
        bits = status.st_mode & (_GROUP_READS | _OTHERS_OR_GROUP_WRITES)
        return cls(bits == _GROUP_READS, (status.st_uid, status.st_gid))

    @property
    def private(self) -> FileAccess:
        """Returns the same access without the group."""
        return FileAccess(owner=self.owner)

    @property
    def file_mode(self) -> int:
        return 0o640 if self.group_readable else 0o600

    @property
    def directory_mode(self) -> int:
        return 0o750 if self.group_readable else 0o700

    def create(self, path: Path | str, flags: int, *, dir_fd: int | None = None) -> int:
        """Opens a file, creating it if it is missing, sets this access, and returns the descriptor. Raises any OSError unchanged.

        `dir_fd`: the open directory in which the path is looked up. With O_TRUNC, a file that has another name too is left to that name.
        """
        flags |= os.O_CREAT | os.O_NOFOLLOW
        fd = open_file(path, flags & ~os.O_TRUNC, self.file_mode, dir_fd=dir_fd)
        if flags & os.O_TRUNC and is_shared(os.fstat(fd)):
            os.close(fd)
            os.unlink(path, dir_fd=dir_fd)
            return self.create(path, flags, dir_fd=dir_fd)
        try:
            if flags & os.O_TRUNC:
                os.ftruncate(fd, 0)
            self._give(fd, self.file_mode)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def make_directory(self, path: Path, *, dir_fd: int | None = None) -> None:
        """Creates one directory, if it is missing, and sets this access; its parent must exist. Raises any OSError unchanged.

        `dir_fd`: the open directory in which the path is looked up.
        """
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, self.directory_mode, dir_fd=dir_fd)
        self.give(path, dir_fd=dir_fd)

    def is_given(self, path: Path) -> bool:
        """Returns whether a file or directory has this access, or belongs to another user, who then decides."""
        status = path.stat()
        mode = self.directory_mode if stat.S_ISDIR(status.st_mode) else self.file_mode
        return self._is_given(status, mode) or os.geteuid() not in (0, status.st_uid)

    def give(self, path: Path, *, dir_fd: int | None = None) -> None:
        """Sets this access of an existing file or directory. A file of another user, or a symbolic link, is left unchanged."""
        status = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            return
        mode = self.directory_mode if stat.S_ISDIR(status.st_mode) else self.file_mode
        if self._is_given(status, mode):
            return
        try:
            fd = open_file(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=dir_fd)
        except PermissionError:
            return
        try:
            self._give(fd, mode)
        finally:
            os.close(fd)

    def _give(self, fd: int, mode: int) -> None:
        status = os.fstat(fd)
        if self._is_given(status, mode):
            return
        if self._is_roots(status):
            assert self.owner is not None
            with contextlib.suppress(OSError):  # a user unknown in this namespace cannot own files
                os.fchown(fd, *self.owner)
        with contextlib.suppress(PermissionError):  # the file belongs to another user, who decides
            os.fchmod(fd, stat.S_IMODE(status.st_mode) & ~_PERMISSIONS | mode)

    def _is_given(self, status: os.stat_result, mode: int) -> bool:
        return status.st_mode & _PERMISSIONS == mode and not self._is_roots(status)

    def _is_roots(self, status: os.stat_result) -> bool:
        """Returns whether a file belongs to root and should belong to another user."""
        return self.owner is not None and status.st_uid == 0 != self.owner[0] and os.geteuid() == 0


PRIVATE: Final = FileAccess()
"""The access for the owner alone."""
