"""A client whose server comes back with an older copy of the log: nothing is skipped silently, and nothing is written on top of it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.client.test_supervision import engine
from tests.serve.servers import Serving, serving
from tests.servers.process import free_ports
from wal import Message, ReadPosition, Settings, StartAfter, StartFrom, WALAccesser, bridge, open_wal
from wal.client.remote_log import RemoteReadableLog
from wal.client.remote_pchannel import RemotePChannel
from wal.errors import ClosedError, LogWentBackError
from wal.location import parse_location
from wal.message import AppendResult, MessageID
from wal.node.local.restored import mark_restored
from wal.read.cursors.service import CursorUse
from wal.read.loop import ReadLoop
from wal.read.pchannel import ReadablePChannel
from wal.serve.access import Access
from wal.storage.base import FramePage, LogSnapshot
from wal.storage.search import PageRequest

OLD, LOST, NEW = 20, 40, 60
"""How many messages the copy has, how many more were lost with it, and how many the restored log gets."""


class Restored:
    """A server of a directory with an older copy. `restore` restarts it on the copy."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._serving: AsyncExitStack
        self.served: Serving
        self.results: list[AppendResult] = []

    async def start(self, listen: str | None = None) -> None:
        """Serves the log at `listen`, or at a port where it can be served again."""
        listen = listen or f"127.0.0.1:{free_ports(1)[0]}"
        self._serving = AsyncExitStack()
        self.served = await self._serving.enter_async_context(serving(self._place, access=Access(listen=listen)))

    async def stop(self) -> None:
        await self._serving.aclose()

    async def begin(self) -> None:
        """Serves the log with `OLD` messages, of which a copy is made."""
        await self.start()
        async with open_wal(f"wal://{self.served.address}") as log:
            await self.append(log, OLD)
        await self.stop()
        await asyncio.to_thread(shutil.copytree, self._place, self._place.with_name("copy"))
        await self.start(self.served.address)

    async def append(self, log: WALAccesser, count: int) -> None:
        for number in range(count):
            self.results.append(await log.raw_append(Message("orders", b"%d" % number)))

    async def restore(self, *, new: int) -> None:
        """Puts the copy in the place of the log, and lets another client write to it before the first one comes back."""
        address = self.served.address
        await self.stop()
        await asyncio.to_thread(shutil.rmtree, self._place)
        await asyncio.to_thread(shutil.copytree, self._place.with_name("copy"), self._place)
        if new:
            async with open_wal(self._place) as log:
                for number in range(new):
                    await log.raw_append(Message("orders", b"new %d" % number))
        await self.start(address)

    @property
    def last_common(self) -> MessageID:
        return self.results[OLD - 1].message_id

    @property
    def location(self) -> str:
        return f"wal://{self.served.address}"


@pytest.fixture
async def restored(data_dir: Path) -> AsyncIterator[Restored]:
    one = Restored(data_dir / "log")
    await one.begin()
    yield one
    await one.stop()


@pytest.mark.parametrize("new", [0, 1, NEW])
async def test_follower_learns_it(restored: Restored, new: int) -> None:
    async with asyncio.timeout(60), open_wal(restored.location) as log:
        await restored.append(log, LOST)
        async with log.read("orders") as scanner:
            for _ in range(OLD + LOST):
                await anext(scanner)
            waiting = asyncio.ensure_future(anext(scanner))
            await restored.restore(new=new)
            with pytest.raises(LogWentBackError) as raised:
                await waiting
        assert raised.value.last_common == restored.last_common
        assert str(restored.last_common) in str(raised.value)
        with pytest.raises(LogWentBackError):
            await log.raw_append(Message("orders", b"x"))
        with pytest.raises(LogWentBackError):
            await log.vchannels()


@pytest.mark.parametrize("new", [0, 1, NEW])
async def test_producer_learns_it(restored: Restored, new: int) -> None:
    """A keyed append is sent again by itself; on the older copy it would be written, and all that came before it be missing."""
    async with asyncio.timeout(60), open_wal(restored.location) as log:
        await restored.append(log, LOST)
        await log.raw_append(Message("orders", b"x"), idempotency_key="k")
        await restored.restore(new=new)
        with pytest.raises(LogWentBackError) as raised:
            await log.raw_append(Message("orders", b"y"), idempotency_key="k2")
        assert raised.value.last_common == restored.last_common
        assert restored.served.log.statistics().pchannels[0].events == 0


async def test_restart_is_no_restore(restored: Restored) -> None:
    async with asyncio.timeout(60), open_wal(restored.location) as log:
        await restored.append(log, LOST)
        async with log.read("orders") as scanner:
            for _ in range(OLD + LOST):
                await anext(scanner)
            waiting = asyncio.ensure_future(anext(scanner))
            await restored.stop()
            await restored.start(restored.served.address)
            await log.raw_append(Message("orders", b"after"))
            assert (await waiting).payload == b"after"
        assert engine(log).supervision.failure is None


@pytest.mark.parametrize("new", [0, NEW])
async def test_position_is_refused(restored: Restored, new: int) -> None:
    """A reader that stored its position elsewhere resumes with another client, after the restore."""
    async with open_wal(restored.location) as log:
        await restored.append(log, LOST)
    await restored.restore(new=new)
    positions = [ReadPosition(result.message_id, result.time_tick) for result in restored.results]
    async with asyncio.timeout(60), open_wal(restored.location) as log:
        for position in (positions[OLD], positions[OLD + 1], positions[-1]):
            with pytest.raises(LogWentBackError) as raised:
                async with log.read("orders", resume=position, follow=False):
                    pass
            assert raised.value.last_common == restored.last_common
        async with log.read("orders", resume=positions[OLD - 1], follow=False) as scanner:
            assert len([message async for message in scanner]) == new


