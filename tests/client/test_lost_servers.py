"""A server that is killed and started again: nothing acknowledged is lost, keyed appends are there once, readers continue."""

from __future__ import annotations

import asyncio

from tests.serve.servers import Child
from wal import Message, WALAccesser, open_wal
from wal.errors import UnknownOutcomeError


async def test_killed_server(server: Child, data_dir: object) -> None:
    """Three writers of keyed and three of plain messages, and two readers, go through three kills of the server."""
    rounds = 3
    acknowledged: set[bytes] = set()
    unknown: set[bytes] = set()
    read: list[list[bytes]] = [[], []]
    stopping = asyncio.Event()
    current = server

    async def write(log: WALAccesser, name: str, *, keyed: bool) -> None:
        number = 0
        while not stopping.is_set():
            payload = f"{name}-{number}".encode()
            number += 1
            try:
                await log.raw_append(Message("orders", payload), idempotency_key=payload.decode() if keyed else None)
                acknowledged.add(payload)
            except UnknownOutcomeError:
                assert not keyed
                unknown.add(payload)

    async def follow(log: WALAccesser, into: list[bytes]) -> None:
        async with log.read("orders") as scanner:
            async for message in scanner:
                into.append(message.payload)
                if message.payload == b"end":
                    return

    async with open_wal(f"wal://{server.address}") as log, open_wal(f"wal://{server.address}") as other:
        await log.create_vchannel("orders")
        writers = [
            asyncio.ensure_future(write(log, f"{'keyed' if keyed else 'plain'}{n}", keyed=keyed))
            for n in range(3)
            for keyed in (True, False)
        ]
        readers = [asyncio.ensure_future(follow(one, into)) for one, into in zip((log, other), read, strict=True)]
        for _ in range(rounds):
            before = len(acknowledged)
            while len(acknowledged) < before + 300:
                await asyncio.sleep(0.01)
            await current.kill()
            current = await Child.start(str(data_dir), listen=server.address)
        before = len(acknowledged)
        while len(acknowledged) < before + 300:
            await asyncio.sleep(0.01)
        stopping.set()
        await asyncio.gather(*writers)
        await log.raw_append(Message("orders", b"end"), idempotency_key="end")
        await asyncio.gather(*readers)
        async with log.read("orders", follow=False) as scanner:
            stored = [message.payload async for message in scanner]
    assert await current.stop() == 0
    assert len(stored) == len(set(stored))  # nothing twice
    assert acknowledged <= set(stored)
    assert set(stored) <= acknowledged | unknown | {b"end"}
    assert read == [stored, stored]
