"""CoordinatorRequests: the table of what a coordinator does with each request, for a log in this process and for the clients of a server.

An answer names only vchannels whose records are saved, so a crash never takes back a vchannel that a client has seen.

When a client disconnects, its broadcasts that still wait for resource keys are withdrawn; begun ones are completed. When a
server stops, calls that wait for keys or for acknowledgements are refused, and clients send them to the next server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

from broadcaster.message import BroadcastAppendResult, BroadcasterStatistics, BroadcastTask
from wal.channels.channels import ChannelDescription, check_channel_names
from wal.channels.metadata import IDS_KEY
from wal.channels.pchannels import PChannelMeta
from wal.channels.slices import SLICE, checked_names, sliced
from wal.channels.vchannels import NAMES_MAX, VChannelInfo, common_place, not_created, place
from wal.coordinator.coordinator import Coordinator
from wal.errors import InvalidArgumentError
from wal.message.properties import PROPERTIES_MAX
from wal.requests.broadcasts import AbortBroadcast, AckBroadcast, AppendBroadcast, AwaitResourceKey, BroadcastCounts, ListBroadcasts
from wal.requests.log import VERSION, DescribeLog, LogDescription, LogSettings, PChannelIdentity
from wal.requests.request import Answer, Request
from wal.requests.rights import Right, check_right
from wal.requests.vchannels import (
    AllocatedRange,
    AllocateIds,
    AllocateTimeTicks,
    CreateChannels,
    CreateVChannel,
    DescribeChannels,
    DestroyChannels,
    DropVChannel,
    Existence,
    ListVChannels,
    LocateVChannels,
    VChannelState,
)
from wal.timestamp import IdAllocator, TimestampOracle
from wal.write.checks import spans_pchannels
from wal.write.pchannel import PChannel


class CoordinatorRequests:
    """Executes requests on a log. `pchannels` are the pchannels of this process, and `oracle` gives ticks."""

    def __init__(
        self,
        coordinator: Coordinator,
        pchannels: Mapping[str, PChannel],
        oracle: TimestampOracle,
        *,
        name: str,
        form: int,
        frame_bytes_max: int,
        ending: Callable[[], contextlib.AbstractContextManager[None]] | None = None,
    ) -> None:
        """`name` is the backend's, `form` that of its message ids, and `frame_bytes_max` the largest frame that it takes.

        For the clients of a server `ending` is a block that ends when the server stops, and what they ask for is bounded.
        """
        self._coordinator = coordinator
        self._here = pchannels
        self._name = name
        self._form = form
        self._frame_bytes_max = frame_bytes_max
        self._of_clients = ending is not None
        self._ending = ending or contextlib.nullcontext
        self._vchannels = coordinator.vchannels
        self._pchannels = coordinator.pchannels
        self._settings = coordinator.settings
        self._oracle = oracle
        # It is never closed: a fetch that is under way when the log closes ends with the log's metadata.
        self._ids = IdAllocator(coordinator.kv, key=IDS_KEY)

    def submit(self, request: Request[Answer]) -> Coroutine[Any, Any, Answer]:
        """Returns the answer to a request. Raises InvalidArgumentError for a request to a node, and the errors of the request."""
        handle = _HANDLERS.get(type(request))
        if handle is None:
            raise InvalidArgumentError(f"{type(request).__name__} is asked of a node, or of a cluster: this is neither")
        answer: Coroutine[Any, Any, Answer] = handle(self, request)
        return answer

    async def _describe(self, _request: DescribeLog) -> LogDescription:
        return LogDescription(
            VERSION,
            self._name,
            tuple(map(self._identity, self._pchannels.values())),
            self._frame_bytes_max,
            LogSettings.of(self._settings),
            self._coordinator.log_id,
        )

    def _identity(self, meta: PChannelMeta) -> PChannelIdentity:
        """Returns what identifies the log of a pchannel, which may be away at the moment: then it is what the records say."""
        if (pchannel := self._here.get(meta.name)) is None:
            return PChannelIdentity(meta.name, meta.term, meta.incarnation, self._form)
        log = pchannel.log
        return PChannelIdentity(meta.name, log.term, log.incarnation, pchannel.origin().form, log.lineage.restores)

    # -- vchannels

    async def _locate(self, request: LocateVChannels) -> tuple[VChannelState, ...]:
        if request.create:
            check_right(Right.WRITE, "create vchannels")
        names = await checked_names(request.names)
        vchannels, pchannels = self._vchannels, list(self._pchannels)
        if request.together and names:
            if request.create:
                await self._check_together(names)
            else:
                create = self._settings.create_vchannels
                for first in range(0, len(names), SLICE):  # each with the first one, so that no two slices differ
                    some = (names[0], *names[first : first + SLICE])
                    common_place(some, vchannels.records, pchannels, create_vchannels=create)
                    await asyncio.sleep(0)
        if request.create:
            vchannels.check_new(names)
            for first in range(0, len(names), SLICE):
                await self._create_all(names[first : first + SLICE])
        else:
            for first in range(0, len(names), SLICE):
                while saving := self._saving(names[first : first + SLICE]):
                    await asyncio.wait(saving)  # a failed broadcast is not in the table afterwards
        return tuple([self._state(name, pchannels) async for name in sliced(names)])

    async def _create_all(self, names: Sequence[str]) -> None:
        """Creates those of these vchannels that do not exist, durably."""
        records = self._vchannels.records
        for name in names:
            if name not in records:
                self._vchannels.create_nowait(name)
        # Each is waited for, so that no failure is left unseen; the first one is raised.
        saving = map(asyncio.shield, self._saving(names))
        for outcome in await asyncio.gather(*saving, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    def _saving(self, names: Sequence[str]) -> list[asyncio.Future[None]]:
        saving = self._vchannels.saving
        return [saving[name] for name in names if name in saving]

    async def _check_together(self, names: Iterable[str]) -> None:
        """Raises InvalidArgumentError if these vchannels are on several pchannels, or would be when they are created."""
        records, pchannels = self._vchannels.records, list(self._pchannels)
        places = {name: records[name].pchannel if name in records else place(name, pchannels) async for name in sliced(names)}
        if len(set(places.values())) > 1:
            raise spans_pchannels(places)

    def _state(self, name: str, pchannels: list[str]) -> VChannelState:
        """Returns a vchannel's present state. Raises ChannelNotExistError if it does not exist and an append may not create it."""
        vchannels = self._vchannels
        info = vchannels.records.get(name)
        if info is not None:
            return VChannelState(info, Existence.EXISTS)
        if not self._settings.create_vchannels:
            raise not_created(name)
        return VChannelState(VChannelInfo(name, place(name, pchannels), vchannels.next_incarnation), Existence.UNKNOWN)

    async def _create(self, request: CreateVChannel) -> VChannelInfo:
        return await self._vchannels.create(request.name, request.pchannel)

    async def _drop(self, request: DropVChannel) -> None:
        await self._vchannels.drop(request.name)

    async def _list(self, _request: ListVChannels) -> tuple[VChannelInfo, ...]:
        return tuple(self._vchannels.durable() if self._of_clients else self._vchannels.records.values())

    async def _create_channels(self, request: CreateChannels) -> tuple[str, ...]:
        return tuple(await self._vchannels.create_channels(request.owner, request.count))

    async def _destroy_channels(self, request: DestroyChannels) -> None:
        await self._vchannels.destroy_channels(request.names)

    async def _describe_channels(self, request: DescribeChannels) -> tuple[ChannelDescription, ...]:
        names = request.names
        return tuple(self._vchannels.describe_channels(None if names is None else check_channel_names(names, names_max=NAMES_MAX)))

    # -- ticks and ids

    async def _allocate_time_ticks(self, request: AllocateTimeTicks) -> AllocatedRange:
        if request.seen_time_tick:
            await self._oracle.observe_seen(request.seen_time_tick)
        ticks = await self._oracle.get_timestamp(request.count, bounded=self._of_clients)
        return AllocatedRange(ticks.start, len(ticks))

    async def _allocate_ids(self, request: AllocateIds) -> AllocatedRange:
        await self._ids.start()
        ids = await self._ids.alloc(request.count)
        return AllocatedRange(ids.start, len(ids))

    # -- broadcasts

    async def _append_broadcast(self, request: AppendBroadcast) -> BroadcastAppendResult:
        if self._of_clients:
            message, settings = request.message, self._settings
            _check_count("vchannels", len(message.vchannels), "broadcast_vchannels_max", settings.broadcast_vchannels_max)
            _check_count("properties", len(message.properties), "PROPERTIES_MAX", PROPERTIES_MAX)
            message.check_size(message_bytes_max=settings.message_bytes_max, frame_bytes_max=self._frame_bytes_max)
        if request.seen_time_tick:
            await self._oracle.observe_seen(request.seen_time_tick)
        return await (await self._coordinator.running_broadcasts()).append(request.message, wait=request.wait)

    async def _ack_broadcast(self, request: AckBroadcast) -> None:
        await (await self._coordinator.running_broadcasts()).ack(request.broadcast_id, request.vchannel)

    async def _await_resource_key(self, request: AwaitResourceKey) -> None:
        broadcasts = await self._coordinator.running_broadcasts()
        with self._ending():
            if request.everywhere:
                await broadcasts.block_until_resource_key_ack_all(request.key)
            else:
                await broadcasts.block_until_resource_key_ack_once(request.key)

    async def _list_broadcasts(self, _request: ListBroadcasts) -> tuple[BroadcastTask, ...]:
        return tuple(await (await self._coordinator.running_broadcasts()).tasks())

    async def _abort_broadcast(self, request: AbortBroadcast) -> None:
        await (await self._coordinator.running_broadcasts()).abort(request.broadcast_id, request.reason)

    async def _count_broadcasts(self, _request: BroadcastCounts) -> BroadcasterStatistics:
        return (await self._coordinator.running_broadcasts()).statistics()


