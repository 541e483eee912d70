"""Processes of another user of the machine, with at most one additional group; only root can start them."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.processes import Line, Other
from wal import Message, bridge

STRANGER: Final = 61_001
"""A user without an entry in any table, as in many containers."""
SERVICE: Final = 61_002
READERS: Final = 61_100
"""The group of users who may read."""

root_only = pytest.mark.skipif(
    os.geteuid() != 0, reason="THE TESTS THAT NEED ANOTHER USER OF THE MACHINE ARE LEFT OUT: only root can become one; CI runs as root"
)


class OtherUser(Other):
    """Starts a process of user `uid` and group `gid` that runs `job(line, *args)`, as `Other` does.

    `uses_log`: it first imports the modules that a log needs, because it might not be allowed to later.
    """

    def __init__(self, job: Callable[..., Any], *args: Any, uid: int = STRANGER, gid: int = READERS, uses_log: bool = True) -> None:
        super().__init__(_drop_and_run, job, uid, gid, *args, prepare=_use_everything_once if uses_log else None)


@pytest.fixture
def place() -> Iterator[Path]:
    """Yields a directory that every user can enter, and whose group, READERS, everything created below it inherits."""
    directory = Path(tempfile.mkdtemp(prefix="wal-place-"))
    try:
        os.chown(directory, -1, READERS)
        directory.chmod(0o2755)
        yield directory
    finally:
        shutil.rmtree(directory)


def modes(directory: Path) -> dict[str, int]:
    """Returns the permission bits of this directory, as ".", and of everything below it, by relative path."""
    found = {".": directory.stat().st_mode & 0o777}
    for root, directories, files in os.walk(directory):
        for name in (*directories, *files):
            path = Path(root, name)
            with contextlib.suppress(FileNotFoundError):  # an open log renamed it meanwhile
                found[str(path.relative_to(directory))] = path.stat().st_mode & 0o777
    return found


def _drop_and_run(line: Line, job: Callable[..., Any], uid: int, gid: int, *args: Any) -> Any:
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if inspect.iscoroutinefunction(job):
        return asyncio.run(job(line, *args))
    return job(line, *args)


class _WithoutPandas:
    """Hides pandas from pyarrow, which would import it and take a second in each process."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ImportError(name)


def _use_everything_once() -> None:
    """Imports now what Python and the product would import later, when another user may not be allowed to read it."""
    sys.meta_path.insert(0, _WithoutPandas)
    with tempfile.TemporaryDirectory() as directory:
        with bridge.blocking(directory, segment_bytes=1 << 20) as log:
            log.raw_append(Message("orders", b"1"))
        with bridge.iterate(directory, "orders", cursor="c", follow=False) as messages:
            next(messages)
            messages.save()
        assert sum(batch.num_rows for batch in bridge.record_batches(directory, "orders", follow=False)) == 1
    traceback.format_exception(ValueError())
