"""Changes: what one turn writes, in order: puts, deletions, deletions of ranges. Pure; the store makes one write batch of it."""

from __future__ import annotations

from wal.rocksmq.keys import prefix_end

__all__ = ["Changes"]


class Changes:
    """Plain lists, because a write batch of RocksDB is used up by a write that fails and must be built again for the next try.

    Deletions of ranges come before puts, so that what a turn removes and makes anew is there afterwards.
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
        """Removes the keys in [begin, end), also those put before."""
        for key in [key for key in self.puts if begin <= key < end]:
            del self.puts[key]
        self.ranges.append((begin, end))

    def delete_prefix(self, prefix: bytes) -> None:
        self.delete_range(prefix, prefix_end(prefix))
