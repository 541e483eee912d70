"""A client finds a pchannel at the server that has it, which may not be the server whose address it was given."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from tests.rpc.server import until
from tests.serve.servers import Serving, connected, serving
from wal import Message, open_wal
from wal.client import producer
from wal.client.nodes import Nodes
from wal.client.supervision import Supervision
from wal.errors import (
    ChannelFencedError,
    ChannelNotExistError,
    ClosedError,
    InvalidArgumentError,
    UnavailableError,
    UnmatchedChannelTermError,
)
from wal.operate.processes.standalone import all_handlers
from wal.rpc.api import streaming_pb2 as proto
from wal.rpc.api.pchannel_pb2 import PChannelInfo
from wal.rpc.connection import Connection
from wal.rpc.draining import Draining
from wal.rpc.methods import ASSIGNMENT_DISCOVER, CONSUME, NODE_STATES, PRODUCE, SUBMIT
from wal.rpc.serving import add_handlers, listen, server_options
from wal.serve.hosted import Hosted
from wal.serve.server import States
from wal.settings import ServerBounds


class Coordinator:
    """A server without pchannels, which sends assignments. `tell` changes them."""

    def __init__(self) -> None:
        self.told: list[proto.AssignmentDiscoverResponse] = []
        self.streams = 0
        self.reports: list[proto.ReportAssignmentErrorRequest] = []
        self._changed = asyncio.Event()
        self._ending = asyncio.Event()

    def tell(self, version: int, places: dict[str, str], *, own: int = 0, term: int = 1) -> None:
        """`places`: the address of the server of each pchannel; the server's id is the number of its address, from 1 on."""
        full = proto.FullStreamingNodeAssignmentWithVersion(version=proto.VersionPair(**{"global": version}))
        for number, address in enumerate(dict.fromkeys(places.values()), 1):
            node = proto.StreamingNodeInfo(server_id=number, address=address)
            channels = [PChannelInfo(name=name, term=term) for name, at in places.items() if at == address]
            full.assignments.add(node=node, channels=channels)
        if own:
            full.answered_by.server_id = own
        self.told.append(proto.AssignmentDiscoverResponse(full_assignment=full))
        self._changed.set()

    def end(self) -> None:
        """Ends the stream that is open, as a server that is stopped does."""
        self._ending.set()
        self._changed.set()

    async def discover(self, context: Any) -> None:
        self.streams += 1
        sent = max(0, len(self.told) - 1)
        reading = asyncio.ensure_future(self._read(context))
        while not self._ending.is_set():
            self._changed.clear()  # before looking: what comes during a write is seen in the next round
            while sent < len(self.told):
                sent += 1
                await context.write(self.told[sent - 1])
            await self._changed.wait()
        self._ending.clear()
        await context.end(reading)

    async def _read(self, context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            self.reports.append(request.report_error)


@contextlib.asynccontextmanager
async def server(handlers: dict[Any, Any]) -> AsyncIterator[str]:
    """Serves these handlers; yields the address."""
    one = grpc.aio.server(options=server_options())
    add_handlers(one, handlers)
    port = await listen(one, "127.0.0.1:0")
    await one.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await one.stop(0)


@contextlib.asynccontextmanager
async def followed(coordinator: Coordinator) -> AsyncIterator[Nodes]:
    async def states(_request: object, _context: object) -> Any:
        return NODE_STATES.response()

    async def connect(address: str) -> Connection:
        return await Connection.open([address])

    handlers = {ASSIGNMENT_DISCOVER: coordinator.discover, NODE_STATES: states}
    async with server(handlers) as address, connected(address) as connection:
        nodes = Nodes(connection, connect, Supervision(connection.stop))
        try:
            await nodes.start(10.0)
            yield nodes
        finally:
            await nodes.close()


async def test_pchannel_is_found_at_the_server_that_has_it_and_where_it_moves() -> None:
    coordinator = Coordinator()
    coordinator.tell(1, {"p": "here:1", "q": "there:2"})
    async with followed(coordinator) as nodes:
        assert [nodes.connection(name).where for name in ("p", "q")] == ["here:1", "there:2"]
        at_q = nodes.connection("q")
        coordinator.tell(2, {"p": "there:2", "q": "there:2"})
        await until(lambda: nodes.connection("p").where == "there:2")
        assert nodes.connection("p") is nodes.connection("q") is at_q
        coordinator.tell(1, {"p": "here:1"})  # late, and older
        coordinator.tell(3, {"p": "third:3"})
        await until(lambda: nodes.connection("p").where == "third:3")
        assert nodes.connection("q").where == "there:2"  # nobody has it now: it may still be where it was


async def test_server_that_answers_is_reached_as_it_was_reached() -> None:
    coordinator = Coordinator()
    coordinator.tell(1, {"p": "a-name-of-its-own:8810", "q": "there:2"}, own=1)
    async with followed(coordinator) as nodes:
        assert nodes.connection("p").where.startswith("127.0.0.1:")
        assert nodes.connection("q").where == "there:2"


async def test_server_that_does_not_have_a_pchannel_is_reported_once_for_each_term() -> None:
    coordinator = Coordinator()
    coordinator.tell(1, {"p": "here:1", "q": "here:1"})
    async with followed(coordinator) as nodes:
        for error in (ClosedError("it is stopping"), UnavailableError("it is gone"), InvalidArgumentError("no")):
            nodes.reporter("p")(error)  # none of them means that the assignment is wrong
        for wrong in (ChannelNotExistError("not here"), ChannelFencedError("fenced")):
            nodes.reporter("p")(wrong)
        await until(lambda: len(coordinator.reports) == 1)
        nodes.reporter("q")(UnmatchedChannelTermError("another term"))
        await until(lambda: len(coordinator.reports) == 2)
        assert [(one.pchannel.name, one.pchannel.term, int(one.err.code)) for one in coordinator.reports] == [
            ("p", 1, ChannelNotExistError.code),
            ("q", 1, UnmatchedChannelTermError.code),
        ]
        assert coordinator.reports[0].err.cause == "not here"
        late = nodes.reporter("p")
        coordinator.tell(2, {"p": "there:2"}, term=2)
        await until(lambda: nodes.connection("p").where == "there:2")
        late(ChannelFencedError("of a call that was made before it was assigned anew"))
        nodes.reporter("p")(ChannelFencedError("fenced"))
        await until(lambda: len(coordinator.reports) == 3)
        assert (coordinator.reports[2].pchannel.term, coordinator.reports[2].err.cause) == (2, "fenced")


@pytest.mark.parametrize("reading", [False, True])
async def test_appends_and_readers_report_a_server_that_does_not_have_their_pchannel(
    reading: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "QUIET_S", 0.3)
    async with serving(pchannels=2) as node:
        coordinator = Coordinator()
        coordinator.tell(1, dict.fromkeys(node.log.node.pchannels, node.address))
        handlers = {**without_pchannels(node), ASSIGNMENT_DISCOVER: coordinator.discover}
        async with server(handlers) as address, open_wal(f"wal://{address}") as log:
            await log.create_vchannel("v", pchannel="p0")
            p0 = node.log.node.pchannels["p0"]
            waiting: Any
            async with log.read("v") as scanner:
                if reading:
                    waiting = asyncio.ensure_future(anext(scanner))
                    await until(lambda: bool(p0.tail._data))  # the reader follows
                p0.fail(ChannelFencedError("a writer with term 9 has it"))
                if not reading:
                    waiting = log.append_nowait(Message("v", b"1"))
                await until(lambda: bool(coordinator.reports))
                (report,) = coordinator.reports
                assert (report.pchannel.name, report.err.cause) == ("p0", "a writer with term 9 has it")
                waiting.cancel()


async def test_assignments_are_followed_again_when_the_stream_ends() -> None:
    coordinator = Coordinator()
    coordinator.tell(1, {"p": "here:1"})
    async with followed(coordinator) as nodes:
        coordinator.end()
        await until(lambda: coordinator.streams == 2)
        coordinator.tell(2, {"p": "there:2"})
        await until(lambda: nodes.connection("p").where == "there:2")


async def test_server_that_says_nothing_is_an_error() -> None:
    coordinator = Coordinator()
    async with server({ASSIGNMENT_DISCOVER: coordinator.discover}) as address, connected(address) as connection:
        supervision = Supervision(connection.stop)
        nodes = Nodes(connection, lambda _address: Connection.open(["none:1"]), supervision)
        with pytest.raises(UnavailableError, match=r"did not say within 0\.2 s which server has which pchannel"):
            await nodes.start(0.2)
        await nodes.close()


async def test_log_whose_pchannels_are_on_another_server() -> None:
    async with serving(pchannels=2) as node:
        coordinator = Coordinator()
        coordinator.tell(1, dict.fromkeys(node.log.node.pchannels, node.address))
        handlers = {**without_pchannels(node), ASSIGNMENT_DISCOVER: coordinator.discover}
        async with server(handlers) as address, open_wal(f"wal://{address}") as log:
            for number in range(10):
                await log.raw_append(Message(f"v{number}", b"%d" % number))
            async with log.txn(vchannel="v0") as txn:
                await txn.append(b"body")
            async with log.read("v0", cursor="mine", follow=False) as scanner:
                assert [body.payload async for message in scanner for body in message.bodies()] == [b"0", b"body"]
                await scanner.save()
            assert [info.name for info in await log.cursors()] == ["mine"]
            assert len(await log.retention()) == 2
    assert coordinator.streams == 1


async def test_beginning_of_a_read_outlives_a_move() -> None:
    asked = asyncio.Event()

    async def silent(_request: object, _context: object) -> Any:
        asked.set()
        await asyncio.get_running_loop().create_future()

    async with (
        serving(pchannels=1) as node,
        open_wal(f"wal://{node.address}") as log,
        server({SUBMIT: silent}) as dead,
        connected(dead) as before,
    ):
        await log.raw_append(Message("v", b"1"))
        engine: Any = log._lifecycle.engine
        ((name, pchannel),) = engine.pchannels.items()
        now = engine._nodes.connection(name)
        engine._nodes._places[name] = before
        moment = asyncio.ensure_future(pchannel.log.moment())
        await asked.wait()
        engine._nodes._places[name] = now
        await before.leave(UnavailableError("the server has none of its pchannels any more"))
        assert (await moment).newest is not None


def without_pchannels(node: Serving) -> dict[Any, Any]:
    """Returns the handlers of a coordinator of the log: what belongs to one pchannel is not served there."""
    hosted = Hosted({})
    handlers = all_handlers(node.log, hosted, Draining(), States(9), address="nowhere:1", bounds=ServerBounds())
    del handlers[PRODUCE], handlers[CONSUME]
    return {method: handler for method, handler in handlers.items() if "PChannelService" not in method.path}


def instead(handlers: dict[Any, Any], **others: Any) -> dict[Any, Any]:
    """Returns these handlers, with others for the requests of these names; `pchannel` is for all requests about a pchannel."""
    served = handlers[SUBMIT]

    async def submit(envelope: Any, context: Any) -> Any:
        name = "pchannel" if envelope.HasField("pchannel") and "pchannel" in others else envelope.WhichOneof("request")
        return await others.get(name, served)(envelope, context)

    return {**handlers, SUBMIT: submit}
