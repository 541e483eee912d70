"""A server that is there and takes nothing for a pchannel: its callers wait for another one, and get its error."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.serve.servers import Serving
from wal import Message, WALAccesser
from wal.client import producer
from wal.client.directory import RemoteDirectory
from wal.errors import ChannelFencedError, StorageError, UnavailableError, WALError


def pchannel_of(served: Serving, name: str) -> str:
    return served.log.coordinator.vchannels.records[name].pchannel


def fail(served: Serving, name: str, error: WALError) -> None:
    served.log.node.pchannels[pchannel_of(served, name)].fail(error)


@pytest.mark.parametrize("key", [None, "key"])
async def test_pchannel_that_is_fenced_for_ever_is_told_and_named(
    log: WALAccesser, served: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, key: str | None
) -> None:
    monkeypatch.setattr(producer, "UNREACHABLE_S", 1.0)
    await log.create_vchannel("orders")
    name = pchannel_of(served, "orders")
    fail(served, "orders", ChannelFencedError("a writer with term 9 has it"))
    with caplog.at_level(logging.WARNING, "wal.remote"):
        with pytest.raises(UnavailableError, match=rf"pchannel {name} for 1 s: a writer with term 9 has it") as caught:
            await log.raw_append(Message("orders", b"1"), idempotency_key=key)
        assert isinstance(caught.value.__cause__, ChannelFencedError)
        assert not caught.value.outcome_unknown
    (line,) = [one.getMessage() for one in caplog.records if "requests" in one.getMessage()]
    assert line == f"requests for pchannel {name} wait for a server that takes them: a writer with term 9 has it"
    assert log.statistics().bytes_in_flight == 0
    with pytest.raises(UnavailableError):  # the next one waits as long
        await log.raw_append(Message("orders", b"2"))


async def test_pchannel_whose_storage_has_failed_is_an_error_at_once(log: WALAccesser, served: Serving) -> None:
    await log.create_vchannel("orders")
    fail(served, "orders", StorageError("the disk is gone"))
    for _ in range(2):
        with pytest.raises(StorageError, match="the disk is gone"):
            await asyncio.wait_for(log.raw_append(Message("orders", b"1")), 60)


async def test_time_of_a_stream_that_waits_is_not_that_of_a_server_that_refuses(
    log: WALAccesser, served: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append waits at the server for its barrier for longer than appends wait for a server, which then refuses it."""
    monkeypatch.setattr(producer, "UNREACHABLE_S", 1.0)
    await log.create_vchannel("orders")
    barrier = await log.allocate_time_tick() + (30_000 << 18)
    waiting = log.append_nowait(Message("orders", b"1"), barrier_time_tick=barrier)
    await asyncio.sleep(1.2)
    began = asyncio.get_running_loop().time()
    fail(served, "orders", ChannelFencedError("fenced"))
    with pytest.raises(UnavailableError):
        await waiting
    assert asyncio.get_running_loop().time() - began > 0.9


async def test_request_follows_vchannel_that_is_created_elsewhere(
    log: WALAccesser, served: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[str] = []
    ask = RemoteDirectory.pchannel_of

    async def located_too_early(directory: RemoteDirectory, name: str) -> str:
        places.append(await ask(directory, name))
        if len(places) == 1:
            await log.create_vchannel("orders", pchannel="p1" if places[0] != "p1" else "p2")
            del directory.known.records["orders"]  # as if another client had created it
        return places[-1]

    monkeypatch.setattr(RemoteDirectory, "pchannel_of", located_too_early)
    assert await log.latest_tick("orders") > 0
    first, second = places
    assert first != second == pchannel_of(served, "orders")
