"""Supervision: a client's tasks, the handling of their defects, and the end of a client whose server has another log.

Every task of the client's engine that outlives a call runs here. Tasks follow the assignments, the vchannels and the ends of the pchannels;
others are producers and single writes to a stream. The component that starts a task also cancels it. A defect is an exception that the work
of a task does not handle, or an unexpected cancellation: gRPC raises CancelledError for calls that have ended.

    running --defect--> logged --(kept, fewer than DEFECTS_MAX in DEFECTS_S)--> pause --> running
                        logged --(else)--> the client ends: `end` is called once, and every later call raises the UnknownError

A kept task may restart because its stream begins with the whole state of the server. A producer may not: its requests would meet
the same defect again, and their callers would wait for ever.

Beside it is what the calls of a client share: `Pauses` between attempts to find a server, `SharedCalls` for callers that want the same
answer (all readers at the tail ask for the same page when it moves), and the client's figures: the largest tick in its results, its events
and frames, and its uncommitted bodies.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Final, Generic, TypeVar

from wal.errors import UnknownError, WALError, caused
from wal.rpc.api import result_pb2
from wal.rpc.converters import id_from_bytes
from wal.runtime.backoff import Backoff
from wal.runtime.tasks import keep_task

DEFECTS_MAX: Final = 5
"""A task with this many defects within `DEFECTS_S` seconds is not started anew: what it meets does not pass."""
DEFECTS_S: Final = 60.0


CANCEL_AGAIN_S: Final = 0.5
"""The pause before tasks that have not ended are cancelled again."""


class Supervision:
    """The tasks of one client. `end` ends the client with an error; it is called at most once."""

    def __init__(self, end: Callable[[WALError], None]) -> None:
        self._end = end
        self._tasks: set[asyncio.Task[None]] = set()
        """The tasks that run: the loop itself holds a task weakly."""
        self.failure: WALError | None = None
        """The error that ended the client; the cause of an UnknownError is the defect."""
        self.closing: bool = False
        """Whether the log is being closed, which ends calls and the tasks that made them."""

    def start(self, work: Callable[[], Awaitable[None]], name: str) -> asyncio.Task[None]:
        """Starts a task; a defect in it ends the client."""
        return self._start(work, name, defects_max=1)

    def keep(self, work: Callable[[], Awaitable[None]], name: str) -> asyncio.Task[None]:
        """Starts a task that restarts after a defect; `DEFECTS_MAX` defects within `DEFECTS_S` end the client."""
        return self._start(work, name, defects_max=DEFECTS_MAX)

    async def begun(self, first: asyncio.Future[None], task: asyncio.Task[None], *, timeout_s: float) -> bool:
        """Waits until this task has settled `first`, and returns True; False after `timeout_s`.

        Raises the exception of `first`, and the error that ended the client.
        """
        await asyncio.wait([first, task], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self.failure is not None:
            raise self.failure
        if first.done():
            first.result()
        return first.done()

    def end(self, failure: WALError) -> None:
        """Ends the client with this error, and its tasks. Only the first one counts."""
        if self.failure is None:
            self.failure = failure
            self._end(failure)
            # Not at once: a call of one of these tasks may be what ends the client, in the middle of gRPC's own code.
            asyncio.get_running_loop().call_soon(self._cancel_tasks)

    def _cancel_tasks(self) -> None:
        """Cancels the tasks, again and again until they have ended: a cancellation that meets gRPC's own work can be lost there."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            asyncio.get_running_loop().call_later(CANCEL_AGAIN_S, self._cancel_tasks)

    def _start(self, work: Callable[[], Awaitable[None]], name: str, *, defects_max: int) -> asyncio.Task[None]:
        return keep_task(self._tasks, asyncio.get_running_loop().create_task(self._run(work, name, defects_max), name=name))

    async def _run(self, work: Callable[[], Awaitable[None]], name: str, defects_max: int) -> None:
        task, loop, pauses = asyncio.current_task(), asyncio.get_running_loop(), Pauses()
        times: deque[float] = deque(maxlen=defects_max)
        assert task is not None
        while True:
            try:
                await work()
                return
            except (Exception, asyncio.CancelledError) as defect:
                if task.cancelling() or (self.closing and isinstance(defect, asyncio.CancelledError)):
                    raise
                times.append(loop.time())
                if len(times) == defects_max and times[-1] - times[0] < DEFECTS_S:
                    self._fail(name, defect)
                    return
                _log.error("a task of the client failed and is started anew (%s): %r", name, defect, exc_info=defect)
            await asyncio.sleep(pauses.next())

    def _fail(self, name: str, defect: BaseException) -> None:
        """Ends the client because of this defect."""
        _log.error("a task of the client failed, which ends the client (%s): %r", name, defect, exc_info=defect)
        failure = caused(
            UnknownError(
                f"the client has ended, because one of its tasks failed ({name}): {defect!r}; open the log again, and please report it"
            ),
            defect,
        )
        self.end(failure)


