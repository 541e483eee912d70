"""Nothing that a log needs waits in the default executor of its loop, which functions of users may fill while they wait for the log."""

from __future__ import annotations

import ast
import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import actors
import broadcaster
import wal
from tests.locations import open_wal
from tests.probes import payloads
from wal import Delivery, Message

pytestmark = pytest.mark.inside  # over the network, the server is on this loop too


@contextlib.asynccontextmanager
async def full_executor() -> AsyncIterator[None]:
    """Fills the default executor of the running loop with calls that end after the block."""
    end = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
    blocked = [loop.run_in_executor(None, end.wait) for _ in range(3)]
    try:
        yield
    finally:
        end.set()
        await asyncio.gather(*blocked)


@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_log_works_beside_a_full_executor(location: str, compression: str) -> None:
    # A frame with such a message is compressed in a thread.
    LARGE = 600_000
    async with full_executor(), asyncio.timeout(30):
        async with open_wal(location, compression=compression, pchannels=2) as log:
            large = os.urandom(LARGE)
            await asyncio.gather(*(log.append("orders", body) for body in (b"1", large, b"2")))
            async with log.txn(vchannels=["orders", "payments"]) as txn:
                await txn.append(Message("orders", b"3"))
                await txn.append(Message("payments", b"3"))
            assert await payloads(log, "orders") == [b"1", large, b"2", b"3"]
            async with log.read("orders", cursor="billing") as scanner:
                first = await anext(scanner)
                await scanner.save()
            await log.truncate(up_to=first.message_id)
            handled: list[bytes] = []

            async def handle(delivery: Delivery) -> None:
                handled.append(delivery.message.payload)

            async with log.consume("payments", handle, cursor="payouts") as consumer:
                await consumer.caught_up()
            assert handled == [b"3"]
            assert len(await log.cursors()) == 2
            await log.retention()
            assert log.statistics().pchannels
        if location == "memory:":
            return
        async with open_wal(location) as log:
            assert (await payloads(log, "orders"))[-1] == b"3"


async def test_other_openings_work_beside_a_full_executor(data_dir: Path) -> None:
    """Beside the writer: a read-only log, a backup and a status page, as the loop of the user runs them."""
    async with full_executor(), asyncio.timeout(30):
        async with wal.open_wal(data_dir) as log:
            await log.append("orders", b"1")
            async with wal.open_wal(data_dir, read_only=True) as reader:
                assert await payloads(reader, "orders") == [b"1"]
            async with log.serve_status("127.0.0.1", 0):
                pass
            await log.append("orders", b"2")
        from wal.operate.backup import backup, restore

        await backup(str(data_dir), str(data_dir.parent / "copies"))
        await restore(str(data_dir.parent / "copies"), str(data_dir.parent / "restored"))
        async with wal.open_wal(data_dir.parent / "restored", read_only=True) as reader:
            assert await payloads(reader, "orders") == [b"1", b"2"]


def test_product_leaves_the_default_executor_alone() -> None:
    # The calls that use the default executor, or the threads that AnyIO shares. The last four look up names there.
    words = ("run_in_executor", "to_thread", "run_sync", "getaddrinfo", "getnameinfo", "create_connection", "open_connection")

    def is_forbidden(call: ast.Call) -> bool:
        name = ast.unparse(call.func).rpartition(".")[2]
        if any(keyword.arg == "sock" for keyword in call.keywords):  # a connected socket: no name is looked up
            return False
        return name in words and (name != "run_in_executor" or isinstance(call.args[0], ast.Constant))

    root = Path(wal.__file__).parents[1]
    calls = []
    for package in (wal, actors, broadcaster):
        for path in sorted(Path(package.__file__ or "").parent.rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if any(word in (text := path.read_text()) for word in words):  # most files have none, and need no parsing
                calls += [
                    f"{name}:{call.lineno}" for call in ast.walk(ast.parse(text)) if isinstance(call, ast.Call) and is_forbidden(call)
                ]
    assert calls == []
