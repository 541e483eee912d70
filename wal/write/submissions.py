"""Submissions: the entries of the frame pipeline that wait for the next frame, and the delivery of the outcome to their callers.

A submission is drafted into one frame as a whole (plain appends may be cut in two before), keeps its first index there, and is settled
once: resolved when the frame is durable, failed otherwise. Appends are below, copies of broadcasts in `copy_writes`.
"""

from __future__ import annotations

import abc
import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from wal.errors import UnavailableError, WouldBlockError, caused
from wal.frame import FrameDraft, Payloads, Record, RunName
from wal.message import AppendResult, MessageID, Origin, TxnContext
from wal.read.cursors.records import CursorRecord
from wal.write.cursor_table import CursorChange
from wal.write.idempotency.keys import key_ext
from wal.write.idempotency.scopes import Claim
from wal.write.keyed_writes import KeyedWrites
from wal.write.operations import Expected, KeyedAppend, PlainAppend, Settles, Together, answer_future, fail_future
from wal.write.txn_table import OpenTxn

RUN_OVERHEAD: Final = 16
"""The bytes of a run's row in the tables of a frame, rounded up."""


class Submission(abc.ABC):
    """An entry of one frame: `count` records and at most `size` bytes; settling it gives back the room `in_flight`."""

    __slots__ = ("count", "first", "in_flight", "serial", "size")

    size: int
    count: int
    in_flight: int
    first: int
    serial: int
    """Its number among all submissions, in their order; a part has that of the whole. Set by `FramePipeline.submit`."""

    @abc.abstractmethod
    def draft(self, draft: FrameDraft) -> None:
        """Adds its records to the frame and keeps the index at which they begin."""

    @abc.abstractmethod
    def resolve(self, origin: Origin, first_tick: int) -> None:
        """Gives the callers their results: the frame is durable at this origin, and its first event has this tick."""

    @abc.abstractmethod
    def fail(self, error: BaseException) -> None:
        """Gives the callers the error: the frame was not written, or its outcome is unknown."""

    def split(self, claims: frozenset[Any]) -> tuple[Submission | None, Submission | None]:
        """Returns the part with one of these claims, or with changes of one of these cursors, and the rest; None for an empty part."""
        return None, self

    def cut(self, *, size: int, count: int) -> Submission | None:
        """Takes out a front part that fits these bounds, if it can be cut; returns None if it cannot, or if all of it fits."""
        return None


class BulkSubmission(Submission):
    """Plain messages of one vchannel with one future for all of them."""

    __slots__ = ("future", "name", "records")

    def __init__(self, name: RunName, records: list[Record], *, size: int, future: asyncio.Future[Together]) -> None:
        self.name: RunName = name
        self.records: list[Record] = records
        self.future: asyncio.Future[Together] = future
        self.count: int = len(records)
        self.in_flight = size
        self.size: int = size + RUN_OVERHEAD + 4 * len(name[0])

    def draft(self, draft: FrameDraft) -> None:
        self.first: int = draft.append(self.name, self.records)

    def resolve(self, origin: Origin, first_tick: int) -> None:
        answer_future(self.future, Together(origin, self.first, first_tick + self.first, self.count))

    def fail(self, error: BaseException) -> None:
        fail_future(self.future, error)


class CursorOutcomes(Protocol):
    """Receives the outcome of a cursor's record: `CursorWrites` implements it."""

    def durable(self, record: CursorRecord) -> None: ...

    def failed(self, record: CursorRecord) -> None: ...


