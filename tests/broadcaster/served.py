"""The broadcaster of a served log, for the crash points: `ServedWorld` stands for `World`, and `ServedLife` for `Life`.

The disk is a journal with its metadata. A life is one process that serves it, from its start to a kill -9; the client and its calls outlive
all of them. A call that was sent when the process was killed ends by itself: a broadcast as an UnknownOutcomeError, everything else at the
next process, to which it is sent again. A broadcast that gRPC had not sent yet is executed there. No call begins between a cut and the next
life.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from broadcaster import BroadcastAppendResult, BroadcastMessage, BroadcastTask
from tests.broadcaster.served_child import Cluster, Journal, run
from tests.broadcaster.world import Cut, InLogs, count_log
from tests.faults import copy_of_open
from tests.processes import WAIT_TIMEOUT_S, context
from tests.servers.process import free_ports
from wal import WALAccesser, open_wal
from wal.channels.metadata import BROADCAST_ROOT
from wal.errors import UnknownOutcomeError
from wal.storage.journal.disk import Disk
from wal.storage.journal.read_only_journal import ReadOnlyJournal
from wal.storage.journal.recovery import recover_log
from wal.storage.kv import SqliteKV

_T = TypeVar("_T")


class ServedWorld:
    """The state that survives a crash, and the client."""

    def __init__(self, directory: Path, vchannels: Mapping[str, str]) -> None:
        self.directory = directory
        self.place: Journal | Cluster = Journal(str(directory))
        self.vchannels = vchannels
        self.pchannels = sorted(set(vchannels.values()))
        self.listen = f"127.0.0.1:{free_ports(1)[0]}"
        self.client: WALAccesser | None = None
        self.server: Server | None = None
        self.calls: list[Calls] = []
        self.callers: list[asyncio.Task[None]] = []
        """The tasks whose life ended before they did."""
        self.late: set[int] = set()
        """The broadcasts whose callers got an answer after a cut: from the next process if the call had not been sent."""
        self.unknown = 0
        self.sent_again = 0

    @property
    def kv(self) -> ServedWorld:
        return self

    async def load_with_prefix(self, _prefix: str) -> tuple[list[str], list[str]]:
        """Returns the broadcaster's records: from the process that has the metadata for itself, or without a process from the disk."""
        if self.server is not None:
            return await self.server.ask("records")  # type: ignore[no-any-return]
        with tempfile.TemporaryDirectory() as copy:
            for file in self.directory.glob("meta.sqlite3*"):
                shutil.copy(file, copy)
            async with await SqliteKV.open(Path(copy) / "meta.sqlite3") as kv:
                return await kv.under(BROADCAST_ROOT).load_with_prefix("")

    async def contents(self) -> dict[str, str]:
        return dict(zip(*await self.load_with_prefix(""), strict=True))

    def in_logs(self) -> InLogs:
        """Returns the copies in the frames themselves, which any process may read. Without a server: the copies that the next one
        will find.
        """
        with ThreadPoolExecutor(1) as thread:
            if self.server is not None:
                return thread.submit(self._read, self.directory).result()
            with tempfile.TemporaryDirectory() as parent:
                copy = copy_of_open(self.directory, Path(parent) / "log")
                return thread.submit(self._recover, copy).result()

    def _recover(self, directory: Path) -> InLogs:
        """Opens the logs as the next process does: a frame that was in flight at the kill may be whole, though no reader was shown it."""
        with contextlib.closing(ReadOnlyJournal(directory)) as journal:
            for pchannel in self.pchannels:
                with contextlib.closing(journal.open(pchannel)) as log:
                    incarnation, term = log.incarnation, log.refresh().term + 1
                recover_log(Disk(), log.directory, pchannel=pchannel, incarnation=incarnation, term=term).close()
        return self._read(directory)

    def _read(self, directory: Path) -> InLogs:
        found = InLogs()
        with contextlib.closing(ReadOnlyJournal(directory)) as journal:
            for pchannel in self.pchannels:
                with contextlib.closing(journal.open(pchannel)) as log:
                    count_log(log, found)
        return found

    async def killed(self) -> None:
        """Simulates the passing of time after the server is gone: nothing happens here."""

    async def close(self) -> None:
        for task in self.callers:
            task.cancel()
        await asyncio.gather(*self.callers, return_exceptions=True)
        if self.server is not None:
            await self.server.kill()
        if self.client is not None:
            await self.client.close()