def _check_count(what: str, count: int, bound: str, most: int) -> None:
    """Raises InvalidArgumentError before anything is done with more than a broadcast may have."""
    if count > most:
        raise InvalidArgumentError(f"a broadcast with {count} {what} exceeds {bound}={most} of the server: send several broadcasts")


_HANDLERS: Final[Mapping[type[Request[Any]], Callable[[CoordinatorRequests, Any], Coroutine[Any, Any, Any]]]] = {
    DescribeLog: CoordinatorRequests._describe,
    LocateVChannels: CoordinatorRequests._locate,
    CreateVChannel: CoordinatorRequests._create,
    DropVChannel: CoordinatorRequests._drop,
    ListVChannels: CoordinatorRequests._list,
    CreateChannels: CoordinatorRequests._create_channels,
    DestroyChannels: CoordinatorRequests._destroy_channels,
    DescribeChannels: CoordinatorRequests._describe_channels,
    AllocateTimeTicks: CoordinatorRequests._allocate_time_ticks,
    AllocateIds: CoordinatorRequests._allocate_ids,
    AppendBroadcast: CoordinatorRequests._append_broadcast,
    AckBroadcast: CoordinatorRequests._ack_broadcast,
    AwaitResourceKey: CoordinatorRequests._await_resource_key,
    ListBroadcasts: CoordinatorRequests._list_broadcasts,
    AbortBroadcast: CoordinatorRequests._abort_broadcast,
    BroadcastCounts: CoordinatorRequests._count_broadcasts,
}
"""By the type of a request."""
