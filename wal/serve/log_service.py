"""LogService: the calls that belong to the log as a whole. A process that is its coordinator and its only node serves them from its log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Final

from wal.channels.channels import CHANNELS_MAX, ChannelDescription, check_channel_count, check_channel_names
from wal.channels.metadata import IDS_KEY
from wal.channels.pchannels import PChannelMeta
from wal.channels.vchannels import VChannelInfo, common_place, place
from wal.coordinator.coordinator import Coordinator
from wal.errors import ChannelNotExistError, InvalidArgumentError, WouldBlockError
from wal.message import Lineage, Origin
from wal.network import Method
from wal.requests.rights import Right, check_right
from wal.rpc.api import cluster_pb2 as proto
from wal.rpc.api.pchannel_pb2 import LogIdentity, VChannelState
from wal.rpc.appends import PROPERTIES_MAX
from wal.rpc.broadcasts import broadcast_from_proto, key_from_proto, result_to_proto, task_to_proto
from wal.rpc.converters import (
    broadcaster_to_proto,
    identity_to_proto,
    owner_from_proto,
    owner_to_proto,
    settings_to_proto,
    vchannel_to_proto,
)
from wal.rpc.methods import (
    ABORT_BROADCAST,
    ACK_BROADCAST,
    ALLOCATE_IDS,
    ALLOCATE_TIME_TICKS,
    APPEND_BROADCAST,
    AWAIT_RESOURCE_KEY,
    CREATE_CHANNELS,
    CREATE_VCHANNEL,
    DESCRIBE_CHANNELS,
    DESCRIBE_LOG,
    DESTORY_CHANNELS,
    DROP_VCHANNEL,
    GET_BROADCAST_STATISTICS,
    LIST_BROADCASTS,
    LIST_VCHANNELS,
    LOCATE_VCHANNELS,
    WATCH_VCHANNELS,
)
from wal.rpc.serving import NAMES_MAX, SLICE, Draining, Handler, checked_names, encoded, sliced
from wal.serve.hosted import identity_of
from wal.timestamp import IdAllocator, TimestampOracle
from wal.write.checks import spans_pchannels
from wal.write.pchannel import PChannel

BEHIND_MAX: Final = 65_536
"""The most vchannels that changed since a watcher was last told: with more, telling it everything again costs less."""


class VChannelCalls:
    """The calls of LogService that create, end, find and list vchannels and channels.

    An answer names only vchannels whose records are saved, so that a client never sees one that a crash takes back.

    Its streams end when `draining` begins.
    """

    def __init__(self, coordinator: Coordinator, draining: Draining) -> None:
        self._vchannels = coordinator.vchannels
        self._pchannels = coordinator.pchannels
        self._settings = coordinator.settings
        self._draining = draining

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handlers of these calls."""
        return {
            LOCATE_VCHANNELS: self._locate,
            CREATE_VCHANNEL: self._create,
            DROP_VCHANNEL: self._drop,
            LIST_VCHANNELS: self._list,
            WATCH_VCHANNELS: self._watch,
            CREATE_CHANNELS: self._create_channels,
            DESTORY_CHANNELS: self._destroy_channels,
            DESCRIBE_CHANNELS: self._describe_channels,
        }

    async def _locate(self, request: proto.LocateVChannelsRequest, _context: object) -> bytes:
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
                    await asyncio.wait(saving)  # one that fails is not there afterwards
        return await encoded(names, lambda some: proto.LocateVChannelsResponse(vchannels=[self._state(name, pchannels) for name in some]))

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

    async def _create(self, request: proto.CreateVChannelRequest, _context: object) -> VChannelState:
        return vchannel_to_proto(await self._vchannels.create(request.name, request.pchannel or None))

    async def _drop(self, request: proto.DropVChannelRequest, _context: object) -> None:
        await self._vchannels.drop(request.name)

    async def _list(self, _request: proto.ListVChannelsRequest, _context: object) -> bytes:
        return await self._states()

    async def _watch(self, _request: proto.WatchVChannelsRequest, _context: object) -> AsyncIterator[bytes]:
        directory = self._vchannels.directory
        changed: dict[str, VChannelState] = {}
        woken = asyncio.Event()

        def note(changes: Iterable[tuple[VChannelInfo, bool]]) -> None:
            if len(changed) <= BEHIND_MAX:  # otherwise it has missed some already
                changed.update((info.name, _told(info, exists=exists)) for info, exists in changes)
            woken.set()

        directory.watchers[note] = None
        stop_waiting = self._draining.on_begin(woken.set)
        try:
            yield await self._states()
            while True:
                await woken.wait()
                woken.clear()
                if self._draining.begun:
                    raise self._draining.error()
                if len(changed) > BEHIND_MAX:
                    raise WouldBlockError(
                        f"{len(changed)} vchannels changed while this client read nothing, and {BEHIND_MAX} are kept for it: watch again"
                    )
                news, floors = list(changed.values()), self._floors()
                changed.clear()
                yield await encoded(news, lambda some: proto.VChannelStates(vchannels=some), proto.VChannelStates(floors=floors))
        finally:
            stop_waiting()
            directory.watchers.pop(note, None)

    async def _create_channels(self, request: proto.CreateChannelsRequest, _context: object) -> proto.ChannelNames:
        owner = owner_from_proto(request.owner)
        return proto.ChannelNames(names=await self._vchannels.create_channels(owner, check_channel_count(request.count)))

    async def _destroy_channels(self, request: proto.ChannelNames, _context: object) -> None:
        await self._vchannels.destroy_channels(_names(request, CHANNELS_MAX))

    async def _describe_channels(self, request: proto.ChannelNames, _context: object) -> bytes:
        names = _names(request, NAMES_MAX) or None
        return await encoded(self._vchannels.describe_channels(names), _descriptions)

    async def _check_together(self, names: Iterable[str]) -> None:
        """Raises InvalidArgumentError if these vchannels are on several pchannels, or would be when they are created."""
        records, pchannels = self._vchannels.records, list(self._pchannels)
        places = {name: records[name].pchannel if name in records else place(name, pchannels) async for name in sliced(names)}
        if len(set(places.values())) > 1:
            raise spans_pchannels(places)

    def _state(self, name: str, pchannels: list[str]) -> VChannelState:
        """Returns a vchannel as it is now. Raises ChannelNotExistError for one that neither exists nor may be created by an append."""
        vchannels = self._vchannels
        info = vchannels.records.get(name)
        if info is not None:
            return vchannel_to_proto(info)
        if not self._settings.create_vchannels:
            raise ChannelNotExistError(
                f"vchannel {name!r} does not exist and create_vchannels is off: make it with create_vchannel({name!r})"
            )
        return VChannelState(name=name, pchannel=place(name, pchannels), incarnation=vchannels.next_incarnation)

    async def _states(self) -> bytes:
        # The floors first: a vchannel that is created meanwhile is not below them.
        floors, saved = self._floors(), list(self._vchannels.durable())
        return await encoded(saved, _told_of, proto.VChannelStates(floors=floors))

    def _floors(self) -> dict[str, int]:
        return dict.fromkeys(self._pchannels, self._vchannels.directory.saved_next)


