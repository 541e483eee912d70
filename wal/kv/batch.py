"""Batch: what one call changes, all or nothing.

Owns: the form in which KVBase hands a checked change to a store. It promises that its keys are distinct, complete (root path
included) and valid, so a store checks nothing again. It never says how the change is made.
"""

from __future__ import annotations

import msgspec

__all__ = ["Batch"]


class Batch(msgspec.Struct, frozen=True):
    """One change: it happens whole, as one revision, or not at all.

    `compare` is a key and the value it must have (None: it must not exist); if it does not hold, nothing happens. Then come
    `saves` in their order, `removals` in theirs (a missing key is fine), and everything under `removed_prefix`, ascending. This
    is also the order of the events that a watch sees.
    """

    saves: dict[str, str] = {}
    removals: tuple[str, ...] = ()
    compare: tuple[str, str | None] | None = None
    removed_prefix: str | None = None

    @property
    def operations(self) -> int:
        """The number of operations, as a server that bounds a transaction counts them."""
        return len(self.saves) + len(self.removals) + (self.removed_prefix is not None)
