"""A job queue with four workers, retries and dead letters, whose process is killed, also by one of its jobs.

    python -m examples.job_queue [directory]      (default: data/job_queue/)

Each job writes its result once. One job always fails, and one kills its process at every attempt: both become dead letters, the others
succeed. After the cause is fixed, the dead letters are redriven.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys

from wal import Delivery, Log, Reject, open_wal

JOBS = 60
KILL_AFTER = 20
"""The number of jobs after which the first process kills itself."""


def main(directory: str = "data/job_queue/") -> None:
    asyncio.run(submit(directory))
    processes = killed = 0
    code = 1
    while code:
        processes += 1
        kill_after = KILL_AFTER if processes == 1 else 0
        code = subprocess.run([sys.executable, "-m", "examples.job_queue", "--work", directory, str(kill_after)], check=False).returncode
        killed += code == -signal.SIGKILL
    print(f"killed at least 3 times: {killed >= 3}")
    asyncio.run(report(directory))


async def submit(directory: str) -> None:
    async with open_wal(directory) as log:
        await log.append_txn("jobs", [b"resize %d" % number for number in range(JOBS)], idempotency_key="pictures")
        await log.append_txn("jobs", [b"resize cat", b"crash"], idempotency_key="others")


async def work(delivery: Delivery) -> None:
    what = delivery.value.split()[-1]
    if what == b"crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if not what.isdigit():
        raise Reject(f"{what.decode()} is not a picture")
    if int(what) % 10 == 3 and delivery.attempt == 1:
        raise ConnectionError("the store of pictures does not answer")
    await asyncio.sleep(0.001)
    delivery.append("results", b"resized %d" % int(what))


async def run_workers(directory: str, kill_after: int) -> None:
    numbers = itertools.count(1)

    async def handle(delivery: Delivery) -> None:
        await work(delivery)
        if next(numbers) == kill_after:  # in the middle: the result is not stored yet
            os.kill(os.getpid(), signal.SIGKILL)

    async with open_wal(directory) as log:
        workers = log.consume(
            "jobs", handle, cursor="resizer", concurrency=4, order="none", attempts=2, backoff_s=(0.01, 1.0), dead_letter="failed"
        )
        async with workers:
            await workers.caught_up()  # a service would wait for its end here: await workers.run()


async def report(directory: str) -> None:
    async with open_wal(directory) as log:
        results = await bodies(log, "results")
        print(f"{len(results)} results, each once: {len(set(results)) == len(results) == JOBS}")
        async with log.read("failed", follow=False) as scanner:
            async for _, letter in scanner.bodies():
                print(f"{letter.payload.decode()}: {letter.properties['dead_letter_reason'].partition(',')[0]}")
        print(f"{await log.redrive('failed')} jobs again")
        async with log.consume("jobs", resize_anything, cursor="resizer") as consumer:
            await consumer.caught_up()
        print(sorted(set(await bodies(log, "results")) - set(results)))


async def resize_anything(delivery: Delivery) -> None:
    delivery.append("results", b"resized " + delivery.value.split()[-1])


async def bodies(log: Log, vchannel: str) -> list[bytes]:
    async with log.read(vchannel, follow=False) as scanner:
        return [body.payload async for _, body in scanner.bodies()]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        asyncio.run(run_workers(sys.argv[2], int(sys.argv[3])))
    else:
        main(*sys.argv[1:])
