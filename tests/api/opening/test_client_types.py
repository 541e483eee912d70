"""Message types that a client must not write: every call that appends refuses them, and writes nothing to the log."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable

import pytest

from tests.locations import blocking
from tests.probes import payloads, read_all
from wal import AppendOption, BroadcastMessage, Message, MessageType, MessageTypes, WALAccesser
from wal.errors import InvalidArgumentError
from wal.message import type_properties

RESERVED = [
    MessageType.UNKNOWN,
    MessageType.TIME_TICK,
    MessageType.BEGIN_TXN,
    MessageType.COMMIT_TXN,
    MessageType.ROLLBACK_TXN,
    MessageType.ABORT_BROADCAST,
    MessageType.TXN,
]


def of(kind: MessageType) -> Message:
    return Message("a", b"forged", message_type=kind)


async def test_no_call_appends_a_reserved_type(log: WALAccesser, subtests: pytest.Subtests) -> None:
    async def in_transaction(log: WALAccesser, kind: MessageType) -> None:
        async with log.txn("a") as txn:
            await txn.append(of(kind))

    async def nowait(log: WALAccesser, kind: MessageType) -> None:
        await log.append_nowait(of(kind))

    ways: dict[str, Callable[[WALAccesser, MessageType], Awaitable[object]]] = {
        "raw_append": lambda log, kind: log.raw_append(of(kind)),
        "raw_append with a key": lambda log, kind: log.raw_append(of(kind), idempotency_key="k"),
        "raw_append with a barrier": lambda log, kind: log.raw_append(of(kind), barrier_time_tick=1),
        "append_nowait": nowait,
        "append_messages, one": lambda log, kind: log.append_messages(of(kind)),
        "append_messages, two": lambda log, kind: log.append_messages(Message("a", b"before"), of(kind)),
        "append_messages_with_option": lambda log, kind: log.append_messages_with_option(AppendOption(), of(kind)),
        "append_bulk": lambda log, kind: log.append_bulk([Message("a", b"before"), of(kind)]),
        "txn.append": in_transaction,
    }

    for way, kind in itertools.product(ways, RESERVED):
        with subtests.test(f"{way} {kind.name}"):
            with pytest.raises(InvalidArgumentError, match=kind.name):
                await ways[way](log, kind)
            assert await read_all(log, "a") == []


def test_broadcast_cannot_have_a_reserved_type(subtests: pytest.Subtests) -> None:
    for kind in RESERVED:
        with subtests.test(kind.name), pytest.raises(InvalidArgumentError, match=f"{kind.name} cannot be broadcast"):
            BroadcastMessage(vchannels=["a"], payload=b"forged", message_type=kind)


def test_blocking_caller_cannot_forge_an_abort(location: str) -> None:
    with blocking(location) as log:
        for append in (log.raw_append, log.append_nowait, log.append_messages):
            with pytest.raises(InvalidArgumentError, match="only the broadcaster writes one"):
                append(of(MessageType.ABORT_BROADCAST))
        with pytest.raises(InvalidArgumentError, match="only the broadcaster writes one"):
            log.append_bulk([of(MessageType.ABORT_BROADCAST)])
        with log.read("a", follow=False) as scanner:
            assert list(scanner) == []


async def test_abort_is_read_and_filtered_by_type(log: WALAccesser) -> None:
    """The type is reserved for the broadcaster, but readers still get it and may name it."""
    broadcast = log.broadcast()
    held = await broadcast.append(BroadcastMessage(vchannels=["a"], payload=b"change"))
    await broadcast.abort(held.broadcast_id, "not needed")
    async with log.read("a", follow=False, filters=[MessageTypes(MessageType.ABORT_BROADCAST)]) as scanner:
        assert [(message.payload, message.broadcast is not None) async for message in scanner] == [(b"not needed", True)]
    assert await payloads(log, "a") == [b"change", b"not needed"]


def test_reserved_types_match_the_table() -> None:
    assert [kind for kind in MessageType if not type_properties(kind).appendable] == RESERVED
