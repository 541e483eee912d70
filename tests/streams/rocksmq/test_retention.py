"""Retention drops whole pages that every group has consumed, and nothing else unless the settings allow it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.errors import TruncatedError
from wal.streams.rocksmq import ConsumerMessage, RocksMQ, RocksMQSettings
from wal.streams.rocksmq.channel import RECORD_BYTES, Channel, pages_to_drop
from wal.streams.rocksmq.keys import TurnWrites

PAGE = 4 * (100 + RECORD_BYTES)
"""Four messages of 100 bytes."""


async def fill(mq: RocksMQ, messages: int) -> list[int]:
    ids: list[int] = []
    for index in range(messages):
        ids += await mq.produce("x", [b"%0100d" % index])
        await mq.produce("other", [b"between"])
    return ids


async def opened(directory: Path, **settings: object) -> RocksMQ:
    mq = await RocksMQ.open(directory, settings=RocksMQSettings(page_bytes=PAGE, **settings))  # type: ignore[arg-type]
    if not mq.channels():
        await mq.create_channel("x")
        await mq.create_channel("other")
        await mq.create_consumer_group("g", "x")
        await mq.create_consumer_group("h", "x")
    return mq


async def test_consumed_pages_go_by_size(directory: Path) -> None:
    def numbers(messages: list[ConsumerMessage]) -> list[int]:
        return [int(message.payload) for message in messages]

    mq = await opened(directory, retention_bytes=PAGE)
    ids = await fill(mq, 18)
    assert await mq.retain() == 0
    await mq.consume("g", "x", 14)
    assert await mq.retain() == 0
    await mq.consume("h", "x", 9)
    assert await mq.retain() == 2
    info = {channel.name: channel for channel in mq.channels()}["x"]
    assert info.begin_id == ids[8]
    assert info.bytes == PAGE * 2 + PAGE // 2
    assert numbers(await mq.consume("h", "x", 99)) == list(range(9, 18))
    await mq.consume("g", "x", 99)
    assert await mq.retain() == 2
    with pytest.raises(TruncatedError, match="was dropped"):
        await mq.seek("g", "x", ids[3])
    await mq.seek("g", "x", -1)
    assert numbers(await mq.consume("g", "x", 99)) == [16, 17]
    await mq.close()
    mq = await opened(directory)
    await mq.seek("g", "x", ids[16], inclusive=True)
    assert numbers(await mq.consume("g", "x", 99)) == [16, 17]
    assert await mq.consume("h", "x", 99) == []
    await mq.close()


async def test_unconsumed_pages_go_only_if_allowed(directory: Path) -> None:
    mq = await opened(directory, retention_s=0.0)
    ids = await fill(mq, 8)
    await mq.consume("g", "x", 2)
    assert await mq.retain() == 0
    await mq.close()
    mq = await opened(directory, retention_s=0.0, retention_unconsumed=True)
    assert await mq.retain() == 2
    for group in ("g", "h"):
        with pytest.raises(TruncatedError, match="has not consumed were dropped") as raised:
            await mq.consume(group, "x", 1)
        assert raised.value.earliest is None
    later = await fill(mq, 1)
    await mq.close()
    mq = await opened(directory)
    for group in ("g", "h"):
        with pytest.raises(TruncatedError) as raised:
            await mq.consume(group, "x", 1)
        assert raised.value.earliest == later[0] > ids[-1]
        await mq.seek(group, "x", -1)
        assert [message.message_id for message in await mq.consume(group, "x", 9)] == later
    await mq.create_consumer_group("new", "x")
    assert len(await mq.consume("new", "x", 9)) == 1
    await mq.close()


async def test_channel_without_groups_keeps_everything(directory: Path) -> None:
    mq = await opened(directory, retention_s=0.0)
    await mq.destroy_consumer_group("g", "x")
    await mq.destroy_consumer_group("h", "x")
    await fill(mq, 8)
    assert await mq.retain() == 0
    await mq.close()


async def test_retention_runs_by_itself(directory: Path) -> None:
    mq = await opened(directory, retention_s=0.0, retention_interval_s=0.01)
    await mq.destroy_consumer_group("h", "x")
    ids = await fill(mq, 4)
    await mq.consume("g", "x", 4)
    while mq.statistics().pages_dropped == 0:
        await mq.consume("g", "x", 1, timeout_s=0.01)
    assert {channel.name: channel for channel in mq.channels()}["x"].begin_id == ids[-1] + 1
    await mq.close()


@given(
    sizes=st.lists(st.integers(0, 60), max_size=40),
    consumed=st.integers(0, 40),
    retention_bytes=st.none() | st.integers(0, 900),
    retention_s=st.none() | st.integers(0, 40),
    unconsumed=st.booleans(),
)
def test_pages_against_a_list(
    sizes: list[int], consumed: int, retention_bytes: int | None, retention_s: int | None, unconsumed: bool
) -> None:
    """Adds one message a second, to a channel and to plain lists."""
    settings = RocksMQSettings(page_bytes=100, retention_bytes=retention_bytes, retention_s=retention_s, retention_unconsumed=unconsumed)
    channel, changes = Channel("x"), TurnWrites()
    pages: list[list[int]] = [[]]
    for index, size in enumerate(sizes):
        channel.produce([bytes(size)], index + 1, changes, now_us=index * 1_000_000, page_bytes=100)
        pages[-1].append(index)
        if sum(sizes[i] + RECORD_BYTES for i in pages[-1]) >= 100:
            pages.append([])
    channel.add_group("g", changes, latest=False)
    consumed = min(consumed, len(sizes))
    if consumed:
        channel.move(channel.groups["g"], consumed, changes)
    full = pages[:-1]
    kept = list(pages)
    for page in full:
        old = retention_s is not None and page[-1] + retention_s <= len(sizes)
        large = retention_bytes is not None and sum(sizes[i] + RECORD_BYTES for p in kept for i in p) > retention_bytes
        if not (old or large) or not (unconsumed or page[-1] < consumed):
            break
        kept.pop(0)
    count = pages_to_drop(channel, settings, now_us=len(sizes) * 1_000_000)
    assert count == len(pages) - len(kept)
    if count:
        channel.drop(count, changes)
        left = [index for page in kept for index in page]
        assert channel.begin_id == (left[0] + 1 if left else channel.end_id)
        assert channel.size == sum(sizes[index] + RECORD_BYTES for index in left)
        assert channel.is_lost(channel.groups["g"]) is (consumed < (left[0] if left else len(sizes)))
