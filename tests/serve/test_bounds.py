"""The bounds over many calls of a client: each is refused with its limit, and others are served on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.serve.servers import Serving, child, connected, serving
from tests.serve.test_produce import assigned, opened
from wal import open_wal
from wal.errors import InvalidArgumentError, WouldBlockError
from wal.message import Message
from wal.requests.vchannels import ListVChannels
from wal.rpc.api import frames_pb2
from wal.rpc.converters import position_to_proto
from wal.rpc.frame_pages import READ_PAGES
from wal.rpc.methods import FOLLOW_TAIL, SUBMIT
from wal.serve.access import Access
from wal.serve.bounds import Budget
from wal.settings import ServerBounds

MIB = 1 << 20


@contextlib.asynccontextmanager
async def bounded(**bounds: Any) -> AsyncIterator[Serving]:
    async with serving(access=Access(listen="127.0.0.1:0", bounds=ServerBounds(**bounds))) as served:
        yield served


@contextlib.asynccontextmanager
async def channel_to(address: str) -> AsyncIterator[grpc.aio.Channel]:
    """A plain connection of its own, whose windows do not grow: what nobody reads stays at the server."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1), ("grpc.http2.bdp_probe", 0)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        yield channel


async def health(channel: grpc.aio.Channel) -> int:
    answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    status: int = answer.status
    return status


async def listed(address: str) -> list[str]:
    """Returns the vchannels, as another client sees them."""
    async with connected(address) as connection:
        return [info.name for info in await connection.submit(ListVChannels())]


def bounds_of(served: Serving) -> Any:
    return served.node.bounded


