"""RemoteDirectory: the vchannels of a log on the network, and their pchannels.

Owns the task that keeps the known vchannels up to date. The task ends the readers of dropped vchannels, and moves readers that wait for a
vchannel to its pchannel. A read's beginning and other uses that need the present state ask the server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Final

from wal.channels.unknown_vchannels import UNKNOWN_S, UnknownVChannels
from wal.channels.vchannels import VChannelInfo
from wal.client.pauses import Pauses
from wal.client.remote_pchannel import RemotePChannel
from wal.client.shared_calls import SharedCalls
from wal.client.supervision import Supervision
from wal.errors import ChannelNotExistError, ClosedError, UnavailableError, UnknownError, WALError
from wal.message import MessageType
from wal.message.matching import Matching
from wal.read.options import Selection, ServedSelection
from wal.requests.vchannels import Existence, LocateVChannels, VChannelState, VChannelStates
from wal.rpc.api import cluster_pb2
from wal.rpc.connection import Connection
from wal.rpc.converter import struct_from_proto
from wal.rpc.methods import WATCH_VCHANNELS
from wal.runtime.tasks import end_tasks


class ShownVChannels:
    """The vchannels of a log as its server has shown them. Pure. The copy may lag. Where that matters, as at the beginning of a read, the
    server is asked, and its answer is added.

    The vchannels by name, and for each pchannel the smallest incarnation that an unknown vchannel of it can have.
    """

    def __init__(self) -> None:
        self.records: dict[str, VChannelInfo] = {}
        self.floors: dict[str, int] = {}
        self.version: int = 0
        """Grows with every change, so that a copy can be compared with what is known now."""
        self._spanned: dict[str, tuple[int, MessageType]] = {}
        self._dropped: dict[str, VChannelInfo] = {}
        """The vchannels that this client has dropped, until the floors have passed them."""

    def replace(self, states: VChannelStates) -> None:
        """Takes all vchannels from the server, in place of those known."""
        self.records.clear()
        self.update(states)

    def update(self, states: VChannelStates) -> None:
        """Takes the vchannels that changed."""
        self.take(states.vchannels)
        self.version += 1
        for pchannel, floor in states.floors.items():
            self.floors[pchannel] = max(floor, self.floors.get(pchannel, 0))
        if self._dropped:
            self._dropped = {name: info for name, info in self._dropped.items() if info.incarnation >= self.floors.get(info.pchannel, 0)}

    def take(self, states: Iterable[VChannelState]) -> None:
        """Takes single vchannels; an older incarnation than the known one is ignored.

        The floors stay: one vchannel implies nothing about earlier ones.
        """
        for state in states:
            known = self.records.get(state.name)
            if known is not None and state.incarnation < known.incarnation:
                continue
            self.version += 1
            if state.state == Existence.EXISTS:
                self.records[state.name] = state.info
            elif known is not None:
                del self.records[state.name]
                self._spanned.pop(state.name, None)

    def drop(self, info: VChannelInfo) -> None:
        """Takes the end of a vchannel that this client has dropped, before the server shows it."""
        if self.records.get(info.name) == info:
            del self.records[info.name]
        self._dropped[info.name] = info

    def is_live(self, pchannel: str, name: str, incarnation: int) -> bool:
        """Returns whether this incarnation of a vchannel lives, by the records of this client; an unknown later one does."""
        info = self.records.get(name)
        if info is not None and info.incarnation >= incarnation:
            return info.incarnation == incarnation
        dropped = self._dropped.get(name)
        return incarnation >= self.floors.get(pchannel, 0) and (dropped is None or incarnation > dropped.incarnation)

    def appended(self, name: str, message_type: MessageType, time_tick: int) -> None:
        """Takes a message of this client that no transaction may span."""
        if name in self.records and time_tick > self._spanned.get(name, (0,))[0]:
            self._spanned[name] = time_tick, message_type

    def spanned(self, names: Iterable[str], txn_id: int) -> tuple[str, MessageType] | None:
        """Returns one of these vchannels to which this client appended a message of this type after the transaction began, or None."""
        for name in names:
            tick, message_type = self._spanned.get(name, (0, MessageType.UNKNOWN))
            if tick > txn_id:  # the id of a transaction is a tick, from its begin
                return name, message_type
        return None

    def selection(self, states: Iterable[VChannelState]) -> Selection:
        """Returns the selection of a read of these vchannels, from what the server has just answered about them."""
        bound: dict[str, int | None] = {}
        floor = 0
        for state in states:
            exists = state.state == Existence.EXISTS
            bound[state.name] = state.incarnation if exists else None
            if not exists:
                floor = max(floor, state.incarnation)
        return Selection(bound, floor=floor)

    def changes(self, pchannel: str, bound: Mapping[str, int | None]) -> Iterator[tuple[str, VChannelInfo | ChannelNotExistError]]:
        """Yields what the known vchannels mean to a read of these vchannels on this pchannel, by vchannel; `bound` has their incarnations.

        A dropped vchannel ends the read with the error. If none was met and the vchannel exists on another pchannel, it is read there.
        """
        for name, incarnation in bound.items():
            info = self.records.get(name)
            if incarnation is None:
                if info is not None and info.pchannel != pchannel:
                    yield name, info
            elif (info is None or info.incarnation != incarnation) and incarnation < self.floors.get(pchannel, 0):
                yield name, ChannelNotExistError(f"vchannel {name!r} was dropped: nothing comes from it any more")


_Mark = tuple[str, int, int]
"""The pchannel of a vchannel, its state, and its incarnation if it exists."""


class RemoteDirectory:
    """The vchannels on these pchannels. `start` it before use, and `close` it. `place` names the log in warnings.

    `use` adds pchannels, which the log did not have when it was opened. A vchannel is known only once its pchannel is in use.
    """

    def __init__(
        self,
        connection: Connection,
        pchannels: Mapping[str, RemotePChannel],
        place: str,
        supervision: Supervision,
        *,
        use: Callable[[Iterable[str]], Awaitable[None]],
    ) -> None:
        self.known: ShownVChannels = ShownVChannels()
        self._connection = connection
        self._pchannels = pchannels
        self._place = place
        self._supervision = supervision
        self._use = use
        self._located: SharedCalls[Sequence[VChannelState]] = SharedCalls()
        self._refreshed: SharedCalls[None] = SharedCalls()
        self._unknown = UnknownVChannels(place, monotonic=time.monotonic)
        self._warning: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None
        self._listed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the vchannels are known; it has the error if the first watch failed."""

    async def start(self, timeout_s: float) -> None:
        """Returns when the vchannels are known. Raises UnavailableError if the server does not list them in time."""
        self._watching = self._supervision.keep(self._watch, "watch vchannels")
        if not await self._supervision.begun(self._listed, self._watching, timeout_s=timeout_s):
            raise UnavailableError(f"the server at {self._place} did not list its vchannels within {timeout_s} s: try again")

    async def close(self) -> None:
        """Ends the task, and warns of names that were read and do not exist. Idempotent."""
        if self._warning is not None:
            self._warning.cancel()
        self._unknown.warn(self.known.records, at_close=True)
        watching, self._watching = (self._watching, None)  # its cancellation holds its call, and a call holds the connection
        await end_tasks(watching)

    # -- calls

    async def located_to_write(self, names: tuple[str, ...]) -> list[VChannelInfo]:
        """Returns these vchannels, and creates missing ones; raises ChannelNotExistError if the log forbids that."""
        return [state.info for state in await self._locate(names, create=True, together=False)]

    async def pchannel_of(self, name: str) -> str:
        """Returns the present or future pchannel of a vchannel. Raises ChannelNotExistError if it cannot be created."""
        (state,) = await self._locate_to_read((name,))
        return state.pchannel

    async def attach(self, names: tuple[str, ...]) -> tuple[RemotePChannel, Selection]:
        """Returns the pchannel to read these vchannels on, caught up, and the vchannels as they are now."""
        expected = self._expected(names)
        if expected is None:
            expected = list(map(_mark, await self._locate_to_read(names)))
        while True:
            if self._unknown.note(names, self.known.records):
                self._warning = asyncio.get_running_loop().call_later(UNKNOWN_S * 1.01, lambda: self._unknown.warn(self.known.records))
            pchannel = self._pchannels[expected[0][0]]
            await pchannel.catch_up()
            # The pchannel may now show a vchannel that was created since: the selection must bind it.
            states = await self._locate_to_read(names)
            before, expected = expected, list(map(_mark, states))
            if before == expected:
                return pchannel, self.known.selection(states)

    async def attach_matching(self, pattern: Matching) -> list[tuple[RemotePChannel, Selection]]:
        """Returns all pchannels, caught up, each with the vchannels on it that match."""
        await self._refreshed.join_next("vchannels", self._refresh)
        pchannels = dict(self._pchannels)
        await asyncio.gather(*(pchannel.catch_up() for pchannel in pchannels.values()))
        return [(pchannel, ServedSelection(pattern, partial(self.known.is_live, name))) for name, pchannel in pchannels.items()]

    async def _refresh(self) -> None:
        """Brings the known pchannels and vchannels up to date, before a read that cannot begin with a stale copy."""
        pauses = Pauses()
        while True:
            try:
                responses = self._connection.responses(WATCH_VCHANNELS, cluster_pb2.WatchVChannelsRequest(), "listing the vchannels")
                async with aclosing(responses) as changes:
                    async for response in changes:
                        change = struct_from_proto(VChannelStates, response)
                        await self._use({*change.floors, *(state.pchannel for state in change.vchannels)})
                        self.known.update(change)
                        return
            except UnavailableError as error:
                if pauses.to_tell():
                    _log.warning("a read at %s has to wait: %s", self._place, error)
            await asyncio.sleep(pauses.next())

    def _expected(self, names: tuple[str, ...]) -> list[_Mark] | None:
        """Returns the marks of these vchannels from the copy, which may be old; None if one is unknown."""
        known = [self.known.records.get(name) for name in names]
        return None if None in known else [(info.pchannel, int(Existence.EXISTS), info.incarnation) for info in known if info]

    def learn(self, info: VChannelInfo) -> None:
        """Takes a vchannel that was created. If its pchannel is not in use yet, the next call or the watch learns of both."""
        if info.pchannel in self._pchannels:
            self.known.take([VChannelState(info, Existence.EXISTS)])

    @contextmanager
    def forgetting(self, names: tuple[str, ...]) -> Iterator[None]:
        """Forgets these dropped vchannels before the watch reports the drop, unless they were recreated meanwhile."""
        records = self.known.records
        before = {name: records[name] for name in names if name in records}
        yield
        for info in before.values():
            self.known.drop(info)
        if before:
            self._tell()

    async def _locate_to_read(self, names: tuple[str, ...]) -> Sequence[VChannelState]:
        return await self._located.join_next(names, lambda: self._locate(names, create=False, together=True))

    async def _locate(self, names: tuple[str, ...], *, create: bool, together: bool) -> Sequence[VChannelState]:
        states = await self._connection.submit(LocateVChannels(names, create, together))
        if [state.name for state in states] != list(names):
            raise UnknownError(f"the server at {self._place} located other vchannels than those it was asked for")
        await self._use({state.pchannel for state in states})
        self.known.take(states)
        return states

    # -- watching

    async def _watch(self) -> None:
        """Takes what changes. A server that is away, or does not lead yet, is waited for. Another failure of the first watch fails the
        opening."""
        pauses, request = Pauses(), cluster_pb2.WatchVChannelsRequest()
        while True:
            known = False
            try:
                responses = self._connection.responses(WATCH_VCHANNELS, request, "watching the vchannels")
                async with aclosing(responses) as changes:
                    async for response in changes:
                        change = struct_from_proto(VChannelStates, response)
                        await self._use({*change.floors, *(state.pchannel for state in change.vchannels)})
                        (self.known.update if known else self.known.replace)(change)
                        known = True
                        pauses.reset()
                        self._tell()
                        if not self._listed.done():
                            self._listed.set_result(None)
            except WALError as error:
                if not self._listed.done() and not isinstance(error, (ClosedError, UnavailableError)):
                    self._listed.set_exception(error)
                    return
                if pauses.to_tell():
                    _log.warning("what is known of the vchannels of %s gets older: %s", self._place, error)
            await asyncio.sleep(pauses.next())

    def _tell(self) -> None:
        """Notifies the readers of changes of their vchannels."""
        for pchannel in list(self._pchannels.values()):
            for reader in list(pchannel.readers):
                reader.changed()
                bound = {name: reader.incarnation(name) for name in reader.vchannels}
                for name, change in self.known.changes(pchannel.channel, bound):
                    if isinstance(change, WALError):
                        reader.ended_by(name, change)
                    else:
                        there = self._pchannels[change.pchannel]
                        there.follow()
                        reader.created(name, there, incarnation=change.incarnation)


def _mark(state: VChannelState) -> _Mark:
    return state.pchannel, int(state.state), state.incarnation if state.state == Existence.EXISTS else 0


_log: Final = logging.getLogger("wal.remote")
