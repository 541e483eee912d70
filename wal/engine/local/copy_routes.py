"""CopyRoutes: the pchannels of the vchannels of broadcasts, and the actors that take their copies.

Owns a cache by tuple of names, since most broadcasts go to the same thousand vchannels. A route is valid until a vchannel of
these pchannels ends. The routes are bounded by their names: over the bound all are forgotten. Guarantees: all names are checked before a
vchannel is created, and created vchannels are durable before their pchannels are returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec

from wal.channels import check_vchannel
from wal.engine.local.vchannels import VChannelRoutes
from wal.errors import ChannelNotExistError, InvalidArgumentError, WALError
from wal.frame import CopyNames
from wal.pchannel import CopyTargets, PChannel, VChannel
from wal.settings import Settings

__all__ = ["CopyRoutes"]

NAMES_MAX: Final = 65_536

Places = Mapping[str, tuple[str, ...]]
"""Pchannels, and the names of the vchannels on each."""


class _Route(msgspec.Struct):
    """A cached route of `names`: their `places`, valid at these `endings`, and, if all are on one pchannel, their `targets` there."""

    names: tuple[str, ...]
    places: Places | None = None
    endings: tuple[tuple[PChannel, int], ...] = ()
    targets: CopyTargets | None = None


class CopyRoutes:
    """The routes of one log."""

    def __init__(self, vchannels: VChannelRoutes, pchannels: Mapping[str, PChannel], settings: Settings) -> None:
        self._vchannels = vchannels
        self._pchannels = pchannels
        self._settings = settings
        self._routes: dict[tuple[str, ...], _Route] = {}
        self._last = _Route(())
        self._names = 0

    def check(self, names: tuple[str, ...]) -> None:
        """Raises what an append to one of these vchannels would raise. Creates none of them."""
        if self._known(names) is None:
            self._check(names)

    def places_nowait(self, names: tuple[str, ...]) -> Places | None:
        """Returns the pchannels of these vchannels if all of them exist, are durable, and have an actor, else None."""
        there, known = self._vchannels, self._known(names)
        if known is None and not there.saving and all(map(there.routes.__contains__, names)):
            known = self._find(names)
            self._remember(names, known)
        return known

    async def places(self, names: tuple[str, ...]) -> Places:
        """Returns the pchannels of these vchannels, after creating those that are missing."""
        saving = self._vchannels.saving
        places = self._find(names)
        while saving and (created := [saving[name] for name in names if name in saving]):
            # A broadcast over several pchannels is recorded before its copies: a crash must not lose the vchannels that it names.
            await asyncio.gather(*map(asyncio.shield, created))
            places = self._find(names)  # a vchannel may have been dropped meanwhile, and recreated on another pchannel
        self._remember(names, places)
        return places

    def aim(self, actor: PChannel, names: tuple[str, ...]) -> tuple[CopyTargets | None, dict[int, WALError]]:
        """Returns the vchannels that are on this pchannel (None if there is none) and, by index, the errors of the others."""
        route = self._cached(names)
        known = None if route is None else route.targets
        if known is not None and known.endings == actor.endings and known.vchannels[0].pchannel is actor:
            return known, {}
        there, endings = self._vchannels, actor.endings
        targets: list[VChannel] = []
        missing: dict[int, WALError] = {}
        for at, name in enumerate(names):
            vchannel = there.routes.get(name)
            if vchannel is None and name in there.records:
                vchannel = there.route(name)
            if vchannel is None or vchannel.pchannel is not actor:
                missing[at] = _gone(name, actor.channel, vchannel)
            else:
                targets.append(vchannel)
        if not targets:
            return None, missing
        found = CopyTargets(tuple(targets), CopyNames([vchannel.run_name for vchannel in targets]), endings)
        if not missing:
            self._route(names).targets = found
        return found, missing

    def _cached(self, names: tuple[str, ...]) -> _Route | None:
        """Returns the route of these names, or None; the last one is recognized by identity, since hashing a thousand names is slow."""
        last = self._last
        if last.names is names:
            return last
        route = self._routes.get(names)
        if route is not None:
            route.names = names  # an equal tuple, but the one that the next calls bring
            self._last = route
        return route

    def _known(self, names: tuple[str, ...]) -> Places | None:
        route = self._cached(names)
        if route is None:
            return None
        for pchannel, endings in route.endings:
            if pchannel.endings != endings:
                return None
        return route.places

    def _remember(self, names: tuple[str, ...], places: Places) -> None:
        pchannels, route = self._pchannels, self._route(names)
        route.places = places
        route.endings = tuple((pchannels[name], pchannels[name].endings) for name in places)

    def _route(self, names: tuple[str, ...]) -> _Route:
        route = self._cached(names)
        if route is None:
            self._names += len(names)
            if self._names > NAMES_MAX:
                self._names = len(names)
                self._routes.clear()
            route = self._last = self._routes[names] = _Route(names)
        return route

    def _find(self, names: tuple[str, ...]) -> Places:
        """Returns the pchannels of these vchannels at this moment; creates missing vchannels, which are then being saved."""
        self._check(names)
        lists: dict[str, list[str]] = {}
        for name in names:
            vchannel = self._vchannels.routes.get(name) or self._vchannels.route(name)
            lists.setdefault(vchannel.pchannel.channel, []).append(name)
        return {pchannel: tuple(there) for pchannel, there in lists.items()}

    def _check(self, names: tuple[str, ...]) -> None:
        """Raises unless every vchannel exists or can be created."""
        routes, records, settings = self._vchannels.routes, self._vchannels.records, self._settings
        new = [check_vchannel(name) for name in names if name not in routes and name not in records]
        if new and not settings.create_vchannels:
            raise ChannelNotExistError(
                f"vchannel {new[0]!r} does not exist and create_vchannels is off: create it with create_vchannel({new[0]!r})"
            )
        if new and len(records) + len(new) > settings.vchannels_max:
            raise InvalidArgumentError(
                f"{len(new)} of the vchannels do not exist and would be more than vchannels_max={settings.vchannels_max} with the "
                f"{len(records)} that there are: drop some, or raise the setting"
            )


def _gone(name: str, pchannel: str, vchannel: VChannel | None) -> ChannelNotExistError:
    if vchannel is None:
        return ChannelNotExistError(f"vchannel {name!r} does not exist any more: it was dropped")
    return ChannelNotExistError(
        f"vchannel {name!r} was dropped on pchannel {pchannel} and created again on {vchannel.pchannel.channel}, where this broadcast "
        "does not look for it"
    )
