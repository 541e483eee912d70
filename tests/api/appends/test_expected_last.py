"""Appends on a condition: `expected_last` of messages and transactions, `log.last`, and what a ConflictError has, on every engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.locations import open_wal
from tests.probes import local, made_on, payloads, read_all, start, turns
from tests.write.idempotency.test_write_path import Gate
from wal import BroadcastMessage, Message, MessageID, MessageType, ProducerKey, WALAccesser
from wal.errors import ChannelNotExistError, ConflictError, InvalidArgumentError, InvalidTransactionStateError, UnavailableError
from wal.node.local.log import LocalLog
from wal.write.checkpoint_ledger import CheckpointRule


def order(payload: bytes = b"x", vchannel: str = "orders") -> Message:
    return Message(vchannel, payload)


async def conflict_of(awaitable: Any) -> ConflictError:
    with pytest.raises(ConflictError) as caught:
        await awaitable
    assert caught.value.vchannel in str(caught.value)
    return caught.value


async def test_chain_of_expected_events(log: WALAccesser) -> None:
    assert await log.last("orders") is None
    last: MessageID | None = None
    for number in range(3):
        result = await log.raw_append(order(b"%d" % number), expected_last=last)
        last = result.message_id
        assert await log.last("orders") == last
    assert await payloads(log, "orders") == [b"0", b"1", b"2"]


async def test_conflict_writes_nothing(log: WALAccesser) -> None:
    first = await log.raw_append(order(b"1"))
    second = await log.raw_append(order(b"2"))
    for expected in (None, first.message_id):
        conflict = await conflict_of(log.raw_append(order(b"no"), expected_last=expected))
        assert (conflict.vchannel, conflict.last) == ("orders", second.message_id)
    assert (await conflict_of(log.append_txn("new", [b"no"], expected_last=first.message_id))).last is None
    assert await payloads(log, "orders") == [b"1", b"2"]
    assert await log.last("new") is None
    assert conflict.last is not None
    await log.raw_append(order(b"3"), expected_last=conflict.last)


async def test_several_writers_have_one_winner(log: WALAccesser) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: log.raw_append(order(b"a"), expected_last=None),
        lambda: log.raw_append(order(b"b"), expected_last=None, idempotency_key="b"),
        lambda: log.append_txn("orders", [b"c"], expected_last=None),
        lambda: log.append_nowait(order(b"d"), expected_last=None),
    ]
    for _ in range(4):
        await log.create_vchannel("orders")
        outcomes = await asyncio.gather(*[call() for call in calls], return_exceptions=True)
        winners = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        conflicts = [outcome for outcome in outcomes if isinstance(outcome, ConflictError)]
        assert (len(winners), len(conflicts)) == (1, 3)
        assert {conflict.last for conflict in conflicts} == {winners[0].message_id} == {await log.last("orders")}
        assert len(await read_all(log, "orders")) == 1
        await log.drop_vchannel("orders")
        calls.append(calls.pop(0))


@pytest.mark.inside
async def test_event_in_flight_counts(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    """The id of the last event is handed out only once the event is durable."""
    await log.raw_append(order())
    last = await log.last("orders")
    gate = Gate(log, monkeypatch, next(iter(local(log).node.pchannels)))
    first = log.append_nowait(order(b"1"), expected_last=last)
    late = log.append_nowait(order(b"2"), expected_last=last, idempotency_key="late")
    transaction = start(log.append_txn("orders", [b"3"], expected_last=last))
    await turns()
    assert not any(future.done() for future in (first, late, transaction))
    assert await log.last("orders") == last
    gate.open()
    written = (await first).message_id
    assert (await conflict_of(late)).last == (await conflict_of(transaction)).last == written
    assert await log.last("orders") == written
    gate.shut = True
    again = log.append_nowait(order(b"4"), expected_last=written, idempotency_key="late")
    gate.open()
    assert not (await again).duplicate, "a key that conflicted is free"
    assert await payloads(log, "orders") == [b"x", b"1", b"4"]


@pytest.mark.inside
async def test_refused_event_in_flight_never_was(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event that an append conflicts with is refused by a full disk: nobody gets its id, and the same append succeeds later."""
    await log.raw_append(order())
    last = await log.last("orders")
    gate = Gate(log, monkeypatch, next(iter(local(log).node.pchannels)))
    first = log.append_nowait(order(b"1"))
    late = log.append_nowait(order(b"2"), expected_last=last)
    await turns()
    gate.refuse()
    outcomes = await asyncio.gather(first, late, return_exceptions=True)
    if isinstance(outcomes[0], BaseException):
        assert isinstance(outcomes[1], UnavailableError)
        await log.raw_append(order(b"2"), expected_last=last)
        assert await payloads(log, "orders") == [b"x", b"2"]
    else:  # a client over the network sends what was refused again
        assert isinstance(outcomes[1], UnavailableError | ConflictError)
        assert await payloads(log, "orders") == [b"x", b"1"]


