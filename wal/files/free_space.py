"""Free space: how many bytes a file system has left for this process."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["free_bytes"]


def free_bytes(path: str | Path) -> int | None:
    """Returns the bytes that files on the file system of `path` may still grow by; None when it does not say. Blocks."""
    found = os.statvfs(path)
    blocks = found.f_bavail if os.geteuid() else found.f_bfree
    return blocks * found.f_frsize if found.f_blocks else None