class TxnSubmission(Submission):
    """A committed transaction on one or several vchannels; `claim` and `keyed` are set for a transaction with an idempotency key.

    `bodies` are its bodies, and `owners` the vchannel of each; None for a single vchannel. It is `whole` if it began with its commit, so
    that it spans no other message while it waits for a barrier.

    `change` is the save of a cursor that it commits, and `record` the record of the save, after `cursors` has decided about it. A
    transaction without bodies writes only the record.
    """

    __slots__ = (
        "bodies", "change", "claim", "context", "cursors", "expected", "future", "keyed", "names", "owners", "record", "whole",
    )  # fmt: skip

    def __init__(
        self,
        context: TxnContext,
        names: tuple[RunName, ...],
        bodies: list[Record] | Payloads,
        owners: list[RunName] | None,
        *,
        size: int,
        future: Settles[AppendResult],
        whole: bool = False,
        expected: Expected = (),
    ) -> None:
        self.context: TxnContext = context
        self.names: tuple[RunName, ...] = names
        self.bodies: list[Record] | Payloads = bodies
        self.owners: list[RunName] | None = owners
        self.future: Settles[AppendResult] = future
        self.claim: Claim | None = None
        self.keyed: KeyedWrites | None = None
        self.first = 0
        self.count: int = len(bodies) + len(names)
        self.size = self.in_flight = size
        self.whole: bool = whole
        self.expected: Expected = expected
        self.change: CursorChange | None = None
        self.record: CursorRecord | None = None
        self.cursors: CursorOutcomes | None = None

    @classmethod
    def of(cls, txn: OpenTxn, future: Settles[AppendResult], expected: Expected, change: CursorChange | None = None) -> TxnSubmission:
        """Returns the submission of a transaction that was committed."""
        owners = None if len(txn.names) == 1 else [name for name, _ in txn.bodies]
        records = [record for _, record in txn.bodies]
        submission = cls(txn.context, txn.names, records, owners, size=txn.stored, future=future, expected=expected)
        submission.change = change
        return submission

    def draft(self, draft: FrameDraft) -> None:
        if self.record is not None:
            draft.cursor(self.record.key, self.record.encoded)
            if not self.bodies:
                self.first = max(draft.indices - 1, 0)  # it has no event: the event before it in the frame, if any
                return
        txn_id, keepalive_ms = self.context.txn_id, round(self.context.keepalive * 1000)
        key = b"" if self.claim is None else key_ext(self.claim.key)
        if self.owners is None:
            self.first = draft.commit_one(self.names[0], self.bodies, txn_id=txn_id, keepalive_ms=keepalive_ms, key=key)
        else:
            assert not isinstance(self.bodies, Payloads)
            bodies = list(zip(self.owners, self.bodies, strict=True))
            self.first = draft.commit(bodies, names=self.names, txn_id=txn_id, keepalive_ms=keepalive_ms, key=key)

    def resolve(self, origin: Origin, first_tick: int) -> None:
        message_id = origin.message_id(self.first)
        result = AppendResult(message_id, first_tick + self.first, message_id, self.context)
        if self.record is not None and self.cursors is not None:
            self.cursors.durable(self.record)
        answer_future(self.future, result)
        if self.claim is not None and self.keyed is not None:
            self.keyed.durable(self.claim, result)

    def split(self, claims: frozenset[Any]) -> tuple[Submission | None, Submission | None]:
        chosen = self.claim in claims or (self.record is not None and self.record.key in claims)
        return (self, None) if chosen else (None, self)

    def fail(self, error: BaseException) -> None:
        error = _of_transaction(error)
        if self.claim is not None and self.keyed is not None:
            self.keyed.failed(self.claim, self.claim.key, self.future, error)
        else:
            fail_future(self.future, error)
        if self.record is not None and self.cursors is not None:
            self.cursors.failed(self.record)


class OwnSubmission(Submission):
    """A frame that the log writes for itself; `settled` is called with its outcome."""

    __slots__ = ("_settled",)

    def __init__(self, settled: Callable[[BaseException | None], None]) -> None:
        self._settled = settled
        self.size = self.count = self.in_flight = self.serial = 0

    def draft(self, draft: FrameDraft) -> None:
        raise AssertionError("a frame of the log's own is drafted by its writer")

    def resolve(self, origin: Origin, first_tick: int) -> None:
        self._settled(None)

    def fail(self, error: BaseException) -> None:
        self._settled(error)


class RecordSubmission(OwnSubmission):
    """A record of the state of the pchannel, alone, of at most `size` bytes: `add` drafts it. With a `key` it can be withdrawn."""

    __slots__ = ("_add", "_key")

    def __init__(
        self,
        add: Callable[[FrameDraft], object],
        settled: Callable[[BaseException | None], None],
        *,
        size: int,
        in_flight: int = 0,
        key: Hashable = None,
    ) -> None:
        super().__init__(settled)
        self._add = add
        self._key = key
        self.count = 1
        self.in_flight = in_flight
        self.size = RUN_OVERHEAD + size

    def draft(self, draft: FrameDraft) -> None:
        self._add(draft)

    def split(self, claims: frozenset[Any]) -> tuple[Submission | None, Submission | None]:
        return (self, None) if self._key in claims else (None, self)


def cut(waiting: deque[Submission], *, size: int, count: int) -> list[Submission]:
    """Takes the submissions of the next frame, at most `size` bytes and `count` records, from the front of `waiting`.

    At least one is taken, however large it is; plain appends are cut in two if need be.
    """
    if len(waiting) == 1 and waiting[0].size <= size and waiting[0].count <= count:
        return [waiting.popleft()]
    submissions: list[Submission] = []
    while waiting:
        submission = waiting[0]
        if submission.size > size or submission.count > count:
            if not submissions or (size > 0 and count > 0):
                front = submission.cut(size=size, count=count)
                if front is not None and (not submissions or front.size <= size):
                    submissions.append(front)
                    break
                if front is not None:
                    waiting.appendleft(front)
                    break
            if submissions:
                break
        submissions.append(waiting.popleft())
        size -= submission.size
        count -= submission.count
    return submissions


def _of_transaction(error: BaseException) -> BaseException:
    """Returns the error for a transaction whose frame failed: a WouldBlockError would wrongly mean that it is still open."""
    if not isinstance(error, WouldBlockError):
        return error
    return caused(UnavailableError(f"{error}; the transaction has ended and nothing of it was written: begin another one"), error)


