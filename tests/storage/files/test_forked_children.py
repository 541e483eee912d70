"""A forked child that outlives the writer keeps no lock; a LockedError names a process that does."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import signal
import subprocess
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.probes import payloads
from tests.processes import Line, Other
from wal import Message, open_wal
from wal.errors import LockedError
from wal.storage.journal.backend import JournalBackend

WAIT_S = 30


def by_os_fork() -> int:
    pid = os.fork()
    if pid == 0:
        signal.pause()
    return pid


def by_multiprocessing() -> int:
    current: Any = multiprocessing.current_process()
    current._config.pop("daemon", None)  # a daemon may not have a child
    process = multiprocessing.get_context("fork").Process(target=signal.pause)
    process.start()
    assert process.pid is not None
    return process.pid


def by_subprocess() -> int:
    return subprocess.Popen(["sleep", "1000"], close_fds=False).pid


async def write_and_fork(line: Line, directory: str, fork: Callable[[], int]) -> None:
    warnings.simplefilter("ignore", DeprecationWarning)
    log = await open_wal(directory)
    await log.raw_append(Message("orders", b"1"))
    line.tell(fork())
    await asyncio.Event().wait()


@pytest.mark.parametrize("fork", [by_os_fork, by_multiprocessing, by_subprocess])
async def test_child_of_a_killed_parent_has_no_lock(data_dir: Path, fork: Callable[[], int]) -> None:
    parent = Other(write_and_fork, str(data_dir), fork)
    child = await parent.hear()
    try:
        await parent.kill()
        async with open_wal(str(data_dir)) as log:
            await log.raw_append(Message("orders", b"2"))
            assert await payloads(log, "orders") == [b"1", b"2"]
    finally:
        os.kill(child, signal.SIGKILL)


async def test_child_forked_within_an_append_has_no_lock(data_dir: Path) -> None:
    async def append_all_the_time_and_fork(line: Line, directory: str) -> None:
        """Forks from a thread, so that children are created at any moment of an append."""
        warnings.simplefilter("ignore", DeprecationWarning)
        log = await open_wal(directory)
        loop = asyncio.get_running_loop()
        done = threading.Event()

        def fork() -> None:
            for _ in range(20):
                line.tell(by_os_fork())
            loop.call_soon_threadsafe(done.set)

        threading.Thread(target=fork, daemon=True).start()
        count = 0
        while True:
            await log.raw_append(Message("orders", bytes(10_000)))
            count += 1
            if done.is_set():
                line.tell(-count)
                done.clear()

    parent = Other(append_all_the_time_and_fork, str(data_dir))
    children: list[int] = []
    try:
        while (word := await parent.hear()) > 0:
            children.append(word)
        await parent.kill()
        async with asyncio.timeout(WAIT_S):  # the append waits for the fence
            async with open_wal(str(data_dir)) as log:
                assert len(await payloads(log, "orders")) >= -word
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
    assert len(children) == 20


async def open_and_close(directory: str) -> None:
    async with open_wal(directory):
        pass


async def test_child_gets_the_reason_for_a_refused_opening(data_dir: Path) -> None:
    """Sqlite refuses the file to the child; a separately started process can open it."""

    async def write_and_let_a_child_open(line: Line, directory: str) -> None:
        """Lets a child open the log after this process has ended, and report how that went."""
        warnings.simplefilter("ignore", DeprecationWarning)
        log = await open_wal(directory)
        await log.raw_append(Message("orders", b"1"))
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.close(writing)
            os.read(reading, 1)
            asyncio._set_running_loop(None)
            try:
                asyncio.run(open_and_close(directory))
            except LockedError as error:
                line.tell(str(error))
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    parent = Other(write_and_let_a_child_open, str(data_dir))
    assert "forked" in await parent.hear()
    await open_and_close(str(data_dir))
    await parent.kill()


async def test_child_releases_the_fence_of_its_killed_parent(data_dir: Path) -> None:
    async def hold_the_fence_and_fork(line: Line, directory: str) -> None:
        backend = JournalBackend(Path(directory))
        await backend.create("p0", incarnation=1)
        log = await backend.open("p0", incarnation=1, term=1)
        control = log._control
        with control.locked():
            line.tell(by_os_fork())
            signal.pause()

    parent = Other(hold_the_fence_and_fork, str(data_dir))
    child = await parent.hear()
    try:
        await parent.kill()
        backend = JournalBackend(data_dir)
        async with asyncio.timeout(WAIT_S):
            log = await backend.open("p0", incarnation=1, term=2)
        await log.close()
        await backend.close()
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.linux
async def test_holder_of_a_killed_writers_lock_is_named(data_dir: Path) -> None:
    def by_the_c_library() -> int:
        """Forks as an extension module does, without notifying Python."""
        libc = ctypes.PyDLL(None)
        pid: int = libc.fork()
        if pid == 0:
            libc.pause()
        return pid

    parent = Other(write_and_fork, str(data_dir), by_the_c_library)
    child = await parent.hear()
    try:
        await parent.kill()
        with pytest.raises(LockedError) as raised:
            await open_wal(str(data_dir))
        assert raised.value.pid == child
        text = str(raised.value)
        assert f"process {child}" in text
        assert f"process {parent.pid}, which opened it, has ended" in text
    finally:
        os.kill(child, signal.SIGKILL)
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                async with open_wal(str(data_dir)):
                    break
            except LockedError:
                await asyncio.sleep(0.001)  # the kernel is still ending the child


@pytest.mark.linux
async def test_reused_pid_is_not_named(data_dir: Path) -> None:
    """After a restart in a container the same few pids are reused."""
    parent = Other(write_and_fork, str(data_dir), by_os_fork)
    child = await parent.hear()
    try:
        (data_dir / "LOCK").write_text(f"{os.getpid()}\n")
        with pytest.raises(LockedError) as raised:
            await open_wal(str(data_dir))
        assert raised.value.pid == parent.pid
    finally:
        await parent.kill()
        os.kill(child, signal.SIGKILL)
