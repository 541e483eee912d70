"""Consume in Milvus' form: policies, filters, transactions, and the end of a stream, as a client of Milvus' protocol sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.message.wire_form import message_read, transaction_read
from tests.rpc.contract import Contract
from tests.serve.foreign import Foreign
from tests.serve.servers import Serving, serving
from wal.message import AppendResult, Message, MessageID, MessageType
from wal.message.wire_pb2 import Message as Wire
from wal.requests.pchannels import Truncate
from wal.requests.txns import AppendTxn
from wal.requests.vchannels import CreateVChannel, DropVChannel

TIME_TICK = "1"


async def put(served: Serving, *messages: Message) -> list[AppendResult]:
    return [await served.log.appends.append_waiting(message) for message in messages]


class Reader:
    """Reads a stream of Milvus' protocol."""

    def __init__(self, foreign: Foreign, info: Any, *, policy: Any, filters: Sequence[Any] = ()) -> None:
        kind = foreign.kind
        self.call = foreign.consume(
            info, deliver_policy=kind("DeliverPolicy")(**policy), deliver_filters=[kind("DeliverFilter")(**one) for one in filters]
        )

    async def created(self) -> Reader:
        assert (await self.call.read()).WhichOneof("response") == "create"
        return self

    async def next(self, *, ticks: bool = False) -> Any:
        while True:
            response = await self.call.read()
            assert response is not grpc.aio.EOF
            if ticks or response.consume.message.properties["_t"] != TIME_TICK:
                return response.consume

    async def payloads(self, count: int) -> list[bytes]:
        return [(await self.next()).message.payload for _ in range(count)]


async def reader(foreign: Foreign, vchannel: str | None = None, *, policy: Any = None, **filters: Any) -> Reader:
    kind = foreign.kind
    given: list[Any] = [{name: kind(_KINDS[name])(time_tick=tick)} for name, tick in filters.items()]
    if vchannel is not None:
        given.append({"vchannel": kind("DeliverFilterVChannel")(vchannel=vchannel)})
    one = Reader(foreign, await foreign.assigned(), policy=policy or {"all": _own_empty(foreign)}, filters=given)
    return await one.created()


_KINDS = {"time_tick_gt": "DeliverFilterTimeTickGT", "time_tick_gte": "DeliverFilterTimeTickGTE"}


def _own_empty(foreign: Foreign) -> Any:
    """Returns google.protobuf.Empty as Milvus' pool has it."""
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(foreign.contract.pool.FindMessageTypeByName("google.protobuf.Empty"))()


def at(foreign: Foreign, message_id: MessageID | None) -> Any:
    return foreign.kind("MessageID")(id=bytes(message_id))  # type: ignore[arg-type]


async def test_four_policies(served: Serving, foreign: Foreign) -> None:
    results = await put(served, *[Message("orders", b"%d" % number) for number in range(5)])
    third = at(foreign, results[2].message_id)
    everything = await reader(foreign, "orders")
    assert await everything.payloads(5) == [b"0", b"1", b"2", b"3", b"4"]
    assert await (await reader(foreign, "orders", policy={"start_from": third})).payloads(3) == [b"2", b"3", b"4"]
    assert await (await reader(foreign, "orders", policy={"start_after": third})).payloads(2) == [b"3", b"4"]
    latest = await reader(foreign, "orders", policy={"latest": _own_empty(foreign)})
    await put(served, Message("orders", b"5"))
    assert await latest.payloads(1) == [b"5"]
    assert await everything.payloads(1) == [b"5"]


async def test_delivered_messages_equal_appended_ones(served: Serving, foreign: Foreign) -> None:
    (result,) = await put(served, Message("orders", b"x", message_type=MessageType.DELETE, properties={"who": "me"}))
    found = await (await reader(foreign, "orders")).next()
    assert found.id.id == bytes(result.message_id)
    message = message_read(result.message_id, Wire.FromString(found.message.SerializeToString()))
    assert (message.payload, message.properties, message.message_type) == (b"x", {"who": "me"}, MessageType.DELETE)
    assert (message.time_tick, message.vchannel) == (result.time_tick, "orders")


async def test_filters_by_tick_and_vchannel(served: Serving, foreign: Foreign) -> None:
    results = await put(served, *[Message("ab"[number % 2], b"%d" % number) for number in range(6)])
    tick = results[2].time_tick
    assert await (await reader(foreign, "a", time_tick_gt=tick)).payloads(1) == [b"4"]
    assert await (await reader(foreign, "a", time_tick_gte=tick)).payloads(2) == [b"2", b"4"]
    assert await (await reader(foreign, time_tick_gt=tick)).payloads(3) == [b"3", b"4", b"5"]


async def test_without_a_vchannel_the_whole_pchannel_is_delivered(served: Serving, foreign: Foreign) -> None:
    whole = await reader(foreign)
    await put(served, *[Message(f"v{number}", b"%d" % number) for number in range(10)])
    assert await whole.payloads(10) == [b"%d" % number for number in range(10)]
    await served.log.submit(DropVChannel("v3"))
    await put(served, Message("v3", b"recreated"))
    assert await whole.payloads(1) == [b"recreated"]
    again = await reader(foreign)
    assert await again.payloads(11) == [*[b"%d" % number for number in range(10)], b"recreated"]


