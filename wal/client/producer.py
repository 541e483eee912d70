"""Producer: a client's Produce stream to one pchannel.

How it works. Callers `add` a `Sending` (a message or a request, and its future) to the `Outbox`; one task, begun with the first of them,
runs as long as the log is open:

    no stream --open_stream--> the server has answered --_use--> requests out, outcomes in --end--> no stream, after a pause

All `Sending`s of one turn of the loop, or added while the server took no more, become one request. Two tasks use a stream: `_use` sends,
`_read` takes outcomes, resolves futures and releases room in flight. `Outbox` has the unanswered requests in their order.

What can go wrong, and the fate of the requests:

* **refused** for the server's state (it stops, has another term, the pchannel moved): nothing was written; all of them are sent again, in
  their order, on the next stream. The stream takes nothing new meanwhile, so the order holds.
* **unanswered**, since the connection was lost: a repeatable request (with a key, or read-only) is sent again before anything newer;
  the others have an unknown outcome (`UnknownOutcomes`). Their callers get that error when a new stream of the same session has ended the
  lost one on the server: after that the server executes nothing of it, so a caller that does not find its message in the log may send it
  again. Without a server they get it after `UNKNOWN_S`.
* **no server** takes any request for `UNREACHABLE_S`, because no server is reachable or all refuse: waiting requests fail, as not sent.
* **a caller is cancelled**: an unsent request is taken back; a request that waits for its barrier at the server is withdrawn there.
* any other error, of the server or of the check of its log, fails the waiting requests; `Supervision` handles a defect.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from msgspec import structs

from wal.client.figures import OpenTxns, SeenTick, Written
from wal.client.outbox import Hold, Outbox, Sending, Withdrawals
from wal.client.pauses import Pauses
from wal.client.remote_pchannel import RemotePChannel
from wal.client.supervision import Supervision
from wal.errors import (
    ChannelFencedError,
    ChannelNotExistError,
    ClosedError,
    IgnoredOperationError,
    SessionLostError,
    UnavailableError,
    UnknownError,
    UnknownOutcomeError,
    UnmatchedChannelTermError,
    WALError,
    WouldBlockError,
    caused,
    closed_log,
)
from wal.message import AppendResult, MessageID
from wal.requests.appends import PLAIN, Append
from wal.requests.request import Request
from wal.requests.txns import BegunTxn, RollbackTxn
from wal.rpc.api import append_pb2 as proto
from wal.rpc.api import pchannel_pb2
from wal.rpc.appends import append_to_proto, outcomes_from_proto
from wal.rpc.connection import UNREACHABLE_S, Connection, Stream
from wal.rpc.converter import streamed_to_proto, struct_from_proto
from wal.rpc.methods import PRODUCE
from wal.write.in_flight import InFlight
from wal.write.operations import closed_at_barrier

ProduceStream = Stream[proto.ProducerRequest, proto.ProducerResponse]


async def open_stream(
    connection: Connection, pchannel: str, session: bytes, check: Callable[[proto.ProducerOpened], Awaitable[None]]
) -> tuple[ProduceStream, int]:
    """Returns a stream that the server has answered, and the term in which it has the pchannel.

    Raises the error of the server, and the error of `check`, which gets the server's description of its log.

    Once it returns, the server executes nothing of an older stream of the same session.
    """
    opening = proto.OpenProducer(pchannel=pchannel_pb2.PChannelInfo(name=pchannel), session=session)
    stream = await connection.stream(PRODUCE, f"producing to pchannel {pchannel}")
    try:
        async with asyncio.timeout(connection.timeout_s):
            await stream.write(proto.ProducerRequest(open=opening))
            response = await stream.read()
    except TimeoutError:
        stream.cancel()
        raise UnavailableError(
            f"the server did not begin to take messages for pchannel {pchannel} within {connection.timeout_s} s"
        ) from None
    except BaseException:
        stream.cancel()
        raise
    if response is None or not response.HasField("opened"):
        stream.cancel()
        raise UnknownError(f"the server began a Produce stream of pchannel {pchannel} with {response!r}")
    try:
        await check(response.opened)
    except BaseException:
        stream.cancel()
        raise
    return stream, response.opened.log.pchannel.term


def append_for(taken: list[Sending]) -> Append:
    """Returns the append of messages that an `Outbox` has taken."""
    append = Append.of([sending.message for sending in taken])  # type: ignore[misc]
    options = [sending.options for sending in taken]
    return append if options.count(PLAIN) == len(taken) else structs.replace(append, options=options)


UNKNOWN_S: Final = 5.0


class UnknownOutcomes:
    """Keeps requests whose outcome is unknown. `fail` resolves requests with an error, and releases their room in flight."""

    def __init__(self, fail: Callable[[list[Sending], BaseException], None]) -> None:
        self._fail = fail
        self._kept: list[tuple[list[Sending], UnknownOutcomeError]] = []
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, sendings: list[Sending], error: UnknownOutcomeError) -> None:
        """Keeps requests until `tell`, but no longer than `UNKNOWN_S` after the first `add`."""
        self._kept.append((sendings, error))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(UNKNOWN_S, self.tell)

    def tell(self) -> None:
        """Fails all kept requests."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        kept, self._kept = self._kept, []
        for sendings, error in kept:
            self._fail(sendings, error)


