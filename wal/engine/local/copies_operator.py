"""CopiesOperator: the open log as its broadcaster sees it (`broadcaster.AppendOperator`).

Owns the translation between the two: names of vchannels become actors, copies become operations, and the log's recovered state becomes
what the broadcaster asks for. It decides nothing about a broadcast, and knows of the log only what `OperatedLog` has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from actors import ActorError, ActorFailedError, InboxFullError
from broadcaster.message import Content, CopiesInLog
from broadcaster.operator import CopiesAnswer
from wal.engine.local.copy_routes import CopyRoutes
from wal.engine.local.vchannels import VChannelRoutes
from wal.errors import ClosedError, CorruptionError, InvalidArgumentError, UnknownError, WALError, WouldBlockError
from wal.frame import Record
from wal.message import BroadcastHeader, CopyOutcomes, MessageType
from wal.pchannel import BODY_OVERHEAD, AppendCopies, CopyTargets, InFlight, MixedCopies, PChannel, names_of
from wal.reading import shared_copies
from wal.settings import Settings

if TYPE_CHECKING:
    from wal.timestamp import TimestampOracle

__all__ = ["CopiesOperator", "OperatedLog"]


class OperatedLog(Protocol):
    """The parts of the log that the operator needs."""

    settings: Settings
    in_flight: InFlight
    pchannels: dict[str, PChannel]
    vchannels: VChannelRoutes
    oracle: TimestampOracle


class CopiesOperator:
    """An `AppendOperator` over the log in this process."""

    def __init__(self, log: OperatedLog) -> None:
        self._log = log
        self._create_future: Callable[[], asyncio.Future[CopyOutcomes]]
        self._create_future = asyncio.get_running_loop().create_future  # bound once: a system call in Python 3.11
        self._routes = CopyRoutes(log.vchannels, log.pchannels, log.settings)

    def allocate_id(self) -> int:
        """Returns a fresh time tick. Raises WouldBlockError if none is available without waiting."""
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
        """Raises what an append to one of these vchannels would raise."""
        self._routes.check(tuple(vchannels))

    def places_nowait(self, vchannels: Sequence[str]) -> Mapping[str, Sequence[str]] | None:
        """Returns the pchannels of these vchannels if all of them exist, are durable, and have an actor, else None."""
        return self._routes.places_nowait(tuple(vchannels))

    async def places(self, vchannels: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Returns the pchannels of these vchannels, after creating those that are missing."""
        return await self._routes.places(tuple(vchannels))

    def append_copies_nowait(
        self,
        pchannel: str,
        vchannels: Sequence[str],
        content: Content,
        header: BroadcastHeader,
        answer: CopiesAnswer,
    ) -> bool:
        """Appends like `append_copies`, if all vchannels are on this pchannel and there is room in flight; see `AppendOperator`."""
        actor, in_flight = self._log.pchannels[pchannel], self._log.in_flight
        targets, missing = self._routes.aim(actor, tuple(vchannels))
        if targets is None or missing:
            return False
        record = Record(content.payload, content.message_type, 0, content.properties)
        if not in_flight.has_room(size := _size(record, targets)):
            return False
        operation = AppendCopies(header, targets, record, aborts=False, size=size, future=answer)
        try:
            actor.actor_group.tell(actor.copies, operation)
        except ActorError:
            return False  # `append_copies` raises the reason
        in_flight.size += size
        return True

    async def append_copies(
        self, pchannel: str, vchannels: Sequence[str], content: Content, header: BroadcastHeader
    ) -> CopyOutcomes:
        """Appends one copy for each vchannel; see `AppendOperator`."""
        record = Record(content.payload, content.message_type, 0, content.properties)
        return await self._append(pchannel, vchannels, header, record, aborts=False)

    async def append_aborts(
        self, pchannel: str, vchannels: Sequence[str], header: BroadcastHeader, reason: str
    ) -> CopyOutcomes:
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
            for name, pchannel in self._log.pchannels.items()
            for listed in pchannel.copies.table.listed()
        ]

    async def content(self, pchannel: str, broadcast_id: int) -> Content:
        """Reads the content of a copy from this log."""
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
        """Drops a finished broadcast: retention no longer keeps its copies, and the next checkpoint does not list them."""
        for name in pchannels:
            self._log.pchannels[name].copies.table.forget(broadcast_id)

    def dropped(self, broadcast_ids: Collection[int]) -> Mapping[int, Collection[str]]:
        """Returns, by broadcast, the vchannels that had their copy and were dropped since, if any. Only durable drops count."""
        existing = {(info.name, info.incarnation) for info in self._log.vchannels.directory.saved.values()}
        gone: dict[int, list[str]] = {}
        for pchannel in self._log.pchannels.values():
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
        self._log.vchannels.on_dropped = callback

    def on_forgotten(self, callback: Callable[[str, Collection[int]], None]) -> None:
        """Calls `callback(pchannel, broadcast_ids)` once a checkpoint that was taken after their `forget` is durable."""
        for name, pchannel in self._log.pchannels.items():
            if pchannel.checkpointer is not None:
                pchannel.checkpointer.on_forgotten = partial(callback, name)

    def request_checkpoint(self) -> None:
        """Requests a checkpoint of each pchannel where it would make room."""
        for pchannel in self._log.pchannels.values():
            if pchannel.checkpointer is not None and pchannel.copies.table.forgotten:
                pchannel.checkpointer.request()

    async def _append(
        self, pchannel: str, vchannels: Sequence[str], header: BroadcastHeader, record: Record, *, aborts: bool
    ) -> CopyOutcomes:
        actor = self._log.pchannels[pchannel]
        names = tuple(vchannels)
        targets, missing = self._routes.aim(actor, names)
        outcomes: CopyOutcomes = MixedCopies()
        if targets is not None:
            size, future = _size(record, targets), self._create_future()
            await self._log.in_flight.take(size)
            operation = AppendCopies(header, targets, record, aborts=aborts, size=size, future=future)
            try:
                actor.actor_group.tell(actor.copies, operation)
            except ActorError as error:
                self._log.in_flight.release(size)
                raise _refusal(actor, error) from error
            outcomes = await future
        if not missing:
            return outcomes
        rest = iter(outcomes)
        return MixedCopies(missing.get(at) or next(rest) for at in range(len(names)))


def _size(record: Record, targets: CopyTargets) -> int:
    """Returns how many bytes copies for these vchannels count in flight."""
    return len(record.payload) + len(record.properties) + BODY_OVERHEAD * (1 + len(targets.vchannels))


def _refusal(actor: PChannel, error: ActorError) -> WALError:
    """Returns the reason why a pchannel takes no copies."""
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
