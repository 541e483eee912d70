"""W13: workers of a shared cursor in processes of their own, on a served log: `python -m benchmarks.shared_cursor [--rounds N] [--part P]`.

Messages of 100 bytes are appended before. Each worker is a process with a consumer of one cursor (`shared=True`, `order="none"`) whose
handler computes for 1 ms, or does nothing. The clock runs from the start of all workers, which have connected before, until the server has
finished every message. `alone` is a consumer over the network that has the cursor for itself; `sqlite` are as many processes that select a
batch of rows with `UPDATE … RETURNING` in one transaction, and delete the batch in the next one, each synced (`synchronous=FULL`).
`jetstream` are as many processes with one durable pull consumer of a nats-server, which fetch as many messages at once and wait for their
double acks together.

Targets: two workers with 1 ms finish at least 1.6 times as much as one, on two cores that also run the server; with nothing, one worker
finishes at least 0.3 times as much as `alone`, and more than `sqlite` and `jetstream`. The rounds alternate, and the median counts.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from benchmarks.engines import JETSTREAM
from benchmarks.serving import child, why_not
from wal import Delivery, Message, open_wal

PAYLOAD: Final = b"x" * 100
BUSY_S: Final = 0.001
BUSY_MESSAGES: Final = 4_000
IDLE_MESSAGES: Final = 40_000
BULK: Final = 2000
TAKEN: Final = 100
VCHANNEL, CURSOR = "jobs", "workers"


async def compute(_delivery: Delivery) -> None:
    """Uses the processor for a millisecond of this process' time."""
    end = time.process_time() + BUSY_S
    while time.process_time() < end:
        pass


async def nothing(_delivery: Delivery) -> None: ...


def worker(line: Connection, location: str, vchannel: str, busy: bool, shared: bool) -> None:
    """Runs a consumer until it has caught up."""

    async def run() -> None:
        async with open_wal(location) as log:
            handler = compute if busy else nothing
            consumer = log.consume(vchannel, handler, cursor=CURSOR, order="none", shared=shared)
            async with log.consume("warm-up", nothing, cursor=CURSOR + "-warm-up", order="none", shared=shared) as warming:
                await warming.caught_up()
            line.send("ready")
            await asyncio.to_thread(line.recv)
            async with consumer:
                await consumer.caught_up()
                line.send(consumer.statistics().handled)
                await asyncio.to_thread(line.recv)

    asyncio.run(run())


def sqlite_worker(line: Connection, path: str, _vchannel: str, busy: bool, _shared: bool) -> None:
    """Takes and finishes rows until none is left."""
    rows = sqlite3.connect(path, isolation_level=None, timeout=60.0)
    rows.execute("PRAGMA synchronous=FULL")
    line.send("ready")
    line.recv()
    handled = 0
    while True:
        rows.execute("BEGIN IMMEDIATE")
        jobs = rows.execute(
            "UPDATE jobs SET status = 1 WHERE id IN (SELECT id FROM jobs WHERE status = 0 ORDER BY id LIMIT ?) RETURNING id, payload",
            (TAKEN,),
        ).fetchall()
        rows.execute("COMMIT")
        if not jobs:
            break
        for _ in jobs if busy else ():
            end = time.process_time() + BUSY_S
            while time.process_time() < end:
                pass
        rows.execute("BEGIN IMMEDIATE")
        rows.executemany("DELETE FROM jobs WHERE id = ?", [(number,) for number, _ in jobs])
        rows.execute("COMMIT")
        handled += len(jobs)
    line.send(handled)
    line.recv()


def jetstream_worker(line: Connection, address: str, _vchannel: str, busy: bool, _shared: bool) -> None:
    """Fetches and acknowledges messages until none is left."""
    import nats

    async def run() -> None:
        client = await nats.connect(address)
        pulling = await client.jetstream().pull_subscribe(VCHANNEL, durable=CURSOR, stream=VCHANNEL)
        line.send("ready")
        await asyncio.to_thread(line.recv)
        handled = 0
        while True:
            try:
                messages = await pulling.fetch(TAKEN, timeout=0.05)
            except TimeoutError:
                if not (await pulling.consumer_info()).num_pending:
                    break
                continue
            for _ in messages if busy else ():
                end = time.process_time() + BUSY_S
                while time.process_time() < end:
                    pass
            await asyncio.gather(*[message.ack_sync(timeout=60) for message in messages])
            handled += len(messages)
        line.send(handled)
        await asyncio.to_thread(line.recv)
        await client.close()

    asyncio.run(run())


