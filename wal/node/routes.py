"""Routes: the way from a name to the actor of its vchannel on this node, and the beginning and the end of these actors.

A node has a view of the vchannels that exist, and never gives a name its incarnation: it asks the coordinator's half, `KnownVChannels`, to
create a vchannel that an append names. While the record of a new vchannel is being saved, its group of actors is paused: no frame is
written for a vchannel that a crash would lose. Routes are the `VChannelHost` of the coordinator's half.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Protocol

from actors import Actor, ActorError, ActorRef, Clock, InboxFullError, Timer
from wal.channels.unknown_vchannels import UNKNOWN_S, UnknownVChannels
from wal.channels.vchannels import VChannelBegin, VChannelInfo, check_vchannel, common_place, first_position
from wal.errors import (
    ChannelNotExistError,
    NoSpaceError,
    StorageError,
    UnavailableError,
    UnknownOutcomeError,
    WALError,
    WouldBlockError,
    caused,
    closed_log,
)
from wal.frame import RunName
from wal.message.matching import Matching
from wal.read.options import MatchingSelection, Selection
from wal.settings import Settings
from wal.write.operations import Drop
from wal.write.pchannel import PChannel
from wal.write.vchannel import VChannel


class KnownRecords(Protocol):
    """The table of a node's known vchannels: by name in `records`; all of them have an incarnation below `next_incarnation`."""

    @property
    def records(self) -> Mapping[str, VChannelInfo]: ...

    @property
    def next_incarnation(self) -> int: ...

    @property
    def begins(self) -> Mapping[str, VChannelBegin]: ...


class KnownVChannels(Protocol):
    """A node's view of the vchannels, and its access to the coordinator's half."""

    @property
    def directory(self) -> KnownRecords:
        """The table itself."""

    on_dropped: Callable[[str], object]
    """Called with the name of each vchannel that was durably dropped."""

    @property
    def records(self) -> Mapping[str, VChannelInfo]:
        """The existing vchannels, by name; those among them that are not durable yet are in `saving`."""

    @property
    def pchannels(self) -> Iterable[str]:
        """The pchannels of the log, here or elsewhere, in their order."""

    @property
    def saving(self) -> Mapping[str, asyncio.Future[None]]:
        """The vchannels whose records are being saved, and when that is done."""

    @property
    def next_incarnation(self) -> int:
        """Every vchannel that is known has a smaller incarnation."""

    def durable(self) -> Iterable[VChannelInfo]:
        """Returns the vchannels whose records are saved."""

    def pchannel_of(self, name: str) -> str:
        """Returns the pchannel of this vchannel: where it is, or where an append would create it."""

    async def look_up(self, name: str) -> VChannelInfo | None:
        """Asks the coordinator's half for a vchannel before its name is refused; returns None if there is none."""

    async def create_on(self, name: str, pchannel: str) -> None:
        """Has a vchannel that does not exist created on this pchannel, where an append cannot; its record is known on return.

        Does nothing where an append creates it.
        """

    async def catch_up(self) -> None:
        """Returns when everything is known that was saved before the call."""

    def check_new(self, names: Iterable[str]) -> None:
        """Raises what `create_nowait` would raise for the first of these vchannels that may not be created. It creates none."""

    def create_nowait(self, name: str) -> None:
        """Has a vchannel created, or raises ChannelNotExistError or InvalidArgumentError; it is in `records` on return."""


class DropsCursors(Protocol):
    """The cursors of a log, as far as vchannels take them along."""

    async def drop(self, vchannel: str, incarnation: int) -> None:
        """Deletes the cursors of this incarnation of a vchannel."""


