"""Produce: the streams on which clients append to a pchannel.

How it works. A client opens a stream for one pchannel in one session; an older stream of the same session is ended first (`replaced`), so
that nothing of it is executed afterwards. A `ProduceStream` has one reader and one writer:

* the reader takes requests in their order, checks their vchannels (`Places`), and tells the node's appends; it never waits for an outcome.
  It stops reading while there is no room in flight, or while the client leaves `UNANSWERED_MAX` answers unread: HTTP/2 makes the client
  wait, and other streams do not notice;
* each outcome becomes known in a future, and goes to `ProduceAnswers`; the writer sends what became known in a turn of the loop as one
  message, requests in Milvus' form one by one. A result is made only while the lease of the pchannel is alive; one that leaves later is
  true as well, since its frame is in the log.

States: reading; refusing, after a request was refused for the state of the pchannel (moved, fenced, closing): every later one is refused
for the same reason, so that none overtakes it; draining, after `close` or while the node stops: nothing more is read, everything that was
accepted is answered, then the stream ends.

What can go wrong: a request that makes no sense ends the stream with its error once all before it is answered; a wrong message is answered
alone. If the stream or the client is lost, what was accepted stays accepted: it is written, and nobody is told; the client learns the
outcome by a key, or by reading.
"""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from operator import itemgetter
from typing import Any, Final

import grpc.aio

from wal.errors import (
    ChannelFencedError,
    ChannelNotExistError,
    ClosedError,
    InvalidArgumentError,
    InvalidRequestSeqError,
    SessionLostError,
    UnmatchedChannelTermError,
    WALError,
)
from wal.message import AppendResult, ForgottenResult, Message
from wal.message.codec import message_from_wire
from wal.message.wire_pb2 import Message as Wire
from wal.network import Method
from wal.node.appends import BULK_RECORDS
from wal.node.node import StreamingNode
from wal.node.routes import Routes
from wal.rpc.api import append_pb2
from wal.rpc.api import streaming_pb2 as proto
from wal.rpc.appends import Outcome, appends_of, count_of, key_of, outcomes_to_proto, plain_of
from wal.rpc.codes import error_to_proto
from wal.rpc.converters import range_of, result_to_proto
from wal.rpc.headers import producer_in
from wal.rpc.methods import PRODUCE
from wal.rpc.serving import Draining, Handler, sliced
from wal.serve.cursor_calls import outcome_of
from wal.serve.hosted import Hosted, identity_of, tail_of
from wal.serve.produce_requests import Requests, ServedWithdrawals, Sessions, replaced
from wal.serve.produce_txns import MessageTxns, ProduceTxns, bodies_in, expected_in, is_of_txn, names_in, txn_message_from_wire
from wal.settings import ServerBounds
from wal.write.idempotency.keys import Key
from wal.write.operations import Together, with_outcome
from wal.write.pchannel import PChannel
from wal.write.txn_table import TxnOwner

TAKEN_MAX: Final = 1024
"""The most requests whose outcomes become one message: about 5 ms, before other tasks get their turn."""


class ProduceAnswers:
    """The answers of one stream. The stream adds the outcome of each request, with its number, to one of the lists."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[int, Outcome]] = []
        self.together: list[tuple[int, Together]] = []
        """Results of messages that were appended together, with the number of the first."""
        self.single: list[tuple[int, Outcome]] = []
        """Outcomes of requests in Milvus' form, which are answered in that form."""
        self.begun: list[append_pb2.BegunTxn] = []
        self.done: list[int] = []
        """The requests that succeeded and have no result."""

    @property
    def count(self) -> int:
        """The number of requests that are answered; each message of an append counts as one."""
        each = len(self.outcomes) + len(self.single) + len(self.begun) + len(self.done)
        return each + sum([results.count for _, results in self.together])

    def take(self) -> tuple[list[proto.ProduceResponse], int]:
        """Removes answers, at most `TAKEN_MAX` of each kind; returns the messages to send, and how many requests they answer."""
        taken = ProduceAnswers()
        taken.outcomes, self.outcomes = self.outcomes[:TAKEN_MAX], self.outcomes[TAKEN_MAX:]
        taken.single, self.single = self.single[:TAKEN_MAX], self.single[TAKEN_MAX:]
        taken.together, self.together = self.together, []
        taken.begun, self.begun = self.begun, []
        taken.done, self.done = self.done, []
        return taken._messages(), taken.count

    def _messages(self) -> list[proto.ProduceResponse]:
        responses: list[proto.ProduceResponse] = []
        if self.outcomes or self.together or self.begun or self.done:
            self.outcomes.sort(key=itemgetter(0))
            outcomes = outcomes_to_proto(self.outcomes)
            outcomes.appended.extend([range_of(number, results) for number, results in self.together])
            outcomes.begun.extend(self.begun)
            outcomes.done.extend(self.done)
            responses.append(proto.ProduceResponse(outcomes=outcomes))
        responses += [proto.ProduceResponse(produce=_answer_to_one(number, outcome)) for number, outcome in self.single]
        return responses


