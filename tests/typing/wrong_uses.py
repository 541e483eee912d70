"""Uses that a type checker has to refuse, each line with the code of mypy's error. mypy checks this file; nothing runs it."""

from __future__ import annotations

from wal import Message, ProducerKey, Secret, Settings, SettingsOverrides, StartAfter, Txn, WALAccesser, bridge, init, open_wal
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
