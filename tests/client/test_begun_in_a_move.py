"""A client that begins in the middle of a move, or while no coordinator leads, waits as an earlier client does: it gets no error."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.client.test_nodes import Coordinator, instead, server, without_pchannels
from tests.rpc.server import until
from tests.serve.servers import connected, serving
from wal import BroadcastMessage, Message, WALAccesser, bridge, open_wal
from wal.errors import ChannelNotExistError, NotLeaderError, UnavailableError, WALError
from wal.network import Method
from wal.operate.processes.standalone import all_handlers
from wal.requests.pchannels import LatestTick
from wal.requests.vchannels import CreateVChannel, ListVChannels
from wal.rpc import methods
from wal.rpc.draining import Draining
from wal.serve.hosted import Hosted
from wal.serve.server import States
from wal.settings import ServerBounds
from wal.spark.frame_source import LogSource
from wal.spark.options import ChannelChoice

TRIES = 5
"""Attempts whose pauses take longer than the news of a move."""


class Refusing:
    """A handler that refuses calls with this error, and hands them to the next handler once `over` is set."""

    def __init__(self, error: Callable[[], WALError], handler: Callable[..., Any] | None = None, *, over: Callable[[], bool]) -> None:
        self.refused = 0
        self._error = error
        self._handler = handler
        self._over = over

    async def answer(self, *arguments: Any) -> Any:
        self._check()
        assert self._handler is not None
        return await self._handler(*arguments)

    async def responses(self, *arguments: Any) -> AsyncIterator[Any]:
        self._check()
        assert self._handler is not None
        async for response in self._handler(*arguments):
            yield response

    def _check(self) -> None:
        if not self._over():
            self.refused += 1
            raise self._error()


def no_leader() -> WALError:
    return NotLeaderError("this coordinator does not lead: none leads at the moment")


def on_no_node() -> WALError:
    return UnavailableError("the pchannel is on no node")


async def read(log: WALAccesser, _address: str) -> object:
    async with log.read("v", cursor="mine", follow=False) as scanner:
        return [body.payload async for message in scanner for body in message.bodies()]


async def append(log: WALAccesser, _address: str) -> object:
    return await log.raw_append(Message("v", b"2"))


async def commit(log: WALAccesser, _address: str) -> object:
    async with log.txn("v") as txn:
        await txn.append(Message("v", b"2"))
    return txn


async def ask(log: WALAccesser, _address: str) -> object:
    return await log.latest_tick("v")


async def list_cursors(log: WALAccesser, _address: str) -> object:
    return await log.cursors() == []


async def iterate(_log: WALAccesser, address: str) -> object:
    def payloads() -> list[bytes]:
        with bridge.iterate(f"wal://{address}", "v", follow=False) as messages:
            return [message.payload for message in messages]

    return await asyncio.to_thread(payloads) == [b"1"]


async def append_blocking(_log: WALAccesser, address: str) -> object:
    def appended() -> object:
        with bridge.blocking(f"wal://{address}") as log:
            return log.raw_append(Message("v", b"2"))

    return await asyncio.to_thread(appended)


async def plan_a_batch(_log: WALAccesser, address: str) -> object:
    """Does what the driver and a task of Spark do for one batch."""

    def rows() -> int:
        logs = LogSource(f"wal://{address}").open()
        try:
            end = logs.moment("p1").durable_end
            weights = logs.weights("p1", 0, end, ChannelChoice(names=("v",)))
            pages = [logs.page("p1", weight.position, weight.next_position, frozenset({"v"}), 1 << 20) for weight in weights]
            return sum(len(page.frames) for page in pages)
        finally:
            logs.close()

    return await asyncio.to_thread(rows) == 1


Call = Callable[[WALAccesser, str], Awaitable[object]]
CALLS: dict[Call, tuple[Method[Any, Any], ...]] = {
    read: (methods.SUBMIT,),
    append: (methods.PRODUCE,),
    commit: (methods.PRODUCE,),
    ask: (methods.SUBMIT,),
    list_cursors: (methods.SUBMIT,),
    iterate: (methods.SUBMIT,),
    append_blocking: (methods.PRODUCE,),
    plan_a_batch: (methods.SUBMIT,),
}


async def call_in_a_move(
    call: Call, asked: Callable[[], int], *, nowhere: dict[Any, Any] | None = None, empty: Callable[[Any], Any] | None = None
) -> None:
    """Has a client begin, and make this call, while p1 is nowhere, where the coordinator has these handlers for it, or at a server that
    does not have it, whose handlers `empty` wraps. When that was asked often enough, p1 is at its node."""
    async with serving(pchannels=2) as node, contextlib.AsyncExitStack() as opened:
        async with open_wal(f"wal://{node.address}") as log:
            await log.create_vchannel("v", pchannel="p1")
            await log.raw_append(Message("v", b"1"))
        coordinator, places = Coordinator(), {"p0": node.address}
        if empty is not None:
            served = all_handlers(node.log, Hosted({}), Draining(), States(9), address="nowhere:1", bounds=ServerBounds())
            served |= {method: empty(served[method]) for method in CALLS[call]}
            places["p1"] = await opened.enter_async_context(server(served))
        coordinator.tell(1, places)
        served = {**without_pchannels(node), **(nowhere or {}), methods.ASSIGNMENT_DISCOVER: coordinator.discover}
        if methods.SUBMIT in (nowhere or {}):
            served = instead(served | {methods.SUBMIT: without_pchannels(node)[methods.SUBMIT]}, pchannel=served[methods.SUBMIT])
        async with server(served) as address, open_wal(f"wal://{address}") as log:
            calling = asyncio.ensure_future(call(log, address))
            await until(lambda: asked() >= TRIES or calling.done())
            assert not calling.done(), "the move has not ended"
            coordinator.tell(2, {"p0": node.address, "p1": node.address}, term=2)
            assert await calling


@pytest.mark.parametrize("call", CALLS)
async def test_call_for_a_pchannel_that_no_server_has_waits(call: Call) -> None:
    """The coordinator, which is asked as long as none has it, has no pchannels."""
    refusing = Refusing(on_no_node, over=lambda: False)
    nowhere = dict.fromkeys((*CALLS[call], methods.FOLLOW_TAIL), refusing.answer)
    await call_in_a_move(call, lambda: refusing.refused, nowhere=nowhere)


@pytest.mark.parametrize("call", CALLS)
async def test_call_to_a_node_that_was_just_started_again_waits(call: Call) -> None:
    """It has none of the pchannels that it had, and the coordinator does not know of that yet."""
    asked = 0

    def counting(handler: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            nonlocal asked
            asked += 1
            return handler(*arguments)

        return called

    await call_in_a_move(call, lambda: asked, empty=counting)


async def test_vchannel_that_does_not_exist_is_refused_where_its_pchannel_is() -> None:
    async with serving(pchannels=1, create_vchannels=False) as node:
        coordinator = Coordinator()
        coordinator.tell(1, {"p0": node.address})
        handlers = {**without_pchannels(node), methods.ASSIGNMENT_DISCOVER: coordinator.discover}
        async with server(handlers) as address, open_wal(f"wal://{address}") as log:
            engine: Any = log._lifecycle.engine
            with pytest.raises(ChannelNotExistError, match="'nothing' does not exist"):
                await engine._nodes.submit(LatestTick("nothing"), "p0")


async def test_call_waits_for_a_leader_longer_than_its_deadline() -> None:
    deadline_s, now = 1.0, asyncio.get_running_loop().time
    async with serving(pchannels=1) as node:
        handlers = without_pchannels(node)
        reading = Refusing(no_leader, handlers[methods.SUBMIT], over=lambda: now() > began + 1.2 * deadline_s)
        writing = Refusing(no_leader, handlers[methods.SUBMIT], over=lambda: now() > began + 1.2 * deadline_s)
        handlers = instead(handlers, list_vchannels=reading.answer, create_vchannel=writing.answer)
        async with server(handlers) as address, connected(address, timeout_s=deadline_s) as connection:
            began = now()
            await asyncio.gather(connection.submit(ListVChannels()), connection.submit(CreateVChannel("v")))
        assert min(reading.refused, writing.refused) > 1


async def test_log_is_opened_while_the_leader_changes() -> None:
    """The coordinator that described the log no longer leads when it is asked for the vchannels."""
    async with serving(pchannels=1) as node:
        coordinator = Coordinator()
        coordinator.tell(1, {"p0": node.address})
        handlers = {**without_pchannels(node), methods.ASSIGNMENT_DISCOVER: coordinator.discover}
        watching = Refusing(no_leader, handlers[methods.WATCH_VCHANNELS], over=lambda: watching.refused >= 2)
        handlers[methods.WATCH_VCHANNELS] = watching.responses
        async with server(handlers) as address, open_wal(f"wal://{address}") as log:
            await log.raw_append(Message("v", b"1"))
        assert watching.refused == 2


async def test_broadcast_waits_for_the_broadcaster_of_a_new_leader() -> None:
    async with serving(pchannels=1) as node:
        coordinator = Coordinator()
        coordinator.tell(1, {"p0": node.address})
        handlers = {**without_pchannels(node), methods.ASSIGNMENT_DISCOVER: coordinator.discover}
        refusing = Refusing(on_no_node, handlers[methods.SUBMIT], over=lambda: refusing.refused >= 2)
        listing = Refusing(on_no_node, handlers[methods.SUBMIT], over=lambda: listing.refused >= 2)
        handlers = instead(handlers, append_broadcast=refusing.answer, list_broadcasts=listing.answer)
        async with server(handlers) as address, open_wal(f"wal://{address}") as log:
            sent = await log.broadcast().append(BroadcastMessage(vchannels=["a", "b"], payload=b"1", needs_ack=False))
            assert set(sent.append_results) == {"a", "b"}
            assert await log.broadcast().tasks() == []
        assert (refusing.refused, listing.refused) == (2, 2)