class Routes:
    """The vchannels whose pchannels are here. `spawn` starts the actor of a scanner, and `location` names the log in warnings."""

    def __init__(
        self,
        known: KnownVChannels,
        pchannels: Mapping[str, PChannel],
        settings: Settings,
        *,
        spawn: Callable[[Actor, str], ActorRef],
        location: str,
        clock: Clock,
    ) -> None:
        self.known: KnownVChannels = known
        self.actors: dict[str, VChannel] = {}
        """The actors of the vchannels that were used since their pchannels were opened."""
        self.cursors: DropsCursors | None = None
        """The cursors of the log, once they are open."""
        self._pchannels = pchannels
        self._settings = settings
        self._spawn = spawn
        self._unknown = UnknownVChannels(location, monotonic=clock.monotonic)
        self._clock = clock
        self._warning: Timer | None = None
        self._ending: set[RunName] = set()
        """The vchannels that are being dropped: their records have left the table, and are still saved."""

    # -- from a name to an actor

    def incarnation(self, name: str) -> int | None:
        """Returns the incarnation of a vchannel, or None if it does not exist."""
        info = self.known.records.get(name)
        return None if info is None else info.incarnation

    def route(self, name: str) -> VChannel:
        """Returns the actor of this vchannel, having it created if that is allowed.

        Raises ChannelNotExistError if it is not, InvalidArgumentError for a bad name or past `vchannels_max`.
        """
        vchannel = self.actors.get(name)
        if vchannel is not None:
            return vchannel
        if (info := self.known.records.get(check_vchannel(name))) is None:
            self.known.create_nowait(name)
            info = self.known.records[name]
        return self.actors.get(name) or self._join(info)

    def existing(self, name: str) -> VChannel:
        """Returns the actor of a vchannel that a transaction or a producer used before; raises ChannelNotExistError if it was dropped."""
        vchannel = self.actors.get(name)
        if vchannel is None:
            if name not in self.known.records:
                raise ChannelNotExistError(f"vchannel {name!r} was dropped: its transactions have ended")
            vchannel = self.route(name)
        return vchannel

    def here(self, pchannel: str, vchannel: str) -> PChannel:
        """Returns the pchannel on which this vchannel is; raises ChannelNotExistError if it is not on this node."""
        if (hosted_pchannel := self._pchannels.get(pchannel)) is None:
            raise ChannelNotExistError(
                f"vchannel {vchannel!r} is on pchannel {pchannel}, which is not on this node: ask AssignmentDiscover where it is"
            )
        return hosted_pchannel

    async def attach(self, names: tuple[str, ...]) -> tuple[PChannel, Selection, Callable[[Actor, str], ActorRef]]:
        """Returns the pchannel to read these vchannels on, the vchannels as they are now, and what starts a scanner's actor."""
        return (*self.select(names), self._spawn)

    def select(self, names: tuple[str, ...]) -> tuple[PChannel, Selection]:
        """Returns the pchannel to read these vchannels on, and the vchannels as they are now."""
        directory = self.known.directory
        records, pchannels = directory.records, list(self.known.pchannels)
        channel = common_place(names, records, pchannels, create_vchannels=self._settings.create_vchannels)
        pchannel = self.here(channel, names[0])
        if self._unknown.note(names, records):
            self._warning = self._clock.call_later(UNKNOWN_S * 1.01, lambda: self._unknown.warn(self.known.records))
        bound = {name: records[name].incarnation if name in records else None for name in names}
        begin = first_position(map(directory.begins.get, names), pchannel.log.lineage, pchannel.tail.durable_end)
        return pchannel, Selection(bound, floor=directory.next_incarnation, begin=begin)

    async def attach_matching(self, pattern: Matching) -> tuple[list[tuple[PChannel, Selection]], Callable[[Actor, str], ActorRef]]:
        """Returns all pchannels, each with the vchannels on it that match, and what starts a scanner's actor."""
        return [(pchannel, self.matching(pattern, name)) for name, pchannel in self._pchannels.items()], self._spawn

    def matching(self, pattern: Matching, pchannel: str) -> MatchingSelection:
        """Returns the vchannels on a pchannel that match."""
        return MatchingSelection(pattern, self.is_live, partial(self._names_on, pchannel), lambda: self.known.directory.next_incarnation)

    def _names_on(self, pchannel: str) -> Iterator[str]:
        """Yields the names of the vchannels that may live on a pchannel; a name may come twice."""
        for name, info in self.known.records.items():
            if info.pchannel == pchannel:
                yield name
        for name, _ in self._ending:
            yield name

    def is_live(self, name: str, incarnation: int) -> bool:
        """Returns whether this incarnation of a vchannel has not ended in this node's view; during its drop it has not ended yet."""
        info = self.known.records.get(name)
        if info is not None and info.incarnation == incarnation:
            return True
        return incarnation >= self.known.directory.next_incarnation or (name, incarnation) in self._ending

    def end_warnings(self) -> None:
        """Warns now of names that were read and do not exist: the log closes."""
        if self._warning is not None:
            self._warning.cancel()
        self._unknown.warn(self.known.records, at_close=True)

    def close(self, pchannel: PChannel, closed: Callable[[], WALError]) -> None:
        """Refuses every later operation on the vchannels of a pchannel that is being closed here, with what `closed` returns."""
        for name, vchannel in [each for each in self.actors.items() if each[1].pchannel is pchannel]:
            vchannel.closed = vchannel.closed or closed
            del self.actors[name]
        pchannel.endings += 1

    def follow(self, before: VChannelInfo | None, now: VChannelInfo | None) -> None:
        """Takes a change of the coordinator's records, of which this node has a copy: readers learn of what came, what was before ends."""
        if before is not None and before.pchannel in self._pchannels:
            vchannel = self.actors.get(before.name)
            if vchannel is not None and vchannel.run_name == (before.name, before.incarnation):
                self.end((before,), lambda _: None)
            self.forget((before,))
        if now is not None and (pchannel := self._pchannels.get(now.pchannel)) is not None:
            for other in self._pchannels.values():
                for reader in list(other.readers):
                    reader.created(now.name, pchannel)

    # -- calls of the coordinator's half

    def begin(self, infos: tuple[VChannelInfo, ...]) -> Callable[[WALError | None], None]:
        """Starts the actors of new vchannels, paused; see `VChannelHost.begin`."""
        for info in infos:
            self.here(info.pchannel, info.name)
        vchannels = [self._join(info) for info in infos]
        for vchannel in vchannels:
            for other in self._pchannels.values():
                for reader in list(other.readers):
                    reader.created(vchannel.channel, vchannel.pchannel)
            vchannel.pchannel.actor_group.pause()

        def began(error: WALError | None) -> None:
            for vchannel in vchannels:
                if error is not None:
                    if self.actors.get(vchannel.channel) is vchannel:
                        del self.actors[vchannel.channel]
                    vchannel.closed = partial(_unsaved, vchannel.channel, error)
                    vchannel.pchannel.endings += 1
                vchannel.pchannel.actor_group.resume()

        return began

    def end(self, infos: tuple[VChannelInfo, ...], ended: Callable[[WALError | None], None]) -> None:
        """Ends the actors of vchannels; see `VChannelHost.end`. Raises the reason of a failed actor."""
        vchannels = [self.route(info.name) for info in infos]
        for vchannel in vchannels:
            if vchannel.closed is not None:
                raise vchannel.closed()
        unfinished, failure = len(vchannels) + 1, None

        names = {(info.name, info.incarnation) for info in infos}
        self._ending |= names

        def finished(error: WALError | None = None) -> None:
            nonlocal unfinished, failure
            unfinished, failure = unfinished - 1, failure or error
            if not unfinished:
                if failure is not None:
                    self._ending -= names
                ended(failure)

        for vchannel in vchannels:
            _end(vchannel, finished)
            if self.actors.get(vchannel.channel) is vchannel:
                del self.actors[vchannel.channel]
            vchannel.pchannel.endings += 1
        finished()

    def forget(self, infos: tuple[VChannelInfo, ...]) -> None:
        """Forgets the keys and the last events of vchannels that have ended; see `VChannelHost.forget`."""
        for info in infos:
            self._ending.discard((info.name, info.incarnation))
            if (pchannel := self._pchannels.get(info.pchannel)) is not None:
                pchannel.forget((info.name, info.incarnation))
                for reader in list(pchannel.readers):
                    reader.dropped(info.name, info.incarnation)

    async def delete_cursors(self, info: VChannelInfo) -> None:
        """Deletes the cursors of a vchannel that was dropped."""
        assert self.cursors is not None, "no vchannel is dropped before the log is open"
        await self.cursors.drop(info.name, info.incarnation)

    def _join(self, info: VChannelInfo) -> VChannel:
        """Starts the actor of a vchannel."""
        pchannel = self.here(info.pchannel, info.name)
        vchannel = VChannel(pchannel, info.name, info.incarnation)
        pchannel.actor_group.join(vchannel, name=f"{info.name}#{info.incarnation}")
        pchannel.vchannels[info.name] = self.actors[info.name] = vchannel
        return vchannel


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


