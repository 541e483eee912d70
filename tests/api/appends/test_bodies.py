"""Reading body by body: `scanner.bodies()` on the loop and in threads, and transactions, which have no payload of their own."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from wal import BroadcastMessage, ImmutableMessage, ImmutableTxnMessage, Message, ReadPosition, Scanner, WALAccesser, bridge, open_wal
from wal.errors import InvalidArgumentError, NoPayloadError, WALError

Pairs = list[tuple[ImmutableMessage, ImmutableMessage]]


async def write(log: WALAccesser) -> None:
    """Appends a message, a transaction of three bodies, one without bodies, and another message."""
    await log.raw_append(Message("orders", b"1"))
    await log.append_txn("orders", [b"2", b"3", b"4"])
    async with log.txn("orders"):
        pass
    await log.raw_append(Message("orders", b"5"))


def payloads(pairs: Sequence[tuple[ImmutableMessage, ImmutableMessage]]) -> list[bytes]:
    return [body.payload for _, body in pairs]


async def take(scanner: Scanner, count: int) -> list[bytes]:
    """Takes `count` bodies and leaves the iteration there."""
    pairs: Pairs = []
    bodies = scanner.bodies()
    while len(pairs) < count:
        pairs.append(await anext(bodies))
    await bodies.aclose()  # type: ignore[attr-defined]
    return payloads(pairs)


async def txn_message(log: WALAccesser) -> ImmutableTxnMessage:
    await log.append_txn("orders", [Message("orders", b"2", properties={"a": "b"}), b"3"])
    async with log.read("orders", follow=False) as scanner:
        message = await anext(scanner)
    assert isinstance(message, ImmutableTxnMessage)
    return message


@pytest.mark.parametrize("name", ["payload", "properties"])
async def test_transaction_has_no_payload(name: str) -> None:
    async with open_wal("memory:") as log:
        message = await txn_message(log)
    with pytest.raises(NoPayloadError, match=rf"no {name} of its own.*bodies\(\)") as caught:
        getattr(message, name)
    assert isinstance(caught.value, WALError)
    assert isinstance(caught.value, AttributeError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert not hasattr(message, name)
    assert getattr(message, name, None) is None
    assert [getattr(body, name) for body in message.bodies()] == {"payload": [b"2", b"3"], "properties": [{"a": "b"}, {}]}[name]


async def test_transaction_is_shown_copied_and_pickled() -> None:
    async with open_wal("memory:") as log:
        message = await txn_message(log)
    assert repr(message) == (
        f"ImmutableTxnMessage(message_id={message.message_id}, time_tick={message.time_tick}, vchannels=('orders',), bodies=2)"
    )
    for same in (copy.copy(message), copy.deepcopy(message), pickle.loads(pickle.dumps(message)), msgspec.structs.replace(message)):
        assert [body.payload for body in same.bodies()] == [b"2", b"3"]
        assert (same.message_id, same.estimate_size()) == (message.message_id, message.estimate_size())


async def test_bodies_come_with_their_messages() -> None:
    async with open_wal("memory:") as log:
        await write(log)
        async with log.read("orders", follow=False) as scanner:
            pairs = [pair async for pair in scanner.bodies()]
        async with log.read("orders", follow=False) as scanner:
            messages = [message async for message in scanner]
    assert payloads(pairs) == [b"1", b"2", b"3", b"4", b"5"]
    assert [message.message_id for message, _ in pairs] == [messages[index].message_id for index in (0, 1, 1, 1, 3)]
    assert all(body in message.bodies() for message, body in pairs)


@pytest.mark.parametrize(("count", "left"), [(1, b"2345"), (2, b"2345"), (3, b"2345"), (4, b"5"), (5, b"")])
async def test_position_counts_whole_messages(data_dir: Path, count: int, left: bytes) -> None:
    async with open_wal(data_dir) as log:
        await write(log)
        async with log.read("orders", cursor="billing", follow=False) as scanner:
            assert b"".join(await take(scanner, count)) == b"12345"[:count]
            position = scanner.position
            assert position is not None
            await scanner.save()
        for options in ({"resume": ReadPosition.parse(str(position))}, {"cursor": "billing"}):
            async with log.read("orders", follow=False, **options) as scanner:
                assert b"".join(payloads([pair async for pair in scanner.bodies()])) == left


async def test_save_before_the_first_message_is_over(data_dir: Path) -> None:
    async with open_wal(data_dir) as log:
        await log.append_txn("orders", [b"1", b"2"])
        async with log.read("orders", cursor="billing", follow=False) as scanner:
            assert await take(scanner, 1) == [b"1"]
            assert scanner.position is None
            await scanner.save()
        async with log.read("orders", cursor="billing", follow=False) as scanner:
            assert payloads([pair async for pair in scanner.bodies()]) == [b"1", b"2"]


async def test_left_iteration_continues_with_the_next_body() -> None:
    async with open_wal("memory:") as log:
        await write(log)
        async with log.read("orders", follow=False) as scanner:
            assert await take(scanner, 2) == [b"1", b"2"]
            assert await take(scanner, 1) == [b"3"]
            whole = await anext(scanner)  # message by message, the transaction comes as a whole
            assert [body.payload for body in whole.bodies()] == [b"2", b"3", b"4"]
            assert payloads([pair async for pair in scanner.bodies()]) == [b"5"]


async def test_cancelled_wait_loses_no_body() -> None:
    async with open_wal("memory:") as log, log.read("orders") as scanner:
        for number in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await anext(scanner.bodies())
            await log.append_txn("orders", [b"%d" % number, b"x"])
            assert await take(scanner, 2) == [b"%d" % number, b"x"]


async def test_scanner_with_a_handler_refuses_bodies() -> None:
    async with open_wal("memory:") as log, log.read("orders", handler=lambda message: None) as scanner:
        with pytest.raises(InvalidArgumentError, match="handler"):
            await anext(scanner.bodies())


async def test_copy_is_acknowledged_with_the_next_body() -> None:
    async with open_wal("memory:") as log:
        await log.raw_append(Message("orders", b"x"))
        await log.broadcast().append(BroadcastMessage(vchannels=["orders"], payload=b"all"))
        await log.raw_append(Message("orders", b"x"))
        async with log.read("orders", auto_ack=True, follow=False) as scanner:
            bodies = scanner.bodies()
            assert (await anext(bodies))[1].payload == b"x"
            assert (await anext(bodies))[1].payload == b"all"
            assert len(await log.broadcast().tasks()) == 1
            assert (await anext(bodies))[1].payload == b"x"
            assert await log.broadcast().tasks() == []


@pytest.mark.parametrize("count", [1, 2, 4])
async def test_blocking_twins_give_the_same_bodies(data_dir: Path, count: int) -> None:
    async with open_wal(data_dir) as log:
        await write(log)

    def iterated() -> tuple[list[bytes], list[bytes], str]:
        with bridge.iterate(data_dir, "orders", follow=False) as messages:
            bodies = messages.bodies()
            first = [next(bodies)[1].payload for _ in range(count)]
            position = str(messages.position)
            return first, payloads(list(messages.bodies())), position

    def blocked() -> tuple[list[bytes], list[bytes], str]:
        with bridge.blocking(data_dir) as log, log.read("orders", follow=False) as scanner:
            bodies = scanner.bodies()
            first = [next(bodies)[1].payload for _ in range(count)]
            position = str(scanner.position)
            return first, payloads(list(scanner.bodies())), position

    async with open_wal(data_dir) as log, log.read("orders", follow=False) as scanner:
        first = await take(scanner, count)
        expected = first, payloads([pair async for pair in scanner.bodies()]), None
        position = scanner.position
        assert position is not None
    for run in (iterated, blocked):
        got = await asyncio.to_thread(run)
        assert got[:2] == expected[:2]
    assert (await asyncio.to_thread(iterated))[2] == (await asyncio.to_thread(blocked))[2]


async def test_blocking_scanner_acknowledges_copies_body_by_body(data_dir: Path) -> None:
    def run() -> None:
        with bridge.blocking(data_dir) as log:
            log.broadcast().append(BroadcastMessage(vchannels=["orders"], payload=b"all"))
            log.raw_append(Message("orders", b"x"))
            with log.read("orders", auto_ack=True, follow=False) as scanner:
                bodies = scanner.bodies()
                assert next(bodies)[1].payload == b"all"
                assert len(log.broadcast().tasks()) == 1
                assert next(bodies)[1].payload == b"x"
                assert log.broadcast().tasks() == []

    await asyncio.to_thread(run)
