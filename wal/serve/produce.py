"""Produce: the streams on which our clients append to a pchannel, in columns, and commit transactions.

How it works. A client opens a stream, by its first request, for one pchannel in one session; an older stream of the same session is ended
first (`replaced`), so that nothing of it is executed afterwards. `request_stream.py` has what a stream does from its first request to its
end; this file has the effect of each request, and `ProduceAnswers`: one message has all outcomes of a turn of the loop. Milvus' form is in
`milvus_produce.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any, Final

import grpc.aio
from google.protobuf.empty_pb2 import Empty

from wal.channels.slices import SLICE, sliced
from wal.channels.vchannels import check_vchannel
from wal.errors import InvalidArgumentError, WALError
from wal.network import Method
from wal.node.node import StreamingNode
from wal.requests.appends import Append
from wal.requests.request import Request
from wal.requests.txns import AppendTxn, BeginTxn, BodiesRequest, CommitTxn, KeepTxn, RollbackTxn, TxnRequest, Withdraw
from wal.rpc.api import append_pb2 as proto
from wal.rpc.appends import Refusals, appends_from_proto, count_of, outcomes_to_proto
from wal.rpc.converter import STREAMED, check_known, struct_from_proto, struct_to_proto
from wal.rpc.draining import Draining
from wal.rpc.methods import PRODUCE
from wal.rpc.serving import Handler
from wal.runtime.threads import in_thread
from wal.serve.cursor_saves import outcome_of
from wal.serve.hosted import Hosted, identity_of, tail_of
from wal.serve.produce_requests import ServedWithdrawals, Sessions
from wal.serve.produce_txns import ProduceTxns
from wal.serve.request_stream import TAKEN_MAX, UNANSWERED_MAX, RequestStream, StreamAnswers
from wal.settings import ServerBounds
from wal.write.pchannel import PChannel
from wal.write.txn_table import TxnOwner, check_txn_names
from wal.write.vchannel import VChannel

_ROWS_PARSED: Final = 4 * SLICE
"""A transaction with more names and bodies is parsed in a thread, since that would keep the loop."""


class ProduceAnswers(StreamAnswers):
    """The answers of one stream, of every kind of request."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[proto.Began] = []
        self.done: list[int] = []
        """The requests that succeeded and have no result."""

    def __bool__(self) -> bool:
        return bool(self.outcomes or self.begun or self.done)

    def take(self) -> tuple[list[proto.ProducerResponse], int]:
        outcomes, self.outcomes = self.outcomes[:TAKEN_MAX], self.outcomes[TAKEN_MAX:]
        begun, self.begun = self.begun, []
        done, self.done = self.done, []
        outcomes.sort(key=itemgetter(0))
        message = outcomes_to_proto(outcomes)
        message.begun.extend(begun)
        message.done.extend(done)
        count = sum([count for _, count, _ in outcomes]) + len(begun) + len(done)
        return [proto.ProducerResponse(outcomes=message)], count


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

    def _settled(self, number: int, count: int, future: asyncio.Future[Any]) -> None:
        self._withdrawals.settled(number)
        super()._settled(number, count, future)

    def _settle_later(self, number: int, future: asyncio.Future[Any], count: int = 1, *, may_wait: bool = True) -> None:
        """Answers requests once their outcome is known; until then a request that may wait for long can be withdrawn."""
        if may_wait:
            self._withdrawals.add(number, future)
        future.add_done_callback(partial(self._settled, number, count))

    async def _execute(self, request: proto.ProducerRequest) -> None:
        number, name = request.request_id, request.WhichOneof("request")
        check_known(request)
        if name == "append":
            check_known(request.append)
            await self._append(number, request.append, request.seen_time_tick)
            return
        if name == "open":
            raise InvalidArgumentError("a second open is on this stream: open another stream for another pchannel or session")
        if name not in STREAMED:
            raise InvalidArgumentError(
                f"a ProducerRequest has no request that this version knows: set append, {', '.join(STREAMED)} or close"
            )
        self._unanswered += 1
        try:
            message = getattr(request, name)
            check_known(message)
            if (refusal := await self._begin_seen(request.seen_time_tick)) is not None:
                raise refusal
            await self._execute_one(number, STREAMED[name], message)
        except WALError as error:
            self._told(number, error)
        self._wake.set()

    async def _append(self, number: int, request: proto.Append, seen_time_tick: int) -> None:
        """Appends messages, of which the first has this number."""
        if (count := count_of(request.messages)) > UNANSWERED_MAX:
            raise InvalidArgumentError(f"an append request has {count} messages, at most {UNANSWERED_MAX} are accepted: send several")
        parts = appends_from_proto(request)
        if not count:
            self._unanswered += 1
            self._told(number, InvalidArgumentError("an append request has no message: send one or more"))
            return
        self._unanswered += count
        end, actors = number + count, dict[str, VChannel]()
        refusal = await self._begin_seen(seen_time_tick)
        for rows, refusals in parts:
            answered = 0
            if refusal is None:
                if rows.numbers or rows.options or not self._is_here(rows.vchannels[0]):
                    await self._check_rows(rows, refusals)
                for row, answered in self._appends.runs(rows, refusals):
                    try:
                        if (error := refusals.get(row)) is not None:
                            raise error
                        future = await self._appends.send_run(rows, row, answered, actors)
                    except WALError as error:
                        self._told(number + row, error, answered - row)
                    else:
                        self._settle_later(number + row, future, answered - row, may_wait=rows.options_of(row).may_wait)
                    if (refusal := self._refusal) is not None:
                        break
            if refusal is not None and answered < len(rows):
                self._told(number + answered, refusal, len(rows) - answered)
            number += len(rows)
            if number < end:
                await asyncio.sleep(0)  # other tasks get their turn

    async def _check_rows(self, rows: Append, refusals: Refusals) -> None:
        """Adds the errors of rows whose vchannel has no name or is not on this pchannel, or whose barrier no clock is near."""
        away: dict[int, WALError] = {}
        for number in {*rows.numbers} or {0}:
            name = rows.vchannels[number]
            if not self._is_here(name):
                try:
                    await self._places.check(check_vchannel(name))
                except WALError as error:
                    away[number] = error
        for row, number in enumerate(rows.numbers or [0] * len(rows)) if away else ():
            if number in away:
                refusals.setdefault(row, away[number])
        for row, options in enumerate(rows.options):
            try:
                self._node.oracle.check_ahead(options.barrier_time_tick)
            except WALError as error:
                refusals.setdefault(row, error)

    async def _execute_one(self, number: int, kind: type[Request[Any]], message: Any) -> None:
        """Executes a request about a transaction, or a withdrawal, or raises why it is refused."""
        bodies_max, rows = self._node.settings.txn_bodies_max, 0
        if issubclass(kind, TxnRequest):
            rows = len(message.vchannels)
            check_txn_names(rows, bodies_max)
        if issubclass(kind, BodiesRequest):
            if (count := count_of(message.bodies)) > bodies_max:
                raise InvalidArgumentError(
                    f"a transaction of {count} bodies exceeds txn_bodies_max={bodies_max}: commit in smaller transactions, or append them "
                    "without a transaction"
                )
            rows += count + len(message.save.key.vchannels)
        parse = partial(struct_from_proto, kind, message, strict=True)
        request = parse() if rows <= _ROWS_PARSED else await in_thread(parse)
        await _HANDLERS[kind](self, number, request)

    async def _append_txn(self, number: int, request: AppendTxn) -> None:
        """Appends a whole transaction, or saves a cursor alone."""
        self._node.oracle.check_ahead(request.options.barrier_time_tick)
        async for name in sliced(request.vchannels):
            await self._places.check(name)
        change = await self._txns.change_of(request)
        future: asyncio.Future[Any]
        if change is not None and not request.vchannels:
            future = self._txns.save_alone(change, request.bodies)
        else:
            future = await self._appends.send_txn(request, change)
        self._settle_later(number, future if change is None else outcome_of(future, change.key))

    async def _begin_txn(self, number: int, request: BeginTxn) -> None:
        async for vchannel in sliced(request.vchannels):
            await self._places.check(vchannel)
        begun = await self._txns.begin(request)
        self._answers.begun.append(proto.Began(request_id=number, txn=struct_to_proto(begun, proto.BegunTxn)))

    async def _commit_txn(self, number: int, request: CommitTxn) -> None:
        self._node.oracle.check_ahead(request.options.barrier_time_tick)
        for vchannel in request.vchannels:
            await self._places.check_existing(vchannel)
        self._settle_later(number, await self._txns.commit(request))

    async def _keep_txn(self, number: int, request: KeepTxn) -> None:
        self._txns.keep(request)
        self._answers.done.append(number)

    async def _roll_back_txn(self, number: int, request: RollbackTxn) -> None:
        await self._txns.roll_back(request)
        self._answers.done.append(number)

    async def _withdraw(self, number: int, request: Withdraw) -> None:
        await self._withdrawals.withdraw(request.withdrawn_ids)
        self._answers.done.append(number)


