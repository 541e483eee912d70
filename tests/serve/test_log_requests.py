"""What a log is, its ticks and ids, and its broadcasts, asked over the network."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broadcaster import BroadcastMessage, BroadcastState
from tests.serve.servers import Serving, connected, serving
from wal.errors import InvalidArgumentError, ResourceAcquiredError, UnknownOutcomeError
from wal.message import MessageType, ResourceKey
from wal.requests.broadcasts import AbortBroadcast, AckBroadcast, AppendBroadcast, AwaitResourceKey, BroadcastCounts, ListBroadcasts
from wal.requests.log import VERSION, DescribeLog
from wal.requests.vchannels import AllocateIds, AllocateTimeTicks
from wal.rpc.api import requests_pb2 as proto
from wal.rpc.connection import Connection
from wal.rpc.methods import SUBMIT

WAIT_S = 30.0
KEY = ResourceKey("collection", "7")


async def sent(connection: Connection, **request: Any) -> Any:
    """Sends a request as its message, whose values no client would send."""
    return await connection.call(SUBMIT, proto.SubmitRequest(**request), "asking")


async def append(connection: Connection, *vchannels: str, payload: bytes = b"x", keys: tuple[ResourceKey, ...] = (), **options: Any) -> Any:
    message = BroadcastMessage(vchannels=vchannels, payload=payload, resource_keys=keys, needs_ack=options.pop("needs_ack", bool(keys)))
    return await connection.submit(AppendBroadcast(message, options.pop("wait", False), options.pop("seen", 0)), **options)


async def test_log_describes_itself() -> None:
    async with serving(pchannels=3, retention_bytes=1 << 20, message_bytes_max=5_000) as served, connected(served.address) as connection:
        log = served.log
        told = await connection.submit(DescribeLog())
        assert told.version == VERSION
        assert (told.wal_name, told.frame_bytes_max) == (log.name, log.frame_bytes_max)
        assert [one.origin for one in told.pchannels] == [one.origin() for one in log.node.pchannels.values()]
        assert [one.term for one in told.pchannels] == [one.log.term for one in log.node.pchannels.values()]
        assert len(told.pchannels) == 3
        settings = told.settings.settings()
        assert (settings.retention_bytes, settings.message_bytes_max, settings.retention_s) == (1 << 20, 5_000, None)


async def test_ticks_ascend_and_are_above_what_the_client_has_seen(served: Serving, connection: Connection) -> None:
    first = await connection.submit(AllocateTimeTicks())
    some = await connection.submit(AllocateTimeTicks(count=1000))
    assert (first.count, some.count) == (1, 1000)
    assert some.first > first.first
    assert (await served.log.submit(AllocateTimeTicks())).first >= some.first + 1000
    seen = some.first + (1 << 30)  # four seconds
    assert (await connection.submit(AllocateTimeTicks(seen_time_tick=seen))).first > seen
    with pytest.raises(InvalidArgumentError, match=r"ahead of this clock, and 60\.0 s are allowed"):
        await connection.submit(AllocateTimeTicks(seen_time_tick=seen << 1))
    with pytest.raises(InvalidArgumentError, match="count=262145 is out of bounds"):
        await connection.submit(AllocateTimeTicks(count=262_145))


async def test_ids_are_given_once_also_across_restarts(data_dir: Any) -> None:
    given: list[int] = []
    for _ in range(2):
        async with serving(data_dir) as served, connected(served.address) as connection:
            asked = [connection.submit(AllocateIds(count=count)) for count in (1, 5, 300_000)]
            for answer in await asyncio.gather(*asked):
                given += range(answer.first, answer.first + answer.count)
    assert len(given) == len(set(given)) == 2 * 300_006
    assert min(given) == 1


async def test_broadcast_is_appended_acknowledged_and_counted(served: Serving, connection: Connection) -> None:
    seen = (await served.log.submit(AllocateTimeTicks())).first + (1 << 20)
    result = await append(connection, "a", "b", "c", keys=(KEY,), seen=seen)
    assert list(result.append_results) == ["a", "b", "c"]
    assert all(one.time_tick > seen for one in result.append_results.values())
    (task,) = await connection.submit(ListBroadcasts())
    assert (task.broadcast_id, task.state) == (result.broadcast_id, BroadcastState.WAIT_ACK)
    assert (task.missing_acks, task.resource_keys) == (("a", "b", "c"), (KEY,))

    once = asyncio.create_task(connection.submit(AwaitResourceKey(KEY)))
    everywhere = asyncio.create_task(connection.submit(AwaitResourceKey(KEY, everywhere=True)))
    await connection.submit(AckBroadcast(result.broadcast_id, "b"))
    await asyncio.wait_for(once, WAIT_S)
    assert not everywhere.done()
    for name in ("a", "c"):
        await connection.submit(AckBroadcast(result.broadcast_id, name))
    await asyncio.wait_for(everywhere, WAIT_S)
    assert await connection.submit(ListBroadcasts()) == ()
    counts = await connection.submit(BroadcastCounts())
    assert (counts.appended, counts.finished) == (1, 1)
    assert counts == served.log.broadcasts.statistics()


async def test_held_key_refuses_or_lets_wait(connection: Connection) -> None:
    first = await append(connection, "a", keys=(KEY,))
    with pytest.raises(ResourceAcquiredError) as refused:
        await append(connection, "b", keys=(KEY,))
    assert (refused.value.holder, list(refused.value.keys)) == (first.broadcast_id, [KEY])
    with pytest.raises(UnknownOutcomeError):  # its deadline passes: it leaves the line
        await append(connection, "b", keys=(KEY,), wait=True, timeout_s=0.3)
    waiting = asyncio.create_task(append(connection, "c", keys=(KEY,), wait=True))
    await connection.submit(AckBroadcast(first.broadcast_id, "a"))
    second = await asyncio.wait_for(waiting, WAIT_S)
    assert [task.broadcast_id for task in await connection.submit(ListBroadcasts())] == [second.broadcast_id]
    await connection.submit(AbortBroadcast(second.broadcast_id, "no"))
    assert await connection.submit(ListBroadcasts()) == ()


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
    insert = int(MessageType.INSERT)
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"vchannels": []}, {}, "vchannels is empty"),
        ({"message_type": 77_777}, {}, "message_type=77777 is not a MessageType of this version"),
        ({"message_type": int(MessageType.TIME_TICK)}, {}, "cannot be broadcast, since only the WAL itself"),
        ({"payload": b"x" * 1_048_577}, {}, "exceeds message_bytes_max=1048576"),
        ({"properties": {"_reserved": "1"}}, {}, "_reserved"),
        ({}, {"seen_time_tick": (1 << 64) - 1}, "ahead of this clock|out of bounds"),
        ({"resource_keys": [{}]}, {}, "domain and key must not be empty"),
        ({"vchannels": [f"v{number}" for number in range(16_385)]}, {}, "16385 vchannels exceeds broadcast_vchannels_max=16384"),
    ]
    for fields, options, words in cases:
        message = proto.BroadcastMessage(**{"vchannels": ["a"], "message_type": insert, **fields})
        with subtests.test(words):
            with pytest.raises(InvalidArgumentError, match=words):
                await sent(connection, append_broadcast=proto.AppendBroadcast(message=message, **options))
            assert not served.log.coordinator.vchannels.records
            assert not await connection.submit(ListBroadcasts())


async def test_unknown_broadcasts_are_refused_or_ignored(connection: Connection) -> None:
    await connection.submit(AckBroadcast(5, "a"))
    with pytest.raises(InvalidArgumentError, match="5"):
        await connection.submit(AbortBroadcast(5, "why not"))
    result = await append(connection, "a", keys=(KEY,))
    with pytest.raises(InvalidArgumentError, match="'other'"):
        await connection.submit(AckBroadcast(result.broadcast_id, "other"))
    with pytest.raises(InvalidArgumentError, match="domain and key must not be empty"):
        await sent(connection, await_resource_key=proto.AwaitResourceKey())
