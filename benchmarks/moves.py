"""The effect on appends when the processes of a cluster come and go: `python -m benchmarks.moves [--rounds N]`.

Three nodes and two coordinators serve 16 pchannels over one etcd and one Pulsar: the servers in WAL_TEST_PULSAR, WAL_TEST_PULSAR_ADMIN and
WAL_TEST_ETCD, or new ones. One writer for each pchannel awaits the append of one 1 KB message after the other. A row is an event in the
cluster. Its pause is the longest append during the event. `settled` is the time until every pchannel is ASSIGNED without an earlier holder.
The lifetime of a session is 10 s, as by default. Targets: a pause of 2 s for a planned move, of the lifetime and 5 s after a crash, of 1 s
when the leader is killed; and 16 pchannels in 10 s from three nodes to two, and back. A round takes about two minutes: a pchannel that was
moved for balance rests for one minute.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

from examples.flights.place import make_namespace
from tests.operate.cluster.processes import Cluster
from wal import Message, WALAccesser, open_wal
from wal.coordinator.plan import REST_S
from wal.errors import WALError

PCHANNELS: Final = 16
PAYLOAD_BYTES: Final = 1024
TTL_S: Final = 10.0
MOVED, CRASHED, LED, AWAY, BACK = "node drained", "node killed", "leader killed", "16 pchannels, 3 to 2 nodes", "16 pchannels, 2 to 3 nodes"
PAUSES_S: Final = {MOVED: 2.0, CRASHED: TTL_S + 5.0, LED: 1.0}
SETTLED_S: Final = {AWAY: 10.0, BACK: 10.0}


class Appends:
    """A writer for each pchannel, until it is stopped."""

    def __init__(self, log: WALAccesser) -> None:
        self.longest_s = 0.0
        """The longest append since the last `begin`, including running ones."""
        self.errors = 0
        self._log = log
        self._began: dict[int, float] = {}
        self._tasks = [asyncio.ensure_future(self._write(number)) for number in range(PCHANNELS)]

    def begin(self) -> None:
        self.longest_s = 0.0

    async def quiet(self) -> float:
        """Waits for the running appends, and returns the longest append."""
        now_s = time.monotonic()
        while any(began < now_s for began in self._began.values()):  # noqa: ASYNC110 - a poll costs the writers nothing
            await asyncio.sleep(0.01)
        return self.longest_s

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write(self, number: int) -> None:
        message, count = Message(f"orders-{number}", bytes(PAYLOAD_BYTES)), 0
        while True:
            began = self._began[number] = time.monotonic()
            try:
                await self._log.raw_append(message, idempotency_key=f"{number}-{count}")
            except WALError:
                self.errors += 1
            count += 1
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            await asyncio.sleep(0.005)


async def measured(appends: Appends, cluster: Cluster, happens: Callable[[], Awaitable[object]], nodes: int) -> tuple[float, float]:
    """Causes the event; returns the longest append meanwhile, and the time until `nodes` nodes have all pchannels, evenly."""
    appends.begin()
    began = time.monotonic()
    await happens()
    while True:
        status = await cluster.settled()
        counts = [each["pchannels"] for each in status["nodes"] if not each["drains"]]
        if len(counts) == nodes and max(counts) - min(counts) <= 1 and sum(counts) == PCHANNELS:
            break
    settled_s = time.monotonic() - began
    return await appends.quiet(), settled_s


async def rounds(count: int, broker: tuple[str, str], etcd: str) -> dict[str, list[tuple[float, float]]]:
    """Returns the pauses and the times of each row."""
    url, admin = broker
    name = f"bench-{secrets.token_hex(6)}"
    make_namespace(admin, f"public/{name}", None)
    rows: dict[str, list[tuple[float, float]]] = {row: [] for row in (MOVED, AWAY, BACK, LED, CRASHED)}
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(etcd, f"{url}/public/{name}", admin, "", Path(folder), name=name, pchannels=PCHANNELS)
        cluster.ttl_s = TTL_S
        try:
            await cluster.start()
            async with open_wal(cluster.root) as log:
                for number in range(PCHANNELS):
                    await log.create_vchannel(f"orders-{number}", pchannel=f"p{number}")
                appends = Appends(log)
                for _ in range(count):
                    await asyncio.sleep(REST_S)  # earlier, a moved pchannel would not be moved again for balance
                    node = await cluster.owner("p0")
                    address = node.address
                    away = await measured(appends, cluster, partial(cluster.order, "drain", cluster.root, address), 2)
                    rows[MOVED].append(away)
                    rows[AWAY].append(away)
                    back = await measured(appends, cluster, partial(cluster.order, "undrain", cluster.root, address), 3)
                    rows[BACK].append(back)
                    leader = await cluster.leader()
                    rows[LED].append(await measured(appends, cluster, partial(asyncio.to_thread, leader.kill), 3))
                    await asyncio.to_thread(leader.start)
                    node = await cluster.owner("p0")
                    rows[CRASHED].append(await measured(appends, cluster, partial(asyncio.to_thread, node.kill), 2))
                    await asyncio.to_thread(node.start)
                    await measured(appends, cluster, partial(asyncio.sleep, 0), 3)
                print(f"errors of callers: {appends.errors}")
                await appends.stop()
            for member in cluster.members:
                if member.running:
                    member.signal(signal.SIGTERM)
        finally:
            cluster.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.moves", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2, help="how often each of them happens (default 2)")
    options = parser.parse_args()
    from tests.servers import etcd, pulsar

    print(f"load before the run: {os.getloadavg()[0]:.1f}")
    with pulsar.started() as broker, etcd.started() as metadata:
        (address,) = metadata.values()
        servers = broker[pulsar.ADDRESS_VARIABLE], broker[pulsar.ADMIN_VARIABLE]
        rows = asyncio.run(rounds(options.rounds, servers, address))
    print(f"{'':<30}{'pause s':>10}{'settled s':>11}")
    for row, figures in rows.items():
        pause_s, settled_s = (statistics.median(each) for each in zip(*figures, strict=True))
        missed = pause_s > PAUSES_S.get(row, 1e9) or settled_s > SETTLED_S.get(row, 1e9)
        print(f"  {row:<28}{pause_s:>10.2f}{settled_s:>11.2f}{'  NOT MET' if missed else ''}  {[round(one, 2) for one, _ in figures]}")


if __name__ == "__main__":
    main()
