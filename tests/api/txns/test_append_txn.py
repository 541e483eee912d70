"""append_txn and append_many: a transaction whose bodies are known, in one call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors import VirtualClock
from tests.faults import SavingGate
from tests.locations import open_virtual, open_wal
from tests.probes import close_all, facts, grouped, local, made_on, payloads, read_all, run_until, start, turns
from tests.write.idempotency.test_write_path import Gate
from wal import AppendResult, Message, MessageType, ProducerKey, WALAccesser, errors, timestamp

Body = Message | bytes

BODIES = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.builds(
            lambda payload, kind, properties: Message("a", payload, message_type=kind, properties=properties),
            st.binary(max_size=40),
            st.sampled_from([MessageType.INSERT, MessageType.DELETE]),
            st.dictionaries(st.sampled_from(["k", "ü"]), st.text("xyß", max_size=5), max_size=2),
        ),
    ),
    max_size=12,
)
WIDE = st.lists(st.builds(Message, st.sampled_from(["a", "b", "c"]), st.binary(max_size=40), properties=st.just({})), max_size=12)


@pytest.mark.inside
async def test_whole_transaction_in_one_call(log: WALAccesser) -> None:
    result = await log.append_txn("orders", [b"1", Message("orders", b"2", message_type=MessageType.DELETE)])
    assert not result.duplicate
    (message,) = await read_all(log, "orders")
    assert (message.message_id, message.time_tick) == (result.message_id, result.time_tick)
    assert message.txn_context == result.txn_context
    assert [(body.payload, body.message_type) for body in message.bodies()] == [(b"1", MessageType.INSERT), (b"2", MessageType.DELETE)]
    assert len({each.message_id.key for each in [message, *message.bodies()]}) == 3
    assert local(log).node.in_flight.size == 0


async def test_empty_append_txn_is_delivered(log: WALAccesser) -> None:
    result = await log.append_txn("orders", [])
    async with log.txn("orders") as txn:
        await txn.append_many([])
    assert grouped(await read_all(log, "orders")) == [[], []]
    assert next(iter(await read_all(log, "orders"))).message_id == result.message_id


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(groups=st.lists(st.one_of(BODIES, WIDE), min_size=1, max_size=4))
def test_append_txn_equals_single_appends(groups: list[list[Body]]) -> None:
    """However its bodies are given, readers see the same, and the log counts the same."""

    async def one_by_one(log: WALAccesser, names: Sequence[str], bodies: list[Body]) -> None:
        async with log.txn(vchannels=names) as txn:
            for body in bodies:
                await txn.append(body)

    async def together(log: WALAccesser, names: Sequence[str], bodies: list[Body]) -> None:
        async with log.txn(vchannels=names) as txn:
            await txn.append_many(iter(bodies[:3]))
            await txn.append_many(bodies[3:])

    async def in_one_call(log: WALAccesser, names: Sequence[str], bodies: list[Body]) -> None:
        await log.append_txn(names, iter(bodies))

    async def written(way: Any) -> list[Any]:
        async with open_wal("memory:") as log:
            for bodies in groups:
                wide = not any(isinstance(body, bytes) or body.properties for body in bodies)
                await way(log, ["a", "b", "c"] if wide else ["a"], bodies)
            (pchannel,) = log.statistics().pchannels
            seen = [
                [(body.vchannel, body.payload, body.message_type, body.properties) for body in message.bodies()]
                for message in await read_all(log, ["a", "b", "c"])
            ]
            return [seen, pchannel.events, pchannel.bytes]

    async def all_ways() -> None:
        expected = await written(one_by_one)
        assert await written(together) == expected
        assert await written(in_one_call) == expected

    asyncio.run(all_ways())


@pytest.mark.inside
async def test_all_bodies_are_taken_or_none(location: str) -> None:
    async with open_wal(location, txn_bodies_max=5, txn_bytes_max=1000, open_txn_bytes_max=1500) as log:
        txn = await log.txn("orders")
        await txn.append(b"kept")

        def failing() -> Iterator[bytes]:
            yield b"1"
            raise ZeroDivisionError("of the caller's generator")

        def refused(name: str, bodies_left: int) -> list[tuple[Any, type[Exception], str]]:
            exclusive, reserved = MessageType.CREATE_COLLECTION, MessageType.TXN
            return [
                ([b"1", "text"], TypeError, "not str"),
                ([b"1", Message("other", b"2")], errors.InvalidArgumentError, "'other'"),
                ([b"1", Message(name, b"", message_type=exclusive)], errors.InvalidArgumentError, "CREATE_COLLECTION"),
                ([b"1", Message(name, b"", message_type=reserved)], errors.InvalidArgumentError, "TXN"),
                ([b"1", bytes((1 << 20) + 1)], errors.InvalidArgumentError, "message_bytes_max"),
                ([b"1"] * (bodies_left + 1), errors.InvalidArgumentError, "txn_bodies_max=5"),
                ([bytes(330)] * 3, errors.InvalidArgumentError, "txn_bytes_max=1000"),
                (b"bytes", TypeError, "pass a list"),
                (Message(name, b"1"), TypeError, "pass a list"),
                (5, TypeError, "pass a list"),
                (failing(), ZeroDivisionError, "generator"),
            ]

        for messages, error, match in refused("orders", 4):
            with pytest.raises(error, match=match):
                await txn.append_many(messages)
        for messages, error, match in refused("new", 5):
            if not isinstance(messages, bytes | Message):  # this call also takes single messages
                with pytest.raises(error, match=match):
                    await log.append_txn("new", messages)
        other = await log.txn("orders")
        await other.append_many([bytes(200)] * 4)
        with pytest.raises(errors.WouldBlockError, match="open_txn_bytes_max=1500"):
            await txn.append_many([bytes(264)] * 2 + [b""])
        await other.rollback()
        await txn.append_many([b"1", b"2", b"3", b"4"], barrier_time_tick=await log.allocate_time_tick())
        await txn.commit()
        with pytest.raises(errors.InvalidTransactionStateError, match="committed before"):
            await txn.append_many([b"5"])
        assert grouped(await read_all(log, "orders")) == [[b"kept", b"1", b"2", b"3", b"4"]]
        assert [info.name for info in await log.vchannels()] == ["orders"], "a call that is refused creates no vchannel"
        assert local(log).node.in_flight.size == 0


@pytest.mark.one_location("wal.api refuses the call before any log has it")
async def test_wrong_arguments(log4: WALAccesser) -> None:
    await made_on(log4, "p0", "a", "b")
    await made_on(log4, "p1", "c")
    with pytest.raises(errors.InvalidArgumentError, match="broadcaster"):
        await log4.append_txn(["a", "c"], [Message("a", b"1")])
    with pytest.raises(errors.InvalidArgumentError, match="bytes name none"):
        await log4.append_txn(["a", "b"], [b"1"])
    with pytest.raises(errors.InvalidArgumentError, match="at least one"):
        await log4.append_txn([], [b"1"])
    with pytest.raises(TypeError, match="append_txn takes"):
        await log4.append_txn(5, [b"1"])  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="idempotency_key"):
        await log4.append_txn("a", [b"1"], idempotency_key=5)  # type: ignore[call-overload]
    with pytest.raises(errors.InvalidArgumentError, match="barrier_time_tick"):
        await log4.append_txn("a", [b"1"], barrier_time_tick=-1)

    async def unordered() -> AsyncIterator[bytes]:
        yield b"1"

    with pytest.raises(TypeError, match="async_generator"):
        await log4.append_txn("a", unordered())  # type: ignore[call-overload]
    assert await payloads(log4, ["a", "b"]) == []


async def test_append_txn_fails_on_read_only_logs(data: str) -> None:
    async with open_wal(data) as log:
        await log.append_txn("orders", [b"1"])
        async with open_wal(data, read_only=True) as reader:
            with pytest.raises(errors.InvalidArgumentError, match="read_only"):
                await reader.append_txn("orders", [b"2"])
    with pytest.raises(errors.ClosedError):
        await log.append_txn("orders", [b"2"])
    async with open_wal(data, create_vchannels=False) as log:
        with pytest.raises(errors.ChannelNotExistError):
            await log.append_txn("unknown", [b"2"])


@pytest.mark.inside
async def test_retry_writes_nothing(log: WALAccesser) -> None:
    await made_on(log, "p0", "a", "b")
    for key in ("k", ProducerKey("p", 7)):
        first = await log.append_txn("a", [b"1", b"2"], idempotency_key=key)
        again = await log.append_txn("a", [b"other"], idempotency_key=key)
        assert again == AppendResult(first.message_id, first.time_tick, first.last_confirmed, first.txn_context, None, True)
        async with log.txn("a", idempotency_key=key) as txn:
            await txn.append(b"never")
        assert txn.result == again, "one key for all ways of writing"
        assert await log.raw_append(Message("a", b"never"), idempotency_key=key) == again
        wide = await log.append_txn(["a", "b"], [Message("b", b"3")], idempotency_key=key)
        assert not wide.duplicate, "the key of a wide transaction belongs to the set"
        assert (await log.append_txn(["b", "a"], [], idempotency_key=key)).time_tick == wide.time_tick
    assert await payloads(log, ["a", "b"]) == [b"1", b"2", b"3"] * 2
    assert local(log).node.in_flight.size == 0


@pytest.mark.inside
async def test_calls_in_flight_share_result_and_failure(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    await log.create_vchannel("orders")
    for refused in (True, False):
        gate = Gate(log, monkeypatch)
        calls = [start(log.append_txn("orders", [b"%d" % number], idempotency_key="k")) for number in range(3)]
        await turns()
        later = [start(log.append_txn("orders", [b"p"], idempotency_key=ProducerKey("p", n))) for n in (1, 2)]
        calls[0].cancel()
        await turns()
        if refused:
            gate.refuse()
            outcomes = await asyncio.gather(*calls[1:], *later, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [errors.NoSpaceError] * 3 + [errors.InvalidRequestSeqError]
        else:
            gate.open()
            one, two, *_ = await asyncio.gather(*calls[1:], *later)
            assert one.duplicate, "the first caller was cancelled, its transaction is written"
            assert one == two
        assert local(log).node.in_flight.size == 0
    assert grouped(await read_all(log, "orders")) == [[b"0"], [b"p"], [b"p"]]


@pytest.mark.inside
async def test_append_txn_waits_for_its_barrier(location: str) -> None:
    """An exclusive message fails an open transaction; a transaction that begins with its commit comes after the message."""
    clock = VirtualClock()
    log = await open_virtual(location, clock)
    await made_on(log, "p0", "a", "b")
    tick = await log.allocate_time_tick()
    barrier = timestamp.compose(timestamp.parse(tick)[0] + 150, 0)
    opened = await log.txn("a")
    whole = start(log.append_txn(["a", "b"], [Message("a", b"whole"), Message("b", b"whole")], barrier_time_tick=barrier))
    await turns()
    await log.raw_append(Message("a", b"ddl", message_type=MessageType.CREATE_COLLECTION))
    with pytest.raises(errors.TransactionExpiredError, match="CREATE_COLLECTION"):
        await opened.commit()
    await run_until(clock, whole.done)
    assert (await whole).time_tick > barrier
    assert await payloads(log, ["a", "b"]) == [b"ddl", b"whole", b"whole"]
    await close_all(log)


@pytest.mark.inside
async def test_waiting_append_txn_ends_with_its_vchannel(log: WALAccesser) -> None:
    await made_on(log, "p0", "a", "b")
    tick = await log.allocate_time_tick()
    later = timestamp.compose(timestamp.parse(tick)[0] + 30_000, 0)
    bodies = [Message("a", b"1"), Message("b", b"2")]
    waiting = start(log.append_txn(["a", "b"], bodies, barrier_time_tick=later, idempotency_key="k"))
    await turns()
    await log.drop_vchannel("b")
    with pytest.raises(errors.ChannelNotExistError, match="'b'"):
        await waiting
    assert local(log).node.in_flight.size == 0


@pytest.mark.inside
async def test_vchannel_dropped_before_the_turn_fails(log: WALAccesser) -> None:
    await made_on(log, "p0", "a", "b")
    dropping = start(log.drop_vchannel("b"))
    wide = start(log.append_txn(["a", "b"], [Message("a", b"1")]))
    await dropping
    outcome = (await asyncio.gather(wide, return_exceptions=True))[0]
    written = await payloads(log, "a")
    assert isinstance(outcome, errors.ChannelNotExistError) == (written == []), outcome
    assert local(log).node.in_flight.size == 0


@pytest.mark.inside
async def test_append_txn_claims_its_key_once(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    await log.create_vchannel("orders")
    for failure in (None, errors.StorageError("the limit cannot be saved")):
        gate = SavingGate(local(log), monkeypatch)
        gate.failure = failure
        calls = [start(log.append_txn("orders", [b"%d" % n], idempotency_key=f"k{n // 2}")) for n in range(4)]
        await turns()
        assert not any(call.done() for call in calls)
        gate.open.set()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        if failure is None:
            assert [outcome.duplicate for outcome in outcomes if isinstance(outcome, AppendResult)] == [False, True] * 2
        monkeypatch.undo()
        if failure is not None:
            break
        await log.drop_vchannel("orders")
        await log.create_vchannel("orders")
    assert [type(outcome) for outcome in outcomes] == [errors.StorageError] * 4
    assert not (await log.append_txn("orders", [b"again"], idempotency_key="k0")).duplicate
    assert await payloads(log, "orders") == [b"again"]
    assert local(log).node.in_flight.size == 0


async def test_append_txn_waits_for_room(location: str) -> None:
    async with open_wal(location, in_flight_bytes_max=3000) as log:
        calls = [log.append_txn("orders", [b"%d|%d" % (n, at) + bytes(400) for at in range(3)]) for n in range(30)]
        results = await asyncio.gather(*calls)
        assert [result.message_id for result in results] == sorted(result.message_id for result in results)
        assert len(await read_all(log, "orders")) == 30
        assert log.statistics().bytes_in_flight == 0


async def test_largest_one(log: WALAccesser) -> None:
    size = (4 << 20) // 4096 - 32
    result = await log.append_txn("orders", [bytes(size)] * 4096)
    async with log.txn("orders") as txn:
        await txn.append_many([Message("orders", bytes(size))] * 4096)
    first, second = await read_all(log, "orders")
    assert first.message_id == result.message_id
    assert len(first.bodies()) == len(second.bodies()) == 4096
    with pytest.raises(errors.InvalidArgumentError, match="txn_bodies_max"):
        await log.append_txn("orders", [b""] * 4097)
    assert facts(first)[4] == result.txn_context
