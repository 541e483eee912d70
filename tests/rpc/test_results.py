"""Results and outcomes of appends: what is packed into ranges comes out as it was."""

from __future__ import annotations

import math
from typing import Any

import pytest
from google.protobuf.any_pb2 import Any as AnyProto
from hypothesis import given
from hypothesis import strategies as st

from wal.errors import InvalidArgumentError, NoSpaceError, StorageError, WouldBlockError
from wal.message import FORM_PULSAR, AppendResult, MessageID, TxnContext
from wal.rpc.api import append_pb2, result_pb2
from wal.rpc.appends import Answered, outcomes_from_proto, outcomes_to_proto
from wal.rpc.converters import Numbered, ranges_of, results_of

ids = st.builds(MessageID, st.sampled_from(["p-1", "p-2"]), st.integers(0, 2), st.integers(0, 2), st.integers(0, 5)) | st.builds(
    MessageID, st.just("p-1"), st.integers(0, 2**64 - 1), st.integers(0, 2**128 - 1), st.integers(0, 2**32 - 2), st.just(FORM_PULSAR)
)
contexts = st.builds(TxnContext, st.integers(0, 2**63 - 1), st.integers(0, 10**6).map(lambda ms: ms / 1000) | st.just(math.inf))
extras = st.builds(lambda data: AnyProto(type_url="type.googleapis.com/x", value=data), st.binary(max_size=4))


@st.composite
def results(draw: st.DrawFn) -> AppendResult:
    if draw(st.integers(0, 7)) == 0:
        nothing: Any = None
        return AppendResult(nothing, nothing, nothing, duplicate=draw(st.booleans()))
    at = draw(ids)
    confirmed = draw(ids) if draw(st.integers(0, 7)) == 0 else at
    context = draw(contexts) if draw(st.integers(0, 7)) == 0 else None
    extra = draw(extras) if draw(st.integers(0, 7)) == 0 else None
    return AppendResult(at, draw(st.integers(0, 6)), confirmed, context, extra, draw(st.booleans()))


@st.composite
def runs(draw: st.DrawFn) -> list[Numbered]:
    """Returns results of which many follow each other, as those of one turn do."""
    numbered: list[Numbered] = []
    number = draw(st.integers(-(2**62), 2**62))
    for result in draw(st.lists(results(), max_size=6)):
        number += draw(st.integers(0, 2))
        for step in range(draw(st.integers(1, 4))):
            if result.message_id is not None and step:
                at = result.message_id
                after = MessageID(at.pchannel, at.incarnation, at.position, at.index + 1, at.form)
                result = AppendResult(after, result.time_tick + 1, after, None, None, result.duplicate)
            numbered.append((number, result))
            number += 1
    return numbered


@given(runs())
def test_results_come_out_as_they_were(numbered: list[Numbered]) -> None:
    ranges = [result_pb2.AppendedRange.FromString(one.SerializeToString()) for one in ranges_of(numbered)]
    assert [each for one in ranges for each in results_of(one)] == numbered


def test_extra_that_no_wire_carries_is_refused() -> None:
    at = MessageID("p-1", 7, 4096, 0)
    with pytest.raises(InvalidArgumentError, match="no wire form"):
        ranges_of([(1, AppendResult(at, 1, at, extra=object()))])


def test_results_of_a_frame_are_one_range() -> None:
    ids_of_a_frame = [MessageID("p-1", 7, 4096, index) for index in range(5, 261)]
    numbered: list[Numbered] = [(40 + at, AppendResult(one, 900 + at, one)) for at, one in enumerate(ids_of_a_frame)]
    (one,) = ranges_of(numbered)
    assert (one.first_request_id, one.count, one.first_time_tick) == (40, 256, 900)
    assert one.ByteSize() < 64


@pytest.mark.parametrize("gap", ["request", "index", "tick", "frame", "duplicate", "incarnation"])
def test_gap_of_any_kind_begins_another_range(gap: str) -> None:
    first = MessageID("p-1", 7, 4096, 0)
    after = MessageID("p-1", 7 + (gap == "incarnation"), 4096 + (gap == "frame"), 1 + (gap == "index"))
    second = AppendResult(after, 901 + (gap == "tick"), after, duplicate=gap == "duplicate")
    assert len(ranges_of([(1, AppendResult(first, 900, first)), (2 + (gap == "request"), second)])) == 2


def test_range_that_contradicts_itself_is_refused() -> None:
    at = bytes(MessageID("p-1", 7, 4096, 0))
    with pytest.raises(InvalidArgumentError, match="2 results has fields of one"):
        list(results_of(result_pb2.AppendedRange(count=2, first_id=at, last_confirmed=at)))
    with pytest.raises(InvalidArgumentError, match=r"first_id: .* are not the bytes of a MessageID"):
        list(results_of(result_pb2.AppendedRange(count=1, first_id=b"\x09")))


@pytest.mark.parametrize("first", [-1, 0, -(2**63), 2**63 - 2])
def test_outcomes_of_any_request_ids(first: int) -> None:
    full = NoSpaceError("full")
    message = append_pb2.Outcomes.FromString(outcomes_to_proto([(first, 1, full), (first + 1, 1, full)]).SerializeToString())
    assert [(one.first_request_id, one.count) for one in message.failed] == [(first, 2)]
    assert [number for number, _ in outcomes_from_proto(message)] == [first, first + 1]


def test_outcomes_are_results_and_errors_by_request() -> None:
    at = MessageID("p-1", 7, 4096, 0)
    full, broken, blocked = NoSpaceError("full"), StorageError("broken", outcome_unknown=True), WouldBlockError("wait")
    outcomes: list[Answered]
    outcomes = [(1, 1, full), (2, 1, full), (3, 1, AppendResult(at, 9, at)), (4, 1, full), (5, 1, broken), (6, 2, blocked)]
    message = append_pb2.Outcomes.FromString(outcomes_to_proto(outcomes).SerializeToString())
    assert [one.count for one in message.failed] == [2, 1, 1, 2]
    arrived = dict(outcomes_from_proto(message))
    assert arrived[3] == AppendResult(at, 9, at)
    assert arrived[1] is arrived[2]
    assert {number: (type(one), str(one)) for number, one in arrived.items() if number != 3} == {
        1: (NoSpaceError, "full"),
        2: (NoSpaceError, "full"),
        4: (NoSpaceError, "full"),
        5: (StorageError, "broken"),
        6: (WouldBlockError, "wait"),
        7: (WouldBlockError, "wait"),
    }
    assert arrived[5].outcome_unknown  # type: ignore[union-attr]
