"""BroadcastHeader and ResourceKey: what a copy of a broadcast says about the whole of it."""

from __future__ import annotations

from typing import Final

import msgspec

from wal.errors import CorruptionError, InvalidArgumentError

__all__ = ["BroadcastHeader", "ResourceKey"]


class ResourceKey(msgspec.Struct, frozen=True, gc=False, array_like=True, order=True):
    """A name that a broadcast holds until it is acknowledged everywhere: exclusive, or `shared` with other shared holders."""

    domain: str
    key: str
    shared: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.domain, str) or not isinstance(self.key, str):
            raise TypeError(f"ResourceKey(domain, key) takes two str, not {self.domain!r} and {self.key!r}")
        if not self.domain or not self.key:
            raise InvalidArgumentError(f"ResourceKey({self.domain!r}, {self.key!r}): domain and key must not be empty")


class BroadcastHeader(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One header for all copies: the broadcast's id, every vchannel of it, its keys, and whether each must be acknowledged."""

    broadcast_id: int
    vchannels: tuple[str, ...]
    resource_keys: tuple[ResourceKey, ...] = ()
    needs_ack: bool = True

    def to_bytes(self) -> bytes:
        """The stored form: a MessagePack array in the order of the fields."""
        return _encoder.encode(self)

    @classmethod
    def from_bytes(cls, stored: bytes) -> BroadcastHeader:
        """The header that `to_bytes` gave; anything else is a CorruptionError."""
        try:
            return _decoder.decode(stored)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptionError(
                f"a broadcast header cannot be decoded: {error}", expected="BroadcastHeader"
            ) from error


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(BroadcastHeader)
