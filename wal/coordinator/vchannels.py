"""LocalChannels: the channel service of a local log.

Owns which channels are being destroyed, and the order of that: they end in memory at once, so that a later append belongs to a new
vchannel; then all their records are removed in one operation of the metadata, before a vchannel that takes one of the names is saved; then
what is remembered of them, and the maps that readers in other processes use, and last their cursors. What a record means is in
`wal/channels/channels.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from actors import ActorError, InboxFullError
from wal.channels.channels import ChannelDescription, admit_channels, channels_named, describe_channels
from wal.channels.vchannels import OwnerDescription, VChannelInfo
from wal.errors import ChannelNotExistError, WALError
from wal.node.routes import VChannelRoutes, settle
from wal.read.cursors.service import CursorService
from wal.write.operations import Drop
from wal.write.pchannel import PChannel
from wal.write.vchannel import VChannel

__all__ = ["LocalChannels"]

_log: Final = logging.getLogger("wal")


class LocalChannels:
    """The channels among the vchannels of `vchannels`, on these pchannels. A channel exists as long as its record is saved."""

    def __init__(self, vchannels: VChannelRoutes, pchannels: Mapping[str, PChannel], cursors: CursorService) -> None:
        self._vchannels = vchannels
        self._pchannels = pchannels
        self._cursors = cursors
        self._ending: set[str] = set()
        """The names of the channels that calls of `destroy` are ending."""

    def describe(self, names: tuple[str, ...] | None) -> list[ChannelDescription]:
        """Returns these channels, or (None) all; see `ReadableEngine.describe_channels`."""
        return describe_channels(self._vchannels.directory.saved, names)

    async def create(self, owner: OwnerDescription, count: int) -> list[str]:
        """Creates channels durably, all or none; see `WritableEngine.create_channels`."""
        vchannels = self._vchannels
        vchannels.check_room(f"{count} channels", count)
        infos = tuple(admit_channels(vchannels.directory, owner, count, list(self._pchannels)))
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        vchannels.start(infos, saved)
        await asyncio.shield(saved)
        return [info.name for info in infos]

    async def drop_vchannel(self, name: str) -> None:
        """Drops a vchannel, which may be a channel, and its cursors; see `WritableEngine.drop_vchannel`."""
        info = await self._vchannels.drop(name)
        if info is not None:
            await self._delete_cursors(info)

    async def destroy(self, names: tuple[str, ...]) -> None:
        """Destroys channels durably, all or none, and their cursors; see `WritableEngine.destroy_channels`."""
        vchannels = self._vchannels
        for name in names:
            if name in self._ending:
                raise ChannelNotExistError(f"channel {name!r} is being destroyed by another call: leave it out")
        records, maps = vchannels.directory.saved, vchannels.maps
        untold = {name for name in names if name not in records and maps is not None and maps.is_overdue(name)}
        infos = tuple(channels_named(records, [name for name in names if name not in untold]))
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if infos:
            self._end(infos, partial(self._tell_readers, names, saved))
        else:
            # An earlier call destroyed them, but could not tell readers in other processes.
            self._tell_readers(names, saved, None)
        if names:
            await asyncio.shield(saved)
        for info in infos:
            await self._delete_cursors(info)

    async def _delete_cursors(self, info: VChannelInfo) -> None:
        """Deletes the cursors of a vchannel that was dropped (best effort)."""
        try:
            await self._cursors.drop(info.name, info.incarnation)
        except WALError as error:  # they are useless now, and are deleted at the next opportunity
            _log.warning(
                "the cursors of vchannel %r, which was dropped, could not be deleted yet: %s", info.name, error
            )

    def _tell_readers(self, names: tuple[str, ...], saved: asyncio.Future[None], error: WALError | None) -> None:
        """Settles `saved` when readers in other processes know that these channels have ended, or at once with the error."""
        if error is None and names:
            self._vchannels.when_shown(names[0], partial(settle, saved), wanted=True)
        else:
            settle(saved, error)

    def _end(self, infos: tuple[VChannelInfo, ...], then: Callable[[WALError | None], None]) -> None:
        """Ends these vchannels and removes their records; calls `then` when both is done, or has failed.

        A channel whose record an earlier call could not remove has ended in memory already.
        """
        vchannels = self._vchannels
        actors = [vchannels.route(info.name) for info in infos if vchannels.records.get(info.name) == info]
        for actor in actors:
            if actor.closed is not None:
                raise actor.closed()
        names = {info.name for info in infos}
        unfinished, failure = len(actors) + 1, None

        def finished(error: WALError | None = None) -> None:
            nonlocal unfinished, failure
            unfinished, failure = unfinished - 1, failure or error
            if unfinished:
                return
            self._ending -= names
            if failure is None:
                for info in infos:
                    self._pchannels[info.pchannel].forget((info.name, info.incarnation))
                    vchannels.on_dropped(info.name)
            then(failure)

        self._ending |= names
        for actor in actors:
            del vchannels.routes[actor.channel]
            vchannels.directory.forget(vchannels.records[actor.channel])
            actor.pchannel.endings += 1
            _drop(actor, finished)
        vchannels.save(infos, remove=True, done=finished)


def _drop(actor: VChannel, then: Callable[[], None]) -> None:
    """Lets the actor of a vchannel finish what it was told before, and ends it; calls `then` when it has ended."""
    group = actor.pchannel.actor_group
    loop = asyncio.get_running_loop()
    dropped: asyncio.Future[None] = loop.create_future()

    def ended(_: asyncio.Future[None]) -> None:
        if dropped.exception() is None:
            assert actor.closed is not None
            actor.refuse(group.leave(actor), actor.closed())
        then()  # otherwise the pchannel has failed, and nothing is left to end

    def tell() -> None:
        try:
            group.tell(actor, Drop(dropped))
        except InboxFullError:
            loop.call_soon(tell)  # after the turn that makes room
        except ActorError:  # its pchannel failed or is being closed, which ends it
            then()

    dropped.add_done_callback(ended)
    tell()
