"""The calls of a log over the network that are not appends of single messages, each against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.serve.servers import Serving, serving
from wal import BroadcastMessage, Message, OwnerDescription, ProducerKey, ResourceKey, StartFrom, WALAccesser, bridge, errors, open_wal
from wal.rpc.connection import Connection


async def payloads(log: WALAccesser, vchannel: str) -> list[bytes]:
    async with log.read(vchannel, follow=False) as scanner:
        return [body.payload async for message in scanner for body in message.bodies()]


async def test_transactions_in_one_call(log: WALAccesser) -> None:
    result = await log.append_txn("orders", [b"1", b"2"], idempotency_key="k")
    again = await log.append_txn("orders", [b"3"], idempotency_key="k")
    assert again.duplicate
    assert again.message_id == result.message_id
    async with log.read("orders", follow=False) as scanner:
        assert [len(message.bodies()) async for message in scanner] == [2]
    responses = await log.append_messages(Message("a", b"1"), Message("a", b"2"), Message("b", b"3"))
    assert not any(isinstance(response, errors.WALError) for response in responses)
    assert responses[0] == responses[1] != responses[2]


async def test_bulks(log: WALAccesser) -> None:
    results = await log.append_bulk(Message(f"v{number % 5}", b"%d" % number) for number in range(100))
    assert len(results) == 100
    assert await payloads(log, "v3") == [b"%d" % number for number in range(3, 100, 5)]


async def test_bulk_to_a_vchannel_that_must_exist() -> None:
    async with serving(create_vchannels=False) as one, open_wal(f"wal://{one.address}") as log:
        with pytest.raises(errors.BulkAppendError, match="create_vchannel"):
            await log.append_bulk([Message("orders", b"1")])
        with pytest.raises(errors.ChannelNotExistError):
            await log.raw_append(Message("orders", b"1"))
        await log.create_vchannel("orders")
        await log.raw_append(Message("orders", b"2"))
        assert await payloads(log, "orders") == [b"2"]


async def test_vchannels(log: WALAccesser) -> None:
    created = await log.create_vchannel("orders", pchannel="p1")
    assert created.pchannel == "p1"
    assert await log.vchannels() == [created]
    with pytest.raises(errors.ChannelExistError):
        await log.create_vchannel("orders")
    await log.raw_append(Message("orders", b"old"))
    before = [log.append_nowait(Message("orders", b"before")) for _ in range(5)]
    dropping = asyncio.ensure_future(log.drop_vchannel("orders"))
    await asyncio.sleep(0)
    after = [log.append_nowait(Message("orders", b"after")) for _ in range(5)]
    await dropping
    await asyncio.gather(*before, *after)
    assert await payloads(log, "orders") == [b"after"] * 5
    with pytest.raises(errors.ChannelNotExistError):
        await log.drop_vchannel("nothing")


async def test_channels(log: WALAccesser) -> None:
    owner = OwnerDescription("ingest", "host:1", "for the test")
    names = await log.create_channels(owner, 3)
    assert [channel.owner for channel in await log.describe_channels()] == [owner] * 3
    await log.raw_append(Message(names[0], b"1"))
    await log.destroy_channels(names[:2])
    assert [channel.channel_name for channel in await log.describe_channels()] == names[2:]
    with pytest.raises(errors.ChannelNotExistError):
        await log.describe_channels(names)


async def test_cursors_and_truncation(log: WALAccesser) -> None:
    results = [await log.raw_append(Message("orders", b"%d" % number)) for number in range(6)]
    async with log.read("orders", cursor="billing") as scanner:
        for _ in range(3):
            await anext(scanner)
        await scanner.save()
    (info,) = await log.cursors()
    assert (info.name, info.vchannels) == ("billing", ("orders",))
    with pytest.raises(errors.InvalidArgumentError, match="billing"):
        await log.truncate(up_to=results[4].message_id)
    await log.truncate(up_to=results[1].message_id)
    with pytest.raises(errors.TruncatedError) as caught:
        async with log.read("orders", deliver_policy=StartFrom(results[0].message_id)) as gone:
            await anext(gone)
    assert caught.value.earliest == results[2].message_id
    async with log.read("orders", cursor="billing", follow=False) as resumed:
        assert [message.payload async for message in resumed] == [b"3", b"4", b"5"]
    assert any(holder.name == "billing" for report in await log.retention() for holder in report.holders)
    await log.delete_cursor("billing")
    assert await log.cursors() == []


async def test_cursor_at_the_end_of_a_journal(data_dir: object) -> None:
    async with serving(str(data_dir)) as one, open_wal(f"wal://{one.address}") as log:
        for number in range(3):
            await log.raw_append(Message("orders", b"%d" % number))
            async with log.read("orders", cursor="billing", follow=False) as scanner:
                assert [message.payload async for message in scanner] == [b"%d" % number]
                await scanner.save()


async def test_producers(log: WALAccesser) -> None:
    await log.raw_append(Message("orders", b"1"), idempotency_key=ProducerKey("p", 5))
    (producer,) = await log.producers()
    assert (producer.name, producer.last_sequence) == ("p", 5)
    await log.forget_producer("p")
    assert await log.producers() == []
    with pytest.raises(errors.InvalidArgumentError, match="is unknown"):
        await log.forget_producer("p")


async def test_ticks(log: WALAccesser) -> None:
    result = await log.raw_append(Message("orders", b"1"))
    assert await log.allocate_time_tick() > result.time_tick
    assert await log.get_latest_mvcc_timestamp_if_local("orders") >= result.time_tick


async def test_broadcasts(log: WALAccesser) -> None:
    key = ResourceKey("table", "t")
    names = [f"v{number}" for number in range(5)]
    result = await log.broadcast().append(BroadcastMessage(vchannels=names, payload=b"b", resource_keys=[key]))
    assert list(result.append_results) == names
    with pytest.raises(errors.ResourceAcquiredError) as caught:
        await log.broadcast().append(BroadcastMessage(vchannels=names, payload=b"c", resource_keys=[key]))
    assert caught.value.holder == result.broadcast_id
    (task,) = await log.broadcast().tasks()
    assert set(task.missing_acks) == set(names)
    waiting = asyncio.ensure_future(log.broadcast().block_until_resource_key_ack_all(key))
    for name in names:
        async with log.read(name, follow=False, auto_ack=True) as scanner:
            assert [message.payload async for message in scanner] == [b"b"]
    async with asyncio.timeout(60):
        await waiting
    assert await log.broadcast().tasks() == []


async def test_without_an_event_loop(log: WALAccesser, served: Serving) -> None:
    def use() -> list[bytes]:
        with bridge.blocking(f"wal://{served.address}") as blocking:
            blocking.raw_append(Message("orders", b"1"))
            with blocking.read("orders", follow=False) as scanner:
                return [message.payload for message in scanner]

    def iterated() -> list[bytes]:
        return [message.payload for message in bridge.iterate(f"wal://{served.address}", "orders", follow=False)]

    assert await asyncio.to_thread(use) == [b"1"]
    assert await asyncio.to_thread(iterated) == [b"1"]


async def test_read_of_one_page_takes_its_call_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that its client cancels after the page has gRPC log an error with a traceback at the server, in a race with the status."""
    whole: list[bool] = []
    responses = Connection.responses

    async def noted(connection: Connection, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        whole.append(False)
        async for response in responses(connection, *arguments, **options):
            yield response
        whole[-1] = True

    async with serving(pchannels=1) as node, open_wal(f"wal://{node.address}") as log:
        await log.append("v", b"1")
        monkeypatch.setattr(Connection, "responses", noted)
        async with log.read("v", follow=False) as scanner:
            assert [message.payload async for message in scanner] == [b"1"]
    assert whole == [True]
