"""Readers that poll with a time-out shorter than a round trip: a cancelled pull leaves its fetch to the next one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Final

import pytest

from tests.outages.proxy import Proxy
from tests.rpc.server import until
from tests.serve.servers import Serving
from wal import Message, Scanner, WALAccesser, bridge, open_wal
from wal.api.append_options import append_all
from wal.client import remote_log
from wal.errors import ChannelNotExistError
from wal.requests.vchannels import DropVChannel
from wal.streams.msgstream.media import wal_consumer
from wal.streams.msgstream.media.wal_consumer import WalConsumer

POLL_S: Final = 0.004
TRIP_S: Final = 0.03
"""How long each direction of a round trip takes here."""
POLLS_MAX: Final = 400
"""Many more polls than the round trips of these reads last."""
COUNT: Final = 60
PAYLOADS: Final = [b"%d" % number for number in range(COUNT)]


class Longest(random.Random):
    """Delays everything by the whole delay of a proxy."""

    def random(self) -> float:
        return 1.0


@pytest.fixture
async def proxy(served: Serving) -> AsyncIterator[Proxy]:
    async with Proxy(int(served.address.rpartition(":")[2]), rng=Longest()) as one:
        yield one


@pytest.fixture
async def log(served: Serving, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WALAccesser]:
    """A client with a slow link to a log that has messages of several pages."""
    monkeypatch.setattr(remote_log, "PAGE_BYTES", 1 << 14)
    await append_all(served.log.appends, [Message("orders", payload, properties={"x": "y" * 2000}) for payload in PAYLOADS])
    async with open_wal(f"wal://{proxy.address}") as one:
        proxy.delay_s = TRIP_S
        yield one
        proxy.delay_s = 0.0


@pytest.mark.parametrize("entered", [False, True])
async def test_polls_get_every_message(log: WALAccesser, entered: bool) -> None:
    async def polled(scanner: Scanner, count: int = COUNT) -> list[bytes]:
        """Reads by polls; most of them are cancelled."""
        payloads: list[bytes] = []
        cancelled = 0
        while len(payloads) < count:
            try:
                async with asyncio.timeout(POLL_S):
                    payloads.append((await anext(scanner)).payload)
            except TimeoutError:
                cancelled += 1
                assert cancelled < POLLS_MAX, payloads
        assert cancelled
        return payloads

    scanner = log.read("orders", cursor="polls")
    if entered:
        await scanner.__aenter__()
    assert await polled(scanner) == PAYLOADS
    await scanner.save()
    await scanner.close()


async def test_polled_batches_get_every_message(log: WALAccesser) -> None:
    payloads: list[bytes] = []
    async with log.read("orders") as scanner:
        for _ in range(POLLS_MAX):
            try:
                async with asyncio.timeout(POLL_S):
                    async for page in scanner.batches():
                        payloads += [message.payload for message in page]
            except TimeoutError:
                pass
            if len(payloads) >= COUNT:
                break
    assert payloads == PAYLOADS


async def test_random_cancellations_lose_nothing(log: WALAccesser, proxy: Proxy) -> None:
    rng = random.Random(22)
    payloads: list[bytes] = []
    async with log.read("orders") as scanner:
        while len(payloads) < COUNT:
            pulling = asyncio.ensure_future(anext(scanner))
            await asyncio.wait([pulling], timeout=rng.choice((0.0, 0.001, TRIP_S, 4 * TRIP_S)))
            pulling.cancel()
            try:
                payloads.append((await pulling).payload)
            except asyncio.CancelledError:
                continue
    assert payloads == PAYLOADS


async def test_blocking_polls_get_every_message(log: WALAccesser, proxy: Proxy) -> None:
    def poll() -> list[bytes]:
        payloads: list[bytes] = []
        with bridge.iterate(f"wal://{proxy.address}", "orders", timeout_s=POLL_S) as messages:
            for _ in range(POLLS_MAX):
                try:
                    while len(payloads) < COUNT:
                        payloads.append(next(messages).payload)
                    return payloads
                except TimeoutError:
                    continue
        return payloads

    assert await asyncio.to_thread(poll) == PAYLOADS


@pytest.mark.parametrize("polling", ["caller", "consumer"])
async def test_message_stream_gets_every_message(polling: str, log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its consumer polls by itself, to move its cursor while the channel is quiet; so may its caller."""
    consumer = await WalConsumer.open(log, "orders", "polls", earliest=True, grid=None)
    if polling == "consumer":
        monkeypatch.setattr(wal_consumer, "QUIET_S", POLL_S)
    payloads: list[bytes] = []
    for _ in range(POLLS_MAX):
        try:
            async with asyncio.timeout(POLL_S if polling == "caller" else POLL_S * POLLS_MAX):
                payloads += [message.payload for message in await consumer.receive(COUNT)]
        except TimeoutError:
            continue
        if len(payloads) >= COUNT:
            break
    assert payloads == PAYLOADS
    await consumer.close()


async def test_close_ends_fetch(log: WALAccesser) -> None:
    before = asyncio.all_tasks()
    async with log.read("orders") as scanner:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await anext(scanner)
        assert {task.get_name() for task in asyncio.all_tasks()} > {"page of a scanner"}
    assert "page of a scanner" not in {task.get_name() for task in asyncio.all_tasks() - before}


async def test_close_ends_beginning(log: WALAccesser) -> None:
    scanner = log.read("orders")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(POLL_S):
            await anext(scanner)
    pulling = asyncio.ensure_future(anext(scanner, None))
    await asyncio.sleep(0)
    await scanner.close()
    assert await pulling is None
    assert "beginning of a read" not in {task.get_name() for task in asyncio.all_tasks()}


async def test_forgotten_scanner_ends_fetch(log: WALAccesser, proxy: Proxy) -> None:
    scanner = log.read("orders")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(POLL_S):
            await anext(scanner)
    assert "beginning of a read" in {task.get_name() for task in asyncio.all_tasks()}
    del scanner
    proxy.delay_s = 60.0
    await until(lambda: "beginning of a read" not in {task.get_name() for task in asyncio.all_tasks()})


async def test_drop_reaches_reader_that_began_alone(log: WALAccesser, served: Serving) -> None:
    """A read whose caller was cancelled begins all the same, and gets changes of its vchannel before the caller is back."""
    scanner = log.read("orders")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(POLL_S):
            await anext(scanner)
    await until(lambda: "beginning of a read" not in {task.get_name() for task in asyncio.all_tasks()})
    await served.log.submit(DropVChannel("orders"))
    await until(lambda: scanner._loop.ended)
    with pytest.raises(ChannelNotExistError):
        await anext(scanner)
