"""The loop floor: the rate that an asyncio program can reach on this disk: a task for each writer, a future for each append, nothing else.

It writes the bytes that the raw floor writes, with their CRC: what waits at the end of a turn of the loop is one write and one sync, then
its callers wake. The writes go to the disk by Linux AIO from the loop, past the page cache; a thread that writes and syncs was slower at
1, 16 and 64 writers, and no faster at 256 and 1,024 (1 KB) or with writes of 4 MiB. There is no log, no id, no check, and no encoding: the
bytes are ready before the clock starts. No program that serves awaiting callers from Python can be much faster.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import mmap
import os
import platform
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import google_crc32c

from benchmarks.cell import Cell
from benchmarks.floor import SPACE_BYTES, make_frame
from wal.backends.journal.layout import SECTOR_BYTES, pack_envelope, padding

__all__ = ["LoopFloor", "open_loop_floor", "why_no_loop_floor"]

_SYSTEM_CALLS: Final = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""The numbers of io_setup, io_destroy, io_getevents and io_submit, from the kernel's tables."""
_IOCB: Final = struct.Struct("<QIiHhIQQqQII")
"""data, key, rw_flags, opcode, reqprio, fd, buf, nbytes, offset, reserved, flags, resfd: `struct iocb` of linux/aio_abi.h."""
_EVENT: Final = struct.Struct("<QQqq")
"""data, obj, res, res2: `struct io_event`."""
_PWRITE: Final = 1
_RESFD: Final = 1

_Done = Callable[[OSError | None], None]


@contextlib.asynccontextmanager
async def open_loop_floor(cell: Cell) -> AsyncIterator[LoopFloor]:
    """Opens the loop floor in the directory of the cell, for the writers of its row."""
    row = cell.row
    frame = make_frame(row, 0, row.writers)
    data = b"".join([pack_envelope(frame.length, 1, 0), *frame.buffers, padding(frame.length)])
    file = await asyncio.to_thread(_File, Path(cell.directory) / "loop-floor", data)
    aio = _Aio(file)
    try:
        yield LoopFloor(aio, len(data), row.writers)
    finally:
        aio.close()
        file.close()


def why_no_loop_floor() -> str | None:
    """Returns why this machine cannot be measured; None if it can."""
    if platform.machine() in _SYSTEM_CALLS:
        return None
    return f"the numbers of Linux AIO's system calls on {platform.machine()} are unknown"


class LoopFloor:
    """Appends that store a writer's share of the ready bytes. One write is in flight at a time."""

    def __init__(self, aio: _Aio, size: int, writers: int) -> None:
        self._aio = aio
        self._size = size
        self._writers = writers
        loop = asyncio.get_running_loop()
        self._create_future = loop.create_future
        self._call_soon = loop.call_soon
        self._waiting: list[asyncio.Future[None]] = []
        self._flight: list[asyncio.Future[None]] = []
        self.syncs = 0
        """Writes done, each with its sync."""

    def append(self, _writer: int) -> asyncio.Future[None]:
        """Returns a future that is done when the writer's bytes are on the disk."""
        future = self._create_future()
        if not self._waiting and not self._flight:
            self._call_soon(self._hand_over)
        self._waiting.append(future)
        return future

    def _hand_over(self) -> None:
        self._flight, self._waiting = self._waiting, []
        # Fewer writers than all write their share of the bytes, in whole sectors.
        sectors = -(-self._size * len(self._flight) // (self._writers * SECTOR_BYTES))
        self._aio.write(sectors * SECTOR_BYTES, self._written)

    def _written(self, error: OSError | None) -> None:
        flight, self._flight = self._flight, []
        self.syncs += 1
        for future in flight:
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
        if self._waiting:
            self._hand_over()


class _File:
    """A file that was written once and is overwritten past the page cache, from its beginning again and again."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.data = data
        self.buffer = mmap.mmap(-1, max(len(data), mmap.PAGESIZE))
        self.view = memoryview(self.buffer)
        self._at = 0
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        zeros = bytes(1 << 20)
        for offset in range(0, SPACE_BYTES, len(zeros)):
            os.pwrite(self.fd, zeros, offset)
        os.fdatasync(self.fd)
        os.close(self.fd)
        self.fd = os.open(path, os.O_RDWR | os.O_DIRECT)

    def fill(self, size: int) -> int:
        """Copies this many bytes to where the disk can read them, with their CRC; returns where they go in the file."""
        data = self.data[:size]
        google_crc32c.value(data)
        self.view[:size] = data
        at = self._at if self._at + size <= SPACE_BYTES else 0
        self._at = at + size
        return at

    def close(self) -> None:
        os.close(self.fd)


class _Aio:
    """Writes and syncs by Linux AIO; the loop watches the descriptor that tells of the end of a write."""

    def __init__(self, file: _File) -> None:
        setup, self._destroy, self._get, self._submit = _SYSTEM_CALLS[platform.machine()]
        self._file = file
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long
        context = ctypes.c_ulong(0)
        if self._call(setup, 1, ctypes.byref(context)) < 0:
            raise OSError(ctypes.get_errno(), "io_setup")
        self._context = context
        self._iocb = ctypes.create_string_buffer(_IOCB.size)
        self._iocbs = (ctypes.c_void_p * 1)(ctypes.addressof(self._iocb))
        self._event = ctypes.create_string_buffer(_EVENT.size)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(file.buffer))
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._size = 0
        self._done: _Done | None = None
        asyncio.get_running_loop().add_reader(self._eventfd, self._ended)

    def write(self, size: int, done: _Done) -> None:
        self._size, self._done = size, done
        at, fd = self._file.fill(size), self._file.fd
        _IOCB.pack_into(
            self._iocb, 0, 0, 0, os.RWF_DSYNC, _PWRITE, 0, fd, self._address, size, at, 0, _RESFD, self._eventfd
        )
        if self._call(self._submit, self._context, 1, self._iocbs) != 1:
            done(OSError(ctypes.get_errno(), "io_submit"))

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._eventfd)
        self._call(self._destroy, self._context)
        os.close(self._eventfd)

    def _ended(self) -> None:
        os.eventfd_read(self._eventfd)
        failure: OSError | None = None
        try:
            if self._call(self._get, self._context, 1, 1, self._event, None) != 1:
                raise OSError(ctypes.get_errno(), "io_getevents")
            _check(_EVENT.unpack(self._event)[2], self._size)
        except OSError as error:
            failure = error
        assert self._done is not None
        self._done(failure)


def _check(result: int, size: int) -> None:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    if result != size:
        raise OSError(errno.EIO, f"the loop floor wrote {result} of {size} bytes")
