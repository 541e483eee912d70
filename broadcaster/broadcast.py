"""Broadcast: the calls of a broadcaster, its start and its end.

Owns the checks of a caller's arguments, and the path of a call to the actor and back. Guarantees: a cancelled caller leaves the queue for
keys, and does not affect a broadcast that has begun; errors are those of `wal.errors`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from actors import ActorError, ActorFailedError, ActorRef, ActorStoppedError, ActorSystem
from broadcaster.admission import BroadcasterLimits
from broadcaster.broadcaster import Broadcaster
from broadcaster.calls import AbortCall, AckCall, AppendCall, TasksCall, WatchCall, WithdrawCall
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
from broadcaster.operator import AppendOperator
from wal.errors import (
    ChannelFencedError,
    ClosedError,
    InvalidArgumentError,
    StorageError,
    UnknownOutcomeError,
    UnrecoverableError,
    WALError,
    WouldBlockError,
)
from wal.message import ImmutableMessage, ResourceKey
from wal.storage.kv import KVBase

INBOX_MAX: Final = 65_536

T = TypeVar("T")


class Broadcast:
    """Sends one message to many vchannels: each of them eventually gets one copy, whatever crashes.

    The broadcast keeps its resource keys until every vchannel has acknowledged it (`needs_ack=True`), so that only one broadcast changes
    the named resources. After `close` every call raises ClosedError.
    """

    def __init__(self, broadcaster: Broadcaster, ref: ActorRef) -> None:
        self._broadcaster = broadcaster
        self._ref = ref

    @classmethod
    async def start(
        cls,
        system: ActorSystem,
        *,
        kv: KVBase,
        operator: AppendOperator,
        limits: BroadcasterLimits | None = None,
        name: str = "broadcaster",
    ) -> Broadcast:
        """Starts a broadcaster, which first resumes the broadcasts that an earlier one left unfinished.

        `kv` has a root path that no other component uses. Raises CorruptionError or FormatError if the records cannot be read; any other
        error comes from the KV or the operator.
        """
        broadcaster = Broadcaster(kv, operator, clock=system.clock, limits=limits or BroadcasterLimits())
        ref = system.spawn(broadcaster, name=name, inbox_max=INBOX_MAX)
        try:
            await ref.wait_started()
        except ActorFailedError as failure:
            await ref.stop()
            raise failure.cause from None
        except BaseException:
            ref.cut_off()
            raise
        return cls(broadcaster, ref)

    async def close(self) -> None:
        """Waits for the appends and saves under way, and leaves the rest to the next opening. Idempotent."""
        await self._ref.stop()

    def end_waiting(self, error: Callable[[], Exception]) -> None:
        """Refuses the calls that wait for their resource keys, and from now on every call that would have to wait. None of them has
        begun.
        """
        try:
            self._ref.tell_control(lambda: self._broadcaster.end_waiting(error))
        except (ActorStoppedError, ActorFailedError):
            pass  # the broadcaster has ended, and has answered them

    def statistics(self) -> BroadcasterStatistics:
        """Returns the current counts, and those since the start."""
        return self._broadcaster.statistics()

    async def append(self, message: BroadcastMessage, *, wait: bool = False) -> BroadcastAppendResult:
        """Appends a copy for each vchannel; all of them are durable when it returns.

        If another broadcast has a resource key, the call raises ResourceAcquiredError at once, which names that broadcast. With `wait` it
        waits for its keys instead, after earlier calls for the same keys. With `needs_ack=False` the keys are free on return.

        * If some vchannels cannot take their copy, it raises UnrecoverableError, and the broadcast stays stuck until they can or until
          `abort`. If every vchannel refuses, it raises the vchannel's error and nothing remains.
        * If a write under way fails, its outcome is unknown: StorageError with `outcome_unknown`. The next opening completes the broadcast
          if any copy is durable.
        * Without room for any copy, or for the record of the broadcast, it raises NoSpaceError and nothing remains. With room for some of
          the copies it raises UnknownOutcomeError; the broadcast is completed when there is room.
        * If a bound is exceeded, it raises WouldBlockError.

        A cancelled call no longer waits for its keys; a broadcast that has begun is completed anyway.
        """
        check_append(message, wait)
        broadcaster = self._broadcaster
        limits = broadcaster.limits
        if len(message.vchannels) > limits.vchannels_max:
            raise InvalidArgumentError(
                f"a broadcast to {len(message.vchannels)} vchannels exceeds broadcast_vchannels_max={limits.vchannels_max}: send "
                "several broadcasts, or raise the setting"
            )
        self._check_running()
        operator = broadcaster.operator
        operator.check(message.vchannels)
        broadcast_id = 0
        try:
            broadcast_id = operator.allocate_id()
        except WouldBlockError:
            await operator.wait_for_ids()
        broadcast_id = broadcast_id or operator.allocate_id()
        reply: asyncio.Future[BroadcastAppendResult] = asyncio.get_running_loop().create_future()
        call = AppendCall(message, wait, reply, broadcast_id, message.estimate_size())
        try:
            if broadcaster.append_nowait(call):
                return await reply
            return await self._ref.ask(call.asked)
        except asyncio.CancelledError:
            if reply.done() and not reply.cancelled():
                reply.exception()  # the answer came in this same turn: mark it as retrieved
            self._withdraw(call)
            raise
        except ActorError as error:
            raise _ended(error) from error

    async def ack(self, broadcast: int | ImmutableMessage, vchannel: str | None = None) -> None:
        """Acknowledges a vchannel's copy: `ack(broadcast_id, vchannel)` or `ack(message)`.

        The ack is durable on return; after the last one the keys are free. A repeated ack, or an ack of a finished or unknown broadcast,
        does nothing; a vchannel that is not in the broadcast raises InvalidArgumentError.
        """
        broadcast_id, acked = copy_named(broadcast, vchannel)
        await self._ask(lambda reply: AckCall(broadcast_id, acked, reply))

    async def block_until_resource_key_ack_once(self, key: ResourceKey) -> None:
        """Returns when each broadcast that has the key now has been acknowledged by one vchannel; at once without such a broadcast.

        A shared key may have several holders. A broadcast that ends in another way (aborted, or without acks) counts as acknowledged.
        """
        await self._block_until(key, everywhere=False)

    async def block_until_resource_key_ack_all(self, key: ResourceKey) -> None:
        """Returns when each broadcast that has the key now has finished; at once without such a broadcast."""
        await self._block_until(key, everywhere=True)

    async def tasks(self) -> list[BroadcastTask]:
        """Returns the running broadcasts, including stuck ones."""
        return await self._ask(TasksCall)

    async def abort(self, broadcast_id: int, reason: str) -> None:
        """Aborts a broadcast: each vchannel that has its copy gets an ABORT_BROADCAST with the same header, then the keys are free.

        The reason is the payload of that message. A second abort waits for the same end. A broadcast that is unknown, or finished in
        another way, raises InvalidArgumentError. A caller that still waits in `append` gets an UnrecoverableError.
        """
        check_id(broadcast_id)
        check_reason(reason)
        await self._ask(lambda reply: AbortCall(broadcast_id, reason, reply))

    async def _block_until(self, key: ResourceKey, *, everywhere: bool) -> None:
        check_key(key)
        call: WatchCall | None = None

        def make(reply: asyncio.Future[None]) -> WatchCall:
            nonlocal call
            call = WatchCall(key, everywhere, reply)
            return call

        try:
            await self._ask(make)
        except asyncio.CancelledError:
            self._withdraw(call)
            raise

    async def _ask(self, make: Callable[[asyncio.Future[T]], object]) -> T:
        try:
            return await self._ref.ask(make)
        except ActorError as error:
            raise _ended(error, repeatable=True) from error

    def _withdraw(self, call: AppendCall | WatchCall | None) -> None:
        if call is not None:
            try:
                self._ref.tell_control(WithdrawCall(call))
            except (ActorStoppedError, ActorFailedError):
                pass  # the broadcaster has ended, and so has its queue

    def _check_running(self) -> None:
        failure = self._ref.failure
        if failure is not None:
            raise _failed(ActorFailedError(self._ref.name, failure), repeatable=True) from failure


def _ended(error: ActorError, *, repeatable: bool = False) -> Exception:
    """Returns the error of a call that the actor did not answer."""
    if isinstance(error, ActorFailedError):
        return _failed(error, repeatable=repeatable)
    if isinstance(error, ActorStoppedError):
        return ClosedError("the broadcaster is closed: open the log again to continue")
    return error


def _failed(failure: ActorFailedError, *, repeatable: bool = False) -> WALError:
    """Returns the error of calls after the broadcaster has failed; their effects are unknown.

    Where another process has taken over, a `repeatable` call is made there again.
    """
    if isinstance(failure.cause, ChannelFencedError):
        text = f"the broadcaster of another process has taken over: {failure.cause}"
        return ChannelFencedError(text) if repeatable else UnknownOutcomeError(f"{text}; it completes the broadcast if any copy is durable")
    text = f"the broadcaster failed and takes no more calls, reopen the log: {type(failure.cause).__name__}: {failure.cause}"

    if isinstance(failure.cause, ClosedError):
        return ClosedError(text)
    if isinstance(failure.cause, StorageError):
        return StorageError(text, outcome_unknown=True)
    error = UnrecoverableError(text)
    error.outcome_unknown = True
    return error
