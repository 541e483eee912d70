"""The handlers of a node for requests about messages that wait for their time (`wal.requests.schedule`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from wal.errors import ChannelNotExistError
from wal.message import AppendResult, ForgottenResult, ScheduledMessage, ScheduledResult
from wal.node.node import StreamingNode
from wal.node.routes import tell
from wal.requests.request import Request
from wal.requests.schedule import CancelMessage, ListScheduled, ScheduleMessage
from wal.timestamp.timestamp import compose, to_datetime
from wal.write.checks import record_of
from wal.write.idempotency.keys import key_ext
from wal.write.operations import CancelScheduled, ScheduledAppend
from wal.write.pchannel import PChannel

LISTED: Final = 4096
"""How many messages are listed before other tasks get their turn."""


async def _schedule(node: StreamingNode, request: ScheduleMessage, _pchannel: PChannel) -> ScheduledResult:
    """Schedules a message when there is room in flight for it."""
    if request.seen_time_tick:
        await node.oracle.observe_seen(request.seen_time_tick)
    record, size = record_of(request.message, bytes_max=node.settings.message_bytes_max), request.room
    key, ext = request.key, key_ext(request.key) if request.keyed else b""
    await node.in_flight.take(size)
    future: asyncio.Future[AppendResult | ForgottenResult | ScheduledResult] = asyncio.get_running_loop().create_future()
    payload, kind, properties, due_ms = record.payload, record.message_type, record.properties, request.due_ms
    operation = ScheduledAppend(payload, kind, 0, properties, ext, future, size, 0, False, key, None, due_ms, request.keyed)
    try:
        tell(node.routes.route(request.vchannel), operation)
    except BaseException:
        node.in_flight.release(size)
        raise
    result = await future
    if isinstance(result, ScheduledResult):
        return result
    assert result.message_id is not None, "only a producer's results are forgotten"
    return ScheduledResult(key, to_datetime(compose(due_ms)), result, result.duplicate)


async def _list(node: StreamingNode, request: ListScheduled, pchannel: PChannel) -> tuple[ScheduledMessage, ...]:
    incarnation = node.routes.incarnation(request.vchannel)
    if incarnation is None:
        return ()
    listed: list[ScheduledMessage] = []
    for number, message in enumerate(pchannel.schedule.table.listed((request.vchannel, incarnation)), 1):
        listed.append(ScheduledMessage(message.key, to_datetime(compose(message.due_ms)), message.size))
        if number % LISTED == 0:
            await asyncio.sleep(0)
    return tuple(listed)


async def _cancel(node: StreamingNode, request: CancelMessage, _pchannel: PChannel) -> bool:
    if request.vchannel not in node.routes.known.records:
        raise ChannelNotExistError(f"vchannel {request.vchannel!r} does not exist: nothing is scheduled on it")
    future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    tell(node.routes.route(request.vchannel), CancelScheduled(request.key, future))
    return await future


HANDLERS: Final[Mapping[type[Request[Any]], Callable[[StreamingNode, Any, Any], Awaitable[Any]]]] = {
    ScheduleMessage: _schedule,
    ListScheduled: _list,
    CancelMessage: _cancel,
}