@pytest.mark.parametrize("key", ["key", ProducerKey("writer", 1)])
async def test_key_is_judged_first(log: WALAccesser, key: Any) -> None:
    first = await log.raw_append(order(b"1"), expected_last=None, idempotency_key=key)
    await log.raw_append(order(b"2"))
    again = await log.raw_append(order(b"1"), expected_last=None, idempotency_key=key)
    assert again.duplicate
    assert again.message_id == first.message_id
    kept = await log.append_txn("txns", [b"1"], expected_last=None, idempotency_key=key)
    await log.raw_append(order(b"2", "txns"))
    assert (await log.append_txn("txns", [b"1"], expected_last=None, idempotency_key=key)).message_id == kept.message_id
    async with log.txn("txns", expected_last=None, idempotency_key=key) as txn:
        await txn.append(order(b"1", "txns"))
    assert txn.result is not None
    assert txn.result.message_id == kept.message_id


async def test_transaction_judges_at_its_commit(log: WALAccesser) -> None:
    txn = await log.txn("orders", expected_last=None)
    await txn.append(order(b"1"))
    rolled_back = await log.txn("orders", expected_last=None)
    await rolled_back.append(order(b"no"))
    await rolled_back.rollback()
    assert await log.last("orders") is None, "a transaction that was rolled back is no event"
    result = await txn.commit()
    assert await log.last("orders") == result.message_id
    late = await log.txn("orders", expected_last=None)
    await late.append(order(b"no"))
    assert (await conflict_of(late.commit())).last == result.message_id
    with pytest.raises(InvalidTransactionStateError):
        await late.commit()
    assert await payloads(log, "orders") == [b"1"]


async def test_transaction_over_several_vchannels(log4: WALAccesser) -> None:
    log, names = log4, ["a", "b", "c"]
    await made_on(log, "p1", *names)
    messages = [Message(name, b"1") for name in names]
    first = await log.append_txn(names, messages, expected_last={"a": None, "b": None})
    second = await log.raw_append(Message("b", b"2"), expected_last=first.message_id)
    conflict = await conflict_of(log.append_txn(names, messages, expected_last={"a": first.message_id, "b": first.message_id}))
    assert (conflict.vchannel, conflict.last) == ("b", second.message_id)
    txn = await log.txn(vchannels=names, expected_last={"b": second.message_id, "c": first.message_id})
    await txn.append(messages[0])
    last = (await txn.commit()).message_id
    assert {await log.last(name) for name in names} == {last}, "a transaction is an event of each of its vchannels"


async def test_id_of_a_body_is_explained(log: WALAccesser) -> None:
    result = await log.append_txn("orders", [b"1", b"2"])
    (message,) = await read_all(log, "orders")
    body = message.bodies()[0].message_id
    assert body != result.message_id == message.message_id
    with pytest.raises(InvalidArgumentError, match="id of a body"):
        await log.raw_append(order(), expected_last=body)
    await log.raw_append(order(), expected_last=message.message_id)


