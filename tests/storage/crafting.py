"""Crafted files: each field of a layout is set to its largest and smallest value and to values next to them, with valid CRCs.

A CRC detects accidents. It proves nothing about a file that a broken tool or an attacker has written.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import google_crc32c

Field = tuple[int, str]
"""The offset of a field, and its format (of `struct`)."""


def fields_of(layout: str, start: int = 0) -> list[Field]:
    """Returns the fields of a packed little-endian layout such as "4sIQQ", without its strings of bytes."""
    fields, at, count = [], start, ""
    for form in layout:
        if form.isdigit():
            count += form
            continue
        if form not in "sx":
            fields.append((at, form))
        at += struct.calcsize(f"<{count}{form}")
        count = ""
    return fields


def sealed(data: bytes | bytearray, crc_at: int | None = None) -> bytes:
    """Returns the bytes with the CRC32C of everything before it at `crc_at`, or in place of the last four bytes."""
    at = len(data) - 4 if crc_at is None else crc_at
    return bytes(data[:at]) + struct.pack("<I", google_crc32c.value(bytes(data[:at]))) + bytes(data[at + 4 :])


def crafted(data: bytes, fields: Sequence[Field], crc_at: int | None = None) -> Iterator[tuple[str, bytes]]:
    """Yields copies with one field at one of its bounds: a description, and the bytes."""
    for at, form in fields:
        bits = 8 * struct.calcsize(form)
        (value,) = struct.unpack_from(f"<{form.upper()}", data, at)
        for other in {0, 1, value + 1, value - 1, value * 2, 1 << bits - 1, (1 << bits) - 1, (1 << bits - 1) - 1, 512}:
            if other == value or not 0 <= other < 1 << bits:
                continue
            changed = bytearray(data)
            struct.pack_into(f"<{form.upper()}", changed, at, other)
            yield f"{form} at {at}: {value} -> {other}", sealed(changed, crc_at)
