"""A world for a broadcaster: real logs of frames and a real KV that outlive it, and an operator for each of its runs.

`World` is the disk: a MemoryStore of frames, a MemoryKV, the vchannels. `Life` is one run of the process: it opens the logs in a new term,
recovers the broadcasts in them from the last checkpoint and the frames written after it, and is an AppendOperator. A `Cut` ends a run at a
chosen point: everything durable stays, nothing happens afterwards, and no call is answered.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from actors import ActorSystem, Clock, SystemClock
from broadcaster import Broadcast, BroadcasterLimits, Content, CopiesInLog
from broadcaster.operator import CopiesAnswer
from wal.errors import ChannelNotExistError, InvalidArgumentError, UnknownOutcomeError, WALError
from wal.frame import EncodedFrame, ExtTag, FrameDraft, Record, RunKind, decode_ext, encode_frame
from wal.message import AppendResult, BroadcastHeader, CopyOutcomes, MessageID, MessageType
from wal.storage.base import PChannelLog, StoredFrame
from wal.storage.kv import KVBase, KVBatch, KVStatistics, MemoryKV, Watch
from wal.storage.memory import MemoryBackend, MemoryStore
from wal.storage.read_only import ReadOnlyPChannelLog

INCARNATION = 77
ABORT = int(MessageType.ABORT_BROADCAST)


class Cut:
    """Counts the points at which a run can be cut, and cuts it at one: from then on nothing more becomes durable."""

    def __init__(self, at: int | None = None, *, shuffle: random.Random | None = None) -> None:
        self.at = at
        self.points = 0
        self.shuffle = shuffle
        self.dead = asyncio.Event()
        self._never = asyncio.Event()

    async def before(self) -> None:
        """Delays an operation before it becomes durable; after the cut it never returns."""
        if self.shuffle is not None:
            for _ in range(self.shuffle.randrange(6)):
                await asyncio.sleep(0)
        if self.dead.is_set():
            await self._never.wait()

    async def after(self) -> None:
        """Runs when an operation is durable but not yet answered."""
        self.points += 1
        if self.points == self.at:
            self.dead.set()
        if self.dead.is_set():
            await self._never.wait()


class CutKV(KVBase):
    """The KV of a run: the world's KV until the cut. `on_commit` may raise. Counts the bytes written."""

    def __init__(self, inner: KVBase, cut: Cut) -> None:
        super().__init__()
        self.inner = inner
        self.cut = cut
        self.on_commit: Callable[[KVBatch], None] | None = None
        self.bytes_written = 0
        self.operations_max = 128

    async def close(self) -> None:
        self._closed = True

    def statistics(self) -> KVStatistics:
        return self.inner.statistics()

    async def _load(self, keys: list[str]) -> list[str | None]:
        return await self.inner._load(keys)

    async def _scan(self, prefix: str) -> list[tuple[str, str]]:
        return await self.inner._scan(prefix)

    async def _commit(self, batch: KVBatch) -> str | None:
        await self.cut.before()
        if self.on_commit is not None:
            self.on_commit(batch)
        done = await self.inner._commit(batch)
        self.bytes_written += sum(len(key) + len(value) for key, value in batch.saves.items())
        self.bytes_written += sum(map(len, batch.removals))
        await self.cut.after()
        return done

    async def _watch(self, subject: str, *, is_prefix: bool, root_length: int, buffer_max: int) -> Watch:
        return await self.inner._watch(subject, is_prefix=is_prefix, root_length=root_length, buffer_max=buffer_max)


class Found(msgspec.Struct):
    """A broadcast in the recovery state of a pchannel: (position, index, tick) of each vchannel's copy."""

    header: BroadcastHeader
    copies: dict[str, tuple[int, int, int]] = {}
    aborts: dict[str, tuple[int, int, int]] = {}


class World:
    """The state that survives a crash."""

    def __init__(self, pchannels: int = 3, vchannels: Mapping[str, str] | None = None) -> None:
        self.store = MemoryStore()
        self.kv = MemoryKV()
        self.pchannels = [f"p{number}" for number in range(pchannels)]
        self.term = 0
        self.tick = 1_700_000_000_000 << 18
        self.vchannels: dict[str, str] = dict(vchannels or {})
        self.checkpoints: dict[str, int] = {}
        self.made = False
        self.late: set[int] = set()
        """The broadcasts whose callers got an answer after a cut."""

    async def contents(self) -> dict[str, str]:
        keys, values = await self.kv.load_with_prefix("")
        return dict(zip(keys, values, strict=True))

    def in_logs(self) -> InLogs:
        """Returns the copies in the frames themselves, whatever the recovery state contains."""
        found = InLogs()
        for pchannel in self.pchannels:
            channel = self.store._channels.get(pchannel)
            if channel is not None:
                count_copies(channel.page(0, None, 1 << 40).frames, found)
        return found


