"""CopyRoutes: where the vchannels of broadcasts lie, remembered, since most broadcasts go to the same thousand of them.

Owns what was found for a tuple of names, for as long as it holds: no vchannel of these pchannels has ended since. It is bounded by the
names that it holds: with too many it forgets all of them. It finds nothing by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from wal.pchannel import CopyTargets, PChannel

__all__ = ["CopyRoutes"]

NAMES_MAX: Final = 65_536

Places = Mapping[str, tuple[str, ...]]


class _Found(msgspec.Struct, frozen=True):
    places: Places
    endings: tuple[tuple[PChannel, int], ...]


class CopyRoutes:
    """Of one log."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, ...], _Found] = {}
        self._targets: dict[tuple[str, tuple[str, ...]], CopyTargets] = {}
        self._names = 0

    def places(self, names: tuple[str, ...]) -> Places | None:
        """The pchannels of these vchannels and the names on each, if that is known and still holds."""
        found = self._places.get(names)
        if found is None:
            return None
        for pchannel, endings in found.endings:
            if pchannel.endings != endings:
                return None
        return found.places

    def targets(self, pchannel: PChannel, names: tuple[str, ...]) -> CopyTargets | None:
        """These vchannels of the pchannel, if they are known and all of them still take messages."""
        targets = self._targets.get((pchannel.channel, names))
        return targets if targets is not None and targets.endings == pchannel.endings else None

    def found(self, names: tuple[str, ...], places: Places, pchannels: Mapping[str, PChannel]) -> None:
        """All of these vchannels are there, and their records are saved."""
        endings = tuple((pchannels[name], pchannels[name].endings) for name in places)
        self._make_room(len(names))
        self._places[names] = _Found(places, endings)

    def aimed(self, pchannel: PChannel, names: tuple[str, ...], targets: CopyTargets) -> None:
        """All of these vchannels are there."""
        self._make_room(len(names))
        self._targets[pchannel.channel, names] = targets

    def _make_room(self, count: int) -> None:
        self._names += count
        if self._names > NAMES_MAX:
            self._names = count
            self._places.clear()
            self._targets.clear()
