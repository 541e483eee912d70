"""Ids of messages on Pulsar: Pulsar's own serialized ids, which also name the topic that they belong to."""

from __future__ import annotations

import _pulsar
import pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.errors import InvalidArgumentError
from wal.streams.msgstream.media.pulsar_ids import UNBATCHED, TopicIds, TopicPosition

TOPIC = "persistent://public/default/orders"
POSITIONS = st.builds(TopicPosition, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(UNBATCHED, 2**31 - 1))


@given(POSITIONS)
def test_id_is_readable_by_both_clients(position: TopicPosition) -> None:
    msg_id = TopicIds(TOPIC).of(position)
    assert TopicIds(TOPIC).parse(msg_id) == (position, True)
    native = _pulsar.MessageId.deserialize(msg_id)
    assert (native.ledger_id(), native.entry_id(), native.batch_index(), native.partition()) == (*position, -1)


@given(POSITIONS)
def test_id_of_another_client_is_read(position: TopicPosition) -> None:
    assert TopicIds(TOPIC).parse(pulsar.MessageId(-1, *position).serialize()) == (position, False)


@given(POSITIONS)
def test_id_of_another_topic_is_refused(position: TopicPosition) -> None:
    with pytest.raises(InvalidArgumentError, match="another topic"):
        TopicIds(TOPIC).parse(TopicIds(f"{TOPIC}-2").of(position))


@given(st.binary(max_size=40))
def test_other_bytes_are_refused_or_read_alike(data: bytes) -> None:
    try:
        position, _ = TopicIds(TOPIC).parse(data)
    except InvalidArgumentError:
        return
    native = _pulsar.MessageId.deserialize(data)
    assert (native.ledger_id(), native.entry_id(), native.batch_index()) == position


@given(POSITIONS, st.integers(1, 8))
def test_id_whose_end_is_missing_is_refused(position: TopicPosition, missing: int) -> None:
    with pytest.raises(InvalidArgumentError, match="not one of Pulsar"):
        TopicIds(TOPIC).parse(TopicIds(TOPIC).of(position)[:-missing])
