"""EtcdSession: a lease in etcd that is kept alive, and whose owner is notified in time when it is lost.

Owns: the lease and the task that renews it. It guarantees that, while `alive` is True, no other client can see the lease expired. The owner
is notified before that could happen, by its own clock, which counts from when a renewal was *sent* and runs while the machine sleeps. A
lost session stays lost, even if etcd still has the lease after an election. After the notice a lease is never renewed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, Self, TypeVar

import grpc.aio

from wal.errors import ClosedError, InvalidArgumentError, SessionLostError, WALError
from wal.runtime.tasks import AsyncClosing, end_tasks
from wal.storage.kv.etcd.api import rpc_pb2 as rpc
from wal.storage.kv.etcd.connection import EtcdCalls
from wal.storage.kv.etcd.refusals import Refusal
from wal.storage.kv.etcd.requests import GRANT, KEEP_ALIVE, REVOKE
from wal.storage.kv.keys import check_key, check_value

Result = TypeVar("Result")

TTL_MIN_S: Final = 2.0
_RENEWALS_PER_TTL: Final = 3
_MARGIN: Final = 6
"""The last sixth of the TTL is the owner's time to stop. A renewal that takes that long is retried at another member."""
_REVOKE_TIMEOUT_S: Final = 2.0
_GONE: Final = "etcd does not know it any more: it expired or was revoked"


