"""NodeSession: the lease of a streaming node in etcd, kept in a thread of its own.

Owns that thread, its connection to etcd, and the node's record there, by which the coordinator finds it. It guarantees that `alive` is
False before any other process can see the lease expired, in whatever state this process is: `alive` compares a clock that runs while the
process is stopped with the time until which etcd granted the lease, and once False it stays False.

The thread renews the lease only while the node's event loop turns: a pause of one call must not cost the node its pchannels, and a loop
that hangs must. So the loop leaves the time of its newest turn, and after `BEAT_MAX_S` seconds without one no renewal is sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from wal.channels.metadata import open_metadata
from wal.errors import SessionLostError, WALError
from wal.runtime.loop_thread import LoopThread
from wal.runtime.secret import Secret
from wal.runtime.tasks import end_tasks
from wal.runtime.threads import in_thread
from wal.storage.kv.etcd import EtcdKV, EtcdSession

TTL_S: Final = 10.0
"""The lifetime of a node's session: it outlives an election of etcd's."""
_T = TypeVar("_T")
BEAT_S: Final = 0.25
BEAT_MAX_S: Final = 3.0
"""After this many seconds without a turn of the loop the lease is not renewed, or after a third of a shorter lifetime."""


def _boot_time() -> float:
    """Returns the time of a clock that also runs while the machine sleeps, as the session's does."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


async def _in_thread(thread: LoopThread, call: Callable[..., Awaitable[_T]], *args: object) -> _T:
    """Returns the outcome of a call in this thread. The loop of the caller, which may be a client's, is not held meanwhile."""
    starting = in_thread(partial(thread.start, call, *args))
    try:
        running = await asyncio.shield(starting)
    except asyncio.CancelledError:
        (await starting).cancel()
        raise
    return await asyncio.wrap_future(running)


class NodeSession:
    """A `Lease`. `open` creates it; `server_id` is the number of this start of the node, its lease in etcd."""

    def __init__(self, thread: LoopThread, kv: EtcdKV, session: EtcdSession) -> None:
        self.server_id: int = session.lease
        self.lost: asyncio.Future[WALError] = asyncio.get_running_loop().create_future()
        """Done with the reason once the lease is lost."""
        self._thread = thread
        self._kv = kv
        self._session = session
        self._gone = False
        self._beaten = time.monotonic()
        self._beating: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None
        session.may_renew = self._beats
        self._beat()
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name="lease of the node")

    @classmethod
    async def open(cls, kv: str | Secret, *, ttl_s: float = TTL_S) -> NodeSession:
        """Takes a lease in the etcd at `kv`, `etcd://…/root`. Raises what opening a KV raises."""
        thread = await in_thread(LoopThread)

        async def begin() -> tuple[EtcdKV, EtcdSession]:
            opened = await open_metadata(kv)
            assert isinstance(opened, EtcdKV), "a cluster's metadata are in etcd"
            try:
                return opened, await opened.session(ttl_s=ttl_s)
            except BaseException:
                await opened.close()
                raise

        try:
            return cls(thread, *await _in_thread(thread, begin))
        except BaseException:
            await in_thread(thread.stop)
            raise

    @property
    def alive(self) -> bool:
        """Whether this node may still write and answer."""
        if not self._gone and (self._session.error is not None or _boot_time() >= self._session.until):
            self._gone = True
        return not self._gone

    async def register(self, key: str, value: str) -> None:
        """Saves the node's record, which etcd removes with the lease. Raises SessionLostError when that is gone."""
        await _in_thread(self._thread, self._session.save, key, value)

    async def close(self) -> None:
        """Gives the lease back, with the record. Idempotent."""
        self._gone = True
        if self._beating is not None:
            self._beating.cancel()
        await end_tasks(self._watching)
        if not self._thread.stopped:
            self._thread.closing = self._kv.close
            await in_thread(self._thread.stop)

    def _beat(self) -> None:
        self._beaten = time.monotonic()
        self._beating = asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _beats(self) -> bool:
        """Returns whether the node's loop turns; called in the thread."""
        return time.monotonic() - self._beaten < min(BEAT_MAX_S, self._session.ttl_s / 3)

    async def _watch(self) -> None:
        """Reports the end of the lease to the node, also while no call needs the lease."""
        ending = asyncio.ensure_future(_in_thread(self._thread, self._session.wait_lost))
        while self.alive:
            await asyncio.wait([ending], timeout=BEAT_S)
        ending.cancel()
        if not self.lost.done():
            self.lost.set_result(
                self._session.error or SessionLostError("the lease of this node was not renewed in time: it holds nothing any more")
            )
