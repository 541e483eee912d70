"""The process that writes, and that is killed: each month's flights as transactions, a vchannel for each airport.

It does not record its progress, since the log shows it. Rows of an airport are appended in the order of the CSV, and transactions are whole
or absent. So the number of bodies on a vchannel is the index of the next row.

It reports to its parent on stdout, one JSON object a line: `Recovered` once, then a `Committed` for each transaction.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Coroutine
from typing import Final, TypeVar

import msgspec

from examples.flights.place import Place
from examples.flights.table import AIRPORTS, flights
from wal import Message, WALAccesser

BODIES_MAX: Final = 4096
"""The setting `txn_bodies_max`: a busy month of an airport has 10,592 flights, so three transactions."""
TRANSACTIONS: Final = 80
"""The approximate number of bodies, if the log is to hold only some of the flights."""


class Recovered(msgspec.Struct, tag=True):
    """The content at the start of the worker: the bodies of each airport, and a tick below everything that it will append."""

    committed: dict[str, int]
    time_tick: int


class Committed(msgspec.Struct, tag=True):
    """Reports a durable transaction; `total` is the number of flights that its airport has now, `size` the bytes of its messages."""

    month: str
    airport: str
    bodies: int
    total: int
    size: int


Report = Recovered | Committed
T = TypeVar("T")


async def work(place: Place) -> None:
    """Appends the flights that the log does not have yet."""
    bodies_max = BODIES_MAX if place.rows is None else max(1, min(BODIES_MAX, place.rows // TRANSACTIONS))
    async with place.open() as log:
        committed = Counter({airport: await count_bodies(log, airport) for airport in AIRPORTS})
        report(Recovered(dict(committed), await log.allocate_time_tick()))
        passed: Counter[str] = Counter()
        waiting: dict[str, list[Message]] = defaultdict(list)
        month = ""
        for row_month, airport, message in flights(place.rows):
            if row_month != month:
                for other in AIRPORTS:
                    await commit(log, month, other, waiting[other], committed)
                month = row_month
            passed[airport] += 1
            if passed[airport] <= committed[airport]:
                continue
            waiting[airport].append(message)
            if len(waiting[airport]) == bodies_max:
                await commit(log, month, airport, waiting[airport], committed)
        for airport in AIRPORTS:
            await commit(log, month, airport, waiting[airport], committed)


async def commit(log: WALAccesser, month: str, airport: str, messages: list[Message], committed: Counter[str]) -> None:
    """Commits these messages in one transaction and clears the list; does nothing if it is empty."""
    if not messages:
        return
    # With a key the commit is sent again after the kill of a server; the log has the transaction once.
    async with log.txn(airport, idempotency_key=f"{airport} from {committed[airport]}") as txn:
        for message in messages:
            await txn.append(message)
    committed[airport] += len(messages)
    size = sum(message.estimate_size() for message in messages)
    report(Committed(month, airport, len(messages), committed[airport], size))
    messages.clear()


async def count_bodies(log: WALAccesser, airport: str) -> int:
    """Counts the flights of this airport in the log."""
    async with log.read(airport, follow=False) as scanner:
        return sum([len(message.bodies()) async for message in scanner])


def report(what: Report) -> None:
    print(msgspec.json.encode(what).decode(), flush=True)


def run(coroutine: Coroutine[None, None, T]) -> T:
    """Runs on uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coroutine)
    return uvloop.run(coroutine)
