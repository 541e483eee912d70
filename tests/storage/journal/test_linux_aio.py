"""AsyncWrite on real files: what it writes, who takes a completion, what closing and forking do to a write in flight."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import os
import platform
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.journal.journals import loop_can_write
from wal.storage.journal import linux_aio
from wal.storage.journal.linux_aio import AsyncWrite, syncs_writes

SECTOR = 512
WAIT_S = 60.0


@pytest.fixture
def direct(tmp_path: Path) -> Iterator[int]:
    """Yields a descriptor, opened for direct writes, of a file of 1 MiB of zeros."""
    if not loop_can_write(tmp_path):
        pytest.skip("there is no AIO on this machine or file system")
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_DIRECT)
    yield fd
    os.close(fd)


@pytest.fixture
def write() -> Iterator[AsyncWrite]:
    write = AsyncWrite()
    yield write
    write.close()


def begin(write: AsyncWrite, fd: int, data: bytes, offset: int) -> None:
    write.buffer(len(data))[: len(data)] = data
    write.submit(fd, len(data), offset)


def wait(write: AsyncWrite) -> int:
    """Returns the result of the write in flight."""
    for _ in range(int(WAIT_S / 0.1)):
        if (result := write.wait(0.1)) is not None:
            return result
    raise AssertionError("the write did not complete")


@pytest.mark.parametrize("length", [SECTOR, 3 * SECTOR, 64 << 10, 300 << 10])
def test_aio_writes_its_buffer(tmp_path: Path, direct: int, write: AsyncWrite, length: int) -> None:
    """Also when the buffer has to grow."""
    data = os.urandom(length)
    begin(write, direct, data, 4096)
    assert wait(write) == length
    found = (tmp_path / "file").read_bytes()
    assert found[4096 : 4096 + length] == data
    assert not any(found[:4096])
    assert not any(found[4096 + length :])


async def test_loop_learns_of_the_completion(direct: int, write: AsyncWrite) -> None:
    loop = asyncio.get_running_loop()
    results: asyncio.Queue[int | None] = asyncio.Queue()
    loop.add_reader(write.event_fd, lambda: results.put_nowait(write.reap()))
    try:
        for number in range(20):
            assert write.reap() is None, "nothing is in flight"
            begin(write, direct, os.urandom(SECTOR), number * SECTOR)
            assert await asyncio.wait_for(results.get(), WAIT_S) == SECTOR
            assert results.empty()
    finally:
        loop.remove_reader(write.event_fd)


def test_only_one_thread_gets_a_completion(direct: int, write: AsyncWrite) -> None:
    taken: list[str] = []
    for number in range(100):
        begin(write, direct, os.urandom(SECTOR), number * SECTOR)
        count = len(taken)

        def other(count: int = count) -> None:
            while len(taken) == count:
                if write.wait(0.02) is not None:
                    taken.append("other")

        thread = threading.Thread(target=other)
        thread.start()
        while len(taken) == count:
            if write.reap() is not None:
                taken.append("this")
        thread.join()
        assert write.reap() is None
        assert len(taken) == count + 1


def test_error_of_the_write_is_its_result(tmp_path: Path, direct: int, write: AsyncWrite) -> None:
    """Bytes that are not whole sectors cannot be written directly."""
    try:
        begin(write, direct, b"x" * 100, 0)
    except OSError as error:
        assert error.errno == errno.EINVAL
    else:
        assert wait(write) == -errno.EINVAL
    assert not any((tmp_path / "file").read_bytes())


def test_closed_descriptor_is_refused_at_once(direct: int, write: AsyncWrite) -> None:
    fd = os.dup(direct)
    os.close(fd)
    with pytest.raises(OSError, match="io_submit") as raised:
        begin(write, fd, bytes(SECTOR), 0)
    assert raised.value.errno == errno.EBADF
    assert write.reap() is None


def test_closing_waits_for_the_write_in_flight(tmp_path: Path, direct: int) -> None:
    for number in range(20):
        write = AsyncWrite()
        data = os.urandom(256 << 10)
        begin(write, direct, data, 0)
        write.close()
        write.close()
        assert (tmp_path / "file").read_bytes()[: len(data)] == data, number
        with pytest.raises(OSError, match="closed"):
            begin(write, direct, data, 0)


def test_write_that_is_forgotten_reads_no_other_memory(tmp_path: Path, direct: int) -> None:
    """The kernel holds the pages of the buffer until the write is complete."""
    data = b"\xa5" * (256 << 10)
    for _ in range(4):
        write = AsyncWrite()
        begin(write, direct, data, 0)
        context, calls = write._context, write._calls
        os.close(write.event_fd)
        del write
        gc.collect()
        junk = [b"\x5a" * len(data) for _ in range(4)]
        linux_aio._libc.syscall(calls[1], context)  # waits for it
        assert (tmp_path / "file").read_bytes()[: len(data)] == data
        del junk


def test_in_a_forked_child_nothing_is_in_flight(tmp_path: Path, direct: int, write: AsyncWrite) -> None:
    warnings.simplefilter("ignore", DeprecationWarning)
    data = os.urandom(256 << 10)
    begin(write, direct, data, 0)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            taken = write.wait(0.2), write.reap()
            try:
                write.submit(direct, SECTOR, 512 << 10)
            except OSError as error:
                code = 7 if taken == (None, None) and error.errno == errno.EBADF else 2
            write.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert wait(write) == len(data), "the parent's completion is still there"
    found = (tmp_path / "file").read_bytes()
    assert found[: len(data)] == data
    assert not any(found[len(data) :])


def test_machine_whose_calls_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(OSError, match="riscv64") as raised:
        AsyncWrite()
    assert raised.value.errno == errno.ENOSYS


def test_file_system_that_is_not_known_to_sync() -> None:
    fd = os.open("/proc/self/status", os.O_RDONLY)
    try:
        assert not syncs_writes(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize(("kind", "syncs"), [(0xEF53, True), (0x58465342, True), (0x9123683E, False), (0x794C7630, False)])
def test_file_systems_that_sync(monkeypatch: pytest.MonkeyPatch, kind: int, syncs: bool) -> None:
    """ext4 and XFS; neither btrfs, which did not sync queued direct writes before Linux 6.1, nor overlayfs."""

    class Libc:
        def fstatfs(self, fd: object, found: ctypes.Array[ctypes.c_char]) -> int:
            found[:8] = kind.to_bytes(8, sys.byteorder)  # type: ignore[call-overload]
            return 0

    monkeypatch.setattr(linux_aio, "_libc", Libc())
    assert syncs_writes(0) is syncs


def test_descriptor_that_is_not_open() -> None:
    fd = os.open(os.devnull, os.O_RDONLY)
    os.close(fd)
    assert not syncs_writes(fd)
