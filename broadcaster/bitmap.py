"""Bitmaps as ints: bit n stands for the vchannel n of a broadcast. Pure; column by column, since there may be thousands of bits."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["bits", "mask_of", "union"]


def bits(mask: int) -> list[int]:
    """The bits that are set, ascending."""
    return [at for at, bit in enumerate(reversed(f"{mask:b}")) if bit == "1"]


def mask_of(indices: Iterable[int]) -> int:
    """The bitmap with these bits."""
    found = list(indices)
    if not found:
        return 0
    stored = bytearray(max(found) // 8 + 1)
    for at in found:
        stored[at >> 3] |= 1 << (at & 7)
    return int.from_bytes(stored, "little")


def union(masks: Iterable[int]) -> int:
    """Every bit that is set in one of them."""
    found = 0
    for mask in masks:
        found |= mask
    return found
