"""Produce: the streams on which our clients append to a pchannel, in columns, and commit transactions.

How it works. A client opens a stream for one pchannel in one session; an older stream of the same session is ended first (`replaced`), so
that nothing of it is executed afterwards. `request_stream.py` has what a stream does from its first request to its end; here is what each
request does, and `ProduceAnswers`: what became known in a turn of the loop is one message. Milvus' form is in `milvus_produce.py`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from operator import itemgetter
from typing import Any

from google.protobuf.empty_pb2 import Empty

from wal.channels.slices import sliced
from wal.errors import InvalidArgumentError, WALError
from wal.message import AppendResult, ForgottenResult, Message
from wal.network import Method
from wal.node.appends import BULK_RECORDS
from wal.node.node import StreamingNode
from wal.rpc.api import append_pb2 as proto
from wal.rpc.appends import appends_of, count_of, key_of, outcomes_to_proto, plain_of
from wal.rpc.converters import range_of
from wal.rpc.headers import producer_in
from wal.rpc.methods import PRODUCE
from wal.rpc.serving import Draining, Handler
from wal.serve.cursor_calls import outcome_of
from wal.serve.hosted import Hosted, identity_of, tail_of
from wal.serve.produce_requests import ServedWithdrawals, Sessions
from wal.serve.produce_txns import ProduceTxns, bodies_in, expected_in, names_in
from wal.serve.request_stream import TAKEN_MAX, UNANSWERED_MAX, Answers, RequestStream
from wal.settings import ServerBounds
from wal.write.idempotency.keys import Key
from wal.write.operations import Together
from wal.write.pchannel import PChannel
from wal.write.txn_table import TxnOwner

Result = AppendResult | ForgottenResult


class ProduceAnswers(Answers):
    """The answers of one stream, of every kind of request."""

    def __init__(self) -> None:
        super().__init__()
        self.together: list[tuple[int, Together]] = []
        """Results of messages that were appended together, with the number of the first."""
        self.begun: list[proto.BegunTxn] = []
        self.done: list[int] = []
        """The requests that succeeded and have no result."""

    @property
    def count(self) -> int:
        each = len(self.outcomes) + len(self.begun) + len(self.done)
        return each + sum([results.count for _, results in self.together])

    def take(self) -> tuple[list[proto.ProducerResponse], int]:
        taken = ProduceAnswers()
        taken.outcomes, self.outcomes = self.outcomes[:TAKEN_MAX], self.outcomes[TAKEN_MAX:]
        taken.together, self.together = self.together, []
        taken.begun, self.begun = self.begun, []
        taken.done, self.done = self.done, []
        taken.outcomes.sort(key=itemgetter(0))
        message = outcomes_to_proto(taken.outcomes)
        message.appended.extend([range_of(number, results) for number, results in taken.together])
        message.begun.extend(taken.begun)
        message.done.extend(taken.done)
        return [proto.ProducerResponse(outcomes=message)], taken.count


class ProduceStream(RequestStream):
    """One stream of our form."""

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
        self._answers = ProduceAnswers()
        closing = proto.ProducerResponse(close=Empty())
        super().__init__(context, node, hosted, draining, pchannel, answers=self._answers, closing=closing)
        owner = TxnOwner(session, bounds.client_open_txns_max, bounds.client_open_txn_bytes_max)
        self._txns = ProduceTxns(node, pchannel, owner, keepalive_s_max=bounds.txn_keepalive_s_max)
        self._withdrawals = ServedWithdrawals(pchannel)

    def _settled(self, number: int, future: asyncio.Future[Any]) -> None:
        self._withdrawals.settled(number)
        super()._settled(number, future)

    def _settle_later(self, number: int, future: asyncio.Future[Any]) -> None:
        """Answers a transaction once its outcome is known; until then it can be withdrawn."""
        self._withdrawals.add(number, future)
        future.add_done_callback(partial(self._settled, number))

    def _settled_together(self, first: int, count: int, future: asyncio.Future[Together]) -> None:
        if (error := future.exception()) is None:
            self._answers.together.append((first, future.result()))
            self._wake.set()
            return
        for number in range(first, first + count):
            self._told(number, error)

    async def _execute(self, request: proto.ProducerRequest) -> None:
        match request.WhichOneof("request"):
            case "append":
                await self._append(request.append)
            case "append_txn":
                await self._append_txn(request.append_txn)
            case "begin_txn" | "keep_txn" | "commit_txn" | "rollback_txn" | "withdraw" as name:
                await self._execute_one(name, getattr(request, name))
            case _:
                raise InvalidArgumentError(
                    "a ProducerRequest has no request that this version knows: set append, append_txn, begin_txn, keep_txn, commit_txn, "
                    "rollback_txn, withdraw or close"
                )

    async def _append(self, request: proto.Append) -> None:
        if (count := count_of(request.messages)) > UNANSWERED_MAX:
            raise InvalidArgumentError(f"an append request has {count} messages, at most {UNANSWERED_MAX} are accepted: send several")
        if not count:
            self._unanswered += 1
            self._told(request.first_request_id, InvalidArgumentError("an append request has no message: send one or more"))
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
                future.add_done_callback(partial(self._settled, number))

    async def _send_expecting(self, message: Message, barrier: int, key: Key | None, request: proto.Append) -> asyncio.Future[Result]:
        """Appends a message that expects what the last event of its vchannel is."""
        if count_of(request.messages) != 1:
            raise InvalidArgumentError("an append request with expected_last has several messages: send one in each")
        expected = await expected_in((request.expected_last,), (message.vchannel,))
        await self._places.check(message.vchannel)
        return await self._appends.send(message, barrier, key, expected[message.vchannel])

    def _append_together(self, request: proto.Append) -> bool:
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

    async def _append_txn(self, request: proto.AppendTxn) -> None:
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

    async def _execute_one(self, name: str, request: Any) -> None:
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

    def _names_in(self, request: proto.BeginTxn | proto.CommitTxn) -> tuple[str, ...]:
        return names_in(request.vchannels, names_max=self._node.settings.txn_bodies_max)

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
        self._sessions = Sessions()

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handler of Produce."""
        return {PRODUCE: self._produce}

    async def _produce(self, context: Any) -> None:
        created = producer_in(context.invocation_metadata() or (), proto.OpenProducer)
        pchannel = self._hosted.find(created.pchannel)
        stream = ProduceStream(context, self._node, self._hosted, self._draining, pchannel, session=created.session, bounds=self._bounds)
        async with self._sessions.newest(pchannel.channel, created.session, stream):
            opened = proto.ProducerOpened(log=identity_of(pchannel), tail=tail_of(pchannel))
            await context.write(proto.ProducerResponse(opened=opened))
            await stream.run()