async def test_iteration_learns_it(restored: Restored) -> None:
    async with open_wal(restored.location) as log:
        await restored.append(log, LOST)
    loop, followed, back = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    def iterate() -> None:
        with bridge.iterate(restored.location, "orders", timeout_s=20) as messages:
            for _ in range(OLD + LOST):
                next(messages)
            position = messages.position
            loop.call_soon_threadsafe(followed.set)
            asyncio.run_coroutine_threadsafe(back.wait(), loop).result()
            with pytest.raises(LogWentBackError) as raised:
                next(messages)
            assert raised.value.last_common == restored.last_common
        with pytest.raises(LogWentBackError) as raised, bridge.iterate(restored.location, "orders", resume=position):
            pass
        assert raised.value.last_common == restored.last_common

    async with asyncio.timeout(60):
        iterating = asyncio.ensure_future(asyncio.to_thread(iterate))
        await followed.wait()
        await restored.restore(new=NEW)
        back.set()
        await iterating


async def test_look_back_waits_for_server(restored: Restored, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that begins after a lost connection looks at what was seen: a server that stops meanwhile does not end the reader."""
    refusals = 3
    look_at = RemoteReadableLog.look_at

    async def refused(log: RemoteReadableLog, request: PageRequest) -> FramePage:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise ClosedError("the server is being stopped")
        return await look_at(log, request)

    async with asyncio.timeout(60), open_wal(restored.location) as log:
        async with log.read("orders") as scanner:
            await anext(scanner)
        await restored.stop()
        await restored.start(restored.served.address)
        monkeypatch.setattr(RemoteReadableLog, "look_at", refused)
        async with log.read("orders") as scanner:
            assert (await anext(scanner)).payload == b"0"
    assert refusals == 0


async def test_event_after_the_look(restored: Restored, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot that was made before an event does not have it, and the log has not gone back."""
    async with open_wal(restored.location) as log:
        await restored.append(log, 1)
        (pchannel,) = (one for one in engine(log).pchannels.values() if one.log.seen is not None)
        moment = pchannel.log.moment

        async def moment_before_an_event() -> LogSnapshot:
            answer = await moment()
            await restored.append(log, 1)
            return answer

        monkeypatch.setattr(pchannel.log, "moment", moment_before_an_event)
        pchannel.log.losses += 1
        await pchannel.look()
        await restored.append(log, 1)


async def test_cursor_saved_after_the_look(restored: Restored, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that begins at a cursor which another one has just moved on is ahead of its own look at the log."""
    monkeypatch.setattr(RemotePChannel, "follow", lambda _pchannel: None)
    load = ReadLoop._load
    async with open_wal(restored.location) as log, open_wal(restored.location) as other:

        async def load_what_was_just_saved(loop: ReadLoop, cursor: CursorUse, pchannel: ReadablePChannel) -> Any:
            monkeypatch.setattr(ReadLoop, "_load", load)
            await restored.append(other, 1)
            async with other.read("orders", cursor="reader", follow=False) as scanner:
                assert [message.message_id async for message in scanner][-1] == restored.results[-1].message_id
                await scanner.save()
            return await load(loop, cursor, pchannel)

        monkeypatch.setattr(ReadLoop, "_load", load_what_was_just_saved)
        async with log.read("orders", cursor="reader", follow=False) as scanner:
            assert [message async for message in scanner] == []


async def test_marked_restore_ends_clients(data_dir: Path) -> None:
    """Of a log with several pchannels: the error of each reader has the last common event of its pchannel."""
    place = data_dir / "log"
    async with open_wal(place, pchannels=2) as log:
        for number, name in enumerate(("orders", "bills")):
            await log.create_vchannel(name, pchannel=f"p{number}")
        common = {name: (await log.raw_append(Message(name, b"1"))).message_id for name in ("orders", "bills")}
    await asyncio.to_thread(shutil.copytree, place, data_dir / "copy")
    served = Restored(place)
    await served.start()
    async with asyncio.timeout(40):
        log = await open_wal(served.location)
        scanners = {name: log.read(name) for name in common}
        waiting = {}
        for name, scanner in scanners.items():
            assert (await anext(scanner)).payload == b"1"
            lost = await log.raw_append(Message(name, b"2"))
            assert (await anext(scanner)).payload == b"2"
            waiting[name] = asyncio.ensure_future(anext(scanner))
        address = served.served.address
        await served.stop()
        await asyncio.to_thread(shutil.rmtree, place)
        await asyncio.to_thread((data_dir / "copy").rename, place)
        lineages = await mark_restored(parse_location(place), Settings())
        await served.start(address)
        for pchannel, (name, task) in zip(lineages, waiting.items(), strict=True):
            with pytest.raises(LogWentBackError) as raised:
                await task
            assert raised.value.last_common is not None
            assert raised.value.last_common.pchannel == pchannel
            assert raised.value.last_common.position == common[name].position
        with pytest.raises(LogWentBackError):
            await log.create_vchannel("new")
        await log.close()
        async with open_wal(served.location) as log:
            assert "new" not in {info.name for info in await log.vchannels()}
            async with log.read("bills", deliver_policy=StartFrom(common["bills"]), follow=False) as scanner:
                assert [message.payload async for message in scanner] == [b"1"]
            with pytest.raises(LogWentBackError) as raised:
                async with log.read("bills", deliver_policy=StartAfter(lost.message_id)):
                    pass
            assert raised.value.last_common is not None
            with pytest.raises(LogWentBackError):
                await log.truncate(up_to=lost.message_id)
            await log.truncate(up_to=common["orders"])
        await served.stop()
