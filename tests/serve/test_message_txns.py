"""Transactions message by message, by a foreign client of Milvus' protocol."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf.unknown_fields import UnknownFieldSet

from actors import VirtualClock
from tests.processes import eventually
from tests.rpc.contract import Contract
from tests.serve.foreign import Foreign, varint
from tests.serve.servers import Serving, serving
from tests.serve.test_produce import stored
from wal import open_wal
from wal.errors import StreamingCode
from wal.message import Message, MessageType
from wal.requests.txns import AppendTxn
from wal.serve.access import Access
from wal.settings import ServerBounds

EXPIRED = StreamingCode.TRANSACTION_EXPIRED
INVALID = StreamingCode.INVAILD_ARGUMENT
TXN_CONTEXT = 3
"""The field of a result that has the transaction, in later versions of Milvus' protocol."""


def begin_header(keepalive_ms: int) -> str:
    """Returns the property `_h` of a begin."""
    return base64.b64encode(b"\x08" + varint(keepalive_ms) if keepalive_ms else b"").decode()


class Refused(Exception):
    """The code and the text of an answer that is an error."""

    def __init__(self, error: Any) -> None:
        super().__init__(error.cause)
        self.code = error.code


class Producer:
    """A Produce stream of Milvus' protocol, request by request."""

    def __init__(self, foreign: Foreign, call: Any) -> None:
        self.foreign = foreign
        self.call = call
        self.number = 0

    @classmethod
    async def open(cls, foreign: Foreign) -> Producer:
        call = foreign.produce(await foreign.assigned())
        await call.read()
        return cls(foreign, call)

    async def send(self, vchannel: str, payload: bytes = b"", /, **properties: str) -> Any:
        """Returns the result of a message. Raises Refused."""
        self.number += 1
        await self.call.write(self.foreign.request(self.number, self.foreign.message(vchannel, payload, **properties)))
        answer = (await self.call.read()).produce
        assert answer.request_id == self.number
        if answer.WhichOneof("response") == "error":
            raise Refused(answer.error)
        return answer.result

    async def begin(self, vchannel: str, keepalive_ms: int = 0) -> str:
        """Returns the property `_tx` of the transaction."""
        return context_in(await self.send(vchannel, _t="900", _h=begin_header(keepalive_ms)))

    async def refusal(self, vchannel: str, payload: bytes = b"", /, **properties: str) -> tuple[int, str]:
        """Returns the code and the text with which a message is refused."""
        with pytest.raises(Refused) as refused:
            await self.send(vchannel, payload, **properties)
        return refused.value.code, str(refused.value)


def context_in(result: Any) -> str:
    """Returns the transaction in a result, as the client sends it back."""
    fields: Any = UnknownFieldSet(result)
    (context,) = [field.data for field in fields if field.field_number == TXN_CONTEXT]
    return base64.b64encode(context).decode()


@pytest.fixture
async def producer(served: Serving, foreign: Foreign) -> AsyncIterator[Producer]:
    one = await Producer.open(foreign)
    yield one
    one.call.cancel()


def open_transactions(served: Serving) -> int:
    return served.log.statistics().pchannels[0].open_transactions


async def test_transaction_is_one_event_at_its_commit(served: Serving, producer: Producer) -> None:
    txn = await producer.begin("a", keepalive_ms=30_000)
    for number in range(3):
        result = await producer.send("a", b"%d" % number, _tx=txn, n=str(number))
        assert (context_in(result), result.HasField("id")) == (txn, False)
    await producer.send("a", b"alone")
    assert await stored(served, "a") == [b"alone"]
    result = await producer.send("a", _t="901", _tx=txn, _h="")
    assert context_in(result) == txn
    assert result.id.id
    assert await stored(served, "a") == [b"alone", b"0", b"1", b"2"]
    assert open_transactions(served) == 0


async def test_two_transactions_of_two_streams_do_not_mix(served: Serving, foreign: Foreign) -> None:
    first, second = await Producer.open(foreign), await Producer.open(foreign)
    one, other = await first.begin("a"), await second.begin("a")
    await first.send("a", b"one", _tx=one)
    await second.send("a", b"other", _tx=other)
    await first.send("a", b"one too", _tx=one, _t="3")
    # A transaction belongs to its pchannel, not to the stream that began it.
    await first.send("a", _t="901", _tx=other)
    await second.send("a", _t="901", _tx=one)
    assert await stored(served, "a") == [b"other", b"one", b"one too"]


