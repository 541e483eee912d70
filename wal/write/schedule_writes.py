"""ScheduleWrites: writes the records of scheduled messages, and appends the messages at their delivery time.

All its calls are made in a turn of the pchannel's group, or when a frame is settled: an append with a time and a cancellation by the
vchannel of the message, `deliver` by the timer of the pchannel (`time_tick_interval_s`) while a message is due. It costs nothing while no
message is due, and ordinary appends do not pass through it.

Due messages are appended as ordinary messages, in one frame with the record that they wait no more, so each message is in the log once,
whatever crashes. Only one such frame is under way, with a bounded number of messages; the next one follows as soon as it is durable. If it
is refused (a full disk), its messages wait for the next turn of the timer. A message is due once both the ticks and the trusted wall clock
have passed its time. So its tick is at or above its time, and neither ticks ahead of the clock nor a clock that jumps ahead and comes back
make it early. A message with an idempotency key is remembered as any append with a key is.

The first scheduled message of a pchannel waits until a checkpoint records that there are any (`Checkpointer.mark`). An older version, which
would forget such messages, refuses the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from wal.errors import WALError
from wal.frame import FrameDraft, Record, RunName
from wal.message import AppendResult, Origin, ScheduledResult
from wal.timestamp.timestamp import LOGICAL_BITS, compose, to_datetime
from wal.write.idempotency.keys import key_ext
from wal.write.in_flight import InFlight
from wal.write.keyed_writes import KeyedWrites
from wal.write.operations import Answers, CancelScheduled, ScheduledAppend, VChannelMember, answer_future, fail_future
from wal.write.pipeline import FramePipeline
from wal.write.schedule import Scheduled, ScheduleTable, State, encode_numbers
from wal.write.submissions import RUN_OVERHEAD, RecordSubmission, Submission
from wal.write.ticks import TickSupply

BATCH_MESSAGES: Final = 256
BATCH_BYTES: Final = 1 << 20
"""The most bytes of messages that a frame delivers, but at least one message: building it takes about a millisecond."""
RECORD_OVERHEAD: Final = 64
"""The bytes of a record of a scheduled message beside its fields, rounded up."""


class LeavingSubmission(Submission):
    """Messages that wait no more: with `delivers` they are appended in the same frame, otherwise they were cancelled."""

    __slots__ = ("_writes", "delivers", "messages")

    def __init__(self, writes: ScheduleWrites, messages: Sequence[Scheduled], *, delivers: bool) -> None:
        self._writes = writes
        self.messages: Sequence[Scheduled] = messages
        self.delivers: bool = delivers
        self.count: int = len(messages) + 1
        self.in_flight = 0
        size = RUN_OVERHEAD + RECORD_OVERHEAD + 9 * len(messages)
        if delivers:
            size += sum([message.size + 4 * (len(message.key) + len(message.name[0])) + RECORD_OVERHEAD for message in messages])
        self.size: int = size

    def draft(self, draft: FrameDraft) -> None:
        self.first: int = draft.indices
        if self.delivers:
            for message in self.messages:
                ext = key_ext(message.key) if message.keyed else b""
                record = Record(message.payload, message.message_type, 0, message.properties, ext)
                draft.append(message.name, [record], keyed=message.keyed)
        draft.unscheduled(encode_numbers(self.messages))

    def resolve(self, origin: Origin, first_tick: int) -> None:
        if self.delivers:
            self._writes.delivered(self, origin, first_tick)
        else:
            self._writes.left(self)

    def fail(self, error: BaseException) -> None:
        self._writes.not_left(self, error)


class ScheduleWrites:
    """The scheduled messages of one pchannel.

    `due_ms` returns the wall time up to which messages are due. `mark` makes a checkpoint record that there are any, and calls back with
    its outcome.
    """

    def __init__(
        self,
        table: ScheduleTable,
        frames: FramePipeline,
        ticks: TickSupply,
        keyed: KeyedWrites,
        *,
        in_flight: InFlight,
        due_ms: Callable[[], int],
        mark: Callable[[Callable[[WALError | None], None]], None],
    ) -> None:
        self.table = table
        self.delivered_messages: int = 0
        """The messages that were delivered since the opening."""
        self._frames = frames
        self._ticks = ticks
        self._keyed = keyed
        self._in_flight = in_flight
        self._due_ms = due_ms
        self._mark = mark
        self._marked = table.used
        self._unmarked: list[tuple[VChannelMember, ScheduledAppend]] = []
        """The operations that wait for `mark`."""
        self._callers: dict[int, list[Answers[ScheduledResult]]] = {}
        """By the number of a submitted message: the callers that get its result when it is durable, the first caller first."""
        self._cancels: dict[int, list[Answers[bool]]] = {}
        """By the number of a leaving or submitted message: the callers that want to cancel it."""
        self._under_way: LeavingSubmission | None = None
        """The messages that are being delivered."""
        self._delivering: frozenset[RunName] = frozenset()
        """The vchannels of these messages."""

    def pending(self, name: RunName) -> int:
        """Returns the serial of the submission that delivers to this vchannel; 0 without one."""
        return self._under_way.serial if self._under_way is not None and name in self._delivering else 0

    # -- operations of the vchannels

    def append(self, vchannel: VChannelMember, operation: ScheduledAppend) -> None:
        """Schedules a message, or appends it at once if its time has passed.

        Raises WouldBlockError past the bounds of scheduled messages, InvalidArgumentError for a message above them.
        """
        name, key, table = vchannel.run_name, operation.key, self.table
        assert isinstance(key, str), "a producer's keys are in the order of its calls"
        if (message := table.find(name, key)) is not None:
            self._answer_again(operation, message)
            return
        if operation.keyed and self._keyed.answered((name,), key, operation.future):
            self._give_back(operation)
            return
        if self._ticks.take() is None:
            self._ticks.hold(vchannel, [operation])
            return
        if operation.due_ms <= self._now_ms():
            self.deliver()  # earlier messages that are due come first
            self._append_now(vchannel, operation)
            return
        if not self._marked:
            self._unmarked.append((vchannel, operation))
            if len(self._unmarked) == 1:
                self._mark(self._mark_settled)
            return
        message = table.submit(
            name,
            key,
            operation.due_ms,
            keyed=operation.keyed,
            message_type=operation.message_type,
            properties=operation.properties,
            payload=operation.payload,
        )
        self._callers[message.number] = [operation.future]
        size, operation.size = operation.size, 0
        record_size = message.size + 4 * (len(message.key) + len(message.name[0])) + RECORD_OVERHEAD
        settled = partial(self._scheduled, message)
        self._frames.submit(RecordSubmission(lambda draft: draft.scheduled(message.encoded()), settled, size=record_size, in_flight=size))

    def cancel(self, vchannel: VChannelMember, operation: CancelScheduled) -> None:
        """Cancels a message that waits for its delivery time; the future gets False if it does not exist, or was delivered first."""
        message = self.table.find(vchannel.run_name, operation.key)
        if message is None:
            answer_future(operation.future, False)
            return
        self._cancels.setdefault(message.number, []).append(operation.future)
        if message.state is State.PENDING:
            self._withdraw(message)

    def _withdraw(self, message: Scheduled) -> None:
        self.table.withdraw(message)
        self._frames.submit(LeavingSubmission(self, (message,), delivers=False))

    def _append_now(self, vchannel: VChannelMember, operation: ScheduledAppend) -> None:
        if operation.keyed:
            operation.claim = self._keyed.table.claim((vchannel.run_name,), operation.key)
            serial = self._frames.submit_keyed(vchannel.run_name, [operation], self._keyed)
        else:
            serial = self._frames.submit_plain(vchannel.run_name, [operation])
        vchannel.newest = serial

    def _answer_again(self, operation: ScheduledAppend, message: Scheduled) -> None:
        """Answers a call with the key of a message that is scheduled already."""
        self._give_back(operation)
        if message.state is State.SUBMITTED:
            self._callers[message.number].append(operation.future)
        else:
            answer_future(operation.future, result_of(message, duplicate=True))

    def _give_back(self, operation: ScheduledAppend) -> None:
        self._in_flight.release(operation.size)
        operation.size = 0

    # -- what is due

    def _now_ms(self) -> int:
        """Returns the time up to which messages are due: later ticks are above it, and the wall clock has passed it."""
        return min(self._ticks.oracle.last >> LOGICAL_BITS, self._due_ms())

    def deliver(self) -> None:
        """Appends the due messages, unless earlier ones are not durable yet."""
        if self._under_way is not None or self._frames.fault is not None:
            return
        if messages := self.table.take_due(self._now_ms(), count_max=BATCH_MESSAGES, bytes_max=BATCH_BYTES):
            self._under_way = LeavingSubmission(self, messages, delivers=True)
            self._delivering = frozenset([message.name for message in messages])
            self._frames.submit(self._under_way)

    # -- outcomes

    def _scheduled(self, message: Scheduled, error: BaseException | None) -> None:
        """Answers the callers of a message that is durable, or with an error was not written."""
        callers = self._callers.pop(message.number)
        if error is not None:
            self.table.failed(message)
            for caller in callers:
                fail_future(caller, error)
            self._answer_cancels(message, cancelled=False)
            return
        self.table.durable(message)
        for number, caller in enumerate(callers):
            answer_future(caller, result_of(message, duplicate=number > 0))
        if message.number in self._cancels:
            if message.state is State.PENDING:
                self._withdraw(message)
            else:
                self._answer_cancels(message, cancelled=True)  # its vchannel was dropped

    def delivered(self, submission: LeavingSubmission, origin: Origin, first_tick: int) -> None:
        """Records that messages are in the log, and delivers the messages that are due after them."""
        for index, message in enumerate(submission.messages, submission.first):
            if message.keyed and message.state is not State.GONE:
                message_id = origin.message_id(index)
                claim = self._keyed.table.claim((message.name,), message.key)
                self._keyed.durable(claim, AppendResult(message_id, first_tick + index, message_id))
        self._under_way = None
        self.delivered_messages += len(submission.messages)
        self.left(submission)
        self.deliver()

    def left(self, submission: LeavingSubmission) -> None:
        """Records that messages wait no more."""
        self.table.removed(submission.messages)
        for message in submission.messages:
            self._answer_cancels(message, cancelled=not submission.delivers)

    def not_left(self, submission: LeavingSubmission, error: BaseException) -> None:
        """Records that no part of a delivery or of a cancellation was written."""
        if submission is self._under_way:
            self._under_way = None
        self.table.kept(submission.messages)
        for message in submission.messages:
            for caller in self._cancels.pop(message.number, ()):
                fail_future(caller, error)

    def _answer_cancels(self, message: Scheduled, *, cancelled: bool) -> None:
        for caller in self._cancels.pop(message.number, ()):
            answer_future(caller, cancelled)

    # -- the first message

    def _mark_settled(self, error: WALError | None) -> None:
        waiting, self._unmarked = self._unmarked, []
        self._marked = error is None
        for vchannel, operation in waiting:
            if error is None:
                vchannel.receive([operation])
            else:
                vchannel.refuse([operation], error)

    def refuse_unmarked(self, error: WALError) -> None:
        """Refuses the operations that wait for a checkpoint, none of which was written: the pchannel ends."""
        waiting, self._unmarked = self._unmarked, []
        for vchannel, operation in waiting:
            vchannel.refuse([operation], error)


def result_of(message: Scheduled, *, duplicate: bool) -> ScheduledResult:
    """Returns the answer to a call with the key of this message, which waits for its time."""
    return ScheduledResult(message.key, to_datetime(compose(message.due_ms)), None, duplicate)
