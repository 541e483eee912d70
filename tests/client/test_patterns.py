"""Reads and consumers with a pattern over the network, while servers are killed and the log gets more pchannels."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SOAK
from tests.probes import payloads, read_all
from tests.serve.servers import Child, serving
from tests.servers.process import free_ports
from wal import Delivery, ImmutableMessage, Matching, ReadPosition, WALAccesser, bridge, open_wal
from wal.client.directory import RemoteDirectory
from wal.errors import InvalidArgumentError
from wal.read.options import ServedSelection, TickPosition
from wal.rpc.api import frames_pb2 as proto
from wal.runtime.threads import in_thread
from wal.serve.access import Access

ACCOUNTS = Matching("account-*")


async def spread(log: WALAccesser, first: int, past: int) -> None:
    for number in range(first, past):
        await log.append(f"account-{number % 7}", b"%d" % number, idempotency_key=f"{number}")
        await log.append("other", b"no", idempotency_key=f"{number}")


async def take(scanner: Any, count: int) -> list[ImmutableMessage]:
    return [await anext(scanner) for _ in range(count)]


def numbers(messages: list[ImmutableMessage]) -> list[int]:
    return [int(message.payload) for message in messages]


async def test_idle_position_survives_retention(tmp_path: Path) -> None:
    """A reader had seen the last tick of a segment, and the next one begins with a later tick, when retention drops what was read."""
    size = 1 << 20
    async with serving(tmp_path / "data", segment_bytes=size, retention_bytes=size) as served, open_wal(f"wal://{served.address}") as log:
        await spread(log, 0, 5)
        for _ in range(4):
            await log.append("other", bytes(size - 2000))
        pchannel = served.log.node.pchannels["p0"]
        ticks = {extent.end: extent.newest_tick for extent in pchannel.log.extents()}
        await served.log.node.retention.turn()
        position = TickPosition.at(ticks[pchannel.log.earliest[0]], "p0")
        assert await payloads(log, ACCOUNTS, resume=position) == []


async def test_open_read_takes_more_pchannels(tmp_path: Path) -> None:
    """The server opens the log with two more pchannels while a read waits: events on these come in the common order."""
    access = Access(listen=f"127.0.0.1:{free_ports(1)[0]}")
    location, place = f"wal://{access.listen}", tmp_path / "data"
    async with contextlib.AsyncExitStack() as stack:
        async with serving(place, access=access, pchannels=2):
            log = await stack.enter_async_context(open_wal(location))
            scanner = await stack.enter_async_context(log.read(ACCOUNTS))
            await spread(log, 0, 10)
            assert numbers(await take(scanner, 10)) == list(range(10))
            waiting = asyncio.ensure_future(take(scanner, 20))
        async with serving(place, access=access, pchannels=4):
            async with open_wal(location) as other:
                for number, pchannel in enumerate(("p2", "p3")):
                    await other.create_vchannel(f"account-new-{number}", pchannel=pchannel)
                for number in range(10, 30):
                    name = f"account-new-{number % 2}" if number % 3 else f"account-{number % 7}"
                    await other.append(name, b"%d" % number)
            assert numbers(await waiting) == list(range(10, 30))
            assert scanner.position is not None
            resume = ReadPosition.parse(str(scanner.position))
            await spread(log, 30, 31)
            assert numbers(await read_all(log, ACCOUNTS, resume=resume)) == [30]
            await stack.aclose()


async def test_read_begins_while_its_log_is_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pchannels are truncated up to the position of the read, after it was attached and before it has begun."""
    access = Access(listen=f"127.0.0.1:{free_ports(1)[0]}")
    location = f"wal://{access.listen}"
    async with serving(tmp_path / "data", access=access, pchannels=2), open_wal(location) as log, open_wal(location) as other:
        for number in range(2):
            await log.create_vchannel(f"account-{number}", pchannel=f"p{number}")
        results = [await log.append(f"account-{number % 2}", b"%d" % number) for number in range(20)]
        async with other.read(ACCOUNTS, follow=False) as scanner:
            assert numbers(await take(scanner, 12)) == list(range(12))
            resume = scanner.position
        attach = RemoteDirectory.attach_matching
        attached: list[Any] = []

        async def truncated(directory: RemoteDirectory, pattern: Matching) -> Any:
            attached.append(await attach(directory, pattern))
            if len(attached) == 1:
                for result in results[10:12]:
                    await other.truncate(up_to=result.message_id)
            return attached[-1]

        monkeypatch.setattr(RemoteDirectory, "attach_matching", truncated)
        assert numbers(await read_all(log, ACCOUNTS, resume=resume)) == list(range(12, 20))


