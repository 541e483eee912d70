"""Produce, over real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.protobuf.empty_pb2 import Empty

from tests.faults import SavingGate
from tests.processes import eventually
from tests.serve.columns import columns_of, request_of
from tests.serve.servers import Serving, child, connected, serving
from wal import errors, open_wal
from wal.message import AppendResult, Message, MessageType
from wal.read.options import ReadOptions
from wal.read.scanner import Scanner
from wal.requests.vchannels import AllocateTimeTicks, CreateVChannel
from wal.rpc.api import append_pb2
from wal.rpc.api.pchannel_pb2 import PChannelInfo
from wal.rpc.appends import Outcome, outcomes_from_proto
from wal.rpc.connection import Connection
from wal.rpc.methods import ASSIGNMENT_DISCOVER, PRODUCE
from wal.write.idempotency.keys import ProducerKey

CLOSE = append_pb2.ProducerRequest(close=Empty())


async def opened(connection: Connection, info: PChannelInfo | None = None, *, session: bytes = b"") -> Any:
    """Returns a stream after its first response."""
    if info is None:
        info = await assigned(connection)
    stream = await connection.stream(PRODUCE, "producing")
    await stream.write(append_pb2.ProducerRequest(open=append_pb2.OpenProducer(pchannel=info, session=session)))
    first = await stream.read()
    assert first is not None
    assert first.opened.log.pchannel == info
    return stream


async def assigned(connection: Connection, number: int = 0) -> PChannelInfo:
    stream = await connection.stream(ASSIGNMENT_DISCOVER, "discovering")
    first = await stream.read()
    assert first is not None
    stream.cancel()
    return first.full_assignment.assignments[0].channels[number]


async def outcomes(stream: Any, count: int) -> dict[int, Outcome]:
    """Returns the next `count` outcomes."""
    found: dict[int, Outcome] = {}
    while len(found) < count:
        response = await stream.read()
        assert response is not None
        for number, outcome in outcomes_from_proto(response.outcomes):
            assert number not in found
            found[number] = outcome
    return found


async def stored(served: Serving, vchannel: str) -> list[bytes]:
    """Returns the payloads in the log, in order."""
    options = ReadOptions.of((vchannel,), follow=False)
    async with Scanner(options, attach=served.log.attach) as scanner:
        return [body.payload async for message in scanner for body in message.bodies()]


def append(first: int, *messages: Message, **options: Any) -> append_pb2.ProducerRequest:
    return request_of(first, [(message, 0, None) for message in messages], **options)


async def test_many_messages_at_a_time(served: Serving, connection: Connection) -> None:
    stream = await opened(connection)
    messages = [Message(f"v{number % 7}", b"%d" % number, properties={"n": str(number)}) for number in range(1000)]
    await stream.write(append(0, *messages[:600]))
    await stream.write(append(600, *messages[600:]))
    found = await outcomes(stream, 1000)
    results = [found[number] for number in range(1000)]
    assert all(isinstance(result, AppendResult) for result in results)
    for name in range(7):
        assert await stored(served, f"v{name}") == [b"%d" % number for number in range(name, 1000, 7)]
        ticks = [result.time_tick for result in results[name::7]]  # type: ignore[union-attr]
        assert ticks == sorted(ticks)  # type: ignore[type-var]
    await stream.write(CLOSE)
    assert (await stream.read()).HasField("close")
    assert await stream.read() is None


async def test_errors_of_single_messages_leave_the_others_alone(served: Serving, connection: Connection) -> None:
    stream = await opened(connection)
    columns = append_pb2.MessageColumns(
        vchannels=["orders", ""],
        vchannel_numbers=b"".join(number.to_bytes(4, "little") for number in (0, 1, 0, 0)),
        payload_lengths=b"\1\0\0\0" * 4,
        payloads=b"abcd",
        types=b"".join(number.to_bytes(4, "little") for number in (2, 2, 9999, 2)),
    )
    await stream.write(append_pb2.ProducerRequest(request_id=10, append=append_pb2.Append(messages=columns)))
    found = await outcomes(stream, 4)
    assert isinstance(found[10], AppendResult)
    assert isinstance(found[11], errors.InvalidArgumentError)
    assert isinstance(found[12], errors.InvalidArgumentError)
    assert isinstance(found[13], AppendResult)
    assert await stored(served, "orders") == [b"a", b"d"]


async def test_key_is_written_once(served: Serving, connection: Connection) -> None:
    stream = await opened(connection)
    message = Message("orders", b"once")
    keys = [(message, 0, "return-7"), (message, 0, "return-7"), (message, 0, ProducerKey("me", 1))]
    await stream.write(request_of(1, [*keys, *keys]))  # type: ignore[list-item]
    found = await outcomes(stream, 6)
    assert [found[number].duplicate for number in range(1, 7)] == [False, True, False, True, True, True]  # type: ignore[union-attr]
    assert found[4].message_id == found[1].message_id  # type: ignore[union-attr]
    await stream.write(request_of(7, [(message, 0, ProducerKey("me", 1))]))
    assert (await outcomes(stream, 1))[7].duplicate  # type: ignore[union-attr]
    assert await stored(served, "orders") == [b"once", b"once"]


async def test_barrier_and_a_tick_that_was_seen_are_passed(served: Serving, connection: Connection) -> None:
    stream = await opened(connection)
    tick = (await served.log.submit(AllocateTimeTicks())).first
    request = request_of(1, [(Message("orders", b"x"), tick, None)], seen_time_tick=tick + 5)
    await stream.write(request)
    result = (await outcomes(stream, 1))[1]
    assert isinstance(result, AppendResult)
    assert result.time_tick is not None
    assert result.time_tick > tick + 5
    far = request_of(2, [(Message("orders", b"x"), 0, None)], seen_time_tick=(1 << 63))
    await stream.write(far)
    refused = (await outcomes(stream, 1))[2]
    assert isinstance(refused, errors.InvalidArgumentError)
    await stream.write(append(3, Message("orders", b"y")))  # the stream continues
    assert isinstance((await outcomes(stream, 1))[3], AppendResult)


async def test_seen_ticks_of_many_requests_keep_to_the_clock(served: Serving, connection: Connection) -> None:
    stream = await opened(connection)
    message, oracle = Message("orders", b"x"), served.log.node.oracle
    for number in range(70):
        seen = oracle.last + (59_000 << 18)
        await stream.write(request_of(number, [(message, 0, None)], seen_time_tick=seen))
        await outcomes(stream, 1)
    assert oracle.statistics().ahead_s < 61.0
    far = oracle.last + (30_000 << 18)
    await stream.write(request_of(70, [(message, far, None)]))
    refused = (await outcomes(stream, 1))[70]
    assert isinstance(refused, errors.InvalidArgumentError)  # a barrier as far would be waited for as long


async def test_barrier_that_no_clock_is_near_is_refused(served: Serving, connection: Connection) -> None:
    stream = await opened(connection)
    message, far = Message("orders", b"x"), (await served.log.submit(AllocateTimeTicks())).first + (3600_000 << 18)
    await stream.write(request_of(1, [(message, far, None), (message, 0, None)]))
    txn = append_pb2.AppendTxn(vchannels=["orders"], bodies=columns_of([message]), options=append_pb2.WriteOptions(barrier_time_tick=far))
    await stream.write(append_pb2.ProducerRequest(request_id=3, append_txn=txn))
    found = await outcomes(stream, 3)
    for number in (1, 3):
        assert isinstance(found[number], errors.InvalidArgumentError)
        assert "ahead of this clock, and 60.0 s are allowed" in str(found[number])
    assert await stored(served, "orders") == [b"x"]


async def test_whole_transaction_is_one_event(served: Serving, connection: Connection) -> None:
    stream = await opened(connection)
    bodies = [Message("a", b"1"), Message("b", b"2"), Message("a", b"3", message_type=MessageType.DELETE)]
    request = append_pb2.AppendTxn(vchannels=["a", "b"], bodies=columns_of(bodies))
    await stream.write(append_pb2.ProducerRequest(request_id=5, append_txn=request))
    result = (await outcomes(stream, 1))[5]
    assert isinstance(result, AppendResult)
    assert result.txn_context is not None
    assert await stored(served, "a") == [b"1", b"3"]
    assert await stored(served, "b") == [b"2"]
    for names, wrong in ((["a"], bodies), ([], bodies[:1]), (["a", "a"], bodies[:1])):
        request = append_pb2.AppendTxn(vchannels=names, bodies=columns_of(wrong))
        await stream.write(append_pb2.ProducerRequest(request_id=6, append_txn=request))
        assert isinstance((await outcomes(stream, 1))[6], errors.InvalidArgumentError)
    assert await stored(served, "a") == [b"1", b"3"]


async def test_contradictory_columns_end_the_stream(connection: Connection) -> None:
    stream = await opened(connection)
    wrong = append_pb2.MessageColumns(vchannels=["a"], payload_lengths=b"\5\0\0\0", payloads=b"x")
    await stream.write(append_pb2.ProducerRequest(append=append_pb2.Append(messages=wrong)))
    with pytest.raises(errors.InvalidArgumentError, match="contradict each other"):
        await stream.read()


async def test_vchannel_of_another_pchannel_is_refused() -> None:
    async with serving(pchannels=2) as served, connected(served.address) as connection:
        for number in (0, 1):
            info = await assigned(connection, number)
            other = next(name for name in served.log.node.pchannels if name != info.name)
            await served.log.submit(CreateVChannel(f"on-{other}", other))
            stream = await opened(connection, info)
            await stream.write(append(1, Message(f"on-{other}", b"x")))
            refused = (await outcomes(stream, 1))[1]
            assert isinstance(refused, errors.ChannelNotExistError)
            assert f"is on pchannel {other}, and this stream writes {info.name}" in str(refused)
        assert not any(pchannel.statistics().events for pchannel in served.log.node.pchannels.values())


async def test_name_is_looked_up_before_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node's view of vchannels may be older than the coordinator's records."""
    async with serving(pchannels=2) as served, connected(served.address) as connection:
        info = await assigned(connection, 0)
        other = next(name for name in served.log.node.pchannels if name != info.name)
        await served.log.submit(CreateVChannel("late", info.name))
        monkeypatch.setattr(served.log.coordinator.vchannels, "pchannel_of", lambda name: other)
        stream = await opened(connection, info)
        await stream.write(append(1, Message("late", b"x")))
        assert isinstance((await outcomes(stream, 1))[1], AppendResult)


