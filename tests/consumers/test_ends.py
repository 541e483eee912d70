"""The end of consumers, places where they cannot run, and their handling of copies of broadcasts."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.consumers.test_consume import append, payloads
from tests.processes import eventually
from wal import BroadcastMessage, Delivery, Message, ResourceKey, WALAccesser, open_wal
from wal.errors import ClosedError, InvalidArgumentError, InvalidTransactionStateError, NoSpaceError, ResourceAcquiredError
from wal.node.cursor_claims import LocalCursorHome


async def nothing(delivery: Delivery) -> None: ...


async def test_thread_keeps_its_message_after_close(log: WALAccesser) -> None:
    began, going, refused = threading.Event(), threading.Event(), threading.Event()
    handled: list[tuple[bytes, int]] = []

    def handle(delivery: Delivery) -> None:
        handled.append((delivery.value, delivery.attempt))
        began.set()
        if len(handled) == 1:
            going.wait(20)
            try:
                delivery.append("done", b"late")
            except InvalidTransactionStateError:
                refused.set()

    await append(log, "ab")
    consumer = log.consume("jobs", handle, cursor="worker")
    async with consumer:
        await asyncio.to_thread(began.wait)
        await consumer.close(drain_s=0.0)
    with pytest.raises(ResourceAcquiredError):
        await log.consume("jobs", nothing, cursor="worker", exclusive="error").run()
    going.set()
    async with log.consume("jobs", handle, cursor="worker") as following:
        await following.caught_up()
    assert refused.is_set()
    assert handled == [(b"a", 1), (b"a", 1), (b"b", 1)]
    assert await payloads(log, "done") == []


async def test_log_closes_under_a_thread(data: str) -> None:
    began, going = threading.Event(), threading.Event()

    def handle(delivery: Delivery) -> None:
        began.set()
        going.wait(20)

    async with open_wal(data) as log:
        await append(log, "ab")
        consumer = log.consume("jobs", handle, cursor="worker")
        async with consumer:
            await asyncio.to_thread(began.wait)
            await consumer.close(drain_s=0.0)
    going.set()
    handled: list[tuple[bytes, int]] = []

    async def remember(delivery: Delivery) -> None:
        handled.append((delivery.value, delivery.attempt))

    async with open_wal(data) as log, log.consume("jobs", remember, cursor="worker") as following:
        await following.caught_up()
    assert handled == [(b"a", 1), (b"b", 1)]


async def test_copies_of_broadcasts_are_acknowledged(log: WALAccesser) -> None:
    key = ResourceKey("table", "orders")
    going = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        await going.wait()

    await log.append("jobs", b"a")
    await log.broadcast().append(BroadcastMessage(vchannels=["jobs", "other"], payload=b"change", resource_keys=[key]))
    async with log.consume("jobs", handle, cursor="one") as one, log.consume("other", handle, cursor="two") as two:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(log.broadcast().block_until_resource_key_ack_once(key), 0.05)
        going.set()
        await log.broadcast().block_until_resource_key_ack_all(key)
        await one.caught_up()
        await two.caught_up()
    assert await log.broadcast().tasks() == []


async def test_ended_consumer_is_not_started_again(log: WALAccesser) -> None:
    consumer = log.consume("jobs", nothing, cursor="worker")
    await consumer.close()
    await consumer.run()  # returns at once: a service may end before the task that runs the consumer begins
    with pytest.raises(ClosedError, match="closed before it began"):
        await consumer.caught_up()
    async with log.consume("jobs", nothing, cursor="worker") as consumer:
        await consumer.caught_up()
    with pytest.raises(ClosedError, match="has ended"):
        await consumer.run()
    with pytest.raises(ClosedError, match="before it had caught up"):
        await consumer.caught_up()
    with pytest.raises(InvalidArgumentError, match="drain_s=-1"):
        await consumer.close(drain_s=-1)
    assert log.consumers() == []


async def test_error_ends_the_block(log: WALAccesser) -> None:
    await append(log, "a")
    with pytest.raises(InvalidArgumentError, match="returned 5"):
        async with log.consume("jobs", nothing, cursor="worker", order="key", key=lambda message: 5):  # type: ignore[call-overload]
            await eventually(lambda: log.consumers()[0].state == "ended")
    assert log.consumers() == []


async def test_position_passes_what_is_not_for_it(log: WALAccesser) -> None:
    async with log.consume("jobs", nothing, cursor="worker") as consumer:
        await append(log, "a")
        await consumer.caught_up()
        for _ in range(30):
            await log.append("others", random.randbytes(100_000))
        while (await log.cursors())[0].held_bytes > 2_000_000:
            await asyncio.sleep(0.05)
        assert consumer.statistics().commits < 10


async def test_reader_beside_has_no_consumers(data: str) -> None:
    async with open_wal(data), open_wal(data, read_only=True) as beside:
        with pytest.raises(InvalidArgumentError, match="read_only=True"):
            beside.consume("jobs", nothing, cursor="worker")


async def test_idle_consumer_lets_go_of_the_log_for_good(tmp_path: Path) -> None:
    """The position of an idle consumer moves with the log, and the next message does not move it back to truncated events."""
    async with open_wal(tmp_path / "log", segment_bytes=1 << 20) as log:
        handled: list[bytes] = []
        async with log.consume("jobs", lambda delivery: handled.append(delivery.value), cursor="worker") as consumer:
            await append(log, "a")
            await consumer.caught_up()
            results = [await log.raw_append(Message("other", bytes(100_000))) for _ in range(60)]

            async def dropped() -> bool:
                try:
                    await log.truncate(up_to=results[30].message_id)
                except InvalidArgumentError:  # the consumer still holds it
                    return False
                return True

            await eventually(dropped)
            await append(log, "b")
            await consumer.caught_up()
        assert handled == [b"a", b"b"]


async def test_consumer_outlives_a_claim_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = LocalCursorHome.claim, 0

    async def claim(self: LocalCursorHome, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise NoSpaceError("no room for the next segment: nothing was written")
        return await real(self, **options)

    monkeypatch.setattr(LocalCursorHome, "claim", claim)
    async with open_wal(tmp_path / "log") as log:
        await append(log, "a")
        async with log.consume("jobs", nothing, cursor="worker") as consumer:
            await consumer.caught_up()
            assert consumer.statistics().handled == 1
    assert calls == 3


async def test_thread_keeps_its_message_after_a_failed_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, going = threading.Event(), threading.Event()
    running: list[bytes] = []
    overlaps: list[bytes] = []
    real, is_full = LocalCursorHome.commit, False

    def commit(self: LocalCursorHome, *arguments: Any, **options: Any) -> Any:
        nonlocal is_full
        if is_full:
            is_full = False
            raise NoSpaceError("no room for the next segment: nothing was written")
        return real(self, *arguments, **options)

    def handle(delivery: Delivery) -> None:
        nonlocal is_full
        if delivery.value in running:
            overlaps.append(delivery.value)
        running.append(delivery.value)
        if delivery.value == b"a":
            began.set()
            going.wait(20)
        else:
            began.wait(20)
            is_full = not going.is_set()
        running.remove(delivery.value)

    monkeypatch.setattr(LocalCursorHome, "commit", commit)
    async with open_wal(tmp_path / "log") as log:
        await append(log, "ab")
        async with log.consume("jobs", handle, cursor="worker", concurrency=2, order="none") as consumer:
            await eventually(lambda: consumer._lingering is not None)
            going.set()
            await consumer.caught_up()
    assert overlaps == []


async def test_consumer_is_closed_while_its_log_opens(tmp_path: Path) -> None:
    wal = await open_wal(tmp_path / "log")
    consumer = wal.consume("jobs", nothing, cursor="worker")
    opening: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    consumer._open_engine = lambda: opening
    running = asyncio.ensure_future(consumer.run())
    await asyncio.sleep(0)
    await consumer.close()
    await running
    await wal.close()
