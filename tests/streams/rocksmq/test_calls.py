"""The calls, one by one: effects, errors, and the resulting records on disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from wal import errors
from wal.storage.kv import MemoryKV
from wal.streams.rocksmq import ConsumerMessage, ProducerMessage, RocksMQ, RocksMQSettings
from wal.timestamp import IdAllocator


def payloads(messages: list[ConsumerMessage]) -> list[bytes]:
    return [message.payload for message in messages]


async def test_each_group_consumes_each_message_once_in_order(mq: RocksMQ) -> None:
    await mq.create_channel("orders")
    for group in ("billing", "shipping"):
        await mq.create_consumer_group(group, "orders")
    ids = await mq.produce("orders", [b"a", ProducerMessage(b"b")])
    more = await mq.produce("orders", [b""])
    assert [len(ids), len(more)] == [2, 1]
    assert more.start >= ids.stop
    first = await mq.consume("billing", "orders", 2)
    assert first == [ConsumerMessage(ids[0], b"a"), ConsumerMessage(ids[1], b"b")]
    assert await mq.consume("billing", "orders", 9) == [ConsumerMessage(more[0], b"")]
    assert await mq.consume("billing", "orders", 9) == []
    assert payloads(await mq.consume("shipping", "orders", 9)) == [b"a", b"b", b""]


async def test_channels_whose_names_begin_alike_never_mix(mq: RocksMQ) -> None:
    names = ["a", "a/b", "a1", "a/", "a%2Fb", "a/b/c"]
    for name in names:
        await mq.create_channel(name)
        await mq.create_consumer_group("g", name)
    for name in names:
        await mq.produce(name, [name.encode(), b"2"])
    await mq.destroy_channel("a")
    for name in names[1:]:
        assert payloads(await mq.consume("g", name, 99)) == [name.encode(), b"2"]
    await mq.create_channel("a")
    await mq.create_consumer_group("g", "a")
    assert await mq.consume("g", "a", 99) == []


async def test_unknown_and_duplicate_names_are_errors(mq: RocksMQ) -> None:
    with pytest.raises(errors.ChannelNotExistError, match=r"'x'.*create_channel"):
        await mq.produce("x", [b""])
    with pytest.raises(errors.ChannelNotExistError):
        await mq.create_consumer_group("g", "x")
    with pytest.raises(errors.ChannelNotExistError):
        await mq.destroy_channel("x")
    await mq.create_channel("x")
    with pytest.raises(errors.ChannelExistError, match="already exists"):
        await mq.create_channel("x")
    for call in (mq.consume("g", "x", 1), mq.seek("g", "x", -1), mq.ack("g", "x", 1), mq.destroy_consumer_group("g", "x")):
        with pytest.raises(errors.ChannelNotExistError, match="create_consumer_group"):
            await call
    await mq.create_consumer_group("g", "x")
    with pytest.raises(errors.ChannelExistError, match="already exists"):
        await mq.create_consumer_group("g", "x")


async def test_wrong_arguments_are_refused_before_anything_happens(directory: Path) -> None:
    settings = RocksMQSettings(message_bytes_max=10, batch_bytes_max=15, in_flight_bytes_max=15)
    async with await RocksMQ.open(directory, settings=settings) as mq:
        await mq.create_channel("x")
        await mq.create_consumer_group("g", "x")
        for messages in ([], [b"x" * 11], [b"x" * 8, b"x" * 8]):
            with pytest.raises(errors.InvalidArgumentError, match=r"too few or too many|message_bytes_max=10|batch_bytes_max=15"):
                await mq.produce("x", messages)
        for wrong in ("text", b"bytes", [5], ["text"], None):
            with pytest.raises(TypeError):
                await mq.produce("x", wrong)  # type: ignore[arg-type]
        for n, timeout_s in ((0, 0.0), (-1, None), (1, -0.5)):
            with pytest.raises(errors.InvalidArgumentError, match="out of range"):
                await mq.consume("g", "x", n, timeout_s=timeout_s)
        with pytest.raises(TypeError):
            await mq.consume("g", "x", True)
        for message_id in (0, -2, 77):
            with pytest.raises(errors.InvalidArgumentError, match=str(message_id)):
                await mq.seek("g", "x", message_id)
        waiting = [asyncio.ensure_future(mq.produce("x", [b"x" * 8])) for _ in range(2)]
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(outcomes[0], range)
        assert isinstance(outcomes[1], errors.WouldBlockError)
        assert mq.statistics().in_flight_bytes == 0
        assert len(await mq.consume("g", "x", 99)) == 1
    with pytest.raises(errors.InvalidArgumentError, match="page_bytes=0"):
        RocksMQSettings(page_bytes=0)


async def test_seek_moves_after_a_message_or_before_it(mq: RocksMQ) -> None:
    await mq.create_channel("other")
    await mq.create_channel("x")
    await mq.create_consumer_group("g", "x")
    ids: list[int] = []
    for index in range(4):
        ids += await mq.produce("x", [b"%d" % index])
        (foreign,) = await mq.produce("other", [b"-"])
    await mq.seek("g", "x", ids[1])
    assert payloads(await mq.consume("g", "x", 9)) == [b"2", b"3"]
    await mq.seek("g", "x", ids[1], inclusive=True)
    assert payloads(await mq.consume("g", "x", 9)) == [b"1", b"2", b"3"]
    await mq.seek("g", "x", ids[0], inclusive=True)
    assert payloads(await mq.consume("g", "x", 1)) == [b"0"]
    await mq.seek("g", "x", -1)
    assert payloads(await mq.consume("g", "x", 1)) == [b"0"]
    await mq.seek("g", "x", None)
    assert await mq.consume("g", "x", 1) == []
    with pytest.raises(errors.InvalidArgumentError, match="has no message"):
        await mq.seek("g", "x", foreign)
    await mq.create_consumer_group("late", "x", latest=True)
    assert await mq.consume("late", "x", 1) == []
    await mq.produce("x", [b"4"])
    assert payloads(await mq.consume("late", "x", 9)) == [b"4"]


async def test_unacknowledged_messages_are_redelivered_after_opening(directory: Path) -> None:
    async with await RocksMQ.open(directory) as mq:
        await mq.create_channel("x")
        await mq.create_consumer_group("g", "x")
        ids = await mq.produce("x", [b"0", b"1", b"2"])
        assert len(await mq.consume("g", "x", 3, auto_ack=False)) == 3
        assert await mq.consume("g", "x", 3, auto_ack=False) == []
        await mq.ack("g", "x", ids[0])
        with pytest.raises(errors.InvalidArgumentError, match="was handed messages"):
            await mq.ack("g", "x", ids[2] + 1)
    async with await RocksMQ.open(directory) as mq:
        assert payloads(await mq.consume("g", "x", 9)) == [b"1", b"2"]
    async with await RocksMQ.open(directory) as mq:
        assert await mq.consume("g", "x", 9) == []
        assert (await mq.produce("x", [b"3"])).start > ids[2]


async def test_consumer_is_woken_by_produce(mq: RocksMQ) -> None:
    await mq.create_channel("x")
    await mq.create_consumer_group("g", "x")
    waiting = asyncio.ensure_future(mq.consume("g", "x", 5, timeout_s=None))
    while not mq.channels()[0].groups[0].waiting:
        await asyncio.sleep(0)
    before = mq.statistics()
    await mq.produce("x", [b"1", b"2"])
    assert payloads(await waiting) == [b"1", b"2"]
    assert mq.statistics().consumed == before.consumed + 2
    assert await mq.consume("g", "x", 5, timeout_s=0.01) == []
    assert mq.channels()[0].groups[0].waiting == 0


async def test_group_shares_and_cancelled_consumer_takes_nothing(mq: RocksMQ) -> None:
    await mq.create_channel("x")
    await mq.create_consumer_group("g", "x")
    seen: list[bytes] = []

    async def consume() -> None:
        while True:
            seen.extend(payloads(await mq.consume("g", "x", 3, timeout_s=None)))

    sent = [b"%d" % index for index in range(300)]
    consumers = [asyncio.ensure_future(consume()) for _ in range(4)]
    for index, payload in enumerate(sent):
        await mq.produce("x", [payload])
        if index % 3 == 0:
            consumers.pop(0).cancel()
            consumers.append(asyncio.ensure_future(consume()))
    while len(seen) < len(sent):
        await asyncio.sleep(0)
    for consumer in consumers:
        consumer.cancel()
    await asyncio.gather(*consumers, return_exceptions=True)
    assert sorted(seen) == sorted(sent)


async def test_destroying_ends_waiting_calls(mq: RocksMQ) -> None:
    await mq.create_channel("x")
    await mq.create_consumer_group("g", "x")
    await mq.create_consumer_group("h", "x")
    one = asyncio.ensure_future(mq.consume("g", "x", 1, timeout_s=None))
    other = asyncio.ensure_future(mq.consume("h", "x", 1, timeout_s=None))
    while sum(group.waiting for group in mq.channels()[0].groups) < 2:
        await asyncio.sleep(0)
    await mq.destroy_consumer_group("g", "x")
    with pytest.raises(errors.ChannelNotExistError, match="'g' was destroyed"):
        await one
    await mq.destroy_channel("x")
    with pytest.raises(errors.ChannelNotExistError, match="'x' was destroyed"):
        await other


async def test_closed_and_locked(directory: Path) -> None:
    mq = await RocksMQ.open(directory)
    with pytest.raises(errors.LockedError, match="open already"):
        await RocksMQ.open(directory)
    await mq.create_channel("x")
    await mq.create_consumer_group("g", "x")
    waiting = asyncio.ensure_future(mq.consume("g", "x", 1, timeout_s=None))
    while not mq.channels()[0].groups[0].waiting:
        await asyncio.sleep(0)
    await mq.close()
    await mq.close()
    with pytest.raises(errors.ClosedError):
        await waiting
    with pytest.raises(errors.ClosedError):
        await mq.produce("x", [b""])
    with pytest.raises(errors.ClosedError):
        await mq.create_channel("y")
    await (await RocksMQ.open(directory)).close()


async def test_directory_of_something_else_is_left_alone(directory: Path) -> None:
    directory.mkdir()
    (directory / "notes.txt").write_text("mine")
    with pytest.raises(errors.FormatError, match="directory of its own"):
        await RocksMQ.open(directory)
    assert [path.name for path in directory.iterdir()] == ["notes.txt"]


async def test_ids_of_a_given_allocator(directory: Path) -> None:
    class Wrong:
        first = 1

        async def alloc(self, count: int) -> range:
            if not self.first:
                raise asyncio.CancelledError
            return range(self.first, self.first + count)

    ids = IdAllocator(MemoryKV(), key="ids")
    await ids.start()
    await ids.alloc(100)
    async with await RocksMQ.open(directory, ids) as mq:
        await mq.create_channel("x")
        await mq.create_consumer_group("g", "x")
        given = [await mq.produce("x", [b"a", b"b"]), await mq.produce("x", [b"c"])]
        assert given == [range(101, 103), range(103, 104)]
    await ids.close()
    wrong = Wrong()
    async with await RocksMQ.open(directory, wrong) as mq:
        for first in (1, 103, (1 << 63) - 1, 1 << 70):
            wrong.first = first
            with pytest.raises(errors.InnerError, match="at or above 104"):
                await mq.produce("x", [b"d"])
        wrong.first = 0
        with pytest.raises(errors.InnerError, match="was cancelled"):
            await mq.produce("x", [b"d"])
        assert payloads(await mq.consume("g", "x", 9)) == [b"a", b"b", b"c"]
    async with await RocksMQ.open(directory, ids) as mq:
        with pytest.raises(errors.ClosedError):
            await mq.produce("x", [b"d"])
        assert mq.statistics().in_flight_bytes == 0
        await mq.create_channel("y")


async def test_returned_messages_come_first_and_in_order(mq: RocksMQ) -> None:
    await mq.create_channel("x")
    await mq.create_consumer_group("g", "x")
    await mq.produce("x", [b"%d" % index for index in range(6)])
    taken = await mq.consume("g", "x", 4, auto_ack=False)
    await mq.give_back("g", "x", [taken[3], taken[1]])
    await mq.give_back("g", "x", [taken[1]])
    assert payloads(await mq.consume("g", "x", 9, auto_ack=False)) == [b"1", b"3"]
    assert payloads(await mq.consume("g", "x", 9, auto_ack=False)) == [b"4", b"5"]
    with pytest.raises(errors.InvalidArgumentError, match=r"up to 6, not 7: give back"):
        await mq.give_back("g", "x", [ConsumerMessage(7, b"")])
    await mq.give_back("g", "x", [])
    with pytest.raises(errors.ChannelNotExistError):
        await mq.give_back("h", "x", taken)


async def test_messages_given_back_wake_a_waiting_call(mq: RocksMQ) -> None:
    await mq.create_channel("x")
    await mq.create_consumer_group("g", "x")
    await mq.produce("x", [b"0", b"1"])
    taken = await mq.consume("g", "x", 9, auto_ack=False)
    waiting = asyncio.ensure_future(mq.consume("g", "x", 9, timeout_s=None, auto_ack=False))
    while not mq.channels()[0].groups[0].waiting:
        await asyncio.sleep(0)
    await mq.give_back("g", "x", taken)
    assert await asyncio.wait_for(waiting, 10) == taken


async def test_messages_given_back_are_not_consumed(directory: Path) -> None:
    """The position moves to before the first of them, and over them once they are acknowledged."""
    async with await RocksMQ.open(directory) as mq:
        await mq.create_channel("x")
        await mq.create_consumer_group("g", "x")
        await mq.produce("x", [b"%d" % index for index in range(5)])
        taken = await mq.consume("g", "x", 4, auto_ack=False)
        await mq.ack("g", "x", taken[-1].message_id)
        await mq.give_back("g", "x", taken[2:])
        assert mq.channels()[0].groups[0].current_id == taken[1].message_id
    async with await RocksMQ.open(directory) as mq:
        again = await mq.consume("g", "x", 9, auto_ack=False)
        assert payloads(again) == [b"2", b"3", b"4"]
        await mq.give_back("g", "x", again)
        assert await mq.consume("g", "x", 9, auto_ack=False) == again
        await mq.ack("g", "x", again[-1].message_id)
        assert mq.channels()[0].groups[0].current_id == 5


async def test_message_is_found_in_its_channel_only(directory: Path) -> None:
    async with await RocksMQ.open(directory, settings=RocksMQSettings(page_bytes=1, retention_bytes=0)) as mq:
        for name in ("x", "y"):
            await mq.create_channel(name)
            await mq.create_consumer_group("g", name)
        ids = [(await mq.produce(name, [b"0"]))[0] for name in ("x", "y", "x")]
        await mq.find("x", ids[0])
        await mq.find("y", ids[1])
        for name, message_id in (("x", ids[1]), ("y", ids[0]), ("x", ids[2] + 1), ("x", 1 << 62)):
            with pytest.raises(errors.InvalidArgumentError, match=f"has no message {message_id}"):
                await mq.find(name, message_id)
        with pytest.raises(errors.ChannelNotExistError):
            await mq.find("z", 1)
        await mq.consume("g", "x", 1)
        assert await mq.retain() == 1
        with pytest.raises(errors.TruncatedError, match="was dropped"):
            await mq.find("x", ids[0])