_AppendT = TypeVar("_AppendT", bound=PlainAppend)


class AppendsSubmission(Submission, Generic[_AppendT]):
    """Consecutive appends of a turn as one entry of a frame. Plain appends are the bulk of all writes.

    Appends of one kind that follow each other are drafted together and get their results in one pass, to any vchannels and in the order of
    their calls. Only these submissions may be cut in two, and only keyed appends may be withdrawn one by one.

    `batches[i]` is for the vchannel `names[i]`. All of them are drafted together, so their indices are consecutive.
    """

    __slots__ = ("batches", "names")

    def __init__(self) -> None:
        self.names: list[RunName] = []
        self.batches: list[list[_AppendT]] = []
        self.count = self.in_flight = self.size = 0

    @abc.abstractmethod
    def empty(self) -> Self:
        """Returns another submission of this kind, without appends."""

    def add(self, name: RunName, appends: list[_AppendT]) -> None:
        """Adds the appends of one vchannel at the end."""
        size = appends[0].size if len(appends) == 1 else sum([append.size for append in appends])
        self.names.append(name)
        self.batches.append(appends)
        self.count += len(appends)
        self.in_flight += size
        self.size += size + RUN_OVERHEAD + 4 * len(name[0])

    def cut(self, *, size: int, count: int) -> Self | None:
        """Takes out the appends at the front that fit these bounds, at least one; returns None when all of them fit."""
        if self.size <= size and self.count <= count:
            return None
        front, rest = self.empty(), self.empty()
        for name, appends in zip(self.names, self.batches, strict=True):
            taken_count = 0
            if not rest.count:
                room = size - front.size - RUN_OVERHEAD - 4 * len(name[0])
                for append in appends[: max(count - front.count, 0)]:
                    room -= append.size
                    if room < 0:
                        break
                    taken_count += 1
                if not taken_count and not front.count:
                    taken_count = 1
            if taken_count:
                front.add(name, appends[:taken_count] if taken_count < len(appends) else appends)
            if taken_count < len(appends):
                rest.add(name, appends[taken_count:] if taken_count else appends)
        if not rest.count:
            return None
        front.serial = self.serial
        self.names, self.batches = rest.names, rest.batches
        self.count: int = rest.count
        self.in_flight: int = rest.in_flight
        self.size: int = rest.size
        return front


class PlainSubmission(AppendsSubmission[PlainAppend]):
    """Consecutive plain appends. They are the bulk of all writes."""

    __slots__ = ()

    def empty(self) -> PlainSubmission:
        return PlainSubmission()

    def draft(self, draft: FrameDraft) -> None:
        self.first: int = draft.indices
        for name, appends in zip(self.names, self.batches, strict=True):
            draft.append(name, appends)

    def resolve(self, origin: Origin, first_tick: int) -> None:
        pchannel, incarnation, position, form = origin.pchannel, origin.incarnation, origin.position, origin.form
        index = self.first
        for appends in self.batches:
            for append in appends:
                message_id = MessageID(pchannel, incarnation, position, index, form)
                try:
                    append.future.set_result(AppendResult(message_id, first_tick + index, message_id))
                except asyncio.InvalidStateError:
                    pass  # its caller was cancelled
                index += 1

    def fail(self, error: BaseException) -> None:
        for appends in self.batches:
            for append in appends:
                fail_future(append.future, error)


class KeyedSubmission(AppendsSubmission[KeyedAppend]):
    """Consecutive appends with idempotency keys that were claimed in their turn."""

    __slots__ = ("keyed",)

    def __init__(self, keyed: KeyedWrites) -> None:
        super().__init__()
        self.keyed: KeyedWrites = keyed

    def empty(self) -> KeyedSubmission:
        return KeyedSubmission(self.keyed)

    def draft(self, draft: FrameDraft) -> None:
        self.first: int = draft.indices
        for name, appends in zip(self.names, self.batches, strict=True):
            draft.append(name, appends, keyed=True)

    def resolve(self, origin: Origin, first_tick: int) -> None:
        index = self.first
        for appends in self.batches:
            self.keyed.appended(appends, origin, index, first_tick)
            index += len(appends)

    def fail(self, error: BaseException) -> None:
        for appends in self.batches:
            for append in appends:
                assert append.claim is not None
                self.keyed.failed(append.claim, append.key, append.future, error)

    def split(self, claims: frozenset[Any]) -> tuple[KeyedSubmission | None, KeyedSubmission | None]:
        claimed, rest = self.empty(), self.empty()
        for name, appends in zip(self.names, self.batches, strict=True):
            for part, is_claimed in ((claimed, True), (rest, False)):
                chosen = [append for append in appends if (append.claim in claims) is is_claimed]
                if chosen:
                    part.add(name, chosen)
        if not claimed.count:
            return None, self
        claimed.serial = rest.serial = self.serial
        return claimed, rest if rest.count else None
