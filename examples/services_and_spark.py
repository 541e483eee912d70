"""Two services and a Spark job share one log over the network; the server is killed once while they work.

    python -m examples.services_and_spark [directory]      (default: data/services_and_spark/)

One command starts all of it. `wal standalone` serves the directory. The shop, a process, writes orders with keys. The ledger, another
process, adds up each customer's debt, and saves its sums together with its position in one file. The Spark job reads all orders as a table.
The kill needs no handling: the shop's appends are sent again, and the ledger continues where it stopped.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec

from examples.flights.server import Server
from wal import Message, ReadPosition, open_wal
from wal.spark import decoded, session

ORDERS = 3000
CUSTOMERS = 7
KILL_AT = 1000
"""The server is killed when the shop has reported this many orders."""
AT_ONCE = 50


class Order(msgspec.Struct):
    customer: str
    cents: int


class Sums(msgspec.Struct):
    """The state of the ledger: each customer's debt after everything up to `position`."""

    position: str = ""
    orders: int = 0
    cents: dict[str, int] = {}

    @classmethod
    def load(cls, file: Path) -> Sums:
        return msgspec.json.decode(file.read_bytes(), type=cls) if file.exists() else cls()

    def save(self, file: Path) -> None:
        temporary = file.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.encode(self))
        temporary.rename(file)


def order(number: int) -> Order:
    return Order(f"customer-{number % CUSTOMERS}", 100 + number)


async def shop(location: str) -> None:
    """Writes the orders, several at once. A key makes an order exist once, however often it is sent."""
    async with open_wal(location) as log:
        for first in range(0, ORDERS, AT_ONCE):
            await asyncio.gather(
                *(
                    log.raw_append(Message("orders", msgspec.json.encode(order(number))), idempotency_key=f"order-{number}")
                    for number in range(first, first + AT_ONCE)
                )
            )
            print(first + AT_ONCE, flush=True)


async def ledger(location: str, file: Path) -> None:
    """Adds up the orders. The sums and the position are one file, so an entry counts once even if this process is killed."""
    sums = await asyncio.to_thread(Sums.load, file)
    resume = ReadPosition.parse(sums.position) if sums.position else None
    async with open_wal(location, read_only=True) as log, log.read("orders", resume=resume) as orders:
        async for message in orders:
            entry = msgspec.json.decode(message.payload, type=Order)
            sums.cents[entry.customer] = sums.cents.get(entry.customer, 0) + entry.cents
            sums.orders += 1
            sums.position = str(orders.position)
            if sums.orders % AT_ONCE == 0 or sums.orders == ORDERS:
                await asyncio.to_thread(sums.save, file)
            if sums.orders == ORDERS:
                return


def spark_job(location: str) -> dict[str, int]:
    """Adds up the orders of each customer, with the log as a table."""
    rows = session("orders").read.format("wal").option("address", location).option("vchannels", "orders").load()
    orders = decoded(rows, "customer string, cents long")
    return {row[0]: row[1] for row in orders.groupBy("value.customer").sum("value.cents").collect()}


def main(directory: str = "data/services_and_spark/") -> None:
    file = Path(f"{directory.rstrip('/')}-sums.json")
    with Server(directory) as server, service("shop", server.location) as writer:
        with service("ledger", server.location, str(file)) as reader:
            assert writer.stdout is not None
            for line in writer.stdout:
                if int(line) == KILL_AT:
                    server.kill()
                    server.start()
                    print(f"the server was killed after {KILL_AT} orders, and is back")
            print(f"the shop wrote all orders: {writer.wait() == 0}")
            print(f"the ledger read all of them: {reader.wait() == 0}")
        expected: Counter[str] = Counter()
        for number in range(ORDERS):
            expected[order(number).customer] += order(number).cents
        print(f"each order counts once in its sums: {Sums.load(file).cents == expected}")
        print(f"and so it does for Spark: {spark_job(server.location) == expected}")


def service(name: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "examples.services_and_spark", f"--{name}", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--shop", location]:
            asyncio.run(shop(location))
        case ["--ledger", location, path]:
            asyncio.run(ledger(location, Path(path)))
        case arguments:
            main(*arguments)
