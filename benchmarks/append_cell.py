"""One cell of the append benchmark: one engine, so many writers, for so long, in this process and no other.

`python -m benchmarks.append_cell '<json of a Cell>'` prints the json of a Measured. Writers are closed loops: each makes its message,
awaits its append, and goes on, as the handlers of a service would. What is measured begins after a warm-up that makes the first
files and finds the rhythm; nothing is tuned for the measurement (the collector of garbage runs as it likes).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import threading
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final, Literal

import msgspec

from benchmarks.sqlite_group import ALONE, MANY, SqliteGroup
from wal import Message, open_wal

__all__ = ["Cell", "Measured", "measure"]

LAG_PROBE_S: Final = 0.005
PROPERTIES: Final = {
    "tenant": "a-company-of-some-size",
    "trace": "4bf92f3577b34da6a3ce929d0e0e4736",
    "schema": "orders/v3",
    "source": "checkout-7f9c",
}


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure. `directory` must be empty and on a real disk."""

    engine: Literal["wal", "sqlite"]
    writers: int
    payload_bytes: int
    properties: int
    uvloop: bool
    seconds: float
    warm_up_s: float
    directory: str
    sqlite_defaults: bool = False
    """SQLite's own page size and checkpoint, however many writers there are."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured. `frames` are syncs of the disk; latencies are of one await, `loop_lag_p99_s` of a callback that is due now."""

    messages: int
    seconds: float
    rate: float
    p50_s: float
    p99_s: float
    cpu_s: float
    frames: int
    loop_lag_p99_s: float


Append = Callable[[int], Awaitable[object]]
"""Appends one message of this writer."""


async def measure(cell: Cell) -> Measured:
    """Runs the cell in this loop."""
    payload = random.Random(1).randbytes(cell.payload_bytes)
    properties = dict(list(PROPERTIES.items())[: cell.properties])
    engine = _wal if cell.engine == "wal" else _sqlite
    async with engine(Path(cell.directory), payload, properties, alone=cell.writers == 1 or cell.sqlite_defaults) as (
        append,
        frames,
    ):
        return await _load(cell, append, frames)


@contextlib.asynccontextmanager
async def _wal(
    directory: Path, payload: bytes, properties: dict[str, str], *, alone: bool
) -> AsyncIterator[tuple[Append, Callable[[], int]]]:
    async with open_wal(directory / "data") as log:
        raw_append = log.raw_append

        def append(writer: int) -> Awaitable[object]:
            return raw_append(Message("orders", payload, properties=properties))

        def frames() -> int:
            return sum(pchannel.frames for pchannel in log.statistics().pchannels)

        yield append, frames


@contextlib.asynccontextmanager
async def _sqlite(
    directory: Path, payload: bytes, properties: dict[str, str], *, alone: bool
) -> AsyncIterator[tuple[Append, Callable[[], int]]]:
    group = SqliteGroup(directory / "log.sqlite3", tuning=ALONE if alone else MANY)

    def append(writer: int) -> Awaitable[object]:
        return group.append("orders", payload, properties)

    try:
        yield append, lambda: group.commits
    finally:
        await asyncio.to_thread(group.close)


async def _load(cell: Cell, append: Append, frames: Callable[[], int]) -> Measured:
    """The writers, from a warm-up into the measured time."""
    clock = time.perf_counter
    latencies: list[array[float]] = [array("d") for _ in range(cell.writers)]
    measuring = False
    stopping = False

    async def write(writer: int, latency: array[float]) -> None:
        while not stopping:
            began = clock()
            await append(writer)
            if measuring:
                latency.append(clock() - began)

    tasks = [asyncio.ensure_future(write(writer, latency)) for writer, latency in enumerate(latencies)]
    try:
        await _pass(tasks, cell.warm_up_s)
        probe = _LagProbe(asyncio.get_running_loop())
        frames_before, cpu_before, began = frames(), time.process_time(), clock()
        measuring = True
        await _pass(tasks, cell.seconds)
        measuring = False
        seconds = clock() - began
        cpu = time.process_time() - cpu_before
        synced = frames() - frames_before
        lag = probe.stop()
    finally:
        stopping = True
        await asyncio.gather(*tasks)
    merged = sorted(value for latency in latencies for value in latency)
    return Measured(
        messages=len(merged),
        seconds=seconds,
        rate=len(merged) / seconds,
        p50_s=_percentile(merged, 0.5),
        p99_s=_percentile(merged, 0.99),
        cpu_s=cpu,
        frames=synced,
        loop_lag_p99_s=_percentile(sorted(lag), 0.99),
    )


class _LagProbe:
    """Asks the loop for a callback every `LAG_PROBE_S` from a thread, and keeps how long each had to wait.

    A timer of the loop would not do: uvloop's are whole milliseconds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lags: list[float] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lag-probe", daemon=True)
        self._thread.start()

    def stop(self) -> list[float]:
        self._stopped.set()
        return self._lags[:]

    def _run(self) -> None:
        while not self._stopped.wait(LAG_PROBE_S):
            self._loop.call_soon_threadsafe(self._called, time.perf_counter())

    def _called(self, asked: float) -> None:
        self._lags.append(time.perf_counter() - asked)


async def _pass(tasks: list[asyncio.Task[None]], seconds: float) -> None:
    """Lets the time pass; a writer that fails meanwhile ends the cell with its error."""
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()


def _percentile(ordered: list[float], fraction: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))] if ordered else float("nan")


def main() -> None:
    cell = msgspec.json.decode(sys.argv[1], type=Cell)
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if cell.uvloop:
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        measured = runner.run(measure(cell))
    sys.stdout.buffer.write(msgspec.json.encode(measured) + b"\n")


if __name__ == "__main__":
    main()
