"""Messages from a user's view: values that are refused at creation, and ids that are passed between processes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.locations import open_wal
from tests.probes import payloads, read_all
from wal import ImmutableMessage, ImmutableTxnMessage, Message, MessageID, MessageType, WALAccesser, timestamp
from wal.errors import InvalidArgumentError


def test_fields_of_a_message() -> None:
    message = Message("orders", b"payload", properties={"k": "v", "ü": "é"})
    assert (message.vchannel, message.payload, message.message_type) == ("orders", b"payload", MessageType.INSERT)
    assert message.properties == {"k": "v", "ü": "é"}
    assert message.estimate_size() == 7 + 2 + 4
    with pytest.raises(AttributeError):
        message.payload = b""  # type: ignore[misc]
    with pytest.raises(TypeError):
        Message("orders", b"1", MessageType.DELETE)  # type: ignore[call-arg]


def test_properties_are_a_copy() -> None:
    given = {"k": "v"}
    message = Message("orders", b"", properties=given)
    given["k"] = "changed"
    assert message.properties == {"k": "v"}
    assert Message("a", b"").properties is not Message("b", b"").properties


def test_wrong_types(subtests: pytest.Subtests) -> None:
    cases: list[dict[str, object]] = [
        {"payload": "text"},
        {"payload": bytearray(b"1")},
        {"payload": None},
        {"vchannel": b"orders"},
        {"vchannel": None},
        {"message_type": 2},
        {"message_type": "INSERT"},
        {"properties": [("k", "v")]},
        {"properties": {"k": 1}},
        {"properties": {1: "v"}},
        {"properties": None},
    ]
    for odd in cases:
        with subtests.test(repr(odd)), pytest.raises(TypeError):
            Message(**({"vchannel": "orders", "payload": b""} | odd))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"vchannel": ""}, {"vchannel": "\ud800"}, {"properties": {"_tt": "1"}}, {"properties": {"k": "\ud800"}}])
def test_wrong_values(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        Message(**({"vchannel": "orders", "payload": b""} | wrong))  # type: ignore[arg-type]


@pytest.mark.one_location("wal.api refuses the call before any log has it")
async def test_names_with_control_characters_are_refused(log: WALAccesser) -> None:
    for wrong in ("a\nb", "\0", "x" * 256):
        with pytest.raises(InvalidArgumentError):
            await log.raw_append(Message(wrong, b"1"))
        with pytest.raises(InvalidArgumentError):
            await log.append_messages(Message("fine", b"1"), Message(wrong, b"1"))
        with pytest.raises(InvalidArgumentError):
            await log.append_bulk([Message("fine", b"1"), Message(wrong, b"1")])
    assert await log.vchannels() == []


async def test_payloads_and_properties_come_back_byte_for_byte(log: WALAccesser) -> None:
    sent = [
        Message("orders", b""),
        Message("orders", bytes(range(256)) * 100),
        Message("orders", b"x", properties={"": "", "k" * 1000: "v" * 1000, "日本": "語"}),
        Message("orders", bytes((1 << 20) - 2), properties={"a": "b"}),
    ]
    for message in sent:
        await log.raw_append(message)
    async with log.txn("orders") as txn:
        for message in sent[:3]:
            await txn.append(message)
    *plain, transaction = await read_all(log, "orders")
    for found, message in [*zip(plain, sent, strict=True), *zip(transaction.bodies(), sent, strict=False)]:
        assert (found.payload, found.properties) == (message.payload, message.properties)
        assert found.estimate_size() == message.estimate_size()
    assert transaction.estimate_size() == sum(message.estimate_size() for message in sent[:3])


async def test_delivered_message_does_not_change(log: WALAccesser) -> None:
    await log.raw_append(Message("orders", b"1", properties={"k": "v"}))
    (message,) = await read_all(log, "orders")
    message.properties["k"] = "changed"
    assert message.properties == {"k": "v"}
    for name in ("payload", "time_tick", "vchannel", "message_id"):
        with pytest.raises(AttributeError):
            setattr(message, name, None)
    text = repr(message)
    assert str(message.message_id) in text
    assert "INSERT" in text
    assert isinstance(message, ImmutableMessage)
    assert not isinstance(message, ImmutableTxnMessage)


async def test_too_large(location: str) -> None:
    async with open_wal(location, message_bytes_max=100) as log:
        await log.raw_append(Message("orders", bytes(90), properties={"k" * 5: "v" * 5}))
        with pytest.raises(InvalidArgumentError, match=r"101 bytes.*message_bytes_max=100"):
            await log.raw_append(Message("orders", bytes(91), properties={"k" * 5: "v" * 5}))
        with pytest.raises(InvalidArgumentError, match="message_bytes_max=100"):
            log.append_nowait(Message("orders", bytes(101)))
        assert len(await payloads(log, "orders")) == 1


async def test_larger_message_bytes_max(location: str) -> None:
    async with open_wal(location, message_bytes_max=8 << 20) as log:
        await log.raw_append(Message("orders", bytes(8 << 20)))
        assert [len(payload) for payload in await payloads(log, "orders")] == [8 << 20]


@pytest.mark.parametrize("kind", [kind for kind in MessageType if kind in (0, 1, 900, 901, 902, 999)])
@pytest.mark.one_location("wal.api refuses the call before any log has it")
async def test_types_of_the_system_are_refused(log: WALAccesser, kind: MessageType) -> None:
    message = Message("orders", b"", message_type=kind)
    with pytest.raises(InvalidArgumentError, match=kind.name):
        await log.raw_append(message)
    with pytest.raises(InvalidArgumentError, match=kind.name):
        log.append_nowait(message)
    with pytest.raises(InvalidArgumentError, match=kind.name):
        await log.append_bulk([message])


async def test_ids(log4: WALAccesser) -> None:
    await log4.create_vchannel("a", pchannel="p0")
    await log4.create_vchannel("b", pchannel="p1")
    results = [await log4.raw_append(Message("a", b"")) for _ in range(5)]
    other = (await log4.raw_append(Message("b", b""))).message_id
    ids = [result.message_id for result in results]
    assert all(one < following for one, following in pairwise(ids))
    assert sorted(map(bytes, ids)) == list(map(bytes, ids))
    assert len({*ids, *map(MessageID.parse, map(str, ids))}) == 5
    assert ids[0] != other
    with pytest.raises(InvalidArgumentError, match="p1"):
        _ = ids[0] < other
    with pytest.raises(InvalidArgumentError):
        sorted([*ids, other])
    one = bytes(ids[0])
    assert one[:4] == b"\x01\x02p0"
    assert len(one) == 2 + 2 + 8 + 8 + 4
    assert int.from_bytes(one[12:20], "big") == ids[0].position
    assert int.from_bytes(one[20:], "big") == ids[0].index
    for wrong in ("", "p0", "p0:1:2", "p0:1:2:3:x"):
        with pytest.raises(InvalidArgumentError):
            MessageID.parse(wrong)
    for damaged in (b"", one[:-1], one + b"\0", b"\x09" + one[1:]):
        with pytest.raises(InvalidArgumentError):
            MessageID.from_bytes(damaged)


async def test_ticks(log: WALAccesser) -> None:
    result = await log.raw_append(Message("orders", b""))
    milliseconds, logical = timestamp.parse(result.time_tick)
    assert timestamp.compose(milliseconds, logical) == result.time_tick == milliseconds << 18 | logical
    (message,) = await read_all(log, "orders")
    assert timestamp.to_datetime(result.time_tick) == message.append_time
    assert timestamp.parse(timestamp.from_datetime(message.append_time)) == (milliseconds, 0)
