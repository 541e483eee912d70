"""Transactions on the wire: begin, bodies and commit, one after the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.message.test_codec import contexts, over_the_wire, properties, state
from tests.message.wire_form import transaction_read
from wal.errors import InvalidArgumentError
from wal.message import ImmutableMessage, ImmutableTxnMessage, MessageType, Origin, TxnContext, encode_properties
from wal.message.codec import to_wire, txn_to_wire

ORIGIN = Origin("p", 1, 4096)
CONTEXT = TxnContext(7, 1.5)


@st.composite
def transactions(draw: st.DrawFn) -> ImmutableTxnMessage:
    names = draw(st.lists(st.sampled_from(["a", "b", "ü"]), min_size=1, unique=True))
    context, tick = draw(contexts), draw(st.integers(0, 2**64 - 1))
    first = draw(st.integers(0, 9))
    total = draw(st.integers(0, 6))
    seen = sorted(draw(st.sets(st.integers(first, first + total - 1)))) if total else []
    bodies = tuple(
        ImmutableMessage(
            ORIGIN,
            index,
            tick,
            draw(st.sampled_from(names)),
            draw(st.binary(max_size=9)),
            draw(st.sampled_from([2, 3, 555])),
            encode_properties(draw(properties)),
            context,
        )
        for index in seen
    )
    return ImmutableTxnMessage(
        ORIGIN,
        first + total,
        tick,
        names[0] if len(names) == 1 else "",
        b"",
        int(MessageType.TXN),
        b"",
        context,
        messages=bodies,
        vchannels=tuple(names),
        _first_index=first,
    )


def transaction(*, bodies: int = 2, first: int = 3) -> ImmutableTxnMessage:
    return ImmutableTxnMessage(
        ORIGIN,
        first + bodies,
        99,
        "v",
        b"",
        int(MessageType.TXN),
        b"",
        CONTEXT,
        messages=tuple(ImmutableMessage(ORIGIN, first + at, 99, "v", b"%d" % at, 2, b"", CONTEXT) for at in range(bodies)),
        vchannels=("v",),
        _first_index=first,
    )


@given(transactions())
def test_transactions_round_trip(txn: ImmutableTxnMessage) -> None:
    received = transaction_read([(message_id, over_the_wire(wire)) for message_id, wire in txn_to_wire(txn)])
    assert state(received) == state(txn)
    assert received.message_type is MessageType.TXN
    assert received.vchannels == txn.vchannels
    assert received._first_index == txn._first_index
    assert [state(body) for body in received.messages] == [state(body) for body in txn.messages]


def test_parts_are_in_order_and_share_one_tick() -> None:
    parts = txn_to_wire(transaction())
    assert [wire.properties["_t"] for _, wire in parts] == ["900", "2", "2", "901"]
    assert {(wire.properties["_tt"], wire.properties["_tx"]) for _, wire in parts} == {("2r", "CAcQ3As=")}
    assert [message_id.index for message_id, _ in parts] == [3, 3, 4, 5]


def test_empty_transaction_has_a_begin_and_a_commit() -> None:
    parts = txn_to_wire(transaction(bodies=0))
    assert [wire.properties["_t"] for _, wire in parts] == ["900", "901"]
    assert transaction_read(parts).messages == ()


def test_transaction_is_never_sent_as_one_message() -> None:
    txn = transaction()
    with pytest.raises(InvalidArgumentError, match="send the parts that txn_to_wire"):
        to_wire(txn)


def test_transaction_without_a_context_is_refused() -> None:
    txn = ImmutableTxnMessage(ORIGIN, 5, 99, "v", b"", int(MessageType.TXN), b"", messages=(), vchannels=("v",), _first_index=5)
    with pytest.raises(InvalidArgumentError, match="no txn_context"):
        txn_to_wire(txn)


def test_body_of_another_transaction_is_not_sent() -> None:
    txn = transaction()
    alien = ImmutableMessage(ORIGIN, 4, 98, "v", b"", 2, b"", CONTEXT)
    broken = ImmutableTxnMessage(
        ORIGIN, 5, 99, "v", b"", 999, b"", CONTEXT, messages=(txn.messages[0], alien), vchannels=("v",), _first_index=3
    )
    with pytest.raises(InvalidArgumentError, match="is not a body of the transaction"):
        txn_to_wire(broken)
