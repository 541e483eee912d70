"""Outbox: the waiting and sent requests of one producer, and their fate when the connection is lost. Pure.

Requests are sent in the order in which they were added. A request that the server refused for its own state was not executed, and is sent
again; so is an unanswered request that may be executed twice without harm, such as an append with an idempotency key. Both are sent again
before anything newer, in their order. The outcome of any other request without an answer is unknown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from wal.errors import WALError
from wal.message import Message
from wal.requests.appends import PLAIN, WriteOptions
from wal.requests.request import Request
from wal.requests.txns import Withdraw

REQUEST_BYTES: Final = 1024 * 1024
"""A request has about this many bytes at most, unless one message or transaction is larger (wal/rpc/api/append.proto)."""
REQUEST_MESSAGES: Final = 4096
"""The most messages of a request: with columns of small messages, building more at once would hold up the event loop."""
AHEAD_MIN: Final = 64
"""While nothing is under way, the first request takes half of the waiting messages, and at least this many. After that the client and the
server work at the same time, each on one half. A request of fewer messages would cost more than that saves."""

GROW_MESSAGES: Final = 32
"""A request of fewer messages may wait for an answer: a request costs the client, the server and the log as much as about 20 messages."""


class Hold:
    """A vchannel whose pchannel the server is being asked for: requests for it wait, and whatever follows them on the same producer."""

    __slots__ = ("finding", "pending")

    def __init__(self) -> None:
        self.pending: bool = True
        self.finding: asyncio.Task[None] | None = None
        """The task that asks the server; None before it does, while a drop is under way."""


class Sending(msgspec.Struct, eq=False):
    """A request, or one message of a request. `future` gets the outcome; `size` is the room that it takes in flight.

    One that writes nothing has size 0. A message has its options, and shares its request with its neighbours; anything else is a `request`
    of its own. It is `repeatable` if executing it twice does no harm. It was `tried` if it was sent before on a stream that was lost, so
    that it may have been executed.
    """

    future: Any
    size: int
    message: Message | None = None
    options: WriteOptions = PLAIN
    request: Request[Any] | None = None
    repeatable: bool = False
    hold: Hold | None = None
    tried: bool = False

    @property
    def may_wait(self) -> bool:
        """Whether it may wait at the server for longer than the log takes to write: for its barrier, or for an append with the same key."""
        return self.size > 0 and (self.options.barrier_time_tick > 0 or self.repeatable)


class Outbox:
    """The requests of one producer. Their numbers are those of the stream that they were sent on."""

    def __init__(self) -> None:
        self.waiting: deque[Sending] = deque()
        self.sent: dict[int, Sending] = {}
        self.refusing: WALError | None = None
        """The error with which the server refused requests on this stream: it refuses all that follow."""
        self._refused: list[tuple[int, Sending]] = []
        self._at_barriers: set[int] = set()
        """The numbers of the sent requests that may wait for a barrier at the server."""
        self._next = 1

    def __bool__(self) -> bool:
        """Whether any request has no outcome yet."""
        return bool(self.waiting or self.sent or self._refused)

    def add(self, sending: Sending) -> None:
        """Adds a request after all others."""
        self.waiting.append(sending)

    def may_grow(self) -> bool:
        """Returns whether the next request is better sent after the next answer: fewer messages wait than have no answer yet.

        Otherwise writers that append to several pchannels in turn would send small requests to each. While one half waits and the other is
        in flight, nothing is delayed.
        """
        waiting = self.waiting
        under_way = len(self.sent) - len(self._at_barriers)
        return 0 < len(waiting) < min(under_way, GROW_MESSAGES) and waiting[0].request is None and waiting[-1].request is None

    def take(self, *, bytes_max: int = REQUEST_BYTES) -> tuple[int, list[Sending]] | None:
        """Takes what is sent next: one request, or the messages of one. Returns it with its first number; None if nothing may be sent now.

        They count as sent.
        """
        waiting = self.waiting
        if self.refusing is not None or not waiting:
            return None
        first = self._next
        taken: list[Sending] = []
        size = 0
        messages_max = REQUEST_MESSAGES if self.sent else min(REQUEST_MESSAGES, max(AHEAD_MIN, len(waiting) // 2))
        while waiting and len(taken) < messages_max:
            sending = waiting[0]
            if sending.hold is not None and sending.hold.pending:
                break
            if taken and (sending.request is not None or size + sending.size > bytes_max):
                break
            taken.append(waiting.popleft())
            size += sending.size
            if sending.options is not PLAIN and sending.options.barrier_time_tick:
                self._at_barriers.add(self._next + len(taken) - 1)
            if sending.request is not None:
                break
        if not taken:
            return None
        self.sent.update(zip(range(first, first + len(taken)), taken, strict=True))
        self._next += len(taken)
        return first, taken

    def answered(self, number: int) -> Sending | None:
        """Returns the request that got its outcome; None for a number that no request without an outcome has."""
        if self._at_barriers:
            self._at_barriers.discard(number)
        return self.sent.pop(number, None)

    def refused(self, number: int, error: WALError) -> bool:
        """Notes that the server refused a request for its own state: it will be sent again, on another stream.

        A request that may have been executed all the same (`error.outcome_unknown`) is sent again if that does no harm. Returns False if it
        is not: then it still waits for its outcome.
        """
        sending = self.sent.get(number)
        if sending is None:
            return True
        if error.outcome_unknown:
            if not sending.repeatable:
                return False
            sending.tried = True
        del self.sent[number]
        self._at_barriers.discard(number)
        self._refused.append((number, sending))
        self.refusing = error
        return True

    def restart(self, *, answered: bool = False) -> list[Sending]:
        """Starts over because the stream has ended. Returns the requests whose outcome is unknown, in their order.

        `answered`: the server had answered everything that it executed, so that it did not execute what has no answer.
        """
        again = [*self._refused]
        unknown = []
        for number, sending in self.sent.items():
            if answered or sending.repeatable:
                sending.tried = sending.tried or not answered
                again.append((number, sending))
            else:
                unknown.append(sending)
        again.sort(key=lambda numbered: numbered[0])
        self.waiting.extendleft(sending for _, sending in reversed(again))
        self.sent.clear()
        self._at_barriers.clear()
        self._refused.clear()
        self.refusing = None
        self._next = 1
        return unknown

    def take_back(self, is_meant: Callable[[Sending], bool]) -> list[Sending]:
        """Takes back the wanted ones of the waiting requests, in their order."""
        taken = [sending for sending in self.waiting if is_meant(sending)]
        if taken:
            self.waiting = deque([sending for sending in self.waiting if not is_meant(sending)])
        return taken

    def clear(self) -> list[Sending]:
        """Takes back all waiting requests, in their order. Sent requests stay."""
        taken = list(self.waiting)
        self.waiting.clear()
        return taken


class Withdrawable(asyncio.Future[Any]):
    """The future of a request: if that may wait at the server for long, and its producer has it, a cancellation withdraws it.

    A callback would cost three times as much in each append that is not cancelled: the loop would have to call it.
    """

    __slots__ = ("sending", "withdrawals")

    sending: Sending
    withdrawals: Withdrawals

    def cancel(self, msg: Any | None = None) -> bool:
        cancelled = super().cancel(msg)
        if cancelled and (withdrawals := getattr(self, "withdrawals", None)) is not None:
            withdrawals.cancelled(self.sending)
        return cancelled


class Withdrawals:
    """The requests of one producer whose callers wait no longer, until the server has been asked to withdraw them.

    A sent request takes room in flight until the server has answered it, and an append that waits at the server for its barrier would be
    answered only then. The request that withdraws has its turn among the others: a request that is added after a cancellation may share the
    result of the cancelled append, as in an open log of this process.

    The withdrawals of the requests in `outbox`. `release` gives the room of a request back that is not sent any more.

    `changed` is called when the outbox has changed.
    """

    def __init__(self, outbox: Outbox, release: Callable[[int], None], changed: Callable[[], None]) -> None:
        self._outbox = outbox
        self._release = release
        self._changed = changed
        self._cancelled: set[Sending] = set()
        self.closing: bool = False
        """Whether the log is being closed, so that every request that may wait for long is withdrawn."""

    def watch(self, sending: Sending) -> None:
        """Withdraws the request if its caller is cancelled; its future is `Withdrawable`."""
        future: Withdrawable = sending.future
        future.sending, future.withdrawals = sending, self

    def cancelled(self, sending: Sending) -> None:
        """Withdraws a request whose caller was cancelled, with all that are cancelled in this turn of the loop."""
        if not self._cancelled:
            sending.future.get_loop().call_soon(self._withdraw)
        self._cancelled.add(sending)

    def restarted(self) -> None:
        """Replaces the withdrawals on another stream: requests that are sent again have other numbers there."""
        self._outbox.take_back(lambda sending: isinstance(sending.request, Withdraw))
        waiting = self._outbox.waiting
        if waiting and (self.closing or any(sending.may_wait and sending.future.cancelled() for sending in waiting)):
            self._add()

    def close(self) -> None:
        """Withdraws every request that may wait for long, once all are sent."""
        self.closing = True
        if self._outbox:
            self._add()

    def _withdraw(self) -> None:
        # A request with a key may share its result with others, which only the server decides.
        gone, self._cancelled = self._cancelled, set()
        taken = self._outbox.take_back(lambda sending: sending in gone and not sending.repeatable)
        self._release(sum(sending.size for sending in taken))
        if len(taken) < len(gone):
            self._add()
        self._changed()

    def _add(self) -> None:
        future = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._outbox.add(Sending(future, 0, request=Withdraw(()), repeatable=True))

    def numbered(self, request: Request[Any]) -> Request[Any]:
        """Returns a request as it is sent now: a withdrawal gets its numbers, which are known only once all before it are sent."""
        if not isinstance(request, Withdraw):
            return request
        sent = self._outbox.sent.items()
        return Withdraw(tuple([number for number, one in sent if one.may_wait and (self.closing or one.future.cancelled())]))
