"""A network that cuts, delays, refuses and ends connections under load, between two client processes and a server that keeps running."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.outages.client import END
from tests.outages.clients import Clients
from tests.outages.judge import judge
from tests.outages.proxy import Proxy
from tests.outages.report import Outcome
from tests.outages.rounds import SIDES, create_vchannels
from tests.serve.servers import child
from wal import Message, open_wal

pytestmark = pytest.mark.one_loop


async def test_bad_network_under_load(data_dir: Path, soak: int) -> None:
    """Each fault is followed by more calls of each client, so every client recovers from every fault."""
    # Each kind once; in the soak twenty times.
    FAULTS = 9

    async def cut(proxy: Proxy, rng: random.Random) -> None:
        proxy.cut()

    async def cut_a_request(proxy: Proxy, rng: random.Random) -> None:
        proxy.cut_after(20_000, up=True)

    async def cut_an_answer(proxy: Proxy, rng: random.Random) -> None:
        proxy.cut_after(20_000, up=False)

    async def slow_down(proxy: Proxy, rng: random.Random) -> None:
        proxy.delay_s = 0.1

    async def speed_up_and_cut(proxy: Proxy, rng: random.Random) -> None:
        proxy.delay_s = 0.0
        proxy.cut()

    async def end_requests(proxy: Proxy, rng: random.Random) -> None:
        proxy.end_one_way(up=True)

    async def end_answers(proxy: Proxy, rng: random.Random) -> None:
        proxy.end_one_way(up=False)

    async def refuse_for_a_while(proxy: Proxy, rng: random.Random) -> None:
        before = proxy.accepted
        proxy.refusing = True
        proxy.cut()
        async with asyncio.timeout(60):
            while proxy.accepted < before + 3:
                await asyncio.sleep(0.01)
        proxy.refusing = False

    async def stall_a_moment(proxy: Proxy, rng: random.Random) -> None:
        """What was on its way arrives late, or not at all."""
        proxy.stall()
        await asyncio.sleep(rng.random() * 0.3)
        if rng.random() < 0.5:
            proxy.flow()
        else:
            proxy.cut()

    kinds: list[Callable[[Proxy, random.Random], Awaitable[None]]] = [
        cut, cut_a_request, cut_an_answer, slow_down, speed_up_and_cut, end_requests, end_answers, refuse_for_a_while, stall_a_moment,
    ]  # fmt: skip

    seed = random.getrandbits(32)
    rng, faults = random.Random(seed), FAULTS if soak == 1 else 20 * FAULTS
    async with child(data_dir, "--pchannels", "2") as server, Proxy(int(server.address.rpartition(":")[2]), rng=rng) as proxy:
        async with open_wal(f"wal://{server.address}") as log:
            await create_vchannels(log)
            async with Clients(f"wal://{proxy.address}", SIDES, seed=seed, count=2) as clients:
                await clients.each_makes(10)
                for number in range(faults):
                    await kinds[number % len(kinds)](proxy, rng)
                    await clients.each_makes(10)
                await clients.stop_writers()
                for name in itertools.chain(*SIDES):
                    await log.raw_append(Message(name, END), idempotency_key="end")
                reports = await clients.ended()
        assert proxy.accepted > faults // 2
        assert await server.stop() == 0
    async with open_wal(data_dir) as log:
        await judge(log, SIDES, reports)
    outcomes = [call.outcome for report in reports.values() for call in report.calls]
    assert 0 < outcomes.count(Outcome.UNKNOWN) < outcomes.count(Outcome.DONE)
