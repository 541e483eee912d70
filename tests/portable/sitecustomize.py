"""Makes a process of Linux miss what macOS misses, for `make portable`: Python imports it first where this folder is on its path.

Removed: the calls and flags of `os` that only Linux has. Refused: `/proc`, for the product. Added: F_FULLFSYNC, which syncs and does
nothing else. The file systems, the scheduler and the C library stay those of Linux, so a green run shows that no call of the product
depends on Linux, and not how fast or how durable macOS is.
"""

from __future__ import annotations

import builtins
import fcntl
import io
import os
import sys
from collections.abc import Callable
from typing import Any, Final

LINUX_ONLY: Final = (
    "EFD_CLOEXEC", "EFD_NONBLOCK", "EFD_SEMAPHORE", "MFD_CLOEXEC", "O_DIRECT", "O_PATH", "O_TMPFILE", "copy_file_range", "eventfd",
    "eventfd_read", "eventfd_write", "fdatasync", "getrandom", "getxattr", "listxattr", "memfd_create", "pidfd_open", "posix_fadvise",
    "posix_fallocate", "removexattr", "sched_getaffinity", "sched_setaffinity", "setns", "setxattr", "splice", "unshare",
)  # fmt: skip
"""Names of `os` that Python has on Linux and not on macOS."""
PRODUCT: Final = ("wal", "actors", "broadcaster")
BETWEEN: Final = ("blockbuster", "contextlib", "genericpath", "io", "os", "pathlib", "posixpath")
"""The modules through which the product calls them."""
F_FULLFSYNC: Final = 51
"""The number of sys/fcntl.h on macOS."""


def _for_the_product() -> bool:
    """Returns whether the product called the patched function, directly or through the standard library."""
    frame = sys._getframe(2)
    for _ in range(6):
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] in PRODUCT:
            return True
        if name.partition(".")[0] not in BETWEEN:
            return False
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def _without_proc(call: Callable[..., Any]) -> Callable[..., Any]:
    def patched(path: Any = ".", *args: Any, **options: Any) -> Any:
        if not isinstance(path, int) and os.fsdecode(os.fspath(path)).startswith("/proc") and _for_the_product():
            raise FileNotFoundError(2, "this system has no /proc", str(path))
        return call(path, *args, **options)

    return patched


def _with_full_sync(call: Callable[..., Any]) -> Callable[..., Any]:
    def patched(fd: Any, command: int, argument: Any = 0) -> Any:
        return os.fsync(fd) if command == F_FULLFSYNC else call(fd, command, argument)

    return patched


for _name in LINUX_ONLY:
    if hasattr(os, _name):
        delattr(os, _name)
fcntl.F_FULLFSYNC = F_FULLFSYNC  # type: ignore[attr-defined]  # macOS has it
fcntl.fcntl = _with_full_sync(fcntl.fcntl)
builtins.open = io.open = _without_proc(io.open)
for _name in ("open", "listdir", "scandir", "stat", "readlink"):
    setattr(os, _name, _without_proc(getattr(os, _name)))
