"""LogService: the calls that belong to the log as a whole. A process that is its coordinator and its only node serves them from its log."""

from __future__ import annotations

from typing import Any, Final

from wal.engine.local.log import LocalLog
from wal.engine.metadata import IDS_KEY
from wal.network import Method
from wal.node.broadcast_calls import BroadcastCalls
from wal.node.draining import Draining
from wal.node.tails import identity_of
from wal.node.vchannel_calls import VChannelCalls
from wal.rpc.api import cluster_pb2 as proto
from wal.rpc.methods import ALLOCATE_IDS, ALLOCATE_TIME_TICKS, DESCRIBE_LOG
from wal.rpc.reports import settings_to_proto
from wal.rpc.serving import Handler
from wal.timestamp import IdAllocator

__all__ = ["LogService"]

_ONE: Final = 1
"""What a request without a count asks for."""


class LogService:
    """Serves an open log. Its streams end when `draining` begins."""

    def __init__(self, log: LocalLog, draining: Draining) -> None:
        self._log = log
        self._vchannels = VChannelCalls(log, draining)
        self._broadcasts = BroadcastCalls(log, draining)
        # It is never closed: a fetch that is under way when the log closes ends with the log's metadata.
        self._ids = IdAllocator(log.kv, key=IDS_KEY)

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
        log = self._log
        return proto.LogDescription(
            wal_name=log.name,
            pchannels=map(identity_of, log.pchannels.values()),
            frame_bytes_max=log.frame_bytes_max,
            settings=settings_to_proto(log.settings),
            log_id=log.log_id,
            judges_expected_last=True,
        )

    async def _allocate_time_ticks(self, request: proto.AllocateRequest, _context: object) -> proto.AllocatedRange:
        oracle = self._log.oracle
        oracle.observe(request.seen_time_tick)
        ticks = await oracle.get_timestamp(request.count or _ONE, bounded=True)
        return proto.AllocatedRange(first=ticks.start, count=len(ticks))

    async def _allocate_ids(self, request: proto.AllocateRequest, _context: object) -> proto.AllocatedRange:
        await self._ids.start()
        ids = await self._ids.alloc(request.count or _ONE)
        return proto.AllocatedRange(first=ids.start, count=len(ids))