def _told(info: VChannelInfo, *, exists: bool) -> VChannelState:
    state = vchannel_to_proto(info)
    if not exists:
        state.state = VChannelState.DROPPED
    return state


def _told_of(infos: list[VChannelInfo]) -> proto.VChannelStates:
    return proto.VChannelStates(vchannels=map(vchannel_to_proto, infos))


def _descriptions(channels: list[ChannelDescription]) -> proto.ChannelDescriptions:
    return proto.ChannelDescriptions(
        channels=[proto.ChannelDescription(name=channel.channel_name, owner=owner_to_proto(channel.owner)) for channel in channels]
    )


def _names(request: proto.ChannelNames, names_max: int) -> tuple[str, ...]:
    """Returns the names of channels, which are counted before anything is done with them."""
    if len(request.names) > names_max:
        raise InvalidArgumentError(f"names has {len(request.names)} channels, and one call takes at most {names_max}: make several calls")
    return check_channel_names(request.names)


class BroadcastCalls:
    """The calls of LogService that concern broadcasts.

    When a client disconnects, its calls that still wait for resource keys are withdrawn; broadcasts that have begun are completed. When the
    node stops, calls that wait for keys or for acknowledgements are refused, and clients send them to the next server.

    Serves the broadcaster of a log, until `draining` begins. A client's ticks are below those that `oracle` gives from then on.
    """

    def __init__(self, coordinator: Coordinator, oracle: TimestampOracle, draining: Draining, *, frame_bytes_max: int) -> None:
        self._running = coordinator.running_broadcasts
        self._settings = coordinator.settings
        self._oracle = oracle
        self._draining = draining
        self._frame_bytes_max = frame_bytes_max
        draining.on_begin(lambda: coordinator.end_waiting(draining.error))

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handlers of these calls."""
        return {
            APPEND_BROADCAST: self._append,
            ACK_BROADCAST: self._ack,
            AWAIT_RESOURCE_KEY: self._await_key,
            LIST_BROADCASTS: self._list,
            ABORT_BROADCAST: self._abort,
            GET_BROADCAST_STATISTICS: self._statistics,
        }

    async def _append(self, request: proto.AppendBroadcastRequest, _context: object) -> proto.AppendBroadcastResponse:
        settings = self._settings
        _check_count("vchannels", len(request.vchannels), "broadcast_vchannels_max", settings.broadcast_vchannels_max)
        _check_count("properties", len(request.properties), "PROPERTIES_MAX", PROPERTIES_MAX)
        message = broadcast_from_proto(request)
        message.check_size(message_bytes_max=settings.message_bytes_max, frame_bytes_max=self._frame_bytes_max)
        await self._oracle.observe_seen(request.seen_time_tick)
        return result_to_proto(await (await self._running()).append(message, wait=request.wait))

    async def _ack(self, request: proto.AckBroadcastRequest, _context: object) -> None:
        await (await self._running()).ack(request.broadcast_id, request.vchannel)

    async def _await_key(self, request: proto.AwaitResourceKeyRequest, _context: object) -> None:
        key, broadcasts = key_from_proto(request.key), await self._running()
        with self._draining.ending():
            if request.all:
                await broadcasts.block_until_resource_key_ack_all(key)
            else:
                await broadcasts.block_until_resource_key_ack_once(key)

    async def _list(self, _request: proto.ListBroadcastsRequest, _context: object) -> proto.BroadcastTasks:
        return proto.BroadcastTasks(tasks=map(task_to_proto, await (await self._running()).tasks()))

    async def _abort(self, request: proto.AbortBroadcastRequest, _context: object) -> None:
        await (await self._running()).abort(request.broadcast_id, request.reason)

    async def _statistics(self, _request: proto.ListBroadcastsRequest, _context: object) -> proto.BroadcastStatistics:
        return broadcaster_to_proto((await self._running()).statistics())


def _check_count(what: str, count: int, bound: str, most: int) -> None:
    """Raises InvalidArgumentError before anything is done with more than a broadcast may have."""
    if count > most:
        raise InvalidArgumentError(f"a broadcast with {count} {what} is over {bound}={most} of the server: send several broadcasts")


_ONE: Final = 1
"""What a request without a count asks for."""


class LogService:
    """Serves a log. `pchannels` are those that are in this process, and `oracle` gives ticks. Its streams end when `draining` begins."""

    def __init__(
        self,
        coordinator: Coordinator,
        pchannels: Mapping[str, PChannel],
        oracle: TimestampOracle,
        draining: Draining,
        *,
        name: str,
        form: int,
        frame_bytes_max: int,
    ) -> None:
        """`name` is the backend's, `form` that of its message ids, and `frame_bytes_max` the largest frame that it takes."""
        self._coordinator = coordinator
        self._pchannels = pchannels
        self._oracle = oracle
        self._name = name
        self._form = form
        self._frame_bytes_max = frame_bytes_max
        self._vchannels = VChannelCalls(coordinator, draining)
        self._broadcasts = BroadcastCalls(coordinator, oracle, draining, frame_bytes_max=frame_bytes_max)
        # It is never closed: a fetch that is under way when the log closes ends with the log's metadata.
        self._ids = IdAllocator(coordinator.kv, key=IDS_KEY)

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handlers of all methods of the service."""
        return {
            DESCRIBE_LOG: self._describe,
            ALLOCATE_TIME_TICKS: self._allocate_time_ticks,
            ALLOCATE_IDS: self._allocate_ids,
            **self._vchannels.handlers(),
            **self._broadcasts.handlers(),
        }

    async def _describe(self, _request: proto.DescribeLogRequest, _context: object) -> proto.LogDescription:
        return proto.LogDescription(
            wal_name=self._name,
            pchannels=map(self._identity, self._coordinator.pchannels.values()),
            frame_bytes_max=self._frame_bytes_max,
            settings=settings_to_proto(self._coordinator.settings),
            log_id=self._coordinator.log_id,
            judges_expected_last=True,
            saves_cursors=True,
        )

    def _identity(self, meta: PChannelMeta) -> LogIdentity:
        """Returns what identifies the log of a pchannel, which may be away at the moment: then it is what the records say."""
        if (pchannel := self._pchannels.get(meta.name)) is not None:
            return identity_of(pchannel)
        origin = Origin(meta.name, meta.incarnation, 0, self._form)
        return identity_to_proto(origin, term=meta.term, lineage=Lineage(meta.incarnation, ()))

    async def _allocate_time_ticks(self, request: proto.AllocateRequest, _context: object) -> proto.AllocatedRange:
        oracle = self._oracle
        await oracle.observe_seen(request.seen_time_tick)
        ticks = await oracle.get_timestamp(request.count or _ONE, bounded=True)
        return proto.AllocatedRange(first=ticks.start, count=len(ticks))

    async def _allocate_ids(self, request: proto.AllocateRequest, _context: object) -> proto.AllocatedRange:
        await self._ids.start()
        ids = await self._ids.alloc(request.count or _ONE)
        return proto.AllocatedRange(first=ids.start, count=len(ids))
