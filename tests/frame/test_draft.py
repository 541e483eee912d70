"""FrameDraft refuses a call that no frame can hold, and is then unchanged."""

import pytest

from wal.errors import InvalidArgumentError
from wal.frame import FrameDraft, Record, encode_frame

A, B = ("a", 1), ("b", 1)


def state(draft: FrameDraft) -> tuple[object, ...]:
    return (
        draft.indices,
        [(run.kind, run.name, len(run.records)) for run in draft.runs],
        draft.has_flags,
        draft.in_order,
    )


@pytest.mark.parametrize(
    ("bodies", "names", "text"),
    [
        ([], [], "name at least one"),
        ([], [A, A], "each of them once"),
        ([(B, Record(b"x"))], [A], r"a body for \('b', 1\) in a transaction over \[\('a', 1\)\]: name it"),
        ([(A, Record(b"x")), (B, Record(b"x"))], [A], "name it in `names`"),
    ],
)
def test_a_transaction_over_other_names_is_refused_whole(bodies, names, text: str) -> None:
    draft = FrameDraft()
    draft.append(A, [Record(b"before")])
    before = state(draft)
    with pytest.raises(InvalidArgumentError, match=text):
        draft.commit(bodies, names=names, txn_id=1, keepalive_ms=1)
    assert state(draft) == before


@pytest.mark.parametrize("names", [[], [A, A], [A, B, A]])
def test_a_broadcast_names_each_vchannel_once(names) -> None:
    draft = FrameDraft()
    before = state(draft)
    with pytest.raises(InvalidArgumentError, match=r"a broadcast over .* each of them once"):
        draft.broadcast(names, Record(b"x"), header=b"")
    assert state(draft) == before


def test_an_append_of_no_records_creates_no_run() -> None:
    draft = FrameDraft()
    assert draft.append(A, []) == 0
    assert draft.runs == []
    assert encode_frame(draft, incarnation=1, term=1, sequence=1, first_tick=5, promised_tick=4).vchannels == ()


def test_the_callers_list_is_not_kept() -> None:
    draft = FrameDraft()
    records = [Record(b"x")]
    draft.append(A, records)
    draft.append(A, [Record(b"y")])
    assert len(records) == 1
