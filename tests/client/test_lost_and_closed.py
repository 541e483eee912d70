"""Clients that are closed while their server is away: nothing of gRPC is left of them, in their loop or in a later one."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
from pathlib import Path

import grpc.aio
import pytest

from tests.processes import eventually
from tests.serve.servers import Serving
from wal import Message, WALAccesser, open_wal
from wal.errors import ClosedError
from wal.network import Endpoints


def test_loop_is_told_nothing_of_a_client_of_another_one() -> None:
    """An answer of gRPC for a loop that has ended would be an error, "Event loop is closed", in the next one."""
    one_loop_after_the_other = """
        import asyncio
        from tests.serve.servers import serving
        from wal import Message, open_wal

        async def main():
            async with serving() as served:
                async with open_wal(f"wal://{served.address}") as log:
                    await log.raw_append(Message("orders", b"1"))
                    endpoints = log._lifecycle.engine._connection._endpoints
                    await served.node.close()
                    while endpoints.connected() is not None:
                        await asyncio.sleep(0.001)
                    looking = asyncio.ensure_future(endpoints.look(None))
                    await asyncio.sleep(0.01)
            await looking

        for _ in range(8):
            asyncio.run(main())
    """

    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(one_loop_after_the_other)],
        cwd=root, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "Event loop is closed" not in ran.stderr


async def test_closed_client_holds_no_call(served: Serving) -> None:
    """A call holds its channel, and a channel without a server connects again and again, also when it is closed."""

    async def unconnected(log: WALAccesser) -> None:
        endpoints: Endpoints = log._lifecycle.engine._connection._endpoints  # type: ignore[union-attr]
        async with asyncio.timeout(60):
            while endpoints.connected() is not None:
                await asyncio.sleep(0.001)

    gc.collect()
    before = {id(one) for one in gc.get_objects() if isinstance(one, grpc.aio.Call)}
    log = await open_wal(f"wal://{served.address}")
    await log.raw_append(Message("orders", b"1"))
    async with log.read("orders") as scanner:
        await anext(scanner)
        await served.node.close()
        await unconnected(log)
        waiting = log.append_nowait(Message("orders", b"2"))
        await log.close()
    with pytest.raises(ClosedError):
        await waiting
    del waiting

    def are_gone() -> bool:
        gc.collect()
        return not [one for one in gc.get_objects() if isinstance(one, grpc.aio.Call) and id(one) not in before]

    await eventually(are_gone)  # a generator that is collected ends in a later turn of the loop
    assert isinstance(log, WALAccesser), "which the caller may keep"
