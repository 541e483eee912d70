"""The bytes and the names of pins: decoding returns the encoded pin or raises, and never returns another."""

from __future__ import annotations

import struct

import google_crc32c
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.read.cursors.samples import cursor, cursors, events, names
from wal.errors import CorruptionError, FormatError, InvalidArgumentError
from wal.read.cursors.cursor import CURSOR_NAME_BYTES_MAX, Cursor, CursorKey, check_cursor
from wal.read.cursors.pins import Pin, decode_pin, encode_pin, name_of, pin_in, prefix_of, stem_of


@given(cursors(), st.integers(0, 2**63), st.booleans(), events)
def test_pin_comes_back(saved: Cursor, revision: int, deleted: bool, firsts: tuple[tuple[str, int, int], ...]) -> None:
    pin = Pin(saved, revision, deleted, firsts=firsts if saved.key.pattern else ())
    assert decode_pin(encode_pin(pin)) == pin
    named = msgspec.structs.replace(pin, number=17, name=name_of(saved.key, 17))
    assert pin_in(named.name, encode_pin(pin), where="here") == named


@given(cursors(), st.data())
def test_every_flipped_bit_is_an_error(saved: Cursor, data: st.DataObject) -> None:
    content = bytearray(encode_pin(Pin(saved)))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((CorruptionError, FormatError)):
        decode_pin(bytes(content))


@given(cursors(), st.data())
def test_every_other_length_is_an_error(saved: Cursor, data: st.DataObject) -> None:
    content = encode_pin(Pin(saved))
    with pytest.raises(CorruptionError):
        decode_pin(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(CorruptionError):
        decode_pin(content + data.draw(st.binary(min_size=1, max_size=9)))


@given(st.binary(max_size=200))
def test_wrong_body_with_a_right_checksum_is_refused(body: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_pin(framed(body))


def test_newer_version_says_so() -> None:
    with pytest.raises(FormatError, match="version 5"):
        decode_pin(framed(b"", version=5))


@given(cursors())
def test_version_of_pin_follows_its_kind(saved: Cursor) -> None:
    """Versions of the product that save no cursor of a pattern refuse its pin, and use those of names as before."""
    assert struct.unpack_from("<8sI", encode_pin(Pin(saved))) == (b"WALCURSR", 4 if saved.key.pattern else 3)


@pytest.mark.parametrize("named", [{"vchannels": []}, {"vchannels": [("b", 1), ("a", 1)]}, {"vchannels": [("a", 1)], "pattern": "a*"}])
def test_pin_of_names_or_of_a_pattern(named: dict[str, object]) -> None:
    body = msgspec.msgpack.decode(encode_pin(Pin(cursor()))[24:]) | named
    with pytest.raises(CorruptionError, match="names the vchannels"):
        decode_pin(framed(msgspec.msgpack.encode(body), version=4))


def framed(body: bytes, *, version: int = 1) -> bytes:
    head = struct.pack("<8sII", b"WALCURSR", version, len(body))
    return head + struct.pack("<II", google_crc32c.value(head + body), 0) + body


def test_encoded_cursor_is_small() -> None:
    assert len(encode_pin(Pin(cursor()))) < 300


@given(names, st.lists(names, min_size=1, max_size=5))
def test_any_name_is_a_file_name(name: str, vchannels: list[str]) -> None:
    key = CursorKey.of(name, vchannels)
    file = name_of(key, 2**63)
    assert len(file.encode()) < 160
    assert file.isascii()
    assert set(file) & set("/\0 ") == set()
    assert not file.startswith(".")
    assert stem_of(key) == stem_of(CursorKey.of(name, reversed(vchannels))), "a set has no order"
    assert file.startswith(stem_of(key))
    assert file.startswith(prefix_of(name))
    assert name_of(key, 2**63) != file, "no two pins have one name"


@given(st.lists(st.tuples(names, st.lists(names, min_size=1, max_size=3)), max_size=20))
def test_different_cursors_have_different_files(given: list[tuple[str, list[str]]]) -> None:
    keys = {CursorKey.of(name, vchannels) for name, vchannels in given}
    assert len({stem_of(key) for key in keys}) == len(keys)
    for key in keys:
        assert {stem_of(other) for other in keys if other.name == key.name} == {
            stem_of(other) for other in keys if stem_of(other).startswith(prefix_of(key.name))
        }


def test_set_is_not_its_names_joined() -> None:
    assert stem_of(CursorKey.of("a", ["b", "c"])) != stem_of(CursorKey.of("a", ["bc"]))


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
