"""Milvus' form of Produce: each message, and each message of a transaction, is a request of its own, which has an answer of its own.

It serves foreign clients of Milvus' protocol; our own clients send columns (`produce.py`). A transaction comes message by message as
`TxnMessage`. The type of a message is its action, and the reserved property `_tx` identifies its transaction:

    _t 900   begins one on its vchannel; `_h` is the base64 of a BeginTxnHeader with the keepalive
    _tx      the base64 of the TxnContext that the begin was answered with: the message is a body
    _t 901   with `_tx`: commits it; `_h` may be there, empty or with the vchannel
    _t 902   with `_tx`: rolls it back; `_h` may be there, empty
"""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from typing import Any, Final

import msgspec
from google.protobuf.any_pb2 import Any as AnyProto

from wal.errors import InvalidArgumentError, WALError
from wal.message import AppendResult, ForgottenResult, Message, MessageType, wire_pb2
from wal.message.codec import message_from_wire
from wal.message.properties import Reserved
from wal.message.wire_fields import from_base64, refused, txn_from_proto, txn_to_proto
from wal.network import Method
from wal.node.node import StreamingNode
from wal.node.txn import LocalTxn
from wal.requests.txns import BeginTxn
from wal.rpc.api import streaming_pb2 as proto
from wal.rpc.appends import Outcome
from wal.rpc.codes import error_to_proto
from wal.rpc.draining import Draining
from wal.rpc.headers import producer_in
from wal.rpc.methods import MILVUS_PRODUCE
from wal.rpc.serving import Handler
from wal.serve.hosted import Hosted
from wal.serve.produce_txns import check_keepalive, opened_txn
from wal.serve.request_stream import TAKEN_MAX, RequestStream, StreamAnswers
from wal.settings import ServerBounds
from wal.write.checks import check_body
from wal.write.operations import Together
from wal.write.pchannel import PChannel
from wal.write.txn_table import TxnOwner

_ENDS_AND_BEGIN: Final = (MessageType.BEGIN_TXN, MessageType.COMMIT_TXN, MessageType.ROLLBACK_TXN)
_TYPES: Final = frozenset(str(int(kind)) for kind in _ENDS_AND_BEGIN)
_ONE_OWNER: Final = b""
"""The session of all clients of this form, which has no sessions."""
Result = AppendResult | ForgottenResult


class MilvusAnswers(StreamAnswers):
    """The answers of a stream of this form: one message for each."""

    def __bool__(self) -> bool:
        return bool(self.outcomes)

    def take(self) -> tuple[list[proto.ProduceResponse], int]:
        taken, self.outcomes = self.outcomes[:TAKEN_MAX], self.outcomes[TAKEN_MAX:]
        return [proto.ProduceResponse(produce=_answer(number, outcome)) for number, _, outcome in taken], len(taken)


class MilvusProduceStream(RequestStream):
    """A stream of messages in this form."""

    def __init__(
        self, context: Any, node: StreamingNode, hosted: Hosted, draining: Draining, pchannel: PChannel, *, bounds: ServerBounds
    ) -> None:
        closing = proto.ProduceResponse(close=proto.CloseProducerResponse())
        super().__init__(context, node, hosted, draining, pchannel, answers=MilvusAnswers(), closing=closing)
        owner = TxnOwner(_ONE_OWNER, bounds.client_open_txns_max, bounds.client_open_txn_bytes_max)
        self._txns = MessageTxns(node, pchannel, owner, keepalive_s_max=bounds.txn_keepalive_s_max)

    async def _execute(self, request: proto.ProduceRequest) -> None:
        if not request.HasField("produce"):
            raise InvalidArgumentError("a ProduceRequest has no request of this version: set produce or close")
        self._unanswered += 1
        number = request.produce.request_id
        try:
            future = await self._send(request.produce.message)
        except WALError as error:
            self._told(number, error)
        else:
            future.add_done_callback(partial(self._settled, number, 1))

    async def _send(self, wire: wire_pb2.Message) -> asyncio.Future[Result]:
        """Executes a message, which has no key and no barrier; returns the future of its result."""
        txn_message = txn_message_from_wire(wire) if is_of_txn(wire) else None
        message = message_from_wire(wire) if txn_message is None else txn_message.message
        if (refusal := self._begin()) is not None:
            raise refusal
        if txn_message is not None or not self._is_here(message.vchannel):
            await self._create(message.vchannel)
        if txn_message is not None:
            return await self._txns.execute(txn_message)
        future: asyncio.Future[Any] | None = self._appends.append(message)
        return future or await self._appends.send(message)

    async def _create(self, vchannel: str) -> None:
        """Checks a vchannel. A missing vchannel is created on this pchannel if that is allowed, since this form has no call that creates
        it.
        """
        known = self._node.routes.known
        if self._node.settings.create_vchannels and vchannel not in known.records and await known.look_up(vchannel) is None:
            await known.create_on(vchannel, self._pchannel.channel)
        await self._places.check(vchannel)


