"""A manifest is read back as it was stored, or is damage; its producers are its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.errors import CorruptionError, FormatError, InvalidArgumentError
from wal.spark.sink.manifest import Manifest, StagedFile, WriteKey, decode_manifest, encode_manifest

IDS = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9-]{0,63}\Z")
COUNTS = st.integers(0, (1 << 63) - 1)
FILES = st.builds(StagedFile, st.text(max_size=20), COUNTS, COUNTS, COUNTS, COUNTS, st.integers(0, (1 << 32) - 1))
MANIFESTS = st.builds(
    Manifest,
    st.builds(WriteKey, IDS, COUNTS),
    st.booleans(),
    st.text("0123456789abcdef", min_size=16, max_size=16),
    st.lists(FILES, max_size=5).map(tuple),
    COUNTS,
)


@given(MANIFESTS)
def test_manifest_is_decoded_as_it_was_encoded(manifest: Manifest) -> None:
    assert decode_manifest(encode_manifest(manifest)) == manifest
    assert len(manifest.producer.encode()) <= 255


@given(MANIFESTS, st.data())
def test_changed_or_missing_byte_is_damage(manifest: Manifest, data: st.DataObject) -> None:
    whole = encode_manifest(manifest)
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    for broken in (whole[:at], flipped, whole + b"x"):
        with pytest.raises((CorruptionError, FormatError)):
            decode_manifest(broken)


def test_newer_version_says_so() -> None:
    whole = bytearray(encode_manifest(Manifest(WriteKey("q", 1), True, "t", ())))
    whole[8] = 2
    with pytest.raises(FormatError, match="version 2"):
        decode_manifest(bytes(whole))


def test_its_producer_is_named_from_the_query_and_changes_with_what_is_published() -> None:
    manifest = Manifest(WriteKey("query", 7), True, "abc", (StagedFile("f", 0, 3, 9, 100, 1), StagedFile("g", 1, 2, 4, 80, 2)))
    assert (manifest.chunks, manifest.rows) == (5, 13)
    assert manifest.producer == "wal.spark/query/7/abc/0"
    assert manifest.after(4).producer == "wal.spark/query/7/abc/4"


@pytest.mark.parametrize("write_id", ["", "a/b", "../x", "a" * 65, "-a", "a.b"])
def test_id_that_cannot_be_a_file_name_is_refused(write_id: str) -> None:
    with pytest.raises(InvalidArgumentError, match="letters, digits and hyphens"):
        WriteKey(write_id, 0)


def test_batch_id_out_of_range_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="out of range"):
        WriteKey("q", -1)