QUIET_S: Final = 5.0  # how long the close of a log waits for the next outcome
GROW_S: Final = 0.02
"""How long messages wait at most for the answer of others, so that they share a request."""
REFUSALS: Final = (ChannelFencedError, ClosedError, SessionLostError, UnmatchedChannelTermError)
"""A server refuses requests with these errors for its own state: nothing was written, and another server may take them."""
MOVED: Final = (*REFUSALS, ChannelNotExistError, UnavailableError)
"""A stream that ends with one of these errors is opened again."""


class Producer:
    """The requests for one pchannel; `connection` returns the connection to the server that has it.

    `reporter` returns, before a stream is opened, the function that gets a server's refusal of requests for the pchannel. `log` checks each
    server's log, and records the writes.
    """

    def __init__(
        self,
        pchannel: str,
        connection: Callable[[], Connection],
        in_flight: InFlight,
        seen: SeenTick,
        reporter: Callable[[], Callable[[WALError], None]],
        supervision: Supervision,
        log: RemotePChannel,
    ) -> None:
        self.pchannel: str = pchannel
        self.outbox: Outbox = Outbox()
        self.term: int = 0
        """The term in which the server has the pchannel, on the newest stream."""
        self.open_txns: OpenTxns = OpenTxns()
        self.written: Written = Written()
        self._outcomes = 0
        self._connection = connection
        self._reporter = reporter
        self._report = reporter()
        self._supervision = supervision
        self._log = log
        self._in_flight = in_flight
        self._seen = seen
        self._changed = asyncio.Event()
        self._withdrawals = Withdrawals(self.outbox, in_flight.release, self._changed.set)
        self._session = uuid.uuid4().bytes
        """A new stream of the same session ends the older one on the server."""
        self._unknown = UnknownOutcomes(self.fail)
        self._opening = False
        """Whether the producer is looking for a server, and has no stream."""
        self._closed_there = False
        """Whether the server has sent `close` on the newest stream, so that it has answered everything that it executed."""
        self._pauses = Pauses()
        """The pauses before the next stream, while no server takes requests."""
        self._growing_until_s: float | None = None
        """Until when the next request waits for an answer, if it does."""
        self._failure: WALError | None = None
        self._running: asyncio.Task[None] | None = None

    def add(self, sending: Sending) -> None:
        """Sends a request after all others; its room is taken already, and is released with its outcome.

        Raises the error that ended the producer.
        """
        if self._failure is not None:
            raise self._failure
        if self._running is None:
            self._running = self._supervision.start(self._run, f"produce {self.pchannel}")
        self.outbox.add(sending)
        if (sending.repeatable or sending.options is not PLAIN) and sending.may_wait:
            self._withdrawals.watch(sending)
        self._changed.set()

    def ask(self, request: Request[Any]) -> asyncio.Future[Any]:
        """Sends a request that takes no room in flight and is repeated until it is answered; returns the future of its outcome."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.add(Sending(future, 0, request=request, repeatable=request.is_repeatable))
        return future

    def all_taken(self) -> asyncio.Future[None] | None:
        """Returns a future that is done once the server has taken everything that was added before, or None if it has."""
        if not self.outbox and not self._unknown:
            return None
        return self.ask(RollbackTxn())  # of no transaction

    def wake(self) -> None:
        """Continues after a hold has ended."""
        self._changed.set()

    def holds(self, hold: Hold) -> bool:
        """Returns whether requests of this vchannel wait."""
        return any(sending.hold is hold for sending in self.outbox.waiting)

    def withdraw(self, hold: Hold) -> list[Sending]:
        """Takes back the waiting requests of a vchannel, with their room."""
        taken = self.outbox.take_back(lambda sending: sending.hold is hold)
        self._changed.set()
        return taken

    async def close(self) -> None:
        """Waits for the outcomes of everything that was added, and ends the stream. Without a server, requests fail at once.

        A request that waits at the server, such as an append for its barrier, has an unknown outcome after `QUIET_S` without an answer. A
        refusal does not count as an answer here: a server may refuse for ever.
        """
        self._withdrawals.close()
        self._unknown.tell()
        self._changed.set()
        if self._running is not None and self._opening and not self.outbox:
            self._running.cancel()
        while self._running is not None and not self._running.done():
            before = self._outcomes
            await asyncio.wait([self._running], timeout=QUIET_S)
            if self._outcomes == before:
                self._running.cancel()
        self.end(closed_log())

    def end(self, failure: WALError) -> None:
        """Fails everything that has no outcome yet, and what is added from now on, with this error; the first one stays."""
        self._failure = self._failure or failure
        self._lost(self._failure)
        self._give_up(self._failure)

    def fail(self, sendings: list[Sending], error: BaseException) -> None:
        """Fails requests, and releases their room."""
        for sending in sendings:
            self._settle(sending, error)
        self._in_flight.release(sum(sending.size for sending in sendings))

    # -- the stream

    async def _run(self) -> None:
        while await self._has_work():
            await self._produce()

    async def _has_work(self) -> bool:
        while not self.outbox and not self._unknown:
            if self._withdrawals.closing:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True

    async def _produce(self) -> None:
        """Opens a stream and uses it until it ends."""
        began = asyncio.get_running_loop().time()
        self._opening, self._report = True, self._reporter()
        try:
            stream, self.term = await open_stream(self._connection(), self.pchannel, self._session, self._log.begin_stream())
        except WALError as error:
            self._pauses.waited_s += asyncio.get_running_loop().time() - began
            if self._withdrawals.closing:
                self._give_up(error)
            else:
                await self._refused(error)
            return
        self._opening = self._closed_there = False
        self._unknown.tell()
        try:
            cause = await self._use(stream)
        finally:
            self._log.log.losses += 1
            stream.cancel()
        refusal = self.outbox.refusing or (ClosedError("the server is stopping") if self._closed_there else cause)
        self._lost(cause)
        if refusal is not None and self.outbox:
            await self._refused(refusal)
        else:
            self._pauses.reset()

    async def _refused(self, refusal: WALError) -> None:
        """Pauses before the next stream, because no server takes the requests for this reason, or fails them."""
        self._report(refusal)
        if not isinstance(refusal, (*MOVED, WouldBlockError)):
            self._give_up(refusal)
        elif self._pauses.waited_s >= UNREACHABLE_S:
            error = caused(
                UnavailableError(
                    f"no server has taken requests for pchannel {self.pchannel} for {UNREACHABLE_S:g} s: {refusal}; try again when one does"
                ),
                refusal,
            )
            self._give_up(error)
        else:
            if self._pauses.to_tell():
                _log.warning("requests for pchannel %s wait for a server that takes them: %s", self.pchannel, refusal)
            await asyncio.sleep(self._pauses.next())

    async def _use(self, stream: ProduceStream) -> WALError | None:
        """Sends requests until the stream ends or refuses them; returns the error with which it ended."""
        reading = asyncio.get_running_loop().create_task(self._read(stream), name=f"outcomes of {self.pchannel}")
        reading.add_done_callback(lambda _: self._changed.set())
        try:
            while not reading.done():
                self._changed.clear()
                if self.outbox.may_grow() and self._waits_to_grow():
                    await self._changed.wait()
                    continue
                self._growing_until_s = None
                taken = self.outbox.take()
                if taken is not None:
                    await stream.write(self._message(*taken))
                elif self.outbox.refusing is not None and not self.outbox.sent:
                    break
                elif self._withdrawals.closing and not self.outbox:
                    await stream.write(proto.ProducerRequest(close=Empty()))
                    await asyncio.wait([reading], timeout=self._connection().timeout_s)
                    break
                else:
                    await self._changed.wait()
        except WALError:
            # The reading task gets the error that ended the stream; earlier outcomes are taken first.
            await asyncio.wait([reading], timeout=self._connection().timeout_s)
        finally:
            if not reading.done():
                stream.cancel()
            await asyncio.wait([reading])
        return reading.result()

    def _message(self, first: int, taken: list[Sending]) -> proto.ProducerRequest:
        """Returns the message for what was taken: one request, or messages, of which the first has this number."""
        if (request := taken[0].request) is not None:
            return streamed_to_proto(self._withdrawals.numbered(request), first, self._seen.value)
        return proto.ProducerRequest(request_id=first, seen_time_tick=self._seen.value, append=append_to_proto(append_for(taken)))

    def _waits_to_grow(self) -> bool:
        """Returns whether the next request waits for an answer, which happens for `GROW_S` at most."""
        loop = asyncio.get_running_loop()
        if self._growing_until_s is None:
            self._growing_until_s = loop.time() + GROW_S
            loop.call_later(GROW_S, self._changed.set)
        return loop.time() < self._growing_until_s and not self._withdrawals.closing

    async def _read(self, stream: ProduceStream) -> WALError | None:
        """Takes outcomes until the stream ends; returns the error with which it ended."""
        try:
            while (response := await stream.read()) is not None:
                if response.HasField("outcomes"):
                    self._take(response.outcomes)
                elif response.HasField("close"):
                    self._closed_there = True
                    return None
        except WALError as error:
            return error
        except DecodeError as error:
            return UnknownError(f"the server of pchannel {self.pchannel} sent outcomes that cannot be read: {error}")
        return None

    # -- outcomes

    def _take(self, outcomes: proto.Outcomes) -> None:
        released = newest = 0
        event: MessageID | None = None
        outbox = self.outbox
        answered = outbox.answered
        self.written.count(outcomes.appended)
        for number, outcome in outcomes_from_proto(outcomes):
            if outcome.__class__ is not AppendResult and isinstance(outcome, BaseException):
                if isinstance(outcome, REFUSALS) and outbox.refused(number, outcome):
                    self._changed.set()
                elif (sending := outbox.answered(number)) is not None:
                    released += sending.size
                    self._settle(sending, outcome)
                continue
            if (sending := answered(number)) is None:
                continue
            released += sending.size
            if (tick := outcome.time_tick) is not None and tick > newest:
                newest, event = tick, outcome.message_id
            if not (future := sending.future).done():
                future.set_result(outcome)
        self._seen.saw(newest)
        if event is not None:
            self._log.log.saw(event.position, event.index, newest)
        for begun in outcomes.begun:
            if (sending := outbox.answered(begun.request_id)) is not None:
                released += sending.size
                self._settle(sending, struct_from_proto(BegunTxn, begun.txn))
        for number in outcomes.done:
            if (sending := outbox.answered(number)) is not None:
                released += sending.size
                self._settle(sending, None)
        if released:
            self._in_flight.release(released)
        if outbox.refusing is None:
            self._outcomes += 1
            if self._pauses.waited_s:
                self._pauses.reset()
        if outbox.waiting or not outbox.sent:
            self._changed.set()

    @staticmethod
    def _settle(sending: Sending, outcome: object) -> None:
        future = sending.future
        if not future.done():
            if isinstance(outcome, IgnoredOperationError):  # only a close withdraws what a caller waits for
                future.set_exception(closed_at_barrier())
            elif isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    def _lost(self, cause: WALError | None) -> None:
        """Sorts the requests of a stream that has ended: those whose outcome is unknown will fail, the others are sent again."""
        unknown = self.outbox.restart(answered=self._closed_there)
        if unknown:
            error = caused(
                UnknownOutcomeError(
                    f"the connection to the server of pchannel {self.pchannel} was lost before it answered ({cause or 'it ended'}): the "
                    "message may be in the log; look before you repeat it, or use an idempotency key: then it is repeated for you"
                ),
                cause,
            )
            self._unknown.add(unknown, error)
        self._withdrawals.restarted()
        if cause is not None and not isinstance(cause, MOVED):
            self._give_up(cause)

    def _give_up(self, error: WALError) -> None:
        """Fails the waiting requests, which no server takes. Requests that are added afterwards are tried again."""
        self._pauses.reset()
        self._unknown.tell()
        waiting = self.outbox.clear()
        tried = [sending for sending in waiting if sending.tried and sending.size]
        self.fail([sending for sending in waiting if not (sending.tried and sending.size)], error)
        if tried:
            unknown = caused(
                UnknownOutcomeError(
                    f"the connection to the server of pchannel {self.pchannel} was lost before it answered, and no server takes the "
                    f"message again ({error}): it may be in the log; repeat it with the same idempotency key"
                ),
                error,
            )
            self.fail(tried, unknown)


_log: Final = logging.getLogger("wal.remote")
