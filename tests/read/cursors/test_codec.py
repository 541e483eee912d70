"""The bytes of a cursor: decoding returns the encoded cursor or raises, and never returns another."""

from __future__ import annotations

import struct

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.read.cursors.samples import cursor, cursors, names
from wal.errors import CorruptionError, FormatError, InvalidArgumentError
from wal.read.cursors.cursor import CURSOR_NAME_BYTES_MAX, Cursor, CursorKey, check_cursor
from wal.read.cursors.files import decode_cursor, encode_cursor, file_prefix
from wal.read.cursors.files import file_name as name_of


@given(cursors())
def test_it_comes_back(saved: Cursor) -> None:
    assert decode_cursor(encode_cursor(saved)) == saved


@given(cursors(), st.data())
def test_every_flipped_bit_is_an_error(saved: Cursor, data: st.DataObject) -> None:
    content = bytearray(encode_cursor(saved))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((CorruptionError, FormatError)):
        decode_cursor(bytes(content))


@given(cursors(), st.data())
def test_every_other_length_is_an_error(saved: Cursor, data: st.DataObject) -> None:
    content = encode_cursor(saved)
    with pytest.raises(CorruptionError):
        decode_cursor(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(CorruptionError):
        decode_cursor(content + data.draw(st.binary(min_size=1, max_size=9)))


@given(st.binary(max_size=200))
def test_wrong_body_is_an_error_even_with_a_right_checksum(body: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_cursor(framed(body))


def test_newer_version_says_so() -> None:
    with pytest.raises(FormatError, match="version 3"):
        decode_cursor(framed(b"", version=3))


def framed(body: bytes, *, version: int = 1) -> bytes:
    head = struct.pack("<8sII", b"WALCURSR", version, len(body))
    return head + struct.pack("<II", google_crc32c.value(head + body), 0) + body


def test_it_is_small() -> None:
    assert len(encode_cursor(cursor())) < 300


@given(names, st.lists(names, min_size=1, max_size=5))
def test_any_name_is_a_file_name(name: str, vchannels: list[str]) -> None:
    file = name_of(CursorKey.of(name, vchannels))
    assert len(file.encode()) < 160
    assert file.isascii()
    assert set(file) & set("/\0 ") == set()
    assert not file.startswith(".")
    assert file == name_of(CursorKey.of(name, reversed(vchannels))), "a set has no order"
    assert file.startswith(file_prefix(name))


@given(st.lists(st.tuples(names, st.lists(names, min_size=1, max_size=3)), max_size=20))
def test_different_cursors_have_different_files(given: list[tuple[str, list[str]]]) -> None:
    keys = {CursorKey.of(name, vchannels) for name, vchannels in given}
    assert len({name_of(key) for key in keys}) == len(keys)
    for key in keys:
        assert {name_of(other) for other in keys if other.name == key.name} == {
            name_of(other) for other in keys if name_of(other).startswith(file_prefix(key.name))
        }


def test_set_is_not_its_names_joined() -> None:
    assert name_of(CursorKey.of("a", ["b", "c"])) != name_of(CursorKey.of("a", ["bc"]))


@pytest.mark.parametrize("name", ["", "_own", "x" * (CURSOR_NAME_BYTES_MAX + 1), "é" * 128, "a\nb", "\x7f", "\ud800"], ids=repr)
def test_wrong_names(name: str) -> None:
    with pytest.raises(InvalidArgumentError):
        check_cursor(name)


@pytest.mark.parametrize("name", [None, 7, b"billing", ["billing"]], ids=repr)
def test_names_are_text(name: object) -> None:
    with pytest.raises(TypeError):
        check_cursor(name)


def test_long_names_are_names() -> None:
    assert check_cursor("x" * CURSOR_NAME_BYTES_MAX)
    assert check_cursor("é" * 127)
