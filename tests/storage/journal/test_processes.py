"""Several processes: killed ones lose no acknowledged frame, fenced ones write nothing, locked-out ones learn which process has the
lock."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.processes import Child, eventually, is_stopped
from tests.storage.frames import FrameMaker, append, read_all
from tests.storage.journal.child import open_past_the_lock, payload
from tests.storage.journal.journals import journal
from wal.errors import LockedError
from wal.storage.base import PChannelLog
from wal.storage.journal.backend import JournalBackend


@contextlib.asynccontextmanager
async def child(*arguments: object) -> AsyncIterator[Child]:
    """Starts a child, and waits until it reports that its log is open."""
    async with Child("-m", "tests.storage.journal.child", *arguments) as process:
        assert await process.line() == "open"
        yield process


async def positions_of(log: PChannelLog) -> dict[tuple[int, int], int]:
    """Returns the position of every frame by (term, sequence), and checks its content."""
    found: dict[tuple[int, int], int] = {}
    for frame in await read_all(log):
        header = frame.view.header
        assert frame.view.columns(frame.view.runs[0]).payloads == [payload(header.term, header.sequence)]
        found[header.term, header.sequence] = frame.position
    return found


async def test_killed_writers_lose_nothing_they_acknowledged(tmp_path: Path) -> None:
    kills = 4
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    async with journal(tmp_path, segment=32 << 10, first=8 << 10):
        pass
    acked: dict[tuple[int, int], int] = {}
    for term in range(2, 2 + kills):
        async with child("acknowledge", tmp_path, term) as process:
            lines = [await process.line() for _ in range(rng.randrange(1, 120))]
            lines += await process.kill()
        for line in lines:
            position, sequence = map(int, line.split())
            acked[term, sequence] = position
    async with journal(tmp_path, 2 + kills, segment=32 << 10) as log:
        assert not log.state.clean
        found = await positions_of(log)
        assert {key: found.get(key) for key in acked} == acked
        for term in range(2, 2 + kills):
            sequences = [sequence for found_term, sequence in found if found_term == term]
            assert sequences == list(range(len(sequences)))
        assert len(found) <= len(acked) + 3 * kills
        await append(log, FrameMaker(2 + kills).data(("v", b"goes on")))


async def test_process_of_a_lower_term_is_fenced(tmp_path: Path) -> None:
    async with journal(tmp_path, segment=32 << 10):
        pass
    async with child("fence", tmp_path, 2, 1_000_000) as process:
        acked: dict[tuple[int, int], int] = {}

        async def heard() -> str:
            line = await process.line()
            if not line.startswith("fenced"):
                position, sequence = map(int, line.split())
                acked[2, sequence] = position
            return line

        for _ in range(50):
            await heard()
        backend = JournalBackend(tmp_path, segment_bytes=32 << 10)
        log = await backend.open("p", incarnation=0x1CE, term=3)
        ours = await append(log, FrameMaker(3).data(("v", payload(3, 0))))
        while not (line := await heard()).startswith("fenced"):
            pass
        await process.end()
        found = await positions_of(log)
        assert {key: found.get(key) for key in acked} == acked
        assert found[3, 0] == ours
        assert all(position < ours for (term, _), position in found.items() if term == 2)
        assert (2, int(line.split()[1])) not in found
        await log.close()
        await backend.close()


@pytest.mark.usefixtures("always_by_loop")
@pytest.mark.parametrize("ending", [signal.SIGCONT, signal.SIGKILL])
async def test_successor_waits_for_a_suspended_writers_frame(tmp_path: Path, ending: signal.Signals) -> None:
    """It has the fence. If its successor did not wait, the frame could be acknowledged after the successor had looked for the end."""
    wait_s = 60.0

    def waits_for_a_lock(pid: int) -> bool:
        """Returns whether this process waits for a flock, according to /proc/locks: a waiting request has an arrow."""
        waiting = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line]
        return any("FLOCK" in fields and str(pid) in fields for fields in waiting)

    count = 20
    async with journal(tmp_path, segment=1 << 20):
        pass
    async with asyncio.timeout(wait_s), child("stop", tmp_path, 2, count) as process:
        lines = [await process.line() for _ in range(count)]
        await eventually(lambda: is_stopped(process.pid))
        backend = JournalBackend(tmp_path, segment_bytes=1 << 20)
        opening = asyncio.ensure_future(backend.open("p", incarnation=0x1CE, term=3))
        while not (await asyncio.to_thread(waits_for_a_lock, os.getpid())):
            assert not opening.done(), "the successor did not wait"
        process.send_signal(ending)
        log = await opening
        ours = await append(log, FrameMaker(3).data(("v", payload(3, 0))))
        lines += [line async for line in process.lines()]
        await process.end(0 if ending is signal.SIGCONT else -signal.SIGKILL)
        found = await positions_of(log)
        acked = {(2, int(sequence)): int(position) for position, sequence in map(str.split, lines) if position != "fenced"}
        assert {key: found.get(key) for key in acked} == acked
        assert found[3, 0] == ours == max(found.values())
        if ending is signal.SIGCONT:
            assert (2, count) in acked, "the frame in flight was acknowledged"
            assert lines[-1] == f"fenced {len(acked)}"
        assert len(acked) <= sum(term == 2 for term, _ in found) <= len(acked) + 1
        await log.close()
        await backend.close()


async def test_lock_names_the_process_that_has_it(tmp_path: Path) -> None:
    async with child("lock", tmp_path) as process:
        backend = JournalBackend(tmp_path)
        with pytest.raises(LockedError) as caught:
            await backend.start()
        assert caught.value.pid == process.pid
        assert str(process.pid) in str(caught.value)
        await process.kill()
        await backend.start()
        with pytest.raises(LockedError):
            await JournalBackend(tmp_path).start()
        await backend.close()


async def test_handle_after_the_lock_is_an_ordinary_handle(tmp_path: Path) -> None:
    """The fencing test's child does what a JournalBackend does: both produce the same log."""
    async with journal(tmp_path, segment=32 << 10) as log:
        await append(log, FrameMaker(1).data(("v", payload(1, 0))))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        log = await open_past_the_lock(tmp_path, 2, pool)
        await append(log, FrameMaker(2).data(("v", payload(2, 0))))
        assert list(await positions_of(log)) == [(1, 0), (2, 0)]
        await log.close()
