"""The time of a fresh read of a log on Pulsar: `python -m benchmarks.pulsar_reading [--reads N]`.

A fresh read begins at a position without a reader: the log opens a reader of the topic, reads the fencing floor there, and reads the first
page. Three figures compare it with the part of Pulsar's client: opening a reader and reading one message, and seeking with an open reader.
They take turns, on the broker in WAL_TEST_PULSAR and WAL_TEST_PULSAR_ADMIN, or on a new one. Target: 10 ms from `log.read` to the first
message, median.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import secrets
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pulsar
import uvloop

from wal import Message, MessageID, StartFrom, WALAccesser, open_wal

MESSAGES: Final = 400
PAYLOAD_BYTES: Final = 1024
TARGET_MS: Final = 10.0


async def fresh(log: WALAccesser, start: MessageID) -> None:
    """Reads one message of the log."""
    async with log.read("orders", deliver_policy=StartFrom(start), follow=False) as scanner:
        await anext(scanner)


def opened(client: pulsar.Client, topic: str, start: pulsar.MessageId) -> None:
    """Opens a reader of Pulsar's client and reads one message."""
    reader = client.create_reader(topic, start, start_message_id_inclusive=True)
    reader.read_next(10_000)
    reader.close()


def sought(reader: pulsar.Reader, start: pulsar.MessageId) -> None:
    """Seeks with an open reader and reads one message."""
    reader.seek(start)
    reader.read_next(10_000)


async def measure(url: str, admin: str, reads: int) -> None:
    """Prints the medians."""
    namespace = f"public/bench-{secrets.token_hex(6)}"
    request = urllib.request.Request(f"{admin}/admin/v2/namespaces/{namespace}", b"{}", method="PUT")
    request.add_header("Content-Type", "application/json")
    await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=30).close())
    with tempfile.TemporaryDirectory() as folder:
        location = f"{url}/{namespace}"
        settings: dict[str, Any] = {"kv": str(Path(folder) / "kv"), "pulsar_admin_url": admin}
        message = Message("orders", bytes(PAYLOAD_BYTES))
        async with open_wal(location, **settings) as log:
            ids = [(await log.raw_append(message)).message_id for _ in range(MESSAGES)]
        client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        topic = f"persistent://{namespace}/p0"
        reader = client.create_reader(topic, pulsar.MessageId.earliest, start_message_id_inclusive=True)
        took: dict[str, list[float]] = {name: [] for name in ("fresh read of the log", "client: open", "client: seek")}

        def timed(name: str, began: float) -> None:
            took[name].append(1000 * (time.perf_counter() - began))

        async def in_thread(name: str, call: Callable[[], Any]) -> None:
            began = time.perf_counter()
            await asyncio.to_thread(call)
            timed(name, began)

        # The log that wrote them has them in memory: another one has to fetch them.
        async with open_wal(location, **settings) as log:
            for _ in range(reads):
                start = random.choice(ids)
                assert start is not None
                place = pulsar.MessageId(-1, start.position >> 64, start.position & ((1 << 64) - 1), -1)
                began = time.perf_counter()
                await fresh(log, start)
                timed("fresh read of the log", began)
                await in_thread("client: open", lambda place=place: opened(client, topic, place))  # type: ignore[misc]
                await in_thread("client: seek", lambda place=place: sought(reader, place))  # type: ignore[misc]
        client.close()
    for name, each in took.items():
        each.sort()
        print(f"{name:<24}median {statistics.median(each):7.1f} ms   p90 {each[len(each) * 9 // 10]:7.1f} ms")
    median = statistics.median(took["fresh read of the log"])
    print(f"wanted: {TARGET_MS:g} ms{'' if median <= TARGET_MS else '  NOT MET'}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pulsar_reading", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--reads", type=int, default=60)
    options = parser.parse_args()
    from tests.servers.pulsar import ADDRESS_VARIABLE, ADMIN_VARIABLE, started

    print(f"load before the run: {os.getloadavg()[0]:.1f}")
    with started() as servers:
        uvloop.run(measure(servers[ADDRESS_VARIABLE], servers[ADMIN_VARIABLE], options.reads))


if __name__ == "__main__":
    main()
