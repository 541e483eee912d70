"""Uses that type checkers must accept, and the types that they infer. mypy and pyright check this file; it is never run."""

from __future__ import annotations

import asyncio
import concurrent.futures
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Unpack, assert_type

import msgspec
import pydantic

import wal
from wal.errors import BulkAppendError, StorageError, WALError


async def opening(location: str, anything: dict[str, Any], **overrides: Unpack[wal.SettingsOverrides]) -> None:
    async with wal.open_wal(location, pchannels=2, kv="etcd://root@127.0.0.1/r", pulsar_token=wal.Secret("t")) as log:
        assert_type(log, wal.WALAccesser)
    assert_type(await wal.open_wal(location, settings=wal.Settings(retention_s=5), retention_bytes=1 << 30), wal.WALAccesser)
    await wal.open_wal(location, read_only=True, **overrides)
    await wal.open_wal(location, **anything)
    wal.init(location, create_vchannels=False)
    wal.Settings.load("wal.toml", pulsar_token="t").replace(**overrides).replace(txn_keepalive=5)
    with wal.bridge.blocking(location, **overrides) as blocking:
        blocking.raw_append(wal.Message("orders", b"1"))


async def results(log: wal.WALAccesser, key: str | None, either: str | wal.ProducerKey | None) -> None:
    """Without a ProducerKey no field of a result is None, so no caller has to check for that."""
    message = wal.Message("orders", b"1")
    assert_type(await log.append("orders", b"1", properties={"a": "b"}, idempotency_key=key), wal.AppendResult)
    assert_type((await log.append("orders", b"1", idempotency_key=wal.ProducerKey("p", 1))).time_tick, int | None)
    assert_type(await log.raw_append(message), wal.AppendResult)
    assert_type(await log.raw_append(message, idempotency_key=key), wal.AppendResult)
    assert_type(log.append_nowait(message, barrier_time_tick=3), asyncio.Future[wal.AppendResult])
    result = await log.raw_append(message, idempotency_key="k")
    assert_type(result.message_id, wal.MessageID)
    assert_type(result.time_tick, int)
    assert_type(result.last_confirmed, wal.MessageID)
    log.read("orders", deliver_policy=wal.StartAfter(result.message_id), until_time_tick=result.time_tick)
    await log.truncate(up_to=result.last_confirmed)

    old = await log.raw_append(message, idempotency_key=wal.ProducerKey("p", 1))
    assert_type(old, wal.AppendResult | wal.ForgottenResult)
    assert_type(old.message_id, wal.MessageID | None)
    assert_type(old.time_tick, int | None)
    assert_type(old.duplicate, bool)
    if old.message_id is not None:
        log.read("orders", deliver_policy=wal.StartAfter(old.message_id))
    if isinstance(old, wal.AppendResult):
        assert_type(old.message_id, wal.MessageID | None)
    any_key = await log.raw_append(message, idempotency_key=either)
    assert_type(any_key.message_id, wal.MessageID | None)


async def transactions(log: wal.WALAccesser) -> None:
    async with log.txn("orders") as txn:
        await txn.append(b"1")
    assert_type(txn.result.message_id, wal.MessageID)
    by_hand: wal.Txn = await log.txn(vchannels=["orders"], idempotency_key="k")
    assert_type(await by_hand.commit(), wal.AppendResult)
    async with log.txn("orders", idempotency_key=wal.ProducerKey("p", 1)) as producers:
        assert_type(producers, wal.Txn[wal.AppendResult | wal.ForgottenResult])
    assert_type(producers.result.time_tick, int | None)
    assert_type(await log.append_txn("orders", [b"1", wal.Message("orders", b"2")]), wal.AppendResult)
    wide = await log.append_txn(["a", "b"], [], idempotency_key=wal.ProducerKey("p", 1))
    assert_type(wide.time_tick, int | None)


async def values(log: wal.WALAccesser) -> None:
    numbers = log.typed("numbers", int, version=2, upcast={1: str})
    assert_type(await numbers.append(5), wal.AppendResult)
    async with numbers.read(follow=False) as scanner:
        async for number in scanner:
            assert_type(number, int)
        async for number, body in scanner.bodies():
            assert_type((number, body.message_id), tuple[int, wal.MessageID])


class Order(msgspec.Struct):
    number: int


class Parcel(pydantic.BaseModel):
    weight: float


@dataclass
class Bill:
    cents: int