def _end(vchannel: VChannel, then: Callable[[WALError | None], None]) -> None:
    """Ends the actor of a vchannel after its earlier operations; calls `then` when it has ended."""
    group = vchannel.pchannel.actor_group
    loop = asyncio.get_running_loop()
    dropped: asyncio.Future[None] = loop.create_future()

    def ended(_: asyncio.Future[None]) -> None:
        # A callback runs whether or not the caller still waits. Operations told meanwhile are not lost either.
        error = dropped.exception()
        if error is None:
            assert vchannel.closed is not None
            vchannel.refuse(group.leave(vchannel), vchannel.closed())
        then(error if error is None or isinstance(error, WALError) else closed_log())

    def tell_it() -> None:
        try:
            group.tell(vchannel, Drop(dropped))
        except InboxFullError:
            loop.call_soon(tell_it)  # after the turn that makes room
        except ActorError as error:  # its pchannel failed or is being closed, which ends it
            then(refusal(vchannel, error))

    dropped.add_done_callback(ended)
    tell_it()


def _unsaved(name: str, error: WALError) -> WALError:
    # Metadata that is full or briefly unavailable is not broken: the caller may retry.
    kind: type[WALError] = StorageError
    if isinstance(error, UnavailableError | UnknownOutcomeError):
        kind = UnavailableError
    elif isinstance(error, NoSpaceError):
        kind = NoSpaceError
    return caused(kind(f"vchannel {name!r} could not be saved in the metadata, nothing was written: {error}"), error)
