"""A worker that is killed with SIGKILL repeatedly, and writes every order exactly once.

    python -m examples.idempotent_retries [directory]      (default: data/idempotent_retries/)

After a kill the worker cannot tell which orders it had written, so it appends everything again from the last reported order. Each order has
a key, and each invoice is a transaction with a key: an existing one is not written a second time.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter

from wal import Message, ProducerKey, open_wal

ORDERS = 300
KILL_EVERY = 60
"""A worker is killed after it has reported this many orders."""


def main(directory: str = "data/idempotent_retries/") -> None:
    reported = kills = 0
    while reported < ORDERS:
        worker = start_worker(directory, reported)
        for count, line in enumerate(worker.stdout or (), start=1):
            reported = int(line)
            if count == KILL_EVERY:
                worker.kill()
        kills += worker.wait() != 0
    print(f"{ORDERS} orders reported, by workers of which {kills} were killed")
    orders, invoices = asyncio.run(count_orders(directory))
    once = set(orders.values()) == set(invoices.values()) == {1}
    print(f"{len(orders)} orders and {len(invoices)} invoices, each of them once: {once}")


def start_worker(directory: str, done: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "examples.idempotent_retries", "--worker", directory, str(done)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def work(directory: str, done: int) -> None:
    """Appends the orders after the last reported one; some of them may be in the log already."""
    async with open_wal(directory) as log:
        for number in range(done + 1, ORDERS + 1):
            await log.raw_append(Message("orders", b"order %d" % number), idempotency_key=ProducerKey("shop", number))
            async with log.txn(vchannels=["invoices", "stock"], idempotency_key=f"invoice-{number}") as txn:
                await txn.append(Message("invoices", b"invoice %d" % number))
                await txn.append(Message("stock", b"taken for %d" % number))
            print(number, flush=True)


async def count_orders(directory: str) -> tuple[Counter[bytes], Counter[bytes]]:
    """Counts how often each order and each invoice is in the log."""
    async with open_wal(directory) as log:
        async with log.read("orders", follow=False) as scanner:
            orders = Counter([body.payload async for _, body in scanner.bodies()])
        async with log.read("invoices", follow=False) as scanner:
            invoices = Counter([body.payload async for message in scanner for body in message.bodies()])
    return orders, invoices


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        asyncio.run(work(sys.argv[2], int(sys.argv[3])))
    else:
        main(*sys.argv[1:])
