"""The bytes of a cursor's file, and its name. Pure.

    <shown>-<name hash>-<set hash>.cursor     magic "WALCURSR" | version u32 | length u32 | crc32c u32 | zero u32 | body of `length` bytes

The checksum is over the first 16 bytes and the body. The body is a MessagePack map of the fields below. `shown` is as much of the cursor's
name as a file name can hold, for a person who lists the directory. The hashes identify the cursor: BLAKE2b, 10 bytes, of the name, and of
the sorted vchannels. So a cursor's name may have any characters and length, all cursors of one name are found without opening them, and a
file with damaged content can still be identified.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections.abc import Iterable
from typing import Final

import google_crc32c
import msgspec

from wal.cursors.cursor import Cursor, CursorKey, check_cursor
from wal.errors import CorruptionError, FormatError
from wal.message import Natural, PackedPosition, packed, unpacked

__all__ = ["CURSOR_SUFFIX", "decode_cursor", "encode_cursor", "file_name", "file_prefix"]

CURSOR_SUFFIX: Final = ".cursor"
_SHOWN_MAX: Final = 60


def encode_cursor(cursor: Cursor) -> bytes:
    """Returns the bytes of the whole file."""
    body = _encoder.encode(
        _Body(
            cursor.key.name,
            list(zip(cursor.key.vchannels, cursor.incarnations, strict=True)),
            cursor.pchannel,
            cursor.incarnation,
            cursor.form,
            (packed(cursor.start[0]), cursor.start[1]),
            None if cursor.event is None else (packed(cursor.event[0]), cursor.event[1]),
            cursor.time_tick,
            cursor.saved_at,
            cursor.stale,
        )
    )
    head = _HEAD.pack(_MAGIC, _VERSION, len(body))
    return head + _TAIL.pack(google_crc32c.extend(google_crc32c.value(head), body), 0) + body


def decode_cursor(data: bytes) -> Cursor:
    """Returns the cursor in these bytes. Raises CorruptionError (without path) for damage, and FormatError for a newer version."""
    if len(data) < _HEAD.size + _TAIL.size:
        raise CorruptionError(f"a cursor of {len(data)} bytes is cut short", expected="a header")
    magic, version, length = _HEAD.unpack_from(data)
    crc, zero = _TAIL.unpack_from(data, _HEAD.size)
    body = data[_HEAD.size + _TAIL.size :]
    if magic != _MAGIC:
        raise CorruptionError(f"no cursor: it starts with {magic!r}", expected=repr(_MAGIC))
    if len(body) != length or zero:
        raise CorruptionError(f"a cursor's body has {len(body)} bytes", expected=f"{length} bytes")
    if (found := google_crc32c.extend(google_crc32c.value(data[: _HEAD.size]), body)) != crc:
        raise CorruptionError(f"a cursor has CRC32C {found:#010x}", expected=f"{crc:#010x}")
    if version != _VERSION:
        raise FormatError(f"cursor version {version} is not known here (known: {_VERSION}): upgrade to use it")
    try:
        fields = _decoder.decode(body)
        names = [check_cursor(fields.name), *(name for name, _ in fields.vchannels)]
        for text in names:
            text.encode()
        start = (unpacked(fields.start[0]), fields.start[1])
        event = None if fields.event is None else (unpacked(fields.event[0]), fields.event[1])
        if not math.isfinite(fields.saved_at):
            raise ValueError(f"it was saved at {fields.saved_at}")
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise CorruptionError(f"a cursor cannot be read: {error}", expected="the fields of a cursor") from error
    vchannels = tuple(name for name, _ in fields.vchannels)
    if not vchannels or list(vchannels) != sorted(set(vchannels)):
        raise CorruptionError(f"a cursor names the vchannels {vchannels!r}", expected="sorted names, each once")
    return Cursor(
        CursorKey(fields.name, vchannels),
        tuple(incarnation for _, incarnation in fields.vchannels),
        fields.pchannel,
        fields.incarnation,
        start,
        event,
        fields.time_tick,
        fields.saved_at,
        fields.form,
        fields.stale,
    )


def file_name(key: CursorKey) -> str:
    """Returns the name of the file of this cursor."""
    return f"{file_prefix(key.name)}{_hash(key.vchannels)}{CURSOR_SUFFIX}"


def file_prefix(name: str) -> str:
    """Returns the beginning of the file names of all cursors of this name, and of no others."""
    shown = _UNSAFE.sub("_", name)[:_SHOWN_MAX]
    return f"{shown}-{_hash((name,))}-"


class _Body(msgspec.Struct, frozen=True):
    name: str
    vchannels: list[tuple[str, Natural | None]]
    pchannel: str
    incarnation: Natural
    form: Natural
    start: tuple[PackedPosition, Natural]
    event: tuple[PackedPosition, Natural] | None
    time_tick: Natural
    saved_at: float
    stale: str


def _hash(texts: Iterable[str]) -> str:
    digest = hashlib.blake2b(digest_size=10)
    for text in texts:
        data = text.encode()
        digest.update(len(data).to_bytes(4, "little") + data)
    return digest.hexdigest()


_MAGIC: Final = b"WALCURSR"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<8sII")
_TAIL: Final = struct.Struct("<II")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9]")
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Body)
