"""Milvus' form of Produce, by a foreign client."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serve.foreign import Foreign
from tests.serve.servers import Serving
from tests.serve.test_produce import stored
from wal.message import AppendResult, MessageID, TxnContext
from wal.rpc.api import streaming_pb2
from wal.serve.milvus_produce import result_to_proto


async def test_client_of_the_contract_appends(served: Serving, foreign: Foreign) -> None:
    info = await foreign.assigned()
    call = foreign.produce(info)
    assert (await call.read()).create.producer_id == 1
    for number in range(100):
        await call.write(foreign.request(number, foreign.message("orders", b"%d" % number, who="me")))
    ids = []
    for number in range(100):
        answer = (await call.read()).produce
        assert (answer.request_id, answer.WhichOneof("response")) == (number, "result")
        ids.append(MessageID.from_bytes(answer.result.id.id))
    assert ids == sorted(ids)
    await call.write(foreign.kind("ProduceRequest")(close=foreign.kind("CloseProducerRequest")()))
    assert (await call.read()).WhichOneof("response") == "close"
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    assert await stored(served, "orders") == [b"%d" % number for number in range(100)]


async def test_producers_have_ids_of_their_own(foreign: Foreign) -> None:
    info = await foreign.assigned()
    assert [(await foreign.produce(info).read()).create.producer_id for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"_t": "1"}, "TIME_TICK cannot be appended"),
        ({"_t": "77"}, "'77': expected a type"),
        ({"_tt": "zz"}, "'_tt' of a message on the wire"),
        ({"_ik": "key"}, "'_ik' of a message on the wire"),
        ({"_v": "1"}, "'_v' of a message on the wire is '1'"),
        ({"_vc": ""}, "'_vc' of a message on the wire is ''"),
        ({"_vc": "x" * 600}, "vchannel"),
    ],
)
async def test_bad_message_gets_its_own_error(served: Serving, foreign: Foreign, properties: dict[str, str], words: str) -> None:
    call = foreign.produce(await foreign.assigned())
    await call.read()
    bad = foreign.message("orders", b"bad")
    bad.properties.update(properties)
    await call.write(foreign.request(7, bad))
    await call.write(foreign.request(8, foreign.message("orders", b"good")))
    answers = {answer.request_id: answer for answer in [(await call.read()).produce, (await call.read()).produce]}
    assert answers[7].error.code == 10
    assert words in answers[7].error.cause
    assert answers[8].WhichOneof("response") == "result"
    assert await stored(served, "orders") == [b"good"]


async def test_stream_that_is_created_wrongly_gets_the_contracts_status(foreign: Foreign) -> None:
    info = await foreign.assigned()
    wrong = foreign.kind("PChannelInfo")
    for info_given, code, status in (
        (wrong(name="other", term=info.term), 2, grpc.StatusCode.FAILED_PRECONDITION),
        (wrong(name=info.name, term=info.term + 1), 6, grpc.StatusCode.FAILED_PRECONDITION),
        (wrong(), 10, grpc.StatusCode.INVALID_ARGUMENT),
    ):
        found, error = await foreign.error_of(foreign.produce(info_given))
        assert (found, error.code) == (status, code)
    nothing = foreign.open("StreamingNodeHandlerService", "Produce")
    assert (await foreign.error_of(nothing))[1].code == 10
    garbage = foreign.open("StreamingNodeHandlerService", "Produce", metadata=[("create-producer", "?")])
    assert (await foreign.error_of(garbage))[1].code == 10


async def test_request_without_a_content_ends_its_stream_after_what_was_accepted(foreign: Foreign) -> None:
    call = foreign.produce(await foreign.assigned())
    await call.read()
    await call.write(foreign.request(1, foreign.message("orders", b"before")))
    await call.write(foreign.kind("ProduceRequest")())
    assert (await call.read()).produce.WhichOneof("response") == "result"
    status, error = await foreign.error_of(call)
    assert (status, error.code) == (grpc.StatusCode.INVALID_ARGUMENT, 10)
    assert "set produce" in error.cause


@given(st.integers(0, 2**63 - 1), st.booleans(), st.booleans())
def test_result_has_its_id_tick_and_transaction(tick: int, in_txn: bool, begun: bool) -> None:
    at = MessageID("p-1", 7, 4096, 0)
    context = TxnContext(tick, 10.0) if in_txn else None
    result = AppendResult(None, None, None, context) if begun else AppendResult(at, tick, at, context)
    message = streaming_pb2.ProduceMessageResponseResult.FromString(result_to_proto(result).SerializeToString())
    assert message.HasField("id") is not begun
    assert message.id.id == (b"" if begun else bytes(at))
    assert message.time_tick == (0 if begun else tick)
    assert message.HasField("txn_context") is in_txn
    assert message.txn_context.txn_id == (tick if in_txn else 0)
