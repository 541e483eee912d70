"""The keys in RocksDB: Milvus' names, with numbers of fixed width. No key of a channel is a prefix of another channel's key. And
TurnWrites.

    data/<channel>/<id: 8 bytes, big-endian>          the id before it (8 bytes, -1: none), then the payload
    meta/channel/<channel>/begin_id                   the first existing id               (8 bytes, as all numbers)
    meta/channel/<channel>/end_id                     the id after the last allocated one
    meta/channel/<channel>/page                       the open page: first id (0: empty), bytes; last id dropped (0: none)
    meta/page/<channel>/<last id: 8 bytes>            a full page: first id, bytes, when it was filled (µs since 1970)
    meta/group/<channel>/<group>/current_id           the last id consumed; -1: none
    meta/format, meta/next_id                         FORMAT; the next id to allocate

Names are percent-encoded, so that no name contains "/" and the prefix of `a` excludes the keys of `a/b` and `a1`. Pure.
"""

from __future__ import annotations

import struct
from typing import Final
from urllib.parse import quote, unquote

from wal.errors import InvalidArgumentError

FORMAT: Final = b"rocksmq 1"
FORMAT_KEY: Final = b"meta/format"
NEXT_ID_KEY: Final = b"meta/next_id"
META: Final = b"meta/"
ID_BYTES: Final = 8
ID_MAX: Final = (1 << 63) - 1
NOTHING: Final = -1
"""Milvus' current_id of a group that has consumed nothing."""
NAME_BYTES_MAX: Final = 255
"""The maximum length of a channel's or group's name in UTF-8, as for the WAL's vchannels."""

_NUMBER: Final = struct.Struct(">q")
_KEY_NUMBER: Final = struct.Struct(">Q")


def check_name(what: str, name: object) -> str:
    """Returns the name if it is valid: a non-empty str of at most NAME_BYTES_MAX bytes in UTF-8."""
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str, not {name!r}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{what} {name!r} holds lone surrogates: use text that is valid UTF-8") from None
    if not 0 < size <= NAME_BYTES_MAX:
        raise InvalidArgumentError(f"{what} {name!r} has {size} bytes in UTF-8: 1 to {NAME_BYTES_MAX} are accepted")
    return name


def number(value: int) -> bytes:
    """Returns the bytes of a stored number."""
    return _NUMBER.pack(value)


def numbers(data: bytes) -> tuple[int, ...]:
    """Returns the stored numbers, which follow one another; raises ValueError for anything else."""
    if len(data) % _NUMBER.size:
        raise ValueError(f"{len(data)} bytes are not a series of numbers of {_NUMBER.size} bytes")
    return tuple(value for (value,) in _NUMBER.iter_unpack(data))


def data_prefix(channel: str) -> bytes:
    """Returns the beginning of the keys of all records of the channel."""
    return b"data/%s/" % _encoded(channel)


def record_key(prefix: bytes, message_id: int) -> bytes:
    return prefix + _KEY_NUMBER.pack(message_id)


def begin_id_key(channel: str) -> bytes:
    return b"meta/channel/%s/begin_id" % _encoded(channel)


def end_id_key(channel: str) -> bytes:
    return b"meta/channel/%s/end_id" % _encoded(channel)


def open_page_key(channel: str) -> bytes:
    return b"meta/channel/%s/page" % _encoded(channel)


def page_prefix(channel: str) -> bytes:
    return b"meta/page/%s/" % _encoded(channel)


def page_key(channel: str, last_id: int) -> bytes:
    return page_prefix(channel) + _KEY_NUMBER.pack(last_id)


def group_prefix(channel: str) -> bytes:
    return b"meta/group/%s/" % _encoded(channel)


def current_id_key(group: str, channel: str) -> bytes:
    return group_prefix(channel) + b"%s/current_id" % _encoded(group)


def prefix_end(prefix: bytes) -> bytes:
    """Returns the first key after all keys that begin with `prefix`, which ends with a slash."""
    return prefix[:-1] + b"0"  # the character after "/"


def parse_meta(key: bytes) -> tuple[str, ...]:
    """Returns ("channel", name, what), ("page", name, last id), ("group", name, group), ("format",) or ("next_id",). Raises ValueError for
    any other key.
    """
    if key in (FORMAT_KEY, NEXT_ID_KEY):
        return (key[len(META) :].decode(),)
    kind, _, rest = key[len(META) :].partition(b"/")
    name, _, what = rest.partition(b"/")
    if kind == b"page" and len(what) == ID_BYTES:
        return ("page", _decoded(name), str(_KEY_NUMBER.unpack(what)[0]))
    if kind == b"channel" and what in (b"begin_id", b"end_id", b"page"):
        return ("channel", _decoded(name), what.decode())
    group, _, last = what.partition(b"/")
    if kind == b"group" and last == b"current_id":
        return ("group", _decoded(name), _decoded(group))
    raise ValueError(f"{key!r} is not a key of a RocksMQ")


class TurnWrites:
    """The changes that one turn writes: puts, deletions and deletions of ranges. The store turns them into one write batch.

    These are plain lists, because a failed write uses up a write batch of RocksDB, and the next try must build it again. Deletions of
    ranges come before puts, so that keys that a turn removes and recreates exist afterwards.
    """

    __slots__ = ("deletions", "puts", "ranges")

    def __init__(self) -> None:
        self.puts: dict[bytes, bytes] = {}
        self.deletions: set[bytes] = set()
        self.ranges: list[tuple[bytes, bytes]] = []

    def __bool__(self) -> bool:
        return bool(self.puts or self.deletions or self.ranges)

    def put(self, key: bytes, value: bytes) -> None:
        self.puts[key] = value
        if self.deletions:
            self.deletions.discard(key)

    def delete(self, key: bytes) -> None:
        self.puts.pop(key, None)
        self.deletions.add(key)

    def delete_range(self, begin: bytes, end: bytes) -> None:
        """Removes the keys in [begin, end), including keys of earlier puts."""
        for key in [key for key in self.puts if begin <= key < end]:
            del self.puts[key]
        self.ranges.append((begin, end))

    def delete_prefix(self, prefix: bytes) -> None:
        self.delete_range(prefix, prefix_end(prefix))


def _encoded(name: str) -> bytes:
    return quote(name, safe="").encode("ascii")


def _decoded(name: bytes) -> str:
    return unquote(name.decode("ascii"), errors="strict")
