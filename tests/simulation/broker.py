"""Broker: a shared log with fencing in place of Pulsar, and SharedLogBackend, the backend of a process that uses it over the network.

The broker keeps the frames (`wal.storage.memory`): they survive every kill of a node. Opening a pchannel in a term fences all lower ones,
in the broker, and its former owner gets the error. A request is carried out in the order of its log's connection, late if the broker is
late, and an answer may come when nobody waits any more. A frame that is not answered for `UNANSWERED_S` fails the log with an unknown
outcome: it may still be written, unless a higher term comes first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from tests.simulation.loop import Process, current_process
from tests.simulation.network import Direction, Network
from wal.errors import ChannelFencedError, ClosedError, InvalidArgumentError, StorageError, UnavailableError, WALError
from wal.frame import RECOVERED, EncodedFrame, RunName
from wal.message import FORM_PULSAR, LogPosition
from wal.storage.base import AppendDone, Extent, FramePage, LogBackend, LogState, PChannelLog, Unread
from wal.storage.memory import MemoryStore, StoredChannel

UNANSWERED_S: Final = 5.0
"""How long a frame may be unanswered before its log is given up."""
CALL_S: Final = 10.0
"""How long any other call may be."""
FRAME_BYTES_LIMIT: Final = 5 * 1024 * 1024 - 64 * 1024


class Broker:
    """The broker of a run. `late_s` is what each request takes there."""

    def __init__(self, process: Process, network: Network) -> None:
        self.process = process
        self.network = network
        self.store = MemoryStore()
        self.late_s: Callable[[], float] = lambda: 0.001
        self.on_open: Callable[[str, int, Process], object] = lambda *_: None
        """Called with each opening: the pchannel, its term and who opens it."""
        self.on_frame: Callable[[str, EncodedFrame, int], object] = lambda *_: None
        """Called with each frame that was written, and its position."""
        self.on_promise: Callable[[str, int, int, Process], object] = lambda *_: None
        """Called with each promised tick: the pchannel, the term, the tick and who promises."""
        self.writers: dict[str, SharedLog] = {}
        self.slow_s: Callable[[str], float] = lambda _: 0.0
        """Returns how much longer a call takes there, by what it is."""
        self.refused: set[str] = set()
        """The pchannels that nobody can open."""

    @property
    def pchannels(self) -> list[str]:
        """The names of the logs."""
        return sorted(self.store._channels)

    def channel(self, pchannel: str) -> StoredChannel:
        """Returns the log of a pchannel, for who looks from outside."""
        return self.store._channels[pchannel]


class Link:
    """The connection of one log, or of a backend, to the broker."""

    def __init__(self, broker: Broker) -> None:
        process = current_process()
        assert process is not None, "only simulated processes connect"
        self.process = process
        self.broker = broker
        self._there = Direction()
        self._back = Direction()
        self._free_s = 0.0

    def ask(self, call: Callable[[], Any], answered: Callable[[Any, BaseException | None], object], *, slow_s: float = 0.0) -> None:
        """Has the broker make a call; `answered(result, error)` is called here, some time."""
        broker, loop = self.broker, self.process.loop

        def arrived() -> None:
            self._free_s = at = max(loop.time() + broker.late_s() + slow_s, self._free_s + 1e-7)
            loop.call_at(at, carried_out)

        def carried_out() -> None:
            result, error = None, None
            try:
                result = call()
            except WALError as refused:
                error = refused
            broker.network.send(broker.process.name, self.process, self._back, answered, result, error)

        broker.network.send(self.process.name, broker.process, self._there, arrived)

    async def call(self, call: Callable[[], Any], what: str) -> Any:
        """Returns what the broker answers. Raises UnavailableError without an answer in time."""
        future = self.process.loop.create_future()

        def answered(result: Any, error: BaseException | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)

        self.ask(call, answered, slow_s=self.broker.slow_s(what))
        try:
            async with asyncio.timeout(CALL_S):
                return await future
        except TimeoutError:
            raise UnavailableError(f"the broker has not answered for {CALL_S:g} s: {what}") from None


class SharedLog(PChannelLog):
    """One pchannel in one term; created by `SharedLogBackend.open`."""

    frames_in_flight: ClassVar[int] = 4
    tick_frames: ClassVar[bool] = True

    def __init__(self, link: Link, pchannel: str, channel: StoredChannel, state: LogState, *, term: int) -> None:
        self.pchannel = pchannel
        self.incarnation: int = channel.incarnation
        self.term = term
        self.state: LogState = state
        self._link = link
        self._channel = channel
        self._loop = link.process.loop
        self._end = state.end
        self._failure: WALError | None = None
        self._closed = False
        self._keyed_bytes = 0
        self._promise = state.promised_tick
        self._waiting: dict[AppendDone | object, tuple[AppendDone, asyncio.TimerHandle]] = {}
        self._idle: asyncio.Future[None] | None = None

    @property
    def durable_end(self) -> int:
        return self._end

    @property
    def earliest(self) -> tuple[int, int]:
        return self._channel.earliest

    @property
    def last_truncated(self) -> tuple[int, int] | None:
        return self._channel.last_truncated

    @property
    def truncated_tick(self) -> int | None:
        return self._channel.truncated_tick if self._channel.earliest[1] == 0 else None

    def append(self, frame: EncodedFrame, done: AppendDone) -> None:
        refused: WALError | None = self._failure
        if self._closed:
            refused = ClosedError(f"pchannel {self.pchannel!r} was closed before this append")
        elif frame.length > FRAME_BYTES_LIMIT:
            refused = InvalidArgumentError(
                f"a frame of {frame.length} bytes is above the limit of {FRAME_BYTES_LIMIT}: make smaller frames"
            )
        if refused is not None:
            self._loop.call_soon(done, -1, refused)
            return
        key = object()
        self._waiting[key] = done, self._loop.call_later(UNANSWERED_S, self._unanswered)
        broker, channel = self._link.broker, self._channel

        def write() -> tuple[int, bool]:
            self._check_term()
            sealed_end = channel.sealed_end
            position = channel.add(frame)
            broker.on_frame(self.pchannel, frame, position)
            return position, channel.sealed_end != sealed_end

        def answered(written: tuple[int, bool] | None, error: BaseException | None) -> None:
            if key not in self._waiting:
                return
            if error is not None:
                assert isinstance(error, WALError)
                self.fail(error, unknown=False)
                return
            assert written is not None
            position, sealed = written
            _, timer = self._waiting.pop(key)
            timer.cancel()
            self._end = position + frame.length
            if frame.header.compatible & RECOVERED:
                self._keyed_bytes += frame.length
            done(position, None)
            if sealed and self.sealed is not None:
                self.sealed()
            self._check_idle()

        self._link.ask(write, answered)

    def fail(self, error: WALError, *, unknown: bool) -> None:
        """The log takes no frame any more; the waiting ones are answered with the error."""
        if self._failure is not None:
            return
        self._failure = error
        waiting, self._waiting = self._waiting, {}
        for done, timer in waiting.values():
            timer.cancel()
            own = type(error)(str(error))
            own.outcome_unknown = unknown
            done(-1, own)
        if not waiting and self.failed is not None:
            self.failed(error)
        self._check_idle()

    async def read(self, start: int, *, names: frozenset[str] | None, bytes_max: int, end: int | None = None) -> FramePage:
        end = self._end if end is None else min(end, self._end)
        page: FramePage = await self._call(lambda: self._channel.page(start, names, bytes_max, end), "reading")
        return page

    def unread_for(self, names: frozenset[str], start: tuple[int, int], end: int) -> Unread:
        return self._channel.unread_for(names, start, end)

    async def truncate(self, position: int, index: int) -> None:
        await self._call(partial(self._as_writer, self._channel.truncate, position, index), "truncating")

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
        page: FramePage = await self._call(lambda: self._channel.keyed_page(start, bytes_max), "reading what is replayed")
        return page

    async def last_events(self, start: int) -> dict[RunName, LogPosition]:
        events: dict[RunName, LogPosition] = await self._call(lambda: self._channel.last_events(start), "looking for the newest events")
        return events

    def promise(self, tick: int, limit: int) -> None:
        if not self._closed and self._failure is None:
            self._promise = max(self._promise, tick)
            self._link.broker.on_promise(self.pchannel, self.term, tick, self._link.process)

    async def save_state(self, position: int, pieces: Sequence[bytes]) -> None:
        def save() -> None:
            self._check_term()
            self._channel.states[position] = b"".join(pieces)

        await self._call(save, "saving a checkpoint")

    async def load_state(self, position: int) -> bytes:
        state: bytes = await self._call(lambda: self._channel.state_of(position), "loading a checkpoint")
        return state

    async def release(self, position: int, *, state: int | None) -> None:
        await self._call(partial(self._as_writer, self._channel.release, position, state), "releasing checkpoints")

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._waiting:
            self._idle = self._loop.create_future()
            await self._idle
        if self._failure is None:

            def mark() -> None:
                self._check_term()
                self._channel.clean = True
                self._channel.promised_tick = max(self._channel.promised_tick, self._promise)

            try:
                await self._call(mark, "closing")
            except WALError:
                pass  # the next opening recovers

    async def _call(self, call: Callable[[], Any], what: str) -> Any:
        if self._closed and what != "closing":
            raise ClosedError(f"the log of pchannel {self.pchannel!r} is closed: open it again to continue")
        return await self._link.call(call, f"{what}, pchannel {self.pchannel}")

    def _check_term(self) -> None:
        if self._channel.term != self.term:
            raise ChannelFencedError(
                f"pchannel {self.pchannel!r} is owned by term {self._channel.term} now; this handle is of term {self.term}"
            )

    def _as_writer(self, call: Callable[..., None], *args: Any) -> None:
        self._check_term()
        call(*args)

    def _unanswered(self) -> None:
        self.fail(StorageError(f"the broker has not answered a frame of pchannel {self.pchannel} for {UNANSWERED_S:g} s"), unknown=True)

    def _check_idle(self) -> None:
        if not self._waiting and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)


class SharedLogBackend(LogBackend):
    """The logs at a broker, as one process uses them."""

    name: ClassVar[str] = "pulsar"
    form: ClassVar[int] = FORM_PULSAR
    frame_bytes_limit: int = FRAME_BYTES_LIMIT

    def __init__(self, broker: Broker) -> None:
        self._link = Link(broker)
        self._broker = broker

    async def start(self) -> None:
        await self._link.call(lambda: None, "connecting")

    async def create(self, pchannel: str, *, incarnation: int) -> None:
        await self._link.call(lambda: self._broker.store.create(pchannel, incarnation=incarnation), f"creating pchannel {pchannel}")

    async def open(self, pchannel: str, *, incarnation: int, term: int, checkpoint: int | None = None) -> PChannelLog:
        broker, link = self._broker, Link(self._broker)
        opened: list[SharedLog] = []

        def claim() -> tuple[StoredChannel, LogState]:
            if pchannel in broker.refused:
                raise UnavailableError(f"the broker cannot open pchannel {pchannel} at the moment: try again")
            channel = broker.store.claim(pchannel, incarnation=incarnation, term=term)
            broker.on_open(pchannel, term, link.process)
            channel.recover_from(checkpoint)
            state = channel.state()
            channel.clean = False
            before = broker.writers.get(pchannel)
            if before is not None:
                fenced = ChannelFencedError(f"pchannel {pchannel!r} is owned by term {term} now; this handle is of term {before.term}")
                broker.network.send(
                    broker.process.name, before._link.process, before._link._back, lambda: before.fail(fenced, unknown=False)
                )
            log = SharedLog(link, pchannel, channel, state, term=term)
            opened.append(log)
            broker.writers[pchannel] = log
            return channel, state

        await link.call(claim, f"opening pchannel {pchannel} in term {term}")
        return opened[0]

    async def close(self) -> None:
        """Releases nothing."""

    def abandon(self) -> None:
        """Releases nothing."""
