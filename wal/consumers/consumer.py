"""Consumer: a handler that runs on the messages of a log, as its caller holds it.

Owns its task, which claims the cursor, runs one session after the other, and restarts when another consumer, a seek or a deletion took the
cursor. The task outlives a cancelled caller: unfinished messages are released and saved before the cursor is.

    (created) --start--> waiting for the cursor --> running <--> paused --> draining --> ended
                                  ^                    |  <--> tripped
                                  +--- cursor lost ----+

ConsumerRegistry: the consumers of an open log, which ends them when the log is closed. A consumer that has ended with an error stays
visible there until its owner closes it, or starts another one of its cursor. Otherwise a service without its consumer would look healthy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Final, Self

import msgspec

from wal.consumers.delivery import DRAIN_S
from wal.consumers.handler_counts import TIME_BOUNDS_S
from wal.consumers.lifecycle import ConsumerCounts
from wal.consumers.member import MemberSession
from wal.consumers.options import ConsumerOptions, check_drain
from wal.consumers.session import ConsumerSession
from wal.errors import (
    ClosedError,
    HandlerFailedError,
    InvalidArgumentError,
    InvalidRequestSeqError,
    NoSpaceError,
    SessionLostError,
    UnavailableError,
    UnknownOutcomeError,
    WouldBlockError,
)
from wal.message import MessageID
from wal.message.matching import Matching
from wal.read.cursors.cursor import REDRIVE
from wal.read.figures import Histogram, counter, gauge, histogram
from wal.requests.pchannels import LatestTick
from wal.requests.work import CursorMember, SharedCursor
from wal.runtime.async_only import AsyncOnly
from wal.runtime.tasks import unless
from wal.runtime.user_code import described, shielded, text_of

if TYPE_CHECKING:
    from wal.engine import CursorHome, WritableEngine
    from wal.read.cursors.cursor import CursorKey

AGAIN: Final = (SessionLostError, InvalidRequestSeqError, UnknownOutcomeError, UnavailableError, NoSpaceError, WouldBlockError)
"""After these errors the consumer claims its cursor again: the cursor was moved, or another consumer has it, or the log is not writable for
a while.
"""
PAUSES_S: Final = (0.02, 5.0)
"""The first pause before such a claim, and the longest, in seconds."""
_log: Final = logging.getLogger("wal.consumers")


class ConsumerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer as `log.consumers()` shows it: its state, its counts since it was started, and its unfinished messages.

    `state` is "created", "waiting" (for the cursor), "running", "paused", "tripped", "draining" or "ended". `fence` is its number, 0
    before it has the cursor. `handled` messages were handled, `failed` attempts raised or timed out, `retried` attempts were not the first
    at their message, `dead_lettered` messages became dead letters. `in_hand` messages are with handlers; `pending` are after the position,
    of at most `pending_max`. A consumer of a pattern has its text in `pattern`, and no `vchannels`.

    `lag_messages` are read and unfinished, without the messages in the log that are not read yet (`log.cursors()` counts those by the
    indexes, which a plain call cannot read). `lag_bytes` are the bytes of the log after the position. `lag_s` is the age of the first
    unfinished message in seconds. `idle_s` are the seconds since a message was last finished, or since the start. `handler_s` counts each
    call of the handler by its seconds. `held_by` names the message that holds the position, and the reason; empty if none does. `members`
    are those of a shared cursor, with what each has, as of the last second; the numbers of messages from `pending` on are those of all
    members then. `error` is the error that ended the consumer, or made it trip, with its class, `message_id` the message of that error, if
    it has one, and `stopped_at` the time. The counts of an ended consumer are those of that time.
    """

    state: str
    cursor: str
    vchannels: tuple[str, ...]
    fence: int = 0
    handled: Annotated[int, counter("wal_consumer_handled", "Messages that the handlers of a consumer have handled")] = 0
    failed: Annotated[int, counter("wal_consumer_failed_attempts", "Attempts that raised or timed out")] = 0
    retried: Annotated[int, counter("wal_consumer_retries", "Attempts that were not the first at their message")] = 0
    dead_lettered: Annotated[int, counter("wal_consumer_dead_letters", "Messages that became dead letters")] = 0
    commits: int = 0
    in_hand: Annotated[int, gauge("wal_consumer_in_hand", "Messages that handlers have")] = 0
    pending: Annotated[int, gauge("wal_consumer_pending", "Messages after the position that the consumer remembers")] = 0
    pending_max: int = 0
    lag_messages: Annotated[int, gauge("wal_consumer_lag_messages", "Messages that are read and unfinished")] = 0
    lag_bytes: Annotated[int, gauge("wal_consumer_lag_bytes", "Bytes of the log after the position of the consumer")] = 0
    lag_s: Annotated[
        float, gauge("wal_consumer_lag_seconds", "The age of the oldest message that is read and unfinished, 0 without one")
    ] = 0.0
    idle_s: Annotated[float, gauge("wal_consumer_idle_seconds", "Since a message was last finished, or since the start")] = 0.0
    handler_s: Annotated[Histogram, histogram("wal_consumer_handler_seconds", "The time of each call of the handler")] = Histogram()
    held_by: str = ""
    members: tuple[CursorMember, ...] = ()
    error: str = ""
    message_id: MessageID | None = None
    stopped_at: datetime | None = None
    pattern: str = ""


