"""A read of a vchannel that does not exist gets an empty log, and one warning that lists the existing vchannels, unless it is created."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from actors import VirtualClock
from tests.locations import open_virtual, open_wal
from tests.probes import payloads, read_all
from wal import Message, bridge
from wal.channels.unknown_vchannels import NOTED_MAX, UnknownVChannels, existing_vchannels
from wal.errors import ChannelNotExistError


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("WARNING", logger="wal.channels")
    return caplog


async def test_read_of_a_misspelt_name_warns_once(location: str, warnings: pytest.LogCaptureFixture) -> None:
    async with open_wal(location) as log:
        for name in ("payments", "orders", "orders-eu"):
            await log.raw_append(Message(name, b""))
        assert await read_all(log, "orders") != []
        for _ in range(3):
            assert await read_all(log, "oders") == []
        assert await read_all(log, "other") == []
        await log.raw_append(Message("other", b"meant"))
        assert await payloads(log, "other") == [b"meant"]
        assert warnings.messages == []
    (message,) = warnings.messages
    assert message.startswith("vchannel 'oders' does not exist in ")
    assert message.partition("; ")[2].startswith("there are 'orders', ")


async def test_follower_warns_after_five_seconds(data_dir: Path, warnings: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    log = await open_virtual(str(data_dir), clock)
    async with log.read("orders"), log.read("stock"):
        await clock.run(4.9)
        assert warnings.messages == []
        await log.raw_append(Message("stock", b""))
        await clock.run(0.3)
        assert [message.partition(": ")[2] for message in warnings.messages] == [
            "it is read as an empty log until it is created; there are 'stock'"
        ]
        await clock.run(60.0)
    await log.close()
    assert len(warnings.messages) == 1


async def test_log_without_vchannels_says_so(location: str, warnings: pytest.LogCaptureFixture) -> None:
    async with open_wal(location) as log:
        assert await read_all(log, "orders") == []
    assert [message.partition(": ")[2] for message in warnings.messages] == [
        "it is read as an empty log until it is created; there are no vchannels yet"
    ]


async def test_readers_in_other_processes_warn_alike(data: str, warnings: pytest.LogCaptureFixture) -> None:
    def iterated(data: str) -> int:
        with bridge.iterate(data, "oders", follow=False) as messages:
            return len(list(messages))

    def _batches(data: str) -> int:
        with bridge.record_batches(data, "oders", follow=False) as batches:
            return len(list(batches))

    async with open_wal(data) as log:
        await log.raw_append(Message("orders", b""))
    expected = f"vchannel 'oders' does not exist in journal:{data}: it is read as an empty log until it is created; there are 'orders'"
    async with open_wal(data, read_only=True) as log:
        for _ in range(2):
            assert await read_all(log, "oders") == []
    assert warnings.messages == [expected]
    for read in (iterated, _batches):
        warnings.clear()
        assert await asyncio.to_thread(read, data) == 0
        assert warnings.messages == [expected]


def test_blocking_read_warns_at_its_last_message(data: str, warnings: pytest.LogCaptureFixture) -> None:
    with bridge.blocking(data) as log:
        log.append("orders", b"")
    for read in (bridge.iterate, bridge.record_batches):
        for name, text in (("oders", "there are 'orders'"), ("or*", "there are 'orders'; a name is no pattern, which is Matching('or*')")):
            warnings.clear()
            with read(data, name, follow=False) as messages:
                assert list(messages) == []
                assert [message.rpartition("until it is created; ")[2] for message in warnings.messages] == [text], name
            assert len(warnings.messages) == 1


async def test_unknown_vchannel_error_lists_existing_ones(location: str) -> None:
    async with open_wal(location, create_vchannels=False) as log:
        await log.create_vchannel("orders")
        with pytest.raises(ChannelNotExistError, match=r"'oders' does not exist.*there are 'orders'"):
            await read_all(log, "oders")


def test_of_many_vchannels_the_nearest_are_listed() -> None:
    known = {f"shard-{number:05}": None for number in range(30_000)} | {f"orders-{number}": None for number in range(90)}
    told = existing_vchannels("order-7", known)
    assert told.startswith("there are 30090, among them 'orders-7', ")
    assert told.count("'") == 20
    assert existing_vchannels("ORDERS", {"x", "orders"}) == "there are 'orders', 'x'"


def test_listing_does_not_block_the_loop() -> None:
    long = {"tenant/" + "ab" * 120 + f"{number:06}"[:8]: None for number in range(65_536)}

    def taken() -> float:
        began = time.thread_time()
        existing_vchannels("tenant/" + "ab" * 118, long)
        return time.thread_time() - began

    assert min(taken() for _ in range(3)) < 0.25


def test_names_that_were_warned_of_are_bounded(warnings: pytest.LogCaptureFixture) -> None:
    unknown = UnknownVChannels("memory:", monotonic=time.monotonic)
    assert unknown.note((f"v{number}" for number in range(2 * NOTED_MAX)), ())
    assert not unknown.note(["one more"], ())
    assert warnings.messages == []
    unknown.warn((), at_close=True)
    unknown.warn((), at_close=True)
    assert len(warnings.messages) == NOTED_MAX
