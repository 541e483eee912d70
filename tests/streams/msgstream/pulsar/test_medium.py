"""The Pulsar medium beyond the conformance suite: its errors, positions inside batches, sends that fail in part, cancellation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.probes import start
from tests.processes import eventually
from tests.servers.pulsar import PulsarServer
from tests.storage.pulsar.conftest import admin, location_of, new_namespace, own
from tests.storage.pulsar.stalls import StallWatch
from tests.streams.msgstream.pulsar.conftest import WAIT_S, kept_namespace, outgoing, received
from wal import Message, open_wal
from wal.errors import ClosedError, InvalidArgumentError, LockedError, StorageError, TruncatedError
from wal.storage.pulsar.address import PulsarAddress
from wal.storage.pulsar.connection import PulsarConnection
from wal.streams.msgstream import PartialSendError
from wal.streams.msgstream.media import pulsar_consumer
from wal.streams.msgstream.media.pulsar import PulsarMedium, PulsarProducer, create_producer
from wal.streams.msgstream.media.pulsar_ids import TopicIds


async def test_receipt_equals_the_consumers_id(medium: PulsarMedium) -> None:
    producer, consumer = await medium.producer("a"), await medium.consumer("a", "s")
    receipts = await producer.send(outgoing([b"alone"]))
    receipts += await producer.send(outgoing([b"%d" % number for number in range(2_500)]))
    found = await received(consumer, 2_501)
    assert [one.payload for one in found] == [b"alone", *(b"%d" % number for number in range(2_500))]
    assert [one.msg_id for one in found] == receipts
    assert len({*receipts}) == len(receipts)
    await consumer.close()
    await producer.close()


async def test_concurrent_sends_keep_the_order_of_calls(medium: PulsarMedium) -> None:
    producer, consumer = await medium.producer("a"), await medium.consumer("a", "s")
    calls = [producer.send(outgoing([b"%d/%d" % (call, number) for number in range(5)])) for call in range(200)]
    await asyncio.gather(*calls)
    found = await received(consumer, 1_000)
    assert [one.payload for one in found] == [b"%d/%d" % (call, number) for call in range(200) for number in range(5)]
    await consumer.close()
    await producer.close()


@pytest.mark.parametrize("name", ["a/b", "ä", "a b", "orders-partition-0"])
async def test_name_that_cannot_be_a_topic_is_refused(medium: PulsarMedium, name: str) -> None:
    for opening in (medium.producer(name), medium.consumer(name, "s")):
        with pytest.raises(InvalidArgumentError, match="channel name"):
            await opening


async def test_topic_with_partitions_is_refused(medium: PulsarMedium, kept: PulsarAddress) -> None:
    admin(kept, "PUT", f"persistent/{kept.path}/split/partitions", 3)
    for opening in (medium.producer("split"), medium.consumer("split", "s")):
        with pytest.raises(InvalidArgumentError, match="3 partitions"):
            await opening


async def test_topics_of_a_log_are_refused(pulsar_server: PulsarAddress, tmp_path: Path) -> None:
    address = new_namespace(pulsar_server)
    location, settings = location_of(address, tmp_path / "meta.sqlite3")
    medium = PulsarMedium(address)
    async with open_wal(location, **settings, pchannels=1) as log:
        await log.raw_append(Message("orders", b"created"))
        for topic in ("p0", "p0-checkpoints"):
            for opening in (medium.producer(topic), medium.consumer(topic, "s")):
                with pytest.raises(InvalidArgumentError, match="belongs to a log"):
                    await opening
        with pytest.raises(InvalidArgumentError, match="choose another name"):
            await medium.consumer("orders", "wal")
        await log.raw_append(Message("orders", b"paid"))
    await medium.close()


async def test_missing_namespace_is_refused_until_created(kept: PulsarAddress) -> None:
    missing = PulsarAddress(kept.service_url, "public", "none", admin_url=kept.admin, token=kept.token)
    medium = PulsarMedium(missing)
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="no namespace public/none"):
            await medium.producer("a")
    await medium.close()
    with pytest.raises(ClosedError):
        await medium.producer("a")


@pytest.mark.parametrize("first_is_exclusive", [True, False])
async def test_exclusive_consumer_excludes_others(medium: PulsarMedium, first_is_exclusive: bool) -> None:
    first = await medium.consumer("a", "s", exclusive=first_is_exclusive)
    with pytest.raises(LockedError, match="subscription 's'"):
        await medium.consumer("a", "s", exclusive=not first_is_exclusive)
    await first.close()
    second = await medium.consumer("a", "s", exclusive=not first_is_exclusive)
    await second.close()


async def test_lost_consumer_waits_for_its_subscription(medium: PulsarMedium, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer waits for TAKEN_S from the answer on that another consumer has it, however long the broker was absent before."""
    producer, lost = await medium.producer("a"), await medium.consumer("a", "s", exclusive=True)
    lost._lose("the broker was killed")
    lost._lost_since = -1e9
    other = await medium.consumer("a", "s", exclusive=True)
    receiving = start(lost.receive(1))
    await eventually(lambda: lost._taken_since is not None or receiving.done())
    await other.close()
    await producer.send(outgoing([b"after it"]))
    assert [one.payload for one in await receiving] == [b"after it"]
    assert lost._fetching is not None
    await asyncio.wait([lost._fetching])  # nothing asks for the next page now, so nothing subscribes again before `other` does
    lost._lose("the broker was killed again")
    other = await medium.consumer("a", "s", exclusive=True)
    monkeypatch.setattr(pulsar_consumer, "TAKEN_S", 0.0)
    with pytest.raises(LockedError, match="close that one"):
        await lost.receive(1)
    for each in (lost, other, producer):
        await each.close()


