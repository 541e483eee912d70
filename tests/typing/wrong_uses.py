"""Uses that a type checker has to refuse, each line with the code of mypy's error. mypy checks this file; nothing runs it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pydantic

from wal import Delivery, Message, ProducerKey, Secret, Settings, SettingsOverrides, StartAfter, Txn, WALAccesser, bridge, init, open_wal
from wal.errors import WALError


async def settings_that_are_none(location: str, texts: dict[str, str]) -> None:
    open_wal(location, retention=5)  # E: call-arg
    open_wal(location, retention_s="5")  # E: arg-type
    open_wal(location, pchannels=1.5)  # E: arg-type
    open_wal(location, message_bytes_max=None)  # E: arg-type
    open_wal(location, kv=5)  # E: arg-type
    open_wal(location, settings={"pchannels": 2})  # E: arg-type
    open_wal(location, **texts)  # E: arg-type
    open_wal(5)  # E: arg-type
    init(location, retention=5)  # E: call-arg
    bridge.blocking(location, retention=5)  # E: call-arg
    Settings(retention=5)  # E: call-arg
    Settings(retention_s="5")  # E: arg-type
    Settings.load(retention=5)  # E: call-arg
    Settings().replace(retention_s="5")  # E: arg-type
    Settings().pchannels = 2  # E: misc
    overrides: SettingsOverrides = {"retention": 5}  # E: typeddict-unknown-key
    open_wal(location, **overrides)
    bridge.iterate(location, "orders", timeout="5")  # E: call-arg
    bridge.iterate(location, "orders", timeout_s="5")  # E: arg-type
    bridge.record_batches(location, "orders", rows=5)  # E: call-arg


async def results_that_may_be_forgotten(log: WALAccesser, key: ProducerKey) -> None:
    message = Message("orders", b"1")
    result = await log.raw_append(message, idempotency_key=key)
    log.read("orders", deliver_policy=StartAfter(result.message_id))  # E: arg-type
    await log.truncate(up_to=result.last_confirmed)  # E: arg-type
    print((await log.raw_append(message, idempotency_key=key)).time_tick + 1)  # E: operator
    async with log.txn("orders", idempotency_key=key) as txn:
        pass
    print(txn.result.time_tick + 1)  # E: operator
    print(log.read("orders").position.time_tick)  # E: union-attr
    plain: Txn = txn  # E: assignment
    print(plain)
    print(await log.raw_append(message, idempotency_key=5))  # E: call-overload


async def calls_that_do_not_exist(log: WALAccesser) -> None:
    await log.raw_append(b"1")  # E: call-overload
    await log.append("orders", "text")  # E: call-overload
    async with log.txn("orders") as txn:
        txn.result = None  # E: misc, assignment
    try:
        await log.append_bulk([b"1"])  # E: list-item
    except WALError as error:
        print(error.results)  # E: attr-defined
    log.raw_append(Message("orders", b"1"))  # E: unused-coroutine
    print(Secret("t") + "x")  # E: operator
    print(len(Secret("t")))  # E: arg-type


class Order(msgspec.Struct):
    number: int


class Parcel(pydantic.BaseModel):
    weight: float


@dataclass
class Bill:
    cents: int


async def values_of_another_type(log: WALAccesser) -> None:
    orders, parcels, bills = log.typed("orders", Order), log.typed("parcels", Parcel), log.typed("bills", Bill)
    await orders.append(Bill(5))  # E: call-overload
    await orders.append(Order(1), deliver_at=5)  # E: call-overload
    parcels.append_nowait(Order(1))  # E: call-overload
    await bills.append_bulk([Bill(1), 5])  # E: list-item
    await parcels.append_txn([Bill(1)])  # E: list-item
    await parcels.append_txn([Parcel(weight=1)], expected_last="x")  # E: call-overload
    async with orders.txn() as txn:
        await txn.append(Parcel(weight=1))  # E: arg-type
        await txn.append_many([b"1"])  # E: list-item
    await log.append_bulk([orders.message(5)])  # E: arg-type
    async with bills.read() as scanner:
        number: int = await anext(scanner)  # E: arg-type
        print(number)
    bills.read(handler=lambda bill: print(bill.euros))  # E: attr-defined
    await log.append("orders", b"1", expected_last="x")  # E: call-overload


async def handlers_of_another_type(log: WALAccesser) -> None:
    orders, parcels = log.typed("orders", Order), log.typed("parcels", Parcel)

    async def pack(delivery: Delivery[Order]) -> None:
        print(delivery.value.weight)  # E: attr-defined
        delivery.append(parcels, delivery.value)  # E: misc
        delivery.append("parcels", delivery.value)  # E: call-overload
        delivery.append(parcels, b"1")  # E: misc
        delivery.append("parcels", b"1", deliver_at=5)  # E: call-overload
        delivery.value = Order(1)  # E: misc

    async def plain(delivery: Delivery) -> None:
        print(delivery.value.number)  # E: attr-defined

    async def pack_many(deliveries: list[Delivery[Order]]) -> None:
        print(deliveries[0].value.weight)  # E: attr-defined

    parcels.consume(pack, cursor="one")  # E: arg-type
    orders.consume(plain, cursor="one")  # E: arg-type
    orders.consume(pack_many, cursor="one")  # E: arg-type
    orders.consume(pack, cursor="one", batch=5)  # E: arg-type
    orders.consume(pack, cursor="one", attempts="5")  # E: call-overload
    log.consume("orders", pack, cursor="one")  # E: arg-type
    log.consume("orders", pack, cursor="one", type=Parcel)  # E: arg-type
    log.consume("orders", plain, cursor="one", type=Order)  # E: arg-type
    log.consume("orders", pack_many, cursor="one", type=Order)  # E: arg-type
    with bridge.blocking("data/") as blocking:
        blocking.consume("orders", pack, cursor="one", type=Parcel)  # E: arg-type
