"""Whatever fails when a log is opened or closed, it leaves nothing open, and loses no append that it accepted."""

from __future__ import annotations

import ast
import asyncio
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.faults import SavingGate
from tests.locations import open_wal
from tests.probes import close_all, local, payloads, start, turns
from wal import Delivery, Message, WALAccesser
from wal.errors import ClosedError, CorruptionError
from wal.storage.journal.backend import JournalBackend
from wal.storage.journal.log import JournalLog
from wal.streams.flowgraph import BaseNode, Msg, Outputs, TimeTickedFlowGraph

pytestmark = pytest.mark.inside


async def test_opening_that_fails_releases_every_pchannel(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pchannel of four is damaged: the others, which open after the damage is found, are closed again."""
    real = JournalBackend.open

    async def slowly(self: JournalBackend, pchannel: str, *, incarnation: int, term: int, checkpoint: int | None = None) -> JournalLog:
        try:
            return await real(self, pchannel, incarnation=incarnation, term=term, checkpoint=checkpoint)
        finally:
            await turns(0 if pchannel == "p0" else 2000)

    monkeypatch.setattr(JournalBackend, "open", slowly)
    async with open_wal(data, pchannels=4) as log:
        await log.raw_append(Message("orders", b"0"))
    directory = Path(data) / "pchannels" / "p0"
    (segment,) = directory.glob("*.wal")
    intact = segment.read_bytes()
    segment.unlink()
    before = set(threading.enumerate())
    for _ in range(3):
        with pytest.raises(CorruptionError):
            async with open_wal(data):
                pass
        assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("wal-")]
    segment.write_bytes(intact)
    async with open_wal(data) as log:
        assert await payloads(log, "orders") == [b"0"]


async def test_close_releases_everything_when_the_kv_breaks(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    log = await open_wal(location)
    await log.raw_append(Message("orders", b"0"))
    gate = SavingGate(local(log), monkeypatch)
    gate.failure = RuntimeError("an error of a KV client that is no WALError")
    gate.open.set()
    await asyncio.gather(close_all(log), return_exceptions=True)
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("wal-")]
    if location != "memory:":
        async with open_wal(location) as again:
            assert await payloads(again, "orders") == [b"0"]


async def test_close_while_a_vchannel_is_being_created(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append that is accepted while the record is being saved is written before the log is closed."""
    opened = local(log)
    gate = asyncio.Event()
    real = opened.coordinator.kv.multi_save_and_remove

    async def save(*arguments: Any) -> None:
        await gate.wait()
        await real(*arguments)

    monkeypatch.setattr(opened.coordinator.kv, "multi_save_and_remove", save)
    made = start(log.create_vchannel("explicit"))
    implied = log.append_nowait(Message("orders", b"1"))
    closing = start(log.close())
    await turns()
    assert not closing.done()
    gate.set()
    await closing
    assert (await made).name == "explicit"
    assert (await implied).time_tick
    with pytest.raises(ClosedError):
        await log.raw_append(Message("orders", b"2"))


async def test_cancelled_scope_of_anyio_leaves_nothing_open(data: str) -> None:
    """The end of the blocks completes before the scope is left, and another opening finds a log that was closed."""

    async def handle(delivery: Delivery) -> None:
        began.set()
        await anyio.sleep_forever()

    class Source(BaseNode):
        async def operate(self, msgs: list[Msg]) -> Outputs:
            await anyio.sleep_forever()
            return None

    began = asyncio.Event()
    before = asyncio.all_tasks()
    graph = TimeTickedFlowGraph()
    graph.add_node(Source("source"))
    graph.add_node(BaseNode("sink"))
    graph.set_edges("source", out=["sink"])
    graph.set_edges("sink", in_=["source"])
    with anyio.CancelScope() as scope:
        async with open_wal(data) as log, graph, log.read("jobs", handler=lambda message: None):
            await log.append("jobs", b"1")
            async with log.consume("jobs", handle, cursor="worker") as consumer:
                await began.wait()
                scope.cancel()
                await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert asyncio.all_tasks() == before
    assert consumer.statistics().state == "ended"
    async with open_wal(data) as log:
        assert all(pchannel.log.state.clean for pchannel in local(log).node.pchannels.values())
        assert await payloads(log, "jobs") == [b"1"]


def test_every_block_ends_shielded() -> None:
    """An `async with` of ours completes in a cancelled scope; a transaction leaves its end to its caller, or to its expiry."""
    unshielded = []
    for path in sorted(path for room in ("wal", "actors", "broadcaster") for path in Path(room).rglob("*.py")):
        text = path.read_text()
        for kind in [node for node in ast.walk(ast.parse(text if "__aexit__" in text else "")) if isinstance(node, ast.ClassDef)]:
            for method in kind.body:
                if isinstance(method, ast.AsyncFunctionDef) and method.name == "__aexit__" and "shield" not in ast.unparse(method):
                    unshielded.append(kind.name)
    assert unshielded == ["TxnOpening", "TypedTxnOpening", "TypedScanner", "TracedTxn"]
