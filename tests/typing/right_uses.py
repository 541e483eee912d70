"""Uses that type checkers must accept, and the types that they infer. mypy and pyright check this file; it is never run."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import Any, Unpack, assert_type

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