def _answer_to_one(number: int, outcome: Outcome) -> proto.ProduceMessageResponse:
    if isinstance(outcome, BaseException):
        return proto.ProduceMessageResponse(request_id=number, error=error_to_proto(outcome))
    return proto.ProduceMessageResponse(request_id=number, result=result_to_proto(outcome))


class Places:
    """The vchannels of a log, for the streams that write its pchannel `pchannel`."""

    def __init__(self, vchannels: Routes, pchannel: str) -> None:
        self._vchannels = vchannels
        self._pchannel = pchannel

    async def check(self, vchannel: str) -> None:
        """Raises ChannelNotExistError for a vchannel that is on another pchannel, or would be created there.

        A client that is right may get it: another one drops the vchannel, or creates it elsewhere, while the request is on its way. What is
        known here may lag, so the coordinator's half is asked before a name is refused.
        """
        known = self._vchannels.known
        place = known.pchannel_of(vchannel)
        if place != self._pchannel or vchannel not in known.records:
            info = await known.look_up(vchannel)
            place = known.pchannel_of(vchannel) if info is None else info.pchannel
        if place != self._pchannel:
            raise ChannelNotExistError(
                f"vchannel {vchannel!r} is on pchannel {place}, and this stream writes {self._pchannel}: nothing was written; "
                f"if it was dropped meanwhile, append to it again, otherwise open a stream for {place}"
            )

    async def create(self, vchannel: str) -> None:
        """Has a vchannel that does not exist created on this pchannel: a client of Milvus' protocol has no other call for that."""
        known = self._vchannels.known
        if vchannel not in known.records and await known.look_up(vchannel) is None:
            await known.create_on(vchannel, self._pchannel)
        await self.check(vchannel)

    async def check_existing(self, vchannel: str) -> None:
        """Raises ChannelNotExistError for a vchannel that is on another pchannel; one that was dropped is the concern of the commit."""
        if self._vchannels.incarnation(vchannel) is not None or await self._vchannels.known.look_up(vchannel) is not None:
            await self.check(vchannel)


UNANSWERED_MAX: Final = 65_536
"""The most messages of a stream whose outcomes the client has not taken yet; it is also the most that a request may have."""
_STATE_ERRORS: Final = (ChannelFencedError, ClosedError, SessionLostError, UnmatchedChannelTermError)
"""The errors of a pchannel that takes nothing any more, here or in this term: clients send such a request again, so none may overtake it.
Not a StorageError: its caller gets it, and a pchannel whose storage has failed refuses every later request by itself."""
LET_END_S: Final = 1.0
"""How long a client that was told that the node is stopping may take to end its stream."""
"""The size of the column of lengths of one message."""
Result = AppendResult | ForgottenResult


