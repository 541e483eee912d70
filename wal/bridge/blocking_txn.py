"""BlockingTxn: a transaction for blocking callers. It owns nothing but the way to the loop: `Txn` is the transaction."""

from __future__ import annotations

from types import TracebackType
from typing import Generic, Self

from wal.accesser.txn import R_co, Txn
from wal.loop_thread import LoopThread
from wal.message import Message, TxnContext

__all__ = ["BlockingTxn"]


class BlockingTxn(Generic[R_co]):
    """An open transaction: `append` any number of times, then `commit` or `rollback`, once. See `Txn`.

    As a context manager it commits at the end and rolls back on an exception; ending it inside is fine.
    """

    def __init__(self, txn: Txn[R_co], thread: LoopThread) -> None:
        self._txn = txn
        self._thread = thread

    def append(self, message: Message | bytes, *, barrier_time_tick: int = 0) -> None:
        """Adds a message and refreshes the lease. `bytes` stand for an INSERT on the transaction's only vchannel."""
        self._thread.call(self._txn.append, message, barrier_time_tick=barrier_time_tick)

    def commit(self) -> R_co:
        """Makes the whole transaction durable as one event; its result."""
        return self._thread.call(self._txn.commit)

    def rollback(self) -> None:
        """Forgets the transaction; quiet when it has expired."""
        self._thread.call(self._txn.rollback)

    @property
    def context(self) -> TxnContext:
        """Its id and keepalive."""
        return self._txn.context

    @property
    def result(self) -> R_co:
        """What `commit` answered. InvalidTransactionStateError while there is no answer: before the commit, or when there was none."""
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
