"""CopiesOperator: the open log as its broadcaster sees it (`broadcaster.AppendOperator`).

Owns the translation between the two: names of vchannels become actors, copies become operations, and the log's recovered state becomes
the broadcaster's records. It decides nothing about a broadcast, and has no state of its own but the routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from actors import ActorError
from broadcaster.message import Content, CopiesInLog
from broadcaster.operator import CopiesAnswer
from wal.errors import ChannelNotExistError, CorruptionError, InvalidArgumentError, UnavailableError, WALError, WouldBlockError
from wal.frame import CopyNames, Record
from wal.message import BroadcastHeader, CopyOutcomes, MessageType, MixedCopies
from wal.node.node import StreamingNode
from wal.node.routes import Routes
from wal.read.assembly import shared_copies
from wal.write.copies import names_of
from wal.write.copy_writes import AppendCopies, CopyTargets
from wal.write.pchannel import PChannel
from wal.write.txn_table import BODY_OVERHEAD
from wal.write.vchannel import VChannel

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
    """The pchannels of the vchannels of broadcasts, and the actors that take their copies.

    Owns a cache by tuple of names, since most broadcasts go to the same thousand vchannels. A route is valid until a vchannel of these
    pchannels ends. The routes are bounded by their names: over the bound all are forgotten. Guarantees: all names are checked before a
    vchannel is created, and created vchannels are durable before their pchannels are returned.
    """

    def __init__(self, vchannels: Routes, pchannels: Mapping[str, PChannel]) -> None:
        self._vchannels = vchannels
        self._pchannels = pchannels
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
        if known is None and not there.known.saving and all(map(there.actors.__contains__, names)):
            known = self._find(names)
            self._remember(names, known)
        return known

    async def places(self, names: tuple[str, ...]) -> Places:
        """Returns the pchannels of these vchannels, and creates the missing vchannels first."""
        saving = self._vchannels.known.saving
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
            vchannel = there.actors.get(name)
            if vchannel is None and name in there.known.records:
                vchannel = there.route(name)
            if vchannel is None or vchannel.pchannel is not actor:
                missing[at] = _gone(name, actor.channel, vchannel)
            else:
                targets.append(vchannel)
        if not targets:
            return None, missing
        copy_targets = CopyTargets(tuple(targets), CopyNames([vchannel.run_name for vchannel in targets]), endings)
        if not missing:
            self._route(names).targets = copy_targets
        return copy_targets, missing

    def _cached(self, names: tuple[str, ...]) -> _Route | None:
        """Returns the route of these names, or None; the last one is recognized by identity, since hashing a thousand names is slow."""
        last = self._last
        if last.names is names:
            return last
        route = self._routes.get(names)
        if route is not None:
            route.names = names  # an equal tuple, but the same object as in the next calls
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
            vchannel = self._vchannels.actors.get(name) or self._vchannels.route(name)
            lists.setdefault(vchannel.pchannel.channel, []).append(name)
        return {pchannel: tuple(there) for pchannel, there in lists.items()}

    def _check(self, names: tuple[str, ...]) -> None:
        """Raises unless every vchannel exists or can be created."""
        actors = self._vchannels.actors
        self._vchannels.known.check_new([name for name in names if name not in actors])


def _gone(name: str, pchannel: str, vchannel: VChannel | None) -> ChannelNotExistError:
    if vchannel is None:
        return ChannelNotExistError(f"vchannel {name!r} does not exist any more: it was dropped")
    return ChannelNotExistError(
        f"vchannel {name!r} was dropped on pchannel {pchannel} and created again on {vchannel.pchannel.channel}, where this broadcast "
        "does not look for it"
    )


class CopiesOperator:
    """An `AppendOperator` over the log in this process."""

    def __init__(self, node: StreamingNode) -> None:
        self._node = node
        self._create_future: Callable[[], asyncio.Future[CopyOutcomes]]
        self._create_future = asyncio.get_running_loop().create_future  # bound once: a system call in Python 3.11
        self._routes = CopyRoutes(node.routes, node.pchannels)

    def allocate_id(self) -> int:
        """Returns a fresh time tick. Raises WouldBlockError if none is available without waiting."""
        tick = self._node.oracle.take(1)
        if tick is None:
            raise WouldBlockError("no time tick is saved ahead at the moment, the metadata answers slowly: try again soon")
        return tick

    async def wait_for_ids(self) -> None:
        """Returns when ticks are saved ahead."""
        await self._node.oracle.extend()

    def check(self, vchannels: Sequence[str]) -> None:
        """Raises what an append to one of these vchannels would raise."""
        self._routes.check(tuple(vchannels))

    def places_nowait(self, vchannels: Sequence[str]) -> Mapping[str, Sequence[str]] | None:
        """Returns the pchannels of these vchannels if all of them exist, are durable, and have an actor, else None."""
        return self._routes.places_nowait(tuple(vchannels))

    async def places(self, vchannels: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Returns the pchannels of these vchannels, and creates the missing vchannels first."""
        return await self._routes.places(tuple(vchannels))

    def located(self, vchannels: Sequence[str]) -> Mapping[str, str]:
        """Returns the pchannels of those of these vchannels that exist."""
        records = self._node.routes.known.records
        return {name: records[name].pchannel for name in vchannels if name in records}

    def append_copies_nowait(
        self, pchannel: str, vchannels: Sequence[str], content: Content, header: BroadcastHeader, answer: CopiesAnswer
    ) -> bool:
        """Appends like `append_copies`, if all vchannels are on this pchannel and there is room in flight; see `AppendOperator`."""
        actor, in_flight = self._node.pchannels.get(pchannel), self._node.in_flight
        if actor is None:
            return False  # `append_copies` raises the reason
        targets, missing = self._routes.aim(actor, tuple(vchannels))
        if targets is None or missing:
            return False
        record = Record(content.payload, content.message_type, 0, content.properties)
        if not in_flight.has_room(size := _size(record, targets)):
            return False
        operation = AppendCopies(header, targets, record, aborts=False, size=size, future=answer)
        try:
            actor.copies.tell(operation)
        except ActorError:
            return False  # `append_copies` raises the reason
        in_flight.size += size
        return True

    async def append_copies(self, pchannel: str, vchannels: Sequence[str], content: Content, header: BroadcastHeader) -> CopyOutcomes:
        """Appends one copy for each vchannel; see `AppendOperator`."""
        record = Record(content.payload, content.message_type, 0, content.properties)
        return await self._append(pchannel, vchannels, header, record, aborts=False)

    async def append_aborts(self, pchannel: str, vchannels: Sequence[str], header: BroadcastHeader, reason: str) -> CopyOutcomes:
        """Appends an ABORT_BROADCAST for each vchannel; see `AppendOperator`."""
        record = Record(reason.encode(), int(MessageType.ABORT_BROADCAST))
        return await self._append(pchannel, vchannels, header, record, aborts=True)

    async def copies(self) -> Sequence[CopiesInLog]:
        """Returns the copies in the recovered logs of broadcasts that are not forgotten."""
        return [
            CopiesInLog(
                name,
                listed.header,
                tuple(vchannel for vchannel, _ in names_of(listed.parts, aborts=False)),
                tuple(vchannel for vchannel, _ in names_of(listed.parts, aborts=True)),
            )
            for name, pchannel in self._node.pchannels.items()
            for listed in pchannel.copies.table.listed()
        ]

    async def content(self, pchannel: str, broadcast_id: int) -> Content:
        """Reads the content of a copy from this log."""
        actor = self._pchannel(pchannel)
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
        """Drops a finished broadcast: retention no longer keeps its copies, and the next checkpoint does not list them."""
        for name in pchannels:
            if (pchannel := self._node.pchannels.get(name)) is not None:
                pchannel.copies.table.forget(broadcast_id)

    async def dropped(self, broadcast_ids: Collection[int]) -> Mapping[int, Collection[str]]:
        """Returns, by broadcast, the vchannels that had their copy and were dropped since, if any. Only durable drops count."""
        existing = {(info.name, info.incarnation) for info in self._node.routes.known.durable()}
        gone: dict[int, list[str]] = {}
        for pchannel in self._node.pchannels.values():
            for broadcast_id in broadcast_ids:
                if (listed := pchannel.copies.table.get(broadcast_id)) is None:
                    continue
                for part in listed.parts:
                    if not part.aborts and not existing.issuperset(part.names):
                        names = [name for name, incarnation in part.names if (name, incarnation) not in existing]
                        gone.setdefault(broadcast_id, []).extend(names)
        return gone

    def on_dropped(self, callback: Callable[[str], None]) -> None:
        """Calls `callback(vchannel)` each time a vchannel was durably dropped."""
        self._node.routes.known.on_dropped = callback

    def on_forgotten(self, callback: Callable[[str, Collection[int]], None]) -> None:
        """Calls `callback(pchannel, broadcast_ids)` once a checkpoint that was taken after their `forget` is durable."""
        for name, pchannel in self._node.pchannels.items():
            if pchannel.checkpointer is not None:
                pchannel.checkpointer.on_forgotten = partial(callback, name)

    def request_checkpoint(self) -> None:
        """Requests a checkpoint of each pchannel where it would make room."""
        for pchannel in self._node.pchannels.values():
            if pchannel.checkpointer is not None and pchannel.copies.table.forgotten:
                pchannel.checkpointer.request()

    def _pchannel(self, name: str) -> PChannel:
        """Returns a pchannel. Raises UnavailableError if it is not here now: another node has it, or will have it."""
        if (pchannel := self._node.pchannels.get(name)) is None:
            raise UnavailableError(f"pchannel {name!r} is not on this node: nothing was done; try again where it is")
        return pchannel

    async def _append(
        self, pchannel: str, vchannels: Sequence[str], header: BroadcastHeader, record: Record, *, aborts: bool
    ) -> CopyOutcomes:
        actor = self._pchannel(pchannel)
        names = tuple(vchannels)
        targets, missing = self._routes.aim(actor, names)
        outcomes: CopyOutcomes = MixedCopies()
        if targets is not None:
            size, future = _size(record, targets), self._create_future()
            await self._node.in_flight.take(size)
            operation = AppendCopies(header, targets, record, aborts=aborts, size=size, future=future)
            try:
                actor.copies.tell(operation)
            except ActorError as error:
                self._node.in_flight.release(size)
                raise actor.copies.refusal(error) from error
            outcomes = await future
        if not missing:
            return outcomes
        rest = iter(outcomes)
        return MixedCopies(missing.get(at) or next(rest) for at in range(len(names)))


def _size(record: Record, targets: CopyTargets) -> int:
    """Returns how many bytes copies for these vchannels count in flight."""
    return len(record.payload) + len(record.properties) + BODY_OVERHEAD * (1 + len(targets.vchannels))
