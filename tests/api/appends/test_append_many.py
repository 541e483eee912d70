"""append_messages and append_bulk: groups, responses, and any number of messages."""

from __future__ import annotations

import random

import pytest

from tests.locations import open_wal
from tests.probes import bodies, grouped, payloads, read_all, start, turns
from wal import AppendOption, AppendResponses, AppendResult, Message, MessageType, WALAccesser
from wal.errors import BulkAppendError, ChannelNotExistError, ClosedError, InvalidArgumentError, TransactionExpiredError, WALError

pytestmark = pytest.mark.on_pulsar


async def test_responses_stand_in_input_order(log4: WALAccesser) -> None:
    names = ["a", "b", "a", "c", "b", "a"]
    responses = await log4.append_messages(*[Message(name, b"%d" % at) for at, name in enumerate(names)])
    assert isinstance(responses, AppendResponses)
    assert len(responses) == 6
    results = responses.unwrap()
    assert results == list(responses)
    assert responses.first_error is None
    assert responses.max_time_tick == max(result.time_tick for result in results)
    assert results[0] == results[2] == results[5], "a transaction has one result"
    assert results[1] == results[4]
    assert results[3].txn_context is None, "a message of its own is no transaction"
    assert results[0].txn_context is not None
    assert [bodies(await read_all(log4, name)) for name in "abc"] == [[b"0", b"2", b"5"], [b"1", b"4"], [b"3"]]
    assert [len(await read_all(log4, name)) for name in "abc"] == [1, 1, 1]
    assert [list(responses[1:3]), responses[-1]] == [results[1:3], results[5]]


@pytest.mark.one_location("wal.api refuses the call before any log has it")
async def test_no_messages_are_nothing(log: WALAccesser) -> None:
    responses = await log.append_messages()
    assert (list(responses), responses.unwrap(), responses.first_error, responses.max_time_tick) == ([], [], None, 0)
    assert list(await log.append_messages_with_option(AppendOption(5))) == []
    assert await log.append_bulk([]) == []
    assert await log.vchannels() == []


async def test_bodies_keep_input_order(log: WALAccesser) -> None:
    await log.append_messages(*[Message("orders", b"%d" % number) for number in range(1000)])
    (message,) = await read_all(log, "orders")
    assert [int(body.payload) for body in message.bodies()] == list(range(1000))


async def test_group_that_fails_does_not_fail_the_others(location: str) -> None:
    async with open_wal(location, txn_bodies_max=3) as log:
        responses = await log.append_messages(
            *[Message("large", b"1")] * 4,
            Message("single", b"2"),
            Message("ddl", b"3"),
            Message("ddl", b"4", message_type=MessageType.CREATE_COLLECTION),
            *[Message("fits", b"5")] * 3,
        )
        kinds = [type(response).__name__ for response in responses]
        assert kinds == ["InvalidArgumentError"] * 4 + ["AppendResult"] + ["InvalidArgumentError"] * 2 + ["AppendResult"] * 3
        assert responses.first_error is responses[0]
        assert "txn_bodies_max=3" in str(responses.first_error)
        assert "CREATE_COLLECTION" in str(responses[5])
        assert responses.max_time_tick == max(r.time_tick for r in responses if isinstance(r, AppendResult))
        with pytest.raises(InvalidArgumentError, match="txn_bodies_max"):
            responses.unwrap()
        assert [await payloads(log, name) for name in ("large", "single", "ddl", "fits")] == [[], [b"2"], [], [b"5"] * 3]


async def test_forbidden_vchannel_fails_its_group(location: str) -> None:
    async with open_wal(location, create_vchannels=False) as log:
        await log.create_vchannel("a")
        responses = await log.append_messages(Message("a", b"1"), Message("b", b"2"), Message("c", b"3"), Message("c", b"4"))
        assert isinstance(responses[0], AppendResult)
        assert [type(response) for response in responses[1:]] == [ChannelNotExistError] * 3
        assert responses.max_time_tick == responses[0].time_tick


@pytest.mark.one_location("wal.api refuses the call before any log has it")
async def test_wrong_message_is_raised_and_nothing_is_sent(log: WALAccesser) -> None:
    fine = Message("orders", b"1")
    for wrong, error in (
        (Message("orders", bytes((1 << 20) + 1)), InvalidArgumentError),
        (b"bytes", TypeError),
        (Message("orders", b"", message_type=MessageType.TXN), InvalidArgumentError),
    ):
        with pytest.raises(error):
            await log.append_messages(fine, Message("other", b"2"), wrong)  # type: ignore[arg-type]
        with pytest.raises(error):
            await log.append_bulk([fine, wrong])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        await log.append_messages_with_option(5, fine)  # type: ignore[arg-type]
    assert await log.vchannels() == []


async def test_append_option_applies_to_every_group(log: WALAccesser) -> None:
    barrier = await log.allocate_time_tick()
    messages = [Message("a", b"1"), Message("b", b"2"), Message("b", b"3")]
    responses = await log.append_messages_with_option(AppendOption(barrier_time_tick=barrier), *messages)
    assert all(result.time_tick > barrier for result in responses.unwrap())


