"""RemoteBroadcasts: the calls of a log's broadcaster, which runs where the log is coordinated.

A broadcast is sent at most once. Without an answer it raises UnknownOutcomeError: the server completes a broadcast that has begun. What the
server refuses because it has not asked every pchannel yet, or cannot be reached, is sent again for `CALL_S`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from broadcaster.message import (
    BroadcastAppendResult,
    BroadcasterStatistics,
    BroadcastMessage,
    BroadcastTask,
    check_append,
    check_id,
    check_key,
    check_reason,
    copy_named,
)
from wal.client.calls import Pauses, SeenTick
from wal.errors import InvalidArgumentError, NotLocalError, UnavailableError
from wal.message import ImmutableMessage, ResourceKey
from wal.rpc.api import cluster_pb2
from wal.rpc.broadcasts import broadcast_to_proto, key_to_proto, result_from_proto, task_from_proto
from wal.rpc.connection import Connection
from wal.rpc.methods import ABORT_BROADCAST, ACK_BROADCAST, APPEND_BROADCAST, AWAIT_RESOURCE_KEY, LIST_BROADCASTS

CALL_S: Final = 30.0
"""The deadline of a broadcast, and how long refused calls are sent again: a new leader's broadcaster, and the copies of a broadcast, wait
for every pchannel that is being moved."""
WAIT_S: Final = math.inf
"""The deadline of a call that waits for the acknowledgements of others."""

_Answer = TypeVar("_Answer")


class RemoteBroadcasts:
    """See `wal.engine.Broadcasts`. `connection` returns the connection to the coordinator of the log."""

    def __init__(self, connection: Connection, seen: SeenTick) -> None:
        self._connection = connection
        self._seen = seen

    async def append(self, message: BroadcastMessage, *, wait: bool = False) -> BroadcastAppendResult:
        """Appends a copy for each vchannel; all of them are durable when it returns."""
        check_append(message, wait)
        request = broadcast_to_proto(message, wait=wait, seen_time_tick=self._seen.value)
        timeout_s = WAIT_S if wait else CALL_S
        answer = await self._call(lambda server: server.write(APPEND_BROADCAST, request, "appending a broadcast", timeout_s=timeout_s))
        result = result_from_proto(message.vchannels, answer)
        for appended in result.append_results.values():
            self._seen.saw(appended.time_tick)
        return result

    async def ack(self, broadcast: int | ImmutableMessage, vchannel: str | None = None) -> None:
        """Acknowledges a vchannel's copy. A repeated ack does nothing, so it is sent again until it is answered."""
        broadcast_id, vchannel = copy_named(broadcast, vchannel)
        _check_range(broadcast_id)
        request = cluster_pb2.AckBroadcastRequest(broadcast_id=broadcast_id, vchannel=vchannel)
        what = f"acknowledging broadcast {broadcast_id}"
        await self._call(lambda server: server.repeat(ACK_BROADCAST, request, what))

    async def block_until_resource_key_ack_once(self, key: ResourceKey) -> None:
        """Returns when each broadcast that holds the key now has been acknowledged by one vchannel; at once if there is none."""
        await self._block_until(key, everywhere=False)

    async def block_until_resource_key_ack_all(self, key: ResourceKey) -> None:
        """Returns when each broadcast that holds the key now has finished; at once if there is none."""
        await self._block_until(key, everywhere=True)

    async def tasks(self) -> list[BroadcastTask]:
        """Returns the running broadcasts, including stuck ones."""
        request, what = cluster_pb2.ListBroadcastsRequest(), "listing the broadcasts"
        answer = await self._call(lambda server: server.read(LIST_BROADCASTS, request, what))
        return list(map(task_from_proto, answer.tasks))

    async def abort(self, broadcast_id: int, reason: str) -> None:
        """Aborts a broadcast. A second abort waits for the same end, so it is sent again until it is answered."""
        check_id(broadcast_id)
        check_reason(reason)
        _check_range(broadcast_id)
        request = cluster_pb2.AbortBroadcastRequest(broadcast_id=broadcast_id, reason=reason)
        what = f"aborting broadcast {broadcast_id}"
        await self._call(lambda server: server.repeat(ABORT_BROADCAST, request, what))

    def statistics(self) -> BroadcasterStatistics:
        """Raises NotLocalError: the broadcaster's counts are kept where it runs."""
        raise NotLocalError("the broadcaster runs on the server, and its counts are kept there: look at tasks() instead")

    async def _block_until(self, key: ResourceKey, *, everywhere: bool) -> None:
        check_key(key)
        request = cluster_pb2.AwaitResourceKeyRequest(key=key_to_proto(key), all=everywhere)
        what = f"waiting for the acknowledgement of {key}"
        await self._call(lambda server: server.read(AWAIT_RESOURCE_KEY, request, what, timeout_s=WAIT_S))

    async def _call(self, call: Callable[[Connection], Awaitable[_Answer]]) -> _Answer:
        loop, pauses = asyncio.get_running_loop(), Pauses()
        deadline = loop.time() + CALL_S
        while True:
            try:
                return await call(self._connection)
            except UnavailableError:  # nothing was done
                if loop.time() >= deadline:
                    raise
            await asyncio.sleep(pauses.next())


def _check_range(broadcast_id: int) -> None:
    """Raises InvalidArgumentError for a number that does not fit the protocol's field; no broadcast has such an id."""
    if not 0 <= broadcast_id < 1 << 64:
        raise InvalidArgumentError(f"broadcast id {broadcast_id} is none: use the one in the result of append, or of a message")
