"""A consumer that is killed with SIGKILL and continues exactly where it was.

    python -m examples.resume_after_crash [directory]      (default: data/resume_after_crash/)

A worker process adds up the numbers on vchannel `numbers` and stores the sum *together with* the scanner's position, in one file
that is replaced by rename. Killed at any moment, it continues from the file: no number is added twice and none is omitted.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from wal import Message, ReadPosition, open_wal

NUMBERS = 2000
PAGE = 20
KILL_AFTER = 30
"""The first worker kills itself after it has stored this many pages."""


def main(directory: str = "data/resume_after_crash/") -> None:
    state = Path(directory) / "sum.json"
    state.parent.mkdir(parents=True, exist_ok=True)
    asyncio.run(produce(f"{directory}/log"))

    print(f"worker 1 ended with status {run_worker(directory, KILL_AFTER)}, the sum of {load(state)[2]} numbers was stored")
    print(f"worker 2 ended with status {run_worker(directory)}")
    _, total, count = load(state)
    print(f"{count} numbers, their sum is {total}, expected {sum(range(NUMBERS))}")
    if total != sum(range(NUMBERS)):
        raise SystemExit("the sum is wrong")


async def produce(location: str) -> None:
    """Appends the numbers, unless an earlier run of this program did."""
    async with open_wal(location) as log:
        if not await log.vchannels():  # reading a vchannel that does not exist would warn
            await log.create_vchannel("numbers")
        async with log.read("numbers", follow=False) as scanner:
            present = sum([len(page) async for page in scanner.batches()])
        await log.append_bulk(Message("numbers", str(number).encode()) for number in range(present, NUMBERS))


def run_worker(directory: str, kill_after: int = 0) -> int:
    command = [sys.executable, "-m", "examples.resume_after_crash", "--worker", directory, str(kill_after)]
    return subprocess.run(command, check=False).returncode


async def work(directory: str, kill_after: int) -> None:
    """Reads from the stored position to the end of the log, and stores sum and position after each page.

    The process kills itself after it has stored `kill_after` pages, unless that is 0.
    """
    state = Path(directory) / "sum.json"
    position, total, count = load(state)
    async with open_wal(f"{directory}/log") as log, log.read("numbers", resume=position, follow=False) as scanner:
        pages = 0
        async for page in scanner.batches(size_max=PAGE):
            total += sum(int(body.payload) for message in page for body in message.bodies())
            count += len(page)
            await asyncio.to_thread(store, state, scanner.position, total, count)
            pages += 1
            if pages == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)


def load(state: Path) -> tuple[ReadPosition | None, int, int]:
    """Returns the position, sum and count, which were stored together."""
    if not state.exists():
        return None, 0, 0
    stored = json.loads(state.read_text())
    return ReadPosition.parse(stored["position"]), stored["sum"], stored["count"]


def store(state: Path, position: ReadPosition | None, total: int, count: int) -> None:
    """Stores all or nothing: a temporary file is synced and then replaces the old one."""
    temporary = state.with_suffix(".tmp")
    with temporary.open("w") as file:
        json.dump({"position": str(position), "sum": total, "count": count}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(state)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        asyncio.run(work(sys.argv[2], int(sys.argv[3])))
    else:
        main(*sys.argv[1:])
