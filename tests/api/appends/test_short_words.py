"""The short words of appends beside those of the protocol: `append(vchannel, payload)`, several messages or an iterable, aliases."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from tests.probes import read_all
from wal import Message, MessageType, ProducerKey, WALAccesser
from wal.errors import InvalidArgumentError

pytestmark = pytest.mark.one_location("wal.api makes calls of raw_append of them")


@pytest.mark.parametrize("properties", [None, {}, {"customer": "ada"}, MappingProxyType({"customer": "ada"})])
async def test_append_writes_an_insert(log: WALAccesser, properties: Mapping[str, str] | None) -> None:
    result = await log.append("orders", b"created", properties=properties)
    (message,) = await read_all(log, "orders")
    assert (message.message_id, message.time_tick) == (result.message_id, result.time_tick)
    assert (message.vchannel, message.payload, message.message_type) == ("orders", b"created", MessageType.INSERT)
    assert message.properties == dict(properties or {})


@pytest.mark.parametrize("key", ["return-7", ProducerKey("till", 7)])
async def test_append_takes_keys(log: WALAccesser, key: Any) -> None:
    first = await log.append("orders", b"1", idempotency_key=key)
    again = await log.append("orders", b"2", idempotency_key=key)
    assert (again.duplicate, again.message_id) == (True, first.message_id)
    assert [message.payload for message in await read_all(log, "orders")] == [b"1"]


async def test_bad_arguments_write_nothing(log: WALAccesser) -> None:
    message = Message("orders", b"1")
    for arguments, options, text in (
        ((message, b"1"), {}, r"raw_append\(message\)"),
        (("orders", "text"), {}, "payload must be bytes, not str"),
        ((5, b"1"), {}, "vchannel must be a str"),
        (("orders", b"1"), {"properties": [("a", "b")]}, "properties"),
        (("orders", b"1"), {"idempotency_key": 5}, "idempotency_key"),
    ):
        with pytest.raises(TypeError, match=text):
            await log.append(*arguments, **options)
    for vchannel, properties in (("", None), ("orders", {"_schema": "1"})):
        with pytest.raises(InvalidArgumentError):
            await log.append(vchannel, b"1", properties=properties)
    assert await read_all(log, "orders") == []


async def test_several_messages_or_an_iterable(log: WALAccesser) -> None:
    one, two = Message("orders", b"1"), Message("orders", b"2")
    for call in (log.append_bulk(one, two), log.append_bulk([one, two]), log.append_bulk(iter((one, two)))):
        assert len(await call) == 2
    assert len(await log.append_bulk(one)) == 1
    for txn in (
        log.append_txn("txns", one.payload, Message("txns", b"2")),
        log.append_txn("txns", [b"1", b"2"]),
        log.append_txn("txns", b"1"),
    ):
        await txn
    assert [message.payload for message in await read_all(log, "orders")] == [b"1", b"2"] * 3 + [b"1"]
    assert [[body.payload for body in message.bodies()] for message in await read_all(log, "txns")] == [[b"1", b"2"], [b"1", b"2"], [b"1"]]
    with pytest.raises(TypeError, match="append_bulk takes one iterable of messages, or messages"):
        await log.append_bulk([one], two)
    with pytest.raises(TypeError, match="append_txn takes one iterable"):
        await log.append_txn("txns", [b"1"], b"2")
    with pytest.raises(TypeError):
        await log.append_txn("txns", "12")  # type: ignore[arg-type]


async def test_barrier_of_append_messages(log: WALAccesser) -> None:
    barrier = await log.allocate_time_tick()
    (result,) = (await log.append_messages(Message("orders", b"1"), barrier_time_tick=barrier)).unwrap()
    assert result.time_tick > barrier
    with pytest.raises(InvalidArgumentError, match="barrier_time_tick"):
        await log.append_messages(Message("orders", b"1"), barrier_time_tick=-1)


async def test_short_names_of_milvus_words(log: WALAccesser) -> None:
    result = await log.append("orders", b"1")
    assert log.backend == log.wal_name
    for call in (log.latest_tick, log.get_latest_mvcc_timestamp_if_local):
        assert await call("orders") >= result.time_tick