def shared_infos(cursors: Iterable[SharedCursor]) -> list[ConsumerInfo]:
    """Returns each shared cursor as one consumer that has all its members."""
    infos = [
        ConsumerInfo(
            state="tripped" if one.work.tripped else "running",
            cursor=one.key.name,
            vchannels=one.key.vchannels,
            pattern=one.key.pattern,
            fence=one.fence,
            handled=one.handled,
            failed=one.failed,
            retried=one.retried,
            dead_lettered=one.dead_lettered,
            in_hand=sum(member.in_hand for member in one.work.members),
            pending=one.work.pending,
            lag_messages=one.work.lag_messages,
            lag_bytes=one.work.lag_bytes,
            lag_s=one.work.lag_s,
            idle_s=one.idle_s,
            held_by=one.work.held_by,
            members=one.work.members,
            error=one.work.tripped,
            stopped_at=one.tripped_at,
        )
        for one in cursors
    ]
    return sorted(infos, key=_order)


class ConsumerRegistry:
    """The consumers of an open log."""

    def __init__(self) -> None:
        self.running: set[Consumer] = set()
        self.ended: dict[CursorKey, Consumer] = {}
        """The consumers that have ended with an error and are not closed: the last one of each cursor."""

    def infos(self) -> list[ConsumerInfo]:
        """Returns all consumers, by cursor."""
        return sorted([consumer.statistics() for consumer in self.running.union(self.ended.values())], key=_order)

    def check(self, key: CursorKey) -> None:
        """Raises InvalidArgumentError if a consumer of this name has other vchannels."""
        for consumer in self.running:
            other = consumer.key
            if other.name == key.name and other != key:
                raise InvalidArgumentError(
                    f"cursor {key.name!r} has a consumer of {other.subject} in this process, and this one is of {key.subject}: each would "
                    "have a position of its own; name the cursors differently, or consume the same vchannels"
                )

    def moved(self, name: str) -> None:
        """Makes the consumers of this name check their cursor at once, after it was moved here."""
        for consumer in self.running:
            if consumer.key.name == name:
                consumer._cursor_moved()

    async def close(self) -> None:
        """Ends all consumers, as the log is being closed."""
        await asyncio.gather(*(consumer.close() for consumer in list(self.running)), return_exceptions=True)
        lingering = [consumer._lingering for consumer in self.running if consumer._lingering is not None]
        for task in lingering:  # threads that have not returned count as killed with the process
            task.cancel()
        if lingering:
            await asyncio.wait(lingering)
        self.running.clear()
        self.ended.clear()


