"""Broadcast: the public object of `log.broadcast()`, and how a broadcaster is started and stopped.

Owns: the checks of what a caller gives, and the way of a call to the actor and back. Promises: a caller that is cancelled leaves the
queue for keys, and changes nothing of a broadcast that began; errors are those of `wal.errors`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from actors import ActorError, ActorFailedError, ActorRef, ActorStoppedError, ActorSystem
from broadcaster.broadcaster import Broadcaster
from broadcaster.calls import AbortCall, AckCall, AppendCall, TasksCall, WatchCall, Withdraw
from broadcaster.limits import BroadcasterLimits, BroadcasterStatistics
from broadcaster.message import BroadcastMessage, BroadcastTask
from broadcaster.registry import Registry
from broadcaster.results import BroadcastAppendResult
from wal.errors import ClosedError, InvalidArgumentError, StorageError, UnrecoverableError, WALError, WouldBlockError
from wal.kv import KVBase
from wal.message import ImmutableMessage, ResourceKey

__all__ = ["REASON_BYTES_MAX", "Broadcast"]

REASON_BYTES_MAX: Final = 4_096
"""UTF-8 bytes of the reason of an abort: it stands in a message for each vchannel."""
INBOX_MAX: Final = 65_536

T = TypeVar("T")


class Broadcast:
    """One message to many vchannels: all of them get it, once, in the end, whatever crashes.

    Its resource keys are held until every vchannel was acknowledged (`needs_ack=True`), so that what they name is changed by one
    broadcast at a time. After `close` every call is a ClosedError.
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
        registry: Registry,
        limits: BroadcasterLimits | None = None,
        name: str = "broadcaster",
    ) -> Broadcast:
        """A broadcaster that has taken up what an earlier one left.

        `kv`: a root path that nobody else uses. The operator is awaited from `registry`. CorruptionError or FormatError when the
        records cannot be read, whatever the KV or the operator raise otherwise.
        """
        broadcaster = Broadcaster(kv, registry, clock=system.clock, limits=limits or BroadcasterLimits())
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
        """Lets the appends and saves under way end, and leaves the rest to the next opening. Idempotent."""
        await self._ref.stop()

    def statistics(self) -> BroadcasterStatistics:
        """Counts of this moment, and since it started."""
        return self._broadcaster.statistics()

    async def append(self, message: BroadcastMessage, *, wait: bool = False) -> BroadcastAppendResult:
        """Appends a copy for each vchannel; when it returns all of them are durable.

        A held resource key is a ResourceAcquiredError at once, naming the broadcast that holds it; with `wait` the call stands in
        line instead, behind earlier ones that want the same keys. With `needs_ack=False` the keys are free when it returns.
        A vchannel that cannot take its copy makes it an UnrecoverableError while the broadcast stays, stuck, until it can or until
        `abort`; if none can, nothing stays and the error is the vchannel's. After a write that failed under way nobody knows: a
        StorageError with `outcome_unknown`, and the next opening completes what is durable of it. Over a bound: WouldBlockError.
        Without room for any copy, or for the record of the broadcast, it is a NoSpaceError and nothing stays. With room for some of
        the copies it is an UnknownOutcomeError: the broadcast stays, and is completed when there is room.
        Cancelling the call takes it out of the line; a broadcast that began is completed all the same.
        """
        if not isinstance(message, BroadcastMessage):
            raise TypeError(f"append takes a BroadcastMessage, not {type(message).__name__}")
        if not isinstance(wait, bool):
            raise TypeError(f"wait must be a bool, not {wait!r}")
        broadcaster = self._broadcaster
        limits = broadcaster.limits
        if len(message.vchannels) > limits.vchannels_max:
            raise InvalidArgumentError(
                f"a broadcast to {len(message.vchannels)} vchannels is over broadcast_vchannels_max={limits.vchannels_max}: make "
                "several of it, or raise the setting"
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
                reply.exception()  # it came in this very turn, and nobody reads it any more
            self._withdraw(call)
            raise
        except ActorError as error:
            raise _ended(error) from error

    async def ack(self, broadcast: int | ImmutableMessage, vchannel: str | None = None) -> None:
        """Says that a vchannel's consumer is through with its copy: `ack(broadcast_id, vchannel)` or `ack(message)`.

        Durable when it returns; after the last one the keys are free. Repeating it, or acknowledging a broadcast that is over or
        unknown, does nothing; a vchannel that is not in the broadcast is an InvalidArgumentError.
        """
        if isinstance(broadcast, ImmutableMessage):
            if vchannel is not None:
                raise InvalidArgumentError(f"ack(message) knows its vchannel: leave out {vchannel!r}")
            if broadcast.broadcast is None:
                raise InvalidArgumentError(
                    f"message {broadcast.message_id} is no copy of a broadcast: only those are acked"
                )
            broadcast_id, vchannel = broadcast.broadcast.broadcast_id, broadcast.vchannel
        else:
            broadcast_id = _check_id(broadcast)
            if not isinstance(vchannel, str):
                raise TypeError(f"ack(broadcast_id, vchannel) takes a str for the vchannel, not {vchannel!r}")
        acked = vchannel
        await self._ask(lambda reply: AckCall(broadcast_id, acked, reply))

    async def block_until_resource_key_ack_once(self, key: ResourceKey) -> None:
        """Returns at once when nobody holds the key, else when each broadcast that holds it now was acknowledged by one vchannel.

        A shared key may have several holders. A broadcast that ends in another way (aborted, or without acks) counts as well.
        """
        await self._block_until(key, everywhere=False)

    async def block_until_resource_key_ack_all(self, key: ResourceKey) -> None:
        """Returns at once when nobody holds the key, else when each broadcast that holds it now is over."""
        await self._block_until(key, everywhere=True)

    async def tasks(self) -> list[BroadcastTask]:
        """The broadcasts under way, stuck ones among them."""
        return await self._ask(TasksCall)

    async def abort(self, broadcast_id: int, reason: str) -> None:
        """Gives a broadcast up: each vchannel that has its copy gets an ABORT_BROADCAST with the same header, then the keys are free.

        The reason stands in that message. Aborting it again waits for the same end; one that is unknown, or over in another way,
        is an InvalidArgumentError. Whoever still waits in `append` gets an UnrecoverableError.
        """
        _check_id(broadcast_id)
        if not isinstance(reason, str):
            raise TypeError(f"reason must be a str, not {type(reason).__name__}")
        try:
            length = len(reason.encode())
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(
                f"reason cannot be encoded as UTF-8: {error.reason}; remove the surrogate"
            ) from error
        if length > REASON_BYTES_MAX:
            raise InvalidArgumentError(f"reason is {length} bytes long: at most {REASON_BYTES_MAX}")
        await self._ask(lambda reply: AbortCall(broadcast_id, reason, reply))

    async def _block_until(self, key: ResourceKey, *, everywhere: bool) -> None:
        if not isinstance(key, ResourceKey):
            raise TypeError(f"a resource key is a ResourceKey(domain, key), not {key!r}")
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
            raise _ended(error) from error

    def _withdraw(self, call: AppendCall | WatchCall | None) -> None:
        if call is not None:
            try:
                self._ref.tell_control(Withdraw(call))
            except (ActorStoppedError, ActorFailedError):
                pass  # with the broadcaster its queue is gone too

    def _check_running(self) -> None:
        failure = self._ref.failure
        if failure is not None:
            raise _failed(ActorFailedError(self._ref.name, failure)) from failure


def _check_id(broadcast_id: object) -> int:
    if not isinstance(broadcast_id, int) or isinstance(broadcast_id, bool):
        raise TypeError(f"a broadcast id is an int, not {broadcast_id!r}")
    return broadcast_id


def _ended(error: ActorError) -> Exception:
    """What a caller gets when the broadcaster takes nothing any more."""
    if isinstance(error, ActorFailedError):
        return _failed(error)
    if isinstance(error, ActorStoppedError):
        return ClosedError("the broadcaster is closed: open the log again to go on")
    return error


def _failed(failure: ActorFailedError) -> WALError:
    """What a caller gets once the broadcaster failed: what it asked for may have happened."""
    text = f"the broadcaster failed and takes nothing any more, reopen the log: {type(failure.cause).__name__}: {failure.cause}"
    if isinstance(failure.cause, ClosedError):
        return ClosedError(text)
    if isinstance(failure.cause, StorageError):
        return StorageError(text, outcome_unknown=True)
    error = UnrecoverableError(text)
    error.outcome_unknown = True
    return error
