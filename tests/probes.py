"""Helpers with which the acceptance tests look at a log, all of them through the public API except `local`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

from actors import VirtualClock
from broadcaster import BroadcasterStatistics
from wal import ImmutableMessage, Matching, WALAccesser
from wal.client.log import RemoteLog
from wal.engine import LogStatistics
from wal.errors import WALError
from wal.node.local.log import LocalLog
from wal.rpc.api.component_pb2 import GetComponentStatesRequest
from wal.rpc.methods import NODE_STATES

served: dict[str, LocalLog] = {}
"""The logs that this process serves to clients, by address."""
clients: list[RemoteLog] = []
"""The clients of these logs."""
_ROUND_TRIPS: Final = 4
"""A call, what it causes at the server, its answer, and what that causes."""


def local(log: WALAccesser) -> LocalLog:
    """Returns the engine of a log that this process writes, for faults that a user cannot cause at will.

    For a client of a server in this process it is the engine of the server.
    """
    engine = log._lifecycle.engine
    if isinstance(engine, RemoteLog):
        return served[engine.place.removeprefix("wal://")]
    assert isinstance(engine, LocalLog)
    return engine


async def close_all(log: WALAccesser) -> None:
    """Closes a log: as its writer does, also where the writer is a server in this process."""
    writer = local(log)
    await log.close()
    if not writer.released:
        await writer.close()


def written(log: WALAccesser) -> LogStatistics:
    """Returns the counts of the process that writes the log; a client has counts of its own, `log.statistics()`."""
    return local(log).statistics()


def broadcasts(log: WALAccesser) -> BroadcasterStatistics:
    """Returns the counts of the broadcaster of a log, in the process that writes the log."""
    return local(log).broadcasts.statistics()


def row_of(body: ImmutableMessage) -> dict[str, Any]:
    """Returns a message, or a body of a transaction, as a row of Spark and Arrow."""
    return {
        "vchannel": body.vchannel,
        "message_id": None if body.message_id is None else bytes(body.message_id),
        "time_tick": body.time_tick,
        "message_type": body.message_type.name,
        "txn_id": None if body.txn_context is None else body.txn_context.txn_id,
        "payload": body.payload,
        "properties": list(body.properties.items()),
        "append_time": body.append_time,
    }


async def read_all(log: WALAccesser, vchannel: str | Sequence[str] | Matching, **options: Any) -> list[ImmutableMessage]:
    """Returns all messages that are durable now, read by `async for`."""
    async with log.read(vchannel, follow=False, **options) as scanner:
        return [message async for message in scanner]


def bodies(messages: Iterable[ImmutableMessage]) -> list[bytes]:
    """Returns the payloads of all bodies, in order."""
    return [body.payload for message in messages for body in message.bodies()]


def grouped(messages: Iterable[ImmutableMessage]) -> list[list[bytes]]:
    """Returns the payloads of each message's bodies."""
    return [[body.payload for body in message.bodies()] for message in messages]


async def payloads(log: WALAccesser, vchannel: str | Sequence[str] | Matching, **options: Any) -> list[bytes]:
    return bodies(await read_all(log, vchannel, **options))


async def made_on(log: WALAccesser, pchannel: str, *names: str) -> None:
    """Creates vchannels on one pchannel."""
    for name in names:
        await log.create_vchannel(name, pchannel=pchannel)


def start(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.ensure_future(coroutine)


async def first_of(*coroutines: Coroutine[Any, Any, Any]) -> None:
    """Returns when the first of them has ended, and cancels the others."""
    tasks = [start(one) for one in coroutines]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


async def turns(count: int = 20) -> None:
    """Lets the loop run, so that everything that needs no waiting has happened; also at a server on this loop, and back at its clients.

    Each round trip begins after what the clients have sent by then.
    """
    for round_trip in range(_ROUND_TRIPS if clients else 1):
        for client in clients if round_trip else ():
            with contextlib.suppress(WALError):  # it is closed
                await client._connection.call(NODE_STATES, GetComponentStatesRequest(), "letting the server run")
        for _ in range(count):
            await asyncio.sleep(0)


async def run_until(clock: VirtualClock, condition: Callable[[], object]) -> None:
    """Lets time pass until something is so: the limit of ticks may have to be saved before, which takes time that is not the clock's."""
    while not condition():
        await clock.run(0.2)


def same(left: ImmutableMessage, right: ImmutableMessage) -> bool:
    return facts(left) == facts(right)


def facts(message: ImmutableMessage) -> tuple[Any, ...]:
    """Returns everything that a reader can see of a message, for comparing two deliveries of it."""
    if message.txn_context is not None and not (len(message.bodies()) == 1 and message.bodies()[0] is message):
        inner: tuple[Any, ...] = tuple(
            (body.message_id, body.time_tick, body.vchannel, body.payload, body.properties) for body in message.bodies()
        )
    else:
        inner = (message.payload, tuple(message.properties.items()))
    return (message.message_id, message.time_tick, message.vchannel, int(message.message_type), message.txn_context, inner)
