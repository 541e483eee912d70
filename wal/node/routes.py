"""VChannelRoutes: the vchannels of a local log, and the actor of each.

Owns the way from a name to its actor, and the order in which a vchannel is created and dropped: in memory at once, so that calls keep their
order, then in the metadata, then in the maps that readers in other processes use. While the record of a new vchannel is being saved, its
group of actors is paused: no frame is written for a vchannel that a crash would lose. A caller gets its answer when all of that is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from actors import ActorError, ActorRef, Clock, InboxFullError, Timer
from wal.channels.directory import Change, VChannelDirectory, unsaved_records
from wal.channels.map_keeper import VChannelMapKeeper
from wal.channels.vchannels import UNKNOWN_S, UnknownVChannels, VChannelInfo, check_vchannel, common_place, place
from wal.errors import (
    ChannelExistError,
    ChannelNotExistError,
    ClosedError,
    InvalidArgumentError,
    NoSpaceError,
    StorageError,
    UnavailableError,
    UnknownOutcomeError,
    WALError,
    WouldBlockError,
)
from wal.message import MessageID
from wal.read.options import Selection
from wal.settings import Settings
from wal.write.checks import check_expected
from wal.write.operations import Drop
from wal.write.pchannel import PChannel
from wal.write.vchannel import VChannel

__all__ = ["VChannelRoutes", "closed_log", "refusal", "settle", "tell"]


class VChannelRoutes:
    """`directory` has the records, and `saver` is its actor; `location` names the log in warnings."""

    def __init__(
        self,
        directory: VChannelDirectory,
        saver: ActorRef,
        pchannels: Mapping[str, PChannel],
        settings: Settings,
        *,
        location: str,
        clock: Clock,
    ) -> None:
        self.directory: VChannelDirectory = directory
        self.routes: dict[str, VChannel] = {}
        """The actors of the vchannels that were used since the log was opened."""
        self.saving: dict[str, asyncio.Future[None]] = {}
        """The vchannels whose records are being saved, and when that is done."""
        self.on_dropped: Callable[[str], object] = lambda name: None
        """Called with the name of each vchannel that was dropped, when its record is gone."""
        self.maps: VChannelMapKeeper | None = None
        """Keeps the maps for other processes; None if no other process can read the log."""
        self._saver = saver
        self._pchannels = pchannels
        self._settings = settings
        self._unknown = UnknownVChannels(location, monotonic=clock.monotonic)
        self._clock = clock
        self._warning: Timer | None = None

    @property
    def records(self) -> Mapping[str, VChannelInfo]:
        """The existing vchannels, by name."""
        return self.directory.records

    def pchannel_of(self, name: str) -> str:
        """Returns the pchannel of this vchannel: where it is, or where an append would create it."""
        info = self.directory.records.get(check_vchannel(name))
        return place(name, list(self._pchannels)) if info is None else info.pchannel

    def incarnation(self, name: str) -> int | None:
        """Returns the incarnation of a vchannel, or None if it does not exist."""
        info = self.directory.records.get(name)
        return None if info is None else info.incarnation

    def route(self, name: str) -> VChannel:
        """Returns the actor of this vchannel, creating the vchannel if that is allowed.

        Raises ChannelNotExistError if it is not, InvalidArgumentError for a bad name or past `vchannels_max`.
        """
        vchannel = self.routes.get(name)
        if vchannel is not None:
            return vchannel
        info = self.directory.records.get(check_vchannel(name))
        if info is not None:
            return self._join(info)
        if not self._settings.create_vchannels:
            raise ChannelNotExistError(
                f"vchannel {name!r} does not exist and create_vchannels is off: make it with create_vchannel({name!r})"
            )
        return self._create(name, place(name, list(self._pchannels)), None)

    def existing(self, name: str) -> VChannel:
        """Returns the actor of a vchannel that a transaction or a producer used before; raises ChannelNotExistError if it was dropped."""
        vchannel = self.routes.get(name)
        if vchannel is None:
            if name not in self.directory.records:
                raise ChannelNotExistError(f"vchannel {name!r} was dropped: its transactions are over")
            vchannel = self.route(name)
        return vchannel

    def expect(self, name: str, expected: MessageID | None) -> None:
        """Raises InvalidArgumentError if an id cannot be the last one of this vchannel, because it is of another log.

        Raises LogWentBackError if it is of an event that a restore has lost.
        """
        if expected is not None:
            pchannel = self._pchannels[self.pchannel_of(name)]
            check_expected(name, pchannel.current(expected), pchannel.log_id)

    def select(self, names: tuple[str, ...]) -> tuple[PChannel, Selection]:
        """Returns the pchannel to read these vchannels on, and the vchannels as they are now."""
        records = self.directory.records
        channel = common_place(names, records, list(self._pchannels), create_vchannels=self._settings.create_vchannels)
        if self._unknown.note(names, records):
            self._warning = self._clock.call_later(UNKNOWN_S * 1.01, lambda: self._unknown.warn(self.records))
        bound = {name: records[name].incarnation if name in records else None for name in names}
        return self._pchannels[channel], Selection(bound, floor=self.directory.next_incarnation)

    def end_warnings(self) -> None:
        """Warns now of names that were read and do not exist: the log closes."""
        if self._warning is not None:
            self._warning.cancel()
        self._unknown.warn(self.records, at_close=True)

    async def create(self, name: str, pchannel: str | None) -> VChannelInfo:
        """Creates a vchannel durably; see `WritableEngine.create_vchannel`."""
        check_vchannel(name)
        if name in self.directory.records:
            raise ChannelExistError(f"vchannel {name!r} exists already: append to it, or drop it first")
        if pchannel is not None and not isinstance(pchannel, str):
            raise TypeError(f"pchannel must be a str or None, not {type(pchannel).__name__}")
        if pchannel is not None and pchannel not in self._pchannels:
            raise InvalidArgumentError(
                f"pchannel {pchannel!r} does not exist: choose one of {', '.join(self._pchannels)}"
            )
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        vchannel = self._create(name, pchannel or place(name, list(self._pchannels)), saved)
        await asyncio.shield(saved)
        return VChannelInfo(name, vchannel.pchannel.channel, vchannel.run_name[1])

    def check_room(self, what: str, count: int) -> None:
        """Raises InvalidArgumentError if as many vchannels more, called `what` in the error, are past `vchannels_max`."""
        there, most = len(self.directory.records), self._settings.vchannels_max
        if there + count > most:
            raise InvalidArgumentError(
                f"{what} would be {there + count - most} more than vchannels_max={most}: drop some, or raise the setting"
            )

    def check_new(self, names: Iterable[str]) -> None:
        """Raises what `route` would raise for the first of these vchannels that may not be created. It creates none."""
        missing = [
            name for name in names if name not in self.routes and check_vchannel(name) not in self.directory.records
        ]
        if missing and not self._settings.create_vchannels:
            self.route(missing[0])
        if missing:
            others = f" and {len(missing) - 1} others" if missing[1:] else ""
            self.check_room(f"vchannel {missing[0]!r}{others}", len(missing))

    async def drop(self, name: str) -> VChannelInfo | None:
        """Drops a vchannel, in the order of the calls; raises ChannelNotExistError if there is none.

        Returns its record, or None if an earlier call dropped it and this one only told the readers in other processes.
        """
        info = self.directory.records.get(check_vchannel(name))
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if info is None:
            if self.maps is None or not self.maps.is_overdue(name):
                raise ChannelNotExistError(f"vchannel {name!r} does not exist: log.vchannels() lists those that do")
            # An earlier call dropped it, but could not tell readers in other processes.
            self.when_shown(name, partial(settle, saved))
            await asyncio.shield(saved)
            return None
        vchannel = self.route(name)
        group = vchannel.pchannel.actor_group
        dropped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            group.tell(vchannel, Drop(dropped))
        except ActorError as error:
            raise (vchannel.closed or closed_log)() from error
        del self.routes[name]
        vchannel.pchannel.endings += 1
        self.directory.forget(info)

        def removed(error: WALError | None) -> None:
            # Only now: while its record exists, an opening may find the vchannel alive, and then its keys have to be known.
            if error is None:
                vchannel.pchannel.forget(vchannel.run_name)
                self.on_dropped(name)
                self.when_shown(name, partial(settle, saved))
            else:
                settle(saved, error)

        def ended(_: asyncio.Future[None]) -> None:
            # A callback runs whether or not the caller still waits. Operations told meanwhile are not lost either.
            if (error := dropped.exception()) is not None:
                saved.set_exception(error)
                return
            assert vchannel.closed is not None
            vchannel.refuse(group.leave(vchannel), vchannel.closed())
            self.save((info,), remove=True, done=removed)

        dropped.add_done_callback(ended)
        await asyncio.shield(saved)
        return info

    def _create(self, name: str, pchannel: str, saved: asyncio.Future[None] | None) -> VChannel:
        """Returns the actor of a new vchannel; `saved` is settled when the vchannel is durable and readers can find it."""
        self.check_room(f"vchannel {name!r}", 1)
        if saved is None:
            saved = asyncio.get_running_loop().create_future()
            saved.add_done_callback(_ignore_failure)
        return self.start((self.directory.admit(name, pchannel),), saved)[0]

    def start(self, infos: tuple[VChannelInfo, ...], saved: asyncio.Future[None]) -> list[VChannel]:
        """Starts the actors of vchannels that were just admitted, and saves their records, all or none.

        `saved` is settled when they are durable and readers can find them.
        """
        vchannels = [self._join(info) for info in infos]
        for vchannel in vchannels:
            for other in self._pchannels.values():
                for reader in list(other.readers):
                    reader.created(vchannel.channel, vchannel.pchannel)
            vchannel.pchannel.actor_group.pause()
            self.saving[vchannel.channel] = saved

        def recorded(error: WALError | None) -> None:
            if error is None:
                # No frame is written before readers can look for it on this pchannel and none of them can see a former incarnation.
                # The names of channels are given away, so readers elsewhere know these when the caller does.
                pchannels = list(self._pchannels)
                wanted = any(info.owner or info.pchannel != place(info.name, pchannels) for info in infos)
                self.when_shown(infos[0].name, shown, wanted=wanted)
            else:
                if isinstance(error, UnknownOutcomeError):
                    self.save(infos, remove=True, done=lambda _: None)
                done(error)

        def shown(error: WALError | None) -> None:
            done(error)
            if error is not None:
                self.save(infos, remove=True, done=lambda _: None)

        def done(error: WALError | None) -> None:
            for info, vchannel in zip(infos, vchannels, strict=True):
                if self.saving.get(info.name) is saved:
                    del self.saving[info.name]
                if error is not None:
                    self.directory.forget(info)
                    if self.routes.get(info.name) is vchannel:
                        del self.routes[info.name]
                    vchannel.closed = partial(_unsaved, info.name, error)
                    vchannel.pchannel.endings += 1
                vchannel.pchannel.actor_group.resume()
            settle(saved, error)

        self.save(infos, remove=False, done=recorded)
        return vchannels

    def _join(self, info: VChannelInfo) -> VChannel:
        """Starts the actor of a vchannel."""
        pchannel = self._pchannels[info.pchannel]
        vchannel = VChannel(pchannel, info.name, info.incarnation)
        pchannel.actor_group.join(vchannel, name=f"{info.name}#{info.incarnation}")
        pchannel.vchannels[info.name] = self.routes[info.name] = vchannel
        return vchannel

    def when_shown(self, name: str, then: Callable[[WALError | None], None], *, wanted: bool = False) -> None:
        """See `VChannelMapKeeper.when_shown`; calls `then` at once if no other process can read the log."""
        if self.maps is None:
            then(None)
        else:
            self.maps.when_shown(name, then, wanted=wanted)

    def save(self, infos: tuple[VChannelInfo, ...], *, remove: bool, done: Callable[[WALError | None], None]) -> None:
        """Saves or removes these records, all or none; calls `done` with None or the error."""
        try:
            self._saver.tell(Change(infos, remove, done))
        except ActorError as error:  # it failed before, or the log is being closed
            cause = error.__cause__ or error
            asyncio.get_running_loop().call_soon(done, unsaved_records(cause))


def tell(vchannel: VChannel, operation: object) -> None:
    """Sends an operation to a vchannel's actor. Raises a WALError if the actor does not take it."""
    try:
        vchannel.pchannel.actor_group.tell(vchannel, operation)
    except ActorError as error:
        raise refusal(vchannel, error) from error


def refusal(vchannel: VChannel, error: ActorError) -> WALError:
    """Returns the log's error for an actor that refused an operation."""
    if isinstance(error, InboxFullError):
        return WouldBlockError(f"{error}: wait for some of the results")
    if vchannel.closed is not None:
        return vchannel.closed()
    return closed_log()


def closed_log() -> ClosedError:
    """Returns the error of a call that the closing of the log ended."""
    return ClosedError("the log was closed: open it again to go on")


def _ignore_failure(future: asyncio.Future[None]) -> None:
    """Marks the failure as retrieved: the callers of the vchannel get it, and perhaps no task awaits this future."""
    future.exception()


def settle(future: asyncio.Future[None], error: WALError | None) -> None:
    if not future.done():
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def _unsaved(name: str, error: WALError) -> WALError:
    # Metadata that is full or briefly unavailable is not broken: the caller may retry.
    kind: type[WALError] = StorageError
    if isinstance(error, UnavailableError | UnknownOutcomeError):
        kind = UnavailableError
    elif isinstance(error, NoSpaceError):
        kind = NoSpaceError
    own = kind(f"vchannel {name!r} could not be saved in the metadata, nothing was written: {error}")
    own.__cause__ = error
    return own