async def typed_writes(log: wal.WALAccesser, key: wal.ProducerKey, when: datetime) -> None:
    orders, parcels, bills = log.typed("orders", Order), log.typed("parcels", Parcel), log.typed("bills", Bill)
    assert_type((orders, parcels, bills), tuple[wal.TypedLog[Order], wal.TypedLog[Parcel], wal.TypedLog[Bill]])
    last = await orders.last()
    assert_type(last, wal.MessageID | None)
    assert_type(await orders.append(Order(1), expected_last=last, idempotency_key="k"), wal.AppendResult)
    assert_type(await orders.append(Order(1), idempotency_key=key), wal.AppendResult | wal.ForgottenResult)
    assert_type(await parcels.append(Parcel(weight=1), deliver_at=when), wal.ScheduledResult)
    assert_type(bills.append_nowait(Bill(5), barrier_time_tick=3), asyncio.Future[wal.AppendResult])
    assert_type(await bills.append_bulk([Bill(5), Bill(6)]), list[wal.AppendResult])
    assert_type(await parcels.append_txn((Parcel(weight=each) for each in (1, 2)), properties={"a": "b"}), wal.AppendResult)
    assert_type(await orders.append_txn([Order(1)], idempotency_key=key), wal.AppendResult | wal.ForgottenResult)
    async with orders.txn(keepalive=5, expected_last=None) as txn:
        assert_type(txn, wal.TypedTxn[Order, wal.AppendResult])
        await txn.append(Order(1), properties={"a": "b"})
        await txn.append_many([Order(2)])
    assert_type(txn.result, wal.AppendResult)
    by_hand = await orders.txn(idempotency_key=key)
    assert_type(await by_hand.commit(), wal.AppendResult | wal.ForgottenResult)
    async with log.txn(vchannels=["orders", "parcels"]) as wide:
        await wide.append(orders.message(Order(1)))
        await wide.append(parcels.message(Parcel(weight=1)))
    assert_type(await log.append("orders", b"1", expected_last=last), wal.AppendResult)


async def typed_reads(log: wal.WALAccesser) -> None:
    bills = log.typed("bills", Bill)

    async def each(bill: Bill) -> None:
        assert_type(bill.cents, int)

    bills.read(handler=each, auto_ack=True)
    async with bills.read(cursor="books", follow=False) as scanner:
        assert_type([bill.cents async for bill in scanner], list[int])
        async with bills.txn() as txn:
            txn.save(scanner)


async def typed_consumers(log: wal.WALAccesser, when: datetime) -> None:
    orders, parcels, bills = log.typed("orders", Order), log.typed("parcels", Parcel), log.typed("bills", Bill)

    async def pack(delivery: wal.Delivery[Order]) -> None:
        assert_type(delivery.value, Order)
        assert_type(delivery.value.number, int)
        delivery.append(parcels, Parcel(weight=delivery.value.number), deliver_at=when)
        delivery.append(bills, Bill(5), properties={"a": "b"})
        delivery.append("raw", b"bytes")

    async def pack_many(deliveries: list[wal.Delivery[Order]]) -> list[Exception | None]:
        return [wal.Retry(5) if delivery.value.number else None for delivery in deliveries]

    async def plain(delivery: wal.Delivery) -> None:
        assert_type(delivery, wal.Delivery[bytes])
        assert_type(delivery.value, bytes)

    def plain_many(deliveries: list[wal.Delivery]) -> None:
        assert_type(deliveries[0].value, bytes)

    async def anything(delivery: wal.Delivery[Any]) -> None:
        print(delivery.value)

    assert_type(orders.consume(pack, cursor="one"), wal.Consumer)
    orders.consume(pack_many, cursor="one", batch=10, order="none", concurrency=2)
    orders.consume(anything, cursor="one")
    log.consume("orders", pack, cursor="one", type=Order, dead_letter="dead")
    log.consume("orders", pack_many, cursor="one", type=orders.type, batch=10)
    log.consume("raw", plain, cursor="one", attempts=3)
    log.consume(["raw", "other"], plain_many, cursor="one", batch=10)
    log.consume("raw", lambda delivery: print(delivery.value.hex()), cursor="one")


async def bulks(log: wal.WALAccesser) -> None:
    try:
        await log.append_bulk([wal.Message("orders", b"1")])
    except BulkAppendError as error:
        assert_type([result.message_id for result in error.results], list[wal.MessageID])
        assert_type(error.outcome_unknown, bool)
        assert_type(error.outcomes[0], wal.AppendResult | WALError)
        await log.append_bulk(error.remaining)
        if isinstance(error, StorageError):
            raise


def blocking(location: str) -> None:
    message = wal.Message("orders", b"1")
    with wal.bridge.blocking(location) as log:
        assert_type(log.raw_append(message).message_id, wal.MessageID)
        assert_type(log.raw_append(message, idempotency_key=wal.ProducerKey("p", 1)).message_id, wal.MessageID | None)
        assert_type(log.append_nowait(message), concurrent.futures.Future[wal.AppendResult])
        with log.txn("orders") as txn:
            txn.append(b"1")
        assert_type(txn.result.time_tick, int)
        with log.txn("orders", idempotency_key=wal.ProducerKey("p", 1)) as producers:
            producers.append(b"1")
        assert_type(producers.result.time_tick, int | None)


def secrets(settings: wal.Settings) -> None:
    assert_type(settings.pulsar_token, str | wal.Secret | None)
    assert_type(wal.Secret("t").reveal(), str)
