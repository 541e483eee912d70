"""The loop floor: the rate that an asyncio program can reach on this disk: a task for each writer, a future for each append, nothing else.

It writes the bytes of the raw floor, with their CRC: the waiting appends at the end of a turn of the loop are one write and one sync, then
their callers wake. The writes go to the disk by Linux AIO from the loop, past the page cache. A thread that writes and syncs was slower at
1, 16 and 64 writers, and no faster at 256 and 1,024 (1 KB) or with writes of 4 MiB. The program has no log, id, check or encoding: the
bytes are ready before the clock starts. No program that serves awaiting callers from Python can be much faster.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import google_crc32c

from benchmarks.cell import Cell
from benchmarks.floor import SPACE_BYTES, make_frame
from wal.storage.journal.layout import SECTOR_BYTES, pack_envelope, padding
from wal.storage.journal.linux_aio import AsyncWrite

_Done = Callable[[OSError | None], None]


@contextlib.asynccontextmanager
async def open_loop_floor(cell: Cell) -> AsyncIterator[LoopFloor]:
    """Opens the loop floor in the directory of the cell, for the writers of its row."""
    row = cell.row
    frame = make_frame(row, 0, row.writers)
    data = b"".join([pack_envelope(frame.length, 1, 0), *frame.buffers, padding(frame.length)])
    file = _File(Path(cell.directory) / "loop-floor", data)
    try:
        yield LoopFloor(file, len(data), row.writers)
    finally:
        file.close()


def why_no_loop_floor() -> str | None:
    """Returns the reason why this machine cannot be measured; None if it can."""
    try:
        AsyncWrite().close()
    except OSError as error:
        return f"Linux AIO is not available: {error}"
    return None


class LoopFloor:
    """Appends that store a writer's share of the ready bytes. At most one write is in flight."""

    def __init__(self, file: _File, size: int, writers: int) -> None:
        self._file = file
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
        try:
            self._file.begin(sectors * SECTOR_BYTES, self._written)
        except OSError as error:
            self._written(error)

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
    """A file that was written once and is repeatedly overwritten past the page cache, from its beginning."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._data = data
        self._size = self._at = 0
        self._done: _Done | None = None
        zeros = bytes(1 << 20)
        with path.open("wb") as file:
            for _ in range(0, SPACE_BYTES, len(zeros)):
                file.write(zeros)
        self._fd = os.open(path, os.O_RDWR | os.O_DIRECT)
        os.fsync(self._fd)
        self._write = AsyncWrite()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._write.event_fd, self._ended)

    def begin(self, size: int, done: _Done) -> None:
        """Starts to write this many of the bytes, after their CRC; `done` is called when they are on the disk."""
        data = self._data[:size]
        google_crc32c.value(data)
        self._write.buffer(size)[:size] = data
        at = self._at if self._at + size <= SPACE_BYTES else 0
        self._at, self._size, self._done = at + size, size, done
        self._write.submit(self._fd, size, at)

    def close(self) -> None:
        self._loop.remove_reader(self._write.event_fd)
        self._write.close()
        os.close(self._fd)

    def _ended(self) -> None:
        if (result := self._write.reap()) is None:
            return
        assert self._done is not None
        self._done(None if result == self._size else _failure(result, self._size))


def _failure(result: int, size: int) -> OSError:
    if result < 0:
        return OSError(-result, os.strerror(-result))
    return OSError(errno.EIO, f"the loop floor wrote {result} of {size} bytes")
