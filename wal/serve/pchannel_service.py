"""PChannelService: the calls that belong to one pchannel. The node that has the pchannel serves them, in the term that a request names.

The calls about frames are in `frame_calls.py`; those that schedule messages are below.
"""

from __future__ import annotations

from typing import Any, Final

from wal.channels.vchannels import check_vchannel
from wal.errors import InvalidArgumentError
from wal.message import Message
from wal.network import Method
from wal.node.node import StreamingNode
from wal.rpc.api import pchannel_calls_pb2 as proto
from wal.rpc.api.pchannel_pb2 import PChannelInfo
from wal.rpc.converters import id_to_bytes
from wal.rpc.methods import CANCEL_SCHEDULED, LIST_SCHEDULED, SCHEDULE
from wal.rpc.serving import Draining, Handler
from wal.serve.frame_calls import FrameCalls
from wal.serve.hosted import Hosted
from wal.serve.request_stream import Places
from wal.timestamp.timestamp import LOGICAL_BITS, MILLISECONDS_MAX, from_datetime
from wal.write.idempotency.keys import check_key
from wal.write.pchannel import PChannel


class PChannelService:
    """Serves the pchannels of an open log that are `hosted` here."""

    def __init__(self, node: StreamingNode, hosted: Hosted, draining: Draining) -> None:
        self._node = node
        self._hosted = hosted
        self._schedules = ScheduleCalls(node, hosted)
        self._frames = FrameCalls(hosted, draining)

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handlers of all methods of the service."""
        return {**self._schedules.handlers(), **self._frames.handlers()}


SCHEDULED_A_PAGE: Final = 1000
"""The most messages of a page of ListScheduled: some 100 KB."""


class ScheduleCalls:
    """Schedules messages for a later time, lists and cancels them, on the pchannels that are `hosted` here.

    The vchannel of a request exists: its client had it created before. It is looked for as an append looks for it, since what is known here
    may lag behind what the client knows.
    """

    def __init__(self, node: StreamingNode, hosted: Hosted) -> None:
        self._node = node
        self._hosted = hosted

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handlers of these calls."""
        return {SCHEDULE: self._schedule, LIST_SCHEDULED: self._list, CANCEL_SCHEDULED: self._cancel}

    async def _schedule(self, request: proto.ScheduleRequest, _context: object) -> proto.ScheduleResponse:
        await self._check(request.pchannel, request.vchannel)
        key = check_key(request.key)
        assert isinstance(key, str), "the field is a string"
        if request.due_ms > MILLISECONDS_MAX:
            raise InvalidArgumentError(f"due_ms={request.due_ms} is after the last time tick: at most {MILLISECONDS_MAX} (the year 4199)")
        await self._node.oracle.observe_seen(request.seen_time_tick)
        message = Message(request.vchannel, request.payload, properties=dict(request.properties))
        result = await self._node.appends.schedule(message, request.due_ms, key, keyed=request.keyed)
        response = proto.ScheduleResponse(due_ms=from_datetime(result.deliver_at) >> LOGICAL_BITS, duplicate=result.duplicate)
        if result.appended is not None:
            response.appended, response.time_tick = id_to_bytes(result.appended.message_id), result.appended.time_tick
        return response

    async def _list(self, request: proto.ListScheduledRequest, _context: object) -> proto.ScheduledMessages:
        pchannel = await self._check(request.pchannel, request.vchannel)
        name, incarnation = request.vchannel, self._node.routes.incarnation(request.vchannel)
        if incarnation is None:
            return proto.ScheduledMessages()
        after = (request.after_due_ms, request.after_number)
        listed = pchannel.schedule.table.listed((name, incarnation), after=after, count=SCHEDULED_A_PAGE)
        return proto.ScheduledMessages(
            messages=[
                proto.ScheduledMessage(number=message.number, due_ms=message.due_ms, key=message.key, size=message.size)
                for message in listed
            ]
        )

    async def _cancel(self, request: proto.CancelScheduledRequest, _context: object) -> proto.CancelScheduledResponse:
        await self._check(request.pchannel, request.vchannel)
        check_key(request.key)
        return proto.CancelScheduledResponse(cancelled=await self._node.appends.cancel_scheduled(request.vchannel, request.key))

    async def _check(self, info: PChannelInfo, vchannel: str) -> PChannel:
        """Returns the pchannel of a request for this vchannel; raises as `Hosted.find` and `Places.check` do."""
        pchannel = self._hosted.find(info)
        await Places(self._node.routes, pchannel.channel).check(check_vchannel(vchannel))
        return self._hosted.find(info)  # it may have gone meanwhile, and so may its lease