async def test_client_that_goes_away_leaves_what_was_accepted(served: Serving, connection: Connection) -> None:
    stream = await opened(connection)
    await stream.write(append(0, *[Message("orders", b"%d" % number) for number in range(100)]))
    await outcomes(stream, 100)
    stream.cancel()
    again = await opened(connection)
    await again.write(append(0, Message("orders", b"more")))
    await outcomes(again, 1)
    assert len(await stored(served, "orders")) == 101


async def test_requests_after_the_one_that_closes_are_not_executed(served: Serving, connection: Connection) -> None:
    stream = await opened(connection)
    (pchannel,) = served.log.node.pchannels.values()
    pchannel.actor_group.pause()  # so that the stream waits for the answer to the first message
    await stream.write(append(1, Message("orders", b"held")))
    await stream.write(CLOSE)
    await stream.write(append(2, Message("orders", b"late")))
    await eventually(lambda: not any(task.get_name() == f"requests for {pchannel.channel}" for task in asyncio.all_tasks()))
    pchannel.actor_group.resume()
    with pytest.raises(errors.InvalidRequestSeqError, match="follows the close"):
        while await stream.read() is not None:
            pass
    assert b"late" not in await stored(served, "orders")


async def test_slow_client_holds_up_nobody(served: Serving) -> None:
    async with connected(served.address) as slow, connected(served.address) as quick:
        silent = await opened(slow)

        async def flood() -> None:
            message = Message("orders", b"")
            for number in range(0, 10_000_000, 1000):
                await silent.write(append(number, *[message] * 1000))

        flooding = asyncio.ensure_future(flood())
        stream = await opened(quick)
        for number in range(50):
            await stream.write(append(number, Message("orders", b"quick")))
            assert isinstance((await outcomes(stream, 1))[number], AppendResult)
        flooding.cancel()
        await asyncio.wait((flooding,))
        silent.cancel()


