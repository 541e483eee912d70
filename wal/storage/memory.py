"""MemoryBackend: opens the logs of a MemoryStore, one writer per term."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from wal.errors import ChannelFencedError, ClosedError, CorruptionError, FormatError, TruncatedError, closed_log
from wal.frame import RECOVERED, EncodedFrame, FrameView, RunName
from wal.message import FORM_JOURNAL, LogPosition, MessageID
from wal.storage.base import (
    AppendDone,
    Extent,
    FramePage,
    LogBackend,
    LogState,
    PChannelLog,
    StoredFrame,
    Unread,
    closed_before,
    not_above,
    other_log,
    other_term,
    past_end,
    too_long,
    truncated,
)

EXTENT_BYTES: Final = 256 * 1024
"""An extent that has grown to this size is sealed, and the next frame begins another one."""
_REPLACED: Final = 1 << 64
"""The term of a channel that was recreated: above every real one, so that handles on the old channel are fenced."""


class MemoryStore:
    """The content of the logs of one process, shared by all their handles.

    Owns: frames, positions, terms, truncation and checkpoints of each pchannel. It is the "disk" of the memory backend: handles come and
    go, and a handle with a higher term fences the earlier ones. Not thread-safe: only one loop uses it.
    """

    def __init__(self) -> None:
        self._channels: dict[str, StoredChannel] = {}

    def create(self, pchannel: str, *, incarnation: int) -> None:
        """Creates an empty log. Recreates a log that never held a frame; raises FormatError for any other."""
        old = self._channels.get(pchannel)
        if old is not None:
            if old.end:
                raise FormatError(f"pchannel {pchannel!r} already holds a log: open it, or choose another name")
            old.term = _REPLACED
        self._channels[pchannel] = StoredChannel(pchannel, incarnation)

    def claim(self, pchannel: str, *, incarnation: int, term: int) -> StoredChannel:
        """Returns the channel, now in this term; raises ChannelFencedError for a term that is not above all earlier ones."""
        channel = self._channels.get(pchannel)
        if channel is None:
            raise CorruptionError(f"pchannel {pchannel!r} has no log", expected="one made by create()")
        if channel.incarnation != incarnation:
            raise other_log(pchannel, channel.incarnation, incarnation)
        if term <= channel.term:
            raise not_above(pchannel, channel.term, term)
        channel.term = term
        return channel


class StoredChannel:
    """The log of one pchannel. Positions are bytes of frames since it began."""

    def __init__(self, pchannel: str, incarnation: int) -> None:
        self.pchannel = pchannel
        self.incarnation = incarnation
        self.term = 0
        self.end: int = 0
        self.earliest: tuple[int, int] = (0, 0)
        self.promised_tick: int = 0
        self.clean = True
        self.states: dict[int, bytes] = {}
        self.checkpoint: int | None = None
        self._positions: list[int] = []
        self._frames: list[EncodedFrame] = []
        self._views: list[FrameView | None] = []
        self._dropped = 0
        self.last_truncated: tuple[int, int] | None = None
        self.truncated_tick: int | None = None
        self.sealed_end: int = 0
        """The position where the unsealed extent begins."""
        self._sealed: list[Extent] = []
        self._last_tick = 0
        self._last = (0, -1)
        self._newest: tuple[int, int] | None = None

    def state(self) -> LogState:
        """Returns the state that an opening would find now."""
        return LogState(self.end, *self._last, self.promised_tick, self.earliest, self.clean, self._newest)

    def add(self, frame: EncodedFrame) -> int:
        """Adds a frame after the last one and returns its position."""
        position = self.end
        if position - self.sealed_end >= EXTENT_BYTES:
            self._sealed.append(Extent(self.sealed_end, position, self._last_tick, sealed=True))
            self.sealed_end = position
        self._positions.append(position)
        self._frames.append(frame)
        self._views.append(None)
        self.end = position + frame.length
        header = frame.header
        self._last = (header.term, header.sequence)
        if header.indices:
            self._newest = (position, header.indices - 1)
        self.promised_tick = max(self.promised_tick, header.promised_tick)
        self._last_tick = header.promised_tick
        return position

    def extents(self) -> list[Extent]:
        """See `PChannelLog.extents`."""
        start = max(self.sealed_end, self._positions[0] if self._positions else self.end)
        return [*self._sealed, Extent(start, self.end, self.promised_tick, sealed=False)]

    def page(self, start: int, names: frozenset[str] | None, bytes_max: int, end: int | None = None) -> FramePage:
        """Returns the frames from `start` up to `end`, as `PChannelLog.read` describes them."""
        if start < self.earliest[0]:
            raise self._truncated(start)

        def wanted(frame: EncodedFrame) -> bool:
            return names is None or frame.pchannel_wide or any(name in names for name, _ in frame.vchannels)

        return self._page(start, self.end if end is None else min(end, self.end), bytes_max, wanted)

    def keyed_page(self, start: int, bytes_max: int) -> FramePage:
        """Returns the frames with keyed events or copies, as `PChannelLog.read_keyed` describes them."""
        if start < self._kept_from():
            raise self._truncated(start)
        return self._page(start, self.end, bytes_max, lambda frame: bool(frame.header.compatible & RECOVERED))

    def last_events(self, start: int) -> dict[RunName, LogPosition]:
        """Returns the newest event of each vchannel, as `PChannelLog.last_events` describes them."""
        if start < self._kept_from():
            raise self._truncated(start)
        events: dict[RunName, LogPosition] = {}
        for at in range(bisect_left(self._positions, start), len(self._frames)):
            for name, index in self._view(at).last_events().items():
                events[name] = (self._positions[at], index)
        return events

    def _page(self, start: int, end: int, bytes_max: int, is_wanted: Callable[[EncodedFrame], bool]) -> FramePage:
        first = at = bisect_left(self._positions, start)
        frames: list[StoredFrame] = []
        last_event: tuple[int, int] | None = None
        promised_tick = total_bytes = 0
        next_position = max(start, end)
        while at < len(self._frames) and self._positions[at] < end:
            frame = self._frames[at]
            if at > first and total_bytes + frame.length > bytes_max:
                next_position = self._positions[at]
                break
            total_bytes += frame.length
            position = self._positions[at]
            header = frame.header
            promised_tick = max(promised_tick, header.promised_tick)
            if header.indices:
                last_event = (position, header.indices - 1)
            if is_wanted(frame):
                frames.append(StoredFrame(position, position + frame.length, self._view(at)))
            at += 1
        return FramePage(frames, next_position, last_event, promised_tick)

    def unread_for(self, names: frozenset[str], start: tuple[int, int], end: int) -> Unread:
        """Answers `ReadableLog.unread_for`."""
        parts: list[Unread] = []
        for at in range(bisect_left(self._positions, start[0]), len(self._frames)):
            position, frame = self._positions[at], self._frames[at]
            if position >= end:
                break
            below = start[1] if position == start[0] else 0
            if below < frame.header.indices and self._view(at).runs.find(names):
                parts.append(Unread(frame.length, frame.header.indices - below, frame.header.first_tick + below))
        return Unread.joined(parts)

    def truncate(self, position: int, index: int) -> None:
        """Makes (position, index) the earliest event and drops the frames below it and the checkpoint."""
        if position > self.end:
            raise past_end(position, self.end)
        if (position, index) <= self.earliest:
            return
        self.earliest = (position, index)
        below = range(bisect_left(self._positions, position) - 1, -1, -1)
        newest = next((at for at in below if self._frames[at].header.indices), None)
        if newest is not None:
            header = self._frames[newest].header
            self.last_truncated = (self._positions[newest], header.indices - 1)
            self.truncated_tick = header.first_tick + header.indices - 1
        self._drop()

    def recover_from(self, checkpoint: int | None) -> None:
        """Lets the recovery of a new writer begin here."""
        if checkpoint is not None and (checkpoint > self.end or checkpoint < self._dropped):
            raise CorruptionError(
                f"pchannel {self.pchannel!r} holds positions {self._dropped} to {self.end}",
                expected=f"what follows its checkpoint at {checkpoint}",
            )
        self.checkpoint = checkpoint
        self._drop()

    def release(self, position: int, state: int | None) -> None:
        """Lets recovery begin here from now on, with the checkpoint of `state` alone."""
        if self.checkpoint is None or position >= self.checkpoint:
            self.checkpoint = position
            self.states = {at: blob for at, blob in self.states.items() if at == state}
            self._drop()

    def state_of(self, position: int) -> bytes:
        """Returns the checkpoint that was saved for this position."""
        try:
            return self.states[position]
        except KeyError:
            raise CorruptionError(
                f"pchannel {self.pchannel!r} has no checkpoint for position {position}", expected="a saved checkpoint"
            ) from None

    def held_bytes(self) -> int:
        """Returns the bytes of frames below the earliest event that only the checkpoint needs."""
        count = bisect_left(self._positions, self.earliest[0])
        return sum(frame.length for frame in self._frames[:count])

    def _kept_from(self) -> int:
        earliest, checkpoint = self.earliest[0], self.checkpoint
        return earliest if checkpoint is None else min(earliest, checkpoint)

    def _drop(self) -> None:
        count = bisect_left(self._positions, self._kept_from())
        if count:
            self._dropped = self._positions[count - 1] + 1
            del self._positions[:count], self._frames[:count], self._views[:count]
            first = self._positions[0] if self._positions else self.end
            self._sealed = [extent for extent in self._sealed if extent.end > first]

    def _view(self, at: int) -> FrameView:
        view = self._views[at]
        if view is None:
            head, *blocks = self._frames[at].buffers
            body = b"".join(blocks)
            view = self._views[at] = FrameView.decode(head, lambda start, end: body[start:end])
        return view

    def _truncated(self, start: int) -> TruncatedError:
        position, index = self.earliest
        has_event = position < self.end
        event = MessageID(self.pchannel, self.incarnation, position, index, FORM_JOURNAL) if has_event else None
        return truncated(self.pchannel, start, f"{position}:{index}", event=event)


class MemoryLog(PChannelLog):
    """A pchannel of a MemoryStore, opened for writing in one term; see `PChannelLog`. Created by `MemoryBackend.open`.

    Owns the appended frames without an answer. They are written and acknowledged together in the next turn of the loop. So `done` is never
    called inside `append`, and a writer that was fenced in between writes nothing.
    """

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
            error = closed_before(self.pchannel)
        elif frame.length > self._frame_bytes_limit:
            error = too_long(frame.length, self._frame_bytes_limit)
        if not self._waiting:
            self._loop.call_soon(self._write)
        self._waiting.append((frame, done, error))

    async def read(self, start: int, *, names: frozenset[str] | None, bytes_max: int, end: int | None = None) -> FramePage:
        self._check_open()
        return self._channel.page(start, names, bytes_max, end)

    def unread_for(self, names: frozenset[str], start: tuple[int, int], end: int) -> Unread:
        return self._channel.unread_for(names, start, end)

    async def truncate(self, position: int, index: int) -> None:
        self._check_writer()
        self._channel.truncate(position, index)

    @property
    def last_truncated(self) -> tuple[int, int] | None:
        return self._channel.last_truncated

    @property
    def truncated_tick(self) -> int | None:
        return self._channel.truncated_tick if self._channel.earliest[1] == 0 else None

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
        return other_term(self.pchannel, self._channel.term, self.term)

    def _check_open(self) -> None:
        if self._closed:
            raise closed_log(f"of pchannel {self.pchannel!r}")

    def _check_writer(self) -> None:
        self._check_open()
        if (fenced := self._fenced()) is not None:
            raise fenced


_FRAME_BYTES_LIMIT: Final = 256 * 1024 * 1024
"""The same limit as the journal's, so that every program that runs in memory runs on a journal too."""


class MemoryBackend(LogBackend):
    """Logs in a `MemoryStore`: its own, or a given store that outlives the backend (a restart without a disk)."""

    name: ClassVar[str] = "memory"
    form: ClassVar[int] = FORM_JOURNAL
    frame_bytes_limit: int = _FRAME_BYTES_LIMIT

    def __init__(self, store: MemoryStore | None = None) -> None:
        self._store = MemoryStore() if store is None else store
        self._closed = False

    async def start(self) -> None:
        self._check_open()

    async def create(self, pchannel: str, *, incarnation: int) -> None:
        self._check_open()
        self._store.create(pchannel, incarnation=incarnation)

    async def open(self, pchannel: str, *, incarnation: int, term: int, checkpoint: int | None = None) -> PChannelLog:
        self._check_open()
        channel = self._store.claim(pchannel, incarnation=incarnation, term=term)
        channel.recover_from(checkpoint)
        return MemoryLog(pchannel, channel, term=term, frame_bytes_limit=self.frame_bytes_limit)

    async def close(self) -> None:
        self._closed = True

    def abandon(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this memory backend is closed: make a new one on the same store to continue")