class ProduceStream:
    """One stream that writes `pchannel`. `run` it."""

    def __init__(
        self,
        context: Any,
        node: StreamingNode,
        hosted: Hosted,
        draining: Draining,
        pchannel: PChannel,
        *,
        session: bytes,
        bounds: ServerBounds,
    ) -> None:
        self._context = context
        self._node = node
        self._appends = node.appends
        owner = TxnOwner(session, bounds.client_open_txns_max, bounds.client_open_txn_bytes_max)
        self._txns = ProduceTxns(node, pchannel, owner, keepalive_s_max=bounds.txn_keepalive_s_max)
        self._message_txns = MessageTxns(node, pchannel, owner, keepalive_s_max=bounds.txn_keepalive_s_max)
        self._hosted = hosted
        self._draining = draining
        self._pchannel = pchannel
        self._places = Places(node.routes, pchannel.channel)
        self._withdrawals = ServedWithdrawals(pchannel)
        self._info = identity_of(pchannel).pchannel
        self._answers = ProduceAnswers()
        self._unanswered = 0
        self._refusal: WALError | None = None
        """Why every later request is refused."""
        self._reader: asyncio.Task[bool] | None = None
        self._replaced = False
        self._wake = asyncio.Event()
        self._taken = asyncio.Event()
        """Set when the client took answers."""
        self._requests = Requests(context, self._look)

    async def run(self) -> None:
        """Serves the stream to its end. Raises the reader's error once all before it is answered; ClosedError if the node is stopping."""
        if self._replaced:
            raise replaced()
        reader = asyncio.get_running_loop().create_task(self._read(), name=f"produce on {self._pchannel.channel}")
        reader.add_done_callback(lambda _: self._wake.set())
        self._reader = reader
        forget = self._draining.on_begin(self._requests.stop)
        try:
            while not self._replaced and (not (reader.done() or self._requests.begin_no_more) or self._unanswered):
                await self._wake.wait()
                self._wake.clear()
                await self._answer()
            if self._replaced:
                raise replaced()
            if not reader.done() or reader.result():
                await self._context.write(proto.ProduceResponse(close=proto.CloseProducerResponse()))
            await asyncio.wait((reader,), timeout=LET_END_S)
            if self._replaced:
                raise replaced()
            if not reader.done():
                raise self._draining.error()
            reader.result()
        finally:
            forget()
            await self._context.end(reader)

    async def replaced(self) -> None:
        """Ends the stream: when it returns nothing more of it is executed. What was accepted before is written."""
        self._replaced = True
        self._wake.set()
        if self._reader is not None:
            await self._context.end(self._reader)

    # -- answers

    async def _answer(self) -> None:
        """Sends the outcomes that are known; waits while the client does not read them."""
        while self._answers.count:
            messages, count = self._answers.take()
            for message in messages:
                await self._context.write(message)
            self._unanswered -= count
            self._taken.set()
            if self._answers.count:
                await asyncio.sleep(0)  # a write need not wait

    def _told(self, number: int, outcome: Outcome, *, single: bool = False) -> None:
        (self._answers.single if single else self._answers.outcomes).append((number, outcome))
        if isinstance(outcome, _STATE_ERRORS) and self._refusal is None:
            self._refusal = with_outcome(outcome, unknown=False)
        self._wake.set()

    def _settled(self, number: int, single: bool, future: asyncio.Future[Any]) -> None:
        self._withdrawals.settled(number)
        self._told(number, future.exception() or future.result(), single=single)

    def _settle_later(self, number: int, future: asyncio.Future[Any]) -> None:
        """Answers a transaction once its outcome is known; until then it can be withdrawn."""
        self._withdrawals.add(number, future)
        future.add_done_callback(partial(self._settled, number, False))

    def _settled_together(self, first: int, count: int, future: asyncio.Future[Together]) -> None:
        if (error := future.exception()) is None:
            self._answers.together.append((first, future.result()))
            self._wake.set()
            return
        for number in range(first, first + count):
            self._told(number, error)

    # -- requests

    async def _read(self) -> bool:
        """Executes the requests; returns whether the client asked for the end. Raises for a request that ends the stream."""
        while (request := await self._next()) is not grpc.aio.EOF:
            match request.WhichOneof("request"):
                case "append":
                    await self._append(request.append)
                case "append_txn":
                    await self._append_txn(request.append_txn)
                case "begin_txn" | "keep_txn" | "commit_txn" | "rollback_txn" | "withdraw" as name:
                    await self._execute(name, getattr(request, name))
                case "produce":
                    await self._append_one(request.produce)
                case "close":
                    await self._nothing_follows()
                    return True
                case _:
                    raise InvalidArgumentError(
                        "a ProduceRequest has no request that this version knows: set produce, append, append_txn, begin_txn, "
                        "keep_txn, commit_txn, rollback_txn, withdraw or close"
                    )
        return False

    async def _next(self) -> Any:
        """Returns the next request, or EOF. While the client leaves too many answers unread it reads nothing."""
        while self._unanswered >= UNANSWERED_MAX and not self._requests.stopped:
            self._taken.clear()
            await self._taken.wait()
        return await self._requests.next()

    def _look(self) -> None:
        self._taken.set()
        self._wake.set()

    async def _nothing_follows(self) -> None:
        """Waits until everything is answered. Raises InvalidRequestSeqError if the client sends anything meanwhile."""
        following = asyncio.ensure_future(self._context.read())
        following.add_done_callback(lambda _: self._taken.set())
        try:
            while self._unanswered and not following.done():
                self._taken.clear()
                await self._taken.wait()
            await asyncio.sleep(0)
            if following.done() and following.result() is not grpc.aio.EOF:
                raise InvalidRequestSeqError("a request follows the one that closes the producer: open another one")
        finally:
            await self._context.end(following)

    async def _append(self, request: append_pb2.AppendRequest) -> None:
        if (count := count_of(request.messages)) > UNANSWERED_MAX:
            raise InvalidArgumentError(f"an AppendRequest has {count} messages, at most {UNANSWERED_MAX} are accepted: send several")
        if not count:
            self._unanswered += 1
            self._told(request.first_request_id, InvalidArgumentError("an AppendRequest has no message: send one or more"))
            return
        if self._append_together(request):
            return
        appends = appends_of(request)
        self._unanswered += count
        refusal = await self._begin_seen(request.seen_time_tick)
        expecting = request.HasField("expected_last")
        async for number, append in sliced(appends):
            if isinstance(append, InvalidArgumentError) or (refusal := refusal or self._refusal) is not None:
                self._told(number, append if isinstance(append, InvalidArgumentError) else refusal)  # type: ignore[arg-type]
                continue
            message, barrier, key = append
            try:
                if barrier:
                    self._node.oracle.check_ahead(barrier)
                future: asyncio.Future[Any] | None
                if expecting:
                    future = await self._send_expecting(message, barrier, key, request)
                else:
                    if not self._is_here(message.vchannel):
                        await self._places.check(message.vchannel)
                    future = self._append_nowait(message, barrier, key) or await self._appends.send(message, barrier, key)
            except WALError as error:
                self._told(number, error)
            else:
                if barrier or key is not None:
                    self._withdrawals.add(number, future)
                future.add_done_callback(partial(self._settled, number, False))

    async def _send_expecting(
        self, message: Message, barrier: int, key: Key | None, request: append_pb2.AppendRequest
    ) -> asyncio.Future[Result]:
        """Appends a message that expects what the last event of its vchannel is."""
        if count_of(request.messages) != 1:
            raise InvalidArgumentError("an AppendRequest with expected_last has several messages: send one in each")
        expected = await expected_in((request.expected_last,), (message.vchannel,))
        await self._places.check(message.vchannel)
        return await self._appends.send(message, barrier, key, expected[message.vchannel])

    def _append_together(self, request: append_pb2.AppendRequest) -> bool:
        """Appends plain messages with one future for all of them; returns False for others, and if they have to go one by one."""
        if (plain := plain_of(request)) is None or self._begin(request.seen_time_tick) is not None:
            return False
        name, payloads = plain
        if not self._is_here(name):
            return False
        first = request.first_request_id
        for future in self._appends.append_together(name, payloads):
            count = min(BULK_RECORDS, request.first_request_id + len(payloads) - first)
            self._unanswered += count
            future.add_done_callback(partial(self._settled_together, first, count))
            first += count
        return first > request.first_request_id

    async def _append_one(self, request: proto.ProduceMessageRequest) -> None:
        """Appends a message in Milvus' form, which has no key and no barrier."""
        self._unanswered += 1
        try:
            if is_of_txn(request.message):
                future = await self._of_txn(request.message)
                future.add_done_callback(partial(self._settled, request.request_id, True))
                return
            message = message_from_wire(request.message)
            if (refusal := self._begin(0)) is not None:
                raise refusal
            if not self._is_here(message.vchannel):
                await self._create(message.vchannel)
            future = self._append_nowait(message, 0, None) or await self._appends.send(message, 0)
        except WALError as error:
            self._told(request.request_id, error, single=True)
        else:
            future.add_done_callback(partial(self._settled, request.request_id, True))

    async def _of_txn(self, wire: Wire) -> asyncio.Future[Result]:
        """Executes a message of a transaction in Milvus' form."""
        txn_message = txn_message_from_wire(wire)
        if (refusal := self._begin(0)) is not None:
            raise refusal
        await self._create(txn_message.message.vchannel)
        return await self._message_txns.execute(txn_message)

    async def _create(self, vchannel: str) -> None:
        """Checks the vchannel of a message in Milvus' form, which creates it if that is allowed."""
        await (self._places.create if self._node.settings.create_vchannels else self._places.check)(vchannel)

    async def _append_txn(self, request: append_pb2.AppendTxnRequest) -> None:
        self._unanswered += 1
        try:
            bodies_max = self._node.settings.txn_bodies_max
            names: tuple[str, ...] = ()
            if request.vchannels or not request.HasField("save"):
                names = names_in(request.vchannels, names_max=bodies_max)
            key = key_of(request.key)
            bodies = await bodies_in(request.bodies, bodies_max=bodies_max)
            expected = await expected_in(request.expected_last, names)
            if (refusal := await self._begin_seen(request.seen_time_tick)) is not None:
                raise refusal
            self._node.oracle.check_ahead(request.barrier_time_tick)
            async for name in sliced(names):
                await self._places.check(name)
            change = await self._txns.change_of(request)
            future: asyncio.Future[Any]
            if change is not None and not names:
                future = self._txns.save_alone(change, bodies)
            else:
                future = await self._appends.send_txn(names, bodies, request.barrier_time_tick, key, expected, change)
            if change is not None:
                future = outcome_of(future, change.key)
        except WALError as error:
            self._told(request.request_id, error)
        else:
            self._settle_later(request.request_id, future)

    async def _execute(self, name: str, request: Any) -> None:
        """Executes a withdrawal, or a request about a transaction whose bodies the client keeps."""
        self._unanswered += 1
        try:
            if (refusal := await self._begin_seen(getattr(request, "seen_time_tick", 0))) is not None:
                raise refusal
            if name == "commit_txn":
                self._node.oracle.check_ahead(request.barrier_time_tick)
            match name:
                case "begin_txn":
                    async for vchannel in sliced(self._names_in(request)):
                        await self._places.check(vchannel)
                    begun = await self._txns.begin(request)  # the list may be another one afterwards
                    self._answers.begun.append(begun)
                case "commit_txn":
                    for vchannel in self._names_in(request):
                        await self._places.check_existing(vchannel)
                    self._settle_later(request.request_id, await self._txns.commit(request))
                case "withdraw":
                    await self._withdrawals.withdraw(request.withdrawn_ids)
                    self._answers.done.append(request.request_id)
                case "keep_txn":
                    self._txns.keep(request)
                    self._answers.done.append(request.request_id)
                case _:
                    await self._txns.roll_back(request)
                    self._answers.done.append(request.request_id)
        except WALError as error:
            self._told(request.request_id, error)
        self._wake.set()

    # -- what all of them have in common

    def _names_in(self, request: append_pb2.BeginTxnRequest | append_pb2.CommitTxnRequest) -> tuple[str, ...]:
        return names_in(request.vchannels, names_max=self._node.settings.txn_bodies_max)

    async def _begin_seen(self, seen_time_tick: int) -> WALError | None:
        """Does the same as `_begin`, and accepts a tick of this log from any node, however far that node's clock is ahead."""
        try:
            await self._node.oracle.observe_seen(seen_time_tick)
        except WALError as error:
            return error
        return self._begin(0)

    def _begin(self, seen_time_tick: int) -> WALError | None:
        """Returns why a request is refused as a whole, else None. From now on ticks are larger than the one that the client has seen."""
        try:
            if self._refusal is None and self._hosted.find(self._info) is not self._pchannel:
                raise ChannelFencedError(f"pchannel {self._pchannel.channel!r} was opened anew: open another stream")
            if seen_time_tick > self._node.oracle.last:
                self._node.oracle.observe(seen_time_tick)
        except InvalidArgumentError as error:
            return error
        except ChannelNotExistError as moved:  # not a vchannel: the pchannel was here when the stream began
            self._refusal = ClosedError(str(moved))
        except WALError as error:
            self._refusal = error
        return self._refusal

    def _is_here(self, vchannel: str) -> bool:
        """Returns whether a vchannel was used on this pchannel before, so that there is nothing to check."""
        route = self._node.routes.actors.get(vchannel)
        return route is not None and route.pchannel is self._pchannel

    def _append_nowait(self, message: Message, barrier: int, key: Key | None) -> asyncio.Future[Any] | None:
        """Appends a message; returns None if there is no room for it."""
        if key is None:
            return self._appends.append(message, barrier)
        return self._appends.append_with(message, barrier, key)


class ProduceService:
    """Serves the streams that write the pchannels that are `hosted` here."""

    def __init__(self, node: StreamingNode, hosted: Hosted, draining: Draining, bounds: ServerBounds) -> None:
        self._node = node
        self._hosted = hosted
        self._draining = draining
        self._bounds = bounds
        self._producer_ids = itertools.count(1)
        self._sessions = Sessions()

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handler of Produce."""
        return {PRODUCE: self._produce}

    async def _produce(self, context: Any) -> None:
        created = producer_in(context.invocation_metadata() or ())
        pchannel = self._hosted.find(created.pchannel)
        stream = ProduceStream(context, self._node, self._hosted, self._draining, pchannel, session=created.session, bounds=self._bounds)
        async with self._sessions.newest(pchannel.channel, created.session, stream):
            await context.write(
                proto.ProduceResponse(
                    create=proto.CreateProducerResponse(
                        producer_id=next(self._producer_ids), log=identity_of(pchannel), tail=tail_of(pchannel)
                    )
                )
            )
            await stream.run()