_log: Final = logging.getLogger("wal.remote")


PAUSE_FIRST_S: Final = 0.02
PAUSE_MAX_S: Final = 0.5


class Pauses(Backoff):
    """The pauses of a client between attempts to reach a server; they say when a user should know."""

    __slots__ = ("_at_max", "waited_s")

    def __init__(self) -> None:
        super().__init__(PAUSE_FIRST_S, PAUSE_MAX_S)
        self.waited_s: float = 0.0
        """How long the pauses since the last success took in all; a caller may add what its attempts took."""
        self._at_max = False

    def reset(self) -> None:
        self.next_s = PAUSE_FIRST_S
        self.waited_s = 0.0
        self._at_max = False

    def next(self) -> float:
        pause_s = super().next()
        self.waited_s += pause_s
        return pause_s

    def to_tell(self) -> bool:
        """Returns True once between two resets, when the attempts have failed for about half a second: then a user should know of it."""
        was_at_max, self._at_max = self._at_max, self.next_s == PAUSE_MAX_S
        return self._at_max and not was_at_max


Answer = TypeVar("Answer")


class SharedCalls(Generic[Answer]):
    """The running calls, by request. The failure or cancellation of a call concerns its own caller: the others call by themselves."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, _UnderWay[Answer]] = {}

    async def join(self, question: Hashable, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Returns the answer of a call that is under way, or else of this one; raises what this one raises."""
        while (other := self._under_way.get(question)) is not None:
            await other.ended.wait()
            if other.answers:
                return other.answers[0]
        own = self._under_way[question] = _UnderWay()
        try:
            answer = await call()
            own.answers.append(answer)
            return answer
        finally:
            del self._under_way[question]
            own.ended.set()

    async def join_next(self, question: Hashable, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Does as `join`, but with no call that was under way already, whose answer may be older than this caller's question."""
        if (earlier := self._under_way.get(question)) is not None:
            await earlier.ended.wait()
        return await self.join(question, call)


class _UnderWay(Generic[Answer]):
    """A call under way, and its answer if it got one."""

    __slots__ = ("answers", "ended")

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.answers: list[Answer] = []


class SeenTick:
    """The largest tick that this client has seen. Its later appends get larger ones, whichever server executes them."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int = 0

    def saw(self, tick: int) -> None:
        """Notes a tick."""
        if tick > self.value:
            self.value = tick


class OpenTxns:
    """The open transactions of a client on a pchannel, and the bytes that their bodies take."""

    __slots__ = ("bytes", "count")

    def __init__(self) -> None:
        self.count: int = 0
        self.bytes: int = 0


class Written:
    """The events that a client appended to a pchannel, and the frames that hold them."""

    __slots__ = ("_newest", "events", "frames")

    def __init__(self) -> None:
        self.frames: int = 0
        self.events: int = 0
        self._newest = -1

    def count(self, appended: Iterable[result_pb2.AppendedRange]) -> None:
        """Counts results, but not those of duplicates."""
        for results in appended:
            if results.first_id and not results.duplicate:
                self.events += results.count
                position = id_from_bytes("first_id", results.first_id).position
                if position > self._newest:
                    self._newest = position
                    self.frames += 1
