"""Messages with numbers, and the numbers in packs."""

from __future__ import annotations

from collections.abc import Iterable

from wal.streams.msgstream import DeleteMsg, InsertMsg, MsgPack, MsgStream, TimeTickMsg, TsMsg


def row(number: int, *timestamps: int, key: int = 0, size: int = 0, id: int = 0, source_id: int = 0) -> InsertMsg:
    """Returns a message with a number for the tests. Its first and last timestamps are its begin and its end."""
    stamps = timestamps or (number + 1,)
    count = len(stamps)
    return InsertMsg(stamps, [number] * count, [b"x" * size] * count, hash_keys=[key] * count, id=id, source_id=source_id)


def tick(timestamp: int, *, key: int = 0) -> TimeTickMsg:
    return TimeTickMsg(timestamp, hash_keys=[key])


def number(msg: TsMsg) -> int:
    """Returns the number of a message."""
    if isinstance(msg, InsertMsg):
        return msg.row_ids[0]
    assert isinstance(msg, DeleteMsg), msg
    return msg.primary_keys[0]


def numbers(packs: Iterable[MsgPack]) -> list[int]:
    """Returns the numbers of all messages, in the order in which they were delivered."""
    return [number(msg) for pack in packs for msg in pack.msgs]


async def produce(stream: MsgStream, *msgs: TsMsg) -> None:
    await stream.produce(MsgPack(list(msgs)))


async def consume(stream: MsgStream) -> MsgPack:
    """Returns the next pack of a stream that is open."""
    pack = await stream.consume()
    assert pack is not None
    return pack


async def consume_messages(stream: MsgStream, count: int) -> list[MsgPack]:
    """Returns the packs with the next messages of an open stream, at least as many as asked for."""
    packs: list[MsgPack] = []
    while len(numbers(packs)) < count:
        packs.append(await consume(stream))
    return packs