@pytest.mark.parametrize("exclusive", [True, False])
async def test_seek_is_exact_inside_a_batch(medium: PulsarMedium, exclusive: bool) -> None:
    producer = await medium.producer("a")
    ids = await producer.send(outgoing([b"0"]))
    ids += await producer.send(outgoing([b"%d" % number for number in range(1, 7)]))
    ids += await producer.send(outgoing([b"7"]))
    for at, msg_id in enumerate(ids):
        for inclusive in (True, False):
            consumer = await medium.consumer("a", "s", exclusive=exclusive)
            await consumer.check(msg_id)
            await consumer.seek(msg_id, inclusive=inclusive)
            await producer.send(outgoing([b"end"]))
            wanted = [b"%d" % number for number in range(at if inclusive else at + 1, 8)]
            found = await received(consumer, len(wanted) + 1)
            payloads = [one.payload for one in found]
            assert payloads[: len(wanted) + 1] == [*wanted, b"end"], (at, inclusive)
            await consumer.ack([one.msg_id for one in found])
            await consumer.close()
    await producer.close()


async def test_seek_acknowledges_skipped_messages_of_a_batch(medium: PulsarMedium) -> None:
    producer = await medium.producer("a")
    ids = await producer.send(outgoing([b"%d" % number for number in range(10)]))
    consumer = await medium.consumer("a", "s")
    await consumer.seek(ids[6], inclusive=False)
    found = await received(consumer, 3)
    await consumer.ack([one.msg_id for one in found])
    await consumer.close()
    await producer.send(outgoing([b"next"]))
    consumer = await medium.consumer("a", "s")
    assert [one.payload for one in await consumer.receive(100)] == [b"next"]
    await consumer.close()
    await producer.close()


async def test_partial_acks_of_a_batch_are_exact(medium: PulsarMedium) -> None:
    producer = await medium.producer("a")
    await producer.send(outgoing([b"%d" % number for number in range(10)]))
    for unhandled, acked in ((10, 3), (7, 0), (7, 7)):
        consumer = await medium.consumer("a", "s")
        found = await received(consumer, unhandled)
        assert [one.payload for one in found] == [b"%d" % number for number in range(unhandled)]
        await consumer.ack([one.msg_id for one in found[unhandled - acked :]])
        await consumer.close()
    consumer = await medium.consumer("a", "s")
    await producer.send(outgoing([b"next"]))
    assert [one.payload for one in await received(consumer, 1)] == [b"next"]
    await consumer.close()
    await producer.close()


