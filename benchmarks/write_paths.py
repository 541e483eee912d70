"""Write paths: appends by the loop, by the thread and under `auto`, alone and beside busy processes.

The paths of a cell take turns, the order reversed every round; each run is a process of its own with a log of its own. The busy processes
only count. The target compares `auto` with the better of the two others, by the medians of all rounds; it is 0.9.

Run: python -m benchmarks.write_paths [--writers 1 16 256] [--busy 0 3] [--rounds 5] [--seconds 1]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from benchmarks.cell import Cell, CellError, Measured, Row, payload
from benchmarks.run import check_disk
from benchmarks.stores import log_path, vchannel_name
from benchmarks.writing import Load, closed_loops
from wal import Message, open_wal
from wal.storage.journal.loop_path import WritePath

PATHS: Final[tuple[WritePath, ...]] = ("loop", "thread", "auto")
WANTED: Final = 0.9
WARM_UP_S: Final = 1.0
"""Long enough for `auto` to have tried both paths."""


class Taken(msgspec.Struct, frozen=True):
    """One run: its measurement, and the path of small frames at its end."""

    measured: Measured
    path: str


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.write_paths", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--writers", type=int, nargs="+", default=[1, 16, 256], help="(1 16 256)")
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 3], help="the busy processes beside it (0 3)")
    parser.add_argument("--rounds", type=int, default=5, help="(5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="measured seconds a run (1)")
    parser.add_argument("--directory", default=".", help="where the logs are made and removed; a real disk (.)")
    parser.add_argument("--one", nargs=3, metavar=("CELL", "PATH", "BUSY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        cell, path, busy = options.one
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            result = runner.run(_measure(msgspec.json.decode(cell, type=Cell), path, int(busy)))
        sys.stdout.buffer.write(msgspec.json.encode(result))
        return
    place = Path(options.directory).resolve()
    check_disk(place)
    print(f"load before: {os.getloadavg()[0]:.1f}\n")
    print("| writers | busy processes | loop | thread | auto | auto / the better | p99 loop, thread, auto | auto took |")
    print("|---:|---:|---:|---:|---:|---:|---|---|")
    for writers in options.writers:
        for busy in options.busy:
            runs: dict[str, list[Taken]] = {path: [] for path in PATHS}
            for number in range(options.rounds):
                for path in PATHS if number % 2 == 0 else PATHS[::-1]:
                    runs[path].append(run_path(writers, path, busy, seconds=options.seconds, place=place))
            print(line_of(writers, busy, runs), flush=True)


def run_path(writers: int, path: str, busy: int, *, seconds: float, place: Path, warm_up_s: float = WARM_UP_S) -> Taken:
    """Runs one path in a process of its own, beside this many busy processes."""
    directory = tempfile.mkdtemp(prefix=".bench-", dir=place)
    row = Row(workload="w1", engines=(path,), writers=writers)
    cell = Cell(row=row, engine=path, seconds=seconds, warm_up_s=warm_up_s, directory=directory)
    command = [sys.executable, "-m", "benchmarks.write_paths", "--one", msgspec.json.encode(cell).decode(), path, str(busy)]
    try:
        os.sync()
        run = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, check=False)
    finally:
        shutil.rmtree(directory)
    if run.returncode:
        raise CellError(f"{writers} writers, {path}, {busy} busy processes:\n{run.stderr.decode(errors='replace')}")
    return msgspec.json.decode(run.stdout, type=Taken)


async def _measure(cell: Cell, path: WritePath, busy: int) -> Taken:
    data, name = payload(cell.row), vchannel_name(0)
    async with open_wal(str(log_path(cell.directory)), pchannels=1, write_path=path) as log:
        with _busy(busy):
            measured = await closed_loops(cell, Load(lambda _: log.raw_append(Message(name, data)), 1, None))
        return Taken(measured, log.statistics().pchannels[0].write_path)


@contextlib.contextmanager
def _busy(count: int) -> Iterator[None]:
    """Runs this many processes that only count."""
    processes = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def line_of(writers: int, busy: int, runs: dict[str, list[Taken]]) -> str:
    """Returns the line of the table for these runs of each path."""
    rates = {path: [one.measured.rate or 0.0 for one in runs[path]] for path in PATHS}
    medians = {path: statistics.median(rates[path]) for path in PATHS}
    ratio = medians["auto"] / max(medians["loop"], medians["thread"])
    cells = [f"{medians[path]:,.0f} ({min(rates[path]):,.0f} to {max(rates[path]):,.0f})" for path in PATHS]
    slowest = [f"{1000 * statistics.median([one.measured.p99_s or 0.0 for one in runs[path]]):.2f}" for path in PATHS]
    ends = [one.path for one in runs["auto"]]
    took = ", ".join(f"{path} {ends.count(path)}" for path in sorted(set(ends)))
    missed = "" if ratio >= WANTED else " MISSED"
    return f"| {writers} | {busy} | {' | '.join(cells)} | {ratio:.2f}{missed} | {', '.join(slowest)} ms | {took} |"


if __name__ == "__main__":
    main()
