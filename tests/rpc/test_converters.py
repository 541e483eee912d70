"""Everything else that travels arrives as it was sent: selections, cursors, broadcasts, reports, positions."""

from __future__ import annotations

from typing import Any, get_type_hints

import msgspec
import pytest
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message as Proto
from hypothesis import given
from hypothesis import strategies as st

from broadcaster import BroadcastAppendResult, BroadcastMessage, BroadcastState, BroadcastTask
from broadcaster.message import BroadcasterStatistics
from wal.channels.vchannels import OwnerDescription, VChannelInfo
from wal.errors import InvalidArgumentError
from wal.message import FORM_JOURNAL, FORM_PULSAR, AppendResult, Lineage, MessageID, MessageType, Origin, ResourceKey, type_properties
from wal.message.wire_pb2 import MessageID as MessageIDProto
from wal.read.cursors.cursor import Cursor, CursorInfo, CursorKey
from wal.read.options import All, DeliverPolicy, Latest, MessageTypes, ReadPosition, StartAfter, StartFrom, TimeTickGT, TimeTickGTE
from wal.rpc import broadcasts
from wal.rpc import converters as cursor_state
from wal.rpc import converters as positions
from wal.rpc import converters as reports
from wal.rpc.api import cluster_pb2, pchannel_calls_pb2, pchannel_pb2, streaming_pb2
from wal.serve.milvus import filters_from_proto, policy_from_proto
from wal.settings import Settings
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


owners = st.builds(OwnerDescription, names, texts, texts)


@given(st.builds(VChannelInfo, names, names, u32, st.none() | owners))
def test_vchannels(info: VChannelInfo) -> None:
    message = through(positions.vchannel_to_proto(info))
    assert positions.vchannel_from_proto(message) == info
    assert message.state == pchannel_pb2.VChannelState.EXISTS


@given(owners)
def test_owners(owner: OwnerDescription) -> None:
    assert positions.owner_from_proto(through(positions.owner_to_proto(owner))) == owner


def test_owner_without_a_role_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="role is empty"):
        positions.owner_from_proto(pchannel_pb2.OwnerDescription(address="host:1"))


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


# -- cursors

cursor_keys = st.builds(CursorKey.of, names, st.lists(names, min_size=1, max_size=3))


@st.composite
def cursors(draw: st.DrawFn) -> Cursor:
    key = draw(cursor_keys)
    incarnations = tuple(draw(st.none() | u32) for _ in key.vchannels)
    event = draw(st.none() | events)
    return Cursor(key, incarnations, draw(names), draw(u64), draw(events), event, draw(u64), draw(times), FORM_PULSAR, draw(texts))


@given(cursors())
def test_cursors(cursor: Cursor) -> None:
    assert cursor_state.cursor_from_proto(through(cursor_state.cursor_to_proto(cursor))) == cursor


@given(st.builds(CursorInfo, names, st.tuples(names, names), st.none() | st.builds(ReadPosition, ids, u64), u64, st.booleans()))
def test_cursor_infos(info: CursorInfo) -> None:
    assert cursor_state.info_from_proto(through(cursor_state.info_to_proto(info))) == info


def test_cursor_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="a name and at least one vchannel"):
        cursor_state.key_from_proto(pchannel_calls_pb2.CursorKey(name="billing"))
    with pytest.raises(InvalidArgumentError, match="has 0 incarnations: one for each of its 1"):
        cursor_state.cursor_from_proto(pchannel_calls_pb2.Cursor(key={"name": "billing", "vchannels": ["orders"]}))


# -- broadcasts

broadcast_messages = st.builds(
    BroadcastMessage,
    vchannels=st.lists(names, min_size=1, max_size=3),
    payload=st.binary(max_size=8),
    message_type=st.sampled_from([kind for kind in MessageType if type_properties(kind).appendable]),
    properties=st.dictionaries(texts.filter(lambda key: not key.startswith("_")), texts, max_size=2),
    resource_keys=st.lists(resource_keys, max_size=2, unique_by=lambda key: (key.domain, key.key)),
    needs_ack=st.booleans(),
)


@given(broadcast_messages, st.booleans())
def test_broadcasts(message: BroadcastMessage, wait: bool) -> None:
    request = through(broadcasts.broadcast_to_proto(message, wait=wait))
    assert broadcasts.broadcast_from_proto(request) == message
    assert request.wait is wait