class Consumer(AsyncOnly):
    """A handler on the messages of vchannels, from `log.consume`: `async with` starts and drains it, `await run()` runs it to its end."""

    _with_form = "'async with log.consume(…) as consumer'"

    def __init__(
        self, options: ConsumerOptions, engine: Callable[[], Awaitable[WritableEngine]], registry: ConsumerRegistry, *, follow: bool = True
    ) -> None:
        self._options = options
        self._open_engine = engine
        self._registry = registry
        self._follow = follow
        self._engine: WritableEngine
        self._counts = ConsumerCounts()
        self._task: asyncio.Task[None] | None = None
        self._session: ConsumerSession | MemberSession | None = None
        self._lingering: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()
        self._paused = False
        self._trip: HandlerFailedError | None = None
        """The error of the last of too many dead letters in a row, until the consumer is resumed."""
        self._drain_s = DRAIN_S
        self._began_s = 0.0
        self._ended_s = 0.0
        self._stopped_at: datetime | None = None
        self._is_told = False
        """Whether a caller got the error that ended it, or gets it when `run` returns."""

    def __repr__(self) -> str:
        return f"Consumer({self.key.subject}, cursor={self.key.name!r}, {self._state})"

    @property
    def key(self) -> CursorKey:
        """The cursor: its name and its vchannels."""
        return self._options.cursor

    # -- starting and ending

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        with shielded():
            await self.close(drain_s=0.0 if kind is not None and issubclass(kind, asyncio.CancelledError) else DRAIN_S)
        if kind is None and not self._is_told and (untold := self._error) is not None:
            self._is_told = True
            raise untold

    async def run(self) -> None:
        """Runs the consumer until it is closed, and raises the error that ends it. A cancelled call releases the unfinished messages.

        Returns at once if the consumer was closed before it began: a service may end before the task of this call has its first turn.
        """
        if self._task is None and self._closing.is_set():
            return
        task = self._start()
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            self._close(0.0)
            with shielded():
                await asyncio.shield(asyncio.wait((task,)))
            raise
        finally:
            self._is_told = True

    async def close(self, *, drain_s: float = DRAIN_S) -> None:
        """Ends the consumer: no more handlers start, and running ones get `drain_s` seconds before they are released. Idempotent.

        A released message uses up no attempt, and is redelivered by the next consumer. A handler may still run after that: a sync handler,
        or an async handler that needs as long again (at least a second) after its cancellation. It keeps its message, and the cursor, until
        it returns. A handler that closes its own consumer does not wait.
        """
        self._close(check_drain(drain_s))
        if self._task is not None and not self._is_inside():
            await asyncio.shield(asyncio.wait((self._task,)))
        if self._registry.ended.get(self.key) is self:
            del self._registry.ended[self.key]

    def _start(self) -> asyncio.Task[None]:
        if self._task is None:
            if self._closing.is_set():
                raise ClosedError("the consumer was closed before it began: call consume again")
            if self.key.name != REDRIVE:
                self._registry.check(self.key)
            self._registry.running.add(self)
            self._registry.ended.pop(self.key, None)
            loop = asyncio.get_running_loop()
            self._began_s = loop.time()
            self._task = loop.create_task(self._run(), name=f"consumer {self.key.name}")
            self._task.add_done_callback(self._ended)
        elif self._task.done():
            raise ClosedError("the consumer has ended: call consume again")
        return self._task

    def _is_inside(self) -> bool:
        """Returns whether the caller is a handler of this consumer, or the consumer itself."""
        task = asyncio.current_task()
        return task is self._task or (self._session is not None and self._session.has_begun and self._session.pool.runs(task))

    def _close(self, drain_s: float) -> None:
        self._drain_s = min(drain_s, self._drain_s) if self._closing.is_set() else drain_s
        self._closing.set()
        if self._session is not None:
            self._session.stop()

    @property
    def _error(self) -> BaseException | None:
        """The error that ended it; None while it runs, and after an end without error."""
        task = self._task
        return None if task is None or not task.done() or task.cancelled() else task.exception()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._changed.set()
        self._trip = None
        if self._lingering is None:
            self._registry.running.discard(self)
        else:
            self._lingering.add_done_callback(lambda _: self._registry.running.discard(self))
        if (error := self._error) is None:
            return
        self._ended_s, self._stopped_at = task.get_loop().time(), datetime.now(UTC)
        if not isinstance(error, ClosedError):
            self._registry.ended[self.key] = self
            _log.error(
                "consumer %r of %s has ended: %s",
                self.key.name,
                self.key.subject,
                text_of(error),
                exc_info=error,
                extra={"wal_event": "consumer ended", "wal_cursor": self.key.name, "wal_error": type(error).__name__},
            )

    # -- running

    async def _run(self) -> None:
        """Claims the cursor and runs a session, repeatedly until the consumer is closed."""
        options = self._options
        engine = await unless(self._closing, self._open_engine())
        if engine is None:
            return
        self._engine = engine
        home: CursorHome | None = None
        before, pause_s = 0, 0.0
        while not self._closing.is_set():
            session: ConsumerSession | MemberSession | None = None
            commits = self._counts.commits
            try:
                if home is None and (home := await unless(self._closing, engine.cursor_home(options.cursor))) is None:
                    return
                if options.lease_s is not None:
                    trip = "" if self._trip is None else str(self._trip)
                    session = MemberSession(
                        options, engine, home.pchannel, self._counts, tripped=self._tripped, resumed=self._resumed, trip=trip
                    )
                else:
                    claim = await unless(self._closing, home.claim(exclusive=options.exclusive))
                    if claim is None:
                        return
                    session = ConsumerSession(
                        options, engine, home, claim, self._counts, tripped=self._tripped, follow=self._follow, before=before
                    )
                    before = claim.fence
                session.pause(paused=self._paused)
                self._session = session
                if self._closing.is_set():
                    session.stop()
                self._changed.set()
                await session.run(lambda: self._drain_s)
            except AGAIN as error:
                _log.info("consumer %r of %s begins again: %s", self.key.name, self.key.subject, error)
            else:
                return
            finally:
                self._lingering = None if session is None else session.lingering
                self._session = None
                self._changed.set()
            # a thread still has a message: no other handler gets the message before that thread has returned
            if self._lingering is not None:
                await unless(self._closing, asyncio.wait((self._lingering,)))
            pause_s = PAUSES_S[0] if self._counts.commits > commits else min(2 * pause_s or PAUSES_S[0], PAUSES_S[1])
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), pause_s)

    # -- for the caller

    async def caught_up(self) -> None:
        """Returns when every message that is durable now is handled or a dead letter, and the position is saved.

        Raises the error that ended the consumer, or a ClosedError after `close`; a HandlerFailedError while it is tripped. Raises
        InvalidArgumentError in a handler of this consumer, which would wait for itself.
        """
        if self._is_inside():
            raise InvalidArgumentError("a handler cannot wait until its own message is finished: call caught_up in another task")
        engine = await self._open_engine()
        tick = await _latest_tick(engine, self._options.vchannels)
        self._start() if self._task is None else None
        while True:
            self._changed.clear()
            if self._trip is not None:
                raise self._trip
            if (session := self._session) is not None and await session.caught_up(tick):
                return
            if self._task is not None and self._task.done():
                self._is_told = True
                if self._error is not None:
                    raise self._error
                raise ClosedError("the consumer was closed before it had caught up: call consume again to continue")
            if self._trip is None:
                await self._changed.wait()

    def pause(self) -> None:
        """Stops starting handlers and reading; running handlers continue. The consumer keeps the cursor."""
        self._set_paused(paused=True)

    def resume(self) -> None:
        """Ends a pause, also that of a tripped consumer, which counts from 0 again."""
        if self._trip is not None:
            self._trip = self._stopped_at = None
            self._counts.exhausted = 0
        self._set_paused(paused=False)

    def _resumed(self) -> None:
        """Ends the pause of a trip that another member of the cursor has ended."""
        if self._trip is not None:
            self.resume()

    def _set_paused(self, *, paused: bool) -> None:
        self._paused = paused
        if self._session is not None:
            self._session.pause(paused=paused)

    def _tripped(self, error: HandlerFailedError) -> None:
        if self._trip is not None:  # another handler, which was running, has failed too
            return
        self._trip, self._stopped_at = error, datetime.now(UTC)
        self._set_paused(paused=True)
        self._changed.set()
        _log.error(
            "%s",
            text_of(error),
            extra={"wal_event": "consumer tripped", "wal_cursor": self.key.name, "wal_error": described(error.__cause__ or error)},
        )

    def _cursor_moved(self) -> None:
        if self._session is not None:
            self._session.cursor_moved()

    @property
    def _state(self) -> str:
        if self._task is None:
            return "created"
        if self._task.done():
            return "ended"
        if self._closing.is_set():
            return "draining"
        if self._trip is not None:
            return "tripped"
        if self._session is None:
            return "waiting"
        return "paused" if self._paused else "running"

    def statistics(self) -> ConsumerInfo:
        """Returns a snapshot of its counts."""
        counts, session = self._counts, self._session
        now = self._ended_s or asyncio.get_running_loop().time() if self._task is not None else 0.0
        error = self._error or self._trip
        statistics = ConsumerInfo(
            state=self._state,
            cursor=self.key.name,
            vchannels=self.key.vchannels,
            pattern=self.key.pattern,
            handled=counts.handled,
            failed=counts.failed,
            retried=counts.retried,
            dead_lettered=counts.dead_lettered,
            commits=counts.commits,
            pending_max=self._options.plan.pending_max,
            idle_s=now - (self._began_s if counts.progress_s is None else counts.progress_s),
            handler_s=Histogram(TIME_BOUNDS_S, tuple(counts.times), counts.handler_s),
            error="" if error is None else described(error),
            message_id=error.message.message_id if isinstance(error, HandlerFailedError) and error.message is not None else None,
            stopped_at=self._stopped_at,
        )
        if session is None or not session.has_begun:
            return statistics
        return msgspec.structs.replace(statistics, **session.figures())


def _order(info: ConsumerInfo) -> tuple[str, tuple[str, ...], str]:
    return info.cursor, info.vchannels, info.pattern


async def _latest_tick(engine: WritableEngine, vchannels: tuple[str, ...] | Matching) -> int:
    """Returns a tick at or above that of every message of these vchannels that is durable now."""
    if isinstance(vchannels, Matching):
        attached, _ = await engine.attach_matching(vchannels)
        return max(pchannel.tail.promised_tick for pchannel, _ in attached)
    return max([await engine.submit(LatestTick(name)) for name in vchannels])
