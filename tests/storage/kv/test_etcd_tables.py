"""The pure parts of EtcdKV: field numbers, ranges, pages, refusals, and the position of a watch against a naive model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wal.storage.kv.etcd
from wal.errors import CorruptionError, InvalidArgumentError, NoSpaceError, TruncatedError, UnavailableError, UnknownOutcomeError
from wal.storage.kv import WatchEvent, WatchKind
from wal.storage.kv.etcd.api import rpc_pb2
from wal.storage.kv.etcd.refusals import Refusal, classify, explain
from wal.storage.kv.etcd.requests import PAGE_BYTES, page_limit, range_of
from wal.storage.kv.etcd.watcher import WatchPosition

texts = st.text(st.sampled_from(["a", "b", "\x7f", "\x80", "\ud7ff", "\ue000", "\uffff", "\U0010ffff"]), max_size=4)


def test_field_numbers_are_those_of_etcd() -> None:
    # From etcd's own api/etcdserverpb/rpc.proto and api/mvccpb/kv.proto (3.6.6; the same numbers in 3.4).
    fields = """
        ResponseHeader cluster_id=1 member_id=2 revision=3 raft_term=4
        KeyValue key=1 create_revision=2 mod_revision=3 version=4 value=5 lease=6
        Event type=1 kv=2
        RangeRequest key=1 range_end=2 limit=3 revision=4 serializable=7 keys_only=8 count_only=9
        RangeResponse header=1 kvs=2 more=3 count=4
        PutRequest key=1 value=2 lease=3
        PutResponse header=1
        DeleteRangeRequest key=1 range_end=2
        DeleteRangeResponse header=1 deleted=2
        RequestOp request_range=1 request_put=2 request_delete_range=3
        ResponseOp response_range=1 response_put=2 response_delete_range=3
        Compare result=1 target=2 key=3 version=4 create_revision=5 mod_revision=6 value=7 lease=8
        TxnRequest compare=1 success=2 failure=3
        TxnResponse header=1 succeeded=2 responses=3
        WatchRequest create_request=1
        WatchCreateRequest key=1 range_end=2 start_revision=3 progress_notify=4 fragment=8
        WatchResponse header=1 watch_id=2 created=3 canceled=4 compact_revision=5 cancel_reason=6 fragment=7 events=11
        LeaseGrantRequest TTL=1 ID=2
        LeaseGrantResponse header=1 ID=2 TTL=3 error=4
        LeaseRevokeRequest ID=1
        LeaseRevokeResponse header=1
        LeaseKeepAliveRequest ID=1
        LeaseKeepAliveResponse header=1 ID=2 TTL=3
        LeaseTimeToLiveRequest ID=1
        LeaseTimeToLiveResponse header=1 ID=2 TTL=3 grantedTTL=4
        AuthenticateRequest name=1 password=2
        AuthenticateResponse header=1 token=2
    """

    ours = {
        f"{name} {' '.join(f'{field.name}={field.number}' for field in message.fields)}"
        for name, message in rpc_pb2.DESCRIPTOR.message_types_by_name.items()
    }
    assert ours == set(map(str.strip, fields.strip().splitlines()))
    assert rpc_pb2.DESCRIPTOR.package == "wal.kv.etcd"


def test_generated_code_matches_its_proto() -> None:
    proto = (Path(rpc_pb2.__file__).parent / "rpc.proto").read_text()
    assert set(re.findall(r"^message (\w+)", proto, re.MULTILINE)) == set(rpc_pb2.DESCRIPTOR.message_types_by_name)
    fields = re.findall(r"^ +(?:repeated )?\w+ (\w+) = (\d+);", proto, re.MULTILINE)
    generated = rpc_pb2.DESCRIPTOR.message_types_by_name.values()
    assert sorted(fields) == sorted((field.name, str(field.number)) for message in generated for field in message.fields)


@given(prefix=texts, key=texts.filter(bool))
def test_range_holds_exactly_the_keys_of_its_prefix(prefix: str, key: str) -> None:
    first, end = range_of(prefix)
    inside = first <= key.encode() and (end == b"\0" or key.encode() < end)
    assert inside == key.startswith(prefix)


@given(st.integers(1, 10_000), st.integers(0, 1 << 31))
def test_pages_are_bounded_and_never_empty(keys: int, size: int) -> None:
    limit = page_limit(keys, size)
    assert 1 <= limit <= 8192
    assert limit == 1 or limit * size <= PAGE_BYTES * keys


def test_meaning_of_each_status(subtests: pytest.Subtests) -> None:
    cases: list[tuple[int, str, Refusal, type[Exception], type[Exception]]] = [
        (14, "failed to connect to all addresses", Refusal.AWAY, UnavailableError, UnknownOutcomeError),
        (14, "etcdserver: request timed out, possibly due to connection lost", Refusal.AWAY, UnavailableError, UnknownOutcomeError),
        (14, "etcdserver: leader changed", Refusal.AWAY, UnavailableError, UnknownOutcomeError),
        (4, "Deadline Exceeded", Refusal.AWAY, UnavailableError, UnknownOutcomeError),
        (2, "whatever", Refusal.AWAY, UnavailableError, UnknownOutcomeError),
        (13, "RST_STREAM", Refusal.AWAY, UnavailableError, UnknownOutcomeError),
        (8, "a new text", Refusal.AWAY, UnavailableError, UnknownOutcomeError),
        (14, "etcdserver: no leader", Refusal.BUSY, UnavailableError, UnavailableError),
        (8, "etcdserver: too many requests", Refusal.BUSY, UnavailableError, UnavailableError),
        (16, "etcdserver: invalid auth token", Refusal.TOKEN, UnavailableError, UnavailableError),
        (3, "etcdserver: revision of auth store is old", Refusal.TOKEN, UnavailableError, UnavailableError),
        (11, "etcdserver: mvcc: required revision has been compacted", Refusal.COMPACTED, TruncatedError, TruncatedError),
        (11, "etcdserver: mvcc: required revision is a future revision", Refusal.AHEAD, TruncatedError, TruncatedError),
        (5, "etcdserver: requested lease not found", Refusal.LEASE_GONE, InvalidArgumentError, InvalidArgumentError),
        (3, "etcdserver: request is too large", Refusal.TOO_LARGE, InvalidArgumentError, InvalidArgumentError),
        (8, "grpc: received message larger than max (3 vs. 2)", Refusal.TOO_LARGE, InvalidArgumentError, InvalidArgumentError),
        (8, "etcdserver: mvcc: database space exceeded", Refusal.NO_SPACE, NoSpaceError, NoSpaceError),
        (15, "etcdserver: corrupt cluster", Refusal.CORRUPT, CorruptionError, CorruptionError),
        (7, "etcdserver: permission denied", Refusal.DENIED, InvalidArgumentError, InvalidArgumentError),
        (3, "etcdserver: authentication failed, invalid user ID or password", Refusal.DENIED, InvalidArgumentError, InvalidArgumentError),
        (3, "etcdserver: too many operations in txn request", Refusal.WRONG, InvalidArgumentError, InvalidArgumentError),
        (12, "unknown service", Refusal.WRONG, InvalidArgumentError, InvalidArgumentError),
    ]
    for code, text, refusal, reading, writing in cases:
        with subtests.test(repr(code)):
            assert classify(code, text) is refusal
            for error, expected in (
                (explain(refusal, "etcd at a:1, saving", text, writing=False), reading),
                (explain(refusal, "etcd at a:1, saving", text, writing=True), writing),
            ):
                assert isinstance(error, expected)
                assert text in str(error)
                assert "a:1" in str(error)
                assert error.outcome_unknown == isinstance(error, UnknownOutcomeError)


def event(revision: int, key: str) -> WatchEvent:
    return WatchEvent(WatchKind.PUT, key, "", revision)


@given(
    sizes=st.lists(st.integers(1, 4), max_size=12),
    cuts=st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1),
    start=st.integers(1, 5),
)
def test_watch_over_broken_streams_is_exact(sizes: list[int], cuts: list[tuple[int, bool]], start: int) -> None:
    """The model is a store with `sizes[n]` events in revision n+1, and streams that deliver some events and then may break."""
    store = [event(revision, f"{index}") for revision, size in enumerate(sizes, 1) for index in range(size)]
    position, given_out = WatchPosition(start), []
    sent = None
    for count, breaks in [*cuts, (len(store), False)]:
        if sent is None:
            position.begin_stream()
            sent = [one for one in store if one.revision >= position.next_revision]
        part, sent = sent[:count], sent[count:]
        groups = position.take(part, more=bool(sent))
        for group in groups:
            assert len({one.revision for one in group}) == 1
            assert len(group) == sizes[group[0].revision - 1], "half a revision was given"
            given_out += group
        if breaks:
            sent = None
    if sent is None:
        position.begin_stream()
        given_out += [
            one for group in position.take([one for one in store if one.revision >= position.next_revision], more=False) for one in group
        ]
    assert given_out == [one for one in store if one.revision >= start]
    assert position.next_revision >= start
    assert not position.gone_back(len(sizes)) or len(sizes) + 1 < start


def test_progress_moves_a_watch_forward_only() -> None:
    position = WatchPosition(5)
    position.progressed(9)
    position.progressed(3)
    assert position.next_revision == 10
    position.take([event(12, "a")], more=True)
    position.progressed(20)
    assert position.next_revision == 10, "events that are held back would be lost"
    assert position.gone_back(8)
    assert not position.gone_back(9)


def test_exported_names() -> None:
    assert wal.storage.kv.etcd.__all__ == sorted(wal.storage.kv.etcd.__all__)
    assert all(hasattr(wal.storage.kv.etcd, name) for name in wal.storage.kv.etcd.__all__)
