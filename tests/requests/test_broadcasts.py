"""The results of a broadcast as they are sent, and the checks of requests about broadcasts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadcaster.message import BroadcastAppendResult, BroadcastMessage
from tests.rpc.test_converters import ids, names, u63
from wal.errors import InvalidArgumentError, UnknownError
from wal.message import AppendResult, MessageID
from wal.requests.broadcasts import AbortBroadcast, AckBroadcast, AppendBroadcast, AwaitResourceKey

results = st.lists(st.builds(lambda at, tick: AppendResult(at, tick, at), ids, u63), min_size=1, max_size=5)


def answered(appended: list[AppendResult]) -> tuple[AppendBroadcast, BroadcastAppendResult]:
    """Returns a request and its answer with these results."""
    vchannels = [f"v{number}" for number in range(len(appended))]
    request = AppendBroadcast(BroadcastMessage(vchannels=vchannels, payload=b""))
    return request, BroadcastAppendResult(7, dict(zip(vchannels, appended, strict=True)))


@given(results)
def test_results_arrive_as_they_were_sent(appended: list[AppendResult]) -> None:
    request, answer = answered(appended)
    assert request.unpacked(request.packed(answer)) == answer
    assert request.newest_tick(answer) == max(result.time_tick for result in appended)


def test_copies_of_one_frame_are_sent_together() -> None:
    copies = [MessageID("p", 1, 5, index) for index in range(1000)]
    other = MessageID("p", 1, 6, 1000)
    appended = [AppendResult(copy, 100 + copy.index, copy) for copy in (*copies, other)]
    request, answer = answered(appended)
    packed = request.packed(answer)
    assert [(one.count, one.first_id, one.first_time_tick) for one in packed.copies] == [(1000, copies[0], 100), (1, other, 1100)]
    assert request.unpacked(packed) == answer


@given(names)
def test_missing_results_are_an_error(name: str) -> None:
    copy = MessageID("p", 1, 5, 0)
    request, answer = answered([AppendResult(copy, 9, copy)])
    more = AppendBroadcast(BroadcastMessage(vchannels=["v0", "v1"], payload=name.encode()))
    with pytest.raises(UnknownError, match="broadcast 7 has 1 results for 2 vchannels"):
        more.unpacked(request.packed(answer))


def test_bad_values_are_refused_when_a_request_is_made() -> None:
    with pytest.raises(TypeError, match="append takes a BroadcastMessage, not str"):
        AppendBroadcast("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="wait must be a bool"):
        AppendBroadcast(BroadcastMessage(vchannels=["a"], payload=b""), 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a str for the vchannel"):
        AckBroadcast.of(5)
    with pytest.raises(TypeError, match="a resource key is a ResourceKey"):
        AwaitResourceKey("x")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="at most 4096"):
        AbortBroadcast(5, "x" * 4097)
