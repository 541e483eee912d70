"""Scheduled messages by a clock that the test moves: their order, steps of the wall clock, full disks, and what is in flight."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from actors import VirtualClock
from tests.locations import open_virtual
from tests.probes import close_all, local, payloads, run_until, start, turns, written
from tests.write.idempotency.test_write_path import Gate
from wal import ImmutableMessage, Message, WALAccesser, timestamp
from wal.errors import ClosedError, ConflictError, NoSpaceError

pytestmark = pytest.mark.inside


def at(clock: VirtualClock, seconds: float) -> datetime:
    return datetime.fromtimestamp(clock.wall() + seconds, UTC)


async def test_messages_come_in_order_of_time(location: str) -> None:
    clock = VirtualClock()
    log = await open_virtual(location, clock)
    for number, seconds in enumerate([5, 1, 3, 1, 4, 2]):
        await log.append("orders" if number % 2 else "stock", b"%d" % number, deliver_at=at(clock, seconds))
    await clock.run(0.9)
    assert await payloads(log, ["orders", "stock"]) == []
    messages = await received(clock, log, 6, "orders", "stock")
    assert [message.payload for message in messages] == [b"1", b"3", b"5", b"2", b"4", b"0"]
    assert [message.vchannel for message in messages] == ["orders", "orders", "orders", "stock", "stock", "stock"]
    (pchannel,) = written(log).pchannels
    assert (pchannel.scheduled, pchannel.scheduled_bytes, pchannel.delivered) == (0, 0, 6)
    await close_all(log)


async def received(clock: VirtualClock, log: WALAccesser, count: int, *vchannels: str) -> list[ImmutableMessage]:
    """Lets time pass until these vchannels have `count` messages, and returns the first of them."""

    async def read() -> list[ImmutableMessage]:
        async with log.read(vchannels or "orders") as scanner:
            return [await anext(scanner) for _ in range(count)]

    reader = start(read())
    await run_until(clock, reader.done)
    messages: list[ImmutableMessage] = await reader
    return messages


async def test_cancelled_message_never_comes(location: str) -> None:
    clock = VirtualClock()
    log = await open_virtual(location, clock)
    await log.append("orders", b"cancelled", deliver_at=at(clock, 1), idempotency_key="a")
    await log.append("orders", b"kept", deliver_at=at(clock, 2), idempotency_key="b")
    assert written(log).pchannels[0].scheduled == 2
    assert await (await log.scheduled("orders")).cancel("a")
    await clock.run(5)
    await received(clock, log, 1)
    assert await payloads(log, "orders") == [b"kept"]
    await close_all(log)


async def test_overdue_messages_come_after_opening(location: str) -> None:
    if location.startswith("memory"):
        pytest.skip("nothing outlives it")
    clock = VirtualClock()
    log = await open_virtual(location, clock)
    for number in range(300):
        await log.append("orders", b"%d" % number, deliver_at=at(clock, 10), idempotency_key=str(number))
    await close_all(log)
    clock.advance(100)
    log = await open_virtual(location, clock)
    assert written(log).pchannels[0].scheduled == 300
    assert [message.payload for message in await received(clock, log, 300)] == [b"%d" % number for number in range(300)]
    await close_all(log)


async def test_truncated_log_keeps_what_waits(location: str) -> None:
    if location.startswith("memory"):
        pytest.skip("nothing outlives it")
    clock = VirtualClock()
    log = await open_virtual(location, clock)
    await log.append("orders", b"later", deliver_at=at(clock, 1))
    last = await log.append("stock", b"now")
    await log.truncate(up_to=last.message_id)
    await close_all(log)
    log = await open_virtual(location, clock)
    (message,) = await received(clock, log, 1)
    assert message.payload == b"later"
    await close_all(log)


async def test_message_waits_for_ticks_and_clock(location: str) -> None:
    clock = VirtualClock()
    log = await open_virtual(location, clock)
    await log.append("orders", b"1", deliver_at=at(clock, 100))
    clock.step_wall(-1_000)
    await clock.run(50)
    assert await payloads(log, "orders") == []
    clock.step_wall(1_060)
    (message,) = await received(clock, log, 1)
    clock.step_wall(-1_000)  # ticks do not go back, and do not show the time of day
    result = await log.append("orders", b"2", deliver_at=timestamp.to_datetime(message.time_tick))
    assert result.appended is None
    await close_all(log)


async def test_full_disk_delays_delivery(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    log = await open_virtual(location, clock)
    await log.append("orders", b"1", deliver_at=at(clock, 1), idempotency_key="k")
    gate = Gate(log, monkeypatch)
    await run_until(clock, lambda: gate.held)
    cancelling = start((await log.scheduled("orders")).cancel("k"))
    await turns()
    gate.refuse()
    with pytest.raises(NoSpaceError):
        await cancelling
    assert written(log).pchannels[0].scheduled == 1
    await clock.run(1)
    await received(clock, log, 1)
    assert (await log.append("orders", b"1", idempotency_key="k")).duplicate
    assert await payloads(log, "orders") == [b"1"]
    await close_all(log)


async def test_refused_message_is_not_scheduled(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    log = await open_virtual(location, clock)
    await log.append("orders", b"0", deliver_at=at(clock, 1e6))
    gate = Gate(log, monkeypatch)
    calls = [start(log.append("orders", b"1", deliver_at=at(clock, 1), idempotency_key="k")) for _ in range(2)]
    await turns()
    cancelling = start((await log.scheduled("orders")).cancel("k"))
    await turns()
    gate.refuse()
    for call in calls:
        with pytest.raises(NoSpaceError):
            await call
    assert not await cancelling
    assert not (await log.append("orders", b"1", deliver_at=at(clock, 1), idempotency_key="k")).duplicate
    await clock.run(2)
    await received(clock, log, 1)
    assert await payloads(log, "orders") == [b"1"]
    await close_all(log)


async def test_cancellation_follows_its_message(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message in flight is cancelled once it is durable; a message in delivery cannot be cancelled any more."""
    clock = VirtualClock()
    log = await open_virtual(location, clock)
    await log.append("orders", b"0", deliver_at=at(clock, 1), idempotency_key="delivered")
    gate = Gate(log, monkeypatch)
    call = start(log.append("orders", b"1", deliver_at=at(clock, 100), idempotency_key="cancelled"))
    pchannel = local(log).node.pchannels["p0"]
    await run_until(clock, lambda: pchannel.schedule.pending(pchannel.vchannels["orders"].run_name))
    schedule = await log.scheduled("orders")
    cancelling = [start(schedule.cancel(key)) for key in ("cancelled", "delivered", "cancelled")]
    await turns()
    assert not any(task.done() for task in cancelling)
    gate.open()
    assert not (await call).duplicate
    assert await asyncio.gather(*cancelling) == [True, False, True]
    await clock.run(200)
    await received(clock, log, 1)
    assert await payloads(log, "orders") == [b"0"]
    await close_all(log)


