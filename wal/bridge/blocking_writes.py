"""BlockingTxn, BlockingTxnCalls and BlockingBroadcast: transactions and broadcasts for callers without an event loop.

They own nothing but the way to the loop: `Txn` is the transaction, and `LogBroadcast` sends the broadcasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar, overload

from broadcaster.message import BroadcastAppendResult, BroadcasterStatistics, BroadcastMessage, BroadcastTask
from wal.accesser.broadcast import LogBroadcast
from wal.accesser.expected import UNCHECKED, ExpectedLast
from wal.accesser.txn import R_co, Txn, body_list
from wal.loop_thread import LoopThread
from wal.message import AppendResult, ForgottenResult, ImmutableMessage, Message, ResourceKey, TxnContext
from wal.pchannel import ProducerKey

if TYPE_CHECKING:
    from wal.accesser import WALAccesser

__all__ = ["BlockingBroadcast", "BlockingTxn", "BlockingTxnCalls", "on_loop"]

_T = TypeVar("_T")


class BlockingTxn(Generic[R_co]):
    """An open transaction: `append` any number of times, then `commit` or `rollback`, once. See `Txn`.

    As a context manager it commits at the end of the block and rolls back on an exception; it may also be ended inside the block.
    """

    def __init__(self, txn: Txn[R_co], thread: LoopThread) -> None:
        self._txn = txn
        self._thread = thread

    def append(self, message: Message | bytes, *, barrier_time_tick: int = 0) -> None:
        """Adds a message and refreshes the lease. `bytes` stand for an INSERT on the transaction's only vchannel."""
        self._thread.call(self._txn.append, message, barrier_time_tick=barrier_time_tick)

    def append_many(self, messages: Iterable[Message | bytes], *, barrier_time_tick: int = 0) -> None:
        """Adds messages in order, all or none of them, and refreshes the lease."""
        self._thread.call(self._txn.append_many, body_list(messages), barrier_time_tick=barrier_time_tick)

    def commit(self) -> R_co:
        """Makes the whole transaction durable as one event, and returns its result."""
        return self._thread.call(self._txn.commit)

    def rollback(self) -> None:
        """Forgets the transaction; does nothing if it has expired."""
        self._thread.call(self._txn.rollback)

    @property
    def context(self) -> TxnContext:
        """Its id and keepalive."""
        return self._txn.context

    @property
    def result(self) -> R_co:
        """The result of `commit`. Raises InvalidTransactionStateError if there is none: before the commit, or after a failed one."""
        return self._txn.result

    @property
    def ended(self) -> bool:
        """Whether commit or rollback was called."""
        return self._txn.ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._txn.ended:
            return
        if kind is None:
            self.commit()
        else:
            self.rollback()

    def __repr__(self) -> str:
        return f"Blocking{self._txn!r}"


