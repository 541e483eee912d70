"""`python -m benchmarks.operating [DIRECTORY]`: the speed of `wal verify`, the lag of `wal backup --follow`, and the cost of `archive=`.

Verify: a log of random payloads, out of the page cache, beside plain reads of the same files in the same rounds. With a disk that is faster
than one core computes checksums, the ratio is that of the processor. Follow: appends at half of the disk's rate of synced writes, into a
log whose backup goes to a directory of the same disk. The lag is the age of a backup's tick when its manifest is written. Archive: the
processor time of an append with `archive=`, until the archive has it, beside one without.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from wal import Message, open_wal
from wal.timestamp import parse

LOG_BYTES: Final = 512 << 20
FLOOR_BYTES: Final = 256 << 20
ROUNDS: Final = 3
FOLLOW_S: Final = 20.0
ARCHIVED_S: Final = 5.0
ARCHIVED_ROUNDS: Final = 7
WRITERS: Final = 64
_PAYLOAD: Final = os.urandom(64 << 10)
_CHUNK: Final = 4 << 20


async def fill(directory: Path) -> None:
    """Creates a log of LOG_BYTES."""
    async with open_wal(directory) as log:
        for _ in range(LOG_BYTES // len(_PAYLOAD) // 32):
            await log.append_bulk([Message("orders", _PAYLOAD)] * 32)


def forget(directory: Path) -> int:
    """Evicts the segments from the page cache; returns their bytes."""
    size = 0
    for path in directory.rglob("*.wal"):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        size += os.fstat(fd).st_size
        os.close(fd)
    return size


def read_rate(directory: Path) -> float:
    """Returns the bytes a second of plain sequential reads."""
    size, buffer, began = 0, bytearray(_CHUNK), time.perf_counter()
    for path in sorted(directory.rglob("*.wal")):
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                size += count
    return size / (time.perf_counter() - began)


def write_rate(directory: Path) -> float:
    """Returns the bytes a second of writes, each of which is synced."""
    chunk, path, began = os.urandom(_CHUNK), directory / "floor", time.perf_counter()
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    for _ in range(FLOOR_BYTES // _CHUNK):
        os.write(fd, chunk)
        os.fdatasync(fd)
    took = time.perf_counter() - began
    os.close(fd)
    path.unlink()
    return FLOOR_BYTES / took


async def verify_rate(directory: Path) -> tuple[float, float]:
    """Returns the bytes per second that `wal verify` prints, and those per second of processor time, its start included."""
    before = os.times()
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "wal", "verify", str(directory), "--json", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    output, _ = await child.communicate()
    row = json.loads(output.splitlines()[-1])
    after = os.times()
    processor_s = after.children_user - before.children_user + after.children_system - before.children_system
    return float(row["bytes"]) / float(row["seconds"]), float(row["bytes"]) / processor_s


async def lags(folder: Path, rate: float) -> list[float]:
    """Returns the age of each backup at its end, while the log grows at `rate` (bytes a second)."""
    ages: list[float] = []
    data, target = folder / "followed", folder / "target"
    async with open_wal(data) as log:
        await log.raw_append(Message("orders", b"begun"))
        command = [sys.executable, "-m", "wal", "backup", str(data), "--to", str(target), "--follow", "--keep", "3", "--json"]
        child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert child.stdout is not None

        begun = asyncio.Event()

        async def note() -> None:
            assert child.stdout is not None
            async for line in child.stdout:
                row = json.loads(line)
                if "tick" in row:
                    ages.append(time.time() - parse(row["tick"])[0] / 1000)
                    begun.set()
            begun.set()

        noting = asyncio.create_task(note())
        await begun.wait()  # the program has started
        ages.clear()
        began, written = time.monotonic(), 0
        while (passed := time.monotonic() - began) < FOLLOW_S:
            if written > rate * passed:
                await asyncio.sleep((written - rate * passed) / rate)
                continue
            await asyncio.gather(*(log.raw_append(Message("orders", _PAYLOAD)) for _ in range(16)))
            written += 16 * len(_PAYLOAD)
        sys.stdout.write(f"appended {written / (time.monotonic() - began) / 1e6:.0f} MB/s of {rate / 1e6:.0f} MB/s that were wanted\n")
        child.kill()
        await child.wait()
        await noting
    return ages


async def append_cost(folder: Path, **options: str) -> float:
    """Returns the processor time of an append of 1 KB by WRITERS, in µs."""
    message, appended = Message("orders", _PAYLOAD[:1024]), 0

    async def write(end_s: float) -> None:
        nonlocal appended
        while time.monotonic() < end_s:
            await log.raw_append(message)
            appended += 1

    async with open_wal(folder / "appended", **options) as log:  # type: ignore[arg-type]
        await log.raw_append(message)
        began = time.process_time()
        await asyncio.gather(*(write(time.monotonic() + ARCHIVED_S) for _ in range(WRITERS)))
        while (archive := log.statistics().archive) is not None and archive.lag_bytes:  # noqa: ASYNC110 - statistics have no event
            await asyncio.sleep(0.25)
        cost = (time.process_time() - began) / appended
    shutil.rmtree(folder / "appended")
    return cost * 1e6


async def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="wal-operating-", dir=sys.argv[1] if len(sys.argv) > 1 else None))
    try:
        await fill(folder / "log")
        ratios = []
        for number in range(ROUNDS):
            forget(folder / "log")
            floor = read_rate(folder / "log")
            forget(folder / "log")
            own, by_processor = await verify_rate(folder / "log")
            ratios.append(own / floor)
            rates = f"read {floor / 1e6:.0f} MB/s, verify {own / 1e6:.0f} MB/s, by processor time {by_processor / 1e6:.0f} MB/s"
            sys.stdout.write(f"round {number + 1}: {rates}, ratio {own / floor:.2f}\n")
        sys.stdout.write(f"verify: {statistics.median(ratios):.2f} of the reading rate (median of {ROUNDS})\n")
        shutil.rmtree(folder / "log")
        floor = write_rate(folder)
        ages = sorted(await lags(folder, floor / 2)) or [FOLLOW_S]
        sys.stdout.write(
            f"follow: {len(ages)} backups at half of {floor / 1e6:.0f} MB/s, late by {statistics.median(ages):.2f} s (median), "
            f"{ages[-1]:.2f} s (most)\n"
        )
        costs = []
        for _ in range(ARCHIVED_ROUNDS):
            costs.append((await append_cost(folder), await append_cost(folder, archive=str(folder / "archive"))))
            shutil.rmtree(folder / "archive")
        plain, archived = (statistics.median(column) for column in zip(*costs, strict=True))
        sys.stdout.write(f"archive: {archived:.1f} µs of processor time an append, {plain:.1f} without, ratio {plain / archived:.2f}\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    asyncio.run(main())
