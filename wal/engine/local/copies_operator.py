"""CopiesOperator: the open log as its broadcaster sees it (`broadcaster.AppendOperator`).

Owns the translation between the two: names of vchannels to their actors, copies to operations, what is recovered of them to what the
broadcaster asks for. It decides nothing of a broadcast, and knows of the log only what `OperatedLog` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from actors import ActorError, ActorFailedError, InboxFullError
from broadcaster.content import Content, CopiesInLog
from wal.channels import check_vchannel
from wal.engine.local.copy_routes import CopyRoutes
from wal.engine.local.vchannels import VChannelRoutes
from wal.errors import (
    ChannelNotExistError,
    ClosedError,
    CorruptionError,
    InvalidArgumentError,
    UnknownError,
    WALError,
    WouldBlockError,
)
from wal.frame import CopyNames, Record
from wal.message import AppendResult, BroadcastHeader, MessageType
from wal.pchannel import BODY_OVERHEAD, AppendCopies, CopyTargets, InFlight, PChannel, VChannel, names_of
from wal.reading import shared_copies
from wal.settings import Settings

if TYPE_CHECKING:
    from wal.timestamp import TimestampOracle

__all__ = ["CopiesOperator", "OperatedLog"]


class OperatedLog(Protocol):
    """What the operator needs of the log."""

    settings: Settings
    in_flight: InFlight
    pchannels: dict[str, PChannel]
    vchannels: VChannelRoutes
    oracle: TimestampOracle


class CopiesOperator:
    """An `AppendOperator` over the log in this process."""

    def __init__(self, log: OperatedLog) -> None:
        self._log = log
        self._vchannels = log.vchannels
        self._create_future = asyncio.get_running_loop().create_future  # bound once: a system call in Python 3.11
        self._routes = CopyRoutes()

    def allocate_id(self) -> int:
        """A fresh time tick. WouldBlockError while none can be had without waiting."""
        tick = self._log.oracle.take(1)
        if tick is None:
            raise WouldBlockError(
                "no time tick is saved ahead at the moment, the metadata answers slowly: try again soon"
            )
        return tick

    async def wait_for_ids(self) -> None:
        """Returns when ticks are saved ahead."""
        await self._log.oracle.extend()

    def check(self, vchannels: Sequence[str]) -> None:
        """Raises what an append to one of these vchannels would get."""
        names = tuple(vchannels)
        if self._routes.places(names) is None:
            self._check(names)

    def places_nowait(self, vchannels: Sequence[str]) -> Mapping[str, Sequence[str]] | None:
        """The pchannels of these vchannels, if all of them are there, saved, and in use."""
        names, there = tuple(vchannels), self._vchannels
        known = self._routes.places(names)
        if known is None and not there.saving and all(map(there.routes.__contains__, names)):
            known = self._find(names)
            self._routes.found(names, known, self._log.pchannels)
        return known

    async def places(self, vchannels: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """The pchannels of these vchannels. All are looked at before any is made; those that are made are saved when it returns."""
        names, saving = tuple(vchannels), self._vchannels.saving
        places = self._find(names)
        while saving and (made := [saving[name] for name in names if name in saving]):
            # A broadcast over several pchannels is recorded before its copies: what it names must not be lost with a crash.
            await asyncio.gather(*map(asyncio.shield, made))
            places = self._find(names)  # one of them may have been dropped meanwhile, and made anew elsewhere
        self._routes.found(names, places, self._log.pchannels)
        return places

    def append_copies_nowait(
        self, pchannel: str, vchannels: Sequence[str], content: Content, header: BroadcastHeader
    ) -> asyncio.Future[Sequence[AppendResult | WALError]] | None:
        """The same as `append_copies`, if all vchannels are there and there is room in flight; see `AppendOperator`."""
        actor, in_flight = self._log.pchannels[pchannel], self._log.in_flight
        targets, missing = self._aim(actor, tuple(vchannels))
        record = Record(content.payload, content.message_type, 0, content.properties)
        if targets is None or missing or not in_flight.has_room(size := _size(record, targets)):
            return None
        in_flight.take_nowait(size)
        try:
            return self._tell(actor, AppendCopies(header, targets, record, False, size, self._create_future()))
        except WALError:
            return None  # it is told by `append_copies`

    async def append_copies(
        self, pchannel: str, vchannels: Sequence[str], content: Content, header: BroadcastHeader
    ) -> Sequence[AppendResult | WALError]:
        """One copy for each vchannel; see `AppendOperator`."""
        record = Record(content.payload, content.message_type, 0, content.properties)
        return await self._append(pchannel, vchannels, header, record, aborts=False)

    async def append_aborts(
        self, pchannel: str, vchannels: Sequence[str], header: BroadcastHeader, reason: str
    ) -> Sequence[AppendResult | WALError]:
        """An ABORT_BROADCAST for each vchannel; see `AppendOperator`."""
        record = Record(reason.encode(), int(MessageType.ABORT_BROADCAST))
        return await self._append(pchannel, vchannels, header, record, aborts=True)

    async def copies(self) -> Sequence[CopiesInLog]:
        """What the recovered logs hold of broadcasts that are not forgotten."""
        return [
            CopiesInLog(
                name,
                listed.header,
                tuple(vchannel for vchannel, _ in names_of(listed.parts, aborts=False)),
                tuple(vchannel for vchannel, _ in names_of(listed.parts, aborts=True)),
            )
            for name, pchannel in self._log.pchannels.items()
            for listed in pchannel.copies.table.listed()
        ]

    async def content(self, pchannel: str, broadcast_id: int) -> Content:
        """What a copy in this log holds, read from there."""
        actor = self._log.pchannels[pchannel]
        listed = actor.copies.table.get(broadcast_id)
        part = None if listed is None else next((part for part in listed.parts if not part.aborts), None)
        if part is None:
            raise InvalidArgumentError(f"pchannel {pchannel} holds no copy of broadcast {broadcast_id}")
        page = await actor.log.read(part.position, names=None, bytes_max=1)
        for shared in shared_copies(page.frames[0].view) if page.frames else ():
            if shared.header.broadcast_id == broadcast_id and shared.index == part.index:
                return Content(shared.payload, shared.message_type, shared.properties)
        raise CorruptionError(
            f"the frame at position {part.position} of pchannel {pchannel} holds no copy of broadcast {broadcast_id}",
            expected=f"its payload, at index {part.index}",
        )

    def forget(self, broadcast_id: int, pchannels: Collection[str]) -> None:
        """The broadcast is over: retention keeps its copies no longer, and the next checkpoint does not list them."""
        for name in pchannels:
            self._log.pchannels[name].copies.table.forget(broadcast_id)

    def dropped(self, broadcast_ids: Collection[int]) -> Mapping[int, Collection[str]]:
        """Of each broadcast those vchannels that had their copy and were dropped since. A drop that is not saved yet is none."""
        living = {(info.name, info.incarnation) for info in self._vchannels.directory.saved.values()}
        gone: dict[int, list[str]] = {}
        for pchannel in self._log.pchannels.values():
            for broadcast_id in broadcast_ids:
                if (listed := pchannel.copies.table.get(broadcast_id)) is None:
                    continue
                for part in listed.parts:
                    if not part.aborts and not living.issuperset(part.names):
                        names = [name for name, incarnation in part.names if (name, incarnation) not in living]
                        gone.setdefault(broadcast_id, []).extend(names)
        return gone

    def on_dropped(self, callback: Callable[[str], None]) -> None:
        """`callback(vchannel)` each time that one was dropped for good."""
        self._vchannels.on_dropped = callback

    def on_forgotten(self, callback: Callable[[str, Collection[int]], None]) -> None:
        """`callback(pchannel, broadcast_ids)` once a checkpoint behind `forget` is durable."""
        for name, pchannel in self._log.pchannels.items():
            if pchannel.checkpointer is not None:
                pchannel.checkpointer.on_forgotten = partial(callback, name)

    def request_checkpoint(self) -> None:
        """Asks for a checkpoint of each pchannel for which it would make room."""
        for pchannel in self._log.pchannels.values():
            if pchannel.checkpointer is not None and pchannel.copies.table.forgotten:
                pchannel.checkpointer.request()

    def _find(self, names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        """The pchannels of these vchannels as of now, and the names on each; makes those that are missing."""
        self._check(names)
        lists: dict[str, list[str]] = {}
        for name in names:
            vchannel = self._vchannels.routes.get(name) or self._vchannels.route(name)
            lists.setdefault(vchannel.pchannel.channel, []).append(name)
        return {pchannel: tuple(there) for pchannel, there in lists.items()}

    def _check(self, vchannels: Sequence[str]) -> None:
        """Every vchannel is there or can be made; none has been made then."""
        routes, records, settings = self._vchannels.routes, self._vchannels.records, self._log.settings
        new = [check_vchannel(name) for name in vchannels if name not in routes and name not in records]
        if new and not settings.create_vchannels:
            raise ChannelNotExistError(
                f"vchannel {new[0]!r} does not exist and create_vchannels is off: make it with create_vchannel({new[0]!r})"
            )
        if new and len(records) + len(new) > settings.vchannels_max:
            raise InvalidArgumentError(
                f"{len(new)} of the vchannels do not exist and would be more than vchannels_max={settings.vchannels_max} with the "
                f"{len(records)} that there are: drop some, or raise the setting"
            )

    async def _append(
        self, pchannel: str, vchannels: Sequence[str], header: BroadcastHeader, record: Record, *, aborts: bool
    ) -> Sequence[AppendResult | WALError]:
        actor = self._log.pchannels[pchannel]
        names = tuple(vchannels)
        targets, missing = self._aim(actor, names)
        outcomes: Sequence[AppendResult | WALError] = ()
        if targets is not None:
            size = _size(record, targets)
            await self._log.in_flight.take(size)
            outcomes = await self._tell(
                actor, AppendCopies(header, targets, record, aborts, size, self._create_future())
            )
        if not missing:
            return outcomes
        rest = iter(outcomes)
        return [missing.get(at) or next(rest) for at in range(len(names))]

    def _aim(self, actor: PChannel, names: tuple[str, ...]) -> tuple[CopyTargets | None, dict[int, WALError]]:
        """Those of these vchannels that are on this pchannel, None without any; and why each of the others is not, by its place."""
        known = self._routes.targets(actor, names)
        if known is not None:
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
            self._routes.aimed(actor, names, found)
        return found, missing

    def _tell(self, actor: PChannel, operation: AppendCopies) -> asyncio.Future[Sequence[AppendResult | WALError]]:
        """Tells the pchannel, or gives the room back and raises why not."""
        try:
            actor.actor_group.tell(actor.copies, operation)
        except ActorError as error:
            self._log.in_flight.release(operation.size)
            raise _refusal(actor, error) from error
        return operation.future


def _size(record: Record, targets: CopyTargets) -> int:
    """What copies for these vchannels count in flight."""
    return len(record.payload) + len(record.properties) + BODY_OVERHEAD * (1 + len(targets.vchannels))


def _refusal(actor: PChannel, error: ActorError) -> WALError:
    """Why a pchannel takes no copies."""
    if isinstance(error, InboxFullError):
        return WouldBlockError(f"{error}: wait for some of the results")
    if actor.fault is not None:
        return actor.fault
    if isinstance(error, ActorFailedError):
        return UnknownError(
            f"pchannel {actor.channel} takes no copies of broadcasts any more until the log is reopened: {error.cause!r}; please "
            "report it"
        )
    return ClosedError("the log was closed: open it again to go on")


def _gone(name: str, pchannel: str, vchannel: VChannel | None) -> ChannelNotExistError:
    if vchannel is None:
        return ChannelNotExistError(f"vchannel {name!r} does not exist any more: it was dropped")
    return ChannelNotExistError(
        f"vchannel {name!r} was dropped on pchannel {pchannel} and made again on {vchannel.pchannel.channel}, where this broadcast "
        "does not look for it"
    )
