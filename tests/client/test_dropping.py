"""Vchannels that a client drops: what it does before and after keeps the order of its calls, whatever the watch has told it by then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from tests.probes import start, turns
from tests.serve.servers import Serving
from wal import Message, OwnerDescription, WALAccesser, open_wal
from wal.client.directory import RemoteDirectory
from wal.client.log import RemoteLog

OWNER = OwnerDescription("ingest")
Drop = Callable[[WALAccesser, str], Coroutine[Any, Any, None]]


async def drop(log: WALAccesser, name: str) -> None:
    await log.drop_vchannel(name)


async def destroy(log: WALAccesser, name: str) -> None:
    await log.destroy_channels([name])


@pytest.fixture(params=[drop, destroy])
def dropping(request: pytest.FixtureRequest) -> Drop:
    """Returns a call that ends a channel."""
    call: Drop = request.param
    return call


@pytest.fixture
async def name(log: WALAccesser) -> str:
    """Returns a channel with a message, which the client has seen."""
    (name,) = await log.create_channels(OWNER)
    await log.raw_append(Message(name, b"before"))
    assert name in directory(log).known.records
    return name


class Held:
    """Holds the answers of the server to calls that end channels: each is carried out, and answered when `answer` is set."""

    def __init__(self, served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
        self.carried_out = asyncio.Event()
        self.answer = asyncio.Event()
        vchannels = served.log.coordinator.vchannels
        for call in ("drop", "destroy_channels"):
            monkeypatch.setattr(vchannels, call, self._held(getattr(vchannels, call)))

    def _held(self, call: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        async def held(names: Any) -> None:
            await call(names)
            self.carried_out.set()
            await self.answer.wait()

        return held


def directory(log: WALAccesser) -> RemoteDirectory:
    engine = log._lifecycle.engine
    assert isinstance(engine, RemoteLog)
    return engine._directory


async def test_dropped_vchannel_is_forgotten_at_return(
    log: WALAccesser, name: str, dropping: Drop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the watch, the client takes no body for the old channel, and its next message is in a new one."""

    def blind(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
        """Has the client's watch tell it nothing more."""
        monkeypatch.setattr(directory(log).known, "update", lambda _: None)

    txn = await log.txn(name)
    known = directory(log).known.records
    before = known[name].incarnation
    blind(log, monkeypatch)
    await dropping(log, name)
    assert name not in known
    await txn.rollback()
    await log.raw_append(Message(name, b"after"))
    assert known[name].incarnation > before
    async with log.read(name, follow=False) as scanner:
        assert [message.payload async for message in scanner] == [b"after"]


async def test_channel_that_was_recreated_before_the_answer_is_kept(
    log: WALAccesser, served: Serving, name: str, dropping: Drop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client creates it again, and the watch reports that: the answer to the drop is older."""
    known, held = directory(log).known.records, Held(served, monkeypatch)
    before = known[name].incarnation
    dropped = start(dropping(log, name))
    await held.carried_out.wait()
    async with open_wal(f"wal://{served.address}") as other, asyncio.timeout(60):
        made = await other.create_vchannel(name)
        while name not in known or known[name].incarnation == before:
            await asyncio.sleep(0)
        held.answer.set()
        await dropped
    assert known[name] == made


async def test_append_after_the_call_waits_for_its_answer(
    log: WALAccesser, served: Serving, name: str, dropping: Drop, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(served, monkeypatch)
    earlier = log.append_nowait(Message(name, b"earlier"))
    dropped = start(dropping(log, name))
    await turns(1)
    later = log.append_nowait(Message(name, b"later"))
    await held.carried_out.wait()
    await turns()
    assert earlier.done(), "it was taken before the drop was sent"
    assert not later.done()
    assert name not in served.log.coordinator.vchannels.records, "nothing of the client has created it again"
    held.answer.set()
    await dropped
    assert (await later).time_tick > (await earlier).time_tick
    async with log.read(name, follow=False) as scanner:
        assert [message.payload async for message in scanner] == [b"later"]