class ServedLife:
    """One process that serves the log, and the calls of the client meanwhile."""

    asked_again = 0
    """Only the process itself could count it; a copy that is appended twice shows in the logs."""

    def __init__(self, world: ServedWorld, cut: Cut) -> None:
        self.world = world
        self.cut = cut
        self.broadcast: Calls

    async def __aenter__(self) -> ServedLife:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Starts the process. Returns once every call that an earlier life left unanswered has ended."""
        world, seed = self.world, None if self.cut.shuffle is None else self.cut.shuffle.randrange(1 << 30)
        first = world.client is None
        world.server = self.server = Server(self.cut, world.place, world.listen, self.cut.at, seed, not first)
        (world.listen,) = await self.server.hear("listening")
        if first:
            world.client = await open_wal(f"wal://{world.listen}")
            for vchannel, pchannel in world.vchannels.items():
                await world.client.create_vchannel(vchannel, pchannel=pchannel)
            await self.server.ask("count", answer="counting")
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            for calls in world.calls:
                await calls.ended()
        await self.cut.before()
        for task in world.callers:
            task.cancel()
        outcomes = await asyncio.gather(*world.callers, return_exceptions=True)
        world.callers.clear()
        world.calls.clear()
        for outcome in outcomes:
            assert outcome is None or isinstance(outcome, asyncio.CancelledError), repr(outcome)
        assert world.client is not None
        self.broadcast = Calls(world, self.cut)
        world.calls.append(self.broadcast)

    async def close(self) -> None:
        """Stops the process properly, unless it is cut meanwhile."""
        if self.cut.dead.is_set():
            await self._end()
            return
        self.server.tell("close")
        closed = asyncio.ensure_future(self.server.hear("closed"))
        cut = asyncio.ensure_future(self.cut.dead.wait())
        await asyncio.wait({closed, cut}, return_when=asyncio.FIRST_COMPLETED, timeout=WAIT_TIMEOUT_S)
        if not self.cut.dead.is_set():
            (self.cut.points,) = await closed
        for task in (closed, cut):
            task.cancel()
        await asyncio.gather(closed, cut, return_exceptions=True)
        await self._end()

    async def leave(self, task: asyncio.Task[None]) -> None:
        """Kills the process; a call that `task` has made continues, and `task` itself ends."""
        await self._end()
        self.world.callers.append(task)

    async def checkpoint(self, pchannel: str) -> None:
        await self.cut.before()
        await self.server.ask("checkpoint", pchannel, answer="checkpointed")

    async def _end(self) -> None:
        await self.server.kill()
        self.world.server = None
        await self.world.killed()


class Calls:
    """The calls of a client during one life. No call begins after its cut."""

    def __init__(self, world: ServedWorld, cut: Cut) -> None:
        assert world.client is not None
        self._world = world
        self._inner = world.client.broadcast()
        self._cut = cut
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def append(self, message: BroadcastMessage, *, wait: bool = False) -> BroadcastAppendResult:
        try:
            result = await self._made(lambda: self._inner.append(message, wait=wait))
        except UnknownOutcomeError as error:
            assert self._cut.dead.is_set(), "the outcome is unknown, and the server lives"
            assert error.outcome_unknown
            self._world.unknown += 1
            await asyncio.Event().wait()  # its caller, who would look now, was cut off
            raise
        if self._cut.dead.is_set():
            self._world.late.add(result.broadcast_id)
        return result

    async def ack(self, broadcast: int, vchannel: str) -> None:
        await self._repeated(lambda: self._inner.ack(broadcast, vchannel))

    async def abort(self, broadcast_id: int, reason: str) -> None:
        await self._repeated(lambda: self._inner.abort(broadcast_id, reason))

    async def tasks(self) -> list[BroadcastTask]:
        return await self._made(self._inner.tasks)

    async def ended(self) -> None:
        """Waits until no call is under way."""
        await self._idle.wait()

    async def _repeated(self, call: Callable[[], Awaitable[None]]) -> None:
        await self._made(call)
        self._world.sent_again += self._cut.dead.is_set()

    async def _made(self, call: Callable[[], Awaitable[_T]]) -> _T:
        await self._cut.before()
        self._under_way += 1
        self._idle.clear()
        try:
            return await call()
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()


class Server:
    """The process. A thread receives its words; `cut` is called at its end."""

    def __init__(self, cut: Cut, *args: Any) -> None:
        self._cut = cut
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=run, args=(theirs, *args), daemon=True)
        self._process.start()
        theirs.close()
        self._words: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()
        self._asking = asyncio.Lock()
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._listen, args=(loop,))
        self._thread.start()

    def tell(self, *words: Any) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._line.send(words)

    async def ask(self, *words: Any, answer: str = "") -> Any:
        async with self._asking:
            self.tell(*words)
            heard = await self.hear(answer or words[0])
        return heard[0] if heard else None

    async def hear(self, kind: str) -> tuple[Any, ...]:
        """Waits for the next word of this kind. Like every wait for the process, it never returns after the cut."""
        word = await self._words.get()
        assert word[0] == kind, f"{word}, and not {kind}"
        return word[1:]

    async def kill(self) -> None:
        """Sends SIGKILL, and waits until the process is gone."""
        await asyncio.to_thread(self._kill)

    def _kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._thread.join()
        self._line.close()

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                word = self._line.recv()
                loop.call_soon_threadsafe(self._said, word)
        loop.call_soon_threadsafe(self._said, ("ended",))

    def _said(self, word: tuple[Any, ...]) -> None:
        if word[0] == "cut":
            self._cut.points = word[1]
            self._cut.dead.set()
        elif not self._cut.dead.is_set():
            self._words.put_nowait(word)


class Served:
    """The location: logs below `directory`, each with its own servers. Of the rounds of a test it makes `rounds_max`, evenly chosen."""

    together = 4
    """The number of rounds that run at once: most of a round is waiting."""

    def __init__(self, directory: Path, *, rounds_max: int) -> None:
        self._directory = directory
        self.rounds_max: int = rounds_max
        self._made = 0
        self.unknown = 0
        """The number of broadcasts whose callers got an unknown outcome."""
        self.sent_again = 0
        """The number of acks and aborts that were under way at a cut, and returned nevertheless."""

    @contextlib.asynccontextmanager
    async def world(self, vchannels: Mapping[str, str]) -> AsyncIterator[ServedWorld]:
        self._made += 1
        world = ServedWorld(self._directory / f"log{self._made}", vchannels)
        try:
            yield world
        finally:
            await world.close()
            self.unknown += world.unknown
            self.sent_again += world.sent_again
            shutil.rmtree(world.directory, ignore_errors=True)

    def life(self, world: ServedWorld, cut: Cut | None = None) -> ServedLife:
        return ServedLife(world, cut or Cut())

    def some(self, rounds: Sequence[_T]) -> Collection[_T]:
        every = -(-len(rounds) // self.rounds_max)
        return rounds[every // 2 :: every]
