"""Ext: fields round-trip, even tags must be known, and damage is an error."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.errors import CorruptionError, FormatError
from wal.frame import ExtTag, decode_ext, decode_txn, encode_ext, encode_txn


@given(st.dictionaries(st.sampled_from(ExtTag), st.binary(max_size=30)))
def test_fields_round_trip(fields: dict[ExtTag, bytes]) -> None:
    assert decode_ext(encode_ext(fields)) == fields


u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)


@given(u64, u64, u32, u32)
def test_commit_round_trips(txn_id: int, keepalive_ms: int, one: int, other: int) -> None:
    bodies, total = sorted((one, other))
    stored = encode_txn(txn_id=txn_id, keepalive_ms=keepalive_ms, bodies=bodies, bodies_total=total)
    assert decode_txn(decode_ext(stored)) == (txn_id, keepalive_ms, bodies, total)


def test_bytes() -> None:
    assert encode_ext({ExtTag.TRACE: b"t", ExtTag.TXN: b""}) == b"\x02\x00\x00\x00\x00\x00\x09\x00\x01\x00\x00\x00t"
    assert encode_ext({}) == b""


@pytest.mark.parametrize("tag", [11, 1, 65535])
def test_unknown_odd_tag_is_skipped(tag: int) -> None:
    assert decode_ext(struct.pack("<HI", tag, 3) + b"new") == {}


@pytest.mark.parametrize("tag", [0, 10, 65534])
def test_unknown_even_tag_is_a_newer_format(tag: int) -> None:
    with pytest.raises(FormatError, match=f"the field {tag}, .* upgrade"):
        decode_ext(struct.pack("<HI", tag, 0))


def test_damage(subtests: pytest.Subtests) -> None:
    cases = [
        b"\x09",
        b"\x09\x00\x01\x00\x00",
        b"\x09\x00\x01\x00\x00\x00",
        b"\x09\x00\xff\xff\xff\xffx",
        encode_ext({ExtTag.TRACE: b"a"}) * 2,
        encode_ext({ExtTag.TRACE: b"a"}) + encode_ext({ExtTag.TXN: b"a"}),
    ]
    for stored in cases:
        with subtests.test(repr(stored)), pytest.raises(CorruptionError):
            decode_ext(stored)


@given(st.binary(max_size=40))
def test_any_bytes_are_fields_or_damage(stored: bytes) -> None:
    try:
        fields = decode_ext(stored)
    except (CorruptionError, FormatError):
        return
    assert sum(6 + len(value) for value in fields.values()) <= len(stored)


@pytest.mark.parametrize("value", [None, b"", b"x" * 23, b"x" * 25, struct.pack("<QQII", 1, 1, 2, 1)])
def test_commit_row_without_a_transaction_is_damage(value: bytes | None) -> None:
    with pytest.raises(CorruptionError, match="a commit row"):
        decode_txn({} if value is None else {ExtTag.TXN: value})