async def test_rollback_leaves_nothing(served: Serving, producer: Producer) -> None:
    txn = await producer.begin("a")
    await producer.send("a", b"x", _tx=txn)
    assert not (await producer.send("a", _t="902", _tx=txn)).HasField("id")
    assert open_transactions(served) == 0
    assert await stored(served, "a") == []


@pytest.mark.parametrize(("end", "words"), [("901", "was committed"), ("902", "was rolled back")])
async def test_nothing_follows_the_end(producer: Producer, end: str, words: str) -> None:
    wrong_state = StreamingCode.INVALID_TRANSACTION_STATE
    txn = await producer.begin("a")
    await producer.send("a", _t=end, _tx=txn)
    for late in ({"_t": "901"}, {"_t": "902"}, {"_t": "2"}):
        code, text = await producer.refusal("a", _tx=txn, **late)
        assert (code, words in text) == (wrong_state, True)


async def test_body_renews_the_lease_and_without_any_it_expires(contract: Contract) -> None:
    clock = VirtualClock()
    async with serving(clock=clock, time_tick_interval_s=0.01) as served, Foreign(served.address, contract) as foreign:
        producer = await Producer.open(foreign)
        txn = await producer.begin("a", keepalive_ms=200)
        bodies = 4
        for _ in range(bodies):
            clock.advance(0.15)
            await producer.send("a", b"x", _tx=txn)
        await producer.send("a", _t="901", _tx=txn)
        assert len(await stored(served, "a")) == bodies
        brief = await producer.begin("a", keepalive_ms=20)
        clock.advance(0.1)
        await eventually(lambda: not open_transactions(served))
        for late in ({"_t": "901"}, {"_t": "902"}, {"_t": "2"}):
            code, text = await producer.refusal("a", _tx=brief, **late)
            assert (code, "expired" in text) == (EXPIRED, True)


async def test_exclusive_message_ends_it(producer: Producer) -> None:
    txn = await producer.begin("a")
    await producer.send("a", _t=str(int(MessageType.DROP_PARTITION)))
    code, text = await producer.refusal("a", b"x", _tx=txn)
    assert (code, "DROP_PARTITION" in text) == (EXPIRED, True)


async def test_transaction_ends_with_its_server(tmp_path: Path, contract: Contract) -> None:
    async with serving(tmp_path) as served, Foreign(served.address, contract) as foreign:
        producer = await Producer.open(foreign)
        txn = await producer.begin("a")
        await producer.send("a", b"x", _tx=txn)
    async with serving(tmp_path) as served, Foreign(served.address, contract) as foreign:
        code, text = await (await Producer.open(foreign)).refusal("a", _t="901", _tx=txn)
        assert (code, "is not open here" in text) == (EXPIRED, True)
        assert await stored(served, "a") == []


FOREIGN_ID = base64.b64encode(b"\x08" + varint(1 << 60)).decode()
NEGATIVE = base64.b64encode(b"\x08" + varint(-5)).decode()