async def settled(condition: Any) -> None:
    """Waits until a condition holds."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.WARNING):
        yield caplog


async def test_streams_of_a_client_are_bounded() -> None:
    async with bounded(client_calls_max=8) as served, connected(served.address) as connection:
        first = frames_pb2.FollowTailRequest(pchannel=await assigned(connection))

        async def following() -> Any:
            stream = await connection.stream(FOLLOW_TAIL, "following")
            await stream.write_if_open(first)
            return stream

        await settled(lambda: bounds_of(served).calls.used == 0)  # the stream of the assignments has ended
        streams = [await following() for _ in range(8)]
        for stream in streams:
            assert await stream.read() is not None
        over = await following()
        with pytest.raises(WouldBlockError, match="client_calls_max=8 and calls_max=16384"):
            await over.read()
        assert await listed(served.address) == []  # others are served
        streams.pop().cancel()
        await settled(lambda: bounds_of(served).calls.used == 7)
        again = await following()
        assert await again.read() is not None
        for stream in (*streams, again):
            stream.cancel()


async def test_streams_that_append_have_a_bound_of_their_own() -> None:
    """At least two for each pchannel, so that a client that connects again has its stream before the old one has ended."""
    async with (
        bounded(client_produce_streams_max=1, produce_streams_max=3) as served,
        connected(served.address) as connection,
        connected(served.address) as other,
    ):
        streams = [await opened(connection), await opened(connection)]
        with pytest.raises(WouldBlockError, match=r"client_produce_streams_max=2 and produce_streams_max=3"):
            await opened(connection)
        streams.append(await opened(other))
        with pytest.raises(WouldBlockError, match=r"all together 3: at most"):
            await opened(other)
        streams.pop().cancel()
        await settled(lambda: bounds_of(served).producers.used == 2)
        streams.append(await opened(other))
        for stream in streams:
            stream.cancel()


async def test_health_answers_over_every_bound() -> None:
    async with bounded(calls_max=1) as served, channel_to(served.address) as channel, connected(served.address) as other:
        stream = await opened(other)
        await settled(lambda: bounds_of(served).calls.used == 1)
        with pytest.raises(WouldBlockError, match="calls_max=1"):
            await other.submit(ListVChannels())
        assert await health(channel) == health_pb2.HealthCheckResponse.SERVING
        stream.cancel()
        await settled(lambda: bounds_of(served).calls.used == 0)
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())  # it is a stream like others
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        assert bounds_of(served).calls.used == 1
        watch.cancel()


async def test_unread_pages_are_bounded_and_others_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal.serve.bounds.ROOM_S", 0.05)
    sizes = {"client_answer_bytes_max": 4 * MIB, "answer_bytes_max": 16 * MIB}
    async with bounded(**sizes) as served, open_wal(f"wal://{served.address}") as log:
        for _ in range(6):
            await log.raw_append(Message("orders", bytes(MIB - 1024)))
        async with connected(served.address) as connection, channel_to(served.address) as channel:
            request = frames_pb2.ReadFramesRequest(pchannel=await assigned(connection), start=position_to_proto(0), page_bytes=MIB)
            read = channel.unary_stream(READ_PAGES.path, request_serializer=type(request).SerializeToString, response_deserializer=None)
            calls = [read(request) for _ in range(40)]  # of which nobody reads an answer
            answers = bounds_of(served).answers
            await settled(lambda: sum(call.done() for call in calls) >= 30)
            assert answers.used <= 5 * MIB
            errors = [call for call in calls if call.done()]
            assert {await call.code() for call in errors} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
            assert "client_answer_bytes_max=4194304 and answer_bytes_max=16777216" in (await errors[0].details())
            async with log.read("orders", follow=False) as scanner:  # another client
                assert len([message async for message in scanner]) == 6
            for call in calls:
                call.cancel()
            await settled(lambda: answers.used < 64 * 1024)  # running streams keep room for their last answer


async def test_memory_of_unread_answers_comes_back(data_dir: Path) -> None:
    class MemoryOf:
        """Returns the bytes of memory that are a process's own."""

        def __init__(self, pid: int) -> None:
            self._file = Path(f"/proc/{pid}/status")

        def __call__(self) -> int:
            (line,) = [line for line in self._file.read_text().splitlines() if line.startswith("RssAnon")]
            return int(line.split()[1]) * 1024

    flags = ("--client-answer-bytes-max", "256MiB")
    async with child(data_dir, *flags) as served, open_wal(f"wal://{served.address}") as log:
        for _ in range(5):
            await log.raw_append(Message("orders", bytes(MIB - 1024)))
        memory = MemoryOf(served.process.pid)
        async with connected(served.address) as connection, channel_to(served.address) as channel:
            request = frames_pb2.ReadFramesRequest(pchannel=await assigned(connection), start=position_to_proto(0), page_bytes=4 * MIB)
            read = channel.unary_stream(READ_PAGES.path, request_serializer=type(request).SerializeToString, response_deserializer=None)
            before = memory()
            calls = [read(request) for _ in range(64)]
            await settled(lambda: memory() > before + 128 * MIB)
            for call in calls:
                call.cancel()
        await settled(lambda: memory() < before + 64 * MIB)


async def test_requests_that_arrive_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal.serve.bounds.ROOM_S", 0.05)
    async with bounded(client_upload_bytes_max=16 * MIB) as served, channel_to(served.address) as channel:
        call = channel.stream_stream(SUBMIT.path)  # a call of one request, of which none is sent
        stuck = [call() for _ in range(5)]
        await settled(lambda: sum(one.done() for one in stuck) == 3)
        for one in stuck:
            if one.done():
                assert await one.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert "client_upload_bytes_max=16777216" in (await one.details())
        assert await listed(served.address) == []
        for one in stuck:
            one.cancel()
        await settled(lambda: bounds_of(served).uploads.used == 0)


async def test_request_that_never_arrives_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal.serve.bounds.UPLOAD_S", 0.05)
    async with bounded() as served, channel_to(served.address) as channel:
        stuck = channel.stream_stream(SUBMIT.path)()
        assert await stuck.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "did not arrive within 0.05 s" in (await stuck.details())
        await settled(lambda: bounds_of(served).calls.used == 0)


