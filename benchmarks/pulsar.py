"""A log on Pulsar beside Pulsar's own asyncio API: `python -m benchmarks.pulsar [--quick]`.

256 and 4,096 writers each await the append of one 1 KB message after the other: through the log (`raw_append`, with all its work included),
and through a producer of `pulsar.asyncio` with its defaults (batches of up to 10 ms), with batches of 1 ms, and without batches. They take
turns, the order reversed every round, each in its own process, on its own topic of one broker: the broker in WAL_TEST_PULSAR and
WAL_TEST_PULSAR_ADMIN, or a new one. Targets, against the best of the three in the same round: 2 times at 256, 3 times at 4,096.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pulsar
import pulsar.asyncio
import uvloop

from wal import Message, open_wal

PAYLOAD_BYTES: Final = 1024
WARM_UP_S: Final = 1.0
TARGETS: Final = {256: 2.0, 4096: 3.0}
OURS: Final = "wal"
CLIENTS: Final[dict[str, dict[str, Any]]] = {
    "client as it comes": {},
    "client, 1 ms": {"batching_enabled": True, "batching_max_publish_delay_ms": 1},
    "client, no batches": {"batching_enabled": False},
}
CELL_TIMEOUT_S: Final = 120.0


async def drive(append: Callable[[], Awaitable[Any]], writers: int, seconds: float) -> dict[str, float]:
    """Runs the writers; returns the counts of acknowledged messages after the warm-up."""
    done = 0
    waits: list[float] = []
    measuring = False
    stop = False

    async def writer() -> None:
        nonlocal done
        while not stop:
            began = time.perf_counter()
            await append()
            if measuring:
                done += 1
                waits.append(time.perf_counter() - began)

    tasks = [asyncio.ensure_future(writer()) for _ in range(writers)]
    await asyncio.sleep(WARM_UP_S)
    measuring, began, cpu = True, time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    measuring, took, cpu = False, time.perf_counter() - began, time.process_time() - cpu
    stop = True
    await asyncio.gather(*tasks)
    waits.sort()
    return {
        "rate": done / took,
        "p50_ms": 1000 * waits[len(waits) // 2] if waits else float("nan"),
        "p99_ms": 1000 * waits[len(waits) * 99 // 100] if waits else float("nan"),
        "cpu_us": 1e6 * cpu / max(done, 1),
    }


async def ours(url: str, admin: str, namespace: str, writers: int, seconds: float) -> dict[str, float]:
    """Measures the log."""
    message = Message("orders", bytes(PAYLOAD_BYTES))
    with tempfile.TemporaryDirectory() as place:
        async with open_wal(f"{url}/{namespace}", kv=str(Path(place) / "kv"), pulsar_admin_url=admin) as log:
            return await drive(lambda: log.raw_append(message), writers, seconds)


async def theirs(url: str, namespace: str, options: dict[str, Any], writers: int, seconds: float) -> dict[str, float]:
    """Measures the client. Its queue is bounded like the log's: by more than the writers have in flight."""
    client = pulsar.asyncio.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        producer = await client.create_producer(f"persistent://{namespace}/plain", max_pending_messages=2 * writers + 1000, **options)
        payload = bytes(PAYLOAD_BYTES)
        return await drive(lambda: producer.send(payload), writers, seconds)
    finally:
        await client.close()


def cell(engine: str, writers: int, seconds: float, url: str, admin: str) -> dict[str, float]:
    """Measures one engine in this process."""
    namespace = f"public/bench-{secrets.token_hex(6)}"
    request = urllib.request.Request(f"{admin}/admin/v2/namespaces/{namespace}", b"{}", method="PUT")
    request.add_header("Content-Type", "application/json")
    urllib.request.urlopen(request, timeout=30).close()
    work = ours(url, admin, namespace, writers, seconds) if engine == OURS else theirs(url, namespace, CLIENTS[engine], writers, seconds)
    return uvloop.run(work)


def apart(engine: str, writers: int, seconds: float, url: str, admin: str) -> dict[str, float]:
    """Measures one engine in its own process."""
    command = [sys.executable, "-m", "benchmarks.pulsar", "--cell", json.dumps([engine, writers, seconds, url, admin])]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=CELL_TIMEOUT_S + seconds, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def compare(writers: int, rounds: int, seconds: float, url: str, admin: str) -> None:
    """Prints medians, and the ratio to the best of the client's in the same round."""
    engines = [OURS, *CLIENTS]
    results: dict[str, list[dict[str, float]]] = {engine: [] for engine in engines}
    for number in range(rounds):
        for engine in engines if number % 2 == 0 else reversed(engines):
            results[engine].append(apart(engine, writers, seconds, url, admin))
    print(f"\n{writers:,} writers, {PAYLOAD_BYTES} B        msg/s    p50 ms    p99 ms    cpu µs")
    for engine in engines:
        medians = [statistics.median(one[name] for one in results[engine]) for name in ("rate", "p50_ms", "p99_ms", "cpu_us")]
        print(f"  {engine:<24}{medians[0]:>10,.0f}{medians[1]:>10.2f}{medians[2]:>10.2f}{medians[3]:>10.1f}")
    ratios = [results[OURS][number]["rate"] / max(results[engine][number]["rate"] for engine in CLIENTS) for number in range(rounds)]
    ratio, target = statistics.median(ratios), TARGETS[writers]
    met = "" if ratio >= target else "  NOT MET"
    print(f"  to the best of the client's: {ratio:.2f} (wanted {target:g}){met}  {[round(one, 2) for one in ratios]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pulsar", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 rounds of 2 s instead of 5 of 5 s")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--writers", type=int, choices=sorted(TARGETS), help="only this many")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        print(json.dumps(cell(*json.loads(options.cell))))
        return
    from tests.servers.pulsar import ADDRESS_VARIABLE, ADMIN_VARIABLE, started

    print(f"load before the run: {os.getloadavg()[0]:.1f}")
    rounds, seconds = options.rounds or (2 if options.quick else 5), options.seconds or (2.0 if options.quick else 5.0)
    with started() as servers:
        for writers in [options.writers] if options.writers else TARGETS:
            compare(writers, rounds, seconds, servers[ADDRESS_VARIABLE], servers[ADMIN_VARIABLE])


if __name__ == "__main__":
    main()
