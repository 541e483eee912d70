"""Keys, prefixes and pages as etcd has them. Pure.

Owns: how a prefix becomes a range of bytes, and how many keys the next page of a range asks for. A prefix ends where its last byte plus
one begins; UTF-8 never uses the byte 255, so that there always is one.
"""

from __future__ import annotations

from typing import Final

from wal.errors import CorruptionError

__all__ = ["PAGE_BYTES", "PAGE_KEYS_MAX", "decoded", "page_limit", "range_of"]

PAGE_BYTES: Final = 1 << 20
"""What a page of a range is meant to hold: an answer that neither side has to hold back for long."""
PAGE_KEYS_MAX: Final = 8192
_FIRST_PAGE_KEYS: Final = 32
_EVERYTHING: Final = b"\0"


def range_of(prefix: str) -> tuple[bytes, bytes]:
    """The first key, and the first one behind, of the keys that start with `prefix`; `""`: of all keys."""
    if not prefix:
        return _EVERYTHING, _EVERYTHING
    encoded = prefix.encode()
    return encoded, encoded[:-1] + bytes((encoded[-1] + 1,))


def page_limit(keys: int, size: int) -> int:
    """How many keys the next page asks for, when the one before held `keys` keys of `size` bytes together."""
    if not keys:
        return _FIRST_PAGE_KEYS
    return max(1, min(PAGE_KEYS_MAX, 16 * keys, PAGE_BYTES * keys // max(1, size)))


def decoded(what: str, data: bytes) -> str:
    """Text out of the store. CorruptionError for bytes that no KV of this project has written."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CorruptionError(
            f"the {what} {data[:100]!r} is not UTF-8: another program writes under this root path; give each its own",
            expected="UTF-8",
        ) from error
