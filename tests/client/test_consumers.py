"""Consumers over the network: their server is killed, and a process that was stopped wakes up when another one has its cursor."""

from __future__ import annotations

import asyncio

import pytest

from tests.conftest import SOAK
from tests.processes import Line, Other
from tests.serve.servers import Child
from wal import Delivery, Log, open_wal

COUNT = 300


async def output(log: Log, name: str) -> list[int]:
    async with log.read(name, follow=False) as scanner:
        return [int(body.payload) async for _, body in scanner.bodies()]


async def test_consumer_outlives_its_server(server: Child, data_dir: object) -> None:
    tried: set[int] = set()
    third = [asyncio.Event() for _ in range(3)]

    async def handle(delivery: Delivery) -> None:
        assert delivery.attempt == 1
        tried.add(int(delivery.value))
        for number, event in enumerate(third):
            if len(tried) > number * COUNT // 3:
                event.set()
        await asyncio.sleep(0.001)
        delivery.append("out", delivery.value)

    async with open_wal(f"wal://{server.address}") as log:
        await log.append_txn("in", [b"%d" % number for number in range(COUNT)])
        async with log.consume("in", handle, cursor="worker") as consumer:
            for event in third[1:]:
                await event.wait()
                await server.kill()
                server = await Child.start(str(data_dir), listen=server.address)
            await consumer.caught_up()
        assert await output(log, "out") == list(range(COUNT))
    assert await server.stop() == 0


@pytest.mark.parametrize("run", range(10 if SOAK else 1))
async def test_stopped_process_saves_nothing_when_it_wakes(server: Child, run: int) -> None:
    async def consume(line: Line, address: str) -> None:
        """Consumes with a lease of a second, and prints each message that it has handled."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("wal.client.cursor_home.LEASE_MS", 1000)

            async def handle(delivery: Delivery) -> None:
                line.tell(int(delivery.value))
                await asyncio.sleep(0.002)
                delivery.append("out", delivery.value)

            async with open_wal(f"wal://{address}") as log, log.consume("in", handle, cursor="worker"):
                line.tell("ready")
                await line.hear()

    early = 2 * COUNT // 3
    async with open_wal(f"wal://{server.address}") as log:
        await log.append_txn("in", [b"%d" % number for number in range(early)])
        async with Other(consume, server.address) as first, Other(consume, server.address) as second:
            assert await first.hear() == "ready"
            assert await second.hear() == "ready"
            heard: list[int] = []
            """The process that has begun each message, in order."""

            async def listen(other: Other) -> None:
                while True:
                    await other.hear()
                    heard.append(other.pid)

            listening = [asyncio.ensure_future(listen(other)) for other in (first, second)]
            while len(heard) < COUNT // 3:
                await asyncio.sleep(0.005)
            stopped, other = (first, second) if heard[-1] == first.pid else (second, first)  # the other one waits
            await stopped.stop()
            before = heard.count(other.pid)
            await log.append_txn("in", [b"%d" % number for number in range(early, COUNT)])  # it may have handled all others
            while heard.count(other.pid) == before:
                await asyncio.sleep(0.01)
            stopped.cont()
            while len(await output(log, "out")) < COUNT:
                await asyncio.sleep(0.02)
            assert await output(log, "out") == list(range(COUNT))
            for task in listening:
                task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)