async def test_read_and_consumer_outlive_killed_servers(tmp_path: Path) -> None:
    rounds, count = (20, 40) if SOAK else (2, 20)
    place = tmp_path / "data"
    server = await Child.start(place, "--pchannels", "3")
    handled: list[int] = []

    async def handle(delivery: Delivery) -> None:
        delivery.append("out", delivery.value)
        handled.append(int(delivery.value))

    async with open_wal(f"wal://{server.address}") as log:
        consumer = log.consume(ACCOUNTS, handle, cursor="sums", concurrency=3)
        async with log.read(ACCOUNTS) as scanner, consumer:
            seen: list[int] = []
            for number in range(rounds):
                appending = asyncio.ensure_future(spread(log, number * count, number * count + count))
                seen += numbers(await take(scanner, random.randrange(1, count)))
                await server.kill()
                server = await Child.start(place, listen=server.address)
                await appending
            seen += numbers(await take(scanner, rounds * count - len(seen)))
            await consumer.caught_up()
        assert seen == list(range(rounds * count))
        assert numbers(await read_all(log, ACCOUNTS)) == seen
        assert sorted(map(int, await payloads(log, "out"))) == seen
        assert set(handled) == set(seen)
        assert await log.peek("sums") == []
    await server.kill()


async def test_server_selects_frames_by_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 vchannels one matches: no frame without it is sent, and no body of another."""
    sizes: list[tuple[int, int]] = []
    async with serving(tmp_path / "data", pchannels=1) as server, open_wal(f"wal://{server.address}") as log:
        for number in range(64):
            await log.append(f"many-{number}", b"x" * 10_000)
        for pattern, expected in ((Matching("many-7"), 1), (Matching("many-*"), 64)):
            async with log.read(pattern, follow=False) as scanner:
                async for _ in scanner:
                    pass
                sizes.append((expected, scanner.statistics().frames))
    assert all(frames <= expected + 1 for expected, frames in sizes), sizes


async def test_dropped_vchannel_leaves_the_read_of_a_client(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(tmp_path / "data", pchannels=2))
        log, other = [await stack.enter_async_context(open_wal(f"wal://{server.address}")) for _ in range(2)]
        await spread(log, 0, 14)
        await log.drop_vchannel("account-3")
        expected = [number for number in range(14) if number % 7 != 3]
        assert numbers(await read_all(log, ACCOUNTS)) == expected
        assert numbers(await read_all(other, ACCOUNTS)) == expected
        await log.append("account-3", b"14")
        for client in (log, other):
            assert numbers(await read_all(client, ACCOUNTS)) == [*expected, 14]


async def test_position_beyond_the_log_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", pchannels=2) as server, open_wal(f"wal://{server.address}") as log:
        await spread(log, 0, 3)
        async with log.read(ACCOUNTS, cursor="sums") as scanner:
            with pytest.raises(InvalidArgumentError, match=r"above .*, the newest tick of the log"):
                await scanner.save(ReadPosition.parse(f"{(1 << 63)}@p0"))


async def test_server_keeps_the_cursor_of_a_blocking_read(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", pchannels=2) as server, open_wal(f"wal://{server.address}") as log:
        for number in range(10):
            await log.append(f"account-{number % 3}", b"%d" % number)

        def read(count: int) -> list[int]:
            with bridge.iterate(f"wal://{server.address}", ACCOUNTS, cursor="sums", timeout_s=30.0) as messages:
                got = numbers([next(messages) for _ in range(count)])
                messages.save()
            return got

        assert await in_thread(read, 4) == [0, 1, 2, 3]
        assert await in_thread(read, 6) == [4, 5, 6, 7, 8, 9]


def test_request_carries_the_pattern() -> None:
    request = proto.ReadFramesRequest(pattern="account-*")
    assert not request.HasField("names")
    assert ServedSelection(ACCOUNTS, lambda *_: True).pattern == Matching(request.pattern)
