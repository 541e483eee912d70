"""The cost of metrics at 256 writers: `python -m benchmarks.metrics [--rounds 12]`.

One process, one log, 256 writers of 1 KB. Slices of half a second with a collector that a thread scrapes every 100 ms, a hundred and fifty
times as often as Prometheus does by default, are interleaved with slices without one, so that the machine's other work affects both. The
output is the medians of rate and processor time a message, and their ratios; the target is 2 %. The counts of frames are in both.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import threading
import time
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest

from wal import Message, WALAccesser, open_wal
from wal.operate.metrics import register

WRITERS: Final = 256
SLICE_S: Final = 0.5
SCRAPE_S: Final = 0.1
TARGET: Final = 0.02


async def slice_of(log: WALAccesser, *, scraped: bool) -> tuple[float, float]:
    """Returns the rate, in messages a second, and the processor time of a message, in microseconds."""
    over, registry = threading.Event(), CollectorRegistry()
    collector = register(log, registry) if scraped else None

    def scrape() -> None:
        while not over.wait(SCRAPE_S):
            generate_latest(registry)

    scraper = threading.Thread(target=scrape)
    if scraped:
        scraper.start()
    count, began_s, cpu_s = 0, time.perf_counter(), time.process_time()

    async def write(vchannel: str) -> None:
        nonlocal count
        message = Message(vchannel, bytes(1_000))
        while time.perf_counter() - began_s < SLICE_S:
            await log.raw_append(message)
            count += 1

    await asyncio.gather(*(write(f"v{number % 16}") for number in range(WRITERS)))
    passed_s, used_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    over.set()
    if scraped:
        await asyncio.to_thread(scraper.join)
    if collector is not None:
        collector.close()
    return count / passed_s, 1e6 * used_s / count


async def measure(rounds: int, directory: str) -> bool:
    """Prints the medians and their ratios; returns whether the target is met."""
    measured: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    async with open_wal(directory, retention_bytes=1 << 30) as log:
        await slice_of(log, scraped=False)  # warms up
        for number in range(2 * rounds):
            scraped = bool(number % 2) ^ bool(number // 2 % 2)  # without, with, with, without, …
            measured[scraped].append(await slice_of(log, scraped=scraped))
    ratios = [with_cpu / without for (_, with_cpu), (_, without) in zip(measured[True], measured[False], strict=True)]
    for scraped, slices in measured.items():
        rate, cpu_us = (statistics.median(column) for column in zip(*slices, strict=True))
        print(
            f"{'scraped ten times a second' if scraped else 'not scraped':28} {rate:10,.0f} msg/s {cpu_us:6.2f} µs of processor a message"
        )
    ratio = statistics.median(ratios)
    print(f"processor time of a message, scraped to not scraped: {ratio:.3f} (target: at most {1 + TARGET:.2f})")
    return ratio <= 1 + TARGET


def main() -> int:
    """Measures in a directory of its own; returns 1 if the target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.metrics", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12, help="pairs of slices (12)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-metrics-") as directory:
        return 0 if asyncio.run(measure(arguments.rounds, f"{directory}/data")) else 1


if __name__ == "__main__":
    raise SystemExit(main())