_HANDLERS: Final[Mapping[type[Request[Any]], Callable[[ProduceStream, int, Any], Awaitable[None]]]] = {
    AppendTxn: ProduceStream._append_txn,
    BeginTxn: ProduceStream._begin_txn,
    KeepTxn: ProduceStream._keep_txn,
    CommitTxn: ProduceStream._commit_txn,
    RollbackTxn: ProduceStream._roll_back_txn,
    Withdraw: ProduceStream._withdraw,
}
"""The action of a stream for each request. Each gets the number of the request, whose outcome is answered now or later."""


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
        with self._draining.ending():
            first = await context.read()
        if first is grpc.aio.EOF:
            return
        check_known(first)
        if (name := first.WhichOneof("request")) != "open":
            raise InvalidArgumentError(f"the first request of the stream is {name or 'empty'}: send open, with the pchannel, before others")
        session, info = first.open.session, first.open.pchannel
        check_known(first.open)
        pchannel = self._hosted.find(info)
        stream = ProduceStream(context, self._node, self._hosted, self._draining, pchannel, session=session, bounds=self._bounds)
        async with self._sessions.newest(pchannel.channel, session, stream):
            opened = proto.ProducerOpened(log=identity_of(pchannel), tail=tail_of(pchannel))
            await context.write(proto.ProducerResponse(opened=opened))
            await stream.run()