async def test_copy_of_a_broadcast_is_an_event(log: WALAccesser) -> None:
    await log.create_vchannel("orders")
    await log.create_vchannel("other")
    before = await log.raw_append(order())
    result = await log.broadcast().append(
        BroadcastMessage(vchannels=["orders", "other"], payload=b"all", message_type=MessageType.SCHEMA_CHANGE)
    )
    copies = {name: each.message_id for name, each in result.append_results.items()}
    assert {name: await log.last(name) for name in ("orders", "other")} == copies
    assert (await conflict_of(log.raw_append(order(), expected_last=before.message_id))).last == copies["orders"]
    await log.raw_append(order(), expected_last=copies["orders"])


async def test_recreated_vchannel_has_no_event(log: WALAccesser) -> None:
    old = await log.raw_append(order())
    await log.drop_vchannel("orders")
    assert await log.last("orders") is None
    await log.create_vchannel("orders")
    assert await log.last("orders") is None
    assert (await conflict_of(log.raw_append(order(), expected_last=old.message_id))).last is None
    await log.raw_append(order(), expected_last=None)


async def test_barrier_and_exclusive_message(log: WALAccesser) -> None:
    """An append waits for its barrier first; what is written meanwhile is the last event."""
    tick = await log.allocate_time_tick()
    waiting = start(log.raw_append(order(b"1"), barrier_time_tick=tick, expected_last=None))
    result = await waiting
    exclusive = Message("orders", b"2", message_type=MessageType.SCHEMA_CHANGE)
    open_txn = await log.txn("orders")
    assert (await conflict_of(log.raw_append(exclusive, expected_last=None))).last == result.message_id
    await open_txn.append(order(b"3"))  # an exclusive message that was not written ends no transaction
    last = (await open_txn.commit()).message_id
    await log.raw_append(exclusive, expected_last=last)
    assert await payloads(log, "orders") == [b"1", b"3", b"2"]


@pytest.mark.parametrize("expected", ["1", 0, b"", ...])
async def test_expected_event_of_another_type(log: WALAccesser, expected: Any) -> None:
    with pytest.raises(TypeError, match="MessageID"):
        await log.raw_append(order(), expected_last=expected)
    with pytest.raises(TypeError, match="MessageID"):
        log.append_nowait(order(), expected_last=expected)
    with pytest.raises(TypeError, match="MessageID"):
        await log.append_txn("orders", [b"1"], expected_last={"orders": expected})
    assert await log.last("orders") is None


async def test_expected_event_of_another_log(log4: WALAccesser) -> None:
    log = log4
    await made_on(log, "p0", "orders", "beside")
    await made_on(log, "p1", "elsewhere")
    foreign = (await log.raw_append(order(vchannel="elsewhere"))).message_id
    for call in (
        log.raw_append(order(), expected_last=foreign),
        log.append_txn("orders", [b"1"], expected_last=foreign),
        log.append_txn(["orders", "beside"], [order()], expected_last=None),
        log.append_txn("orders", [b"1"], expected_last={"beside": None}),
    ):
        with pytest.raises(InvalidArgumentError):
            await call
    assert await log.last("orders") is None


async def test_last_of_an_unknown_vchannel(location: str) -> None:
    async with open_wal(location, create_vchannels=False) as log:
        with pytest.raises(ChannelNotExistError):
            await log.last("orders")
        with pytest.raises(ChannelNotExistError):
            await log.raw_append(order(), expected_last=None)


