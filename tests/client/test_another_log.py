"""A client that opened one log and reaches another one: under the same address, or under one of several addresses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tests.client.test_supervision import engine
from tests.rpc.server import until
from tests.serve.servers import Serving, connected, serving
from wal import BroadcastMessage, Message, OwnerDescription, Txn, WALAccesser, bridge, open_wal
from wal.errors import FormatError, InvalidArgumentError
from wal.requests.vchannels import CreateVChannel, ListVChannels
from wal.rpc.headers import LOG_ID
from wal.serve.access import Access

Call = Callable[[WALAccesser], Awaitable[object]]


class Replaced:
    """The log that a server has at the address at which the client's log was."""

    def __init__(self, first: Serving) -> None:
        self.address = first.address
        self.before = first.log.coordinator.log_id
        self.now: Serving

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Serving]:
        async with serving(access=Access(listen=self.address)) as self.now:
            yield self.now

    def check(self, error: BaseException) -> None:
        assert isinstance(error, FormatError)
        assert not error.retryable
        assert f"{self.before:x}" in str(error)
        assert f"{self.now.log.coordinator.log_id:x}" in str(error)


async def events_of(served: Serving) -> int:
    return sum(pchannel.statistics().events for pchannel in served.log.node.pchannels.values())


@asynccontextmanager
async def client_of_replaced(begin: Call | None = None) -> AsyncIterator[tuple[WALAccesser, Replaced]]:
    """A client whose server has another log now; `begin` is called while it has the first."""
    async with serving() as first:
        replaced = Replaced(first)
        log = await open_wal(f"wal://{first.address}")
        await log.raw_append(Message("orders", b"1"), idempotency_key="k")
        if begin is not None:
            await begin(log)
    try:
        async with replaced.begin():
            yield log, replaced
    finally:
        await log.close()


async def test_keyed_append_stays_out() -> None:
    """It is in the first log, whose other server has never seen its key: nothing may be written there."""
    async with client_of_replaced() as (log, replaced), asyncio.timeout(60):
        for _ in range(2):
            with pytest.raises(FormatError) as raised:
                await log.raw_append(Message("orders", b"1"), idempotency_key="k")
            replaced.check(raised.value)
        assert await events_of(replaced.now) == 0
        assert replaced.now.log.coordinator.vchannels.records == {}


async def test_transaction_stays_out() -> None:
    async def begin(log: WALAccesser) -> None:
        txns.append(await log.txn("orders"))
        await txns[0].append(b"2")

    txns: list[Txn] = []
    async with client_of_replaced(begin) as (_log, replaced), asyncio.timeout(60):
        await replaced.now.log.submit(CreateVChannel("orders"))
        with pytest.raises(FormatError) as raised:
            await txns[0].commit()
        replaced.check(raised.value)
        assert await events_of(replaced.now) == 0


CALLS: dict[str, Call] = {
    "create_vchannel": lambda log: log.create_vchannel("new"),
    "drop_vchannel": lambda log: log.drop_vchannel("orders"),
    "create_channels": lambda log: log.create_channels(OwnerDescription("me"), 2),
    "vchannels": lambda log: log.vchannels(),
    "cursors": lambda log: log.cursors(),
    "delete_cursor": lambda log: log.delete_cursor("c"),
    "retention": lambda log: log.retention(),
    "producers": lambda log: log.producers(),
    "forget_producer": lambda log: log.forget_producer("p"),
    "allocate_time_tick": lambda log: log.allocate_time_tick(),
    "latest": lambda log: log.get_latest_mvcc_timestamp_if_local("orders"),
    "append": lambda log: log.raw_append(Message("new", b"1")),
    "append_txn": lambda log: log.append_txn("orders", [b"1", b"2"]),
    "txn": lambda log: _begin(log),
    "broadcast": lambda log: log.broadcast().append(BroadcastMessage(vchannels=["orders"], payload=b"1")),
    "ack": lambda log: log.broadcast().ack(1, "orders"),
    "tasks": lambda log: log.broadcast().tasks(),
    "read": lambda log: _read(log),
}


