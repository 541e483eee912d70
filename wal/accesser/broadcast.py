"""LogBroadcast: what `log.broadcast()` gives, the calls of the broadcaster of an open log.

Owns the checks that only the log can make (its bounds on messages and frames), before anything is done. It holds no state: the
broadcaster is opened and closed with the log, and what an earlier life left unfinished is finished whether or not anybody asks for this.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Final

from broadcaster.message import BroadcastAppendResult, BroadcasterStatistics, BroadcastMessage, BroadcastTask, names_of
from broadcaster.state import BroadcastState
from wal.accesser.lifecycle import Lifecycle
from wal.errors import InvalidArgumentError
from wal.message import ImmutableMessage, ResourceKey, encode_properties

if TYPE_CHECKING:
    from wal.engine.base import WritableEngine

__all__ = ["BroadcastAppendResult", "BroadcastMessage", "BroadcastState", "BroadcastTask", "LogBroadcast"]

RUN_BYTES: Final = 20
"""What each vchannel takes in a frame beside its name: the row of a run, or the head of its name in the header."""
FRAME_OVERHEAD: Final = 1024


class LogBroadcast:
    """One message to many vchannels: all of them get it, once, in the end, whatever crashes.

    A broadcast holds its resource keys until every vchannel was acknowledged, so that what they name is changed by one at a time.
    """

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    async def append(self, message: BroadcastMessage, *, wait: bool = False) -> BroadcastAppendResult:
        """Appends a copy for each vchannel, making vchannels as `raw_append` does; when it returns all of them are durable.

        A held resource key is a ResourceAcquiredError at once, naming the broadcast that holds it; with `wait` the call stands in
        line instead, behind earlier ones that want the same keys. With `needs_ack=False` the keys are free when it returns.
        A vchannel that cannot take its copy makes it an UnrecoverableError while the broadcast stays, stuck, until it can or until
        `abort`; if none can, nothing stays and the error is the vchannel's. After a write that failed under way nobody knows: a
        StorageError with `outcome_unknown`, and the next opening completes what is durable of it. Over a bound: WouldBlockError.
        Cancelling the call takes it out of the line; a broadcast that began is completed all the same.
        """
        lifecycle = self._lifecycle
        engine = lifecycle.engine
        if engine is None or get_ident() != lifecycle.thread or not lifecycle.is_running():
            engine = await lifecycle.ready()
        if isinstance(message, BroadcastMessage):
            _check_size(engine, message)
        return await engine.broadcasts.append(message, wait=wait)

    async def ack(self, broadcast: int | ImmutableMessage, vchannel: str | None = None) -> None:
        """Says that a vchannel's consumer is through with its copy: `ack(broadcast_id, vchannel)` or `ack(message)`.

        Durable when it returns; after the last one the keys are free. Repeating it, or acknowledging a broadcast that is over or
        unknown, does nothing; a vchannel that is not in the broadcast is an InvalidArgumentError.
        """
        await (await self._lifecycle.ready()).broadcasts.ack(broadcast, vchannel)

    async def block_until_resource_key_ack_once(self, key: ResourceKey) -> None:
        """Returns at once when nobody holds the key, else when each broadcast that holds it now was acknowledged by one vchannel."""
        await (await self._lifecycle.ready()).broadcasts.block_until_resource_key_ack_once(key)

    async def block_until_resource_key_ack_all(self, key: ResourceKey) -> None:
        """Returns at once when nobody holds the key, else when each broadcast that holds it now is over."""
        await (await self._lifecycle.ready()).broadcasts.block_until_resource_key_ack_all(key)

    async def tasks(self) -> list[BroadcastTask]:
        """The broadcasts under way, stuck ones among them."""
        return await (await self._lifecycle.ready()).broadcasts.tasks()

    async def abort(self, broadcast_id: int, reason: str) -> None:
        """Gives a broadcast up: each vchannel that has its copy gets an ABORT_BROADCAST with the same header, then the keys are free.

        The reason is the payload of that message. Aborting it again waits for the same end; one that is unknown, or over in another
        way, is an InvalidArgumentError. Whoever still waits in `append` gets an UnrecoverableError.
        """
        await (await self._lifecycle.ready()).broadcasts.abort(broadcast_id, reason)

    def statistics(self) -> BroadcasterStatistics:
        """Counts of this moment, and since the log was opened."""
        return self._lifecycle.ready_nowait().broadcasts.statistics()


def _check_size(engine: WritableEngine, message: BroadcastMessage) -> None:
    """It would be refused by every vchannel otherwise, but only after its resource keys were taken."""
    count = len(message.vchannels)
    payload = message.content_bytes()
    limit = engine.appends.message_bytes_max
    if payload > limit:
        raise InvalidArgumentError(
            f"a broadcast of {payload} bytes (payload and properties) is over message_bytes_max={limit}: split "
            "it, store the payload elsewhere and broadcast a reference, or raise the setting"
        )
    keys = sum(len(key.domain.encode()) + len(key.key.encode()) + RUN_BYTES for key in message.resource_keys)
    stored = len(message.payload) + (len(encode_properties(message.properties)) if message.properties else 0)
    # Wherever its vchannels lie: a frame of it names each of them once.
    named = names_of(tuple(message.vchannels)).stored_bytes + RUN_BYTES * count
    if (size := stored + keys + named + FRAME_OVERHEAD) > engine.frame_bytes_max:
        raise InvalidArgumentError(
            f"a broadcast to {count} vchannels takes {size} bytes with their names, its payload and its keys, and a frame takes "
            f"{engine.frame_bytes_max}: make several of it"
        )
