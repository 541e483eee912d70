"""A separate file system for a test that fills a disk: a tmpfs of a few MiB, and a way to leave no byte of it free."""

from __future__ import annotations

import contextlib
import os
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(place: Path, *, size_mib: int) -> Iterator[Path]:
    """Mounts a tmpfs of this size at `place`. Only root may do so: without root the test is skipped with a warning, and fails in CI."""
    place.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mount.returncode:
        if os.environ.get("CI"):
            pytest.fail(f"CI must be able to mount a tmpfs: {mount.stderr}")
        warnings.warn(f"not tested here, a full disk: {mount.stderr.strip()}", pytest.PytestWarning, stacklevel=3)
        pytest.skip(f"needs root to mount a small file system: {mount.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path, name: str = "filler") -> Path:
    """Writes a file until the disk has no byte left, and returns it. An existing file of that name grows."""
    filler = disk / name
    with filler.open("ab", buffering=0) as file:
        for step in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(step))
    return filler


def free_bytes(disk: Path) -> int:
    """Returns the number of bytes by which files on the disk may still grow."""
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize
