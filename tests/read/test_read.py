"""The start of a read and the messages that it delivers: policies, filters, several vchannels."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import wal
from tests.locations import open_wal
from tests.probes import bodies, facts, grouped, made_on, payloads, read_all, start, turns
from wal.errors import ChannelNotExistError, InvalidArgumentError, LogWentBackError

pytestmark = [pytest.mark.everywhere, pytest.mark.on_pulsar, pytest.mark.on_archive]


@pytest.fixture
async def filled(log: wal.WALAccesser) -> tuple[wal.WALAccesser, list[wal.ImmutableMessage]]:
    """Appends plain messages and transactions, also to another vchannel, in one frame and over several."""
    futures = [log.append_nowait(wal.Message("orders", b"%d" % number)) for number in range(3)]
    futures += [log.append_nowait(wal.Message("other", b"x")) for _ in range(2)]
    async with log.txn("orders") as txn:
        await txn.append(b"3a")
        await txn.append(wal.Message("orders", b"3b", message_type=wal.MessageType.DELETE))
    await log.raw_append(wal.Message("orders", b"4", message_type=wal.MessageType.IMPORT))
    async with log.txn("orders"):
        pass
    async with log.txn(vchannels=["orders", "other"]) as txn:
        await txn.append(wal.Message("other", b"y"))
        await txn.append(wal.Message("orders", b"6"))
    await log.append_nowait(wal.Message("orders", b"7", message_type=wal.MessageType.DELETE))
    for future in futures:
        await future
    return log, await read_all(log, "orders")


Filled = tuple[wal.WALAccesser, list[wal.ImmutableMessage]]


async def test_all_begins_at_the_oldest_message(filled: Filled) -> None:
    log, messages = filled
    assert grouped(messages) == [[b"0"], [b"1"], [b"2"], [b"3a", b"3b"], [b"4"], [], [b"6"], [b"7"]]
    assert list(map(facts, await read_all(log, "orders", deliver_policy=wal.All()))) == list(map(facts, messages))
    assert await payloads(log, "other") == [b"x", b"x", b"y"]


@pytest.mark.on_pulsar
async def test_from_and_after_every_message_and_every_body(filled: Filled) -> None:
    log, messages = filled
    for at, message in enumerate(messages):
        ids = [message.message_id, *(body.message_id for body in message.bodies())]
        for message_id in ids:
            from_here = await read_all(log, "orders", deliver_policy=wal.StartFrom(message_id))
            assert list(map(facts, from_here)) == list(map(facts, messages[at:]))
            after = await read_all(log, "orders", deliver_policy=wal.StartAfter(message_id))
            assert list(map(facts, after)) == list(map(facts, messages[at + 1 :]))


async def test_ids_travel_as_text_and_bytes(filled: Filled) -> None:
    log, messages = filled
    message_id = messages[4].message_id
    for copy in (wal.MessageID.parse(str(message_id)), wal.MessageID.from_bytes(bytes(message_id))):
        assert copy == message_id
        assert await payloads(log, "orders", deliver_policy=wal.StartFrom(copy)) == [b"4", b"6", b"7"]


async def test_ids_of_other_vchannels_are_valid_starts(filled: Filled) -> None:
    log, _ = filled
    x = (await read_all(log, "other"))[1].message_id
    assert (await payloads(log, "orders", deliver_policy=wal.StartFrom(x)))[0] == b"3a"
    assert (await payloads(log, "orders", deliver_policy=wal.StartAfter(x)))[0] == b"3a"


async def test_latest_is_what_becomes_durable_after_entry(filled: Filled) -> None:
    log, _ = filled
    scanner = log.read("orders", deliver_policy=wal.Latest())
    await log.raw_append(wal.Message("orders", b"before entry"))
    async with scanner:
        await log.raw_append(wal.Message("orders", b"after entry"))
        assert (await anext(scanner)).payload == b"after entry"
    assert await payloads(log, "orders", deliver_policy=wal.Latest()) == []


@pytest.mark.not_on("pulsar", "makes ids in the journal's form")
@pytest.mark.one_location("wal.api refuses the call before any log has it")
async def test_wrong_ids(filled: Filled) -> None:
    log, messages = filled
    last = messages[-1].message_id
    above = wal.MessageID(last.pchannel, last.incarnation, last.position + (1 << 30), 0)
    other_life = wal.MessageID(last.pchannel, last.incarnation ^ 1, last.position, last.index)
    other = wal.MessageID("p9", last.incarnation, last.position, last.index)
    policy: Any
    for policy in (wal.StartFrom, wal.StartAfter):
        for wrong, text in ((above, "durable end"), (other_life, "another incarnation"), (other, "another pchannel")):
            with pytest.raises(InvalidArgumentError, match=text) as caught:
                await read_all(log, "orders", deliver_policy=policy(wrong))
            assert str(wrong) in str(caught.value)
            # A position was read once: if it is above the end, the log went back.
            kind, text = (LogWentBackError, "above its end") if wrong is above else (InvalidArgumentError, text)
            with pytest.raises(kind, match=text):
                await read_all(log, "orders", resume=wal.ReadPosition(wrong, 5))
        with pytest.raises(TypeError):
            policy(str(last))
        with pytest.raises(TypeError):
            policy(wal.ReadPosition(last, 5))


async def test_filters_by_tick(filled: Filled) -> None:
    log, messages = filled
    for at, message in enumerate(messages):
        tick = message.time_tick
        above = await read_all(log, "orders", filters=wal.TimeTickGT(tick))
        assert list(map(facts, above)) == list(map(facts, messages[at + 1 :]))
        from_it = await read_all(log, "orders", filters=[wal.TimeTickGTE(tick), wal.TimeTickGT(3)])
        assert list(map(facts, from_it)) == list(map(facts, messages[at:]))
    assert await read_all(log, "orders", filters=[wal.TimeTickGT((1 << 64) - 1)]) == []


@pytest.mark.on_pulsar
async def test_filters_by_type_look_into_transactions(filled: Filled) -> None:
    log, _ = filled
    insert = await read_all(log, "orders", filters=wal.MessageTypes(wal.MessageType.INSERT))
    assert grouped(insert) == [[b"0"], [b"1"], [b"2"], [b"3a"], [b"6"]]
    deleted = await read_all(log, "orders", filters=[wal.MessageTypes(wal.MessageType.DELETE)])
    assert grouped(deleted) == [[b"3b"], [b"7"]]
    assert deleted[0].message_type is wal.MessageType.TXN
    both = [wal.MessageTypes(wal.MessageType.DELETE, wal.MessageType.IMPORT), wal.MessageTypes(wal.MessageType.IMPORT)]
    assert bodies(await read_all(log, "orders", filters=both)) == [b"4"]
    assert await read_all(log, "orders", filters=wal.MessageTypes(wal.MessageType.CREATE_INDEX)) == []
    later = [wal.MessageTypes(wal.MessageType.DELETE), wal.TimeTickGT(deleted[0].time_tick)]
    assert bodies(await read_all(log, "orders", filters=later)) == [b"7"]


@pytest.mark.on_pulsar
async def test_several_vchannels_in_tick_order(filled: Filled) -> None:
    log, _ = filled
    messages = await read_all(log, ["other", "orders"])
    assert grouped(messages) == [[b"0"], [b"1"], [b"2"], [b"x"], [b"x"], [b"3a", b"3b"], [b"4"], [], [b"y", b"6"], [b"7"]]
    ticks = [message.time_tick for message in messages]
    assert ticks == sorted(set(ticks))
    assert len(await read_all(log, ("orders", "orders"))) == 8


async def test_several_vchannels_must_lie_on_one_pchannel(log4: wal.WALAccesser) -> None:
    await made_on(log4, "p0", "a", "b")
    await made_on(log4, "p3", "c")
    await read_all(log4, ["a", "b"])
    with pytest.raises(InvalidArgumentError, match="'c' on p3"):
        await read_all(log4, ["a", "c"])
    result = await log4.raw_append(wal.Message("c", b"1"))
    with pytest.raises(InvalidArgumentError, match="another pchannel"):
        await read_all(log4, "a", deliver_policy=wal.StartFrom(result.message_id))


async def test_unknown_vchannel_delivers_after_its_creation(log4: wal.WALAccesser) -> None:
    assert await read_all(log4, "unknown") == []
    assert await log4.vchannels() == [], "reading makes nothing"
    async with log4.read("unknown") as scanner:
        first = start(anext(scanner))
        await turns()
        assert not first.done()
        await log4.raw_append(wal.Message("unknown", b"1"))
        assert (await first).payload == b"1"


async def test_unknown_vchannel_that_is_created_on_any_pchannel(log4: wal.WALAccesser) -> None:
    """The pchannel of the vchannel is not known when the reader begins."""
    scanners = [log4.read("unknown") for _ in range(4)]
    for scanner in scanners:
        await scanner.__aenter__()
    places = {pchannel.name for pchannel in log4.statistics().pchannels if pchannel.readers}
    elsewhere = next(name for name in ("p0", "p1", "p2", "p3") if name not in places)
    await log4.create_vchannel("unknown", pchannel=elsewhere)
    await log4.raw_append(wal.Message("unknown", b"1"))
    for scanner in scanners:
        async with asyncio.timeout(60):
            assert (await anext(scanner)).payload == b"1"
        await scanner.close()


async def test_unknown_vchannel_raises_without_create_vchannels(location: str) -> None:
    async with open_wal(location, create_vchannels=False) as log:
        with pytest.raises(ChannelNotExistError, match="create_vchannel"):
            await read_all(log, "orders")
        for call in (
            lambda: log.raw_append(wal.Message("orders", b"1")),
            lambda: log.append_bulk([wal.Message("orders", b"1")]),
            lambda: log.txn("orders").__aenter__(),
            lambda: log.get_latest_mvcc_timestamp_if_local("orders"),
        ):
            with pytest.raises(ChannelNotExistError, match="create_vchannel"):
                await call()
        await log.create_vchannel("orders")
        await log.raw_append(wal.Message("orders", b"1"))
        assert await payloads(log, "orders") == [b"1"]


def test_wrong_arguments() -> None:
    log = open_wal("memory:")._log
    position = wal.ReadPosition(wal.MessageID("p0", 1, 0, 0), 5)
    odd: dict[str, Any]
    for odd in (
        {"vchannel": 5},
        {"vchannel": ["a", 5]},
        {"vchannel": "a", "deliver_policy": "latest"},
        {"vchannel": "a", "deliver_policy": wal.All},
        {"vchannel": "a", "resume": str(position)},
        {"vchannel": "a", "follow": 1},
        {"vchannel": "a", "include_time_ticks": "yes"},
        {"vchannel": "a", "until_time_tick": "7"},
        {"vchannel": "a", "filters": ["GT"]},
        {"vchannel": "a", "filters": 5},
        {"vchannel": "a", "handler": 5},
    ):
        with pytest.raises(TypeError):
            log.read(**odd)
    wrong: dict[str, Any]
    for wrong in (
        {"vchannel": ""},
        {"vchannel": []},
        {"vchannel": "a\n"},
        {"vchannel": "a" * 300},
        {"vchannel": "a", "until_time_tick": -1},
        {"vchannel": "a", "until_time_tick": 1 << 64},
        {"vchannel": "a", "resume": position, "deliver_policy": wal.All()},
    ):
        with pytest.raises(InvalidArgumentError):
            log.read(**wrong)


async def test_append_results_have_the_ids_of_readers(log: wal.WALAccesser) -> None:
    results: list[wal.AppendResult] = await log.append_bulk([wal.Message("orders", b"%d" % number) for number in range(50)])
    for number, result in enumerate(results):
        async with log.read("orders", deliver_policy=wal.StartFrom(result.message_id)) as scanner:
            message = await anext(scanner)
        assert (message.message_id, message.time_tick, message.payload) == (result.message_id, result.time_tick, b"%d" % number)


@pytest.mark.not_on("wal", "looks for an error at the call: another client may have created the vchannel, so the future has it")
async def test_append_nowait_needs_an_existing_vchannel(location: str) -> None:
    async with open_wal(location, create_vchannels=False) as log:
        with pytest.raises(ChannelNotExistError):
            log.append_nowait(wal.Message("orders", b"1"))


@pytest.mark.not_on("wal", "a result and a message come in two streams")
async def test_waiting_reader_runs_before_the_callers(log: wal.WALAccesser) -> None:
    """What the callers append next would make it wait; the messages were built while the frame was written."""
    await log.create_vchannel("orders")
    turned: list[tuple[str, bytes]] = []

    async def read() -> None:
        async for message in scanner:
            turned.append(("read", message.payload))

    async with log.read("orders", deliver_policy=wal.Latest()) as scanner:
        reader = asyncio.ensure_future(read())
        for number in range(4):
            await turns()
            key = None if number < 3 else "key"
            result = await log.raw_append(wal.Message("orders", b"%d" % number), idempotency_key=key)
            assert scanner.position is not None
            turned.append(("appended", b"%d" % number))
            assert scanner.position.message_id == result.message_id
    await reader
    assert turned == [(what, b"%d" % number) for number in range(4) for what in ("read", "appended")]


async def test_poll_shorter_than_fetch_advances(location: str) -> None:
    """A pull that is cancelled at once leaves its fetch to the next one, whichever backend is read."""

    async def polled(log: wal.WALAccesser, payloads: list[bytes]) -> None:
        """Reads these payloads by pulls that are cancelled in the next turn of the loop unless they have a message at once."""
        read: list[bytes] = []
        async with asyncio.timeout(60):
            async with log.read("orders") as scanner:
                while len(read) < len(payloads):
                    pulling = asyncio.ensure_future(anext(scanner))
                    await asyncio.sleep(0)
                    pulling.cancel()
                    try:
                        read.append((await pulling).payload)
                    except asyncio.CancelledError:
                        continue
        assert read == payloads

    payloads = [b"%d" % number for number in range(20)]
    async with open_wal(location) as log:
        for payload in payloads:
            await log.raw_append(wal.Message("orders", payload, properties={"x": "y" * 1000}))
        if location == "memory:":
            await polled(log, payloads)
    if location != "memory:":
        async with open_wal(location) as log:  # nothing is read from the frames that the writer has in memory
            await polled(log, payloads)
