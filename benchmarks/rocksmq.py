"""RocksMQ compared with the bare binding: `python -m benchmarks.rocksmq [--quick]`.

256 writers await `produce` of one 1 KB message each, on 1 and on 64 channels, compared with a loop that writes 256 records of the same keys
and sizes in one batch and flushes the log, with the same options. The rounds alternate, each on a new database; the output is medians and
the ratio. Target: 0.6 of the bare rate.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import uvloop

from wal.streams.rocksmq import RocksMQ, RocksMQSettings
from wal.streams.rocksmq.keys import TurnWrites, data_prefix, number, record_key
from wal.streams.rocksmq.store import Store

WRITERS: Final = 256
PAYLOAD_BYTES: Final = 1024
TARGET: Final = 0.6


def bare(directory: Path, channels: int, seconds: float) -> float:
    """Returns the messages per second of one loop over write batches."""
    store = Store.open(directory, RocksMQSettings())
    prefixes = [data_prefix(f"channel-{index}") for index in range(channels)]
    payload, previous, done = bytes(PAYLOAD_BYTES), number(0), 0
    began = time.perf_counter()
    while (took_s := time.perf_counter() - began) < seconds:
        changes = TurnWrites()
        for index in range(done, done + WRITERS):
            changes.put(record_key(prefixes[index % channels], index), previous + payload)
        store.write(changes)
        done += WRITERS
    store.close()
    return done / took_s


def rocksmq(directory: Path, channels: int, seconds: float) -> float:
    """Returns the messages per second of this many writers, each of which awaits its own message."""
    return uvloop.run(_rocksmq(directory, channels, seconds))


async def _rocksmq(directory: Path, channels: int, seconds: float) -> float:
    payload, done = bytes(PAYLOAD_BYTES), 0
    async with await RocksMQ.open(directory) as mq:
        for index in range(channels):
            await mq.create_channel(f"channel-{index}")

        async def write(name: str) -> None:
            nonlocal done
            while time.perf_counter() < until:
                await mq.produce(name, [payload])
                done += 1

        began = time.perf_counter()
        until = began + seconds
        await asyncio.gather(*(write(f"channel-{index % channels}") for index in range(WRITERS)))
        return done / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rocksmq", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three short rounds")
    quick = parser.parse_args().quick
    rounds, seconds = (3, 1.0) if quick else (5, 4.0)
    engines: dict[str, Callable[[Path, int, float], float]] = {"bare": bare, "rocksmq": rocksmq}
    for channels in (1, 64):
        rates_by_engine: dict[str, list[float]] = {name: [] for name in engines}
        for index in range(rounds):
            for name in sorted(engines, reverse=bool(index % 2)):
                directory = Path(tempfile.mkdtemp(prefix=".bench-", dir="."))
                try:
                    rates_by_engine[name].append(engines[name](directory / "mq", channels, seconds))
                finally:
                    shutil.rmtree(directory)
        medians = {name: statistics.median(rates) for name, rates in rates_by_engine.items()}
        ratio = statistics.median(mine / theirs for mine, theirs in zip(rates_by_engine["rocksmq"], rates_by_engine["bare"], strict=True))
        print(
            f"{channels:3} channels: bare {medians['bare']:9,.0f}/s   rocksmq {medians['rocksmq']:9,.0f}/s   "
            f"ratio {ratio:.2f} (asked {TARGET})"
        )


if __name__ == "__main__":
    main()
