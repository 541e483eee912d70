"""MemoryLog: a pchannel of a MemoryStore, opened for writing in one term.

Owns the frames that were appended and are not answered yet. They are written and acknowledged together in the next turn of the loop,
so that `done` is never called inside `append` and a writer that was fenced in between writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from wal.backends.base import AppendDone, Extent, FramePage, LogState, PChannelLog
from wal.backends.memory.store import StoredChannel
from wal.errors import ChannelFencedError, ClosedError, InvalidArgumentError
from wal.frame import RECOVERED, EncodedFrame, RunName
from wal.message import LogPosition

__all__ = ["MemoryLog"]


class MemoryLog(PChannelLog):
    """One pchannel in one term; see `PChannelLog`. Created by `MemoryBackend.open`."""

    def __init__(self, pchannel: str, channel: StoredChannel, *, term: int, frame_bytes_limit: int) -> None:
        self.pchannel = pchannel
        self.incarnation: int = channel.incarnation
        self.term = term
        self.state: LogState = channel.state()
        self._channel = channel
        self._frame_bytes_limit = frame_bytes_limit
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[EncodedFrame, AppendDone, BaseException | None]] = []
        self._closed = False
        self._keyed_bytes = 0
        channel.clean = False

    @property
    def durable_end(self) -> int:
        return self._channel.end

    @property
    def earliest(self) -> tuple[int, int]:
        return self._channel.earliest

    def append(self, frame: EncodedFrame, done: AppendDone) -> None:
        error: BaseException | None = None
        if self._closed:
            error = ClosedError(f"pchannel {self.pchannel!r} was closed before this append")
        elif frame.length > self._frame_bytes_limit:
            error = InvalidArgumentError(
                f"a frame of {frame.length} bytes is above the limit of {self._frame_bytes_limit}: make smaller frames"
            )
        if not self._waiting:
            self._loop.call_soon(self._write)
        self._waiting.append((frame, done, error))

    async def read(
        self, start: int, *, names: frozenset[str] | None, bytes_max: int, end: int | None = None
    ) -> FramePage:
        self._check_open()
        return self._channel.page(start, names, bytes_max, end)

    def bytes_for(self, names: frozenset[str], start: tuple[int, int], end: int) -> int:
        return self._channel.bytes_for(names, start, end)

    async def truncate(self, position: int, index: int) -> None:
        self._check_writer()
        self._channel.truncate(position, index)

    @property
    def last_truncated(self) -> tuple[int, int] | None:
        return self._channel.last_truncated

    def extents(self) -> list[Extent]:
        return self._channel.extents()

    @property
    def checkpointed(self) -> int | None:
        return self._channel.checkpoint

    @property
    def keyed_bytes(self) -> int:
        return self._keyed_bytes

    @property
    def held_bytes(self) -> int:
        return self._channel.held_bytes()

    async def read_keyed(self, start: int, *, bytes_max: int) -> FramePage:
        self._check_open()
        return self._channel.keyed_page(start, bytes_max)

    async def last_events(self, start: int) -> dict[RunName, LogPosition]:
        self._check_open()
        return self._channel.last_events(start)

    def promise(self, tick: int, limit: int) -> None:
        if not self._closed and self._fenced() is None:
            self._channel.promised_tick = max(self._channel.promised_tick, tick)

    async def save_state(self, position: int, pieces: Sequence[bytes]) -> None:
        self._check_writer()
        self._channel.states[position] = b"".join(pieces)

    async def load_state(self, position: int) -> bytes:
        self._check_open()
        return self._channel.state_of(position)

    async def release(self, position: int, *, state: int | None) -> None:
        self._check_writer()
        self._channel.release(position, state)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._write()
        if self._fenced() is None:
            self._channel.clean = True

    def _write(self) -> None:
        """Writes all waiting frames, then answers them, in order."""
        waiting, self._waiting = self._waiting, []
        outcomes: list[tuple[AppendDone, int, BaseException | None]] = []
        sealed_before = self._channel.sealed_end
        for frame, done, refused in waiting:
            error = refused or self._fenced()
            outcomes.append((done, -1 if error else self._channel.add(frame), error))
            if error is None and frame.header.compatible & RECOVERED:
                self._keyed_bytes += frame.length
        for done, position, error in outcomes:
            done(position, error)
        if self.sealed is not None and self._channel.sealed_end != sealed_before:
            self.sealed()

    def _fenced(self) -> ChannelFencedError | None:
        if self._channel.term == self.term:
            return None
        return ChannelFencedError(
            f"pchannel {self.pchannel!r} is owned by term {self._channel.term} now; this handle is of term {self.term}"
        )

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the log of pchannel {self.pchannel!r} is closed: open it again to go on")

    def _check_writer(self) -> None:
        self._check_open()
        if (fenced := self._fenced()) is not None:
            raise fenced
