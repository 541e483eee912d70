"""A separate file system for a test that fills a disk: a tmpfs of a few MiB, and a way to leave no byte of it free."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted_over(place: Path, *options: str) -> Iterator[Path]:
    """Mounts a file system over `place`. Only root may do so: another user's test is skipped with the reason, one of root's fails in CI."""
    mount = subprocess.run(["mount", *options, str(place)], capture_output=True, text=True, check=False)
    if mount.returncode:
        reason = f"this test mounts a file system, and mount failed: {mount.stderr.strip()}"
        if os.environ.get("CI") and os.geteuid() == 0:
            pytest.fail(reason)
        pytest.skip(reason)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@contextlib.contextmanager
def mounted(place: Path, *, size_mib: int) -> Iterator[Path]:
    """Creates `place` and mounts a tmpfs of this size over it."""
    place.mkdir()
    with mounted_over(place, "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs") as disk:
        yield disk


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