@given(u64, st.dictionaries(names, st.builds(lambda at, tick: AppendResult(at, tick, at), ids, u63), min_size=1, max_size=5))
def test_results_of_broadcasts(broadcast_id: int, results: dict[str, AppendResult]) -> None:
    response = through(broadcasts.result_to_proto(BroadcastAppendResult(broadcast_id, results)))
    arrived = broadcasts.result_from_proto(list(results), response)
    assert arrived == BroadcastAppendResult(broadcast_id, results)
    with pytest.raises(InvalidArgumentError, match=f"{len(results)} results for {len(results) + 1} vchannels"):
        broadcasts.result_from_proto([*results, "another"], response)


@given(
    st.builds(
        BroadcastTask,
        u64,
        st.sampled_from(list(BroadcastState)),
        st.tuples(resource_keys),
        st.tuples(names),
        st.tuples(names, names),
        times,
        st.none() | texts,
    )
)
def test_tasks_of_broadcasts(task: BroadcastTask) -> None:
    assert broadcasts.task_from_proto(through(broadcasts.task_to_proto(task))) == task


def test_numbers_of_a_later_version_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="broadcast state 77"):
        broadcasts.task_from_proto(cluster_pb2.BroadcastTaskState(state=77))
    with pytest.raises(InvalidArgumentError, match="message type 60000"):
        broadcasts.broadcast_from_proto(cluster_pb2.AppendBroadcastRequest(vchannels=["a"], message_type=60_000))


# -- reports


def counts(kind: type[Any], **given_fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Returns statistics with any counts."""
    kinds = {int: u63, float: times, str: texts}
    return st.builds(kind, **{name: given_fields.get(name, kinds.get(type_, u63)) for name, type_ in get_type_hints(kind).items()})


@given(counts(BroadcasterStatistics))
def test_statistics(broadcaster: BroadcasterStatistics) -> None:
    encoded = through(reports.broadcaster_to_proto(broadcaster))
    assert {name: getattr(encoded, name) for name in broadcaster.__struct_fields__} == msgspec.structs.asdict(broadcaster)


@given(
    st.builds(
        LogSnapshot,
        st.builds(Origin, names, u63, frames),
        st.builds(Lineage, u63),
        u63,
        frames,
        events,
        u64,
        st.booleans(),
        st.none() | events,
        st.none() | events,
    )
)
def test_tails(snapshot: LogSnapshot) -> None:
    message = through(reports.tail_to_proto(snapshot))
    origin, lineage = snapshot.origin, snapshot.lineage
    assert reports.tail_from_proto(message, origin, lineage, term=snapshot.term, closed=snapshot.closed) == snapshot


def test_every_setting_of_a_log_travels() -> None:
    # The settings that do not concern a client: they belong to the process that has the log, or to its storage.
    of_the_process = {
        "pchannels", "segment_bytes", "group_readable", "kv", "pulsar_admin_url", "pulsar_token", "pulsar_tls_authority", "token",
        "allow_message_ttl",
        "allow_backlog_quota", "write_path", "compression",
    }  # fmt: skip

    assert set(reports.LOG_SETTINGS) | of_the_process == set(Settings.__struct_fields__)
    other = Settings(
        create_vchannels=False, vchannels_max=7, message_bytes_max=1 << 16, txn_bytes_max=1 << 21, txn_bodies_max=9, txn_keepalive=3.5,
        open_txn_bytes_max=1 << 23, in_flight_bytes_max=1 << 24, time_tick_interval_s=0.5, idempotency_window_count=11,
        idempotency_window_s=12.5, producers_max=13, scheduled_max=18, scheduled_bytes_max=1 << 19,
        broadcast_tasks_max=14, broadcast_vchannels_max=15, retention_bytes=1 << 30,
        retention_s=16.5, cursor_lag_bytes_max=1 << 29, cursor_age_max_s=17.5,
    )  # fmt: skip
    for settings in (Settings(), other):
        assert reports.settings_from_proto(through(reports.settings_to_proto(settings))) == settings


def test_older_server_schedules_nothing() -> None:
    older = reports.settings_to_proto(Settings(producers_max=13, scheduled_max=7, scheduled_bytes_max=7))
    older.ClearField("scheduled_max")
    older.ClearField("scheduled_bytes_max")
    assert reports.settings_from_proto(older) == Settings(producers_max=13)
