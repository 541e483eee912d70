"""Opening: the duration of `await open_wal(...)`, after a writer was killed and in an empty directory. Imports are not counted.

    python -m benchmarks.opening              # a log of 1 GB, built once: about half a minute
    python -m benchmarks.opening --quick      # of 64 MB

A process builds the log: it appends keyed messages only, 8 KB each, to 1,024 vchannels. The log has 65,536 keys and 16 sequences of each of
4,096 producers, so that both windows are full, and the process continues until it is killed with -9. Every opening is a separate process
that also kills itself once the log is open, so each opening meets the files of a killed writer. Segments are evicted from the page cache
before each opening: a writer bypasses the cache, so they would not be there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import msgspec

import wal.node.local.log  # noqa: F401 - an opening would import it, and imports are not counted
from wal import Message, ProducerKey, WALAccesser, open_wal

RESULTS: Final = Path(__file__).parent / "results"
VCHANNELS: Final = 1_024
KEYS: Final = 65_536
PRODUCERS: Final = 4_096
SEQUENCES: Final = 16
CHUNK: Final = 512
TARGET_CRASHED_S: Final = 0.2
TARGET_EMPTY_S: Final = 0.05


class Opened(msgspec.Struct, frozen=True):
    """One opening: its elapsed seconds and processor seconds."""

    seconds: float
    cpu_s: float


def main() -> None:
    options = _options()
    if options.build:
        asyncio.run(_build(options.build, options.log_bytes, options.keys))
    elif options.open:
        asyncio.run(_open(options.open))
    else:
        _measure(options)


def _measure(options: argparse.Namespace) -> None:
    place = Path(tempfile.mkdtemp(prefix=".opening-", dir=options.directory))
    try:
        crashed, empty = place / "crashed", place / "empty"
        began = time.monotonic()
        _kill_a_writer(crashed, options.log_bytes, options.keys)
        built_s = time.monotonic() - began
        openings: dict[str, list[Opened]] = {"crashed": [], "empty": []}
        for _ in range(options.rounds):
            _leave_the_cache(crashed)
            openings["crashed"].append(_in_a_process("--open", crashed))
            openings["empty"].append(_in_a_process("--open", empty))
            shutil.rmtree(empty)
        size = sum(path.stat().st_size for path in crashed.rglob("*.wal"))
    finally:
        shutil.rmtree(place)
    rows = [_row("after kill -9", openings["crashed"], TARGET_CRASHED_S), _row("empty directory", openings["empty"], TARGET_EMPTY_S)]
    print(f"{'opening':<16} {'median ms':>10} {'least':>7} {'most':>7} {'cpu ms':>7} {'target':>7}")
    for row in rows:
        print(
            f"{row['opening']:<16} {row['median_ms']:>10.1f} {row['least_ms']:>7.1f} {row['most_ms']:>7.1f} {row['cpu_ms']:>7.1f} "
            f"{row['target_ms']:>7.0f}  {'met' if row['met'] else 'not met'}"
        )
    print(f"\n{size >> 20} MiB of segments, built in {built_s:.0f} s; {options.rounds} openings each")
    output = Path(options.output) if options.output else RESULTS / f"opening{'-quick' if options.quick else ''}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {
        "benchmark": "opening",
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version(), "load": os.getloadavg()[0]},
        "segment_bytes": size,
        "rounds": options.rounds,
        "rows": rows,
    }
    output.write_text(json.dumps(document, indent=1) + "\n")
    print(f"written to {output}")


def _row(name: str, opened: list[Opened], target_s: float) -> dict[str, Any]:
    seconds = [one.seconds for one in opened]
    median = statistics.median(seconds)
    return {
        "opening": name,
        "median_ms": median * 1e3,
        "least_ms": min(seconds) * 1e3,
        "most_ms": max(seconds) * 1e3,
        "cpu_ms": statistics.median(one.cpu_s for one in opened) * 1e3,
        "target_ms": target_s * 1e3,
        "met": median <= target_s,
        "each_ms": [second * 1e3 for second in seconds],
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.opening", description="How long opening a log takes.")
    parser.add_argument("--quick", action="store_true", help="a log of 64 MB, 3 openings")
    parser.add_argument("--rounds", type=int, help="openings of each kind (7)")
    parser.add_argument("--log-bytes", type=int, help="bytes of payload in the log (1 GB)")
    parser.add_argument("--keys", type=int, default=KEYS, help="keys, and as many sequences of producers; what fills both windows (65,536)")
    parser.add_argument("--directory", default=".", help="where the files are made and removed; a real disk (.)")
    parser.add_argument("--output", help="the json file (benchmarks/results/opening.json)")
    parser.add_argument("--build", help=argparse.SUPPRESS)
    parser.add_argument("--open", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.rounds = options.rounds or (3 if options.quick else 7)
    options.log_bytes = options.log_bytes or (64 << 20 if options.quick else 1 << 30)
    return options


def _kill_a_writer(directory: Path, log_bytes: int, keys: int) -> None:
    sizes = ["--log-bytes", str(log_bytes), "--keys", str(keys)]
    writer = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.opening", "--build", str(directory), *sizes],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
    )
    assert writer.stdout is not None
    line = writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    if line != b"full\n":
        raise SystemExit("the writer failed")


def _in_a_process(what: str, directory: Path) -> Opened:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.opening", what, str(directory)],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        check=False,
    )
    return msgspec.json.decode(run.stdout, type=Opened)


def _leave_the_cache(directory: Path) -> None:
    for path in directory.rglob("*.wal"):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


async def _open(directory: str) -> None:
    began, cpu = time.perf_counter(), time.process_time()
    await open_wal(directory)
    opened = Opened(time.perf_counter() - began, time.process_time() - cpu)
    os.write(1, msgspec.json.encode(opened))
    os.kill(os.getpid(), signal.SIGKILL)


async def _build(directory: str, log_bytes: int, keys: int) -> None:
    """Appends this many keys and sequences, reports it, and continues until it is killed."""
    log = await open_wal(directory)
    payload = bytes(log_bytes // (KEYS + PRODUCERS * SEQUENCES))
    number = 0
    while True:
        for first in range(0, keys, CHUNK * SEQUENCES):
            for at in range(first, first + CHUNK * SEQUENCES, CHUNK):
                await _keys(log, range(number + at, number + at + CHUNK), payload)
            sequence = (number + first) // (CHUNK * SEQUENCES)
            for at in range(0, PRODUCERS, CHUNK):
                await _sequences(log, range(at, at + CHUNK), 2 * sequence, payload)
                await _sequences(log, range(at, at + CHUNK), 2 * sequence + 1, payload)
        if not number:
            print("full", flush=True)
        number += keys


async def _keys(log: WALAccesser, numbers: range, payload: bytes) -> None:
    await asyncio.gather(
        *(log.raw_append(Message(f"vchannel-{number % VCHANNELS}", payload), idempotency_key=f"{number:040d}") for number in numbers)
    )


async def _sequences(log: WALAccesser, producers: range, sequence: int, payload: bytes) -> None:
    await asyncio.gather(
        *(
            log.raw_append(Message(f"vchannel-{number % VCHANNELS}", payload), idempotency_key=ProducerKey(f"producer-{number}", sequence))
            for number in producers
        )
    )


if __name__ == "__main__":
    main()
