"""Appends on a condition over the network: retries after an unknown outcome, and a server that is killed."""

from __future__ import annotations

import asyncio
import struct

import pytest

from tests.serve.columns import columns_of
from tests.serve.servers import Child, Serving, connected
from tests.serve.test_produce import assigned, opened, outcomes
from wal import Message, MessageID, WALAccesser, open_wal
from wal.errors import ConflictError, InvalidArgumentError, UnknownOutcomeError
from wal.message import AppendResult
from wal.rpc.api import append_pb2


async def test_chains_through_kills_of_the_server(server: Child, data_dir: object) -> None:
    """Two writers of one vchannel go through kills of the server: each decides by `.last`, and nothing is written twice or over another."""
    kills = 3
    ACKED = 60
    current, acked = server, dict[bytes, MessageID]()
    unknown: set[bytes] = set()
    stopping = asyncio.Event()

    async def write(log: WALAccesser, name: str, *, keyed: bool) -> None:
        last, number = await log.last("orders"), 0
        while not stopping.is_set():
            payload = b"%s-%d" % (name.encode(), number)
            key = payload.decode() if keyed else None
            try:
                result = await log.raw_append(Message("orders", payload), expected_last=last, idempotency_key=key)
            except ConflictError as conflict:
                assert conflict.last != last
                last = conflict.last
            except UnknownOutcomeError:
                assert not keyed
                unknown.add(payload)
                last, number = await log.last("orders"), number + 1
            else:
                assert result.message_id is not None
                acked[payload] = last = result.message_id
                number += 1

    async with open_wal(f"wal://{server.address}") as log, open_wal(f"wal://{server.address}") as other:
        await log.create_vchannel("orders")
        async with asyncio.TaskGroup() as group:
            group.create_task(write(log, "keyed", keyed=True))
            group.create_task(write(other, "plain", keyed=False))
            for _ in range(kills):
                before = len(acked)
                while len(acked) < before + ACKED:
                    await asyncio.sleep(0.01)
                await current.kill()
                current = await Child.start(str(data_dir), listen=server.address)
            before = len(acked)
            while len(acked) < before + ACKED:
                await asyncio.sleep(0.01)
            stopping.set()
        async with log.read("orders", follow=False) as scanner:
            stored = {message.payload: message.message_id async for message in scanner}
        assert len(stored) == len({*stored.values()})
        assert acked.items() <= stored.items()
        assert set(stored) - set(acked) <= unknown
        assert await log.last("orders") == list(stored.values())[-1]
    await current.stop()


async def test_retry_after_an_unknown_outcome(served: Serving) -> None:
    """The client that sent the append is gone; another one sends it again, with its key and with what it expected then."""
    message = Message("orders", b"1")
    async with open_wal(f"wal://{served.address}") as log:
        future = log.append_nowait(message, expected_last=None, idempotency_key="once")
        first = await future
        await log.raw_append(Message("orders", b"2"), expected_last=first.message_id)
    async with open_wal(f"wal://{served.address}") as log:
        again = await log.raw_append(message, expected_last=None, idempotency_key="once")
        assert (again.duplicate, again.message_id) == (True, first.message_id)
        with pytest.raises(ConflictError) as caught:
            await log.raw_append(message, expected_last=None, idempotency_key="another")
        assert caught.value.last == await log.last("orders")


async def test_hostile_expectations(served: Serving) -> None:
    """A server answers expectations that contradict their request, and continues."""
    async with open_wal(f"wal://{served.address}") as log:
        last = (await log.raw_append(Message("orders", b"1"))).message_id
        (place,) = [info.pchannel for info in await log.vchannels() if info.name == "orders"]
    one = columns_of([Message("orders", b"2")])
    other, broken = {"other": append_pb2.ExpectedLast()}, {"orders": append_pb2.ExpectedLast(id=b"\x01")}
    no_id = append_pb2.Append(messages=one, expected_lengths=struct.pack("<I", 2), expected=b"\x01\x02")
    requests = [
        append_pb2.ProducerRequest(request_id=1, append=no_id),
        *[
            append_pb2.ProducerRequest(
                request_id=1,
                append_txn=append_pb2.AppendTxn(vchannels=["orders"], bodies=one, options=append_pb2.WriteOptions(expected_last=wrong)),
            )
            for wrong in (other, broken)
        ],
    ]
    async with connected(served.address) as connection:
        assignments = [await assigned(connection, number) for number in range(3)]
        stream = await opened(connection, next(one for one in assignments if one.name == place))
        for request in requests:
            await stream.write(request)
            for outcome in (await outcomes(stream, 1)).values():
                assert isinstance(outcome, InvalidArgumentError)
        stream.cancel()
    async with open_wal(f"wal://{served.address}") as log:
        assert await log.last("orders") == last
        result = await log.raw_append(Message("orders", b"2"), expected_last=last)
        assert isinstance(result, AppendResult)


async def test_each_message_of_a_request_is_judged(served: Serving) -> None:
    """Appends of one turn share a request: each has its own condition, and those before it count."""
    async with open_wal(f"wal://{served.address}") as log:
        await log.raw_append(Message("other", b"0"))
        futures = [
            log.append_nowait(Message("orders", b"1"), expected_last=None),
            log.append_nowait(Message("orders", b"2"), expected_last=None),
            log.append_nowait(Message("other", b"3")),
            log.append_nowait(Message("orders", b"4"), idempotency_key="k"),
        ]
        first, second, third, fourth = await asyncio.gather(*futures, return_exceptions=True)
        assert isinstance(second, ConflictError)
        assert all(isinstance(result, AppendResult) for result in (first, third, fourth))
        async with log.read("orders", follow=False) as scanner:
            assert [message.payload async for message in scanner] == [b"1", b"4"]