class InLogs(msgspec.Struct):
    """The number of copies and of aborts of each (broadcast, vchannel), and the headers and contents of the copies."""

    copies: Counter[tuple[int, str]] = msgspec.field(default_factory=Counter)
    aborts: Counter[tuple[int, str]] = msgspec.field(default_factory=Counter)
    headers: dict[int, BroadcastHeader] = {}
    contents: dict[int, Content] = {}


def count_copies(frames: Iterable[StoredFrame], into: InLogs) -> None:
    """Counts the copies and the aborts in these frames."""
    for frame in frames:
        for copy in _copies(frame):
            event = (copy.header.broadcast_id, copy.vchannel)
            if copy.content.message_type == ABORT:
                into.aborts[event] += 1
            else:
                into.copies[event] += 1
                into.headers[copy.header.broadcast_id] = copy.header
                into.contents[copy.header.broadcast_id] = copy.content


def count_log(log: ReadOnlyPChannelLog, into: InLogs) -> None:
    """Counts the copies and the aborts in a log that nobody writes."""
    start, end = log.earliest[0], log.reach().durable_end
    while start < end:
        page = log.page(start, end, None, 1 << 20)
        count_copies(page.frames, into)
        start = page.next_position


class Life:
    """One run of a process on a world: an AppendOperator and the Broadcast over it."""

    def __init__(
        self, world: World, cut: Cut | None = None, *, clock: Clock | None = None, limits: BroadcasterLimits | None = None
    ) -> None:
        self.world = world
        self.cut = cut or Cut()
        self.kv = CutKV(world.kv, self.cut)
        self.system = ActorSystem(name="test", clock=clock or SystemClock())
        self.limits = limits
        self.logs: dict[str, PChannelLog] = {}
        self.state: dict[str, dict[int, Found]] = {}
        self.forgotten: dict[str, set[int]] = {}
        self.callback: Callable[[str, Collection[int]], None] = lambda pchannel, ids: None
        self.refuse: Callable[[str, Sequence[str]], WALError | None] = lambda pchannel, vchannels: None
        """A function called before each frame; the error that it returns is raised."""
        self.refused: set[str] = set()
        """Vchannels that take no copies, because they were dropped before they had any."""
        self.dropped_since: set[str] = set()
        self.tell_dropped: Callable[[str], None] = lambda vchannel: None
        self.lose_answers: set[str] = set()
        """Pchannels whose next answer is lost after the append."""
        self.gates: dict[str, asyncio.Event] = {}
        """Pchannels that write nothing until their event is set."""
        self.checkpointing: dict[str, asyncio.Lock] = {}
        self.requests = 0
        self.appends: set[asyncio.Task[CopyOutcomes]] = set()
        self.handed = 0
        """The number of frames submitted to the log, written or not."""
        self.frames = 0
        self.asked_again = 0
        """The number of requested copies that were already in the log. The log answers with those, but a correct task does not request
        them."""
        self.log_bytes = 0
        self.create_vchannels = True
        self.broadcast: Broadcast

    async def __aenter__(self) -> Life:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        backend = MemoryBackend(self.world.store)
        self.world.term += 1
        for pchannel in self.world.pchannels:
            if not self.world.made:
                await backend.create(pchannel, incarnation=INCARNATION)
            log = await backend.open(pchannel, incarnation=INCARNATION, term=self.world.term)
            self.logs[pchannel] = log
            self.forgotten[pchannel] = set()
            self._sequences = dict.fromkeys(self.world.pchannels, 0)
            await self._recover(pchannel, log)
        self.world.made = True
        await self.system.start()
        self.broadcast = await Broadcast.start(self.system, kv=self.kv, operator=self, limits=self.limits)

    async def close(self) -> None:
        """Closes it properly, unless it is cut meanwhile."""
        stop = asyncio.create_task(self.system.stop())
        cut = asyncio.create_task(self.cut.dead.wait())
        await asyncio.wait({stop, cut}, return_when=asyncio.FIRST_COMPLETED)
        if not stop.done():
            self.kill()
        cut.cancel()
        await stop

    def kill(self) -> None:
        """Ends the process: it runs no more code, and nothing more becomes durable."""
        self.cut.dead.set()
        for append in self.appends:
            append.cancel()
        for ref in list(self.system._owned.values()):
            ref.cut_off()

    async def leave(self, task: asyncio.Task[None]) -> None:
        """Ends the process and its tasks."""
        self.kill()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def checkpoint(self, pchannel: str) -> None:
        """Saves the recovery state as of the durable end, and reports the broadcasts that it no longer lists."""
        log = self.logs[pchannel]
        async with self.checkpointing.setdefault(pchannel, asyncio.Lock()):  # in turn, so that none replaces a newer one
            forgotten, self.forgotten[pchannel] = self.forgotten[pchannel], set()
            position = log.durable_end
            blob = msgspec.msgpack.encode(self.state[pchannel])
            await self.cut.before()
            await log.save_state(position, [blob])
            self.world.checkpoints[pchannel] = position
            await self.cut.after()
            self.callback(pchannel, forgotten)

    async def _recover(self, pchannel: str, log: PChannelLog) -> None:
        position = self.world.checkpoints.get(pchannel, 0)
        blob = await log.load_state(position) if position else None
        state = msgspec.msgpack.decode(blob, type=dict[int, Found]) if blob else {}
        for frame in (await log.read(position, names=None, bytes_max=1 << 40)).frames:
            for copy in _copies(frame):
                found = state.setdefault(copy.header.broadcast_id, Found(copy.header))
                (found.aborts if copy.content.message_type == ABORT else found.copies)[copy.vchannel] = copy.at
        self.state[pchannel] = state

    # -- AppendOperator

    def allocate_id(self) -> int:
        self.world.tick += 1
        return self.world.tick

    async def wait_for_ids(self) -> None:
        """Returns at once: ids are always available, except in tests that override it."""

    def check(self, vchannels: Sequence[str]) -> None:
        for vchannel in vchannels:
            if not vchannel:
                raise InvalidArgumentError("vchannel is empty")
            if vchannel not in self.world.vchannels and not self.create_vchannels:
                raise ChannelNotExistError(f"vchannel {vchannel!r} does not exist")

    def places_nowait(self, vchannels: Sequence[str]) -> Mapping[str, Sequence[str]] | None:
        if self._at_times() or not all(vchannel in self.world.vchannels for vchannel in vchannels):
            return None
        places: dict[str, list[str]] = {}
        for vchannel in vchannels:
            places.setdefault(self.world.vchannels[vchannel], []).append(vchannel)
        return places

    async def places(self, vchannels: Sequence[str]) -> Mapping[str, Sequence[str]]:
        self.check(vchannels)
        places: dict[str, list[str]] = {}
        for vchannel in vchannels:
            if vchannel not in self.world.vchannels:
                number = len(self.world.vchannels) % len(self.world.pchannels)
                self.world.vchannels[vchannel] = self.world.pchannels[number]
            places.setdefault(self.world.vchannels[vchannel], []).append(vchannel)
        return places

    def located(self, vchannels: Sequence[str]) -> Mapping[str, str]:
        return {name: self.world.vchannels[name] for name in vchannels if name in self.world.vchannels}

    def append_copies_nowait(
        self, pchannel: str, vchannels: Sequence[str], content: Content, header: BroadcastHeader, answer: CopiesAnswer
    ) -> bool:
        if self._at_times():
            return False

        def pass_on(task: asyncio.Task[CopyOutcomes]) -> None:
            self.appends.discard(task)
            error = None if task.cancelled() else task.exception()
            if answer.done() or task.cancelled():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(task.result())

        task = asyncio.create_task(self.append_copies(pchannel, vchannels, content, header))
        self.appends.add(task)
        task.add_done_callback(pass_on)
        return True

    async def append_copies(self, pchannel: str, vchannels: Sequence[str], content: Content, header: BroadcastHeader) -> CopyOutcomes:
        record = Record(content.payload, content.message_type, properties=content.properties)
        return await self._append(pchannel, vchannels, record, header, aborts=False)

    async def append_aborts(self, pchannel: str, vchannels: Sequence[str], header: BroadcastHeader, reason: str) -> CopyOutcomes:
        return await self._append(pchannel, vchannels, Record(reason.encode(), ABORT), header, aborts=True)

    async def copies(self) -> Sequence[CopiesInLog]:
        return [
            CopiesInLog(pchannel, found.header, tuple(found.copies), tuple(found.aborts))
            for pchannel, state in self.state.items()
            for found in state.values()
        ]

    async def content(self, pchannel: str, broadcast_id: int) -> Content:
        position = next(iter(self.state[pchannel][broadcast_id].copies.values()))[0]
        page = await self.logs[pchannel].read(position, names=None, bytes_max=1)
        return _copies(page.frames[0])[0].content

    def forget(self, broadcast_id: int, pchannels: Collection[str]) -> None:
        for pchannel in pchannels:
            self.state[pchannel].pop(broadcast_id)
            self.forgotten[pchannel].add(broadcast_id)

    async def dropped(self, broadcast_ids: Collection[int]) -> Mapping[int, Collection[str]]:
        gone: dict[int, list[str]] = {}
        for state in self.state.values():
            for broadcast_id in broadcast_ids:
                if broadcast_id in state and (names := self.dropped_since & state[broadcast_id].copies.keys()):
                    gone[broadcast_id] = [*gone.get(broadcast_id, ()), *names]
        return gone

    def on_dropped(self, callback: Callable[[str], None]) -> None:
        self.tell_dropped = callback

    def drop(self, vchannel: str) -> None:
        """Durably drops a vchannel, which may have copies."""
        self.dropped_since.add(vchannel)
        self.tell_dropped(vchannel)

    def on_forgotten(self, callback: Callable[[str, Collection[int]], None]) -> None:
        self.callback = callback

    def request_checkpoint(self) -> None:
        self.requests += 1

    def _at_times(self) -> bool:
        """Returns, at random, whether an operator that could answer at once asks for a wait instead."""
        return self.cut.shuffle is not None and self.cut.shuffle.random() < 0.5

    async def _append(
        self, pchannel: str, vchannels: Sequence[str], record: Record, header: BroadcastHeader, *, aborts: bool
    ) -> CopyOutcomes:
        self.handed += 1
        if pchannel in self.gates:
            await self.gates[pchannel].wait()
        await self.cut.before()
        if (error := self.refuse(pchannel, vchannels)) is not None:
            raise error
        found = self.state[pchannel].get(header.broadcast_id) or Found(header)
        there = found.aborts if aborts else found.copies
        self.asked_again += sum(name in there for name in vchannels)
        wanted = [name for name in vchannels if name not in there and name not in self.refused]
        if wanted:
            draft = FrameDraft()
            draft.broadcast([(name, 1) for name in wanted], record, header=header.to_bytes())
            first_tick = self.world.tick + 1
            self.world.tick += draft.indices
            frame = encode_frame(
                draft, incarnation=INCARNATION, term=self.world.term, sequence=self._sequences[pchannel], first_tick=first_tick
            )
            self._sequences[pchannel] += 1

            def landed(position: int) -> None:
                # This happens in the turn in which the durable end moves, so that no checkpoint passes a frame that it lacks.
                for index, name in enumerate(wanted):
                    there[name] = (position, index, first_tick + index)
                self.state[pchannel][header.broadcast_id] = found

            await self._durable(pchannel, frame, landed)
            self.frames += 1
            self.log_bytes += frame.length
            await self.cut.after()
        if pchannel in self.lose_answers:
            self.lose_answers.remove(pchannel)
            raise UnknownOutcomeError("the connection was lost before the answer")
        results: list[AppendResult | WALError] = []
        for name in vchannels:
            if name not in there:
                results.append(ChannelNotExistError(f"vchannel {name!r} was dropped"))
            else:
                position, index, tick = there[name]
                message_id = MessageID(pchannel, INCARNATION, position, index)
                results.append(AppendResult(message_id, tick, message_id))
        return Outcomes(results)

    async def _durable(self, pchannel: str, frame: EncodedFrame, landed: Callable[[int], None]) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(position: int, error: BaseException | None) -> None:
            if error is None:
                landed(position)
                future.set_result(None)
            else:
                future.set_exception(error)

        self.logs[pchannel].append(frame, done)
        await asyncio.shield(future)


