"""Positions in MessagePack, whose integers end at 64 bits: one of Pulsar takes more, and stands there as its 16 bytes, big-endian. Pure."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

__all__ = ["Natural", "PackedPosition", "packed", "unpacked"]

Natural = Annotated[int, msgspec.Meta(ge=0)]
"""A count, an index, a number of something: what is negative does not decode."""
PackedPosition = Natural | bytes
_INTEGERS: Final = 1 << 64
_BYTES: Final = 16


def packed(position: int) -> PackedPosition:
    """What stands for this position."""
    return position if position < _INTEGERS else position.to_bytes(_BYTES, "big")


def unpacked(value: PackedPosition) -> int:
    """The position for which this stands; ValueError or TypeError for what is none."""
    if isinstance(value, int):
        return value
    if len(value) != _BYTES:
        raise ValueError(f"a position of {len(value)} bytes")
    return int.from_bytes(value, "big")