async def fill_stream(address: str, messages: int) -> None:
    import nats
    from nats.js.api import AckPolicy, ConsumerConfig

    client = await nats.connect(address)
    jetstream = client.jetstream()
    await jetstream.add_stream(name=VCHANNEL, subjects=[VCHANNEL])
    config = ConsumerConfig(durable_name=CURSOR, ack_policy=AckPolicy.EXPLICIT, ack_wait=60, max_ack_pending=10 * TAKEN)
    await jetstream.add_consumer(VCHANNEL, config)
    for first in range(0, messages, TAKEN):
        await asyncio.gather(*[jetstream.publish(VCHANNEL, PAYLOAD, timeout=60) for _ in range(min(TAKEN, messages - first))])
    await client.close()


def timed(target: Callable[..., None], location: str, vchannel: str, *, workers: int, messages: int, busy: bool, shared: bool) -> float:
    """Returns the messages a second that this many processes finish."""
    context = multiprocessing.get_context("spawn")
    lines: list[Connection] = []
    processes = []
    for _ in range(workers):
        ours, theirs = context.Pipe()
        process = context.Process(target=target, args=(theirs, location, vchannel, busy, shared), daemon=True)
        process.start()
        lines.append(ours)
        processes.append(process)
    for line in lines:
        assert line.recv() == "ready"
    began = time.perf_counter()
    for line in lines:
        line.send("start")
    handled = sum([line.recv() for line in lines])
    seconds = time.perf_counter() - began
    for line, process in zip(lines, processes, strict=True):
        line.send("end")
        process.join()
    assert handled == messages, (handled, messages)
    return messages / seconds


async def fill(location: str, vchannel: str, messages: int) -> None:
    async with open_wal(location) as log:
        await log.append("warm-up", PAYLOAD)
        for first in range(0, messages, BULK):
            await log.append_bulk([Message(vchannel, PAYLOAD)] * min(BULK, messages - first))


def fill_table(path: Path, messages: int) -> None:
    rows = sqlite3.connect(path, isolation_level=None)
    rows.executescript("PRAGMA journal_mode=WAL; CREATE TABLE jobs (id INTEGER PRIMARY KEY, payload, status)")
    rows.execute("CREATE INDEX waiting ON jobs (status, id)")
    rows.execute("BEGIN")
    rows.executemany("INSERT INTO jobs (payload, status) VALUES (?, 0)", ((PAYLOAD,) for _ in range(messages)))
    rows.execute("COMMIT")
    rows.close()


def cells(counts: tuple[int, ...]) -> list[tuple[str, bool, int]]:
    """Returns what is measured: the kind, whether handlers compute, and the number of workers."""
    kinds = ("sqlite", "jetstream") if why_not(JETSTREAM) is None else ("sqlite",)
    busy = [("shared", True, count) for count in counts]
    idle = [
        ("alone", False, 1),
        *[("shared", False, count) for count in counts],
        *[(kind, False, count) for kind in kinds for count in counts],
    ]
    return [*busy, *idle]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--part", type=float, default=1.0, help="the part of the messages (1)")
    arguments = parser.parse_args()
    rates: dict[tuple[str, bool, int], list[float]] = {}
    for number in range(arguments.rounds):
        for cell in cells(tuple(arguments.workers)):
            rates.setdefault(cell, []).append(measure(cell, arguments.part))
        for (kind, busy, count), measured in rates.items():
            handler = "1 ms" if busy else "nothing"
            print(f"round {number + 1}: {kind:9} {count} workers, {handler:8} {statistics.median(measured):10,.0f}/s", flush=True)


def measure(cell: tuple[str, bool, int], part: float) -> float:
    """Returns the messages a second of one cell."""
    kind, busy, count = cell
    messages = max(1, round((BUSY_MESSAGES if busy else IDLE_MESSAGES) * part))
    with tempfile.TemporaryDirectory() as directory:
        if kind == "sqlite":
            path = Path(directory) / "jobs.db"
            fill_table(path, messages)
            return timed(sqlite_worker, str(path), VCHANNEL, workers=count, messages=messages, busy=busy, shared=False)
        if kind == "jetstream":
            from tests.servers.nats import NatsServer

            with NatsServer(folder=Path(directory)) as server:
                asyncio.run(fill_stream(server.address, messages))
                return timed(jetstream_worker, server.address, VCHANNEL, workers=count, messages=messages, busy=busy, shared=False)
        with child("wal", "standalone", str(Path(directory) / "log"), "--listen", "127.0.0.1:0") as address:
            location = f"wal://{address}"
            asyncio.run(fill(location, VCHANNEL, messages))
            return timed(worker, location, VCHANNEL, workers=count, messages=messages, busy=busy, shared=kind == "shared")


if __name__ == "__main__":
    main()