async def test_appends_wait_for_room_in_flight() -> None:
    async with serving(in_flight_bytes_max=10_000) as served, connected(served.address) as connection:
        stream = await opened(connection)
        await stream.write(append(0, *[Message("orders", bytes(900)) for _ in range(200)]))
        found = await outcomes(stream, 200)
        assert all(isinstance(outcome, AppendResult) for outcome in found.values())
        await stream.write(append(200, Message("orders", bytes(2 << 20))))
        assert isinstance((await outcomes(stream, 1))[200], errors.InvalidArgumentError)


async def test_storage_error_of_one_request_ends_no_stream(
    served: Serving, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pchannel is as good as before, so the next request is executed."""
    stream = await opened(connection)
    gate = SavingGate(served.log, monkeypatch)
    gate.failure = errors.StorageError("the metadata cannot be saved")
    gate.open.set()
    await stream.write(append(0, Message("orders", b"x")))
    assert isinstance((await outcomes(stream, 1))[0], errors.StorageError)
    gate.failure = None
    await stream.write(append(1, Message("orders", b"y")))
    assert isinstance((await outcomes(stream, 1))[1], AppendResult)


async def test_pchannel_whose_storage_has_failed_refuses_every_later_request(served: Serving, connection: Connection) -> None:
    stream = await opened(connection)
    (pchannel,) = served.log.node.pchannels.values()
    pchannel.fail(errors.StorageError("the disk is gone", outcome_unknown=True))
    for number in (1, 2):
        await stream.write(append(number, Message("orders", b"y")))
        refused = (await outcomes(stream, 1))[number]
        assert isinstance(refused, errors.StorageError)
        assert not refused.outcome_unknown


async def test_failed_pchannel_refuses_every_later_request(served: Serving, connection: Connection) -> None:
    stream = await opened(connection)
    await stream.write(append(0, Message("orders", b"x")))
    await outcomes(stream, 1)
    (pchannel,) = served.log.node.pchannels.values()
    pchannel.fail(errors.ClosedError("this log was closed in the middle"))
    for number in (1, 2):
        await stream.write(append(number, Message("orders", b"y")))
        refused = (await outcomes(stream, 1))[number]
        assert isinstance(refused, errors.ClosedError)
        assert not refused.outcome_unknown


@pytest.mark.parametrize(
    ("info", "error"),
    [(PChannelInfo(name="no"), errors.ChannelNotExistError), (PChannelInfo(name="wal_0", term=99), errors.UnmatchedChannelTermError)],
)
async def test_wrong_pchannel_or_term_is_an_error(
    served: Serving, connection: Connection, info: PChannelInfo, error: type[errors.WALError]
) -> None:
    if info.term:
        info = PChannelInfo(name=next(iter(served.log.node.pchannels)), term=99)
    with pytest.raises(error):
        await opened(connection, info)


async def test_request_that_is_too_large_ends_its_stream_only(served: Serving, connection: Connection) -> None:
    stream, other = await opened(connection), await opened(connection)
    with pytest.raises(errors.InvalidArgumentError, match="larger than max"):
        await stream.write(append(0, Message("orders", bytes(20 << 20))))
        await stream.read()
    await other.write(append(0, Message("orders", b"small")))
    assert isinstance((await outcomes(other, 1))[0], AppendResult)
    assert await stored(served, "orders") == [b"small"]


@pytest.mark.one_loop
async def test_killed_server_keeps_everything_that_it_acknowledged(data_dir: Any, soak: int) -> None:
    acknowledged: list[bytes] = []
    number = 0
    for round_ in range(1 if soak == 1 else 30):
        async with child(data_dir) as server, connected(server.address) as connection:
            stream = await opened(connection)
            pending: dict[int, bytes] = {}

            async def write(stream: Any = stream, pending: dict[int, bytes] = pending, round_: int = round_) -> None:
                nonlocal number
                while True:
                    payloads = [b"%d %d" % (round_, number + step) for step in range(50)]
                    pending.update(zip(range(number, number + 50), payloads, strict=True))
                    await stream.write(append(number, *[Message("orders", payload) for payload in payloads]))
                    number += 50

            writing = asyncio.ensure_future(write())
            before = len(acknowledged)
            with pytest.raises(errors.WALError):
                while True:
                    response = await stream.read()
                    for answered, outcome in outcomes_from_proto(response.outcomes):
                        assert isinstance(outcome, AppendResult)
                        acknowledged.append(pending.pop(answered))
                    if len(acknowledged) - before > 500:
                        await server.kill()
            writing.cancel()
            await asyncio.wait((writing,))
            if not writing.cancelled():
                assert isinstance(writing.exception(), errors.WALError)
    async with open_wal(data_dir) as log, log.read("orders", follow=False) as scanner:
        found = [message.payload async for message in scanner]
    assert len(found) == len(set(found))
    assert [payload for payload in found if payload in set(acknowledged)] == acknowledged


async def test_withdrawing_is_answered_and_changes_nothing_but_what_waits(connection: Connection) -> None:
    stream = await opened(connection)
    await stream.write(request_of(1, [(Message("orders", b"1"), 0, "k")]))
    await stream.write(append_pb2.ProducerRequest(request_id=2, withdraw=append_pb2.Withdraw(withdrawn_ids=[1, 2, 9])))
    answered: dict[int, Outcome | None] = {}
    while len(answered) < 2:
        outcomes = (await stream.read()).outcomes
        answered |= dict(outcomes_from_proto(outcomes)) | dict.fromkeys(outcomes.done)
    assert answered[2] is None
    assert isinstance(answered[1], AppendResult)
    await stream.write(append_pb2.ProducerRequest(request_id=3, withdraw=append_pb2.Withdraw(withdrawn_ids=[1])))
    assert list((await stream.read()).outcomes.done) == [3]


async def test_append_request_without_messages_is_answered(served: Serving, connection: Connection) -> None:
    stream = await opened(connection)
    await stream.write(append(7))
    await stream.write(append(8, Message("orders", b"x")))
    answers = await outcomes(stream, 2)
    assert isinstance(answers[7], errors.InvalidArgumentError)
    assert "has no message" in str(answers[7])
    assert isinstance(answers[8], AppendResult)
    stream.cancel()


async def test_option_of_a_later_version_is_refused(served: Serving, connection: Connection) -> None:
    """A condition that a server does not know must not be ignored: the append would be wrong."""
    option = b"\xba\x06\x01x"  # field 103
    plain = append(1, Message("orders", b"x")).append.SerializeToString()
    for request in (
        append_pb2.ProducerRequest.FromString(append(1, Message("orders", b"x")).SerializeToString() + option),
        append_pb2.ProducerRequest(request_id=1, append=append_pb2.Append.FromString(plain + option)),
    ):
        stream = await opened(connection)
        await stream.write(request)
        with pytest.raises(errors.InvalidArgumentError, match=r"field 103 of .* is unknown"):
            await stream.read()
    assert await stored(served, "orders") == []


def opening(name: str) -> append_pb2.ProducerRequest:
    return append_pb2.ProducerRequest(open=append_pb2.OpenProducer(pchannel=PChannelInfo(name=name)))


UNKNOWN_FIELD = append_pb2.ProducerRequest.FromString(opening("p0").SerializeToString() + b"\xfa\x7f\x01x")


@pytest.mark.parametrize(
    ("requests", "error", "words"),
    [
        ([append(0, Message("orders", b"x"))], errors.InvalidArgumentError, "the first request of the stream is append: send open"),
        ([CLOSE], errors.InvalidArgumentError, "the first request of the stream is close: send open"),
        ([append_pb2.ProducerRequest()], errors.InvalidArgumentError, "the first request of the stream is empty: send open"),
        ([opening("p0"), opening("p0")], errors.InvalidArgumentError, "a second open is on this stream"),
        ([UNKNOWN_FIELD], errors.InvalidArgumentError, "2047"),
        ([opening("")], errors.ChannelNotExistError, "pchannel ''"),
        ([opening("p" * 1_000_000)], errors.ChannelNotExistError, "pppp"),
    ],
    ids=["append", "close", "empty", "two opens", "unknown field", "no name", "huge name"],
)
async def test_wrong_opening_of_a_stream_is_an_error(
    connection: Connection, requests: list[append_pb2.ProducerRequest], error: type[Exception], words: str
) -> None:
    stream = await connection.stream(PRODUCE, "producing")
    with pytest.raises(error) as refused:
        for request in requests:
            await stream.write(request)
        while await stream.read() is not None:
            pass
    assert words in str(refused.value)
    assert len(str(refused.value)) < 5_000
    assert await opened(connection)


async def test_stream_without_requests_ends_with_client_or_server(served: Serving, connection: Connection) -> None:
    ended = await connection.stream(PRODUCE, "producing")
    await ended._call.done_writing()
    assert await ended.read() is None
    await eventually(lambda: served.node.draining.calls == 0)
    silent = await connection.stream(PRODUCE, "producing")
    await eventually(lambda: served.node.draining.calls == 1)
    closing = asyncio.ensure_future(served.node.close(drain_s=3600))
    with pytest.raises(errors.ClosedError):
        await silent.read()
    await closing
