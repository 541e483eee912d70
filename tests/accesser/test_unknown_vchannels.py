"""A read of a vchannel that does not exist gets an empty log, and one warning that lists the existing vchannels."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.accesser.probes import payloads, read_all
from wal import Message, WALAccesser, bridge, open_wal
from wal.channels.vchannels import NOTED_MAX, UnknownVChannels, existing_vchannels
from wal.errors import ChannelNotExistError


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("WARNING", logger="wal.channels")
    return caplog


async def test_a_read_of_an_unknown_vchannel_warns_once_and_lists_the_existing_ones(
    log: WALAccesser, warnings: pytest.LogCaptureFixture
) -> None:
    for name in ("payments", "orders", "orders-eu"):
        await log.raw_append(Message(name, b""))
    assert await read_all(log, "orders") != []
    assert warnings.messages == []
    for _ in range(3):
        assert await read_all(log, "oders") == []
    (told,) = warnings.messages
    assert told.startswith("vchannel 'oders' does not exist in ")
    assert told.endswith("there are 'orders', 'orders-eu', 'payments'")
    assert await read_all(log, "other") == []
    assert len(warnings.messages) == 2
    await log.raw_append(Message("oders", b"meant"))
    assert await payloads(log, "oders") == [b"meant"]
    assert len(warnings.messages) == 2


async def test_a_log_without_vchannels_says_so(log: WALAccesser, warnings: pytest.LogCaptureFixture) -> None:
    assert await read_all(log, "orders") == []
    assert [message.partition(": ")[2] for message in warnings.messages] == [
        "it is read as an empty log until it is created; there are no vchannels yet"
    ]


async def test_readers_in_other_processes_warn_alike(data: str, warnings: pytest.LogCaptureFixture) -> None:
    async with open_wal(data) as log:
        await log.raw_append(Message("orders", b""))
    expected = f"vchannel 'oders' does not exist in journal:{data}: it is read as an empty log until it is created; there are 'orders'"
    async with open_wal(data, read_only=True) as log:
        for _ in range(2):
            assert await read_all(log, "oders") == []
    assert warnings.messages == [expected]
    for read in (_iterated, _batches):
        warnings.clear()
        assert await asyncio.to_thread(read, data) == 0
        assert warnings.messages == [expected]


async def test_the_error_of_an_unknown_vchannel_lists_the_existing_ones(location: str) -> None:
    async with open_wal(location, create_vchannels=False) as log:
        await log.create_vchannel("orders")
        with pytest.raises(ChannelNotExistError, match=r"'oders' does not exist.*there are 'orders'"):
            await read_all(log, "oders")


def test_of_many_vchannels_the_nearest_are_listed() -> None:
    known = {f"shard-{number:05}": None for number in range(30_000)} | {
        f"orders-{number}": None for number in range(90)
    }
    told = existing_vchannels("order-7", known)
    assert told.startswith("there are 30090, among them 'orders-7', ")
    assert told.count("'") == 20
    assert existing_vchannels("ORDERS", {"x", "orders"}) == "there are 'orders', 'x'"


def test_listing_takes_no_time_that_a_loop_would_notice() -> None:
    long = {"tenant/" + "ab" * 120 + f"{number:06}"[:8]: None for number in range(65_536)}
    began = time.process_time()
    existing_vchannels("tenant/" + "ab" * 118, long)
    assert time.process_time() - began < 0.25


def test_names_that_were_warned_of_are_bounded(warnings: pytest.LogCaptureFixture) -> None:
    unknown = UnknownVChannels("memory:")
    unknown.note((f"v{number}" for number in range(2 * NOTED_MAX)), ())
    assert len(warnings.messages) == NOTED_MAX


def _iterated(data: str) -> int:
    with bridge.iterate(data, "oders", follow=False) as messages:
        return len(list(messages))


def _batches(data: str) -> int:
    with bridge.record_batches(data, "oders", follow=False) as batches:
        return len(list(batches))
