"""The cache of installed servers, outside the tree: `$XDG_CACHE_HOME/wal/servers/`, by default `~/.cache/wal/servers/`.

Owns one folder for each installation. An existing folder is complete, because it is created under another name and then renamed; if two
processes want the same folder, one creates it, and the other waits with a message. It never removes a folder that another process created.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path


class MissingServerError(Exception):
    """A server can neither be found nor installed here; the text lists the attempts."""


def installed(name: str, install: Callable[[Path], None]) -> Path:
    """Returns the folder of the installation `name` (which includes its version), creating it with `install(empty folder)` if missing.

    If `install` raises, nothing is kept, and the next call tries again.
    """
    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is installing {name}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        started = time.monotonic()
        made = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
        try:
            install(made)
            made.chmod(0o755)
            made.rename(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        say(f"{name} is installed in {folder} ({time.monotonic() - started:.0f} s)")
    return folder


def cache_folder() -> Path:
    """Returns the folder of all installations."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wal" / "servers"


def say(text: str) -> None:
    """Prints one line to the terminal, even while pytest captures the output of tests."""
    print(f"servers: {text}", file=sys.__stderr__, flush=True)
