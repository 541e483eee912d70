"""Servers that are not there, go, come back or fall silent, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.rpc.server import LISTING, WAIT_S, Server, connected, listed, produce, serving, until
from tests.servers.process import free_ports
from wal.errors import ClosedError, StorageError, UnavailableError, UnknownOutcomeError
from wal.requests.request import Request
from wal.requests.vchannels import CreateVChannel, ListVChannels
from wal.rpc.api import streaming_pb2
from wal.rpc.connection import Connection
from wal.rpc.methods import MILVUS_PRODUCE, SUBMIT
from wal.rpc.serving import listen, server_options


async def test_server_that_is_not_there_is_named_and_nothing_was_sent() -> None:
    async with connected(free_ports(1)[0]) as connection:
        with pytest.raises(UnavailableError, match=rf"listing the vchannels was not sent; tried {connection.where}: .+is it running"):
            await listed(connection, timeout_s=0.5)
        with pytest.raises(UnavailableError, match="creating vchannel 'x' was not sent"):
            await connection.submit(CreateVChannel("x"), timeout_s=0.5)


async def test_client_finds_a_server_that_starts_later_and_one_that_comes_back() -> None:
    port = free_ports(1)[0]
    async with connected(port) as connection:
        waiting = asyncio.create_task(listed(connection))
        async with serving(Server(), address=f"127.0.0.1:{port}"):
            assert await waiting == ["orders"]
        async with serving(Server(), address=f"127.0.0.1:{port}"):
            assert await listed(connection) == ["orders"]


@pytest.mark.parametrize("writing", [False, True])
async def test_read_goes_on_at_another_address_and_a_write_does_not(writing: bool) -> None:
    stacks = {Server(): contextlib.AsyncExitStack() for _ in range(2)}
    ports = [await stack.enter_async_context(serving(server)) for server, stack in stacks.items()]
    async with contextlib.AsyncExitStack() as stack, connected(*ports) as connection:
        for one in stacks.values():
            stack.push_async_exit(one)
        for server in stacks:
            server.hang.clear()
        request: Request[Any] = CreateVChannel("x") if writing else ListVChannels()
        call: asyncio.Task[Any] = asyncio.create_task(connection.submit(request))
        await until(lambda: any(server.calls for server in stacks))
        used, other = sorted(stacks, key=lambda server: -server.calls)
        other.hang.set()
        await stacks[used].aclose()
        if writing:
            with pytest.raises(UnknownOutcomeError, match="it may have been carried out"):
                await call
        else:
            assert len(await call) == 1
        assert other.calls == (not writing)


async def test_stream_of_a_server_that_is_gone_ends_with_an_error_that_can_be_retried() -> None:
    async with contextlib.AsyncExitStack() as stack:
        port = await stack.enter_async_context(serving(Server()))
        async with connected(port) as connection:
            stream = await connection.stream(MILVUS_PRODUCE, "producing")
            await stream.read()
            reading = asyncio.create_task(stream.read())
            await asyncio.sleep(0)
            await stack.aclose()
            with pytest.raises(UnavailableError, match=rf"127.0.0.1:{port}, producing: "):
                await reading
            with pytest.raises(UnavailableError, match="producing"):
                await stream.write(produce(1))


async def test_server_that_falls_silent_is_found_by_pings_on_both_sides() -> None:
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

    fake = Server()
    async with serving(fake, ping_s=0.4) as port:
        proxy = Proxy(port)
        async with proxy as through, connected(through, ping_s=0.4) as connection:
            stream = await connection.stream(MILVUS_PRODUCE, "producing")
            await stream.read()
            assert fake.streams
            proxy.freeze()
            async with asyncio.timeout(WAIT_S):
                with pytest.raises(UnavailableError, match="producing: "):
                    await stream.read()
            await until(lambda: not fake.streams)


async def test_pings_of_an_idle_stream_are_no_attack() -> None:
    async with serving(Server(), ping_s=1.0) as port, connected(port, ping_s=1.0) as connection:
        stream = await connection.stream(MILVUS_PRODUCE, "producing")
        await stream.read()
        reading = asyncio.create_task(stream.read())
        await asyncio.wait([reading], timeout=5.0)  # gRPC pings every second at most; its default takes the third for an attack
        assert not reading.done()
        await stream.write(produce(1))
        answer = await reading
        assert answer is not None
        assert answer.produce.request_id == 1
        stream.cancel()


async def test_closing_ends_the_calls_that_wait_for_a_connection() -> None:
    connection = await Connection.open([f"127.0.0.1:{free_ports(1)[0]}"], timeout_s=WAIT_S)
    waiting = asyncio.create_task(listed(connection))
    await asyncio.sleep(0)
    await connection.close()
    with pytest.raises(ClosedError, match="listing the vchannels was not sent"):
        await waiting


async def test_address_in_use_is_named() -> None:
    async with serving(Server()) as port:
        with pytest.raises(StorageError, match=rf"nothing can listen at '127.0.0.1:{port}'"):
            await listen(grpc.aio.server(options=server_options()), f"127.0.0.1:{port}")


async def test_client_that_has_gone_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    class Stubborn(Server):
        """A server whose stream writes on after its client has gone."""

        async def produce(self, context: Any) -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await super().produce(context)
                await asyncio.Event().wait()
            await context.write(streaming_pb2.ProduceResponse())

    caplog.set_level(logging.DEBUG)
    async with serving(Stubborn()) as port:
        async with connected(port) as connection:
            stream = await connection.stream(MILVUS_PRODUCE, "producing")
            await stream.read()
            stream.cancel()
        await until(lambda: any("is gone before the end" in record.getMessage() for record in caplog.records))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_metadata_has_one_bound() -> None:
    call = SUBMIT.path, SUBMIT.serializers()
    async with serving(Server()) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for _ in range(100):
            metadata = (("x", "y" * 15_000),)
            assert (await channel.unary_unary(call[0], **call[1])(LISTING, metadata=metadata)).list_vchannels.value
        with pytest.raises(grpc.aio.AioRpcError, match="16384") as refused:
            await channel.unary_unary(call[0], **call[1])(LISTING, metadata=(("x", "y" * 16_384),))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
