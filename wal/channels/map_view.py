"""VChannelMaps: what the maps of a journal's pchannels say to a process that only reads.

Owns: which vchannels there are as far as is known here, put together from the map of each pchannel; a map is read again only when it
has changed. It blocks and needs no event loop. What it has not heard of yet is no error: such a vchannel counts as empty.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from wal.channels.directory import VChannelInfo
from wal.channels.map_keeper import MapPlace
from wal.channels.vchannel_map import MapMark, VChannelMap, read_changed_map
from wal.errors import StorageError

__all__ = ["VChannelMaps", "VChannelView"]


class VChannelView(msgspec.Struct, frozen=True):
    """One state of what is known. `records`: the vchannels by name; `maps`: the map of each pchannel that has one."""

    records: Mapping[str, VChannelInfo]
    maps: Mapping[str, VChannelMap]

    def floor(self, pchannel: str) -> int:
        """A vchannel of this pchannel that is not known here has at least this incarnation."""
        known = self.maps.get(pchannel)
        return 0 if known is None else known.next_incarnation

    def is_over(self, pchannel: str, name: str, incarnation: int) -> bool:
        """Whether this life of a vchannel on this pchannel is known to have ended."""
        known = self.maps.get(pchannel)
        return known is not None and known.records.get(name) != incarnation and incarnation < known.next_incarnation


class VChannelMaps:
    """`view` is what the last `look` found. One thread at a time."""

    def __init__(self) -> None:
        self.view: VChannelView = VChannelView({}, {})
        self._seen: dict[str, MapMark] = {}

    def look(self, places: Mapping[str, MapPlace]) -> VChannelView:
        """Reads the maps that have changed since. CorruptionError when one is damaged, StorageError when it cannot be read."""
        maps = dict(self.view.maps)
        seen = dict(self._seen)
        for pchannel, place in places.items():
            try:
                changed = read_changed_map(place.folder, seen.get(pchannel))
            except OSError as error:
                raise StorageError(
                    f"{error.filename or place.folder} cannot be read: {error.strerror or error}"
                ) from error
            if changed is None:
                continue  # or there is none: the log was made by a version that wrote none, or is just being made
            seen[pchannel], found = changed
            if found.incarnation == place.incarnation:
                maps[pchannel] = found
        if seen != self._seen:
            self._seen = seen
            self.view = VChannelView(_records(maps), maps)
        return self.view


def _records(maps: Mapping[str, VChannelMap]) -> dict[str, VChannelInfo]:
    """All vchannels; of a name that two maps hold, since one of them lags, the later life counts."""
    records: dict[str, VChannelInfo] = {}
    for pchannel, known in maps.items():
        for name, incarnation in known.records.items():
            other = records.get(name)
            if other is None or other.incarnation < incarnation:
                records[name] = VChannelInfo(name, pchannel, incarnation)
    return records
