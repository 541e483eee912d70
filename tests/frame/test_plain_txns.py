"""Transactions drafted by their payloads alone make the same frames, byte for byte, as with a record for each body."""

from hypothesis import given
from hypothesis import strategies as st

from tests.frame.drafts import encode, names, payloads
from wal.frame import FrameDraft, Payloads, Record, RunName, encode_key

Txn = tuple[RunName, list[bytes], bytes]
"""The vchannel, the bodies, and the key."""

txns = st.lists(st.tuples(names, st.lists(payloads, max_size=5), st.sampled_from([b"", b"", encode_key("a key")])), max_size=6)
others = st.sampled_from(["none", "none", "append", "commit", "broadcast", "pchannel", "system", "cursor", "cursors"])


@given(txns, others, st.integers(0, 6))
def test_frames_of_payloads_are_those_of_records(txns: list[Txn], other: str, at: int) -> None:
    def _draft(txns: list[Txn], other: str, at: int, *, plain: bool) -> FrameDraft:
        draft = FrameDraft()
        for number, (name, bodies, key) in enumerate(txns):
            if number == at:
                add(draft, other)
            given = Payloads(bodies, list(map(len, bodies))) if plain else list(map(Record, bodies))
            commit = draft.commit_one(name, given, txn_id=number, keepalive_ms=1500, key=key)
            assert commit == draft.indices - 1
        if at >= len(txns):
            add(draft, other)
        return draft

    def add(draft: FrameDraft, other: str) -> None:
        if other == "append":
            draft.append(("a", 1), [Record(b"plain", 3, 0, b"\x81\xa1a\xa1b")])
        elif other == "commit":
            draft.commit([(("a", 1), Record(b"x", 3))], names=[("a", 1), ("b", 1)], txn_id=7, keepalive_ms=1)
        elif other == "broadcast":
            draft.broadcast([("a", 1), ("c", 1)], Record(b"shared"), header=b"hdr")
        elif other == "pchannel":
            draft.pchannel(Record(b"wide"))
        elif other == "system":
            draft.producer_forgotten("someone")
        elif other.startswith("cursor"):
            for number in range(1 if other == "cursor" else 3):
                draft.cursor(number, lambda: b"a state")

    plain, records = (encode(_draft(txns, other, at, plain=plain)) for plain in (True, False))
    assert plain.header == records.header
    assert b"".join(plain.buffers) == b"".join(records.buffers)
    assert plain.buffers[1:] == records.buffers[1:]  # the same blocks
    assert (plain.vchannels, plain.pchannel_wide, plain.length) == (
        records.vchannels, records.pchannel_wide, records.length,
    )  # fmt: skip
