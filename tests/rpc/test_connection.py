"""Calls, streams, errors, bounds and deadlines, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.outages.proxy import Proxy
from tests.rpc.contract import PACKAGE, Contract
from tests.rpc.server import EARLIEST, Server, connected, listed, produce, serving
from wal import errors
from wal.network import Method
from wal.requests.vchannels import CreateVChannel, DropVChannel
from wal.rpc.api import frames_pb2, streaming_pb2
from wal.rpc.frame_pages import EncodedPage
from wal.rpc.methods import MILVUS_PRODUCE, NODE_STATES, READ_FRAMES, SUBMIT
from wal.rpc.serving import listen, server_options


async def test_call_is_answered_and_an_error_arrives_as_it_was_raised() -> None:
    async with serving(Server()) as port, connected(port) as connection:
        assert await listed(connection) == ["orders"]
        with pytest.raises(errors.ChannelNotExistError, match=r"^vchannel 'x' does not exist$"):
            await connection.submit(DropVChannel("x"))


async def test_defect_ends_its_own_call_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Server()) as port, connected(port) as connection:
        with pytest.raises(errors.UnknownError, match="ZeroDivisionError"):
            await connection.submit(DropVChannel("defect"))
        assert await listed(connection) == ["orders"]
    assert "a handler of /wal.rpc.LogService/Submit failed" in caplog.text


async def test_answer_that_is_no_message_is_an_error_of_its_call() -> None:
    """gRPC itself returns None for it, which a stream has for its end."""
    damaged = EncodedPage(b"\xff")

    async def answer(_request: object, _context: object) -> EncodedPage:
        return damaged

    async def read(_request: object, _context: object) -> AsyncIterator[EncodedPage]:
        yield damaged

    async def produce(context: Any) -> None:
        await context.write(damaged)

    class Damaged(Server):
        def handlers(self) -> dict[Any, Any]:
            each: dict[Any, Any] = {SUBMIT: answer, READ_FRAMES: read, MILVUS_PRODUCE: produce}
            found = {Method(method.path, method.request, EncodedPage): handler for method, handler in each.items()}
            return {NODE_STATES: self.states, **found}

    async with serving(Damaged()) as port, connected(port) as connection:
        with pytest.raises(errors.FormatError, match="cannot be read"):
            await listed(connection)
        with pytest.raises(errors.UnknownOutcomeError, match="cannot be read"):
            await connection.submit(DropVChannel("x"))
        with pytest.raises(errors.FormatError, match="cannot be read"):
            await anext(connection.responses(READ_FRAMES, frames_pb2.ReadFramesRequest(), "reading"))
        stream = await connection.stream(MILVUS_PRODUCE, "producing")
        with pytest.raises(errors.FormatError, match="cannot be read"):
            await stream.read()


async def test_many_responses_come_before_the_error_that_ends_them() -> None:
    async with serving(Server()) as port, connected(port) as connection:
        ticks = []
        with pytest.raises(errors.TruncatedError) as ended:
            async for page in connection.responses(READ_FRAMES, frames_pb2.ReadFramesRequest(pages_max=5), "reading"):
                ticks.append(page.promised_tick)
        assert ticks == [0, 1, 2, 3, 4]
        assert ended.value.earliest == EARLIEST


@pytest.mark.parametrize("turns", range(6))
async def test_responses_that_are_waited_for_at_the_close_are_a_closed_error(turns: int) -> None:
    """gRPC raises CancelledError for them, as if the caller had been cancelled."""

    class Silent(Server):
        async def read(self, request: object, _context: object) -> AsyncIterator[Any]:
            await asyncio.Event().wait()
            yield

    async with serving(Silent()) as port, connected(port) as connection:
        await listed(connection)
        responses = connection.responses(READ_FRAMES, frames_pb2.ReadFramesRequest(), "reading")
        waiting = asyncio.ensure_future(anext(responses))
        for _ in range(turns):
            await asyncio.sleep(0)
        connection.stop()
        await connection.close()
        with pytest.raises(errors.ClosedError):
            await waiting


async def test_stream_answers_until_it_is_closed() -> None:
    async with serving(Server()) as port, connected(port) as connection:
        stream = await connection.stream(MILVUS_PRODUCE, "producing")
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
        with pytest.raises(errors.ClosedError, match="the stream has ended"):
            await stream.write(produce(11))


async def test_stream_ends_with_the_servers_error_for_reader_and_writer() -> None:
    async with serving(Server()) as port, connected(port) as connection:
        stream = await connection.stream(MILVUS_PRODUCE, "producing")
        await stream.read()
        await stream.write(produce(1, b"fail"))
        with pytest.raises(errors.ChannelNotExistError, match=r"^no such channel$"):
            await stream.read()
        with pytest.raises(errors.ChannelNotExistError, match=r"^no such channel$"):
            await stream.write(produce(2))


async def test_stream_that_is_lost_does_not_say_what_became_of_its_requests() -> None:
    async with serving(Server()) as port, Proxy(port) as proxy, connected(int(proxy.address.rpartition(":")[2])) as connection:
        stream = await connection.stream(MILVUS_PRODUCE, "producing")
        await stream.read()
        proxy.cut()
        with pytest.raises(errors.UnavailableError, match=f"{proxy.address}, producing: ") as caught:
            await stream.read()
        assert "changed" not in str(caught.value)


async def test_stream_that_is_not_read_holds_up_its_writer_and_no_other() -> None:
    fake = Server()
    async with serving(fake) as port, connected(port) as connection:
        slow = await connection.stream(MILVUS_PRODUCE, "producing")
        fake.hang.clear()
        await slow.write(produce(0, b"freeze"))
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while True:
                await slow.write(produce(1, bytes(1 << 20)))
                sent += 1

        writing = asyncio.create_task(flood())
        quick = await connection.stream(MILVUS_PRODUCE, "producing")
        await quick.read()
        for number in range(500):
            await quick.write(produce(number))
            answer = await quick.read()
            assert answer is not None
            assert answer.produce.request_id == number
        assert sent < 64, "of 1 MiB each"
        assert not writing.done()
        slow.cancel()
        with pytest.raises(errors.ClosedError, match="the stream has ended"):
            await writing


async def test_cancelling_a_stream_ends_its_reader_and_cancelling_a_task_is_no_error_of_the_stream() -> None:
    async with serving(Server()) as port, connected(port) as connection:
        stream = await connection.stream(MILVUS_PRODUCE, "producing")
        await stream.read()
        reading = asyncio.create_task(stream.read())
        await asyncio.sleep(0)
        stream.cancel()
        with pytest.raises(errors.ClosedError, match="the stream has ended"):
            await reading
        stream = await connection.stream(MILVUS_PRODUCE, "producing")
        await stream.read()
        reading = asyncio.create_task(stream.read())
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading


async def test_client_of_the_contract_talks_to_the_server(contract: Contract) -> None:
    async with serving(Server()) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        request, response = contract.kind("ProduceRequest"), contract.kind("ProduceResponse")
        call = channel.stream_stream(
            f"/{PACKAGE}.StreamingNodeHandlerService/Produce",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )()
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


async def test_request_above_the_servers_limit_is_refused_and_the_next_one_is_answered() -> None:
    fake = Server()
    async with serving(fake, message_bytes_max=64 << 10) as port, connected(port) as connection:
        with pytest.raises(errors.InvalidArgumentError, match=r"larger than max .*65536.*; nothing was changed"):
            await connection.submit(CreateVChannel("x", "x" * (80 << 10)))
        assert fake.calls == 0
        made = await connection.submit(CreateVChannel("x", "x" * (60 << 10)))
        assert len(made.pchannel) == 60 << 10


async def test_answer_may_be_larger_than_the_default_of_grpc() -> None:
    async with serving(Server()) as port, connected(port) as connection:
        assert len((await connection.submit(CreateVChannel("x", "x" * (6 << 20)))).pchannel) == 6 << 20


async def test_call_to_a_frozen_server_ends_at_its_deadline_and_says_what_is_known() -> None:
    fake = Server()
    async with serving(fake) as port, connected(port) as connection:
        assert await listed(connection) == ["orders"]
        fake.hang.clear()
        with pytest.raises(errors.UnavailableError, match=rf"127.0.0.1:{port}, listing the vchannels: .*nothing was changed"):
            await listed(connection, timeout_s=0.3)
        with pytest.raises(errors.UnknownOutcomeError, match="it may have been carried out"):
            await connection.submit(CreateVChannel("x"), timeout_s=0.3)
        fake.hang.set()
        assert await listed(connection) == ["orders"]


async def test_server_that_does_not_know_a_call_says_so() -> None:
    server = grpc.aio.server(options=server_options())
    port = await listen(server, "127.0.0.1:0")
    await server.start()
    try:
        async with connected(port) as connection:
            with pytest.raises(errors.InvalidArgumentError, match="is it a server of this log"):
                await listed(connection)
    finally:
        await server.stop(0)
