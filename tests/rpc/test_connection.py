"""Connections and servers over real sockets: calls, streams, errors, tokens, TLS, bounds, deadlines, and lost connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.rpc.contract import PACKAGE, Contract
from wal.errors import (
    ChannelNotExistError,
    ClosedError,
    InvalidArgumentError,
    StorageError,
    TruncatedError,
    UnavailableError,
    UnknownError,
    UnknownOutcomeError,
)
from wal.message import MessageID
from wal.network import TlsFiles
from wal.rpc.api import cluster_pb2, component_pb2, frames_pb2, pchannel_pb2, streaming_pb2
from wal.rpc.auth import TokenCheck
from wal.rpc.connection import Connection
from wal.rpc.headers import producer_header, producer_in
from wal.rpc.methods import CREATE_VCHANNEL, DROP_VCHANNEL, LIST_VCHANNELS, NODE_STATES, PRODUCE, READ_FRAMES
from wal.rpc.serving import add_handlers, listen, server_options
from wal.secret import Secret

WAIT_S = 30.0
EARLIEST = MessageID("p-1", 7, 4096, 3)
LISTING = cluster_pb2.ListVChannelsRequest()


class Server:
    """A server with a handler of each kind. `calls` counts those that a handler saw."""

    def __init__(self) -> None:
        self.calls = 0
        self.hang = asyncio.Event()
        """Set while calls are answered."""
        self.hang.set()
        self.streams: set[Any] = set()

    def handlers(self) -> dict[Any, Any]:
        return {
            NODE_STATES: self.states,
            LIST_VCHANNELS: self.list,
            CREATE_VCHANNEL: self.create,
            DROP_VCHANNEL: self.drop,
            READ_FRAMES: self.read,
            PRODUCE: self.produce,
        }

    async def states(self, _request: object, _context: object) -> component_pb2.ComponentStates:
        return component_pb2.ComponentStates(state=component_pb2.ComponentInfo(state_code=component_pb2.Healthy))

    async def list(self, _request: object, _context: object) -> cluster_pb2.VChannelStates:
        self.calls += 1
        await self.hang.wait()
        return cluster_pb2.VChannelStates(vchannels=[pchannel_pb2.VChannelState(name="orders")])

    async def create(self, request: cluster_pb2.CreateVChannelRequest, _context: object) -> pchannel_pb2.VChannelState:
        self.calls += 1
        await self.hang.wait()
        return pchannel_pb2.VChannelState(name=request.name, pchannel="p" * len(request.pchannel))

    async def drop(self, request: cluster_pb2.DropVChannelRequest, _context: object) -> None:
        if request.name == "defect":
            raise ZeroDivisionError("division by zero")
        raise ChannelNotExistError(f"vchannel {request.name!r} does not exist")

    async def read(
        self, request: cluster_pb2.ReadFramesRequest, _context: object
    ) -> AsyncIterator[frames_pb2.FramePage]:
        for number in range(request.pages_max):
            yield frames_pb2.FramePage(promised_tick=number)
        raise TruncatedError("the position is gone", earliest=EARLIEST)

    async def produce(self, context: Any) -> None:
        """Answers each request; a text of a payload asks for something special."""
        producer_in(context.invocation_metadata())
        self.streams.add(context)
        await context.write(streaming_pb2.ProduceResponse(create=streaming_pb2.CreateProducerResponse(producer_id=1)))
        while (request := await context.read()) is not grpc.aio.EOF:
            if request.HasField("close"):
                await context.write(streaming_pb2.ProduceResponse(close=streaming_pb2.CloseProducerResponse()))
                return
            if request.produce.message.payload == b"freeze":
                await self.hang.wait()
            if request.produce.message.payload == b"fail":
                raise ChannelNotExistError("no such channel")
            answer = streaming_pb2.ProduceMessageResponse(request_id=request.produce.request_id)
            await context.write(streaming_pb2.ProduceResponse(produce=answer))


@contextlib.asynccontextmanager
async def serving(
    fake: Server,
    *,
    tls: TlsFiles | None = None,
    interceptors: Sequence[Any] = (),
    address: str = "127.0.0.1:0",
    **options: Any,
) -> AsyncIterator[int]:
    server = grpc.aio.server(interceptors=interceptors, options=server_options(**options))
    add_handlers(server, fake.handlers())
    port = await listen(server, address, tls=tls)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


@contextlib.asynccontextmanager
async def connected(*ports: int, host: str = "127.0.0.1", **options: Any) -> AsyncIterator[Connection]:
    connection = await Connection.open([f"{host}:{port}" for port in ports], **{"timeout_s": WAIT_S, **options})
    try:
        yield connection
    finally:
        await connection.close()


async def listed(connection: Connection, **options: Any) -> list[str]:
    answer = await connection.read(LIST_VCHANNELS, LISTING, "listing the vchannels", **options)
    return [state.name for state in answer.vchannels]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


def produce(number: int, payload: bytes = b"x") -> streaming_pb2.ProduceRequest:
    request = streaming_pb2.ProduceRequest()
    request.produce.request_id = number
    request.produce.message.payload = payload
    return request


HEADER = producer_header(streaming_pb2.CreateProducerRequest(pchannel=pchannel_pb2.PChannelInfo(name="p-1")))


# -- calls and streams


async def test_a_call_is_answered_and_an_error_arrives_as_it_was_raised() -> None:
    async with serving(Server()) as port, connected(port) as connection:
        assert await listed(connection) == ["orders"]
        with pytest.raises(ChannelNotExistError, match=r"^vchannel 'x' does not exist$"):
            await connection.write(DROP_VCHANNEL, cluster_pb2.DropVChannelRequest(name="x"), "dropping")


async def test_a_defect_ends_its_own_call_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Server()) as port, connected(port) as connection:
        with pytest.raises(UnknownError, match="ZeroDivisionError"):
            await connection.write(DROP_VCHANNEL, cluster_pb2.DropVChannelRequest(name="defect"), "dropping")
        assert await listed(connection) == ["orders"]
    assert "a handler of /wal.rpc.LogService/DropVChannel failed" in caplog.text


async def test_many_responses_come_before_the_error_that_ends_them() -> None:
    async with serving(Server()) as port, connected(port) as connection:
        ticks = []
        with pytest.raises(TruncatedError) as ended:
            async for page in connection.responses(READ_FRAMES, cluster_pb2.ReadFramesRequest(pages_max=5), "reading"):
                ticks.append(page.promised_tick)
        assert ticks == [0, 1, 2, 3, 4]
        assert ended.value.earliest == EARLIEST


async def test_a_stream_answers_until_it_is_closed() -> None:
    async with serving(Server()) as port, connected(port) as connection:
        stream = await connection.stream(PRODUCE, "producing", headers=[HEADER])
        created = await stream.read()
        assert created is not None
        assert created.create.producer_id == 1
        for number in range(10):
            await stream.write(produce(number))
        answers = [await stream.read() for _ in range(10)]
        assert [one.produce.request_id for one in answers if one] == list(range(10))
        await stream.write(streaming_pb2.ProduceRequest(close=streaming_pb2.CloseProducerRequest()))
        closed = await stream.read()
        assert closed is not None
        assert closed.HasField("close")
        assert await stream.read() is None
        with pytest.raises(ClosedError, match="the stream has ended"):
            await stream.write(produce(11))


async def test_a_stream_ends_with_the_servers_error_for_reader_and_writer() -> None:
    async with serving(Server()) as port, connected(port) as connection:
        stream = await connection.stream(PRODUCE, "producing", headers=[HEADER])
        await stream.read()
        await stream.write(produce(1, b"fail"))
        with pytest.raises(ChannelNotExistError, match=r"^no such channel$"):
            await stream.read()
        with pytest.raises(ChannelNotExistError, match=r"^no such channel$"):
            await stream.write(produce(2))


async def test_a_stream_without_its_header_is_refused_with_the_remedy() -> None:
    async with serving(Server()) as port, connected(port) as connection:
        stream = await connection.stream(PRODUCE, "producing")
        with pytest.raises(InvalidArgumentError, match="has 0 headers 'create-producer': send one"):
            await stream.read()


async def test_a_stream_that_is_not_read_holds_up_its_writer_and_no_other() -> None:
    fake = Server()
    async with serving(fake) as port, connected(port) as connection:
        slow = await connection.stream(PRODUCE, "producing", headers=[HEADER])
        await slow.write(produce(0, b"freeze"))
        fake.hang.clear()
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while True:
                await slow.write(produce(1, bytes(1 << 20)))
                sent += 1

        writing = asyncio.create_task(flood())
        quick = await connection.stream(PRODUCE, "producing", headers=[HEADER])
        await quick.read()
        for number in range(500):
            await quick.write(produce(number))
            answer = await quick.read()
            assert answer is not None
            assert answer.produce.request_id == number
        assert sent < 64, "of 1 MiB each"
        assert not writing.done()
        slow.cancel()
        with pytest.raises(ClosedError, match="the stream has ended"):
            await writing


async def test_cancelling_a_stream_ends_its_reader_and_cancelling_a_task_is_no_error_of_the_stream() -> None:
    async with serving(Server()) as port, connected(port) as connection:
        stream = await connection.stream(PRODUCE, "producing", headers=[HEADER])
        await stream.read()
        reading = asyncio.create_task(stream.read())
        await asyncio.sleep(0)
        stream.cancel()
        with pytest.raises(ClosedError, match="the stream has ended"):
            await reading
        stream = await connection.stream(PRODUCE, "producing", headers=[HEADER])
        await stream.read()
        reading = asyncio.create_task(stream.read())
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading


async def test_a_client_of_the_contract_talks_to_the_server(contract: Contract) -> None:
    async with serving(Server()) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        request, response = contract.kind("ProduceRequest"), contract.kind("ProduceResponse")
        call = channel.stream_stream(
            f"/{PACKAGE}.StreamingNodeHandlerService/Produce",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )(metadata=[HEADER])
        assert (await call.read()).create.producer_id == 1
        await call.write(request(produce={"request_id": 7, "message": {"payload": b"x", "properties": {"a": "b"}}}))
        assert (await call.read()).produce.request_id == 7
        await call.write(request(produce={"request_id": 8, "message": {"payload": b"fail"}}))
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call.read()
        assert ended.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        details = dict(ended.value.trailing_metadata() or ())["grpc-status-details-bin"]
        assert f"type.googleapis.com/{PACKAGE}.StreamingError".encode() in bytes(details)
        told = contract.kind("StreamingError")(code=2, cause="no such channel").SerializeToString()
        assert told in bytes(details)


# -- bounds and deadlines


async def test_a_request_above_the_servers_limit_is_refused_and_the_next_one_is_answered() -> None:
    fake = Server()
    async with serving(fake, message_bytes_max=64 << 10) as port, connected(port) as connection:
        with pytest.raises(InvalidArgumentError, match=r"larger than max .*65536.*; nothing was changed"):
            await connection.write(
                CREATE_VCHANNEL, cluster_pb2.CreateVChannelRequest(name="x" * (80 << 10)), "creating"
            )
        assert fake.calls == 0
        made = await connection.write(
            CREATE_VCHANNEL, cluster_pb2.CreateVChannelRequest(name="x" * (60 << 10)), "creating"
        )
        assert len(made.name) == 60 << 10


async def test_an_answer_may_be_larger_than_the_default_of_grpc() -> None:
    async with serving(Server()) as port, connected(port) as connection:
        request = cluster_pb2.CreateVChannelRequest(name="x", pchannel="x" * (6 << 20))
        assert len((await connection.write(CREATE_VCHANNEL, request, "creating")).pchannel) == 6 << 20


async def test_a_call_to_a_frozen_server_ends_at_its_deadline_and_says_what_is_known() -> None:
    fake = Server()
    async with serving(fake) as port, connected(port) as connection:
        fake.hang.clear()
        with pytest.raises(UnavailableError, match=rf"127.0.0.1:{port}, listing the vchannels: .*nothing was changed"):
            await listed(connection, timeout_s=0.3)
        with pytest.raises(UnknownOutcomeError, match="it may have been carried out"):
            await connection.write(
                CREATE_VCHANNEL, cluster_pb2.CreateVChannelRequest(name="x"), "creating", timeout_s=0.3
            )
        fake.hang.set()
        assert await listed(connection) == ["orders"]


async def test_a_server_that_does_not_know_a_call_says_so() -> None:
    server = grpc.aio.server(options=server_options())
    port = await listen(server, "127.0.0.1:0")
    await server.start()
    try:
        async with connected(port) as connection:
            with pytest.raises(InvalidArgumentError, match="is it a server of this log"):
                await listed(connection)
    finally:
        await server.stop(0)


# -- lost connections


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


async def test_a_server_that_is_not_there_is_named_and_nothing_was_sent() -> None:
    async with connected(free_port()) as connection:
        with pytest.raises(
            UnavailableError, match=rf"listing the vchannels was not sent; tried {connection.where}: .+is it running"
        ):
            await listed(connection, timeout_s=0.5)
        with pytest.raises(UnavailableError, match="creating was not sent"):
            await connection.write(CREATE_VCHANNEL, cluster_pb2.CreateVChannelRequest(), "creating", timeout_s=0.5)


async def test_a_client_finds_a_server_that_starts_later_and_one_that_comes_back() -> None:
    port = free_port()
    async with connected(port) as connection:
        waiting = asyncio.create_task(listed(connection))
        async with serving(Server(), address=f"127.0.0.1:{port}"):
            assert await waiting == ["orders"]
        async with serving(Server(), address=f"127.0.0.1:{port}"):
            assert await listed(connection) == ["orders"]


@pytest.mark.parametrize("writing", [False, True])
async def test_a_read_goes_on_at_another_address_and_a_write_does_not(writing: bool) -> None:
    stacks = {Server(): contextlib.AsyncExitStack() for _ in range(2)}
    ports = [await stack.enter_async_context(serving(server)) for server, stack in stacks.items()]
    async with contextlib.AsyncExitStack() as stack, connected(*ports) as connection:
        for one in stacks.values():
            stack.push_async_exit(one)
        for server in stacks:
            server.hang.clear()
        creating = connection.write(CREATE_VCHANNEL, cluster_pb2.CreateVChannelRequest(name="x"), "creating")
        call = asyncio.create_task(creating if writing else connection.read(LIST_VCHANNELS, LISTING, "listing"))  # type: ignore[arg-type]
        if not writing:
            creating.close()
        await until(lambda: any(server.calls for server in stacks))
        used, other = sorted(stacks, key=lambda server: -server.calls)
        other.hang.set()
        await stacks[used].aclose()
        if writing:
            with pytest.raises(UnknownOutcomeError, match="it may have been carried out"):
                await call
        else:
            assert len((await call).vchannels) == 1
        assert other.calls == (not writing)


async def test_a_stream_of_a_server_that_is_gone_ends_with_an_error_that_can_be_retried() -> None:
    async with contextlib.AsyncExitStack() as stack:
        port = await stack.enter_async_context(serving(Server()))
        async with connected(port) as connection:
            stream = await connection.stream(PRODUCE, "producing", headers=[HEADER])
            await stream.read()
            reading = asyncio.create_task(stream.read())
            await asyncio.sleep(0)
            await stack.aclose()
            with pytest.raises(UnavailableError, match=rf"127.0.0.1:{port}, producing: "):
                await reading
            with pytest.raises(UnavailableError, match="producing"):
                await stream.write(produce(1))


class Proxy:
    """Forwards one TCP connection after the other, until it is frozen: then bytes and ends are lost without a word."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._frozen = False
        self._tasks: set[asyncio.Task[None]] = set()

    def freeze(self) -> None:
        self._frozen = True

    async def __aenter__(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", self._target)
        for pair in ((reader, onward_writer), (onward_reader, writer)):
            self._tasks.add(asyncio.create_task(self._forward(*pair)))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                if not self._frozen:
                    writer.write(data)
            if self._frozen:
                await asyncio.Event().wait()
        finally:
            writer.transport.abort()


async def test_a_server_that_falls_silent_is_found_by_pings_on_both_sides() -> None:
    fake = Server()
    async with serving(fake, ping_s=0.4) as port:
        proxy = Proxy(port)
        async with proxy as through, connected(through, ping_s=0.4) as connection:
            stream = await connection.stream(PRODUCE, "producing", headers=[HEADER])
            await stream.read()
            (context,) = fake.streams
            proxy.freeze()
            async with asyncio.timeout(WAIT_S):
                with pytest.raises(UnavailableError, match="producing: "):
                    await stream.read()
            await until(context.done)


async def test_pings_of_an_idle_stream_are_no_attack() -> None:
    async with serving(Server(), ping_s=0.1) as port, connected(port, ping_s=0.1) as connection:
        stream = await connection.stream(PRODUCE, "producing", headers=[HEADER])
        await stream.read()
        reading = asyncio.create_task(stream.read())
        await asyncio.wait(
            [reading], timeout=5.0
        )  # gRPC pings every second at most; its default takes the third for an attack
        assert not reading.done()
        await stream.write(produce(1))
        answer = await reading
        assert answer is not None
        assert answer.produce.request_id == 1
        stream.cancel()


async def test_closing_ends_the_calls_that_wait_for_a_connection() -> None:
    connection = await Connection.open([f"127.0.0.1:{free_port()}"], timeout_s=WAIT_S)
    waiting = asyncio.create_task(listed(connection))
    await asyncio.sleep(0)
    await connection.close()
    with pytest.raises(ClosedError, match="listing the vchannels was not sent"):
        await waiting


async def test_an_address_in_use_is_named() -> None:
    async with serving(Server()) as port:
        with pytest.raises(StorageError, match=rf"nothing can listen at '127.0.0.1:{port}'"):
            await listen(grpc.aio.server(options=server_options()), f"127.0.0.1:{port}")


# -- tokens and TLS


async def test_a_token_lets_in_and_another_or_none_does_not() -> None:
    check = TokenCheck([Secret("old"), Secret("new")])
    async with serving(Server(), interceptors=[check]) as port:
        for token in ("old", "new"):
            async with connected(port, token=Secret(token)) as connection:
                assert await listed(connection) == ["orders"]
                stream = await connection.stream(PRODUCE, "producing", headers=[HEADER])
                assert await stream.read() is not None
                stream.cancel()
        for refused, words in ((Secret("other"), "is not the server's"), (None, "has none")):
            async with connected(port, token=refused) as connection:
                with pytest.raises(InvalidArgumentError, match=words) as answer:
                    await listed(connection)
                assert "other" not in str(answer.value)
                stream = await connection.stream(PRODUCE, "producing", headers=[HEADER])
                with pytest.raises(InvalidArgumentError, match=words):
                    await stream.read()
                with pytest.raises(InvalidArgumentError, match=words):
                    async for _ in connection.responses(READ_FRAMES, cluster_pb2.ReadFramesRequest(), "reading"):
                        pass


async def test_the_status_of_a_wrong_token_is_one_that_every_client_knows() -> None:
    async with (
        serving(Server(), interceptors=[TokenCheck([Secret("a")])]) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary(LIST_VCHANNELS.path, **LIST_VCHANNELS.serializers())(LISTING)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_check_needs_a_token_that_can_be_sent() -> None:
    with pytest.raises(InvalidArgumentError, match="without a token"):
        TokenCheck([])
    with pytest.raises(InvalidArgumentError, match="printable ASCII"):
        TokenCheck([Secret("ä")])


async def test_tls_and_mutual_tls(certificates: Path) -> None:
    own = {"certificate": certificates / "server.pem", "key": certificates / "server.key"}
    ca = certificates / "ca.pem"
    client = TlsFiles(ca=ca, certificate=certificates / "client.pem", key=certificates / "client.key")
    stranger = TlsFiles(ca=ca, certificate=certificates / "stranger.pem", key=certificates / "stranger.key")
    distrusting = TlsFiles(ca=certificates / "other-ca.pem")
    async with serving(Server(), tls=TlsFiles(**own)) as port:
        for tls in (TlsFiles(ca=ca), client):
            async with connected(port, tls=tls) as connection:
                assert await listed(connection) == ["orders"]
        await refused(port, distrusting)
        await refused(port, None)  # plaintext to a port with TLS
    async with serving(Server(), tls=TlsFiles(ca=ca, **own)) as port:
        async with connected(port, tls=client) as connection:
            assert await listed(connection) == ["orders"]
        for wrong in (TlsFiles(ca=ca), stranger, None):
            await refused(port, wrong)
    async with serving(Server()) as port:
        await refused(port, client)  # TLS to a port without


async def refused(port: int, tls: TlsFiles | None) -> None:
    """Checks that a client gets no connection, and learns from whom and why."""
    async with connected(port, tls=tls, timeout_s=1.0) as connection:
        with pytest.raises(UnavailableError, match=rf"tried 127.0.0.1:{port}: .+TLS right\?"):
            await listed(connection)


async def test_a_server_with_tls_needs_a_certificate(certificates: Path) -> None:
    server = grpc.aio.server()
    with pytest.raises(InvalidArgumentError, match="a server with TLS needs a certificate"):
        await listen(server, "127.0.0.1:0", tls=TlsFiles(ca=certificates / "ca.pem"))
    missing = TlsFiles(certificate=certificates / "no.pem", key=certificates / "server.key")
    with pytest.raises(InvalidArgumentError, match=r"no\.pem' cannot be read"):
        await listen(server, "127.0.0.1:0", tls=missing)
