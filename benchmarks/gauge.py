"""Gauge: the cost of a period of time: seconds, processor time, bytes written to the device, lag of the loop.

Device bytes are the sectors that the block device under the directory reports as written (/sys/dev/block/…/stat): everything counts,
including the file system's own journal and the writes of other processes, so the machine must be quiet. /proc/self/io is unsuitable: for
writes through the page cache it counts whole folios, which can be a megabyte for a kilobyte.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

LAG_PROBE_S: Final = 0.005
SECTOR_BYTES: Final = 512
_SECTORS_WRITTEN: Final = 6
"""The field of a block device's `stat`; its sectors are of 512 bytes on every device."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost from the gauge's start to its stop. `loop_lag_p99_s` needs a loop, `device_bytes` a block device: otherwise None."""

    seconds: float
    cpu_s: float
    device_bytes: int | None
    loop_lag_p99_s: float | None


class Gauge:
    """Measures from its creation to `stop`: the device of `directory`, and the lag of the loop, if there is one.

    `cpu` returns the processor time so far, in seconds; by default that of this process.
    """

    def __init__(
        self, directory: str, loop: asyncio.AbstractEventLoop | None = None, *, cpu: Callable[[], float] = time.process_time
    ) -> None:
        self._probe = None if loop is None else _LagProbe(loop)
        self._directory = directory
        self._written = _written_bytes(directory)
        self._cpu_clock = cpu
        self._cpu = cpu()
        self._began = time.perf_counter()

    def stop(self) -> Cost:
        """Stops the gauge and returns the cost."""
        seconds = time.perf_counter() - self._began
        cpu = self._cpu_clock() - self._cpu
        written = _written_bytes(self._directory)
        device = None if written is None or self._written is None else written - self._written
        lags = [] if self._probe is None else sorted(self._probe.stop())
        return Cost(seconds=seconds, cpu_s=cpu, device_bytes=device, loop_lag_p99_s=percentile(lags, 0.99))


def percentile(ordered: Sequence[float], fraction: float) -> float | None:
    """Returns the value below which this fraction of the ascending values is; None without values."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))] if ordered else None


class _LagProbe:
    """Schedules a callback on the loop every `LAG_PROBE_S` from a thread, and records each one's delay.

    A timer of the loop is too coarse: uvloop's are whole milliseconds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lags: list[float] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lag-probe", daemon=True)
        self._thread.start()

    def stop(self) -> list[float]:
        self._stopped.set()
        self._thread.join()
        return self._lags[:]

    def _run(self) -> None:
        while not self._stopped.wait(LAG_PROBE_S):
            self._loop.call_soon_threadsafe(self._called, time.perf_counter())

    def _called(self, asked: float) -> None:
        self._lags.append(time.perf_counter() - asked)


def _written_bytes(directory: str) -> int | None:
    """Returns the bytes written so far to the block device of this directory; None without such a device."""
    device = os.stat(directory).st_dev
    try:
        fields = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()
    except FileNotFoundError:
        return None
    return int(fields[_SECTORS_WRITTEN]) * SECTOR_BYTES