async def test_ids_are_checked_before_a_seek(medium: PulsarMedium) -> None:
    producer, other = await medium.producer("a"), await medium.producer("b")
    ids = await producer.send(outgoing([b"1", b"2"]))
    foreign = await other.send(outgoing([b"1"]))
    consumer = await medium.consumer("a", "s")
    topic_ids = TopicIds("persistent://" + "x")
    for bad in (*foreign, b"?", b"\0" * 8, ids[0][:-1], ids[0] + b"\0", topic_ids.entry(1, 1) + topic_ids.end(0)):
        with pytest.raises(InvalidArgumentError):
            await consumer.check(bad)
    plain = ids[1][:-9]  # as another client of Pulsar stores it
    await consumer.check(plain)
    with pytest.raises(InvalidArgumentError, match="no message"):
        await consumer.check(foreign[0][:-9])
    await consumer.seek(plain, inclusive=True)
    assert [one.payload for one in await received(consumer, 1)] == [b"2"]
    await consumer.close()
    await producer.close()
    await other.close()


async def test_id_whose_message_pulsar_deleted_is_truncated(pulsar_server: PulsarAddress) -> None:
    address = new_namespace(pulsar_server)  # without retention
    medium = PulsarMedium(address)
    producer, consumer = await medium.producer("a"), await medium.consumer("a", "s")
    ids = []
    for number in range(250):  # a ledger of the test's server holds a hundred entries
        ids += await producer.send(outgoing([b"%d" % number]))
    await consumer.ack([one.msg_id for one in await received(consumer, 250)])
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                await consumer.check(ids[0])
            except TruncatedError as error:
                assert "retention" in str(error)
                break
    await consumer.check((await producer.send(outgoing([b"last"])))[0])
    await consumer.close()
    await producer.close()
    await medium.close()


async def test_too_large_message_is_refused_before_sending(medium: PulsarMedium) -> None:
    producer, consumer = await medium.producer("a"), await medium.consumer("a", "s")
    large, fitting = b"x" * (5 << 20), b"x" * ((5 << 20) - (1 << 10))
    with pytest.raises(InvalidArgumentError, match="maxMessageSize"):
        await producer.send(outgoing([b"before", large, b"after"]))
    await producer.send(outgoing([b"small", fitting, b"last"]))
    assert [one.payload for one in await received(consumer, 3)] == [b"small", fitting, b"last"]
    await consumer.close()
    await producer.close()


async def test_partial_send_lists_durable_messages(kept: PulsarAddress, medium: PulsarMedium) -> None:
    connection = PulsarConnection(kept)
    await connection.run(connection.start)
    await (await medium.producer("a")).close()
    topic = kept.topic("a")
    native = await connection.run(lambda: create_producer(connection.client, topic))
    # A producer whose limit is larger than the broker's: Pulsar's client rejects one message and sends the others.
    producer = PulsarProducer(connection, "a", TopicIds(topic), native, bytes_max=1 << 30)
    with pytest.raises(PartialSendError) as partly:
        await producer.send(outgoing([b"first", b"x" * (6 << 20), b"last"]))
    assert isinstance(partly.value.__cause__, InvalidArgumentError)
    first, refused, last = partly.value.durable["a"]
    with pytest.raises(InvalidArgumentError):
        await producer.send(outgoing([b"x" * (6 << 20)]))
    await producer.close()
    await connection.close()
    consumer = await medium.consumer("a", "s")
    found = await received(consumer, 2)
    assert refused is None
    assert [(one.payload, one.msg_id) for one in found] == [(b"first", first), (b"last", last)]
    await consumer.close()


async def test_cancelled_receive_loses_nothing(medium: PulsarMedium) -> None:
    producer, consumer = await medium.producer("a"), await medium.consumer("a", "s")
    found: list[bytes] = []

    async def read() -> None:
        while len(found) < 300:
            try:
                async with asyncio.timeout(0.002):
                    found.extend([one.payload for one in await consumer.receive(7)])
            except TimeoutError:
                pass

    reading = asyncio.create_task(read())
    for number in range(100):
        await producer.send(outgoing([b"%d/%d" % (number, part) for part in range(3)]))
    await reading
    assert found == [b"%d/%d" % (number, part) for number in range(100) for part in range(3)]
    await consumer.close()
    await producer.close()


