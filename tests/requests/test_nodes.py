"""The outcomes of copies as a node sends them to the leader of its cluster."""

from __future__ import annotations

import pytest

from broadcaster.message import Content
from wal.errors import ChannelNotExistError, UnknownError, WALError
from wal.message import AppendResult, MessageID
from wal.requests.nodes import CopyBroadcast, CopyOutcome, OutcomesOfCopies
from wal.rpc.api.requests_pb2 import SubmitResponse
from wal.rpc.converter import answer_from_proto, answer_to_proto


def request(count: int) -> CopyBroadcast:
    return CopyBroadcast(tuple(f"v{number}" for number in range(count)), b"", Content(b"", 2))


def copies(*indices: int) -> list[AppendResult]:
    ids = [MessageID("p", 1, 5, index) for index in indices]
    return [AppendResult(copy, 100 + copy.index, copy) for copy in ids]


def test_results_and_errors_arrive_in_their_order() -> None:
    before, after = copies(0, 1, 2), copies(3, 9)
    gone = ChannelNotExistError("vchannel 'v3' was dropped")
    asked = request(6)
    sent = asked.packed([*before, gone, *after])
    assert len(sent.outcomes) == 4
    data = answer_to_proto(CopyBroadcast, sent).SerializeToString()
    arrived = list(asked.unpacked(answer_from_proto(CopyBroadcast, SubmitResponse.FromString(data))))
    error = arrived.pop(3)
    assert arrived == [*before, *after]
    assert isinstance(error, ChannelNotExistError)
    assert str(error) == str(gone)


def test_missing_outcomes_are_an_error() -> None:
    with pytest.raises(UnknownError, match="answered for 2 of 3 copies"):
        request(3).unpacked(request(2).packed(copies(0, 1)))
    (outcome,) = request(1).unpacked(OutcomesOfCopies((CopyOutcome(),)))
    assert isinstance(outcome, WALError)
