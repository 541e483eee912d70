"""A pchannel that is on no node for longer than a call waits: every call fails with an error to retry after, and consumers wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Literal

import pytest

from tests.client.test_nodes import Coordinator, server, without_pchannels
from tests.rpc.server import until
from tests.serve.servers import Serving, serving
from wal import All, Delivery, Matching, ProducerKey, WALAccesser, open_wal
from wal.client import nodes
from wal.consumers import consumer as consumers
from wal.errors import ChannelNotExistError, InvalidArgumentError, UnavailableError
from wal.operate.processes.standalone import all_handlers
from wal.rpc.draining import Draining
from wal.rpc.methods import ASSIGNMENT_DISCOVER, SUBMIT
from wal.serve.hosted import Hosted
from wal.serve.server import States
from wal.settings import ServerBounds


class Moving:
    """A log of two pchannels: p0 with the vchannel "w" stays at its node, `move` places p1 with "v"."""

    log: WALAccesser

    def __init__(self, node: Serving, coordinator: Coordinator) -> None:
        self._node = node
        self._empty = ""
        self._coordinator = coordinator
        self._version = 1
        self.refused = 0
        """How many calls the empty server got."""

    async def move(self, *, away: bool) -> None:
        """Assigns p1 to a server that has no pchannels, or to its node; returns when the client has the assignment."""
        self._version += 1
        there = self._empty if away else self._node.address
        self._coordinator.tell(self._version, {"p0": self._node.address, "p1": there}, term=self._version)
        engine: Any = self.log._lifecycle.engine
        await until(lambda: engine._nodes._terms["p1"] == self._version)

    def counting(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            self.refused += 1
            return handler(*arguments)

        return called


@contextlib.asynccontextmanager
async def moving(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> AsyncIterator[Moving]:
    monkeypatch.setattr(nodes, "MOVING_S", 0.1)
    monkeypatch.setattr(consumers, "PAUSES_S", (0.01, 0.05))
    async with serving(pchannels=2, **settings) as node, contextlib.AsyncExitStack() as stack:
        coordinator = Coordinator()
        cluster = Moving(node, coordinator)
        coordinator.tell(1, {"p0": node.address, "p1": node.address})
        without = all_handlers(node.log, Hosted({}), Draining(), States(9), address="nowhere:1", bounds=ServerBounds())
        counted = {
            method: cluster.counting(each) if "PChannelService" in method.path or method is SUBMIT else each
            for method, each in without.items()
        }
        cluster._empty = await stack.enter_async_context(server(counted))
        handlers = {**without_pchannels(node), ASSIGNMENT_DISCOVER: coordinator.discover}
        address = await stack.enter_async_context(server(handlers))
        cluster.log = await stack.enter_async_context(open_wal(f"wal://{address}"))
        await cluster.log.create_vchannel("v", pchannel="p1")
        await cluster.log.create_vchannel("w", pchannel="p0")
        yield cluster


async def test_calls_fail_with_a_retryable_error(monkeypatch: pytest.MonkeyPatch) -> None:
    later = datetime(2200, 1, 1, tzinfo=UTC)

    async def read(log: WALAccesser) -> list[bytes]:
        async with log.read("v", cursor="mine", follow=False) as scanner:
            return [body.payload async for message in scanner for body in message.bodies()]

    async with moving(monkeypatch) as cluster:
        log = cluster.log
        first = (await log.append("v", b"1")).message_id
        await log.append("v", b"2", deliver_at=later, idempotency_key="later")
        await log.append("v", b"2", idempotency_key=ProducerKey("device", 1))
        schedule = await log.scheduled("v")
        async with log.read("v", cursor="mine") as scanner:
            await anext(scanner)
            await scanner.save()
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "save": scanner.save,
                "seek": lambda: log.seek("mine", to=All(), vchannels="v"),
                "cursors": log.cursors,
                "retention": log.retention,
                "read": lambda: read(log),
                "peek": lambda: log.peek("mine", vchannels="v"),
                "latest_tick": lambda: log.latest_tick("v"),
                "last": lambda: log.last("v"),
                "append_later": lambda: log.append("v", b"3", deliver_at=later, idempotency_key="three"),
                "scheduled": lambda: log.scheduled("v"),
                "cancel": lambda: schedule.cancel("later"),
                "producers": log.producers,
                "forget_producer": lambda: log.forget_producer("device"),
                "delete_cursor": lambda: log.delete_cursor("mine"),
                "truncate": lambda: log.truncate(up_to=first),
            }
            await cluster.move(away=True)
            outcomes = await asyncio.gather(*(call() for call in calls.values()), return_exceptions=True)
            assert {name: type(each) for name, each in zip(calls, outcomes, strict=True)} == dict.fromkeys(calls, UnavailableError)
            assert all("pchannel p1 was on no server for 0.1 s" in str(each) for each in outcomes)
            monkeypatch.setattr(nodes, "MOVING_S", 30.0)
            await cluster.move(away=False)
            for call in calls.values():
                await call()


async def test_missing_vchannel_stays_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with moving(monkeypatch, create_vchannels=False) as cluster:
        for away in (False, True):
            await cluster.move(away=away)
            for call in (cluster.log.latest_tick, cluster.log.last, cluster.log.scheduled, cluster.log.drop_vchannel):
                with pytest.raises(ChannelNotExistError, match="'nothing' does not exist"):
                    await call("nothing")


@pytest.mark.parametrize("begun", ["before", "within"])
@pytest.mark.parametrize("exclusive", ["wait", "error"])
async def test_consumer_outlives_the_outage(begun: str, exclusive: Literal["wait", "error"], monkeypatch: pytest.MonkeyPatch) -> None:
    async with moving(monkeypatch) as cluster:
        log, payloads = cluster.log, list[bytes]()

        async def handle(delivery: Delivery) -> None:
            payloads.append(delivery.value)

        await log.append("v", b"1")
        consumer = log.consume("v", handle, cursor="worker", exclusive=exclusive)
        if begun == "within":
            await cluster.move(away=True)
        running = asyncio.ensure_future(consumer.run())
        if begun == "before":
            await until(lambda: payloads == [b"1"])
            await cluster.move(away=True)
        refused = cluster.refused
        await until(lambda: cluster.refused > refused + 10 or running.done())
        assert not running.done(), running
        await cluster.move(away=False)
        await log.append("v", b"2")
        await until(lambda: payloads[-1:] == [b"2"] or running.done())
        assert payloads == [b"1", b"2"]
        await consumer.close()
        await running


@pytest.mark.parametrize("vchannels", ["v", Matching("*")], ids=["name", "pattern"])
async def test_beginning_consumer_closes_during_the_outage(vchannels: str | Matching, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cursor is free after that."""
    async with moving(monkeypatch) as cluster:

        async def handle(delivery: Delivery) -> None: ...

        await cluster.log.append("v", b"1")
        monkeypatch.setattr(nodes, "MOVING_S", 600.0)
        await cluster.move(away=True)
        consumer = cluster.log.consume(vchannels, handle, cursor="worker")
        running, refused = asyncio.ensure_future(consumer.run()), cluster.refused
        await until(lambda: cluster.refused > refused)
        await consumer.close()
        await running
        await cluster.move(away=False)
        async with cluster.log.consume(vchannels, handle, cursor="worker", exclusive="error") as consumer:
            await consumer.caught_up()


async def test_consumer_asks_no_other_pchannel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a new consumer, with a new cursor or a saved one, nor a running one."""
    async with moving(monkeypatch) as cluster:
        await cluster.log.append("w", b"1")
        await cluster.move(away=True)

        async def handle(delivery: Delivery) -> None: ...

        for _ in range(2):
            async with cluster.log.consume("w", handle, cursor="worker") as consumer:
                await consumer.caught_up()
        with pytest.raises(InvalidArgumentError, match="cursor 'worker' is saved for 'w'"):
            await cluster.log.consume(["other", "w"], handle, cursor="worker").run()
        assert not cluster.refused
