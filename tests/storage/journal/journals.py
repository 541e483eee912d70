"""A journal with one pchannel, opened for a test and closed after it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from tests.storage.frames import INCARNATION
from wal.storage.journal.backend import JournalBackend
from wal.storage.journal.disk import Disk
from wal.storage.journal.log import JournalLog
from wal.storage.journal.loop_path import WritePath

PCHANNEL = "p"


def folder(place: Path) -> Path:
    """Returns the folder with the files of the pchannel."""
    return place / "pchannels" / PCHANNEL


def segments(place: Path) -> list[Path]:
    return sorted(folder(place).glob("*.wal"))


def open_files(place: Path) -> list[str]:
    """Returns the paths below this directory that this process has open."""
    paths = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it was closed meanwhile
            paths.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(path for path in paths if Path(path).is_relative_to(place))


def loop_can_write(directory: Path) -> bool:
    """Returns whether the event loop can write files of this directory by Linux AIO."""
    path = directory / "probe"
    path.write_bytes(bytes(8192))
    disk = Disk()
    file = disk.open(path)
    try:
        file.bypass_cache()
        disk.async_write(file).close()
    except OSError:
        return False
    finally:
        file.close()
        path.unlink()
    return True


@contextlib.asynccontextmanager
async def journal(
    place: Path,
    term: int = 1,
    *,
    segment: int = 64 << 10,
    first: int | None = None,
    disk: Disk | None = None,
    group_readable: bool | None = None,
    write_path: WritePath = "auto",
) -> AsyncIterator[JournalLog]:
    """Yields the log; creates it first when the term is 1."""
    backend = JournalBackend(
        place, first_segment_bytes=first or segment, segment_bytes=segment, disk=disk, group_readable=group_readable, write_path=write_path
    )
    try:
        if term == 1:
            await backend.create(PCHANNEL, incarnation=INCARNATION)
        log = await backend.open(PCHANNEL, incarnation=INCARNATION, term=term)
        try:
            yield log
        finally:
            await log.close()
    finally:
        await backend.close()