async def test_bulk_of_mixed_messages_keeps_its_order(log4: WALAccesser) -> None:
    shuffled = random.Random(11)
    messages = []
    for number in range(4_000):
        size = shuffled.choice([0, 1, 10, 100]) if number % 100 else 60_000
        messages.append(
            Message(
                f"v{number // 140 % 4}" if number < 2_000 else f"v{shuffled.randrange(4)}",
                b"%d|" % number + bytes(size),
                message_type=shuffled.choice([MessageType.INSERT, MessageType.DELETE, MessageType.IMPORT]),
                properties={"n": str(number)} if number % 7 == 0 else {},
            )
        )
    results = await log4.append_bulk(iter(messages))
    assert len(results) == 4_000
    for name in ("v0", "v1", "v2", "v3"):
        sent = [(message, result) for message, result in zip(messages, results, strict=True) if message.vchannel == name]
        read = await read_all(log4, name)
        assert [(m.message_id, m.time_tick, m.payload, m.message_type, m.properties) for m in read] == [
            (r.message_id, r.time_tick, m.payload, m.message_type, m.properties) for m, r in sent
        ]
    for pchannel in {result.message_id.pchannel for result in results}:
        ticks = [result.time_tick for result in results if result.message_id.pchannel == pchannel]
        assert ticks == sorted(set(ticks)), "the order of the input is the order of the log"


async def test_bulk_is_no_transaction(location: str) -> None:
    async with open_wal(location, txn_bodies_max=2, txn_bytes_max=100, in_flight_bytes_max=5000) as log:
        results = await log.append_bulk([Message("orders", b"%d" % number + bytes(100)) for number in range(500)])
        assert len({result.message_id for result in results}) == 500
        assert len(await read_all(log, "orders")) == 500
        assert log.statistics().bytes_in_flight == 0


async def test_exclusive_message_in_a_bulk_is_exclusive(log: WALAccesser) -> None:
    txn = await log.txn("orders")
    await txn.append(b"1")
    await log.append_bulk(
        [Message("orders", b"2"), Message("orders", b"ddl", message_type=MessageType.CREATE_COLLECTION), Message("orders", b"3")]
    )
    with pytest.raises(TransactionExpiredError, match="CREATE_COLLECTION"):
        await txn.commit()
    assert await payloads(log, "orders") == [b"2", b"ddl", b"3"]


async def test_failed_bulk_reports_durable_messages(location: str) -> None:
    log = await open_wal(location, in_flight_bytes_max=200_000)
    bulk = start(log.append_bulk([Message("orders", b"%05d" % number + bytes(10_000)) for number in range(1000)]))
    while log.statistics().pchannels[0].frames < 3:
        await turns(1)
    await log.close()
    with pytest.raises(BulkAppendError, match="of this bulk are durable") as caught:
        await bulk
    assert isinstance(caught.value, ClosedError), "it is caught as its cause would be"
    results = caught.value.results
    assert 0 < len(results) < 1000
    if location != "memory:":
        async with open_wal(location) as log:
            read = await read_all(log, "orders")
            assert [message.message_id for message in read] == [result.message_id for result in results]
            assert [int(message.payload[:5]) for message in read] == list(range(len(results)))


async def test_vchannel_dropped_under_a_bulk(log: WALAccesser) -> None:
    await log.create_vchannel("orders")
    messages = [Message("other", b"1"), *[Message("orders", bytes(500_000))] * 300, Message("other", b"2")]
    bulk = start(log.append_bulk(messages))
    await turns(3)
    await log.drop_vchannel("orders")
    with pytest.raises(BulkAppendError) as caught:
        await bulk
    assert isinstance(caught.value, ChannelNotExistError)
    results = caught.value.results
    ticks = [result.time_tick for result in results]
    assert ticks == sorted(set(ticks))
    assert (await read_all(log, "other"))[0].time_tick == ticks[0]
    assert log.statistics().bytes_in_flight == 0


async def test_bulk_over_two_pchannels_goes_on_with_remaining(location: str) -> None:
    """A vchannel is dropped under the bulk, and messages of the other pchannel may be durable after the first failure."""
    async with open_wal(location, pchannels=2, in_flight_bytes_max=100_000) as log:
        await log.create_vchannel("here", pchannel="p0")
        await log.create_vchannel("there", pchannel="p1")
        messages = [Message(("here", "there")[number % 2], b"%04d" % number + bytes(20_000)) for number in range(200)]
        bulk = start(log.append_bulk(messages))
        while not log.statistics().appends_waiting:
            await turns(1)
        await log.drop_vchannel("here")
        with pytest.raises(BulkAppendError) as caught:
            await bulk
        error = caught.value
        assert isinstance(error, ChannelNotExistError)
        assert len(error.outcomes) == len(messages)
        prefix = len(error.results)
        assert list(error.results) == list(error.outcomes[:prefix])
        assert error.outcomes[prefix] is error.__cause__
        failed = [number for number, outcome in enumerate(error.outcomes) if isinstance(outcome, WALError)]
        assert [message.payload for message in error.remaining] == [messages[number].payload for number in failed]
        ids = [outcome.message_id for outcome in error.outcomes[1::2] if isinstance(outcome, AppendResult)]
        assert [message.message_id for message in await read_all(log, "there")] == ids
        await log.append_bulk(error.remaining)
        assert await payloads(log, "there") == [message.payload for message in messages[1::2]]
        assert await payloads(log, "here") == [messages[number].payload for number in failed if number % 2 == 0]


async def test_transaction_group_is_one_message(log: WALAccesser) -> None:
    await log.append_messages(Message("a", b"1"), Message("a", b"2", message_type=MessageType.DELETE))
    await log.append_messages(Message("a", b"3"))
    assert grouped(await read_all(log, "a")) == [[b"1", b"2"], [b"3"]]
