"""RemoteTxn: an open transaction of a log on the network. Its bodies are kept here until the commit, which sends all of them.

The server keeps the keepalive and ends the transaction at an exclusive message. Bodies that were added renew it, within a third of the
keepalive and at most once in it; an answer that the transaction has ended fails the next call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import structs

from wal.client.directory import ShownVChannels
from wal.client.outbox import Sending, Withdrawable
from wal.client.producer import Producer
from wal.errors import ChannelNotExistError, InvalidArgumentError, TransactionExpiredError, WALError, WouldBlockError
from wal.message import AppendResult, ForgottenResult, LogPosition, Message, MessageType, TxnContext
from wal.read.cursors.cursor import Cursor
from wal.requests.appends import WriteOptions
from wal.requests.cursors import CursorSave
from wal.requests.txns import BeginTxn, BegunTxn, CommitTxn, KeepTxn, RollbackTxn
from wal.runtime.tasks import retrieve
from wal.timestamp.checks import check_tick
from wal.write.checks import as_messages, bodies_of
from wal.write.idempotency.keys import key_ext
from wal.write.in_flight import InFlight
from wal.write.txn_table import TxnLimits, check_txn_size, failed_by, names_size, open_bytes_passed

RENEWALS: Final = 3
"""The keepalive is renewed at most this often during a keepalive, and only after bodies were added."""


class RemoteTxn:
    """See `wal.engine.EngineTxn`. `begun` is the server's answer to `request`."""

    def __init__(
        self,
        producer: Producer,
        in_flight: InFlight,
        known: ShownVChannels,
        begun: BegunTxn,
        request: BeginTxn,
        limits: TxnLimits,
        save_of: Callable[..., CursorSave],
        *,
        bytes_max: int,
    ) -> None:
        self.context: TxnContext = begun.context
        self._producer = producer
        self._open_txns = producer.open_txns
        self._open_txns.count += 1
        self._in_flight = in_flight
        self._known = known
        self._begun = begun
        self._names = names = request.vchannels
        self._options: WriteOptions = request.options
        """The options of the commit, with the barriers of the bodies."""
        self._limits = limits
        self._save_of = save_of
        self._save: CursorSave | None = None
        self._bytes_max = bytes_max
        self._incarnations = {name: info.incarnation for name in names if (info := known.records.get(name)) is not None}
        self._loop = asyncio.get_running_loop()
        self._bodies: list[Message] = []
        self._counted = 0
        self._stored = names_size(names, key_bytes=0 if (key := request.options.key) is None else len(key_ext(key)))
        self._renewed_at = self._loop.time()
        self._renewal: asyncio.TimerHandle | None = None
        """Set from the plan of a renewal until its answer."""
        self._added = False
        """Whether bodies were added after the last renewal was sent."""
        self._failure: WALError | None = None
        self._committing = False
        self._ended = False

    def append(self, message: Message, barrier_time_tick: int) -> int:
        """Adds a body; returns how many bodies there are."""
        return self.append_many((message,), barrier_time_tick)

    def append_many(self, messages: Sequence[Message | bytes], barrier_time_tick: int) -> int:
        """Adds bodies, all or none; returns how many bodies there are."""
        barrier = check_tick("barrier_time_tick", barrier_time_tick)
        bodies = bodies_of(messages, self._names, bytes_max=self._bytes_max)
        self._check_open()
        self._added = True
        if self._renewal is None:
            self._plan_renewal()
        stored, counted = self._stored + bodies.stored, self._counted + bodies.counted
        check_txn_size(len(self._bodies) + len(messages), counted, stored, self._limits)
        held, limits = self._open_txns, self._limits
        if held.bytes + bodies.counted > limits.open_txn_bytes_max:
            raise open_bytes_passed(held.bytes, bodies.counted, limits)
        held.bytes += bodies.counted
        self._bodies += as_messages(messages, self._names)
        self._stored, self._counted = stored, counted
        if barrier > self._options.barrier_time_tick:
            self._options = structs.replace(self._options, barrier_time_tick=barrier)
        return len(self._bodies)

    def save(self, cursor: Cursor, after: LogPosition | None = None) -> None:
        """Has the commit save this cursor; see `EngineTxn.save`."""
        save = self._save_of(cursor, after)
        if self._save is not None and self._save.key != save.key:
            raise InvalidArgumentError(
                f"the transaction saves cursor {self._save.key.name!r} already, and saves one cursor: save {cursor.key} in another one"
            )
        self._save = save

    async def commit(self) -> AppendResult | ForgottenResult:
        """Sends all bodies; the commit is durable on return."""
        self._committing = True
        try:
            self._check_open()
            future: asyncio.Future[AppendResult | ForgottenResult] = Withdrawable(loop=self._loop)
            request = CommitTxn(self._names, self._options, bodies=self._bodies, save=self._save, txn=self._begun)
            repeatable = request.is_repeatable
            self._producer.add(Sending(future, self._stored, options=self._options, request=request, repeatable=repeatable))
            self._in_flight.force(self._stored)
            result = await future
        except WouldBlockError:
            self._committing = False
            raise
        except BaseException:
            self._end()
            raise
        self._end()
        return result

    async def rollback(self) -> None:
        """Has the server forget the transaction; does nothing if it has ended."""
        if self._ended:
            return
        self._end()
        try:
            await self._ask_rollback()
        except WALError:
            return  # it has ended already, or it ends with its keepalive

    def abandon(self) -> bool:
        """Rolls back without waiting; returns False if the transaction has ended. From any thread."""
        if self._ended or self._spanned() is not None:
            return False
        try:
            self._loop.call_soon_threadsafe(self._forget)
        except RuntimeError:  # the loop has ended, and the transaction ends with its keepalive
            return False
        return True

    def close(self) -> None:
        """Rolls back because the log is being closed, unless its commit is under way."""
        if not self._ended and not self._committing:
            self._forget()

    def _forget(self) -> None:
        self._end()
        try:
            self._ask_rollback().add_done_callback(retrieve)
        except WALError:
            pass  # the log is closed, and the transaction ends with its keepalive

    def _ask_rollback(self) -> asyncio.Future[Any]:
        return self._producer.ask(RollbackTxn(self.context.txn_id))

    def _end(self) -> None:
        """Forgets the bodies; the caller reports the outcome of the transaction. Idempotent."""
        if not self._ended:
            self._open_txns.count -= 1
        self._ended = True
        self._bodies = []
        self._open_txns.bytes -= self._counted
        self._counted = 0
        if self._renewal is not None:
            self._renewal.cancel()

    # -- the keepalive

    def _plan_renewal(self) -> None:
        due = self._renewed_at + self.context.keepalive / RENEWALS
        self._renewal = self._loop.call_at(due, self._renew)

    def _renew(self) -> None:
        if self._committing:  # the commit renews it
            self._renewal = None
            return
        self._renewed_at, self._added = self._loop.time(), False
        try:
            future = self._producer.ask(KeepTxn(self.context.txn_id, len(self._bodies), self._counted))
        except WALError:
            return  # the log is closed: the next call raises the error
        future.add_done_callback(self._renewed)

    def _renewed(self, future: asyncio.Future[Any]) -> None:
        self._renewal = None
        error = future.exception()
        if self._ended:
            return
        # A server of a later term does not know the transaction, and begins it again at the commit.
        if isinstance(error, TransactionExpiredError | ChannelNotExistError) and self._producer.term == self._begun.term:
            self._fail(error)
        elif self._added:
            self._plan_renewal()

    # -- what all of them have in common

    def _fail(self, failure: WALError) -> None:
        self._failure = failure
        self._end()

    def _check_open(self) -> None:
        """Raises the reason of the transaction's end, if it is known here."""
        if self._failure is None:
            for _, change in self._known.changes(self._producer.pchannel, self._incarnations):
                if isinstance(change, ChannelNotExistError):
                    self._fail(change)
                    break
        if self._failure is None and (spanned := self._spanned()) is not None:
            name, message_type = spanned
            self._fail(failed_by(self.context.txn_id, message_type.name, name))
        if self._failure is not None:
            raise self._failure

    def _spanned(self) -> tuple[str, MessageType] | None:
        return self._known.spanned(self._names, self.context.txn_id)