async def test_transaction_is_sent_in_parts_that_follow_each_other(served: Serving, foreign: Foreign) -> None:
    whole, one = await reader(foreign), await reader(foreign, "b")
    bodies = [Message("a", b"1"), Message("b", b"2"), Message("a", b"3")]
    result = await served.log.appends.append_txn(AppendTxn(("a", "b"), bodies=bodies))
    for source, expected in ((whole, [b"1", b"3", b"2"]), (one, [b"2"])):
        parts = [await source.next() for _ in range(len(expected) + 2)]
        assert [part.message.properties["_t"] for part in parts] == ["900", *["2"] * len(expected), "901"]
        wire = [(MessageID.from_bytes(part.id.id), Wire.FromString(part.message.SerializeToString())) for part in parts]
        txn = transaction_read(wire)
        assert (txn.message_id, txn.time_tick) == (result.message_id, result.time_tick)
        assert sorted(body.payload for body in txn.messages) == sorted(expected)


async def test_ticks_show_that_time_passes(foreign: Foreign) -> None:
    quiet = await reader(foreign, "quiet")
    ticks = [int((await quiet.next(ticks=True)).message.properties["_tt"], 36) for _ in range(3)]
    assert ticks == sorted(set(ticks))


async def test_close_handshake(foreign: Foreign) -> None:
    one = await reader(foreign, "orders")
    await one.call.write(foreign.kind("ConsumeRequest")(close=foreign.kind("CloseConsumerRequest")()))
    responses = []
    while (response := await one.call.read()) is not grpc.aio.EOF:
        responses.append(response.WhichOneof("response"))
    assert responses[-1] == "close"
    assert set(responses[:-1]) <= {"consume"}
    assert await one.call.code() is grpc.StatusCode.OK


async def test_slow_consumer_holds_up_nobody(served: Serving, foreign: Foreign) -> None:
    slow, quick = await reader(foreign, "orders"), await reader(foreign, "orders")
    await asyncio.gather(*[served.log.appends.append_waiting(Message("orders", bytes(10_000))) for _ in range(2000)])
    assert len(await quick.payloads(2000)) == 2000
    assert len(await slow.payloads(2000)) == 2000


async def test_wrong_consumer_is_an_error(foreign: Foreign, subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, Any, str]] = [
        ({}, [], "deliver_policy is not set"),
        ({"start_from": b"garbage"}, [], "deliver_policy.start_from"),
        ({"all": None}, [{}], "a deliver filter is not set"),
        ({"all": None}, [{"vchannel": ""}], "a filter by vchannel names none"),
    ]
    for policy, filters, words in cases:
        with subtests.test(repr(policy)):
            kind = foreign.kind
            if "all" in policy:
                policy = {"all": _own_empty(foreign)}
            elif "start_from" in policy:
                policy = {"start_from": kind("MessageID")(id=policy["start_from"])}
            filters = [{"vchannel": kind("DeliverFilterVChannel")(vchannel=one["vchannel"])} if one else {} for one in filters]
            wrong = Reader(foreign, await foreign.assigned(), policy=policy, filters=filters)
            status, error = await foreign.error_of(wrong.call)
            assert (status, error.code) == (grpc.StatusCode.INVALID_ARGUMENT, 10)
            assert words in error.cause


async def test_ids_of_another_log_and_truncated_ones_are_errors(served: Serving, foreign: Foreign) -> None:
    async def failing(foreign: Foreign, vchannel: str | None, start: Any) -> tuple[grpc.StatusCode, Any]:
        filters = [] if vchannel is None else [{"vchannel": foreign.kind("DeliverFilterVChannel")(vchannel=vchannel)}]
        one = Reader(foreign, await foreign.assigned(), policy={"start_from": start}, filters=filters)
        return await foreign.error_of(one.call)

    results = await put(served, *[Message("orders", b"%d" % number) for number in range(3)])
    own = results[0].message_id
    assert own is not None
    foreign_id = MessageID(own.pchannel, own.incarnation + 1, own.position, own.index, own.form)
    for vchannel in ("orders", None):
        wrong = await failing(foreign, vchannel, at(foreign, foreign_id))
        assert (wrong[1].code, "another incarnation" in wrong[1].cause) == (10, True)
    assert results[1].message_id is not None
    await served.log.submit(Truncate(results[1].message_id))
    status, error = await failing(foreign, "orders", at(foreign, own))
    assert (status, error.code) == (grpc.StatusCode.OUT_OF_RANGE, 16)


async def test_requests_that_are_none_end_their_stream_only(foreign: Foreign) -> None:
    one, other = await reader(foreign, "orders"), await reader(foreign, "orders")
    await one.call.write(foreign.kind("ConsumeRequest")())
    assert (await foreign.error_of(one.call))[1].code == 10
    await other.next(ticks=True)


async def test_dropped_vchannel_and_a_stopping_node_end_their_readers(served: Serving, foreign: Foreign) -> None:
    await put(served, Message("orders", b"x"))
    one, whole = await reader(foreign, "orders"), await reader(foreign)
    await served.log.submit(DropVChannel("orders"))
    assert (await foreign.error_of(one.call))[1].code == 2
    await served.node.close()
    assert (await foreign.error_of(whole.call))[1].code == 4


async def test_vchannel_of_another_pchannel_is_an_error(contract: Contract) -> None:
    async with serving(pchannels=2) as served, Foreign(served.address, contract) as foreign:
        info = await foreign.assigned()
        other = next(name for name in served.log.node.pchannels if name != info.name)
        await served.log.submit(CreateVChannel("there", other))
        filters = [{"vchannel": foreign.kind("DeliverFilterVChannel")(vchannel="there")}]
        one = Reader(foreign, info, policy={"all": _own_empty(foreign)}, filters=filters)
        assert f"is on pchannel {other}" in (await foreign.error_of(one.call))[1].cause