class Outcomes(list[AppendResult | WALError]):
    """The outcomes of a frame, as an operator returns them."""

    @property
    def all_in(self) -> bool:
        return not any(isinstance(outcome, WALError) for outcome in self)


class _Copy(msgspec.Struct):
    header: BroadcastHeader
    content: Content
    vchannel: str
    at: tuple[int, int, int]


def _copies(frame: StoredFrame) -> list[_Copy]:
    """Returns the copies in a frame."""
    view = frame.view
    names = {ordinal: [name for name, _ in copies] for ordinal, _, copies in view.runs.copies()}
    found = []
    for run in view.runs:
        if run.kind == RunKind.COPY:
            columns = view.columns(view.runs[run.shared])
            assert columns.exts is not None
            header = BroadcastHeader.from_bytes(decode_ext(columns.exts[0])[ExtTag.BROADCAST], names[run.shared])
            kind = columns.types[0] if columns.types else int(MessageType.INSERT)
            content = Content(columns.payloads[0], kind, columns.properties[0] if columns.properties else b"")
            found.append(_Copy(header, content, run.name, (frame.position, run.index, view.header.first_tick + run.index)))
    return found


async def until(condition: Callable[[], object], *, within_s: float = 10.0) -> None:
    """Lets the loop run until the condition holds."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0)