async def test_delivery_in_flight_is_the_last_event(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    log = await open_virtual(location, clock)
    first = await log.append("orders", b"0")
    await log.append("orders", b"1", deliver_at=at(clock, 1))
    gate = Gate(log, monkeypatch)
    await run_until(clock, lambda: gate.held)
    conflicting = start(log.raw_append(Message("orders", b"2"), expected_last=first.message_id))
    await turns()
    assert not conflicting.done()
    gate.open()
    with pytest.raises(ConflictError) as raised:
        await conflicting
    assert raised.value.last == (await log.last("orders"))
    assert await payloads(log, "orders") == [b"0", b"1"]
    await close_all(log)


async def test_dropped_in_flight(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that is scheduled, cancelled or delivered during the drop of its vchannel ends without a trace."""
    clock = VirtualClock()
    log = await open_virtual(location, clock)
    for name in ("cancelled", "due"):
        await log.append("orders", b"x", deliver_at=at(clock, 1 if name == "due" else 100), idempotency_key=name)
    gate = Gate(log, monkeypatch)
    call = start(log.append("orders", b"x", deliver_at=at(clock, 100), idempotency_key="scheduled"))
    cancelling = start((await log.scheduled("orders")).cancel("cancelled"))
    await turns()
    await clock.run(2)
    dropping = start(log.drop_vchannel("orders"))
    await turns(60)
    gate.open()
    await dropping
    await asyncio.gather(call, cancelling)
    pchannel = local(log).node.pchannels["p0"]
    assert (len(pchannel.schedule.table), pchannel.schedule.table.bytes) == (0, 0)
    assert not (await log.append("orders", b"new", idempotency_key="due")).duplicate
    await clock.run(200)
    assert await payloads(log, "orders") == [b"new"]
    await close_all(log)


@pytest.mark.not_on("wal", "waits for what a server does by the clock of the test")
async def test_first_message_waits_for_a_checkpoint(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older version refuses the checkpoint, and forgets nothing; without one, nothing is scheduled."""
    clock = VirtualClock()
    log = await open_virtual(location, clock)
    await log.append("orders", b"0")
    backend = local(log).node.pchannels["p0"].log
    states: list[int] = []
    save: Any = backend.save_state

    async def failing(position: int, pieces: Any) -> None:
        states.append(position)
        raise NoSpaceError("no room for the checkpoint")

    async def counting(position: int, pieces: Any) -> None:
        states.append(position)
        await save(position, pieces)

    monkeypatch.setattr(backend, "save_state", failing)
    calls = [start(log.append("orders", b"1", deliver_at=at(clock, 10))) for _ in range(2)]
    for call in calls:
        with pytest.raises(NoSpaceError):
            await call
    assert len(states) == 1
    monkeypatch.setattr(backend, "save_state", counting)
    later = start(log.append("orders", b"1", deliver_at=at(clock, 10)))
    await turns()
    assert not later.done(), "the next attempt has to wait for a moment"
    await run_until(clock, later.done)
    await later
    await log.append("orders", b"2", deliver_at=at(clock, 10))
    assert len(states) == 2
    await close_all(log)


@pytest.mark.not_on("wal", "a client closes without its server")
async def test_close_refuses_what_waits_for_a_checkpoint(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    log = await open_virtual(location, clock)
    await log.append("orders", b"0")
    pchannel = local(log).node.pchannels["p0"]
    assert pchannel.checkpointer is not None
    monkeypatch.setattr(pchannel.checkpointer, "mark", lambda settled: None)
    call = start(log.append("orders", b"1", deliver_at=at(clock, 10)))
    await turns()
    assert not call.done()
    await close_all(log)
    with pytest.raises(ClosedError):
        await call
