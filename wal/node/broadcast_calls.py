"""BroadcastCalls: the calls of LogService that concern broadcasts.

When a client disconnects, its calls that still wait for resource keys are withdrawn; broadcasts that have begun are completed. When the
node stops, calls that wait for keys or for acknowledgements are refused, and clients send them to the next server.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.empty_pb2 import Empty

from wal.engine.local.log import LocalLog
from wal.errors import InvalidArgumentError
from wal.network import Method
from wal.node.draining import Draining
from wal.rpc.api import cluster_pb2 as proto
from wal.rpc.broadcasts import broadcast_from_proto, key_from_proto, result_to_proto, task_to_proto
from wal.rpc.columns import PROPERTIES_MAX
from wal.rpc.methods import (
    ABORT_BROADCAST,
    ACK_BROADCAST,
    APPEND_BROADCAST,
    AWAIT_RESOURCE_KEY,
    GET_BROADCAST_STATISTICS,
    LIST_BROADCASTS,
)
from wal.rpc.reports import broadcaster_to_proto
from wal.rpc.serving import Handler

__all__ = ["BroadcastCalls"]


class BroadcastCalls:
    """Serves the broadcaster of an open log, until `draining` begins."""

    def __init__(self, log: LocalLog, draining: Draining) -> None:
        self._log = log
        self._draining = draining
        draining.on_begin(lambda: log.broadcasts.end_waiting(draining.error))

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
        log = self._log
        _check_count(
            "vchannels", len(request.vchannels), "broadcast_vchannels_max", log.settings.broadcast_vchannels_max
        )
        _check_count("properties", len(request.properties), "PROPERTIES_MAX", PROPERTIES_MAX)
        message = broadcast_from_proto(request)
        message.check_size(message_bytes_max=log.appends.message_bytes_max, frame_bytes_max=log.frame_bytes_max)
        log.oracle.observe(request.seen_time_tick)
        return result_to_proto(await log.broadcasts.append(message, wait=request.wait))

    async def _ack(self, request: proto.AckBroadcastRequest, _context: object) -> Empty:
        await self._log.broadcasts.ack(request.broadcast_id, request.vchannel)
        return Empty()

    async def _await_key(self, request: proto.AwaitResourceKeyRequest, _context: object) -> Empty:
        key, broadcasts = key_from_proto(request.key), self._log.broadcasts
        with self._draining.ending():
            if request.all:
                await broadcasts.block_until_resource_key_ack_all(key)
            else:
                await broadcasts.block_until_resource_key_ack_once(key)
        return Empty()

    async def _list(self, _request: proto.ListBroadcastsRequest, _context: object) -> proto.BroadcastTasks:
        return proto.BroadcastTasks(tasks=map(task_to_proto, await self._log.broadcasts.tasks()))

    async def _abort(self, request: proto.AbortBroadcastRequest, _context: object) -> Empty:
        await self._log.broadcasts.abort(request.broadcast_id, request.reason)
        return Empty()

    async def _statistics(self, _request: proto.ListBroadcastsRequest, _context: object) -> proto.BroadcastStatistics:
        return broadcaster_to_proto(self._log.broadcasts.statistics())


def _check_count(what: str, count: int, bound: str, most: int) -> None:
    """Raises InvalidArgumentError before anything is done with more than a broadcast may have."""
    if count > most:
        raise InvalidArgumentError(
            f"a broadcast with {count} {what} is over {bound}={most} of the server: send several broadcasts"
        )