class MessageTxns:
    """The transactions in Milvus' form, which a client sends message by message on a Produce stream.

    The node keeps the bodies until the commit, and loses them when it stops. An answer before the commit has only the transaction context:
    nothing is in the log yet, so the answer has no id and no tick.

    The transactions on `pchannel`.
    """

    def __init__(self, node: StreamingNode, pchannel: PChannel, owner: TxnOwner, *, keepalive_s_max: float) -> None:
        self._node = node
        self._pchannel = pchannel
        self._owner = owner
        self._keepalive_s_max = keepalive_s_max

    async def execute(self, request: TxnMessage) -> asyncio.Future[Result]:
        """Executes a message of a transaction, whose vchannel is on this pchannel; returns the future of its result.

        Raises TransactionExpiredError if the transaction expired, was ended by the log, or is unknown here; InvalidTransactionStateError if
        it was committed or rolled back, or is of another client; InvalidArgumentError for a message that cannot be in it, which leaves it
        open.
        """
        message = request.message
        match message.message_type:
            case MessageType.BEGIN_TXN:
                return self._answer(await self._begin(message, request.keepalive_s))
            case MessageType.COMMIT_TXN:
                return self._opened(request).send_commit()
            case MessageType.ROLLBACK_TXN:
                txn = self._opened(request)
                await txn.rollback()
            case _:
                txn = self._opened(request)
                txn.append(message, 0)
        return self._answer(txn)

    async def _begin(self, message: Message, keepalive_s: float) -> LocalTxn:
        check_keepalive(keepalive_s, self._keepalive_s_max)
        return await self._node.appends.begin_txn(BeginTxn((message.vchannel,), keepalive_s=keepalive_s), owner=self._owner)

    def _opened(self, txn_message: TxnMessage) -> LocalTxn:
        """Returns the open transaction of a message."""
        txn = opened_txn(self._node, self._pchannel, txn_message.txn_id, self._owner)
        check_body(txn_message.message, txn.names)
        return txn

    @staticmethod
    def _answer(txn: LocalTxn) -> asyncio.Future[Result]:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        future.set_result(AppendResult(None, None, None, txn.context))
        return future


class TxnMessage(msgspec.Struct, frozen=True):
    """A message, in Milvus' form, that begins or ends a transaction, or a body, by the type of `message`.

    The message that begins it has the `txn_id` 0, and only its `keepalive_s` counts; 0.0 means the log's setting.
    """

    message: Message
    txn_id: int
    keepalive_s: float


def is_of_txn(wire: wire_pb2.Message) -> bool:
    """Returns whether a message in Milvus' form belongs to a transaction."""
    properties = wire.properties
    return Reserved.TXN_CONTEXT in properties or properties.get(Reserved.TYPE) in _TYPES


def txn_message_from_wire(wire: wire_pb2.Message) -> TxnMessage:
    """Returns a message of a transaction. Raises InvalidArgumentError for a field that it must not have, or that cannot be decoded."""
    properties = dict(wire.properties)
    context, header = properties.pop(Reserved.TXN_CONTEXT, None), properties.pop(Reserved.HEADER, None)
    message = message_from_wire(wire_pb2.Message(payload=wire.payload, properties=properties))
    kind = message.message_type
    if kind in _ENDS_AND_BEGIN and (message.payload or message.properties):
        raise InvalidArgumentError(
            f"a {kind.name} has {len(message.payload)} bytes of payload and {len(message.properties)} properties of the user's, which "
            "the log would not keep: put them into a body"
        )
    if kind == MessageType.BEGIN_TXN:
        if context is not None:
            raise refused(Reserved.TXN_CONTEXT, context, "none on a message that begins a transaction: its answer has it")
        milliseconds = from_base64(header or "", Reserved.HEADER, wire_pb2.BeginTxnHeader).keepalive_milliseconds
        return TxnMessage(message, 0, milliseconds / 1000)
    txn = txn_from_proto(from_base64(context, Reserved.TXN_CONTEXT, wire_pb2.TxnContext))
    if header is not None:
        named = from_base64(header, Reserved.HEADER, wire_pb2.CommitTxnHeader).vchannels
        if kind not in _ENDS_AND_BEGIN or list(named) not in ([], [message.vchannel]):
            raise refused(Reserved.HEADER, header, "none on a body, and on an end no vchannels but its own")
    return TxnMessage(message, txn.txn_id, 0.0)


def _answer(number: int, outcome: Outcome | Together) -> proto.ProduceMessageResponse:
    if isinstance(outcome, BaseException):
        return proto.ProduceMessageResponse(request_id=number, error=error_to_proto(outcome))
    assert not isinstance(outcome, Together), "each message is appended alone"
    return proto.ProduceMessageResponse(request_id=number, result=result_to_proto(outcome))


def result_to_proto(result: Result) -> proto.ProduceMessageResponseResult:
    """Returns the message of one result."""
    assert result.extra is None or isinstance(result.extra, AnyProto)
    return proto.ProduceMessageResponseResult(
        id=None if result.message_id is None else wire_pb2.MessageID(id=bytes(result.message_id)),
        time_tick=result.time_tick or 0,
        txn_context=None if result.txn_context is None else txn_to_proto(result.txn_context),
        extra=result.extra,
    )


class MilvusProduceService:
    """Serves the streams of this form that write the pchannels that are `hosted` here."""

    def __init__(self, node: StreamingNode, hosted: Hosted, draining: Draining, bounds: ServerBounds) -> None:
        self._node = node
        self._hosted = hosted
        self._draining = draining
        self._bounds = bounds
        self._producer_ids = itertools.count(1)

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handler of Milvus' Produce."""
        return {MILVUS_PRODUCE: self._produce}

    async def _produce(self, context: Any) -> None:
        pchannel = self._hosted.find(producer_in(context.invocation_metadata() or ()).pchannel)
        stream = MilvusProduceStream(context, self._node, self._hosted, self._draining, pchannel, bounds=self._bounds)
        created = proto.CreateProducerResponse(producer_id=next(self._producer_ids))
        await context.write(proto.ProduceResponse(create=created))
        await stream.run()
