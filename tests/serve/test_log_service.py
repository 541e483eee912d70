"""LogService: what a log is, its ticks and ids, and its broadcasts, asked over the network."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broadcaster import BroadcastMessage, BroadcastState
from tests.serve.servers import Serving, connected, serving
from wal.errors import InvalidArgumentError, ResourceAcquiredError, UnknownOutcomeError
from wal.message import MessageType, ResourceKey
from wal.network import Method
from wal.rpc import broadcasts, methods
from wal.rpc import converters as reports
from wal.rpc.api import cluster_pb2 as proto
from wal.rpc.connection import Connection
from wal.rpc.converters import identity_from_proto

WAIT_S = 30.0
KEY = ResourceKey("collection", "7")


async def ask(connection: Connection, method: Method[Any, Any], request: Any, **options: Any) -> Any:
    return await connection.write(method, request, "asking", **options)


async def append(connection: Connection, *vchannels: str, payload: bytes = b"x", keys: tuple[ResourceKey, ...] = (), **options: Any) -> Any:
    message = BroadcastMessage(vchannels=vchannels, payload=payload, resource_keys=keys, needs_ack=options.pop("needs_ack", bool(keys)))
    request = broadcasts.broadcast_to_proto(message, wait=options.pop("wait", False), seen_time_tick=options.pop("seen", 0))
    answer = await ask(connection, methods.APPEND_BROADCAST, request, **options)
    return broadcasts.result_from_proto(message.vchannels, answer)


async def tasks(connection: Connection) -> list[Any]:
    answer = await ask(connection, methods.LIST_BROADCASTS, proto.ListBroadcastsRequest())
    return list(map(broadcasts.task_from_proto, answer.tasks))


async def test_log_describes_itself() -> None:
    async with serving(pchannels=3, retention_bytes=1 << 20, message_bytes_max=5_000) as served, connected(served.address) as connection:
        log = served.log
        told = await ask(connection, methods.DESCRIBE_LOG, proto.DescribeLogRequest())
        assert (told.wal_name, told.frame_bytes_max) == (log.name, log.frame_bytes_max)
        assert [identity_from_proto(one) for one in told.pchannels] == [one.origin() for one in log.node.pchannels.values()]
        assert [one.pchannel.term for one in told.pchannels] == [one.log.term for one in log.node.pchannels.values()]
        assert len(told.pchannels) == 3
        settings = reports.settings_from_proto(told.settings)
        assert (settings.retention_bytes, settings.message_bytes_max, settings.retention_s) == (1 << 20, 5_000, None)


async def test_ticks_ascend_and_are_above_what_the_client_has_seen(served: Serving, connection: Connection) -> None:
    first = await ask(connection, methods.ALLOCATE_TIME_TICKS, proto.AllocateRequest())
    some = await ask(connection, methods.ALLOCATE_TIME_TICKS, proto.AllocateRequest(count=1000))
    assert (first.count, some.count) == (1, 1000)
    assert some.first > first.first
    assert await served.log.allocate_time_tick() >= some.first + 1000
    seen = some.first + (1 << 30)  # four seconds
    assert (await ask(connection, methods.ALLOCATE_TIME_TICKS, proto.AllocateRequest(seen_time_tick=seen))).first > seen
    with pytest.raises(InvalidArgumentError, match=r"ahead of this clock, and 60\.0 s are allowed"):
        await ask(connection, methods.ALLOCATE_TIME_TICKS, proto.AllocateRequest(seen_time_tick=seen << 1))
    with pytest.raises(InvalidArgumentError, match="count=262145 is out of bounds"):
        await ask(connection, methods.ALLOCATE_TIME_TICKS, proto.AllocateRequest(count=262_145))


async def test_ids_are_given_once_also_across_restarts(data_dir: Any) -> None:
    given: list[int] = []
    for _ in range(2):
        async with serving(data_dir) as served, connected(served.address) as connection:
            asked = [ask(connection, methods.ALLOCATE_IDS, proto.AllocateRequest(count=count)) for count in (0, 5, 300_000)]
            for answer in await asyncio.gather(*asked):
                given += range(answer.first, answer.first + answer.count)
    assert len(given) == len(set(given)) == 2 * 300_006
    assert min(given) == 1


async def test_broadcast_is_appended_acknowledged_and_counted(served: Serving, connection: Connection) -> None:
    seen = await served.log.allocate_time_tick() + (1 << 20)
    result = await append(connection, "a", "b", "c", keys=(KEY,), seen=seen)
    assert list(result.append_results) == ["a", "b", "c"]
    assert all(one.time_tick > seen for one in result.append_results.values())
    (task,) = await tasks(connection)
    assert (task.broadcast_id, task.state) == (result.broadcast_id, BroadcastState.WAIT_ACK)
    assert (task.missing_acks, task.resource_keys) == (("a", "b", "c"), (KEY,))

    request = proto.AwaitResourceKeyRequest(key=broadcasts.key_to_proto(KEY))
    once = asyncio.create_task(ask(connection, methods.AWAIT_RESOURCE_KEY, request))
    everywhere = asyncio.create_task(ask(connection, methods.AWAIT_RESOURCE_KEY, proto.AwaitResourceKeyRequest(key=request.key, all=True)))
    await ask(connection, methods.ACK_BROADCAST, proto.AckBroadcastRequest(broadcast_id=result.broadcast_id, vchannel="b"))
    await asyncio.wait_for(once, WAIT_S)
    assert not everywhere.done()
    for name in ("a", "c"):
        await ask(connection, methods.ACK_BROADCAST, proto.AckBroadcastRequest(broadcast_id=result.broadcast_id, vchannel=name))
    await asyncio.wait_for(everywhere, WAIT_S)
    assert await tasks(connection) == []
    counts = await ask(connection, methods.GET_BROADCAST_STATISTICS, proto.ListBroadcastsRequest())
    assert (counts.appended, counts.finished) == (1, 1)
    assert counts == reports.broadcaster_to_proto(served.log.broadcasts.statistics())


async def test_held_key_refuses_or_lets_wait(connection: Connection) -> None:
    first = await append(connection, "a", keys=(KEY,))
    with pytest.raises(ResourceAcquiredError) as refused:
        await append(connection, "b", keys=(KEY,))
    assert (refused.value.holder, list(refused.value.keys)) == (first.broadcast_id, [KEY])
    with pytest.raises(UnknownOutcomeError):  # its deadline passes: it leaves the line
        await append(connection, "b", keys=(KEY,), wait=True, timeout_s=0.3)
    waiting = asyncio.create_task(append(connection, "c", keys=(KEY,), wait=True))
    await ask(connection, methods.ACK_BROADCAST, proto.AckBroadcastRequest(broadcast_id=first.broadcast_id, vchannel="a"))
    second = await asyncio.wait_for(waiting, WAIT_S)
    assert [task.broadcast_id for task in await tasks(connection)] == [second.broadcast_id]
    await ask(connection, methods.ABORT_BROADCAST, proto.AbortBroadcastRequest(broadcast_id=second.broadcast_id, reason="no"))
    assert await tasks(connection) == []


async def test_call_that_its_client_cancels_leaves_nothing_behind(served: Serving, connection: Connection) -> None:
    await append(connection, "a", keys=(KEY,))
    waiting = [asyncio.create_task(append(connection, "b", keys=(KEY,), wait=True)) for _ in range(5)]
    async with asyncio.timeout(WAIT_S):
        while served.log.broadcasts.statistics().waiting < 5:
            await asyncio.sleep(0.01)
        for call in waiting:
            call.cancel()
        while served.log.broadcasts.statistics().waiting:
            await asyncio.sleep(0.01)
    assert "b" not in served.log.coordinator.vchannels.records


async def test_bad_broadcast_is_refused(served: Serving, connection: Connection, subtests: pytest.Subtests) -> None:
    cases: list[tuple[proto.AppendBroadcastRequest, str]] = [
        (proto.AppendBroadcastRequest(payload=b"x", message_type=int(MessageType.INSERT)), "vchannels is empty"),
        (proto.AppendBroadcastRequest(vchannels=["a"], message_type=77_777), "message type 77777 is not one"),
        (
            proto.AppendBroadcastRequest(vchannels=["a"], message_type=int(MessageType.TIME_TICK)),
            "cannot be broadcast, since only the WAL itself",
        ),
        (
            proto.AppendBroadcastRequest(vchannels=["a"], message_type=int(MessageType.INSERT), payload=b"x" * 1_048_577),
            "over message_bytes_max=1048576",
        ),
        (proto.AppendBroadcastRequest(vchannels=["a"], message_type=int(MessageType.INSERT), properties={"_reserved": "1"}), "_reserved"),
        (
            proto.AppendBroadcastRequest(vchannels=["a"], message_type=int(MessageType.INSERT), seen_time_tick=(1 << 64) - 1),
            "ahead of this clock|out of bounds",
        ),
        (
            proto.AppendBroadcastRequest(vchannels=["a"], message_type=int(MessageType.INSERT), resource_keys=[{}]),
            "domain and key must not be empty",
        ),
    ]
    for request_, words in cases:
        with subtests.test(repr(request_)):
            with pytest.raises(InvalidArgumentError, match=words):
                await ask(connection, methods.APPEND_BROADCAST, request_)
            assert not served.log.coordinator.vchannels.records
            assert not await tasks(connection)


async def test_unknown_broadcasts_are_refused_or_ignored(connection: Connection) -> None:
    await ask(connection, methods.ACK_BROADCAST, proto.AckBroadcastRequest(broadcast_id=5, vchannel="a"))
    with pytest.raises(InvalidArgumentError, match="5"):
        await ask(connection, methods.ABORT_BROADCAST, proto.AbortBroadcastRequest(broadcast_id=5, reason="why not"))
    result = await append(connection, "a", keys=(KEY,))
    with pytest.raises(InvalidArgumentError, match="'other'"):
        await ask(connection, methods.ACK_BROADCAST, proto.AckBroadcastRequest(broadcast_id=result.broadcast_id, vchannel="other"))
    with pytest.raises(InvalidArgumentError):
        await ask(connection, methods.AWAIT_RESOURCE_KEY, proto.AwaitResourceKeyRequest())
