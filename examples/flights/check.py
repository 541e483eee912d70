"""Reads everything back, and compares it with the CSV."""

from __future__ import annotations

import msgspec

from examples.flights.place import Place
from examples.flights.table import AIRPORTS, Flight, Totals
from wal import ImmutableTxnMessage, MessageType, MessageTypes, TimeTickGTE, WALAccesser


class Found(msgspec.Struct):
    """The contents of the log: totals by airport, the number of transactions, and the number of flights from a tick on."""

    totals: dict[str, Totals]
    transactions: int
    since_tick: int


async def read_back(place: Place, *, since_tick: int) -> Found:
    """Scans the vchannel of each airport, then the vchannels of each pchannel together from `since_tick` on."""
    async with place.open() as log:
        content = Found({}, 0, 0)
        for airport in AIRPORTS:
            content.totals[airport], transactions = await _airport(log, airport)
            content.transactions += transactions
        together: dict[str, list[str]] = {}
        for info in await log.vchannels():
            together.setdefault(info.pchannel, []).append(info.name)
        for names in together.values():
            async with log.read(names, filters=TimeTickGTE(since_tick), follow=False) as scanner:
                async for message in scanner:
                    content.since_tick += len(message.bodies())
        return content


async def _airport(log: WALAccesser, airport: str) -> tuple[Totals, int]:
    totals = Totals()
    transactions = 0
    decode = msgspec.json.Decoder(Flight).decode
    async with log.read(airport, filters=MessageTypes(MessageType.INSERT), follow=False) as scanner:
        async for message in scanner:
            transactions += isinstance(message, ImmutableTxnMessage)
            for body in message.bodies():
                flight = decode(body.payload)
                totals.add(flight.dep_delay, flight.arr_delay)
    return totals, transactions
