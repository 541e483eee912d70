"""Typed payloads: values through the log, versions and upcasts, and payloads that cannot be decoded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from tests.probes import read_all
from wal import AppendResult, Delivery, Message, ProducerKey, WALAccesser
from wal.errors import ConflictError, InvalidArgumentError, InvalidTransactionStateError, PayloadError


class Order(msgspec.Struct):
    id: int
    note: str = ""


@dataclass
class Parcel:
    weight: float


class Plain:
    """A type that msgspec does not know."""


async def values(typed: Any, **options: Any) -> list[Any]:
    async with typed.read(follow=False, **options) as scanner:
        return [value async for value in scanner]


@pytest.mark.parametrize("codec", [None, "json", "msgpack"])
@pytest.mark.parametrize(("kind", "value"), [(Order, Order(7, "é")), (Parcel, Parcel(1.5)), (dict, {"a": [1]}), (int, 5), (str, "x")])
async def test_values_come_back(log: WALAccesser, kind: Any, value: Any, codec: Any) -> None:
    typed = log.typed("orders", kind, codec=codec)
    await typed.append(value, properties={"a": "b"})
    await typed.append_nowait(value)
    assert await values(typed) == [value, value]
    first, second = await read_all(log, "orders")
    assert (first.properties, second.properties) == ({"a": "b", "payload_version": "1"}, {"payload_version": "1"})


async def test_functions_are_a_codec(log: WALAccesser) -> None:
    typed = log.typed("orders", Plain, codec=(lambda value: b"plain", lambda payload: Plain()))
    await typed.append(Plain())
    assert [type(value) for value in await values(typed)] == [Plain]


async def test_upcasts_follow_each_other(log: WALAccesser) -> None:
    await log.append("orders", b'{"n": 1}')
    await log.typed("orders", dict, version=2, upcast={1: dict}).append({"number": 2})
    newest = log.typed(
        "orders", Order, version=3, upcast={1: lambda old: {"number": old["n"]}, 2: lambda old: {"id": old["number"], "note": "old"}}
    )
    await newest.append(Order(3))
    assert await values(newest) == [Order(1, "old"), Order(2, "old"), Order(3)]


@pytest.mark.parametrize(
    ("payload", "version", "text"),
    [(b"{", "1", "DecodeError"), (b'{"id": "x"}', "1", "ValidationError"), (b"{}", "2", "version '2'"), (b"{}", "x", "version 'x'")],
)
async def test_undecodable_payload_stops_the_read(log: WALAccesser, payload: bytes, version: str, text: str) -> None:
    orders = log.typed("orders", Order)
    await orders.append(Order(1))
    await log.append_txn("orders", b'{"id": 2}', Message("orders", payload, properties={"payload_version": version}), b'{"id": 4}')
    async with orders.read(follow=False, cursor="billing") as scanner:
        assert [await anext(scanner), await anext(scanner)] == [Order(1), Order(2)]
        for _ in range(2):
            with pytest.raises(PayloadError, match=text) as caught:
                await anext(scanner)
            assert caught.value.message is not None
            assert caught.value.message.payload == payload
        await scanner.save()
    async with orders.read(follow=False, cursor="billing") as scanner:
        assert await anext(scanner) == Order(2), "a position in the middle of a transaction is before it"


@pytest.mark.parametrize(
    ("version", "upcast", "missing"),
    [(2, {}, None), (3, {2: dict}, None), (3, {2: dict, 1: dict}, None), (3, {1: dict}, [2]), (5, {1: dict, 3: dict}, [2, 4])],
)
async def test_gaps_between_upcasts(log: WALAccesser, version: int, upcast: dict[int, Any], missing: list[int] | None) -> None:
    """They are found when the type is made; versions before the first upcast are not known, and reading one is an error."""
    if missing is not None:
        with pytest.raises(InvalidArgumentError, match=re.escape(f"none for {missing}: each leads to the next version, up to {version}")):
            log.typed("orders", dict, version=version, upcast=upcast)
        return
    orders = log.typed("orders", dict, version=version, upcast=upcast)
    await log.append("orders", b"{}", properties={"payload_version": "1"})
    if 1 in upcast:
        assert await values(orders) == [{}]
        return
    with pytest.raises(PayloadError, match="version '1' of dict, and known here are"):
        await values(orders)


async def test_bad_arguments_are_refused_at_once(log: WALAccesser) -> None:
    for options, text in (
        ({"version": 0}, "first version"),
        ({"version": 4, "upcast": {1: dict, 3: dict}}, r"none for \[2\]"),
        ({"version": 2, "upcast": {2: dict}}, "for version 2"),
        ({"codec": "yaml"}, "codec='yaml'"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            log.typed("orders", Order, **options)
    for kind, options in ((Plain, {}), (Order, {"version": "1"}), (Order, {"codec": 5}), (Order, {"version": 2, "upcast": {1: 5}})):
        with pytest.raises(TypeError):
            log.typed("orders", kind, **options)
    with pytest.raises(TypeError, match="Order is appended here"):
        await log.typed("orders", Order).append({"id": 1})  # type: ignore[call-overload]
    with pytest.raises(InvalidArgumentError, match="payload_version"):
        await log.typed("orders", Order).append(Order(1), properties={"payload_version": "7"})
    assert await read_all(log, "orders") == []


async def test_writes_have_the_options_of_the_log(log: WALAccesser) -> None:
    orders = log.typed("orders", Order)
    assert await orders.last() is None
    first = await orders.append(Order(1), expected_last=None, idempotency_key="k")
    assert (await orders.append(Order(1), expected_last=None, idempotency_key="k")).duplicate
    with pytest.raises(ConflictError):
        await orders.append(Order(9), expected_last=None)
    await orders.append_nowait(Order(2), expected_last=first.message_id, properties={"a": "b"})
    assert [type(result) for result in await orders.append_bulk(map(Order, (3, 4)), properties={"a": "c"})] == [AppendResult] * 2
    with pytest.raises(ConflictError):
        await orders.append_txn([Order(9)], expected_last=first.message_id)
    producer = ProducerKey("p", 1)
    whole = await orders.append_txn(
        [Order(5), Order(6)], expected_last=await orders.last(), idempotency_key=producer, properties={"a": "d"}
    )
    assert (await orders.append_txn([Order(9)], idempotency_key=producer)).duplicate
    assert await orders.last() == whole.message_id
    assert await values(orders) == [Order(number) for number in range(1, 7)]
    bodies = [body for message in await read_all(log, "orders") for body in message.bodies()]
    assert [body.properties.get("a") for body in bodies] == [None, "b", "c", "c", "d", "d"]


async def test_transactions_of_values(log: WALAccesser) -> None:
    orders = log.typed("orders", Order)
    async with orders.txn(expected_last=None, keepalive=5.0) as txn:
        await txn.append(Order(1), properties={"a": "b"})
        await txn.append_many(map(Order, (2, 3)))
        with pytest.raises(TypeError, match="Order is appended here"):
            await txn.append_many([Order(9), Parcel(1.0)])  # type: ignore[list-item]
    assert txn.context.keepalive == 5.0
    by_hand = await orders.txn()
    await by_hand.append(Order(9))
    await by_hand.rollback()
    with pytest.raises(InvalidTransactionStateError):
        print(by_hand.result)
    async with log.txn(vchannels=["orders", "parcels"]) as wide:
        await wide.append(orders.message(Order(4)))
        await wide.append(log.typed("parcels", Parcel).message(Parcel(1.5)))
    async with orders.read(cursor="billing", follow=False) as scanner:
        assert await anext(scanner) == Order(1)
        assert [await anext(scanner), await anext(scanner)] == [Order(2), Order(3)]
        async with orders.txn() as saving:
            saving.save(scanner)
    assert await values(orders, cursor="billing") == [Order(4)]
    with pytest.raises(ConflictError):
        async with orders.txn(expected_last=None) as refused:
            await refused.append(Order(9))


async def test_handler_gets_the_values(log: WALAccesser) -> None:
    numbers: list[int] = []

    async def later(order: Order) -> None:
        numbers.append(order.id)

    orders = log.typed("orders", Order)
    await orders.append_txn([Order(1), Order(2)])
    for handler in (later, lambda order: numbers.append(-order.id)):
        async with orders.read(handler=handler, follow=False) as scanner:
            await scanner.scanner.done()
    assert numbers == [1, 2, -1, -2]
    await log.append("orders", b"{")
    async with orders.read(handler=later, follow=False) as ended:
        await ended.scanner.done()
        assert isinstance(ended.scanner.error, PayloadError)


async def test_outputs_of_consumers_are_values(log: WALAccesser) -> None:
    orders, parcels = log.typed("orders", Order), log.typed("parcels", Parcel, codec="msgpack")

    async def pack(delivery: Delivery[Order]) -> None:
        if delivery.attempt == 1:
            delivery.append(parcels, Order(1))  # type: ignore[misc]
        delivery.append(parcels, Parcel(float(delivery.value.id)), properties={"a": "b"})
        delivery.append(parcels, Parcel(-1.0), deliver_at=datetime(2020, 1, 1, tzinfo=UTC))

    await orders.append(Order(7))
    async with orders.consume(pack, cursor="packing", backoff_s=(0.0, 0.0)) as consumer:
        await consumer.caught_up()
        assert (consumer.statistics().failed, consumer.statistics().handled) == (1, 1)
    assert sorted([parcel.weight for parcel in await values(parcels)]) == [-1.0, 7.0]


async def test_wrong_calls_are_refused_at_once(log: WALAccesser) -> None:
    orders = log.typed("orders", Order)
    when = datetime(2020, 1, 1, tzinfo=UTC)
    with pytest.raises(InvalidArgumentError, match="leave one of them out"):
        await orders.append(Order(1), deliver_at=when, expected_last=None)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="values must be an iterable of Order"):
        await orders.append_bulk(Order(1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="handler must be a callable"):
        orders.read(handler=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"async with orders\.txn"), orders.txn():  # type: ignore[attr-defined]
        pass
    assert await read_all(log, "orders") == []
