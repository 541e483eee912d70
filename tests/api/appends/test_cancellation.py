"""A caller is cancelled at every point where it waits: the log and memory agree, and readers get each message exactly once.

There are two drivers: one cancels at the k-th suspension of the call, the other after k turns of the loop, which also covers the moment
when the outcome is known and the caller has not run yet.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from typing import Any

import pytest

from tests.locations import open_wal
from tests.probes import bodies, grouped, local, payloads, read_all, turns, written
from wal import Message, WALAccesser
from wal.errors import ChannelExistError, ChannelNotExistError, InvalidTransactionStateError, TransactionExpiredError

pytestmark = pytest.mark.on_pulsar

Call = Callable[[], Coroutine[Any, Any, Any]]
TURNS = 12


class CancelledAt(Coroutine[Any, Any, Any]):
    """A coroutine that has its task cancelled when it suspends for the k-th time."""

    def __init__(self, inner: Coroutine[Any, Any, Any], at: int) -> None:
        self.inner = inner
        self.left = at
        self.reached = False

    def send(self, value: Any) -> Any:
        waits_for = self.inner.send(value)
        if self.left == 0:
            self.reached = True
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)
        self.left -= 1
        return waits_for

    def throw(self, *error: Any) -> Any:
        return self.inner.throw(*error)

    def close(self) -> None:
        self.inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise AssertionError("it is run as a task")


async def at_suspension(call: Call, at: int) -> bool:
    """Runs the call and cancels it at its suspension number `at`; returns whether the call reached it."""
    stepped = CancelledAt(call(), at)
    await settled(asyncio.ensure_future(asyncio.get_running_loop().create_task(stepped)))
    return stepped.reached


async def after_turns(call: Call, at: int) -> bool:
    task = asyncio.get_running_loop().create_task(call())
    if at < TURNS:
        for _ in range(at):
            await asyncio.sleep(0)
        task.cancel()
    await settled(task)
    return at < TURNS


async def settled(task: asyncio.Task[Any]) -> None:
    await asyncio.wait((task,))
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


DRIVERS = pytest.mark.parametrize("drive", [at_suspension, after_turns])
Drive = Callable[[Call, int], Awaitable[bool]]


@pytest.fixture
async def open_again(location: str) -> AsyncIterator[Callable[[], Coroutine[Any, Any, WALAccesser]]]:
    """Closes the log and opens it again: the state in memory is compared with the state that a new opening finds."""
    current: list[WALAccesser] = []

    async def again() -> WALAccesser:
        if current:
            if location == "memory:":
                return current[0]
            await current.pop().close()
        current.append(await open_wal(location, in_flight_bytes_max=5000))
        return current[0]

    yield again
    for log in current:
        await log.close()


Open = Callable[[], Coroutine[Any, Any, WALAccesser]]


async def same_after_reopening(open_again: Open, *names: str) -> list[list[bytes]]:
    """Returns the messages that readers of these vchannels see now, and checks that a new opening shows the same."""
    log = await open_again()
    found = [grouped(await read_all(log, name)) for name in names]
    known = await log.vchannels()
    assert log.statistics().bytes_in_flight == 0
    assert log.statistics().appends_waiting == 0
    again = await open_again()
    assert [grouped(await read_all(again, name)) for name in names] == found
    assert await again.vchannels() == known
    return [[body for message in messages for body in message] for messages in found]


async def flush(log: WALAccesser) -> None:
    """Returns when everything that was requested before has finished."""
    await log.raw_append(Message("flush", b""))
    await turns()


@DRIVERS
@pytest.mark.parametrize("crowded", [False, True])
async def test_raw_append(open_again: Open, drive: Drive, crowded: bool) -> None:
    log = await open_again()
    reader = log.read("orders")
    await reader.__aenter__()
    at, on = 0, True
    while on:
        fillers = [log.append_nowait(Message("filler", bytes(1500))) for _ in range(3)] if crowded else []
        on = await drive(lambda: log.raw_append(Message("orders", b"%d" % at)), at)  # noqa: B023
        await asyncio.gather(*fillers)
        at += 1
    await log.raw_append(Message("orders", b"last"))
    seen = []
    async for message in reader:
        seen.append(message.payload)
        if message.payload == b"last":
            break
    await reader.close()
    assert seen == sorted(set(seen), key=lambda payload: (payload == b"last", int(payload) if payload != b"last" else 0))
    (orders,) = await same_after_reopening(open_again, "orders")
    assert orders == seen
    assert b"%d" % (at - 1) in orders, "the last one was not cancelled"


@DRIVERS
async def test_append_messages(open_again: Open, drive: Drive) -> None:
    log = await open_again()
    at, on = 0, True
    while on:
        messages = [Message(name, b"%d" % at) for name in ("a", "b", "a", "c", "b")]
        on = await drive(lambda: log.append_messages(*messages), at)  # noqa: B023
        await flush(log)
        at += 1
    for payload_groups in (grouped(await read_all(log, "a")), grouped(await read_all(log, "b"))):
        assert all(len(group) == 2 for group in payload_groups), "a transaction is whole or not there"
        assert len({group[0] for group in payload_groups}) == len(payload_groups)
    found = await same_after_reopening(open_again, "a", "b", "c")
    assert all(b"%d" % (at - 1) in some for some in found)


@pytest.mark.inside
@DRIVERS
@pytest.mark.parametrize("crowded", [False, True])
async def test_append_txn(open_again: Open, drive: Drive, crowded: bool) -> None:
    log = await open_again()
    await log.append_txn("orders", [])
    room = local(log).node.in_flight
    at, on = 0, True
    while on:
        taken = room.bytes_max if crowded and at % 2 else 0
        room.force(taken)
        asyncio.get_running_loop().call_later(0.001, room.release, taken)
        bodies = [b"%d" % at, b"%d" % at]
        on = await drive(lambda: log.append_txn("orders", bodies, idempotency_key=f"key-{at}"), at)  # noqa: B023
        await flush(log)
        at += 1
    while room.size:
        await flush(log)
    assert written(log).pchannels[0].open_transactions == 0
    groups = [group for group in grouped(await read_all(log, "orders")) if group]
    assert all(len(group) == 2 for group in groups), "a transaction is whole or not there"
    assert len({group[0] for group in groups}) == len(groups)
    assert [b"%d" % (at - 1)] * 2 in groups
    await same_after_reopening(open_again, "orders")


@DRIVERS
async def test_append_bulk(open_again: Open, drive: Drive) -> None:
    log = await open_again()
    at, on = 0, True
    while on:
        messages = [Message("orders", b"%d|%d" % (at, number) + bytes(1000)) for number in range(12)]
        on = await drive(lambda: log.append_bulk(messages), at)  # noqa: B023
        await flush(log)
        at += 1
    (orders,) = await same_after_reopening(open_again, "orders")
    pairs = [tuple(map(int, payload.rstrip(b"\0").split(b"|"))) for payload in orders]
    assert pairs == sorted(set(pairs)), "in order, each once"
    assert [number for turn, number in pairs if turn == at - 1] == list(range(12))


@pytest.mark.inside
@DRIVERS
@pytest.mark.parametrize("end", ["append", "commit", "rollback"])
async def test_transactions(open_again: Open, drive: Drive, end: str) -> None:
    log = await open_again()
    at, on = 0, True
    while on:
        txn = await log.txn("orders")
        await txn.append(b"%d" % at)
        if end == "append":
            on = await drive(lambda: txn.append(b"+"), at)  # noqa: B023
            await txn.commit()
        else:
            on = await drive(getattr(txn, end), at)
            if txn.ended:
                with pytest.raises(InvalidTransactionStateError):
                    await txn.commit()
            else:  # cancelled before the call ran at all
                await txn.rollback()
        await flush(log)
        at += 1
    assert written(log).pchannels[0].open_transactions == 0
    messages = grouped(await read_all(log, "orders"))
    (orders,) = await same_after_reopening(open_again, "orders")
    if end == "rollback":
        assert orders == []
    elif end == "commit":
        assert orders == sorted(set(orders), key=int)
        assert b"%d" % (at - 1) in orders
    else:
        assert [group[0] for group in messages] == [b"%d" % number for number in range(at)]
        assert all(group[1:] in ([], [b"+"]) for group in messages)


@pytest.mark.inside
@DRIVERS
async def test_begin(open_again: Open, drive: Drive) -> None:
    """No transaction without an owner stays open, except if its caller was cancelled while holding it: that transaction expires."""
    log = await open_again()
    at, on = 0, True
    while on:

        async def begin() -> None:
            with contextlib.suppress(TransactionExpiredError):  # the host may be paused for longer than that
                async with log.txn("orders", keepalive=0.05) as txn:
                    await txn.append(b"%d" % at)  # noqa: B023

        on = await drive(begin, at)
        await flush(log)
        at += 1
    async with log.read("orders", include_time_ticks=True) as scanner:
        while written(log).pchannels[0].open_transactions:
            await anext(scanner)
    (orders,) = await same_after_reopening(open_again, "orders")
    assert orders == sorted(set(orders), key=int)


@DRIVERS
async def test_create_vchannel(open_again: Open, drive: Drive) -> None:
    log = await open_again()
    at, on = 0, True
    while on:
        name = f"v{at}"
        on = await drive(lambda: log.create_vchannel(name), at)  # noqa: B023
        await flush(log)
        if name in [info.name for info in await log.vchannels()]:
            with pytest.raises(ChannelExistError):
                await log.create_vchannel(name)
        else:
            await log.create_vchannel(name)
        await log.raw_append(Message(name, b"1"))
        at += 1
    found = await same_after_reopening(open_again, *(f"v{number}" for number in range(at)))
    assert found == [[b"1"]] * at


@DRIVERS
async def test_drop_vchannel(open_again: Open, drive: Drive) -> None:
    log = await open_again()
    at, on = 0, True
    while on:
        name = f"v{at}"
        await log.raw_append(Message(name, b"old"))
        on = await drive(lambda: log.drop_vchannel(name), at)  # noqa: B023
        await flush(log)
        at += 1
    gone = {f"v{number}" for number in range(at)} - {info.name for info in await log.vchannels()}
    assert f"v{at - 1}" in gone
    await same_after_reopening(open_again, *(f"v{number}" for number in range(at)))
    log = await open_again()
    for name in gone:
        with pytest.raises(ChannelNotExistError):
            await log.drop_vchannel(name)
        await log.raw_append(Message(name, b"new"))
    found = await same_after_reopening(open_again, *gone)
    assert found == [[b"new"]] * len(gone)


@pytest.mark.inside
@DRIVERS
@pytest.mark.parametrize("how", ["anext", "batches"])
@pytest.mark.parametrize("lagging", [False, True])
async def test_reading(open_again: Open, drive: Drive, how: str, lagging: bool) -> None:
    """At the tail and while catching up, the next read delivers the messages that a cancelled read had not delivered."""
    log = await open_again()
    for number in range(300 if lagging else 0):
        log.append_nowait(Message("orders", b"%d" % number)) if number % 10 else await log.raw_append(Message("orders", b"%d" % number))
    await flush(log)
    written = 300 if lagging else 0
    seen: list[bytes] = []
    async with log.read("orders") as scanner:

        async def once() -> None:
            if how == "anext":
                seen.append((await anext(scanner)).payload)
                return
            async for page in scanner.batches(7):
                seen.extend(message.payload for message in page)
                return

        at, on = 0, True
        while on:
            if not lagging:
                log.append_nowait(Message("orders", b"%d" % written))
                written += 1
            before = scanner.position
            on = await drive(once, at)
            after = scanner.position
            assert before is None or (after is not None and after.time_tick >= before.time_tick)
            at += 1
        while len(seen) < written:
            await once()
    assert seen == [b"%d" % number for number in range(written)]
    assert await payloads(log, "orders") == seen


@DRIVERS
async def test_entering_a_scanner(open_again: Open, drive: Drive) -> None:
    log = await open_again()
    await log.append_bulk([Message("orders", b"%d" % number) for number in range(5)])
    at, on = 0, True
    while on:
        scanner = log.read("orders", follow=False)
        on = await drive(scanner.__aenter__, at)
        assert bodies([message async for message in scanner]) == [b"%d" % number for number in range(5)]
        await scanner.close()
        at += 1
    assert log.statistics().pchannels[0].readers == 0


@DRIVERS
async def test_closing_a_scanner(open_again: Open, drive: Drive) -> None:
    log = await open_again()
    await log.append_bulk([Message("orders", b"%d" % number) for number in range(5)])
    at, on = 0, True
    while on:
        closed = []

        class Handler:
            async def handle(self, message: object) -> None:
                await asyncio.sleep(0)

            async def close(self) -> None:
                await asyncio.sleep(0)
                closed.append(1)  # noqa: B023

        scanner = log.read("orders", handler=Handler())
        await scanner.__aenter__()
        on = await drive(scanner.close, at)
        await scanner.close()
        await scanner.done()
        assert closed == [1]
        assert scanner.error is None
        at += 1
    assert log.statistics().pchannels[0].readers == 0


@DRIVERS
async def test_truncate(open_again: Open, drive: Drive) -> None:
    log = await open_again()
    at, on = 0, True
    while on:
        results = await log.append_bulk([Message("orders", b"%d" % number) for number in range(5)])
        on = await drive(lambda: log.truncate(up_to=results[2].message_id), at)  # noqa: B023
        await flush(log)
        at += 1
    (orders,) = await same_after_reopening(open_again, "orders")
    assert orders == [b"3", b"4"]


@DRIVERS
async def test_closing_the_log(location: str, drive: Drive) -> None:
    at, on = 0, True
    written = 0
    while on:
        log = await open_wal(location)
        futures = [log.append_nowait(Message("orders", b"%d" % (written + number))) for number in range(20)]
        written += 20
        on = await drive(log.close, at)
        await log.close()
        await asyncio.gather(*futures)
        at += 1
    if location != "memory:":
        async with open_wal(location) as log:
            assert await payloads(log, "orders") == [b"%d" % number for number in range(written)]
