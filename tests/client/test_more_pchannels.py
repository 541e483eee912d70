"""A server that is started again with more pchannels: clients that were open take them into use. And holds, which end with their search."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.client.test_supervision import Iteration, engine
from tests.rpc.server import until
from tests.serve.servers import Child, Serving, child
from wal import Message, WALAccesser, open_wal
from wal.channels.vchannels import place
from wal.client.directory import RemoteDirectory
from wal.client.producer import Producer
from wal.errors import UnknownError
from wal.message import AppendResult
from wal.spark.frame_source import LogSource

NAMES = [f"v{number}" for number in range(8)]


class Grown:
    """A server whose log had one pchannel, which `grow` starts again with three."""

    def __init__(self, data_dir: Path, server: Child) -> None:
        self.address = server.address
        self._data_dir = data_dir
        self.server = server

    async def grow(self) -> None:
        await self.server.stop()
        self.server = await Child.start(self._data_dir, "--pchannels", "3", listen=self.address)


@pytest.fixture
async def grown(data_dir: Path) -> AsyncIterator[Grown]:
    async with child(data_dir) as server:
        one = Grown(data_dir, server)
        yield one
        await one.server.kill()


@pytest.fixture
async def log(grown: Grown) -> AsyncIterator[WALAccesser]:
    async with open_wal(f"wal://{grown.address}") as one:
        await one.raw_append(Message("orders", b"1"))
        yield one


async def test_appends_use_new_pchannels(log: WALAccesser, grown: Grown) -> None:
    await grown.grow()
    async with asyncio.timeout(60):
        results: list[AppendResult] = await asyncio.gather(*(log.raw_append(Message(name, b"x"), idempotency_key=name) for name in NAMES))
        assert {result.message_id.pchannel for result in results} == {"p0", "p1", "p2"}
        assert [result.message_id.pchannel for result in results] == [place(name, ["p0", "p1", "p2"]) for name in NAMES]
        await log.create_vchannel("elsewhere", pchannel="p2")
        async with log.txn("elsewhere") as txn:
            await txn.append(b"y")
        for name in NAMES:
            async with log.read(name, follow=False, cursor="c") as scanner:
                assert [message.payload async for message in scanner] == [b"x"]
                await scanner.save()
        assert len(await log.cursors()) == len(NAMES)
        assert [report.pchannel for report in await log.retention()] == ["p0", "p1", "p2"]
        assert [pchannel.name for pchannel in log.statistics().pchannels] == ["p0", "p1", "p2"]
        assert await log.producers() == []


async def test_watch_uses_new_pchannels(log: WALAccesser, grown: Grown) -> None:
    """What another client creates there reaches this one, its readers and its appends, without a call of its own."""
    async with log.read("elsewhere") as scanner, Iteration(f"wal://{grown.address}") as messages:
        assert await messages.next() == b"1"
        reading = asyncio.ensure_future(anext(scanner))
        await grown.grow()
        async with open_wal(f"wal://{grown.address}") as other:
            await other.create_vchannel("elsewhere", pchannel="p2")
            await until(lambda: "elsewhere" in engine(log).vchannels.records)
            await log.raw_append(Message("elsewhere", b"2"))
            async with asyncio.timeout(60):
                assert (await reading).payload == b"2"
            await other.raw_append(Message("orders", b"3"))
            assert await messages.next() == b"3"
    assert engine(log).supervision.failure is None


async def test_blocking_reader_moves_to_new_pchannel(log: WALAccesser, grown: Grown) -> None:
    async with Iteration(f"wal://{grown.address}", "elsewhere") as messages:
        reading = asyncio.ensure_future(messages.next())
        await grown.grow()
        async with open_wal(f"wal://{grown.address}") as other:
            await other.create_vchannel("elsewhere", pchannel="p2")
            await other.raw_append(Message("elsewhere", b"2"))
        assert await reading == b"2"


async def test_spark_source_uses_new_pchannels(log: WALAccesser, grown: Grown) -> None:
    frames = await asyncio.to_thread(LogSource(f"wal://{grown.address}").open)
    try:
        assert list(frames.pchannels()) == ["p0"]
        await grown.grow()
        async with open_wal(f"wal://{grown.address}") as other:
            await other.create_vchannel("elsewhere", pchannel="p2")
            result = await other.raw_append(Message("elsewhere", b"2"))
        viewed = await asyncio.to_thread(frames.vchannels)
        while "elsewhere" not in viewed.on("p2"):
            viewed = await asyncio.to_thread(frames.vchannels)
        assert list(frames.pchannels()) == ["p0", "p1", "p2"]
        assert (await asyncio.to_thread(frames.moment, "p2")).durable_end > result.message_id.position
    finally:
        await asyncio.to_thread(frames.close)


# -- holds


class Defect(Exception):
    """An exception that no code expects."""


@pytest.mark.parametrize("kind", [Defect, asyncio.CancelledError])
@pytest.mark.parametrize("step", ["locate", "withdraw", "add"])
async def test_hold_ends_with_failed_search(step: str, kind: type[BaseException], served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends that wait for it get the defect; the next ones on the pchannel, and later ones, continue."""
    names = list(served.log.node.pchannels)
    here = place("orders", names)
    there = next(name for name in names if name != here)
    behind = next(name for name in NAMES if place(name, names) == here)
    async with open_wal(f"wal://{served.address}") as log, open_wal(f"wal://{served.address}") as other:
        await log.create_vchannel(behind)
        await other.create_vchannel("orders", pchannel=there)
        engine(log).vchannels.records.pop("orders", None)
        owner, name = {"locate": (RemoteDirectory, "_locate"), "withdraw": (Producer, "withdraw"), "add": (Producer, "add")}[step]
        work = getattr(owner, name)

        def fail_once(*args: object, **options: object) -> object:
            if step == "add" and args[0] is not engine(log).producers[there]:
                return work(*args, **options)
            monkeypatch.setattr(owner, name, work)
            raise kind("injected")

        monkeypatch.setattr(owner, name, fail_once)
        held = [log.append_nowait(Message("orders", b"1")), log.append_nowait(Message(behind, b"2"))]
        failure, after = await asyncio.wait_for(asyncio.gather(*held, return_exceptions=True), 60)
        assert isinstance(failure, UnknownError)
        assert isinstance(failure.__cause__, kind)
        assert isinstance(after, AppendResult)
        async with asyncio.timeout(60):
            await log.raw_append(Message("orders", b"3"))
            await log.raw_append(Message(behind, b"4"))
        assert engine(log).appends._held == {}
        assert log.statistics().bytes_in_flight == 0


async def test_log_opens_while_one_of_its_pchannels_is_away(served: Serving) -> None:
    """A pchannel is checked when a reader or a writer first uses it; an append to an absent one waits until it is back."""
    node, coordinator = served.log.node, served.log.coordinator
    names = list(node.pchannels)
    here, away = (next(name for name in NAMES if place(name, names) == pchannel) for pchannel in names[:2])
    async with open_wal(f"wal://{served.address}") as log:
        for name in (here, away):
            await log.raw_append(Message(name, b"before"))
    await node.hosting.close_one(names[1], coordinator.pchannels[names[1]].term)
    async with open_wal(f"wal://{served.address}") as log:
        await log.raw_append(Message(here, b"meanwhile"))
        async with log.read(here, follow=False) as scanner:
            assert [message.payload async for message in scanner] == [b"before", b"meanwhile"]
        waiting = asyncio.ensure_future(log.raw_append(Message(away, b"late")))
        await asyncio.wait([waiting], timeout=0.2)
        assert not waiting.done()
        await node.hosting.open(await coordinator.raise_term(names[1]))
        await waiting
        async with log.read(away, follow=False) as scanner:
            assert [message.payload async for message in scanner] == [b"before", b"late"]
