"""The medium in memory: its bounds, and messages that it dropped."""

from __future__ import annotations

import pytest

from tests.streams.msgstream.packs import consume, consume_messages, numbers, produce, row
from wal.errors import ClosedError, InvalidArgumentError, TruncatedError, WouldBlockError
from wal.streams.msgstream import MsgPack, MsgStream
from wal.streams.msgstream.media.memory import MemoryMedium


async def test_full_channel_drops_what_every_subscription_has_handled() -> None:
    async with MemoryMedium(channel_bytes_max=10_000) as medium, MsgStream(medium) as stream:
        await stream.as_producer(["a"])
        for n in range(30):
            await produce(stream, row(n, size=1_000))  # without a subscription nothing is held
        slow, fast = MsgStream(medium), MsgStream(medium)
        await slow.as_consumer(["a"], "slow")
        await fast.as_consumer(["a"], "fast")
        packs = await consume_messages(fast, 9)
        assert numbers(packs) == list(range(21, 30))
        await fast.ack(packs[-1])
        with pytest.raises(WouldBlockError, match=r"channel_bytes_max=10000 .* subscription 'slow'"):
            await produce(stream, row(30, size=1_000))
        pack = await consume(slow)
        with pytest.raises(WouldBlockError):
            await produce(stream, row(30, size=1_000))
        await slow.ack(pack)
        await produce(stream, row(30, size=1_000))
        assert numbers([await consume(slow)]) == [30]
        again = MsgStream(medium)
        await again.as_consumer(["a"], "again")
        with pytest.raises(TruncatedError, match="was dropped") as raised:
            await again.seek(packs[0].start_positions[0])
        assert raised.value.earliest is not None
        for one in (slow, fast, again):
            await one.close()


async def test_message_larger_than_the_channel_is_refused() -> None:
    async with MemoryMedium(channel_bytes_max=100) as medium, MsgStream(medium) as stream:
        await stream.as_producer(["a"])
        with pytest.raises(WouldBlockError, match="channel_bytes_max=100"):
            await produce(stream, row(1, size=200))


async def test_position_of_another_medium_is_refused() -> None:
    async with MemoryMedium() as medium, MsgStream(medium) as stream:
        await stream.as_producer(["a"])
        sent = await stream.produce(MsgPack([row(1)]))
    async with MemoryMedium() as medium, MsgStream(medium) as stream:
        await stream.as_consumer(["a"], "subscription")
        with pytest.raises(InvalidArgumentError, match="is not a message id of channel 'a'"):
            await stream.seek(sent["a"][0])


async def test_after_close_nothing_is_opened() -> None:
    medium = MemoryMedium()
    await medium.close()
    await medium.close()
    with pytest.raises(ClosedError):
        await MsgStream(medium).as_producer(["a"])


def test_bound_is_checked() -> None:
    with pytest.raises(InvalidArgumentError, match="channel_bytes_max=0"):
        MemoryMedium(channel_bytes_max=0)