async def test_reader_waits_for_a_busy_server() -> None:
    async with (
        bounded(calls_max=8) as served,
        open_wal(f"wal://{served.address}") as log,
        connected(served.address) as other,
        log.read("orders") as scanner,
    ):
        messages = aiter(scanner)
        await log.raw_append(Message("orders", b"1"))
        assert (await anext(messages)).payload == b"1"
        info, streams = await assigned(other), []  # asked once: the call would still have a place when the last stream is refused
        with contextlib.suppress(WouldBlockError):
            while True:
                streams.append(await opened(other, info))
        refused = bounds_of(served).calls.refused
        await served.log.appends.append_waiting(Message("orders", b"2"))
        reading = asyncio.ensure_future(anext(messages))
        await settled(lambda: bounds_of(served).calls.refused > refused + 3)  # it asks again, with pauses
        assert not reading.done()
        for stream in streams:
            stream.cancel()
        assert (await reading).payload == b"2"
        assert (await log.raw_append(Message("orders", b"3"))).message_id is not None


async def test_silent_connections_leave_the_log_its_descriptors(data_dir: Path) -> None:
    flags = ("--connections-max", "20", "--handshake-s", "0.5")
    async with child(data_dir, *flags) as served, open_wal(f"wal://{served.address}") as log:
        host, _, port = served.address.partition(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(60)]
        try:
            async with asyncio.timeout(60):
                for reader, _ in silent:  # closed at once, or after the time for its handshake
                    with contextlib.suppress(ConnectionError):
                        await reader.read()
            await log.raw_append(Message("orders", b"1"))
            async with open_wal(f"wal://{served.address}") as another:
                assert [info.name for info in await another.vchannels()] == ["orders"]
        finally:
            for _, writer in silent:
                writer.close()


async def test_idle_connection_is_closed_and_comes_back(data_dir: Path) -> None:
    async with child(data_dir, "--idle-connection-s", "0.2") as served, channel_to(served.address) as channel:
        assert await health(channel) == health_pb2.HealthCheckResponse.SERVING
        async with asyncio.timeout(60):
            while channel.get_state() is grpc.ChannelConnectivity.READY:
                await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        assert await health(channel) == health_pb2.HealthCheckResponse.SERVING


async def test_budget_grants_room_in_order() -> None:
    budget = Budget("bytes", "bytes_max", 10, 6)
    budget.take("a", 6)
    with pytest.raises(WouldBlockError, match=r"6 bytes under way, and all together 6: at most client_bytes_max=6"):
        budget.take("a", 1)
    budget.take("b", 4)
    order: list[str] = []

    async def wait(client: str, size: int) -> None:
        await budget.wait(client, size, 30.0)
        order.append(client)

    waiting = [asyncio.ensure_future(wait("a", 3)), asyncio.ensure_future(wait("c", 7)), asyncio.ensure_future(wait("d", 1))]
    await asyncio.sleep(0)
    assert not order
    budget.release("b", 4)
    await settled(lambda: order == ["d"])
    budget.release("a", 6)
    await settled(lambda: order == ["d", "a"])
    waiting[1].cancel()
    await asyncio.wait(waiting)
    budget.release("a", 3)
    budget.release("d", 1)
    assert budget.used == 0
    assert not budget.by_client
    budget.take("a", 100)  # a call that is alone gets more
    budget.force("b", 0)
    budget.release("b", 0)
    budget.release("b", 0)
    assert budget.by_client == {"a": 100}


def test_wrong_bounds_are_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, object, str]] = [
        ("calls_max", "many", "calls_max='many' is not a whole number"),
        ("answer_bytes_max", "0", "answer_bytes_max='0' is out of range"),
        ("idle_connection_s", -1.0, "idle_connection_s=-1.0 is out of range"),
        ("client_upload_bytes_max", True, "client_upload_bytes_max=True is not a size"),
    ]
    for name, value, words in cases:
        with subtests.test(name):
            with pytest.raises(InvalidArgumentError, match=words):
                ServerBounds.of({name: ("--flag", value)})
            assert ServerBounds.of({"answer_bytes_max": ("--flag", "64MiB")}).answer_bytes_max == 64 * MIB
