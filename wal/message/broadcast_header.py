"""BroadcastHeader, which all copies of a broadcast share, and ResourceKey."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from wal.errors import CorruptionError, InvalidArgumentError


class _Name(msgspec.Struct, frozen=True, gc=False, array_like=True, order=True):
    domain: str
    key: str


class ResourceKey(_Name, frozen=True, gc=False, array_like=True, order=True, kw_only=True):
    """A name that a broadcast holds until all its vchannels have acknowledged it: exclusively, or `shared` with other shared holders."""

    shared: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.domain, str) or not isinstance(self.key, str):
            raise TypeError(f"ResourceKey(domain, key) takes two str, not {self.domain!r} and {self.key!r}")
        if not isinstance(self.shared, bool):
            raise TypeError(f"ResourceKey(…, shared=) takes a bool, not {self.shared!r}")
        if not self.domain or not self.key:
            raise InvalidArgumentError(f"ResourceKey({self.domain!r}, {self.key!r}): domain and key must not be empty")
        try:
            self.domain.encode(), self.key.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(
                f"ResourceKey({self.domain!r}, {self.key!r}) cannot be encoded as UTF-8: name it without lone surrogates"
            ) from error


class BroadcastHeader(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The header that all copies of a broadcast share: its id, all its vchannels, its keys, and whether each copy must be acknowledged."""

    broadcast_id: int
    vchannels: tuple[str, ...]
    resource_keys: tuple[ResourceKey, ...] = ()
    needs_ack: bool = True

    def to_bytes(self, copies: Sequence[str] = ()) -> bytes:
        """Returns the stored form: a MessagePack array in the order of the fields.

        The names of `copies`, vchannels of the broadcast in its order, are in the frame already and are left out. Then a bitmap
        (little-endian, the first vchannel lowest) has a bit for the position of each other name; its highest bit is the one after the last
        vchannel.
        """
        if not copies:
            return _encoder.encode(self)
        others: list[str] = []
        bitmap = b""
        if len(copies) != len(self.vchannels):
            left_out = set(copies)
            at = [number for number, name in enumerate(self.vchannels) if name not in left_out]
            others = [self.vchannels[number] for number in at]
            bitmap = _bitmap([*at, len(self.vchannels)])
        return _encoder.encode([self.broadcast_id, others, self.resource_keys, self.needs_ack, bitmap])

    @classmethod
    def from_bytes(cls, stored: bytes, copies: Sequence[str] = ()) -> BroadcastHeader:
        """Returns the header that `to_bytes` encoded with these copies left out; raises CorruptionError for any other bytes."""
        try:
            header = _decoder.decode(stored)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptionError(f"a broadcast header cannot be decoded: {error}", expected="BroadcastHeader") from error
        vchannels = header.vchannels
        if header.bitmap:
            vchannels = _woven(vchannels, copies, int.from_bytes(header.bitmap, "little"))
        elif not vchannels:
            vchannels = tuple(copies)
        return cls(header.broadcast_id, vchannels, header.resource_keys, header.needs_ack)


class _StoredHeader(msgspec.Struct, frozen=True, gc=False, array_like=True):
    broadcast_id: int
    vchannels: tuple[str, ...]
    resource_keys: tuple[ResourceKey, ...] = ()
    needs_ack: bool = True
    bitmap: bytes = b""


def _bitmap(at: Sequence[int]) -> bytes:
    bits = bytearray(at[-1] // 8 + 1)
    for number in at:
        bits[number >> 3] |= 1 << (number & 7)
    return bytes(bits)


def _woven(others: tuple[str, ...], copies: Sequence[str], bitmap: int) -> tuple[str, ...]:
    """Returns all names in their order: the next of `others` where the bitmap has a bit, else the next of `copies`."""
    total = len(others) + len(copies)
    if bitmap.bit_length() - 1 != total or bitmap.bit_count() - 1 != len(others):
        raise CorruptionError(
            f"a broadcast header names {len(others)} vchannels beside {len(copies)} copies",
            expected=f"{bitmap.bit_count() - 1} of {bitmap.bit_length() - 1} vchannels",
        )
    rest, copied = iter(others), iter(copies)
    return tuple([next(rest) if bitmap >> number & 1 else next(copied) for number in range(total)])


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_StoredHeader)