async def test_waiting_receive_ends_with_its_consumer(medium: PulsarMedium) -> None:
    consumer = await medium.consumer("a", "s")
    waiting = asyncio.create_task(consumer.receive(10))
    await asyncio.sleep(0)
    await consumer.close()
    with pytest.raises(ClosedError):
        await waiting
    with pytest.raises(ClosedError):
        await consumer.receive(10)
    await consumer.close()


async def test_closing_consumer_returns_its_messages(medium: PulsarMedium) -> None:
    producer = await medium.producer("a")
    first = await medium.consumer("a", "s")
    await producer.send(outgoing([b"%d" % number for number in range(50)]))
    held = await received(first, 50)
    await first.ack([held[0].msg_id])
    second = await medium.consumer("a", "s")
    await first.close()
    found = {one.payload for one in await received(second, 49)}
    assert found >= {b"%d" % number for number in range(1, 50)}
    await second.close()
    await producer.close()


async def test_loop_is_never_blocked(medium: PulsarMedium) -> None:
    producer, consumer = await medium.producer("a"), await medium.consumer("a", "s", exclusive=True)
    async with StallWatch() as watch:
        for _ in range(10):
            sends = []
            for _ in range(10):  # the loop turns between calls: only a call that waits stalls it, not what a thousand take together
                sends.append(asyncio.ensure_future(producer.send(outgoing([b"x" * 1_000] * 100))))
                await asyncio.sleep(0)
            await asyncio.gather(*sends)
            await consumer.ack([one.msg_id for one in await received(consumer, 1_000)])
        await consumer.close()
        await producer.close()
        await medium.close()
    assert watch.stalls == []
    assert watch.beats > 0


@pytest.mark.parametrize("stopped", [True, pytest.param(False, marks=pytest.mark.soak("a broker that does not answer is the harder case"))])
async def test_everything_closes_soon_although_the_broker_is_gone(pulsar_process: PulsarServer, stopped: bool) -> None:
    """With `stopped` the broker's connections stay open but it does not answer; else it was killed."""
    # A stream closes a consumer, a producer and the medium, each of which may wait three seconds for its broker.
    close_limit_s = 10.0
    medium = PulsarMedium(kept_namespace(own(pulsar_process)))
    producer, consumer = await medium.producer("a"), await medium.consumer("a", "s", exclusive=True)
    await producer.send(outgoing([b"before"]))
    await consumer.ack([one.msg_id for one in await received(consumer, 1)])
    waiting = asyncio.create_task(consumer.receive(10))
    await asyncio.to_thread(pulsar_process.stop if stopped else pulsar_process.kill)
    try:
        sending = asyncio.create_task(producer.send(outgoing([b"during"])))
        await asyncio.sleep(0)
        async with asyncio.timeout(close_limit_s):
            await consumer.close()
            await producer.close()
            await medium.close()
    finally:
        await asyncio.to_thread(pulsar_process.cont if stopped else pulsar_process.start)
    with pytest.raises(ClosedError):
        await waiting
    with pytest.raises(StorageError) as unanswered:
        await sending
    assert unanswered.value.outcome_unknown


def test_address_that_is_none_of_pulsar_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, dict[str, Any]]] = [
        ("memory:", {}),
        ("pulsar://", {}),
        ("pulsar://host:6650/tenant", {}),
        ("http://host:6650", {}),
        ("pulsar://host:6650", {"admin_url": "host:8080"}),
        ("pulsar://host:6650", {"token": "two\nlines"}),
        (PulsarAddress("pulsar://host:6650"), {"token": "a.json.webtoken"}),
    ]
    for address, settings in cases:
        with subtests.test(repr(address)), pytest.raises(InvalidArgumentError):
            PulsarMedium(address, **settings)


async def test_address_is_a_text_too(kept: PulsarAddress) -> None:
    text = f"{kept.service_url}/{kept.path}"
    async with PulsarMedium(text, admin_url=kept.admin_url, token=kept.token) as medium:
        await (await medium.producer("a")).close()
    with pytest.raises(TypeError, match="PulsarAddress"):
        PulsarMedium(6650)  # type: ignore[arg-type]
