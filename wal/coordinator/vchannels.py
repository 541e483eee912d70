"""VChannels: the existing vchannels and channels. Only the coordinator assigns an incarnation to a name.

Owns the order in which a vchannel is created and ended: in memory at once, so that calls keep their order, then in the metadata, then in
the maps for readers in other processes. The actors of vchannels are on nodes; a `VChannelHost` is the interface to them. No frame is
written for a vchannel whose record is being saved, since a crash would lose the vchannel. A vchannel that ends first finishes its earlier
calls. A caller gets its answer when all of that is durable.

A channel is a vchannel with a generated name and an owner. Several are created or destroyed in one operation of the metadata, all or none.
`wal/channels/channels.py` defines the records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, Protocol

from actors import ActorError, ActorRef, ActorStoppedError
from wal.channels.channels import ChannelDescription, admit_channels, channels_named, describe_channels
from wal.channels.directory import RecordChange, VChannelDirectory, unsaved_records
from wal.channels.map_keeper import VChannelMapKeeper
from wal.channels.owners import OwnerDescription
from wal.channels.pchannels import check_choice
from wal.channels.vchannels import VChannelInfo, check_vchannel, not_created, place
from wal.errors import ChannelExistError, ChannelNotExistError, ClosedError, InvalidArgumentError, UnknownOutcomeError, WALError
from wal.runtime.tasks import retrieve
from wal.settings import Settings

_log: Final = logging.getLogger("wal")


class VChannelHost(Protocol):
    """The host of the vchannels' actors: the nodes, as the coordinator calls them."""

    def begin(self, infos: tuple[VChannelInfo, ...]) -> Callable[[WALError | None], None]:
        """Starts vchannels that were just admitted; writes nothing on their pchannels until the returned function is called.

        That is called with None once their records are durable and readers can find them, or with the error that prevented them. If one of
        their pchannels is unavailable, it raises and starts none.
        """

    def end(self, infos: tuple[VChannelInfo, ...], ended: Callable[[WALError | None], None]) -> None:
        """Has vchannels finish their earlier calls, and ends them; their names are invalid from now on.

        Calls `ended` when all have ended, perhaps at once: with None, or with the first error of a pchannel that has failed or is being
        closed, which ends its vchannels as well.
        """

    def forget(self, infos: tuple[VChannelInfo, ...]) -> None:
        """Forgets the keys and the last events of vchannels that have ended, and whose records are removed."""

    async def delete_cursors(self, info: VChannelInfo) -> None:
        """Deletes the cursors of a vchannel that was dropped."""


