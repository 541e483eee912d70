"""RemoteSchedules: the messages of a log on the network that wait for their time. The server that has a pchannel keeps them.

A message with an idempotency key is sent until it is answered. Without one it is sent once, as a plain append is: without an answer its
outcome is unknown, and `log.scheduled` says whether it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from wal.channels.vchannels import VChannelInfo, check_vchannel
from wal.client.calls import SeenTick
from wal.client.directory import ShownVChannels
from wal.client.nodes import Nodes
from wal.errors import ChannelNotExistError
from wal.message import AppendResult, Message, ScheduledMessage, ScheduledResult
from wal.rpc.api import pchannel_calls_pb2 as proto
from wal.rpc.api.pchannel_pb2 import PChannelInfo
from wal.rpc.converters import id_from_bytes
from wal.rpc.methods import CANCEL_SCHEDULED, LIST_SCHEDULED, SCHEDULE
from wal.settings import Settings
from wal.timestamp.timestamp import compose, to_datetime
from wal.write.checks import check_client_type, kept_key_ext, record_of
from wal.write.idempotency.keys import key_ext
from wal.write.in_flight import InFlight
from wal.write.txn_table import BODY_OVERHEAD

CALLS_MAX: Final = 64
"""The most calls that are under way; others wait for them. A server takes 1,024 of a connection."""
_Answer = TypeVar("_Answer")


class RemoteSchedules:
    """The scheduled messages of a log.

    `locate` asks where vchannels are, and creates those that do not exist; `pchannel_of` asks where one is, or would be created.
    """

    def __init__(
        self,
        known: ShownVChannels,
        nodes: Nodes,
        in_flight: InFlight,
        seen: SeenTick,
        settings: Settings,
        *,
        locate: Callable[[tuple[str, ...]], Awaitable[list[VChannelInfo]]],
        pchannel_of: Callable[[str], Awaitable[str]],
    ) -> None:
        self._known = known
        self._nodes = nodes
        self._in_flight = in_flight
        self._seen = seen
        self._settings = settings
        self._locate = locate
        self._pchannel_of = pchannel_of
        self._calls = asyncio.Semaphore(CALLS_MAX)

    async def schedule(self, message: Message, due_ms: int, key: str, *, keyed: bool) -> ScheduledResult:
        """Schedules a message when there is room in flight; see `wal.engine.Appends`."""
        record = record_of(message, bytes_max=self._settings.message_bytes_max)
        check_client_type(message.message_type)
        check_vchannel(message.vchannel)
        ext = kept_key_ext(key, self._settings) if keyed else key_ext(key)
        send: Any = self._nodes.repeat if keyed else self._nodes.write
        size = len(record.payload) + len(record.properties) + len(ext) + BODY_OVERHEAD

        async def call(pchannel: str) -> proto.ScheduleResponse:
            request = proto.ScheduleRequest(
                pchannel=PChannelInfo(name=pchannel),
                vchannel=message.vchannel,
                payload=message.payload,
                properties=message.properties,
                due_ms=due_ms,
                key=key,
                keyed=keyed,
                seen_time_tick=self._seen.value,
            )
            answer: proto.ScheduleResponse = await send(pchannel, SCHEDULE, request, f"scheduling a message on {message.vchannel!r}")
            return answer

        await self._in_flight.take(size)
        try:
            async with self._calls:
                answer = await self._at_vchannel(message.vchannel, call, self._located)
        finally:
            self._in_flight.release(size)
        deliver_at = to_datetime(compose(answer.due_ms))
        if not answer.appended:
            return ScheduledResult(key, deliver_at, None, answer.duplicate)
        self._seen.saw(answer.time_tick)
        message_id = id_from_bytes("appended", answer.appended)
        appended = AppendResult(message_id, answer.time_tick, message_id, duplicate=answer.duplicate)
        return ScheduledResult(key, deliver_at, appended, answer.duplicate)

    async def listed(self, vchannel: str) -> list[ScheduledMessage]:
        """Returns the messages of a vchannel that wait for their time, the earliest first."""
        pchannel, listed = await self._pchannel_of(vchannel), list[ScheduledMessage]()
        request = proto.ListScheduledRequest(pchannel=PChannelInfo(name=pchannel), vchannel=vchannel)
        while True:
            page = await self._nodes.read(pchannel, LIST_SCHEDULED, request, f"listing what is scheduled on {vchannel!r}")
            if not page.messages:
                return listed
            listed += [ScheduledMessage(one.key, to_datetime(compose(one.due_ms)), one.size) for one in page.messages]
            request.after_due_ms, request.after_number = page.messages[-1].due_ms, page.messages[-1].number

    async def cancel(self, vchannel: str, key: str) -> bool:
        """Cancels a scheduled message durably; see `wal.engine.Appends`."""

        async def call(pchannel: str) -> proto.CancelScheduledResponse:
            request = proto.CancelScheduledRequest(pchannel=PChannelInfo(name=pchannel), vchannel=vchannel, key=key)
            return await self._nodes.write(pchannel, CANCEL_SCHEDULED, request, f"cancelling a message on {vchannel!r}")

        async with self._calls:
            return (await self._at_vchannel(vchannel, call, self._pchannel_of)).cancelled

    async def _located(self, vchannel: str) -> str:
        (info,) = await self._locate((vchannel,))
        return info.pchannel

    async def _at_vchannel(
        self, vchannel: str, call: Callable[[str], Awaitable[_Answer]], find: Callable[[str], Awaitable[str]]
    ) -> _Answer:
        """Makes a call for the pchannel of a vchannel. If the vchannel is not there, asks once more where it is."""
        info = self._known.records.get(vchannel)
        if info is not None:
            try:
                return await call(info.pchannel)
            except ChannelNotExistError:
                pass  # it was dropped, and is elsewhere perhaps
        return await call(await find(vchannel))