@pytest.mark.parametrize(
    ("properties", "code", "words"),
    [
        ({"_t": "900"}, None, ""),
        ({"_t": "900", "_h": begin_header(-1)}, INVALID, "keepalive_s=-0.001 is out of range"),
        ({"_t": "900", "_h": begin_header(1 << 62)}, INVALID, "is out of range"),
        ({"_t": "900", "_h": "*"}, INVALID, "'_h' of a message on the wire is '*'"),
        ({"_t": "900", "_tx": FOREIGN_ID}, INVALID, "'_tx' of a message on the wire"),
        ({"_t": "900", "of": "mine"}, INVALID, "a BEGIN_TXN has 0 bytes of payload and 1 properties"),
        ({"_t": "901"}, INVALID, "'_tx' of a message on the wire is ''"),
        ({"_t": "901", "_tx": FOREIGN_ID}, EXPIRED, "is not open here"),
        ({"_t": "902", "_tx": FOREIGN_ID}, EXPIRED, "is not open here"),
        ({"_tx": FOREIGN_ID}, EXPIRED, "is not open here"),
        ({"_tx": NEGATIVE}, INVALID, "'_tx' of a message on the wire"),
        ({"_tx": "own", "_vc": "b"}, INVALID, "in a transaction over 'a'"),
        ({"_t": "901", "_tx": "own", "_vc": "b"}, INVALID, "in a transaction over 'a'"),
        ({"_tx": "own", "_h": ""}, INVALID, "'_h' of a message on the wire"),
        ({"_t": "901", "_tx": "own", "_h": "CgFi"}, INVALID, "'_h' of a message on the wire"),
        ({"_t": "1", "_tx": "own"}, INVALID, "cannot be in a transaction"),
        ({"_t": "8", "_tx": "own"}, INVALID, "cannot be in a transaction"),
        ({"_tx": "own", "_ik": "key"}, INVALID, "'_ik' of a message on the wire"),
    ],
)
async def test_wrong_message_leaves_the_transaction_open(
    served: Serving, producer: Producer, properties: dict[str, str], code: StreamingCode | None, words: str
) -> None:
    txn = await producer.begin("a")
    await producer.send("a", b"x", _tx=txn)
    given = {key: txn if value == "own" else value for key, value in properties.items()}
    if code is None:
        await producer.send("a", **given)
    else:
        found, text = await producer.refusal("a", **given)
        assert (found, words in text) == (code, True), text
    await producer.send("a", _t="901", _tx=txn, _h="CgFh")  # names its vchannel
    assert await stored(served, "a") == [b"x"]


async def test_message_transactions_have_the_usual_bounds(contract: Contract) -> None:
    async with serving(txn_bytes_max=1000, txn_bodies_max=3) as served, Foreign(served.address, contract) as foreign:
        producer = await Producer.open(foreign)
        txn = await producer.begin("a")
        assert "txn_bytes_max=1000" in (await producer.refusal("a", bytes(990), _tx=txn))[1]
        for _ in range(3):
            await producer.send("a", b"x", _tx=txn)
        assert "txn_bodies_max=3" in (await producer.refusal("a", b"x", _tx=txn))[1]
        await producer.send("a", _t="901", _tx=txn)
        assert await stored(served, "a") == [b"x"] * 3


async def test_bodies_that_the_server_keeps_are_bounded_for_each_client(contract: Contract) -> None:
    """Milvus' clients, which name no session, are one client; ours do not notice."""
    bounds = ServerBounds(client_open_txn_bytes_max=2000, txn_keepalive_s_max=60.0)
    async with (
        serving(access=Access(listen="127.0.0.1:0", bounds=bounds)) as served,
        Foreign(served.address, contract) as foreign,
        open_wal(f"wal://{served.address}") as log,
    ):
        one, two = await Producer.open(foreign), await Producer.open(foreign)
        assert "txn_keepalive_s_max=60" in (await one.refusal("a", _t="900", _h=begin_header(60_001)))[1]
        first, second = await one.begin("a"), await two.begin("a")
        await one.send("a", bytes(1500), _tx=first)
        assert "client_open_txn_bytes_max=2000" in (await two.refusal("a", bytes(1500), _tx=second))[1]
        await log.append_txn("a", [bytes(1500)] * 3)
        await one.send("a", _t="901", _tx=first)
        await two.send("a", bytes(1500), _tx=second)
        await two.send("a", _t="901", _tx=second)
        assert await stored(served, "a") == [bytes(1500)] * 5


async def test_transaction_of_the_contract_and_one_of_ours_are_read_alike(served: Serving, foreign: Foreign, producer: Producer) -> None:
    txn = await producer.begin("a")
    await producer.send("a", b"1", _tx=txn)
    await producer.send("a", _t="901", _tx=txn)
    await served.log.appends.append_txn(AppendTxn(("a",), bodies=[Message("a", b"1")]))
    shapes: list[tuple[bytes, list[str], str]] = []
    kind = foreign.kind
    whole = foreign.consume(
        await foreign.assigned(),
        deliver_policy=kind("DeliverPolicy").FromString(b"\x0a\x00"),  # all
        deliver_filters=[kind("DeliverFilter")(vchannel=kind("DeliverFilterVChannel")(vchannel="a"))],
    )
    while len(shapes) < 6:
        response = await whole.read()
        assert response is not grpc.aio.EOF
        message = response.consume.message
        if response.WhichOneof("response") == "consume" and message.properties["_t"] != "1":
            shapes.append((message.payload, sorted(message.properties), message.properties["_t"]))
    whole.cancel()
    assert shapes[:3] == shapes[3:]
