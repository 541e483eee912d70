"""Tombstones: the broadcasts that are over, so that a late abort is answered and a recovered log is not misread. Pure.

Owns: for each, whether a log may still list its copies. Promises: one that a log may list is never let go; of the others at most
`count_max` are kept, and none longer than `age_max_ms`, the oldest going first. Never touches the KV: `collect` says whose done mark
may go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Final

import msgspec

from broadcaster.state import BroadcastState

__all__ = ["AGE_MAX_MS", "COUNT_MAX", "Tombstone", "Tombstones"]

COUNT_MAX: Final = 8_192
AGE_MAX_MS: Final = 24 * 3_600_000


class Tombstone(msgspec.Struct, gc=False):
    """How a broadcast ended, when, and whether a done mark in the KV says so."""

    state: BroadcastState
    at_ms: int
    saved: bool


class Tombstones:
    """The broadcasts that are over, by id."""

    def __init__(self, *, count_max: int = COUNT_MAX, age_max_ms: int = AGE_MAX_MS) -> None:
        self._count_max = count_max
        self._age_max_ms = age_max_ms
        self._listed: dict[int, set[str]] = {}
        self._kept: dict[int, Tombstone] = {}
        self._free: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def listed(self) -> int:
        """How many may still be listed by a log."""
        return len(self._listed)

    def add(self, broadcast_id: int, tombstone: Tombstone, pchannels: Collection[str]) -> None:
        """A broadcast is over; the logs of these pchannels may list it until `forgotten` says otherwise."""
        self._kept[broadcast_id] = tombstone
        if pchannels:
            self._listed[broadcast_id] = set(pchannels)
        else:
            self._free[broadcast_id] = None

    def forgotten(self, pchannel: str, broadcast_ids: Collection[int]) -> None:
        """No recovery of this pchannel finds them any more; unknown ones are fine."""
        for broadcast_id in broadcast_ids:
            pchannels = self._listed.get(broadcast_id)
            if pchannels is not None:
                pchannels.discard(pchannel)
                if not pchannels:
                    del self._listed[broadcast_id]
                    self._free[broadcast_id] = None

    def get(self, broadcast_id: int) -> Tombstone | None:
        return self._kept.get(broadcast_id)

    def collect(self, now_ms: int) -> list[int]:
        """Lets go of what is over the bounds; returns those whose done mark is to be removed."""
        removed = []
        while self._free:
            broadcast_id = next(iter(self._free))
            tombstone = self._kept[broadcast_id]
            if len(self._free) <= self._count_max and now_ms - tombstone.at_ms <= self._age_max_ms:
                break
            del self._free[broadcast_id], self._kept[broadcast_id]
            if tombstone.saved:
                removed.append(broadcast_id)
        return removed
