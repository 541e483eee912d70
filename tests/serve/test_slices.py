"""No request holds everybody: what a large one needs is counted by turns of the loop, never timed."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.protobuf.message import Message as Proto

from actors.group import RUNS_A_TURN
from tests.serve.columns import columns_of
from tests.serve.servers import Serving, connected, serving
from tests.serve.test_produce import opened, outcomes
from wal.channels.slices import SLICE
from wal.coordinator.vchannels import VChannels
from wal.errors import InvalidArgumentError
from wal.message import AppendResult, Message, MessageType, encode_properties
from wal.node.appends import LocalAppends
from wal.requests.txns import AppendTxn, BeginTxn
from wal.requests.vchannels import CreateVChannel, ListVChannels, LocateVChannels
from wal.rpc import appends as wire
from wal.rpc.api import append_pb2
from wal.rpc.api import requests_pb2 as submit_pb2
from wal.rpc.appends import outcomes_from_proto
from wal.rpc.connection import Connection
from wal.rpc.conversation import ENTRIES_MAX
from wal.rpc.methods import SUBMIT
from wal.write.vchannel import VChannel

MANY = 4 * SLICE


class Turns:
    """Counts calls of methods by the turn of the loop in which they are made."""

    def __init__(self) -> None:
        self.turn = 0
        self.calls: Counter[int] = Counter()

    @contextlib.contextmanager
    def counted(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        method: Callable[..., Any] = getattr(owner, name)

        def call(*values: Any, **named: Any) -> Any:
            self.calls[self.turn] += 1
            return method(*values, **named)

        handle: asyncio.Handle

        def following() -> None:
            nonlocal handle
            self.turn += 1
            handle = loop.call_soon(following)

        handle = loop.call_soon(following)
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, call)
            try:
                yield
            finally:
                handle.cancel()


@pytest.fixture
def turns() -> Turns:
    return Turns()


async def ask(connection: Connection, method: Any, request: Proto) -> Any:
    return await connection.call(method, request, "asking", timeout_s=60.0)


async def answer(stream: Any, **request: Any) -> BaseException | None:
    """Returns the error of a request on a Produce stream, whose number is 1, or None."""
    await stream.write(append_pb2.ProducerRequest(request_id=1, **request))
    response = await stream.read()
    if response.outcomes.begun:
        return None
    ((_, outcome),) = outcomes_from_proto(response.outcomes)
    return outcome if isinstance(outcome, BaseException) else None


async def test_vchannels_are_created_in_slices(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served, connected(served.address) as connection:
        with turns.counted(monkeypatch, VChannels, "create_nowait"):
            names = [f"located-{number}" for number in range(MANY)]
            answered = await connection.submit(LocateVChannels(tuple(names), create=True), timeout_s=60.0)
            assert [state.name for state in answered] == names
            assert all(state.incarnation for state in answered)
            stream = await opened(connection)
            begin = append_pb2.BeginTxn(vchannels=[f"begun-{number}" for number in range(MANY)])
            assert await answer(stream, begin_txn=begin) is None
            messages = [Message(f"appended-{number}", b"") for number in range(MANY)]
            append = append_pb2.Append(messages=columns_of(messages))
            await stream.write(append_pb2.ProducerRequest(request_id=1, append=append))
            assert all(isinstance(one, AppendResult) for one in (await outcomes(stream, MANY)).values())
        assert sum(turns.calls.values()) == 3 * MANY
        assert max(turns.calls.values()) <= SLICE


@pytest.mark.parametrize("properties", [{}, {"a": "b"}], ids=["plain", "with properties"])
async def test_appends_are_executed_in_slices(
    turns: Turns, monkeypatch: pytest.MonkeyPatch, served: Serving, connection: Connection, properties: dict[str, str]
) -> None:
    stream = await opened(connection)
    await served.log.submit(CreateVChannel("orders"))
    messages = append_pb2.MessageColumns(vchannels=["orders"], payload_lengths=bytes(4 * MANY))
    if properties:
        one = encode_properties(properties)
        messages.properties_lengths, messages.properties = struct.pack("<I", len(one)) * MANY, one * MANY
    else:
        # No transaction may span one of these, so that each is an operation of its own.
        messages.types = struct.pack("<I", int(MessageType.DROP_PARTITION)) * MANY
    owner, name = (wire, "check_properties") if properties else (LocalAppends, "send_run")
    with turns.counted(monkeypatch, owner, name):
        await stream.write(append_pb2.ProducerRequest(request_id=1, append=append_pb2.Append(messages=messages)))
        assert len(await outcomes(stream, MANY)) == MANY
    assert sum(turns.calls.values()) == MANY
    assert max(turns.calls.values()) <= SLICE


async def test_transaction_that_is_refused_creates_nothing(served: Serving, connection: Connection) -> None:
    stream = await opened(connection)
    bodies_max = served.log.settings.txn_bodies_max
    many = [f"v{number}" for number in range(bodies_max + 1)]
    begin = append_pb2.BeginTxn(vchannels=many)
    txn = append_pb2.AppendTxn(vchannels=many, bodies=columns_of([Message("v0", b"")]))
    for refused in (await answer(stream, begin_txn=begin), await answer(stream, append_txn=txn)):
        assert isinstance(refused, InvalidArgumentError)
        assert f"over {bodies_max + 1} vchannels exceeds txn_bodies_max={bodies_max}" in str(refused)
    with pytest.raises(InvalidArgumentError, match="which bounds its vchannels"):
        await served.log.appends.begin_txn(BeginTxn(tuple(many), keepalive_s=10.0))
    assert not served.log.coordinator.vchannels.records


async def test_transaction_without_room_creates_nothing() -> None:
    async with serving(vchannels_max=10) as served, connected(served.address) as connection:
        stream = await opened(connection)
        begin = append_pb2.BeginTxn(vchannels=[f"v{number}" for number in range(11)])
        refused = await answer(stream, begin_txn=begin)
        assert isinstance(refused, InvalidArgumentError)
        assert "'v0' and 10 others would be 1 more than vchannels_max=10" in str(refused)
        assert not served.log.coordinator.vchannels.records
        request = LocateVChannels(tuple(begin.vchannels), create=True)
        with pytest.raises(InvalidArgumentError, match="1 more than vchannels_max=10"):
            await connection.submit(request)
        assert not served.log.coordinator.vchannels.records


async def test_transaction_over_pchannels_creates_nothing() -> None:
    async with serving(pchannels=2) as served:
        names = tuple(f"v{number}" for number in range(16))
        for call in (
            lambda: served.log.appends.begin_txn(BeginTxn(names, keepalive_s=10.0)),
            lambda: served.log.appends.send_txn(AppendTxn(names, bodies=[Message("v0", b"")])),
        ):
            with pytest.raises(InvalidArgumentError, match="and 6 others"):
                await call()
        assert not served.log.coordinator.vchannels.records


async def test_too_many_entries_are_counted_before_they_are_read(
    turns: Turns, monkeypatch: pytest.MonkeyPatch, served: Serving, connection: Connection
) -> None:
    stream = await opened(connection)
    millions = [""] * 1_000_000
    deletion = submit_pb2.DeleteCursors(name="x", vchannels={"names": millions})
    requests: list[tuple[Any, Proto]] = [
        (SUBMIT, submit_pb2.SubmitRequest(locate_vchannels=submit_pb2.LocateVChannels(names=millions))),
        (SUBMIT, submit_pb2.SubmitRequest(destroy_channels=submit_pb2.DestroyChannels(names=millions))),
        (SUBMIT, submit_pb2.SubmitRequest(describe_channels=submit_pb2.DescribeChannels(names={"names": millions}))),
        (
            SUBMIT,
            submit_pb2.SubmitRequest(append_broadcast=submit_pb2.AppendBroadcast(message=submit_pb2.BroadcastMessage(vchannels=millions))),
        ),
        (SUBMIT, submit_pb2.SubmitRequest(delete_cursors=deletion)),
    ]
    for method, request in requests:
        with pytest.raises(InvalidArgumentError, match=f"more than {ENTRIES_MAX} fields"):
            await ask(connection, method, request)
    await stream.write(append_pb2.ProducerRequest(request_id=1, begin_txn=append_pb2.BeginTxn(vchannels=millions)))
    with pytest.raises(InvalidArgumentError, match=f"more than {ENTRIES_MAX} fields"):
        await stream.read()


async def test_request_of_too_many_messages_makes_none(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    for name in ("Message", "Append"):
        monkeypatch.setattr(f"wal.rpc.appends.{name}", lambda *values, **named: made.append(values))
    stream = await opened(connection)
    million = append_pb2.MessageColumns(vchannels=["orders"], payload_lengths=bytes(4_000_000))
    await stream.write(append_pb2.ProducerRequest(request_id=1, append=append_pb2.Append(messages=million)))
    with pytest.raises(InvalidArgumentError, match="1000000 messages, at most 65536"):
        await stream.read()
    stream = await opened(connection)
    txn = append_pb2.AppendTxn(vchannels=["orders"], bodies=million)
    refused = await answer(stream, append_txn=txn)
    assert isinstance(refused, InvalidArgumentError)
    assert "1000000 bodies exceeds txn_bodies_max=4096" in str(refused)
    assert not made


async def test_message_of_many_properties_is_refused_undecoded(connection: Connection) -> None:
    stream = await opened(connection)
    stored = encode_properties({f"{number:x}": "" for number in range(16_385)})
    columns = append_pb2.MessageColumns(
        vchannels=["orders"], payload_lengths=bytes(4), properties_lengths=struct.pack("<I", len(stored)), properties=stored
    )
    refused = await answer(stream, append=append_pb2.Append(messages=columns))
    assert isinstance(refused, InvalidArgumentError)
    assert "16385 properties, and at most 16384" in str(refused)


async def test_list_of_many_vchannels_is_encoded_in_slices(
    turns: Turns, monkeypatch: pytest.MonkeyPatch, served: Serving, connection: Connection
) -> None:
    names = [f"v{number}" for number in range(MANY)]
    await connection.submit(LocateVChannels(tuple(names), create=True), timeout_s=60.0)
    with turns.counted(monkeypatch, submit_pb2.SubmitResponse, "SerializeToString"):
        listed = await connection.submit(ListVChannels())
    assert [info.name for info in listed] == names
    assert len(turns.calls) >= MANY // SLICE


async def test_waiting_appends_are_taken_in_turns(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        log = served.log
        for number in range(2):
            await log.submit(CreateVChannel(f"v{number}"))
        group = next(iter(log.node.pchannels.values())).actor_group
        group.pause()
        count = 2 * RUNS_A_TURN + 1
        futures = [log.appends.append(Message(f"v{number % 2}", b"")) for number in range(count)]
        with turns.counted(monkeypatch, VChannel, "receive"):
            group.resume()
            results = await asyncio.gather(*[future for future in futures if future is not None])
        ticks = [result.time_tick for result in results]
        assert len(ticks) == count
        assert ticks == sorted(ticks)  # the order is that of the calls
        assert max(turns.calls.values()) == RUNS_A_TURN