class EtcdSession(AsyncClosing):
    """A lease, opened with `await kv.session(ttl_s=15)`; then `async with`, or `close()`. A TTL of 10 s or more outlives an election of
    etcd's."""

    def __init__(
        self, calls: EtcdCalls, lease: int, ttl_s: float, sent: float, clock: Callable[[], float], on_end: Callable[[EtcdSession], object]
    ) -> None:
        self.lease = lease
        """The id of the lease in etcd."""
        self.ttl_s: float = ttl_s
        """The TTL in seconds, as etcd granted it."""
        self.renewals: int = 0
        """The number of renewals that etcd has answered."""
        self.may_renew: Callable[[], bool] = lambda: True
        """Called before each renewal: whether the owner still does its work. While it returns False, the lease runs out."""
        self._calls = calls
        self._clock = clock
        self._on_end = on_end
        self.until: float = self._owned_until(sent)
        """Until when the lease is certainly valid, by the session's clock. It may be read in any thread."""
        self._ended: asyncio.Future[WALError] = asyncio.get_running_loop().create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._tell_in_time()
        self._task = asyncio.get_running_loop().create_task(self._keep(), name=f"etcd: keeping lease {lease:x}")

    @classmethod
    async def open(
        cls,
        calls: EtcdCalls,
        *,
        ttl_s: float,
        on_end: Callable[[EtcdSession], object],
        clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> Self:
        """Takes a lease of at least `ttl_s`. `clock` must run while the machine sleeps."""
        if not ttl_s >= TTL_MIN_S:
            raise InvalidArgumentError(f"ttl_s={ttl_s} is below {TTL_MIN_S}: a lease needs time to be renewed")
        sent = clock()
        # If this call is retried after a lost answer, the first lease is never renewed, and expires by itself.
        answer = await calls.connection.read(GRANT, rpc.LeaseGrantRequest(TTL=math.ceil(ttl_s)), "taking a lease")
        return cls(calls, answer.ID, float(answer.TTL), sent, clock, on_end)

    @property
    def alive(self) -> bool:
        """Returns whether the lease is certainly valid now. Check it before each action that only its holder may do."""
        if not self._ended.done() and self._clock() >= self.until:
            self.give_up(f"it was not renewed in time: {self.ttl_s:g} s, less a sixth to stop in, have passed")
        return not self._ended.done()

    @property
    def error(self) -> WALError | None:
        """Returns why the session ended: SessionLostError, or ClosedError after `close()`; None while it lasts."""
        return self._ended.result() if self._ended.done() else None

    async def wait_lost(self) -> WALError:
        """Waits for the end and returns its error."""
        return await asyncio.shield(self._ended)

    async def guard(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs `work` while the session lasts: when it is lost, `work` is cancelled and the session's error raised."""
        task = asyncio.ensure_future(work)
        try:
            if self.alive:
                both: list[asyncio.Future[Any]] = [task, self._ended]
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        finally:
            if not task.done():
                await end_tasks(task)
        if not task.cancelled():
            return task.result()  # it ended or failed while it was being cancelled
        raise self._failure()

    async def save(self, key: str, value: str) -> None:
        """Sets `key` to `value` while the session lasts: etcd removes the key with the lease. Raises SessionLostError when the lease
        is gone.
        """
        self.check_alive()
        full = self._calls.full_key(check_key(key))
        await self.transact([], [self._calls.put(full, check_value(key, value), lease=self.lease)], "saving for a session")

    async def transact(self, compares: list[rpc.Compare], operations: list[rpc.RequestOp], what: str) -> rpc.TxnResponse:
        """Runs one transaction that names the lease; raises SessionLostError when the lease is unknown to etcd."""
        try:
            return await self._calls.transact(compares, operations, what)
        except InvalidArgumentError as error:
            if "lease not found" not in str(error):
                raise
            self.give_up(_GONE)
            raise self._failure() from error

    def check_alive(self) -> None:
        """Raises the session's error unless it is `alive`."""
        if not self.alive:
            raise self._failure()

    async def confirm(self) -> None:
        """Asks etcd for a renewal now, and raises the session's error when the lease is gone; a missing answer does not prove that."""
        if self.alive:
            await self._renew()
        self.check_alive()

    async def close(self) -> None:
        """Revokes the lease and removes its keys. Idempotent; without an answer the lease expires within its TTL."""
        self._end(ClosedError("the session was closed: open another one"))
        if not self._task.done():
            await end_tasks(self._task)
            with contextlib.suppress(WALError):
                await self._calls.connection.read(
                    REVOKE, rpc.LeaseRevokeRequest(ID=self.lease), "giving a lease back", timeout_s=_REVOKE_TIMEOUT_S
                )

    async def _keep(self) -> None:
        try:
            await self._renew_in_time()
        except Exception as defect:  # the owner is notified now, not only when the lease has expired
            self.give_up(f"renewing it failed: {defect!r}")

    async def _renew_in_time(self) -> None:
        loop = asyncio.get_running_loop()
        pause = self.ttl_s / _RENEWALS_PER_TTL
        while self.alive:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(pause, max(0.0, self.until - self._clock()))):
                    await asyncio.shield(self._ended)
            if not self.alive:
                return
            began = loop.time()
            renewed = self.may_renew() and await self._renew()
            # After a failure it retries at once, but not faster than members can be asked in turn.
            pause = self.ttl_s / _RENEWALS_PER_TTL if renewed else max(0.0, self.ttl_s / 60 - (loop.time() - began))

    async def _renew(self) -> bool:
        connection = self._calls.connection
        timeout_s = min(max(0.5, self.ttl_s / _MARGIN), max(0.0, self.until - self._clock()))
        sent = self._clock()
        try:
            stream = await connection.open_stream(KEEP_ALIVE, "renewing a lease", timeout_s=timeout_s)
            try:
                await stream.write(rpc.LeaseKeepAliveRequest(ID=self.lease))
                answer = await stream.read()
            except grpc.aio.AioRpcError as error:
                if await connection.failed(stream, error) is Refusal.LEASE_GONE:
                    self.give_up(_GONE)
                return False
            finally:
                stream.cancel()
        except (WALError, asyncio.InvalidStateError):  # Without a member or a token, or the stream broke before the write.
            return False
        if answer is None:
            return False
        if answer.TTL <= 0:
            self.give_up(_GONE)
            return False
        if self.alive:  # unless the answer came too late
            self.renewals += 1
            self.ttl_s = float(answer.TTL)
            self.until = self._owned_until(sent)
        return True

    def _tell_in_time(self) -> None:
        """Notifies the owner of the end in time, by a separate timer, even while a renewal waits."""
        if self.alive:
            self._timer = asyncio.get_running_loop().call_later(max(0.001, self.until - self._clock()), self._tell_in_time)

    def _owned_until(self, sent: float) -> float:
        return sent + self.ttl_s - self.ttl_s / _MARGIN

    def give_up(self, why: str) -> None:
        """Stops renewing the lease, so that its keys are removed within its TTL, and notifies the owner."""
        self._end(SessionLostError(f"the session with etcd lease {self.lease:x} is lost, {why}; stop what it gave the right to"))

    def _end(self, error: WALError) -> None:
        if not self._ended.done():
            self._ended.set_result(error)
            if self._timer is not None:
                self._timer.cancel()
            self._on_end(self)

    def _failure(self) -> WALError:
        error = self._ended.result()
        return type(error)(str(error))
