"""Delivered messages: their derived properties, and that they do not change."""

from datetime import UTC, datetime

import pytest

from wal.message import (
    BroadcastHeader,
    ImmutableMessage,
    ImmutableTxnMessage,
    MessageID,
    MessageType,
    Origin,
    TimeTickMessage,
    TxnContext,
    encode_properties,
)

ORIGIN = Origin("p_0", 0xABC, 8192)
TICK = (1_700_000_000_123 << 18) + 5


def test_plain_message() -> None:
    stored = encode_properties({"ключ": "v"})
    message = ImmutableMessage(ORIGIN, 3, TICK, "orders", b"paid", int(MessageType.DELETE), stored)
    assert message.message_id == message.last_confirmed == MessageID("p_0", 0xABC, 8192, 3)
    assert message.message_type is MessageType.DELETE
    assert message.properties == {"ключ": "v"}
    assert message.properties is not message.properties
    assert message.append_time == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert message.estimate_size() == 4 + 8 + 1
    assert message.txn_context is None
    assert message.broadcast is None
    assert message.bodies() == (message,)
    assert repr(message) == (
        f"ImmutableMessage(message_id=p_0:abc:8192:3, time_tick={TICK}, vchannel='orders', message_type=DELETE, payload=4 bytes)"
    )


def test_defaults_are_an_insert_without_properties() -> None:
    message = ImmutableMessage(ORIGIN, 0, TICK, "orders", b"paid")
    assert message.message_type is MessageType.INSERT
    assert message.properties == {}
    assert message.estimate_size() == 4


def test_type_of_a_newer_version_is_unknown() -> None:
    assert ImmutableMessage(ORIGIN, 0, TICK, "orders", b"", 555).message_type is MessageType.UNKNOWN


def test_copy_of_a_broadcast_carries_its_header() -> None:
    header = BroadcastHeader(9, ("a", "b"))
    assert ImmutableMessage(ORIGIN, 0, TICK, "a", b"", broadcast=header).broadcast is header


def test_delivered_messages_are_immutable() -> None:
    message = ImmutableMessage(ORIGIN, 0, TICK, "orders", b"")
    for name in ("payload", "vchannel", "time_tick", "message_id", "properties", "txn_context"):
        with pytest.raises(AttributeError):
            setattr(message, name, None)


def test_transaction() -> None:
    context = TxnContext(7, 10.0)
    bodies = tuple(ImmutableMessage(ORIGIN, index, TICK, "orders", b"abc", 2, encode_properties({"a": "b"}), context) for index in (4, 5))
    txn = ImmutableTxnMessage(ORIGIN, 6, TICK, "orders", b"", 999, b"", context, messages=bodies, vchannels=("orders",), _first_index=4)
    assert txn.message_id == MessageID("p_0", 0xABC, 8192, 6)
    assert txn.message_type is MessageType.TXN
    assert txn.messages == txn.bodies() == bodies
    assert txn.estimate_size() == 2 * (3 + 2)
    assert [body.message_id.index for body in txn.bodies()] == [4, 5]
    assert repr(txn).startswith("ImmutableTxnMessage(message_id=p_0:abc:8192:6,")


@pytest.mark.parametrize("has_event", [True, False])
def test_time_tick_has_the_previous_events_id(has_event: bool) -> None:
    tick = TimeTickMessage(ORIGIN, 3, TICK, "", b"", int(MessageType.TIME_TICK), has_event=has_event)
    assert tick.message_id == tick.last_confirmed == (MessageID("p_0", 0xABC, 8192, 3) if has_event else None)
    assert tick.message_type is MessageType.TIME_TICK
    assert tick.vchannel == ""
