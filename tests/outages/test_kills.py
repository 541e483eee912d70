"""kill -9 and SIGTERM of a server that several client processes load with every call that writes and reads."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
from pathlib import Path

import pytest

from tests.outages.client import END
from tests.outages.clients import Clients
from tests.outages.judge import judge
from tests.outages.report import Outcome, Report
from tests.outages.rounds import SIDES, create_vchannels
from tests.serve.servers import Child
from wal import Message, open_wal

ROUNDS = 1
ROUNDS_SOAK = 30
CLIENTS = 2

pytestmark = pytest.mark.one_loop


async def run(directory: Path, rounds: int, how: signal.Signals) -> dict[int, Report]:
    """Ends the server so often by this signal, then judges the log; returns what the clients reported."""
    seed = random.getrandbits(32)
    rng = random.Random(seed)
    server = await Child.start(directory, "--pchannels", "2")
    address = f"wal://{server.address}"
    try:
        async with open_wal(address) as log:
            await create_vchannels(log)
            async with Clients(address, SIDES, seed=seed, count=CLIENTS) as clients:
                await clients.each_makes(40)
                for _ in range(rounds):
                    await asyncio.sleep(rng.random() * 0.2)  # the moment is the point, nothing is waited for
                    server.process.send_signal(how)
                    assert await server.ended() == (0 if how is signal.SIGTERM else -how)
                    server = await Child.start(directory, listen=server.address)
                    await clients.each_makes(rng.randint(40, 200))
                await clients.stop_writers()
                for name in itertools.chain(*SIDES):
                    await log.raw_append(Message(name, END), idempotency_key="end")
                reports = await clients.ended()
        assert len(reports) == CLIENTS
        assert await server.stop() == 0
    finally:
        if server.process.runs:
            await server.kill()
    async with open_wal(directory) as log:
        await judge(log, SIDES, reports)
    return reports


async def test_killed_under_load(data_dir: Path, soak: int) -> None:
    reports = await run(data_dir, ROUNDS if soak == 1 else ROUNDS_SOAK, signal.SIGKILL)
    outcomes = [call.outcome for report in reports.values() for call in report.calls]
    assert outcomes.count(Outcome.DONE) > 100 * soak


async def test_stopped_under_load(data_dir: Path, soak: int) -> None:
    """SIGTERM finishes what is under way: nothing is unknown, and what was refused is sent again."""
    reports = await run(data_dir, ROUNDS if soak == 1 else ROUNDS_SOAK, signal.SIGTERM)
    unknown = [call for report in reports.values() for call in report.calls if call.outcome is Outcome.UNKNOWN]
    assert not unknown
