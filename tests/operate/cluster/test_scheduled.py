"""Scheduled messages of a cluster whose nodes are killed: the next node that has their pchannel delivers them, each once."""

from __future__ import annotations

import contextlib
import signal
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from tests.operate.cluster.processes import Cluster
from wal import open_wal, timestamp


@pytest.mark.soak("it waits for the leases of killed nodes; the simulation has scheduled messages by default")
async def test_killed_node_loses_no_scheduled_message(cluster: Cluster) -> None:
    await cluster.start(coordinators=1, nodes=2)
    names = ("orders", "stock", "mails", "bills")
    async with open_wal(cluster.root) as log:
        due: dict[bytes, datetime] = {}
        for number in range(200):
            key = b"%d" % number
            result = await log.append(
                names[number % 4],
                key,
                deliver_at=datetime.now(UTC) + timedelta(milliseconds=2000 + 20 * number),
                idempotency_key=key.decode(),
            )
            due[key] = result.deliver_at
        async with contextlib.AsyncExitStack() as stack:
            scanners = [await stack.enter_async_context(log.read(name)) for name in names]
            cluster.nodes[0].signal(signal.SIGKILL)
            found: Counter[bytes] = Counter()
            for at, scanner in enumerate(scanners):
                for _ in range(at, 200, 4):
                    message = await anext(scanner)
                    found[message.payload] += 1
                    assert timestamp.to_datetime(message.time_tick) >= due[message.payload]
        assert found == Counter(dict.fromkeys(due, 1))
        assert [len(await log.scheduled(name)) for name in names] == [0, 0, 0, 0]
        again = [await log.append(names[number % 4], b"", deliver_at=due[b"0"], idempotency_key=str(number)) for number in range(200)]
        assert all(result.duplicate for result in again)