class VChannels:
    """The vchannels of a log. `host` is set before the first call; `pchannels` are those of the log, in their order."""

    host: VChannelHost

    def __init__(self, directory: VChannelDirectory, saver: ActorRef, pchannels: Mapping[str, object], settings: Settings) -> None:
        """`directory` has the records, and `saver` is its actor."""
        self.directory: VChannelDirectory = directory
        self.saving: dict[str, asyncio.Future[None]] = {}
        """The vchannels whose records are being saved, each with a future for the end of the save."""
        self.on_dropped: Callable[[str], object] = lambda name: None
        """Called with the name of each dropped vchannel, when its record is removed."""
        self.spreads: bool = False
        """Whether a new vchannel goes to the pchannel with the fewest, instead of the one that its name hashes to."""
        self.maps: VChannelMapKeeper | None = None
        """Keeps the maps for other processes; None if no other process can read the log."""
        self._saver = saver
        self.pchannels: Mapping[str, object] = pchannels
        """The pchannels of the log by name, in their order."""
        self._settings = settings
        self._ending: set[str] = set()
        """The names of the channels that calls of `destroy_channels` are ending."""

    # -- what there is

    @property
    def records(self) -> Mapping[str, VChannelInfo]:
        """The existing vchannels, by name; ones that are not durable yet are in `saving`."""
        return self.directory.records

    @property
    def next_incarnation(self) -> int:
        """The incarnation of the next vchannel. Invariant: it is above those of all existing ones."""
        return self.directory.next_incarnation

    def durable(self) -> Iterable[VChannelInfo]:
        """Returns the vchannels whose records are saved."""
        return self.directory.saved.values()

    def pchannel_of(self, name: str) -> str:
        """Returns the pchannel of this vchannel: the present one or, unless new ones are spread, the one where an append would create
        it.
        """
        info = self.directory.records.get(check_vchannel(name))
        return place(name, list(self.pchannels)) if info is None else info.pchannel

    async def create_on(self, name: str, pchannel: str) -> None:
        """Does nothing: an append creates the vchannel."""

    async def look_up(self, name: str) -> VChannelInfo | None:
        """Returns the durable vchannel of this name, or None if there is none."""
        while (saving := self.saving.get(name)) is not None:
            await asyncio.wait((saving,))
        return self.directory.saved.get(name)

    async def catch_up(self) -> None:
        """Does nothing: all saved records are known here first."""

    def describe_channels(self, names: tuple[str, ...] | None) -> list[ChannelDescription]:
        """Returns these channels, or (None) all; see `DescribeChannels`."""
        return describe_channels(self.directory.saved, names)

    # -- creating

    def check_room(self, what: str, count: int) -> None:
        """Raises InvalidArgumentError if `count` more vchannels, called `what` in the error, exceed `vchannels_max`."""
        there, most = len(self.directory.records), self._settings.vchannels_max
        if there + count > most:
            raise InvalidArgumentError(
                f"{what} would be {there + count - most} more than vchannels_max={most}: drop some, or raise the setting"
            )

    def check_new(self, names: Iterable[str]) -> None:
        """Raises the errors of `create_nowait` for the first of these vchannels that may not be created. It creates none."""
        missing = [name for name in names if check_vchannel(name) not in self.directory.records]
        if missing:
            self._check_allowed(missing[0])
            others = f" and {len(missing) - 1} others" if missing[1:] else ""
            self.check_room(f"vchannel {missing[0]!r}{others}", len(missing))

    def create_nowait(self, name: str) -> None:
        """Creates a vchannel that an append or a read names; it is durable when its future in `saving` is done.

        Raises ChannelNotExistError where the settings forbid that, InvalidArgumentError above `vchannels_max`.
        """
        self._check_allowed(name)
        self.check_room(f"vchannel {name!r}", 1)
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        saved.add_done_callback(retrieve)  # the callers of the vchannel get its failure; possibly no caller awaits this future
        self._start((self.directory.admit(name, self._place_new(name)),), saved)

    async def create(self, name: str, pchannel: str | None) -> VChannelInfo:
        """Creates a vchannel durably; see `CreateVChannel`."""
        check_vchannel(name)
        if name in self.directory.records:
            raise ChannelExistError(f"vchannel {name!r} exists already: append to it, or drop it first")
        check_choice(pchannel, self.pchannels)
        self.check_room(f"vchannel {name!r}", 1)
        info = self.directory.admit(name, pchannel or self._place_new(name))
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._start((info,), saved)
        await asyncio.shield(saved)
        return info

    async def create_channels(self, owner: OwnerDescription, count: int) -> list[str]:
        """Creates channels durably, all or none; see `CreateChannels`."""
        self.check_room(f"{count} channels", count)
        infos = tuple(admit_channels(self.directory, owner, count, self._place_new))
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._start(infos, saved)
        await asyncio.shield(saved)
        return [info.name for info in infos]

    def _place_new(self, name: str) -> str:
        """Returns the pchannel for a new vchannel. Among several with the fewest, it is the one of its hash, or the first."""
        hashed = place(name, list(self.pchannels))
        return self.directory.counts.fewest(self.pchannels, hashed) if self.spreads else hashed

    def _check_allowed(self, name: str) -> None:
        if not self._settings.create_vchannels:
            raise not_created(name)

    def _start(self, infos: tuple[VChannelInfo, ...], saved: asyncio.Future[None]) -> None:
        """Starts vchannels that were just admitted, and saves their records, all or none; settles `saved`."""
        try:
            began = self.host.begin(infos)
        except BaseException:
            for info in infos:  # otherwise they would seem to exist, and never be saved
                self.directory.forget(info)
            raise
        self.saving.update(dict.fromkeys((info.name for info in infos), saved))

        def recorded(error: WALError | None) -> None:
            if error is None:
                # No frame is written before readers can look for it on this pchannel and none of them can see a former incarnation. The
                # names of channels are returned to the caller, so readers elsewhere must have them by then.
                pchannels = list(self.pchannels)
                latest = any(info.owner or info.pchannel != place(info.name, pchannels) for info in infos)
                self._when_shown(infos[0].name, shown, latest=latest)
            else:
                if isinstance(error, UnknownOutcomeError):
                    self._save(infos, remove=True, done=lambda _: None)
                done(error)

        def shown(error: WALError | None) -> None:
            done(error)
            if error is not None:
                self._save(infos, remove=True, done=lambda _: None)

        def done(error: WALError | None) -> None:
            for info in infos:
                if self.saving.get(info.name) is saved:
                    del self.saving[info.name]
                if error is not None:
                    self.directory.forget(info)
            began(error)
            _settle(saved, error)

        self._save(infos, remove=False, done=recorded)

    # -- ending

    async def drop(self, name: str) -> None:
        """Drops a vchannel, which may be a channel, in the order of the calls, and its cursors; see `DropVChannel`."""
        info = self.directory.records.get(check_vchannel(name))
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if info is None:
            if self.maps is None or not self.maps.is_overdue(name):
                raise ChannelNotExistError(f"vchannel {name!r} does not exist: log.vchannels() lists the vchannels")
            # An earlier call dropped it, but could not notify readers in other processes.
            self._when_shown(name, partial(_settle, saved))
            await asyncio.shield(saved)
            return

        def removed(error: WALError | None) -> None:
            # Only now: while its record exists, an opening may recover the vchannel alive, and then needs its keys.
            if error is None:
                self.host.forget((info,))
                self.on_dropped(name)
                self._when_shown(name, partial(_settle, saved))
            else:
                failed(error)

        def ended(error: WALError | None) -> None:
            # A callback runs whether or not the caller still waits.
            if error is None:
                self._save((info,), remove=True, done=removed)
            else:
                failed(error)

        def failed(error: WALError) -> None:
            self.directory.restore(info)  # it exists: the caller may drop it again
            _settle(saved, error)

        self.host.end((info,), ended)
        if not saved.done():  # otherwise its pchannel accepts nothing any more, and the vchannel exists when the log is opened again
            self.directory.forget(info)
        await asyncio.shield(saved)
        await self._delete_cursors(info)

    async def destroy_channels(self, names: tuple[str, ...]) -> None:
        """Destroys channels durably, all or none, and their cursors; see `DestroyChannels`."""
        for name in names:
            if name in self._ending:
                raise ChannelNotExistError(f"channel {name!r} is being destroyed by another call: leave it out")
        records, maps = self.directory.saved, self.maps
        untold = {name for name in names if name not in records and maps is not None and maps.is_overdue(name)}
        infos = tuple(channels_named(records, [name for name in names if name not in untold]))
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if infos:
            self._end(infos, partial(self._tell_readers, names, saved))
        else:
            # An earlier call destroyed them, but could not notify readers in other processes.
            self._tell_readers(names, saved, None)
        if names:
            await asyncio.shield(saved)
        for info in infos:
            await self._delete_cursors(info)

    async def _delete_cursors(self, info: VChannelInfo) -> None:
        """Deletes the cursors of a vchannel that was dropped (best effort)."""
        try:
            await self.host.delete_cursors(info)
        except WALError as error:  # they are useless now, and are deleted at the next opportunity
            _log.warning("the cursors of vchannel %r, which was dropped, could not be deleted yet: %s", info.name, error)

    def _tell_readers(self, names: tuple[str, ...], saved: asyncio.Future[None], error: WALError | None) -> None:
        """Settles `saved` when readers in other processes have the end of these channels, or at once with the error."""
        if error is None and names:
            self._when_shown(names[0], partial(_settle, saved), latest=True)
        else:
            _settle(saved, error)

    def _end(self, infos: tuple[VChannelInfo, ...], then: Callable[[WALError | None], None]) -> None:
        """Ends these channels and removes their records; calls `then` when both is done, or has failed.

        A channel whose record an earlier call could not remove has ended in memory already.
        """
        live = tuple(info for info in infos if self.directory.records.get(info.name) == info)
        names = {info.name for info in infos}
        unfinished, failure = 2, None

        def finished(error: WALError | None) -> None:
            nonlocal unfinished, failure
            unfinished, failure = unfinished - 1, failure or error
            if unfinished:
                return
            self._ending -= names
            if failure is None:
                self.host.forget(infos)
                for info in infos:
                    self.on_dropped(info.name)
            then(failure)

        self._ending |= names
        try:
            # A pchannel that has failed leaves nothing to end: the records are removed anyway.
            self.host.end(live, lambda _: finished(None))
        except BaseException:
            self._ending -= names
            raise
        for info in live:
            self.directory.forget(info)
        self._save(infos, remove=True, done=finished)

    # -- the metadata, and the maps

    def _when_shown(self, name: str, then: Callable[[WALError | None], None], *, latest: bool = False) -> None:
        """See `VChannelMapKeeper.when_shown`; calls `then` at once if no other process can read the log."""
        if self.maps is None:
            then(None)
        else:
            self.maps.when_shown(name, then, wanted=latest)

    def _save(self, infos: tuple[VChannelInfo, ...], *, remove: bool, done: Callable[[WALError | None], None]) -> None:
        """Saves or removes these records, all or none; calls `done` with None or the error."""
        try:
            self._saver.tell(RecordChange(infos, remove, done))
        except ActorStoppedError:
            closed = ClosedError("the log is closed, or this coordinator leads no more: nothing was saved, ask again where it is open now")
            asyncio.get_running_loop().call_soon(done, closed)
        except ActorError as error:  # it failed before
            asyncio.get_running_loop().call_soon(done, unsaved_records(error.__cause__ or error))


def _settle(future: asyncio.Future[None], error: WALError | None) -> None:
    if not future.done():
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
