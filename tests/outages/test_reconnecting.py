"""A client whose server comes back continues within a second, and lost connections, a hundred in a soak, leave no trace."""

from __future__ import annotations

import asyncio
import gc
import time
import types
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.locations import SOAK
from tests.outages.proxy import Proxy
from tests.serve.servers import Child, child
from wal import Message, open_wal
from wal.client import remote_log


async def written_anew(address: str) -> float:
    """Returns when a new client has written a message."""
    async with open_wal(f"wal://{address}") as log:
        await log.raw_append(Message("others", b"new"))
        return time.monotonic()


@pytest.mark.parametrize("down_s", [0.0, 1.0, 4.0])
async def test_client_goes_on_within_a_second_after_its_server_is_back(data_dir: Path, down_s: float) -> None:
    """However long it was away: pauses between attempts stay short. A writer and a reader of another client wait for it.

    The second begins when a new client has written: on a busy machine a server takes longer.
    """
    again_s = 1.0
    async with child(data_dir) as first, open_wal(f"wal://{first.address}") as log, open_wal(f"wal://{first.address}") as reading:
        await log.raw_append(Message("orders", b"first"))
        async with reading.read("orders") as scanner:
            assert (await anext(scanner)).payload == b"first"
            await first.kill()
            writing = log.append_nowait(Message("orders", b"second"), idempotency_key="second")
            following = asyncio.ensure_future(anext(scanner))
            waiting: list[asyncio.Future[Any]] = [writing, following]
            await asyncio.wait(waiting, timeout=down_s)  # the time that it is away is the point
            second = await Child.start(data_dir, listen=first.address)
            back = time.monotonic()
            try:
                newcomer = asyncio.ensure_future(written_anew(first.address))
                await writing
                written = time.monotonic() - back
                assert (await following).payload == b"second"
                read = time.monotonic() - back
                again_s += await newcomer - back
            finally:
                await second.kill()
    print(f"down {down_s} s: written after {written:.3f} s, read after {read:.3f} s")
    assert written < again_s
    assert read < again_s


async def test_nothing_is_left_of_lost_connections(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client has as many tasks, streams, calls and futures after many connections as after a few."""
    reconnects = 100 if SOAK else 40
    # With these an abstract base class remembers the classes that it was asked about, at any time.
    cached = (weakref.ReferenceType, types.BuiltinFunctionType)
    hang_s = 60.0
    # How many more objects of a kind there may be: some are made and dropped all the time. With one for each connection: 32, in a soak 80.
    growth_max = 8

    async def grown_since(tasks: int, few: Counter[str]) -> dict[str, tuple[int, int]]:
        """Returns the kinds of objects of which there are more now, with both numbers."""
        now, many = await counted()
        grown = {kind: (few[kind], count) for kind, count in many.items() if count > few[kind] + growth_max}
        return grown if now <= tasks else {**grown, "tasks": (tasks, now)}

    async def counted() -> tuple[int, Counter[str]]:
        """Returns the tasks of this loop, and the objects by their kind, when nothing waits to be collected."""
        for _ in range(3):
            await asyncio.sleep(0)
            gc.collect()
        kinds = (type(one) for one in gc.get_objects())
        return len(asyncio.all_tasks()), Counter(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds if kind not in cached)

    gc.collect()
    gc.freeze()  # what earlier tests left in this process takes long to traverse
    monkeypatch.setattr(remote_log, "_ENDS_MAX", 8)  # what is remembered of pages is bounded: the bound is reached soon
    async with child(data_dir, "--pchannels", "2") as server, Proxy(int(server.address.rpartition(":")[2])) as proxy:
        async with open_wal(f"wal://{proxy.address}") as log:
            await log.raw_append(Message("orders", b"begin"))
            async with log.read("orders", cursor="reader") as scanner:
                await anext(scanner)
                for number in range(reconnects):
                    proxy.cut()
                    key = f"keyed-{number}"
                    await log.raw_append(Message("orders", key.encode()), idempotency_key=key)
                    async with log.txn("orders", idempotency_key=f"txn-{number}") as txn:
                        await txn.append(b"in a transaction")
                    assert (await anext(scanner)).payload == key.encode()
                    assert len((await anext(scanner)).bodies()) == 1
                    await scanner.save()
                    if number == reconnects // 5:
                        few_tasks, few = await counted()
                async with asyncio.timeout(hang_s):
                    while grown := await grown_since(few_tasks, few):
                        print(grown)
                        await asyncio.sleep(0.1)  # what is made and dropped all the time is gone at some moment
        assert proxy.accepted > reconnects
