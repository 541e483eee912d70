"""CursorWrites: writes the records of cursors whose home is a pchannel, alone or in the frame of the bodies that they belong to.

It is a member of the pchannel's group, so changes of cursors are ordered with the other calls. How it works:

* `admit` decides about the save of a transaction (`TxnSubmission.change`) in the turn in which it joins a frame. Other changes are
  `CursorOperation`s of this member, and are written as records alone.
* A save below the first event of the log that the cursor reads is refused. A truncation under way counts as done: it publishes how far it
  goes before it reads the cursors (`wal/node/retention/keeper.py`), so that no save comes between.
* The save of a transaction with a repeated key (`save_after`) waits until the first transaction is durable, and so do the later saves of
  its cursor.
* If a frame is refused, the later changes of its cursors that wait for a frame fail with it: a later save must not pass messages whose
  output was never written.

`CursorTable` decides the meaning of a change. A record counts once its frame is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sized
from typing import Any, Protocol

import msgspec

from actors import ActorError, Group
from wal.errors import WALError
from wal.message import AppendResult, LogPosition
from wal.read.cursors.cursor import CursorKey, after_unsaved
from wal.read.cursors.records import CursorRecord
from wal.write.cursor_table import CursorChange, CursorTable, has_saved
from wal.write.in_flight import InFlight
from wal.write.operations import Answers, Settles, answer_future, fail_future
from wal.write.pipeline import FramePipeline
from wal.write.state_writes import StateWrites
from wal.write.submissions import RecordSubmission, TxnSubmission
from wal.write.ticks import Holder, TickSupply


class CursorOperation(msgspec.Struct, gc=False):
    """A change of a cursor without bodies. `change` is a save; otherwise `make` returns the record of another change, or None.

    The future gets the record once it is durable, or None if nothing has to be written. `first` is the outcome of a transaction that has to
    be durable before.
    """

    key: CursorKey
    future: Answers[CursorRecord | None]
    change: CursorChange | None = None
    make: Callable[[CursorTable], CursorRecord | None] | None = None
    first: asyncio.Future[Any] | None = None


def save_after(change: CursorChange, first: asyncio.Future[Any], future: Settles[Any]) -> CursorOperation:
    """Returns the save of a transaction with a repeated key. It is made once the `first` result is known, if it moves the cursor forward;
    the caller's future gets that result.
    """
    saved: asyncio.Future[CursorRecord | None] = asyncio.get_running_loop().create_future()

    def done(saved: asyncio.Future[CursorRecord | None]) -> None:
        if (error := saved.exception()) is not None:
            fail_future(future, error)
        else:
            answer_future(future, first.result())

    saved.add_done_callback(done)
    return CursorOperation(change.key, saved, msgspec.structs.replace(change, forward_only=True), first=first)


class Admits(Holder, Protocol):
    """Submits changes of cursors to `admit`: a vchannel those of transactions, `CursorWrites` others."""

    def released(self, operation: Any) -> None:
        """Continues an operation that waited for an earlier save."""


class CursorWrites(StateWrites):
    """The changes of the cursors of one pchannel. Its operations are `CursorOperation`s."""

    ended = "changes no cursors any more"

    def __init__(
        self, table: CursorTable, group: Group, frames: FramePipeline, ticks: TickSupply, in_flight: InFlight, barriers: Sized
    ) -> None:
        """`barriers` has the operations of the pchannel that wait for their barriers."""
        super().__init__(group, frames, ticks, in_flight)
        self.table: CursorTable = table
        self.first_for: Callable[[CursorChange], LogPosition] = lambda _: (0, 0)
        """Returns the first event of the log that the cursor of a save reads, after all truncations under way. Raises the error of a save
        that must not be written.
        """
        self.on_settled: Callable[[CursorKey], object] | None = None
        """Called with each cursor of which a record became durable or failed."""
        self._barriers = barriers
        self._waiting: dict[CursorKey, list[tuple[Admits, Any]]] = {}
        """The saves of cursors that wait for an earlier transaction, and the later ones. Invariant: the first entry of a cursor waits for
        its `first`; every later save of that cursor waits here after it, so that saves keep the order of their calls.
        """

    # -- turns

    def released(self, operation: CursorOperation) -> None:
        """Carries an operation out; a save waits after an earlier save that waits for its `first`, other changes do not."""
        change, first = operation.change, operation.first
        if change is not None and (waiting := self._waiting.get(operation.key)) is not None:
            waiting.append((self, operation))
            return
        if first is not None and not first.done():
            if not self._barriers:  # otherwise the first transaction may come here later, and would wait for this one
                self._waiting[operation.key] = [(self, operation)]
            first.add_done_callback(lambda _: self._go_on(operation))
            return
        if first is not None and (failure := first.exception()) is not None:
            fail_future(operation.future, failure)
            return
        try:
            if change is not None:
                record = self._save(change)
            else:
                assert operation.make is not None
                record = operation.make(self.table)
        except WALError as error:
            fail_future(operation.future, error)
            return
        if record is not None:
            self._submit(record, operation.future)
        else:
            self._answer_settled(operation.key, operation.future, None, change)

    def admit(self, holder: Admits, submission: TxnSubmission) -> bool:
        """Decides about the save of a transaction that joins a frame now; returns whether it joins.

        Otherwise the transaction waits for an earlier save and comes back by `released`, or it has ended: its caller has the error, or the
        success of the same commit that was sent before.
        """
        change = submission.change
        assert change is not None
        if (waiting := self._waiting.get(change.key)) is not None:
            waiting.append((holder, submission))
            return False
        try:
            record = self._save(change)
        except WALError as error:
            holder.refuse([submission], error)
            return False
        if record is None and change.fence is not None:  # a repeated commit: its bodies were written with the first
            self._in_flight.release(submission.in_flight)
            self._answer_settled(change.key, submission.future, AppendResult(None, None, None, duplicate=True), change)
            return False
        submission.record, submission.cursors = record, self
        return True

    def _save(self, change: CursorChange) -> CursorRecord | None:
        return self.table.save(change, first=(0, 0) if change.cursor is None else self.first_for(change))

    def _go_on(self, operation: CursorOperation) -> None:
        """Carries out a save whose `first` transaction is settled, and the changes that waited for it."""

        def settled() -> None:
            if operation.future.done():  # the pchannel failed meanwhile
                return
            alone: list[tuple[Admits, Any]] = [(self, operation)]
            waiting = self._waiting.get(operation.key, alone)
            if waiting[0][1] is operation:
                self._waiting.pop(operation.key, None)
            else:
                waiting = alone
            for holder, each in waiting:
                holder.released(each)

        try:
            self._actor_group.tell_control(self, settled)
        except ActorError as refused:
            error = self.refusal(refused)
            self.refuse([operation], error)
            self.stop(error)

    def take_out(self, chosen: Callable[[tuple[Admits, Any]], bool]) -> list[tuple[Admits, Any]]:
        """Removes and returns the chosen operations that wait for another save of their cursor."""
        chosen_entries: list[tuple[Admits, Any]] = []
        for waiting in self._waiting.values():
            chosen_entries += [entry for entry in waiting[1:] if chosen(entry)]
            waiting[1:] = [entry for entry in waiting[1:] if not chosen(entry)]
        return chosen_entries

    def stop(self, error: WALError) -> None:
        """Fails the operations that wait for another save: the pchannel writes nothing any more."""
        stopped, self._waiting = self._waiting, {}
        for waiting in stopped.values():
            for holder, operation in waiting:
                holder.refuse([operation], error)

    # -- outcomes

    def durable(self, record: CursorRecord) -> None:
        """Records that a record is in the log."""
        self.table.durable(record)
        if record.deleted:
            self.table.forget(record)
        if self.on_settled is not None:
            self.on_settled(record.key)

    def failed(self, record: CursorRecord) -> None:
        """Records that a record was not written, and fails the later changes of the cursor that wait for a frame."""
        if self.table.is_pending(record.key):
            self.table.failed(record)
            if self._frames.fault is None:
                self._frames.withdraw(frozenset((record.key,)), after_unsaved(record.key))
        if self.on_settled is not None:
            self.on_settled(record.key)

    def _submit(self, record: CursorRecord, future: Answers[CursorRecord | None]) -> None:
        def settled(error: BaseException | None) -> None:
            if error is None:
                self.durable(record)
                answer_future(future, record)
            else:
                fail_future(future, error)
                self.failed(record)

        self._frames.submit(
            RecordSubmission(lambda draft: draft.cursor(record.key, record.encoded), settled, size=record.size, key=record.key)
        )

    def _answer_settled(self, key: CursorKey, future: Answers[Any], result: Any, change: CursorChange | None) -> None:
        """Answers a caller with nothing to write once the record that it relies on is durable: the newest one, or an earlier one if that is
        enough for a `change`.
        """
        newest = self.table.newest(key)

        def answer() -> None:
            record = self.table.get(key)
            missing = not newest.deleted if record is None else record.revision < newest.revision
            # The newest record failed; an earlier durable one is enough only if it has this change.
            if missing and (record is None or change is None or not has_saved(record, change)):
                fail_future(future, self._frames.fault or after_unsaved(key))
            else:
                answer_future(future, result)

        if self.table.is_pending(key):
            self._frames.when_settled(self._frames.newest, answer)
        else:
            answer_future(future, result)