@pytest.mark.parametrize("checkpoints", [False, True])
async def test_last_event_outlives_truncation(data: str, monkeypatch: pytest.MonkeyPatch, *, checkpoints: bool) -> None:
    """The last events are known after restarts, although the log was truncated above them."""
    if checkpoints:
        monkeypatch.setattr(LocalLog, "checkpoint_rule", CheckpointRule(keyed_events=1, log_bytes=1))
    lasts: dict[str, MessageID | None] = {"unused": None}
    options: dict[str, Any] = {"segment_bytes": 1 << 20, "time_tick_interval_s": 0.005}
    for round_ in range(3):
        async with open_wal(data, **options) as log:
            assert {name: await log.last(name) for name in lasts} == lasts
            if not round_:
                await log.create_vchannel("unused")
                lasts["quiet"] = (await log.raw_append(order(vchannel="quiet"), expected_last=None)).message_id
                lasts["txn"] = (await log.append_txn("txn", [b"1", b"2"], expected_last=None)).message_id
            for _ in range(4):
                result = await log.raw_append(order(bytes(400_000)), expected_last=lasts.get("orders"))
                lasts["orders"] = result.message_id
            assert result.message_id is not None
            await log.truncate(up_to=result.message_id)
            pchannel = local(log).node.pchannels["p0"]
            assert pchannel.checkpointer is not None
            while checkpoints and pchannel.checkpointer.ledger.last.position < result.message_id.position:
                await asyncio.sleep(0.001)
        async with open_wal(data, read_only=True) as reader:
            assert {name: await reader.last(name) for name in lasts} == lasts
    async with open_wal(data, **options) as log:
        conflict = await conflict_of(log.raw_append(order(vchannel="quiet"), expected_last=None))
        assert conflict.last == lasts["quiet"]
        await log.raw_append(order(vchannel="quiet"), expected_last=lasts["quiet"])
        await log.raw_append(order(vchannel="unused"), expected_last=None)


EXPECTATIONS = st.sampled_from(["omitted", "none", "last", "older"])
KINDS = st.sampled_from(["raw", "keyed", "txn", "begun", "plain"])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 1), KINDS, EXPECTATIONS), max_size=6), max_size=6))
def test_conflicts_follow_the_order_of_calls(bursts: list[list[tuple[int, str, str]]]) -> None:
    """Each burst is sent at once and judged in its order; only what earlier bursts wrote has ids that a caller can expect."""

    async def judged(bursts: list[list[tuple[int, str, str]]]) -> None:
        async with open_wal("memory:") as log:
            await made_on(log, "p0", "v0", "v1")
            events: list[list[MessageID | None]] = [[None], [None]]
            number = 0
            for burst in bursts:
                sent: list[tuple[int, bool, asyncio.Future[Any]]] = []
                durable, moved = [list(each) for each in events], [False, False]
                for vchannel, kind, expectation in burst:
                    number += 1
                    known = durable[vchannel]
                    expected = {"none": None, "last": known[-1], "older": known[-2:][0]}
                    options = {"expected_last": expected[expectation]} if expectation in expected else {}
                    wins = "expected_last" not in options or (not moved[vchannel] and options["expected_last"] == durable[vchannel][-1])
                    moved[vchannel] = moved[vchannel] or wins
                    message = Message(f"v{vchannel}", b"%d" % number)
                    sent.append((vchannel, wins, start(sending(log, message, kind, number, options))))
                    await asyncio.sleep(0)
                for vchannel, wins, future in sent:
                    if wins:
                        events[vchannel].append((await future).message_id)
                    else:
                        conflict = await conflict_of(future)
                        assert conflict.last in events[vchannel]
                for at in (0, 1):
                    assert await log.last(f"v{at}") == events[at][-1]
            for at in (0, 1):
                assert [message.message_id for message in await read_all(log, f"v{at}")] == events[at][1:]

    async def sending(log: WALAccesser, message: Message, kind: str, number: int, options: dict[str, Any]) -> Any:
        if kind == "raw":
            return await log.raw_append(message, **options)
        if kind == "keyed":
            return await log.raw_append(message, idempotency_key=f"k{number}", **options)
        if kind == "plain":
            return await log.append_nowait(message, **options)
        if kind == "txn":
            return await log.append_txn(message.vchannel, [message.payload], **options)
        return await log.append_txn(message.vchannel, [message, message], idempotency_key=f"t{number}", **options)

    asyncio.run(judged(bursts))
