"""Uses that type checkers must accept, and the types that they infer. mypy and pyright check this file; it is never run."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import Any, Unpack, assert_type

from wal import (
    AppendResult,
    ForgottenResult,
    Message,
    MessageID,
    ProducerKey,
    Secret,
    Settings,
    SettingsOverrides,
    StartAfter,
    Txn,
    WALAccesser,
    bridge,
    init,
    open_wal,
)
from wal.errors import BulkAppendError, StorageError, WALError


async def opening(location: str, anything: dict[str, Any], **overrides: Unpack[SettingsOverrides]) -> None:
    async with open_wal(location, pchannels=2, kv="etcd://root@127.0.0.1/r", pulsar_token=Secret("t")) as log:
        assert_type(log, WALAccesser)
    assert_type(await open_wal(location, settings=Settings(retention_s=5), retention_bytes=1 << 30), WALAccesser)
    await open_wal(location, read_only=True, **overrides)
    await open_wal(location, **anything)
    init(location, create_vchannels=False)
    Settings.load("wal.toml", pulsar_token="t").replace(**overrides).replace(txn_keepalive=5)
    with bridge.blocking(location, **overrides) as blocking:
        blocking.raw_append(Message("orders", b"1"))


async def results(log: WALAccesser, key: str | None, either: str | ProducerKey | None) -> None:
    """Without a ProducerKey no field of a result is None, so no caller has to check for that."""
    message = Message("orders", b"1")
    assert_type(await log.append("orders", b"1", properties={"a": "b"}, idempotency_key=key), AppendResult)
    assert_type((await log.append("orders", b"1", idempotency_key=ProducerKey("p", 1))).time_tick, int | None)
    assert_type(await log.raw_append(message), AppendResult)
    assert_type(await log.raw_append(message, idempotency_key=key), AppendResult)
    assert_type(log.append_nowait(message, barrier_time_tick=3), asyncio.Future[AppendResult])
    result = await log.raw_append(message, idempotency_key="k")
    assert_type(result.message_id, MessageID)
    assert_type(result.time_tick, int)
    assert_type(result.last_confirmed, MessageID)
    log.read("orders", deliver_policy=StartAfter(result.message_id), until_time_tick=result.time_tick)
    await log.truncate(up_to=result.last_confirmed)

    old = await log.raw_append(message, idempotency_key=ProducerKey("p", 1))
    assert_type(old, AppendResult | ForgottenResult)
    assert_type(old.message_id, MessageID | None)
    assert_type(old.time_tick, int | None)
    assert_type(old.duplicate, bool)
    if old.message_id is not None:
        log.read("orders", deliver_policy=StartAfter(old.message_id))
    if isinstance(old, AppendResult):
        assert_type(old.message_id, MessageID | None)
    any_key = await log.raw_append(message, idempotency_key=either)
    assert_type(any_key.message_id, MessageID | None)


async def transactions(log: WALAccesser) -> None:
    async with log.txn("orders") as txn:
        await txn.append(b"1")
    assert_type(txn.result.message_id, MessageID)
    by_hand: Txn = await log.txn(vchannels=["orders"], idempotency_key="k")
    assert_type(await by_hand.commit(), AppendResult)
    async with log.txn("orders", idempotency_key=ProducerKey("p", 1)) as producers:
        assert_type(producers, Txn[AppendResult | ForgottenResult])
    assert_type(producers.result.time_tick, int | None)
    assert_type(await log.append_txn("orders", [b"1", Message("orders", b"2")]), AppendResult)
    wide = await log.append_txn(["a", "b"], [], idempotency_key=ProducerKey("p", 1))
    assert_type(wide.time_tick, int | None)


async def values(log: WALAccesser) -> None:
    numbers = log.typed("numbers", int, version=2, upcast={1: str})
    assert_type(await numbers.append(5), AppendResult)
    async with numbers.read(follow=False) as scanner:
        async for number in scanner:
            assert_type(number, int)
        async for number, body in scanner.bodies():
            assert_type((number, body.message_id), tuple[int, MessageID])


async def bulks(log: WALAccesser) -> None:
    try:
        await log.append_bulk([Message("orders", b"1")])
    except BulkAppendError as error:
        assert_type([result.message_id for result in error.results], list[MessageID])
        assert_type(error.outcome_unknown, bool)
        assert_type(error.outcomes[0], AppendResult | WALError)
        await log.append_bulk(error.remaining)
        if isinstance(error, StorageError):
            raise


def blocking(location: str) -> None:
    message = Message("orders", b"1")
    with bridge.blocking(location) as log:
        assert_type(log.raw_append(message).message_id, MessageID)
        assert_type(log.raw_append(message, idempotency_key=ProducerKey("p", 1)).message_id, MessageID | None)
        assert_type(log.append_nowait(message), concurrent.futures.Future[AppendResult])
        with log.txn("orders") as txn:
            txn.append(b"1")
        assert_type(txn.result.time_tick, int)
        with log.txn("orders", idempotency_key=ProducerKey("p", 1)) as producers:
            producers.append(b"1")
        assert_type(producers.result.time_tick, int | None)


def secrets(settings: Settings) -> None:
    assert_type(settings.pulsar_token, str | Secret | None)
    assert_type(Secret("t").reveal(), str)
