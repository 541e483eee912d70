"""The VChannel actor: decides about the operations on one vchannel before they join a frame.

How it works. A caller checks its message, takes room in flight, makes a future, and sends the actor an operation (`tell`). The actor has
its own identity, state and failure, but no task: it takes its turn in the group of its pchannel, where all calls have one order. In its
turn it gets all operations since the last one, in the order of the calls:

* plain appends pass through as one list, by `FramePipeline.submit_plain` alone;
* a key is claimed first (`KeyedWrites`): a call with a known key gets the first result, and one with a key in flight shares it;
* an operation with a barrier waits in the pchannel until the promised tick has passed it, and comes back by `released`;
* an expected last event is compared with the newest one, including events in flight;
* a message with a time of delivery becomes state of the pchannel (`ScheduleWrites`), unless its time has passed;
* an exclusive message fails the open transactions on the vchannel. These are in the pchannel's table, since one may span several of its
  vchannels; bodies take no turn, only the commit is ordered with the other calls;
* without a tick, all operations are held until the oracle has saved a new limit.

A submission has its final order in the log: the pipeline makes frames of submissions, and resolves or fails their futures.

States: open; closed (`closed` returns the reason: dropped, failed, or its record could not be saved), in which every operation is refused
and gives its room back. Earlier submissions are written all the same.

What can go wrong: a WALError of one operation refuses that one alone. A defect poisons this vchannel, and the others continue. A failure of
the log is the pchannel's matter (`wal/write/pchannel.py`), which fails all operations that wait here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from actors import Member
from wal.errors import ChannelNotExistError, InvalidRequestSeqError, WALError, WouldBlockError, defect
from wal.frame import Record, RunName
from wal.message import MessageType, TxnContext
from wal.write.cursor_writes import save_after
from wal.write.operations import (
    Atomic,
    Begin,
    Bulk,
    CancelScheduled,
    Commit,
    ConditionalAppend,
    ConditionalKeyedAppend,
    Drop,
    KeyedAppend,
    KeyedCommit,
    OrderedAppend,
    PlainAppend,
    ProducerAppend,
    RemoveProducer,
    Rollback,
    ScheduledAppend,
    Settles,
    answer_future,
    fail_future,
)
from wal.write.pchannel import PChannel
from wal.write.submissions import BulkSubmission, RecordSubmission, TxnSubmission
from wal.write.txn_table import failed_by


class VChannel(Member):
    """One vchannel of a pchannel. `channel` is its name, `run_name` is (name, incarnation), as frames carry it."""

    def __init__(self, pchannel: PChannel, name: str, incarnation: int) -> None:
        self.pchannel = pchannel
        self.channel = name
        self.run_name: RunName = (name, incarnation)
        self.scope: tuple[RunName, ...] = (self.run_name,)
        """The scope of its idempotency keys."""
        self.closed: Callable[[], WALError] | None = None
        """Returns the reason why it accepts no more operations: it was dropped, it failed, or its record could not be saved. None
        while open.
        """
        self.tell: Callable[[Member, Any], None] = pchannel.actor_group.tell
        """The group's method, bound here for the callers that use it most."""
        self._frames = pchannel.frames
        self._ticks = pchannel.ticks
        self.newest: int = 0
        """The serial of the newest submission with events of it; copies of broadcasts are not counted."""
        self._handled_to = 0  # in the current batch; the operations before it are submitted already

    def receive(self, batch: list[Any]) -> None:
        """Takes operations in the order of their calls."""
        kinds = set(map(type, batch))
        if kinds == _PLAIN_ONLY and self.closed is None and not self._ticks.held:
            self.newest = self._frames.submit_plain(self.run_name, batch)
            return
        start, end = 0, len(batch)
        while start < end:
            if self.closed is not None:
                self.refuse(batch[start:], self.closed())
                break
            if self._ticks.held:
                self._ticks.hold(self, batch[start:])
                break
            self._handled_to = start
            kind = batch[start].__class__
            stop = start + 1 if len(kinds) > 1 or kind not in _RUNS else end
            if kind in _RUNS:
                while stop < end and batch[stop].__class__ is kind:
                    stop += 1
                _RUNS[kind](self, batch[start:stop])
            else:
                try:
                    _HANDLERS[kind](self, batch[start])
                except WALError as error:
                    self.refuse([batch[start]], error)
            start = stop
        self._handled_to = 0

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        """Accepts no more operations after a defect in handling a message; the other vchannels continue."""

        def closed() -> WALError:
            return defect(f"vchannel {self.channel!r} failed and takes nothing any more until the log is reopened", cause)

        self._end(closed)
        self.refuse(unhandled[self._handled_to :], closed())

    def add_bodies(self, txn_id: int, bodies: Sequence[tuple[RunName, Record]], *, counted: int, stored: int, barrier: int) -> int:
        """Adds bodies to an open transaction at once, all or none; returns how many bodies it has now.

        They may be for any vchannels of the transaction; see `TxnTable.append` for their sizes and the errors. They take no turn: no
        reader sees them before the commit, and only the commit is ordered with the other calls. If an earlier call fails the transaction
        in a later turn, the commit fails.
        """
        if self.closed is not None:
            raise self.closed()
        pchannel = self.pchannel
        return pchannel.table.append(txn_id, bodies, counted=counted, stored=stored, barrier=barrier, now=pchannel.txn_now())

    def released(self, operation: OrderedAppend | TxnSubmission) -> None:
        """Continues an operation, since the promised tick passed its barrier."""
        # A keyed operation continues even if its caller was cancelled: other callers may share its result.
        keyed = isinstance(operation, KeyedAppend | TxnSubmission) and operation.claim is not None
        if not keyed and operation.future.cancelled():
            self.pchannel.in_flight.release(operation.in_flight if isinstance(operation, TxnSubmission) else operation.size)
        elif self.closed is not None:
            self.refuse([operation], self.closed())
        elif keyed and operation.claim is not None and operation.claim.doomed:  # type: ignore[union-attr]
            self.refuse([operation], InvalidRequestSeqError("an earlier sequence failed"))
        else:
            self._submit(operation)

    def refuse(self, operations: list[Any], error: BaseException) -> None:
        """Fails operations that were not submitted, and gives their room back."""
        for operation in operations:
            if isinstance(operation, TxnSubmission):
                self.pchannel.in_flight.release(operation.in_flight)
                operation.fail(error)
                continue
            if isinstance(operation, PlainAppend | Bulk | Atomic):
                self.pchannel.in_flight.release(operation.size)
                operation.size = 0  # given back once, even if a defect refuses the whole run after this one
                if isinstance(operation, KeyedAppend) and operation.claim is not None:
                    self.pchannel.keyed.failed(operation.claim, operation.key, operation.future, error)
                    continue
            fail_future(operation.future, error)

    def fail_spanned(self, message_type: int) -> None:
        """Fails the open transactions on this vchannel, which must not span an exclusive message of this type."""
        kind = MessageType(message_type).name
        self.pchannel.fail_transactions(self.run_name, lambda txn_id: failed_by(txn_id, kind, self.channel), spanned=True)

    # -- one method for each kind of operation; a WALError that it raises refuses the operation

    def _plain(self, operations: list[PlainAppend]) -> None:
        self.newest = self._frames.submit_plain(self.run_name, operations)

    def _ordered(self, operation: OrderedAppend) -> None:
        if self.pchannel.passed(operation.barrier, self, operation):
            self._submit(operation)

    def _keyed(self, operations: list[KeyedAppend]) -> None:
        """Claims the keys of consecutive appends with one kind of key, and submits the appends whose keys are new."""
        pchannel, keyed, scope = self.pchannel, self.pchannel.keyed, self.scope
        if keyed.claim_run(scope, operations):
            self._submit_keyed(operations)
            return
        ready: list[KeyedAppend] = []
        for at, operation in enumerate(operations, self._handled_to):
            try:
                claim = keyed.claim(scope, operation.key, operation.future, barrier=operation.barrier)
            except WALError as error:
                self.refuse([operation], error)
                continue
            if claim is None:
                self._share_room(operation)
                continue
            operation.claim = claim
            if claim.barrier or operation.exclusive:
                self._submit_keyed(ready)
                ready = []
                self._handled_to = at
                if pchannel.passed(claim.barrier, self, operation):
                    self._submit(operation)
                self._handled_to = at + 1
            else:
                ready.append(operation)
        self._submit_keyed(ready)

    def _submit_keyed(self, operations: list[KeyedAppend]) -> None:
        if operations:
            self.newest = self._frames.submit_keyed(self.run_name, operations, self.pchannel.keyed)

    def _conditional_keyed(self, operation: ConditionalKeyedAppend) -> None:
        """Claims the key first: a retry gets the first result, although the last event has changed by then."""
        pchannel = self.pchannel
        claim = pchannel.keyed.claim(self.scope, operation.key, operation.future, barrier=operation.barrier)
        if claim is None:
            self._share_room(operation)
            return
        operation.claim = claim
        if pchannel.passed(claim.barrier, self, operation):
            self._submit(operation)

    def _share_room(self, operation: KeyedAppend | Atomic) -> None:
        """Gives the room of a duplicate back: now, or when the append in flight that it shares is settled."""
        release, size = self.pchannel.in_flight.release, operation.size
        operation.size = 0
        if operation.future.done():
            release(size)
        else:
            operation.future.add_done_callback(lambda _: release(size))

    def _bulk(self, operation: Bulk) -> None:
        self.newest = self._frames.submit(BulkSubmission(self.run_name, operation.records, size=operation.size, future=operation.future))

    def _atomic(self, operation: Atomic) -> None:
        pchannel = self.pchannel
        names: tuple[RunName, ...] = self.scope
        if operation.names is not None:  # several vchannels; this one is open
            for vchannel in operation.vchannels:
                if vchannel.closed is not None:
                    raise vchannel.closed()
            names = tuple([vchannel.run_name for vchannel in operation.vchannels])
        if (txn_id := self._ticks.take()) is None:
            self._ticks.hold(self, [operation])
            return
        barrier = operation.barrier
        context = TxnContext(txn_id, pchannel.keepalive)
        submission = TxnSubmission(
            context,
            names,
            operation.bodies,
            operation.names,
            size=operation.size,
            future=operation.future,
            whole=True,
            expected=operation.expected,
        )
        submission.change = operation.change
        if operation.key is not None:
            scope, keyed = tuple(sorted(names)), pchannel.keyed
            first = self._first_answer(operation)
            if (claim := keyed.claim(scope, operation.key, first, barrier=barrier)) is None:
                self._save_after(operation, first)
                self._share_room(operation)
                return
            submission.claim, submission.keyed, barrier = claim, keyed, claim.barrier
        if pchannel.passed(barrier, self, submission):
            self._submit(submission)

    def _begin(self, operation: Begin) -> None:
        pchannel = self.pchannel
        names: list[RunName] = []
        for name in operation.vchannels:
            vchannel = pchannel.vchannels.get(name)
            if vchannel is None:
                raise ChannelNotExistError(f"vchannel {name!r} was dropped before the transaction began")
            if vchannel.closed is not None:
                raise vchannel.closed()
            names.append(vchannel.run_name)
        if (txn_id := self._ticks.take()) is None:
            self._ticks.hold(self, [operation])
            return
        context = pchannel.table.begin(
            txn_id,
            tuple(names),
            keepalive=operation.keepalive or pchannel.keepalive,
            now=pchannel.txn_now(),
            key_bytes=operation.key_bytes,
            owner=operation.owner,
        )
        if operation.future.done():  # its caller was cancelled and will never end the transaction
            pchannel.table.rollback(txn_id)
        else:
            operation.future.set_result(context)

    def _commit(self, operation: Commit) -> None:
        pchannel = self.pchannel
        txn = pchannel.table.commit(operation.txn_id, now=pchannel.txn_now())
        pchannel.in_flight.force(txn.stored)
        submission = TxnSubmission.of(txn, operation.future, operation.expected, operation.change)
        if pchannel.passed(txn.barrier, self, submission):
            self._submit(submission)

    def _keyed_commit(self, operation: KeyedCommit) -> None:
        pchannel = self.pchannel
        keyed, now = pchannel.keyed, pchannel.txn_now()
        try:
            # The key is looked up first: a client that lost its connection sends the commit again, and the first one may have succeeded.
            first = self._first_answer(operation)
            if keyed.answered(operation.scope, operation.key, first):
                self._save_after(operation, first)
                pchannel.table.rollback(operation.txn_id)  # the transaction has ended; its bodies are not written
                return
            txn = pchannel.table.get(operation.txn_id, now=now)
            claim = keyed.table.claim(operation.scope, operation.key, barrier=txn.barrier)
        except WALError as error:
            if not isinstance(error, WouldBlockError):  # otherwise it stays open and can be committed later
                pchannel.table.rollback(operation.txn_id)
            raise
        pchannel.table.commit(operation.txn_id, now=now)
        pchannel.in_flight.force(txn.stored)
        submission = TxnSubmission.of(txn, operation.future, operation.expected, operation.change)
        submission.claim, submission.keyed = claim, keyed
        if pchannel.passed(claim.barrier, self, submission):
            self._submit(submission)

    @staticmethod
    def _first_answer(operation: Atomic | KeyedCommit) -> Settles[Any]:
        """Returns the receiver of the first result if the key of an operation is a duplicate: its caller, or a save that follows it."""
        return operation.future if operation.change is None else asyncio.get_running_loop().create_future()

    def _save_after(self, operation: Atomic | KeyedCommit, first: Settles[Any]) -> None:
        """Makes the save of an operation whose key is a duplicate follow the first result."""
        if operation.change is not None:
            assert isinstance(first, asyncio.Future)
            self.pchannel.cursors.receive([save_after(operation.change, first, operation.future)])

    def _submit(self, operation: OrderedAppend | TxnSubmission) -> None:
        """Submits an operation whose barrier has passed, unless its expected last event differs from the last event."""
        if isinstance(operation, _CONDITIONAL) and operation.expected and self._conflicts(operation):
            return
        if isinstance(operation, TxnSubmission):
            if operation.change is not None and not self.pchannel.cursors.admit(self, operation):
                return
            self.newest = serial = self._frames.submit(operation)
            if operation.owners is not None:
                for name in operation.names:
                    if (vchannel := self.pchannel.vchannels.get(name[0])) is not None:
                        vchannel.newest = serial
        else:
            if operation.exclusive:
                self.fail_spanned(operation.message_type)
            if isinstance(operation, KeyedAppend):
                self._submit_keyed([operation])
            else:
                self._plain([operation])

    def _conflicts(self, operation: Conditional) -> bool:
        """Returns whether an expectation of the operation does not hold; then no part of it is written, and its callers get the error.

        An event in flight is already the last one. Its id is known once it is durable, so the callers get their error then.
        """
        pchannel, expected = self.pchannel, operation.expected
        serial = pchannel.pending_event(expected)
        if not serial:
            if (conflict := pchannel.conflict(expected)) is None:
                return False
            self.refuse([operation], conflict)
            return True
        pchannel.in_flight.release(operation.in_flight if isinstance(operation, TxnSubmission) else operation.size)
        callers: list[Settles[Any]] = [operation.future]
        if not isinstance(operation, ConditionalAppend) and operation.claim is not None:
            callers = pchannel.keyed.give_up(operation.claim, operation.future)
        pchannel.frames.when_settled(serial, lambda: pchannel.fail_conflicting(expected, callers))
        return True

    def _schedule(self, operation: ScheduledAppend) -> None:
        self.pchannel.schedule.append(self, operation)

    def _cancel(self, operation: CancelScheduled) -> None:
        self.pchannel.schedule.cancel(self, operation)

    def _forget(self, operation: RemoveProducer) -> None:
        name, table = operation.name, self.pchannel.keyed.table

        def settled(error: BaseException | None) -> None:
            if error is None:
                table.forgotten(name)
                answer_future(operation.future, None)
            else:
                table.producers.remember(name)
                fail_future(operation.future, error)

        table.producers.begin_to_forget(name)
        self._frames.submit(RecordSubmission(lambda draft: draft.producer_forgotten(name), settled, size=4 * len(name)))

    def _rollback(self, operation: Rollback) -> None:
        self.pchannel.table.rollback(operation.txn_id)
        answer_future(operation.future, None)

    def _drop(self, operation: Drop) -> None:
        def closed() -> WALError:
            return ChannelNotExistError(f"vchannel {self.channel!r} was dropped: append to it again to recreate it")

        self._end(closed)
        self.pchannel.dropped(self)
        answer_future(operation.future, None)

    def _end(self, closed: Callable[[], WALError]) -> None:
        self.closed = closed
        self.pchannel.endings += 1
        self.pchannel.fail_transactions(self.run_name, lambda _: closed())


Conditional = ConditionalAppend | ConditionalKeyedAppend | TxnSubmission
_CONDITIONAL: Final = (ConditionalAppend, ConditionalKeyedAppend, TxnSubmission)
_PLAIN_ONLY = frozenset((PlainAppend,))
_RUNS: dict[type, Callable[[VChannel, list[Any]], None]] = {
    PlainAppend: VChannel._plain,
    KeyedAppend: VChannel._keyed,
    ProducerAppend: VChannel._keyed,
}
_HANDLERS: dict[type, Callable[[VChannel, Any], None]] = {
    OrderedAppend: VChannel._ordered,
    ConditionalAppend: VChannel._ordered,
    ConditionalKeyedAppend: VChannel._conditional_keyed,
    Bulk: VChannel._bulk,
    Atomic: VChannel._atomic,
    Begin: VChannel._begin,
    Commit: VChannel._commit,
    Rollback: VChannel._rollback,
    Drop: VChannel._drop,
    KeyedCommit: VChannel._keyed_commit,
    RemoveProducer: VChannel._forget,
    ScheduledAppend: VChannel._schedule,
    CancelScheduled: VChannel._cancel,
}
