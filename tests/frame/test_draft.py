"""FrameDraft refuses a call that no frame can hold, and is then unchanged; its short forms give the rows of the general ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.errors import InvalidArgumentError
from wal.frame import FrameDraft, Record, RunName, encode_frame
from wal.frame.draft import Run
from wal.frame.ext import encode_key, encode_txn
from wal.frame.layout import DEFAULT_TYPE, FLAG_BODY, FLAG_COMMIT, KEYED, RunKind

A, B = ("a", 1), ("b", 1)


def state(draft: FrameDraft) -> tuple[object, ...]:
    return (draft.indices, [(run.kind, run.name, len(run.records)) for run in draft.runs], draft.has_flags, draft.in_order)


def test_transaction_over_other_names_is_refused_whole(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[tuple[RunName, Record]], list[RunName], str]] = [
        ([], [], "name at least one"),
        ([], [A, A], "each of them once"),
        ([(B, Record(b"x"))], [A], r"a body for \('b', 1\) in a transaction over \[\('a', 1\)\]: name it"),
        ([(A, Record(b"x")), (B, Record(b"x"))], [A], "name it in `names`"),
    ]
    for bodies, names, text in cases:
        with subtests.test(repr(bodies)):
            draft = FrameDraft()
            draft.append(A, [Record(b"before")])
            before = state(draft)
            with pytest.raises(InvalidArgumentError, match=text):
                draft.commit(bodies, names=names, txn_id=1, keepalive_ms=1)
            assert state(draft) == before


@pytest.mark.parametrize("names", [[], [A, A], [A, B, A]])
def test_broadcast_names_each_vchannel_once(names: list[RunName]) -> None:
    draft = FrameDraft()
    before = state(draft)
    with pytest.raises(InvalidArgumentError, match=r"a broadcast over .* each of them once"):
        draft.broadcast(names, Record(b"x"), header=b"")
    assert state(draft) == before


def test_append_of_no_records_creates_no_run() -> None:
    draft = FrameDraft()
    assert draft.append(A, []) == 0
    assert draft.runs == []
    assert encode_frame(draft, incarnation=1, term=1, sequence=1, first_tick=5, promised_tick=4).vchannels == ()


def test_callers_list_is_not_kept() -> None:
    draft = FrameDraft()
    records = [Record(b"x")]
    draft.append(A, records)
    draft.append(A, [Record(b"y")])
    assert len(records) == 1


@given(
    st.lists(
        st.tuples(st.sampled_from([A, B]), st.booleans(), st.lists(st.binary(max_size=9), max_size=4), st.booleans()),
        min_size=1,
        max_size=6,
    )
)
def test_single_vchannel_transaction_has_general_rows(operations: list[tuple[RunName, bool, list[bytes], bool]]) -> None:
    def row_by_row(draft: FrameDraft, name: tuple[str, int], records: list[Record], key: bytes) -> int:
        """Adds a transaction one row after the other, as the format describes it."""
        draft.has_flags = True
        if key:
            draft.compatible |= KEYED
        run = draft.by_name.get(name)
        if run is None:
            run = draft.by_name[name] = Run(RunKind.VCHANNEL, *name, [], [])
            draft.runs.append(run)
        draft.in_order = draft.in_order and run is draft.runs[-1]
        count = len(records)
        ext = encode_txn(txn_id=7, keepalive_ms=9, bodies=count, bodies_total=count) + key
        for record in (*records, Record(b"", DEFAULT_TYPE, FLAG_COMMIT, b"", ext)):
            record.flags = record.flags or FLAG_BODY
            run.records.append(record)
            run.indices.append(draft.indices)
            draft.indices += 1
        return draft.indices - 1

    def encoded(draft: FrameDraft) -> bytes:
        """Returns the bytes of the frame."""
        return b"".join(encode_frame(draft, incarnation=1, term=1, sequence=1, first_tick=5, promised_tick=99).buffers)

    draft, rows = FrameDraft(), FrameDraft()
    for name, is_txn, payloads, keyed in operations:
        records = [Record(payload, 1 + len(payload), 0, payload[:2]) for payload in payloads]
        if not is_txn:
            assert draft.append(name, records) == rows.append(name, list(records))
            continue
        key = encode_key("k") if keyed else b""
        copies = [Record(record.payload, record.message_type, 0, record.properties) for record in records]
        assert draft.commit_one(name, copies, txn_id=7, keepalive_ms=9, key=key) == row_by_row(rows, name, records, key)
    assert (draft.indices, draft.in_order, draft.has_flags, draft.compatible) == (
        rows.indices,
        rows.in_order,
        rows.has_flags,
        rows.compatible,
    )
    assert encoded(draft) == encoded(rows)
