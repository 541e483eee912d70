"""Tables: the tables of a frame as bytes, and the blocks that its body is cut into."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from wal.frame.layout import BLOCK_BYTES_MIN

__all__ = ["Tables", "cut_blocks"]


class Tables(msgspec.Struct, gc=False):
    """The tables of a frame as bytes, its blocks, and the fields of the header that depend on them."""

    packed: bytes
    blocks: list[bytes]
    incompatible: int
    runs: int
    records: int
    body_len: int
    names_len: int
    vchannels: tuple[tuple[str, int], ...]
    pchannel_wide: bool


def cut_blocks(parts: list[bytes], ends: list[int]) -> tuple[list[bytes], list[int]]:
    """Joins whole parts into blocks of at least BLOCK_BYTES_MIN; returns them with their ends. Part i is bytes [ends[i], ends[i + 1])."""
    total = ends[-1]
    if total <= BLOCK_BYTES_MIN:
        return ([b"".join(parts)], [total]) if total else ([], [])
    blocks: list[bytes] = []
    block_ends: list[int] = []
    at = start = 0
    while start < total:
        last = min(bisect_left(ends, start + BLOCK_BYTES_MIN, at + 1), len(parts))
        blocks.append(parts[at] if last == at + 1 else b"".join(parts[at:last]))
        start = ends[last]
        block_ends.append(start)
        at = last
    return blocks, block_ends