class BlockingTxnCalls:
    """The part of `BlockingWAL` that concerns transactions."""

    def __init__(self, log: WALAccesser, thread: LoopThread) -> None:
        self._log = log
        self._thread = thread
        self._call = thread.call

    @overload
    def append_txn(
        self,
        vchannel: str | Sequence[str],
        messages: Iterable[Message | bytes],
        *,
        barrier_time_tick: int = 0,
        idempotency_key: str | None = None,
        expected_last: ExpectedLast = UNCHECKED,
    ) -> AppendResult: ...

    @overload
    def append_txn(
        self,
        vchannel: str | Sequence[str],
        messages: Iterable[Message | bytes],
        *,
        barrier_time_tick: int = 0,
        idempotency_key: ProducerKey,
        expected_last: ExpectedLast = UNCHECKED,
    ) -> AppendResult | ForgottenResult: ...

    def append_txn(
        self,
        vchannel: str | Sequence[str],
        messages: Iterable[Message | bytes],
        *,
        barrier_time_tick: int = 0,
        idempotency_key: str | ProducerKey | None = None,
        expected_last: ExpectedLast = UNCHECKED,
    ) -> AppendResult | ForgottenResult:
        """Appends a whole transaction, which is durable on return. Interrupting the caller does not undo it."""
        bodies = body_list(messages)

        async def append() -> AppendResult | ForgottenResult:
            return await self._log.append_txn(
                vchannel,
                bodies,
                barrier_time_tick=barrier_time_tick,
                idempotency_key=idempotency_key,
                expected_last=expected_last,
            )

        return self._call(append)

    @overload
    def txn(
        self,
        vchannel: str | None = None,
        *,
        vchannels: Sequence[str] | None = None,
        keepalive: float = 0.0,
        idempotency_key: str | None = None,
        expected_last: ExpectedLast = UNCHECKED,
    ) -> BlockingTxn[AppendResult]: ...

    @overload
    def txn(
        self,
        vchannel: str | None = None,
        *,
        vchannels: Sequence[str] | None = None,
        keepalive: float = 0.0,
        idempotency_key: ProducerKey,
        expected_last: ExpectedLast = UNCHECKED,
    ) -> BlockingTxn[AppendResult | ForgottenResult]: ...

    def txn(
        self,
        vchannel: str | None = None,
        *,
        vchannels: Sequence[str] | None = None,
        keepalive: float = 0.0,
        idempotency_key: str | ProducerKey | None = None,
        expected_last: ExpectedLast = UNCHECKED,
    ) -> BlockingTxn[AppendResult | ForgottenResult]:
        """Begins a transaction: `append`, then `commit` or `rollback`. As a context manager it commits, or rolls back on an exception."""

        async def begin() -> Txn[AppendResult | ForgottenResult]:
            return await self._log.txn(
                vchannel,
                vchannels=vchannels,
                keepalive=keepalive,
                idempotency_key=idempotency_key,
                expected_last=expected_last,
            )

        return BlockingTxn(self._call(begin), self._thread)


class BlockingBroadcast:
    """Sends one message to many vchannels. See `LogBroadcast` for what the calls guarantee; an interrupt cancels the call there."""

    def __init__(self, broadcast: LogBroadcast, thread: LoopThread) -> None:
        self._broadcast = broadcast
        self._call = thread.call

    def append(self, message: BroadcastMessage, *, wait: bool = False) -> BroadcastAppendResult:
        """Appends a copy for each vchannel; all of them are durable on return."""
        return self._call(self._broadcast.append, message, wait=wait)

    def check(self, message: BroadcastMessage) -> None:
        """Returns if the message is within the log's bounds; raises the InvalidArgumentError of `append` otherwise."""
        self._call(self._broadcast.check, message)

    def ack(self, broadcast: int | ImmutableMessage, vchannel: str | None = None) -> None:
        """Acknowledges that a vchannel's consumer has processed its copy: `ack(broadcast_id, vchannel)` or `ack(message)`."""
        self._call(self._broadcast.ack, broadcast, vchannel)

    def block_until_resource_key_ack_once(self, key: ResourceKey) -> None:
        """Returns when each broadcast that holds the key now was acknowledged by at least one vchannel."""
        self._call(self._broadcast.block_until_resource_key_ack_once, key)

    def block_until_resource_key_ack_all(self, key: ResourceKey) -> None:
        """Returns when each broadcast that holds the key now is over."""
        self._call(self._broadcast.block_until_resource_key_ack_all, key)

    def tasks(self) -> list[BroadcastTask]:
        """Returns the unfinished broadcasts, including those that cannot continue."""
        return self._call(self._broadcast.tasks)

    def abort(self, broadcast_id: int, reason: str) -> None:
        """Aborts a broadcast; every vchannel that has its copy gets an ABORT_BROADCAST."""
        self._call(self._broadcast.abort, broadcast_id, reason)

    def statistics(self) -> BroadcasterStatistics:
        """Returns the counts of this moment, and those since the log was opened."""
        return self._call(on_loop, self._broadcast.statistics)


async def on_loop(call: Callable[[], _T]) -> _T:
    """Runs a call that does not wait, but must run on the loop."""
    return call()
