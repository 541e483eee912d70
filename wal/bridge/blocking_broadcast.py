"""BlockingBroadcast: the broadcaster's calls for blocking callers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from broadcaster.message import BroadcasterStatistics
from wal.accesser.broadcast import BroadcastAppendResult, BroadcastMessage, BroadcastTask, LogBroadcast
from wal.loop_thread import LoopThread
from wal.message import ImmutableMessage, ResourceKey

__all__ = ["BlockingBroadcast"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


class BlockingBroadcast:
    """One message to many vchannels. See `LogBroadcast` for what the calls promise; an interrupted caller is a cancelled one there."""

    def __init__(self, broadcast: LogBroadcast, thread: LoopThread) -> None:
        self._broadcast = broadcast
        self._thread = thread

    def append(self, message: BroadcastMessage, *, wait: bool = False) -> BroadcastAppendResult:
        """Appends a copy for each vchannel; when it returns all of them are durable."""
        return self._call(self._broadcast.append, message, wait=wait)

    def ack(self, broadcast: int | ImmutableMessage, vchannel: str | None = None) -> None:
        """Says that a vchannel's consumer is through with its copy: `ack(broadcast_id, vchannel)` or `ack(message)`."""
        self._call(self._broadcast.ack, broadcast, vchannel)

    def block_until_resource_key_ack_once(self, key: ResourceKey) -> None:
        """Returns when each broadcast that holds the key now was acknowledged by one vchannel."""
        self._call(self._broadcast.block_until_resource_key_ack_once, key)

    def block_until_resource_key_ack_all(self, key: ResourceKey) -> None:
        """Returns when each broadcast that holds the key now is over."""
        self._call(self._broadcast.block_until_resource_key_ack_all, key)

    def tasks(self) -> list[BroadcastTask]:
        """The broadcasts under way, stuck ones among them."""
        return self._call(self._broadcast.tasks)

    def abort(self, broadcast_id: int, reason: str) -> None:
        """Gives a broadcast up; every vchannel that has its copy is told."""
        self._call(self._broadcast.abort, broadcast_id, reason)

    def statistics(self) -> BroadcasterStatistics:
        """Counts of this moment, and since the log was opened."""

        async def ask() -> BroadcasterStatistics:
            return self._broadcast.statistics()

        return self._call(ask)

    def _call(self, call: Callable[_P, Awaitable[_T]], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self._thread.call(call, *args, **kwargs)
