"""A user who may read the files of a log, and locks every file that it can open, blocks no other process."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.probes import payloads
from tests.processes import Line, Other
from tests.storage.files.other_user import OtherUser, place, root_only
from tests.storage.frames import INCARNATION, FrameMaker, append
from wal import Message, StartFrom, bridge, open_wal
from wal.errors import ChannelFencedError, LockedError
from wal.storage.files import LOCK_NAME
from wal.storage.journal.backend import JournalBackend
from wal.storage.journal.control import FENCE_NAME

__all__ = ["place"]

MIB = 1 << 20
ENOUGH_S = 60
"""Far longer than these tests take: no lock is released before the test ends."""
LOCKS = [fcntl.LOCK_EX, fcntl.LOCK_SH]


def hold_everything(line: Line, directory: str, kind: int) -> None:
    """Holds a lock of this kind on each file and directory that this user can open, also on later ones; reports which, when asked."""
    held: dict[tuple[int, int], int] = {}
    while True:
        for path in _everything(directory):
            with contextlib.suppress(OSError):
                fd = os.open(path, os.O_RDONLY)
                status = os.fstat(fd)
                if (key := (status.st_dev, status.st_ino)) in held:
                    os.close(fd)
                    continue
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(fd, kind | fcntl.LOCK_NB)
                    held[key] = fd
                    continue
                os.close(fd)
        if line._line.poll(0.01):
            if line.hear_now() == "end":
                return
            line.tell(sorted(os.path.relpath(path, directory) for path in _everything(directory) if _identity(path) in held))


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _everything(directory: str) -> Iterator[str]:
    yield directory
    for root, directories, files in os.walk(directory):
        for name in (*directories, *files):
            yield os.path.join(root, name)


async def names_held(reader: Other, *wanted: str) -> list[str]:
    """Waits until the reader holds locks on these names."""
    async with asyncio.timeout(ENOUGH_S):
        while True:
            reader.tell("which")
            held: list[str] = await reader.hear()
            if set(wanted) <= set(held):
                return held


@root_only
@pytest.mark.parametrize("kind", LOCKS)
async def test_reader_with_locks_stops_no_writer(place: Path, kind: int) -> None:
    """It opens no file that a writer locks; it is beside another writer from the first file on."""

    async def everything_that_a_writer_does(directory: str, **settings: Any) -> None:
        async with open_wal(directory, segment_bytes=MIB, retention_bytes=2 * MIB, **settings) as log:
            with pytest.raises(LockedError):
                await open_wal(directory)
            first = await log.raw_append(Message("orders", b"%05d" % 0), idempotency_key="first")
            for number in range(1, 36):
                last = await log.raw_append(Message("orders", b"%05d" % number + bytes(120_000)))
            async with log.read("orders", cursor="billing", deliver_policy=StartFrom(last.message_id)) as scanner:
                await anext(scanner)
                await scanner.save()
            assert [cursor.name for cursor in await log.cursors()] == ["billing"]
            await log.delete_cursor("billing")
            assert await payloads(log, "orders")
            await log.create_vchannel(f"stock-{last.time_tick}")
            await log.truncate(up_to=last.message_id)
            (told,) = await log.retention()
            assert told.earliest is None or told.earliest > first.message_id
            assert log.statistics()

    earlier, directory = place / "earlier", place / "data"
    async with open_wal(str(earlier), group_readable=True) as log:
        await log.raw_append(Message("orders", b"1"))
        async with log.read("orders", cursor="billing") as scanner:
            await anext(scanner)
            await scanner.save()
    async with OtherUser(hold_everything, str(place), kind, uses_log=False) as reader:
        held = await names_held(reader, "earlier", "earlier/FORMAT", "earlier/pchannels/p0/control")
        locked = {earlier / LOCK_NAME, earlier / "pchannels/p0" / FENCE_NAME}
        assert all(path.exists() for path in locked)
        assert locked.isdisjoint(place / name for name in held)
        async with asyncio.timeout(ENOUGH_S):
            await everything_that_a_writer_does(str(directory), group_readable=True)
        await names_held(reader, "data", "data/FORMAT", "data/pchannels/p0/control")
        async with asyncio.timeout(ENOUGH_S):
            await everything_that_a_writer_does(str(directory))
        reader.tell("end")
        await reader.end()


@root_only
@pytest.mark.parametrize("kind", LOCKS)
async def test_next_writer_follows_a_killed_one(place: Path, kind: int) -> None:
    """Recovery reads files on which a stranger holds locks, and takes the fence from a process that is gone."""

    async def append_until_killed(line: Line, directory: str) -> None:
        async with open_wal(directory, segment_bytes=MIB, group_readable=True) as log:
            number = 0
            while True:
                await log.raw_append(Message("orders", bytes(120_000)))
                number += 1
                line.tell(number)

    directory = place / "data"
    async with OtherUser(hold_everything, str(directory), kind, uses_log=False) as reader:
        async with OtherUser(append_until_killed, str(directory), uid=0, uses_log=False) as writer:
            acknowledged = 0
            while acknowledged < 20:
                acknowledged = await writer.hear()
            await names_held(reader, ".", "pchannels/p0/control", f"pchannels/p0/{0:016x}.wal")
        async with asyncio.timeout(ENOUGH_S):
            async with open_wal(str(directory)) as log:
                assert len(await payloads(log, "orders")) >= acknowledged
        reader.tell("end")
        await reader.end()


@root_only
@pytest.mark.parametrize("kind", LOCKS)
async def test_writer_of_a_lower_term_is_fenced_anyway(place: Path, kind: int) -> None:
    async with OtherUser(hold_everything, str(place), kind, uses_log=False) as reader, asyncio.timeout(ENOUGH_S):
        backend = JournalBackend(place / "data", group_readable=True)
        await backend.create("p0", incarnation=INCARNATION)
        old = await backend.open("p0", incarnation=INCARNATION, term=1)
        await append(old, FrameMaker(1).data(("v", b"1")))
        await names_held(reader, "data/pchannels/p0/control")
        new = await backend.open("p0", incarnation=INCARNATION, term=2)
        with pytest.raises(ChannelFencedError):
            await append(old, FrameMaker(1).data(("v", b"2")))
        await append(new, FrameMaker(2).data(("v", b"3")))
        for log in (old, new):
            await log.close()
        await backend.close()
        reader.tell("end")
        await reader.end()


@root_only
@pytest.mark.parametrize("kind", LOCKS)
async def test_other_readers_go_on_beside_it(place: Path, kind: int) -> None:
    def count_all(line: Line, directory: str) -> None:
        with bridge.iterate(directory, "orders", follow=False) as messages:
            line.tell(sum(1 for _ in messages))

    directory = place / "data"
    async with open_wal(str(directory), segment_bytes=MIB, group_readable=True) as log:
        for number in range(12):
            await log.raw_append(Message("orders", b"%05d" % number + bytes(120_000)))
        async with OtherUser(hold_everything, str(directory), kind, uses_log=False) as reader:
            await names_held(reader, f"pchannels/p0/{0:016x}.wal")
            async with OtherUser(count_all, str(directory)) as counting:
                assert await counting.hear() == 12
                await counting.end()
            reader.tell("end")
            await reader.end()
