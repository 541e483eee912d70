"""The checksum of a record: a store keeps the value after the CRC32C of its key and itself. Pure.

    "crc32c:" | crc32c of key, NUL and value, 8 hexadecimal digits | " " | value

Two records of a cluster are kept bare, see `PLAIN`. So a damaged value is detected when it is loaded, and a damaged key when its record is.
Earlier versions kept the bare value. No record of theirs looks like a checksum, in whole or in part: a record with the beginning or the end
of a checksum was kept with it, and is damaged if it does not match.
"""

from __future__ import annotations

import re
from typing import Final

import google_crc32c

from wal.errors import CorruptionError

PLAIN: Final = ("cluster/log", "leader-mark")
"""Keys whose values are kept bare in etcd. Earlier versions read the first one to find that they must not join, and it has a checksum of
its own (`wal.channels.cluster`); the second one has no value.
"""
_HEAD: Final = b"crc32c:"
_NUL: Final = b"\0"  # in no key
_VALUE_AT: Final = len(_HEAD) + 9
_REST_OF_HEAD: Final = re.compile(rb".{7}[0-9a-f]{8} ", re.DOTALL)


def sealed(key: str, value: str) -> str:
    """Returns the stored form of this value of this key (the key as the store has it)."""
    return f"crc32c:{_checksum(key.encode(), value.encode())} {value}"


def unsealed(key: bytes, stored: bytes, where: str, *, bare: bool = False) -> str:
    """Returns the value of a record, checked. `where` names the store. `bare` also takes a record of a version without checksums.

    Raises CorruptionError, which names the key and the remedy.
    """
    if stored.startswith(_HEAD) and _checksum(key, stored[_VALUE_AT:]).encode() + b" " == stored[len(_HEAD) : _VALUE_AT]:
        stored = stored[_VALUE_AT:]
    elif not bare or is_sealed(stored):
        raise damaged(key, "its key and value do not match their CRC32C", where)
    return text(key, stored, where)


def is_sealed(stored: bytes) -> bool:
    """Returns whether a record was kept with a checksum, even if a part of that is damaged."""
    return stored.startswith(_HEAD) or _REST_OF_HEAD.match(stored) is not None


def text(key: bytes, data: bytes, where: str) -> str:
    """Returns text from a store; raises CorruptionError for bytes that no KV has written."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise damaged(key, f"{data[:100]!r} is not UTF-8", where) from None


def damaged(key: bytes, why: str, where: str) -> CorruptionError:
    """Returns the error for a record that no KV has written as it is."""
    key_text = key[:200].decode(errors="replace")
    return CorruptionError(
        f"the metadata in {where} are damaged: the record {key_text!r}: {why}; restore them from a backup, or name another place for them "
        "if another program writes there",
        path=where,
        expected="a record with its checksum",
    )


def _checksum(key: bytes, value: bytes) -> str:
    return f"{google_crc32c.value(key + _NUL + value):08x}"
