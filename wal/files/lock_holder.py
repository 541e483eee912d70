"""LockHolder: which process holds a lock file, for the text of an error.

The file says which process locked it last. That process may have been killed since, while a child that it forked, or a library in it, still
holds the lock; and its pid may be another process's by now. So `/proc` is asked who holds it. It never decides anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

__all__ = ["LockHolder"]

_PID_BYTES: Final = 32


class LockHolder(msgspec.Struct, frozen=True):
    """`pid` is None when the process cannot be seen from here; `text` names it in a sentence.

    `inherited`: the process that took the lock has ended, or cannot be seen, and another one holds it.
    """

    pid: int | None
    text: str
    inherited: bool = False

    @staticmethod
    def note(fd: int) -> None:
        """Writes this process into the lock file that it holds."""
        # In this order a full disk does not matter: the file keeps the block that it has.
        os.ftruncate(fd, os.pwrite(fd, b"%d\n" % os.getpid(), 0))

    @classmethod
    def find(cls, fd: int) -> LockHolder:
        """The process that holds a flock on this open file."""
        text = os.pread(fd, _PID_BYTES, 0).strip()
        noted = int(text) if text.isdigit() else None
        status = os.fstat(fd)
        identity = status.st_dev, status.st_ino
        # What does not let its files be seen is believed if it lives: another user's process, root's say.
        if noted is not None and _holds(noted, identity) is not False:
            return cls(noted, f"process {noted}")
        holder = next((pid for pid in _pids() if _holds(pid, identity)), None)
        if holder is None:
            if noted is None:
                return cls(None, "another process")
            return cls(
                None,
                f"a process that cannot be seen from here (process {noted}, which opened it, has ended or runs in another container)",
                inherited=True,
            )
        if noted is None:
            return cls(holder, f"process {holder}")
        return cls(
            holder,
            f"process {holder} (process {noted}, which opened it, has ended, and left the lock to it)",
            inherited=True,
        )


def _pids() -> Iterator[int]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    yield from (int(name) for name in names if name.isdigit())


def _holds(pid: int, identity: tuple[int, int]) -> bool | None:
    """Whether this process holds a flock on the file; None when it lives, and does not let that be seen."""
    process = Path("/proc") / str(pid)
    try:
        fds = os.listdir(process / "fd")
    except PermissionError:
        return None
    except OSError:
        return False
    return any(_locks(process, fd, identity) for fd in fds)


def _locks(process: Path, fd: str, identity: tuple[int, int]) -> bool:
    try:
        status = os.stat(process / "fd" / fd)
        return (status.st_dev, status.st_ino) == identity and " FLOCK " in (process / "fdinfo" / fd).read_text()
    except OSError:
        return False  # closed meanwhile
