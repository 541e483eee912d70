"""Everything else that travels arrives as it was sent: selections, cursors, broadcasts, reports, positions."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message as Proto
from hypothesis import given
from hypothesis import strategies as st

from wal.errors import InvalidArgumentError
from wal.message import FORM_JOURNAL, FORM_PULSAR, Lineage, MessageID, MessageType, Origin, ResourceKey, Restore, type_properties
from wal.message.wire_pb2 import MessageID as MessageIDProto
from wal.read.options import All, DeliverPolicy, Latest, MessageTypes, StartAfter, StartFrom, TimeTickGT, TimeTickGTE
from wal.rpc import converters as positions
from wal.rpc import converters as reports
from wal.rpc.api import streaming_pb2
from wal.serve.milvus import filters_from_proto, policy_from_proto
from wal.storage.base import LogSnapshot

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = texts.filter(bool)
u32, u63, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**64 - 1)
frames = u64 | st.integers(0, 2**128 - 1)
events = st.tuples(frames, u32)
times = st.floats(0, 1e12)
ids = st.builds(MessageID, names, u64, u64, u32) | st.builds(MessageID, names, u64, st.integers(0, 2**128 - 1), u32, st.just(FORM_PULSAR))
resource_keys = st.builds(ResourceKey, names, names, shared=st.booleans())
user_types = [kind for kind in MessageType if not type_properties(kind).system]


def through(message: Proto) -> Any:
    """Returns the message after its way over the wire."""
    return type(message).FromString(message.SerializeToString())


# -- positions


@given(frames, events, st.builds(Origin, names, u64, frames, st.sampled_from([FORM_JOURNAL, FORM_PULSAR])))
def test_positions_and_logs(position: int, event: tuple[int, int], log: Origin) -> None:
    assert positions.position_from_proto(through(positions.position_to_proto(position))) == position
    message = positions.event_to_proto(event)
    assert message is not None
    assert positions.event_from_proto(through(message)) == event
    assert positions.event_to_proto(None) is None
    identity = through(positions.identity_to_proto(log, term=3))
    assert positions.identity_from_proto(identity, log.position) == log
    assert identity.pchannel.term == 3


# -- selections


@given(ids)
def test_policies(message_id: MessageID) -> None:
    at = MessageIDProto(id=bytes(message_id))
    policies: list[tuple[DeliverPolicy, streaming_pb2.DeliverPolicy]] = [
        (All(), streaming_pb2.DeliverPolicy(all=Empty())),
        (Latest(), streaming_pb2.DeliverPolicy(latest=Empty())),
        (StartFrom(message_id), streaming_pb2.DeliverPolicy(start_from=at)),
        (StartAfter(message_id), streaming_pb2.DeliverPolicy(start_after=at)),
    ]
    assert [policy_from_proto(through(encoded)) for _, encoded in policies] == [policy for policy, _ in policies]


@given(st.lists(names, unique=True, max_size=3), u64, st.lists(st.sampled_from(user_types), min_size=1, max_size=3))
def test_filters(vchannels: list[str], tick: int, types: list[MessageType]) -> None:
    filters = [
        *(streaming_pb2.DeliverFilter(vchannel=streaming_pb2.DeliverFilterVChannel(vchannel=name)) for name in vchannels),
        streaming_pb2.DeliverFilter(time_tick_gt=streaming_pb2.DeliverFilterTimeTickGT(time_tick=tick)),
        streaming_pb2.DeliverFilter(time_tick_gte=streaming_pb2.DeliverFilterTimeTickGTE(time_tick=tick)),
        streaming_pb2.DeliverFilter(message_types=streaming_pb2.DeliverFilterMessageTypes(types=map(int, types))),
    ]
    named, others = filters_from_proto(map(through, filters))
    assert named == tuple(vchannels)
    assert list(map(repr, others)) == list(map(repr, [TimeTickGT(tick), TimeTickGTE(tick), MessageTypes(*types)]))


def test_selection_that_is_none_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, str]] = [
        (lambda: policy_from_proto(streaming_pb2.DeliverPolicy()), "deliver_policy is not set: set all"),
        (lambda: policy_from_proto(streaming_pb2.DeliverPolicy(start_from={"id": b"x"})), "deliver_policy.start_from: "),
        (lambda: filters_from_proto([streaming_pb2.DeliverFilter()]), "a deliver filter is not set"),
        (lambda: filters_from_proto([streaming_pb2.DeliverFilter(vchannel={})]), "names none"),
        (lambda: filters_from_proto([streaming_pb2.DeliverFilter(message_types={"types": [60_000]})]), "60000"),
        (lambda: filters_from_proto([streaming_pb2.DeliverFilter(message_types={})]), "names no type"),
        (lambda: filters_from_proto([streaming_pb2.DeliverFilter(message_types={"types": [int(MessageType.TIME_TICK)]})]), "system type"),
    ]
    for call, words in cases:
        with subtests.test(repr(call)), pytest.raises(InvalidArgumentError, match=words):
            call()


# -- reports


restores = st.builds(Restore, u63, frames, st.none() | events)


@st.composite
def snapshots(draw: st.DrawFn) -> LogSnapshot:
    incarnation, lineage = draw(u63), tuple(draw(st.lists(restores, max_size=2)))
    origin, newest, truncated = Origin(draw(names), incarnation, 0), draw(st.none() | events), draw(st.none() | events)
    ends = draw(u63), draw(frames), draw(events), draw(u64)
    return LogSnapshot(origin, Lineage(incarnation, lineage), *ends, False, newest, truncated)


@given(snapshots())
def test_log_at_one_moment(snapshot: LogSnapshot) -> None:
    assert reports.snapshot_from_proto(through(reports.snapshot_to_proto(snapshot))) == snapshot
