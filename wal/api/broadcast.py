"""LogBroadcast: the calls of the broadcaster of an open log, as `log.broadcast()` returns them.

Owns the checks of a broadcast against the log's bounds on messages and frames, before anything is done. It has no state: the
broadcaster is opened and closed with the log, which also finishes what an earlier process left unfinished.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING

from broadcaster.message import BroadcastAppendResult, BroadcasterStatistics, BroadcastMessage, BroadcastTask
from wal.api.lifecycle import Lifecycle
from wal.errors import NotLocalError
from wal.message import ImmutableMessage, ResourceKey
from wal.requests.broadcasts import AbortBroadcast, AckBroadcast, AppendBroadcast, AwaitResourceKey, ListBroadcasts

if TYPE_CHECKING:
    from wal.engine import WritableEngine


class LogBroadcast:
    """Appends one message to many vchannels: each of them eventually gets it once, whatever crashes.

    A broadcast holds its resource keys until every vchannel has acknowledged its copy, so that broadcasts with a common key never overlap.
    """

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._lifecycle.location!r}, {self._lifecycle.state})"

    async def append(self, message: BroadcastMessage, *, wait: bool = False) -> BroadcastAppendResult:
        """Appends a copy for each vchannel, creating vchannels as `raw_append` does; all copies are durable when the call returns.

        If a resource key is held, the call raises a ResourceAcquiredError that names the broadcast which holds it; with `wait` the call
        waits in line instead, after earlier calls that want the same keys. With `needs_ack=False` the keys are free when it returns.

        If a vchannel cannot take its copy, the call raises an UnrecoverableError, and the broadcast stays until the vchannel can or until
        `abort`; if no vchannel can, nothing stays and the vchannel's error is raised. If the write itself failed, the outcome is unknown:
        the call raises a StorageError with `outcome_unknown`, and the next opening completes a broadcast of which anything is durable.
        Raises WouldBlockError over a bound. Cancelling the call takes it out of the line; a broadcast that has begun is still completed.
        """
        lifecycle = self._lifecycle
        engine = lifecycle.engine
        if engine is None or get_ident() != lifecycle.thread or not lifecycle.is_running():
            engine = await lifecycle.ready()
        _check_size(message, engine)
        return await engine.submit(AppendBroadcast(message, wait))

    async def check(self, message: BroadcastMessage) -> None:
        """Returns if the message is within the log's bounds; raises the InvalidArgumentError of `append` otherwise."""
        _check_size(message, await self._lifecycle.ready())

    async def ack(self, broadcast: int | ImmutableMessage, vchannel: str | None = None) -> None:
        """Acknowledges a vchannel's copy: `ack(broadcast_id, vchannel)` or `ack(message)`. It is durable when the call returns.

        The keys are free after the last acknowledgement. Acknowledging twice, or a broadcast that has ended or is unknown, does nothing; a
        vchannel that is not in the broadcast is an InvalidArgumentError.
        """
        await (await self._lifecycle.ready()).submit(AckBroadcast.of(broadcast, vchannel))

    async def block_until_resource_key_ack_once(self, key: ResourceKey) -> None:
        """Returns when each broadcast that holds the key now was acknowledged by at least one vchannel; at once if none holds it."""
        await (await self._lifecycle.ready()).submit(AwaitResourceKey(key))

    async def block_until_resource_key_ack_all(self, key: ResourceKey) -> None:
        """Returns when each broadcast that holds the key now has ended; at once if none holds it."""
        await (await self._lifecycle.ready()).submit(AwaitResourceKey(key, everywhere=True))

    async def tasks(self) -> list[BroadcastTask]:
        """Returns the unfinished broadcasts, also the stuck ones."""
        tasks = await (await self._lifecycle.ready()).submit(ListBroadcasts())
        return list(tasks)

    async def abort(self, broadcast_id: int, reason: str) -> None:
        """Aborts a broadcast: each vchannel that has a copy gets an ABORT_BROADCAST with the same header, then the keys are free.

        The reason is the payload of that message. A second abort waits for the first; a broadcast that is unknown, or ended in another
        way, is an InvalidArgumentError. A caller that still waits in `append` gets an UnrecoverableError.
        """
        await (await self._lifecycle.ready()).submit(AbortBroadcast(broadcast_id, reason))

    def statistics(self) -> BroadcasterStatistics:
        """Returns the broadcaster's counts: those of this moment, and those since the log was opened.

        Raises NotLocalError over the network: they are kept where the broadcaster runs.
        """
        counts = self._lifecycle.ready_nowait().statistics().broadcasts
        if counts is None:
            raise NotLocalError("the broadcaster runs on the server, and its counts are kept there: look at tasks() instead")
        return counts


def _check_size(message: BroadcastMessage, engine: WritableEngine) -> None:
    if isinstance(message, BroadcastMessage):
        limit = engine.appends.message_bytes_max
        message.check_size(message_bytes_max=limit, frame_bytes_max=engine.frame_bytes_max)