async def _begin(log: WALAccesser) -> None:
    await log.txn("orders")


async def _read(log: WALAccesser) -> None:
    async with log.read("orders", follow=False) as scanner:
        async for _ in scanner:
            pass


async def test_first_call_is_refused() -> None:
    """Each call is the first one of a client of its own after the server has another log."""
    async with serving() as first:
        replaced = Replaced(first)
        logs = {name: await open_wal(f"wal://{first.address}") for name in CALLS}
        await logs["append"].raw_append(Message("orders", b"1"))
    async with replaced.begin(), asyncio.timeout(60):
        raised = await asyncio.gather(*(call(logs[name]) for name, call in CALLS.items()), return_exceptions=True)
        for error in raised:
            assert isinstance(error, BaseException)
            replaced.check(error)
        assert await events_of(replaced.now) == 0
        assert replaced.now.log.coordinator.vchannels.records == {}
        for log in logs.values():
            await log.close()


async def test_client_ends_with_cause() -> None:
    """Without a call of its own: its watch of the vchannels is refused, and that ends readers and all later calls."""
    async with serving() as first:
        replaced = Replaced(first)
        log = await open_wal(f"wal://{first.address}")
        await log.raw_append(Message("orders", b"1"))
        scanner = log.read("orders")
        assert (await anext(scanner)).payload == b"1"
        waiting = asyncio.ensure_future(anext(scanner))
    async with replaced.begin(), asyncio.timeout(60):
        with pytest.raises(FormatError) as raised:
            await waiting
        replaced.check(raised.value)
        await until(lambda: engine(log).supervision.failure is not None)
        await until(lambda: not engine(log).supervision._tasks)
        for call in CALLS.values():
            with pytest.raises(FormatError) as raised:
                await call(log)
            replaced.check(raised.value)
        await log.close()


async def test_two_addresses_name_two_logs() -> None:
    async with serving() as a, serving() as b, asyncio.timeout(60), open_wal(f"wal://{a.address},{b.address}") as log:
        await log.raw_append(Message("orders", b"1"), idempotency_key="k")
        chosen, other = (a, b) if await events_of(a) else (b, a)  # the client takes the server that is connected first
        await chosen.node.close()
        with pytest.raises(FormatError, match=f"{other.log.coordinator.log_id:x}"):
            await log.raw_append(Message("orders", b"1"), idempotency_key="k")
        assert await events_of(other) == 0


async def test_older_client_is_not_judged(served: Serving) -> None:
    async with connected(served.address) as connection:
        await connection.submit(ListVChannels())
        connection.belong_to(served.log.coordinator.log_id + 1, lambda error: None)
        with pytest.raises(FormatError):
            await connection.submit(ListVChannels())


async def test_unreadable_id_is_refused(served: Serving) -> None:
    async with connected(served.address) as connection:
        connection._log_headers = ((LOG_ID, "x y"),)
        with pytest.raises(InvalidArgumentError, match=LOG_ID):
            await connection.submit(ListVChannels())


async def test_blocking_clients_are_refused() -> None:
    """The client of a thread without an event loop, and an iteration that waits at the tail."""
    loop = asyncio.get_running_loop()

    def use() -> None:
        with bridge.blocking(address) as log, bridge.iterate(address, "orders", timeout_s=10) as messages:
            log.raw_append(Message("orders", b"1"), idempotency_key="k")
            assert next(messages).payload == b"1"
            loop.call_soon_threadsafe(ready.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
            with pytest.raises(FormatError) as appended:
                log.raw_append(Message("orders", b"1"), idempotency_key="k")
            with pytest.raises(FormatError) as read:
                next(messages)
            replaced.check(appended.value)
            replaced.check(read.value)

    ready, go_on = asyncio.Event(), asyncio.Event()
    async with asyncio.timeout(60):
        async with serving() as first:
            replaced, address = Replaced(first), f"wal://{first.address}"
            using = asyncio.ensure_future(asyncio.to_thread(use))
            await ready.wait()
        async with replaced.begin():
            go_on.set()
            await using
            assert await events_of(replaced.now) == 0
