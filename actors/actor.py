"""Actor: an actor that waits, and therefore owns a task; ActorRef: its address, which callers hold; Inbox: the queue between the two.

Owns the task's loop (control before data, batches drained whole), the messages that the actor has not taken yet, the callers that wait for
room, and the unanswered asks. A failure poisons the actor, a stop drains it, and a stop that takes too long cuts it off.

Guarantees: the methods of an actor run one after the other, in its own task. Data keeps the order in which it was accepted; at most
`inbox_max` messages wait, and waiting callers get room in order of arrival. Every accepted message is handled or passed to `poisoned`.
Every ask gets an answer or an error. A caller that is cancelled while it waits for an actor does not affect the actor. An actor is never
restarted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import anyio

from actors.clock import Clock, Timer
from actors.errors import ActorError, ActorFailedError, ActorStoppedError, InboxFullError
from actors.group import HomeLoop
from actors.statistics import ActorStatistics, failure_text


class Inbox:
    """An inbox. The actor calls `wait`, `next_control` and `take`; its callers use the other methods."""

    __slots__ = ("_control", "_control_refusal", "_data", "_data_refusal", "_loop", "_max", "_name", "_parked", "_wakeup")

    def __init__(self, name: str, *, inbox_max: int, loop: asyncio.AbstractEventLoop) -> None:
        if inbox_max < 1:
            raise ValueError(f"inbox_max is {inbox_max}: actor {name!r} needs room for at least 1 message")
        self._name = name
        self._max = inbox_max
        self._loop = loop
        self._data: list[Any] = []
        self._control: deque[Any] = deque()
        self._parked: dict[asyncio.Future[None], Any] = {}  # empty unless _data is full
        self._wakeup: asyncio.Future[None] | None = None
        self._data_refusal: Callable[[], ActorError] | None = None
        self._control_refusal: Callable[[], ActorError] | None = None

    def __len__(self) -> int:
        return len(self._data) + len(self._control)

    @property
    def control_pending(self) -> int:
        return len(self._control)

    def tell(self, message: Any, *, inside: bool = False) -> None:
        """Adds a message, or raises InboxFullError. `inside`: the actor sends it to itself, which is allowed even while it drains."""
        self._refuse(inside=inside)
        if len(self._data) >= self._max:
            raise InboxFullError(
                f"the inbox of actor {self._name!r} holds {len(self._data)} of at most {self._max} messages: "
                "wait for room with tell_wait(), or try again later"
            )
        self._data.append(message)
        self.wake()

    async def tell_wait(self, message: Any, *, inside: bool = False) -> None:
        """Adds a message after the messages that already wait for room. A cancelled call adds nothing."""
        self._refuse(inside=inside)
        if len(self._data) < self._max:
            self._data.append(message)
            self.wake()
            return
        room: asyncio.Future[None] = self._loop.create_future()
        self._parked[room] = message
        try:
            await room
        finally:
            self._parked.pop(room, None)

    def tell_control(self, message: Any) -> None:
        """Adds a message to the control lane, which has no bound of its own."""
        if self._control_refusal is not None:
            raise self._control_refusal()
        self._control.append(message)
        self.wake()

    async def wait(self) -> None:
        """Returns when there is a message to take, or after a `wake`."""
        if not self:
            self._wakeup = self._loop.create_future()
            try:
                await self._wakeup
            finally:
                self._wakeup = None

    def wake(self) -> None:
        """Ends a `wait` without a message."""
        wakeup = self._wakeup
        if wakeup is not None and not wakeup.done():
            wakeup.set_result(None)

    def next_control(self) -> Any:
        """Removes and returns the oldest control message; there must be one."""
        return self._control.popleft()

    def take(self) -> list[Any]:
        """Removes and returns all data, and admits the messages that waited for room."""
        batch, self._data = self._data, []
        accepted = []
        for room, message in self._parked.items():
            if len(self._data) >= self._max:
                break
            accepted.append(room)
            if not room.done():  # otherwise its caller was cancelled and has not run yet
                room.set_result(None)
                self._data.append(message)
        for room in accepted:
            del self._parked[room]
        return batch

    def refuse_data(self, refusal: Callable[[], ActorError]) -> None:
        """Accepts no more data, except from inside. Callers that wait for room get the refusal."""
        self._data_refusal = refusal
        parked, self._parked = self._parked, {}
        for room in parked:
            if not room.done():
                room.set_exception(refusal())

    def close(self, refusal: Callable[[], ActorError]) -> list[Any]:
        """Accepts no more messages, and returns the remaining ones: control first, then data."""
        self._control_refusal = refusal
        self.refuse_data(refusal)
        remaining = [*self._control, *self._data]
        self._control.clear()
        self._data = []
        return remaining

    def _refuse(self, *, inside: bool) -> None:
        refusal = self._control_refusal if inside else self._data_refusal
        if refusal is not None:
            raise refusal()


log = logging.getLogger("actors")

T = TypeVar("T")


class Actor:
    """The base class of actors that wait: subclass it and pass an instance to `ActorSystem.spawn`. From then on `ref` is its own address.

    Its last call is `stopped`, if that returns, or else `poisoned`.
    """

    ref: ActorRef

    async def started(self) -> None:
        """Called once, before any message."""

    async def receive(self, batch: list[Any]) -> None:
        """Handles all messages that were in the inbox, in order. The actor may keep or change the list."""
        raise TypeError(f"{type(self).__name__} takes no data: implement receive()")

    async def receive_control(self, message: Any) -> None:
        """Handles one message of the control lane; the whole lane is handled before the next batch."""
        raise TypeError(f"{type(self).__name__} takes no control messages: implement receive_control()")

    async def stopped(self) -> None:
        """Called once at a stop, after all accepted messages were handled."""

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        """Called once when another method raised, or when a stop that took too long cut it off (`cause` is an ActorStoppedError then).

        `unhandled` has the messages that the actor was handling, then the messages that were still in the inbox, control first. The runtime
        fails the futures of `ActorRef.ask`; the actor itself fails whatever else depends on these messages.
        """


class ActorRef:
    """The address of an actor, returned by `ActorSystem.spawn`; it belongs to the system's event loop.

    Every call that sends a message raises ActorFailedError once the actor has failed, and WrongLoopError from another loop or thread. Once
    the actor is stopping, it raises ActorStoppedError, except for a message that the actor sends to itself while it drains.
    """

    def __init__(
        self, actor: Actor, *, name: str, inbox_max: int, home: HomeLoop, clock: Clock, stop_timeout_s: float, forget: Callable[[str], None]
    ) -> None:
        self._actor = actor
        self._name = name
        self._home = home
        self._clock = clock
        self._stop_timeout_s = stop_timeout_s
        self._forget = forget
        self._inbox = Inbox(name, inbox_max=inbox_max, loop=home.loop)
        self._in_hand: list[Any] = []
        self._asks: set[asyncio.Future[Any]] = set()
        self._scope = anyio.CancelScope()
        self._task: asyncio.Task[Any] | None = None
        self._unborn: Coroutine[Any, Any, None] | None = None
        self._deadline: Timer | None = None
        self._closing = False
        self._started = asyncio.Event()
        self._ended = asyncio.Event()
        self._failure: BaseException | None = None
        self._handled = 0
        self._turns = 0
        self._progressed_at = clock.monotonic()

    @property
    def name(self) -> str:
        """The name that the actor was spawned with."""
        return self._name

    @property
    def failure(self) -> BaseException | None:
        """The exception that the actor raised when it failed, or None."""
        return self._failure

    @property
    def is_cut_off(self) -> bool:
        """Whether the actor is cancelled from outside: its stop took too long, or its system ends."""
        return self._scope.cancel_called

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that the actor runs in; None before the task's first step."""
        return self._task

    @property
    def pending(self) -> int:
        """The number of unhandled messages, including those being handled."""
        return len(self._inbox) + len(self._in_hand)

    def tell(self, message: Any) -> None:
        """Adds a message to the inbox, or raises InboxFullError."""
        self._check()
        self._inbox.tell(message, inside=self._inside())

    async def tell_wait(self, message: Any) -> None:
        """Adds a message to the inbox, after waiting for room if necessary; callers get room in order of arrival.

        A call that is cancelled while it waits adds nothing, unless it got its room in that same turn.
        """
        self._check()
        await self._inbox.tell_wait(message, inside=self._inside())

    def tell_control(self, message: Any) -> None:
        """Adds a message to the control lane, also while the actor drains."""
        self._check()
        self._inbox.tell_control(message)

    async def ask(self, make_message: Callable[[asyncio.Future[T]], object]) -> T:
        """Sends `make_message(reply)`, after waiting for room if necessary, and returns the result that the actor sets on `reply`.

        The actor may always set the reply: the caller waits on another future, so cancelling the caller does not cancel the reply. If the
        actor fails or stops without an answer, the ask raises ActorFailedError or ActorStoppedError.
        """
        self._home.check()
        reply: asyncio.Future[T] = self._home.loop.create_future()
        message = make_message(reply)
        self._asks.add(reply)
        reply.add_done_callback(self._answered)
        try:
            await self.tell_wait(message)
        except BaseException:
            # The reply is not cancelled: the message may have been accepted, and then the actor sets the reply.
            self._asks.discard(reply)
            raise
        return await asyncio.shield(reply)

    async def wait_started(self) -> None:
        """Returns when `started` has returned; raises what `tell` raises if the actor ended in it."""
        self._home.check()
        await self._started.wait()
        if self._failure is not None or self._ended.is_set():
            raise self._refusal()

    async def stop(self) -> None:
        """Accepts no more data, drains both lanes, calls `stopped` and ends the task, which is cancelled after `stop_timeout_s`.

        There may be any number of callers; cancelling one does not abort the stop. Raises RuntimeError in the actor's own task.
        """
        self.stop_nowait()
        if self._inside():
            raise RuntimeError(f"actor {self._name!r} cannot wait for its own end: call stop_nowait() and return")
        await self._ended.wait()

    def stop_nowait(self) -> None:
        """Begins the stop that `stop` waits for."""
        self._home.check()
        if self._ended.is_set():
            self._forget(self._name)  # a failed actor stays listed until now
        elif not self._closing:
            self._closing = True
            self._inbox.refuse_data(self._refusal)
            self._inbox.wake()
            self._deadline = self._clock.call_later(self._stop_timeout_s, self._scope.cancel)

    def cut_off(self) -> None:
        """Ends the actor now, whatever it waits for, even if its task never ran its first step. Idempotent; called by the system."""
        self._closing = True
        self._scope.cancel()
        if self._task is None:
            if self._unborn is not None:
                self._unborn.close()  # its task was cancelled before the first step: without this, "was never awaited"
            self._end(None, cut_off=True)

    def stalled(self, stall_s: float) -> bool:
        """Returns whether messages are unhandled, and no message was finished for longer than `stall_s`."""
        return self.pending > 0 and self._clock.monotonic() - self._progressed_at > stall_s

    def statistics(self) -> ActorStatistics:
        """Returns the current counts."""
        return ActorStatistics(
            name=self._name, pending=self.pending, handled=self._handled, turns=self._turns, failure=failure_text(self._failure)
        )

    def launch(self) -> Coroutine[Any, Any, None]:
        """Returns the coroutine for the system's task group. It raises no error that would end the other actors."""
        self._unborn = self._run()
        return self._unborn

    async def _run(self) -> None:
        self._task, self._unborn = asyncio.current_task(), None
        with self._scope:
            try:
                await self._work()
            except asyncio.CancelledError as cause:
                if self._task is not None and self._task.cancelling():
                    self._end(None, cut_off=True)
                    raise
                self._end(cause)  # this task was not cancelled: the actor awaited a future that was
            except BaseException as cause:
                self._end(cause)
                if isinstance(cause, KeyboardInterrupt | SystemExit):
                    raise
            else:
                self._end(None)

    async def _work(self) -> None:
        actor, inbox = self._actor, self._inbox
        await actor.started()
        self._started.set()
        while True:
            if not inbox:
                if self._closing:
                    break
                await inbox.wait()
                continue
            for _ in range(inbox.control_pending):
                self._in_hand = [inbox.next_control()]
                await actor.receive_control(self._in_hand[0])
                self._finished(1)
            if batch := inbox.take():
                self._in_hand = batch
                size = len(batch)  # before the call: the actor may change the list
                await actor.receive(batch)
                self._finished(size)
        await actor.stopped()

    def _finished(self, count: int) -> None:
        self._in_hand = []
        self._handled += count
        self._turns += 1
        self._progressed_at = self._clock.monotonic()

    def _end(self, failure: BaseException | None, *, cut_off: bool = False) -> None:
        """Ends the actor, once: after a failure, a cut-off or an orderly stop."""
        if self._ended.is_set():
            return
        self._closing = True
        self._failure = failure
        if self._deadline is not None:
            self._deadline.cancel()
        unhandled = self._in_hand + self._inbox.close(self._refusal)
        self._in_hand = []
        self._ended.set()
        self._started.set()
        if failure is not None:
            log.error("actor %r failed", self._name, exc_info=failure)
        elif cut_off and unhandled:
            log.warning("actor %r was cut off with %d messages waiting", self._name, len(unhandled))
        if failure is not None or cut_off:
            try:
                self._actor.poisoned(failure or self._refusal(), unhandled)
            except Exception:
                log.exception("poisoned() of actor %r raised", self._name)
        for reply in list(self._asks):
            if not reply.done():
                reply.set_exception(self._refusal())
        if failure is None:
            self._forget(self._name)

    def _answered(self, reply: asyncio.Future[Any]) -> None:
        self._asks.discard(reply)
        if not reply.cancelled():
            reply.exception()  # prevents the log line "never retrieved" for an ask whose caller was cancelled

    def _inside(self) -> bool:
        return self._closing and self._task is not None and asyncio.current_task() is self._task

    def _check(self) -> None:
        self._home.check()
        if not self.pending:
            self._progressed_at = self._clock.monotonic()

    def _refusal(self) -> ActorError:
        if self._failure is not None:
            return ActorFailedError(self._name, self._failure)
        return ActorStoppedError(f"actor {self._name!r} is stopping or has stopped: it takes no messages and answers none")
