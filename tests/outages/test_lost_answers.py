"""Changes whose answer never comes: the error names an unknown outcome, and they can be repeated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

import pytest

from tests.client.conftest import served as served
from tests.client.test_supervision import engine
from tests.outages.proxy import Proxy
from tests.serve.servers import Serving
from wal import BroadcastMessage, Message, MessageID, OwnerDescription, ProducerKey, ResourceKey, WALAccesser, open_wal
from wal.errors import ChannelNotExistError, InvalidArgumentError, UnknownOutcomeError
from wal.read.scanner import Scanner


class World(NamedTuple):
    """A log before the changes: the ids of five messages, a reader after the second one, a broadcast, and a channel."""

    log: WALAccesser
    ids: list[MessageID]
    scanner: Scanner
    broadcast_id: int
    channel: str


async def truncate(world: World) -> None:
    await world.log.truncate(up_to=world.ids[0])


async def is_truncated(world: World) -> bool:
    async with world.log.read("orders", follow=False) as scanner:
        return [message.payload async for message in scanner] == [b"1", b"2", b"3", b"4"]


async def save(world: World) -> None:
    await world.scanner.save()


async def is_saved(world: World) -> bool:
    async with world.log.read("orders", cursor="reader") as scanner:
        return (await anext(scanner)).payload == b"2"


async def delete(world: World) -> None:
    await world.log.delete_cursor("reader")


async def is_deleted(world: World) -> bool:
    return await world.log.cursors() == []


async def acknowledge(world: World) -> None:
    await world.log.broadcast().ack(world.broadcast_id, "others")


async def abort(world: World) -> None:
    await world.log.broadcast().abort(world.broadcast_id, "nobody acknowledges it")


async def is_over(world: World) -> bool:
    return await world.log.broadcast().tasks() == []


async def drop(world: World) -> None:
    await world.log.drop_vchannel("orders")


async def is_dropped(world: World) -> bool:
    return "orders" not in [info.name for info in await world.log.vchannels()]


async def destroy(world: World) -> None:
    await world.log.destroy_channels([world.channel])


async def is_destroyed(world: World) -> bool:
    return world.channel not in [channel.channel_name for channel in await world.log.describe_channels()]


async def forget(world: World) -> None:
    await world.log.forget_producer("producer")


async def is_forgotten(world: World) -> bool:
    return await world.log.producers() == []


Change = Callable[[World], Coroutine[Any, Any, None]]


@pytest.mark.parametrize(
    ("change", "is_done", "repeated"),
    [
        (truncate, is_truncated, None),
        (save, is_saved, None),
        (delete, is_deleted, None),
        (acknowledge, is_over, None),
        (abort, is_over, None),
        (drop, is_dropped, ChannelNotExistError),
        (destroy, is_destroyed, ChannelNotExistError),
        (forget, is_forgotten, InvalidArgumentError),
    ],
)
async def test_change_without_an_answer(
    served: Serving,
    monkeypatch: pytest.MonkeyPatch,
    change: Change,
    is_done: Callable[[World], Awaitable[bool]],
    repeated: type[Exception] | None,
) -> None:
    """`repeated` is the error of the repetition, which means that the change was made already."""

    async def changed(log: WALAccesser, scanner: Scanner) -> World:
        ids = []
        for number in range(5):
            message_id = (await log.raw_append(Message("orders", b"%d" % number))).message_id
            assert message_id is not None
            ids.append(message_id)
        await log.raw_append(Message("others", b""), idempotency_key=ProducerKey("producer", 1))
        key = ResourceKey("test", "key")
        result = await log.broadcast().append(BroadcastMessage(vchannels=["others"], payload=b"", resource_keys=[key]))
        (channel,) = await log.create_channels(OwnerDescription("test"))
        await anext(scanner)
        await scanner.save()
        await anext(scanner)
        return World(log, ids, scanner, result.broadcast_id, channel)

    async with (
        Proxy(int(served.address.rpartition(":")[2])) as proxy,
        open_wal(f"wal://{proxy.address}") as log,
        log.read("orders", cursor="reader") as scanner,
    ):
        world = await changed(log, scanner)
        assert not await is_done(world)
        proxy.stall_one_way(up=False)
        connection = engine(log)._connection
        with monkeypatch.context() as patch, pytest.raises(UnknownOutcomeError, match="may have been carried out"):
            patch.setattr(connection, "timeout_s", 1.0)
            await change(world)
        proxy.flow()
        if repeated is None:
            await change(world)
        else:
            with pytest.raises(repeated):
                await change(world)
        assert await is_done(world)
