"""A manifest is read back as it was stored, or is damage; its producers are its own."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.errors import CorruptionError, FormatError, InvalidArgumentError
from wal.spark.sink.folder import SinkFolder
from wal.spark.sink.manifest import BatchManifest, StagedFile, WriteKey, decode_manifest, encode_manifest

IDS = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9-]{0,63}\Z")
COUNTS = st.integers(0, (1 << 63) - 1)
NAMES = st.from_regex(r"\A[0-9a-z-]{1,20}\.staged\Z")
FILES = st.builds(StagedFile, NAMES, COUNTS, COUNTS, COUNTS, COUNTS, st.integers(0, (1 << 32) - 1))
MANIFESTS = st.builds(
    BatchManifest,
    st.builds(WriteKey, IDS, COUNTS),
    st.booleans(),
    st.text("0123456789abcdef", min_size=16, max_size=16),
    st.lists(FILES, max_size=5).map(tuple),
    COUNTS,
)


@given(MANIFESTS)
def test_manifest_is_decoded_as_it_was_encoded(manifest: BatchManifest) -> None:
    assert decode_manifest(encode_manifest(manifest)) == manifest
    assert len(manifest.producer.encode()) <= 255


@given(MANIFESTS, st.data())
def test_changed_or_missing_byte_is_damage(manifest: BatchManifest, data: st.DataObject) -> None:
    whole = encode_manifest(manifest)
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    for broken in (whole[:at], flipped, whole + b"x"):
        with pytest.raises(CorruptionError):
            decode_manifest(broken)


def test_newer_version_says_so() -> None:
    whole = encode_manifest(BatchManifest(WriteKey("q", 1), True, "t", ()))
    with pytest.raises(FormatError, match="version 2"):
        decode_manifest(sealed(whole[16 + 4 :], version=2))


def sealed(body: bytes, version: int = 1) -> bytes:
    """Returns the file of a manifest with this body."""
    head = b"WALSINKM" + struct.pack("<II", version, len(body))
    return head + struct.pack("<I", google_crc32c.value(head + body)) + body


def test_manifest_names_staged_files_only() -> None:
    whole = encode_manifest(BatchManifest(WriteKey("q", 1), True, "t", (StagedFile("0-0-a.staged", 0, 3, 9, 100, 1),)))
    body = whole[16 + 4 :]
    assert decode_manifest(sealed(body)).files[0].name == "0-0-a.staged"
    names = ("../x.staged", "/x.staged", "a/b.staged", "a\\\\b.staged", "a\\u0000.staged", ".staged", "lock", "x.staged\\n")
    changes = [body.replace(b"0-0-a.staged", name.encode()) for name in names]
    changes += [
        body.replace(b'"chunks":3', b'"chunks":-3'),
        body.replace(b'"q"', b'"../q"'),
        b"\xff",
        b"[" * 99_999,
        b"{}",
        b"null",
        b'{"key":"\xff"}',
    ]
    for changed in changes:
        assert changed != body
        with pytest.raises(CorruptionError, match="cannot be decoded"):
            decode_manifest(sealed(changed))


def test_flipped_bit_in_a_mark_is_damage(tmp_path: Path) -> None:
    folder, key = SinkFolder(tmp_path), WriteKey("q", 41)
    path = folder.path / "published" / "q"
    folder.finish(BatchManifest(key, True, "t", ()))
    data = path.read_bytes()
    for at in range(8 * len(data)):
        path.write_bytes(data[: at // 8] + bytes((data[at // 8] ^ 1 << at % 8,)) + data[at // 8 + 1 :])
        with pytest.raises(CorruptionError, match=re.escape(str(path))):
            folder.is_published(key)
    for stored, batch in ((data, 41), (b"41\n", 41), (b"7\n", 7)):  # by an earlier version, or by hand
        path.write_bytes(stored)
        assert folder.is_published(WriteKey("q", batch))
        assert not folder.is_published(WriteKey("q", batch + 1))
    (folder.path / "log").write_bytes(b"\xff\n")
    for call in (lambda: folder.id, lambda: folder.claim("pulsar://host/a/b")):
        with pytest.raises(CorruptionError, match=re.escape(str(folder.path / "log"))):
            call()


def test_producer_name_follows_query_and_progress() -> None:
    manifest = BatchManifest(WriteKey("query", 7), True, "abc", (StagedFile("f", 0, 3, 9, 100, 1), StagedFile("g", 1, 2, 4, 80, 2)))
    assert (manifest.chunks, manifest.rows) == (5, 13)
    assert manifest.producer == "wal.spark/query/7/abc/0"
    assert manifest.after(4).producer == "wal.spark/query/7/abc/4"


@pytest.mark.parametrize("write_id", ["", "a/b", "../x", "a" * 65, "-a", "a.b"])
def test_invalid_file_name_as_id_is_refused(write_id: str) -> None:
    with pytest.raises(InvalidArgumentError, match="letters, digits and hyphens"):
        WriteKey(write_id, 0)


def test_batch_id_out_of_range_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="out of range"):
        WriteKey("q", -1)
