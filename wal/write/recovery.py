"""RecoveryState: the state of a pchannel that survives restarts, and its recovery from a checkpoint and the frames written after it."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import chain
from typing import Final

import msgspec

from wal.errors import ChannelFencedError, ClosedError, CorruptionError, StorageError, WALError, closed_log
from wal.frame import FrameView
from wal.read.last_events import LastEvents
from wal.runtime.backoff import Backoff
from wal.runtime.threads import in_thread
from wal.storage.base import PChannelLog
from wal.storage.state_table import Live, StateTable
from wal.write.copies import CopyTable
from wal.write.cursor_table import CursorTable
from wal.write.idempotency.table import IdempotencyTable
from wal.write.schedule import ScheduleTable


class StateChanges(msgspec.Struct, frozen=True):
    """The changes of each table between two checkpoints, the broadcasts that ended, and the bytes of what was scheduled."""

    counts: tuple[int, ...]
    forgotten: frozenset[int]
    grown: int


class RecoveryState:
    """The tables of one pchannel: idempotency keys, copies of broadcasts, the last event of each vchannel, cursors, scheduled messages.

    They share one blob in a checkpoint, one pass over the frames written after it, and one count of changes since then.
    """

    def __init__(self, keys: IdempotencyTable, copies: CopyTable, schedule: ScheduleTable | None = None) -> None:
        self.keys = keys
        self.copies = copies
        self.schedule: ScheduleTable = ScheduleTable() if schedule is None else schedule
        self.lasts: LastEvents = LastEvents()
        self.cursors: CursorTable = CursorTable()
        self.tables: tuple[StateTable, ...] = (keys, copies, self.lasts, self.cursors, self.schedule)
        """In the order of their pieces."""
        self.replayed_bytes: int = 0
        """The bytes of the frames that a recovery has replayed so far."""

    @property
    def changes(self) -> int:
        """The number of changes since the last checkpoint that an opening would replay."""
        return self.keys.changes + self.copies.changes + self.cursors.changes + self.schedule.changes

    def take_changes(self) -> StateChanges:
        """Returns the changes since the last checkpoint, for one that begins now; later changes count for the next."""
        taken = StateChanges(tuple([table.changes for table in self.tables]), frozenset(self.copies.forgotten), self.schedule.grown)
        for table in self.tables:
            table.changes = 0
        self.schedule.grown = 0
        self.copies.forgotten.clear()
        return taken

    def give_back(self, changes: StateChanges) -> None:
        """Counts the changes again of a checkpoint that was not stored."""
        for table, count in zip(self.tables, changes.counts, strict=True):
            table.changes += count
        self.schedule.grown += changes.grown
        self.copies.forgotten |= changes.forgotten

    def replay(self, position: int, view: FrameView, *, live: Live | None = None) -> int:
        """Applies one durable frame written after the checkpoint; returns how many changes it holds."""
        return sum([table.replay(position, view, live=live) for table in self.tables])

    def snapshot(self) -> Iterator[bytes]:
        """Returns the state as of this call, in pieces that are cheap to produce one by one; joined they are the blob."""
        return chain.from_iterable([table.snapshot() for table in self.tables])

    def restore(self, blob: bytes, *, live: Live | None = None) -> None:
        """Sets empty tables to the state of a snapshot. Raises CorruptionError if it is damaged, FormatError for a newer version."""
        for table in self.tables:
            table.restore(blob, live=live)

    def recovered(self) -> None:
        """Releases what was only needed for recovery."""
        self.copies.recovered()


PAGE_BYTES: Final = 1 << 20


async def recover(log: PChannelLog, state: RecoveryState, checkpoint: Checkpoint, *, live: Live | None = None) -> tuple[int, int]:
    """Sets empty tables to their state at the end of the log; returns what `replay` returns.

    `live` returns whether a vchannel still exists. The log must not be written meanwhile. Raises CorruptionError if the checkpoint's state
    is missing or damaged; the error names the file and the remedy.
    """
    # The objects created here stay. Without this, a sixth of the time is spent on garbage collections that find nothing.
    collecting = gc.isenabled()
    gc.disable()
    try:
        if checkpoint.state is not None:
            await _restore(log, state, checkpoint, live)
        # Cached, since most events belong to the same few vchannels.
        counts = await replay(log, state, checkpoint.position, live=None if live is None else functools.cache(live))
        state.recovered()
        lasts = state.lasts
        # A state of version 0.1.0 has no last events: those are looked up once in all that the log holds.
        start = checkpoint.position if lasts.complete else log.extents()[0].start
        lasts.recovered(await log.last_events(start), live=live)
        return counts
    finally:
        if collecting:
            gc.enable()


async def replay(log: PChannelLog, state: RecoveryState, start: int, *, live: Live | None = None) -> tuple[int, int]:
    """Applies the frames at or after `start`; returns how many keyed events and broadcasts there were, and their `keyed_bytes`.

    Only frames that hold any are read, where an index of the log knows them.
    """
    count = size = 0
    reading = asyncio.ensure_future(log.read_keyed(start, bytes_max=PAGE_BYTES))
    try:
        while True:
            page = await reading
            if more := page.next_position < log.durable_end:
                # The next page is fetched while this one is applied.
                reading = asyncio.ensure_future(log.read_keyed(page.next_position, bytes_max=PAGE_BYTES))
            for frame in page.frames:
                count += state.replay(frame.position, frame.view, live=live)
                size += max(frame.view.header.frame_bytes, log.frame_cost)
                state.replayed_bytes += frame.view.header.frame_bytes
                await asyncio.sleep(0)
            if not more:
                return count, size
    finally:
        if not reading.cancel() and not reading.cancelled():
            reading.exception()  # retrieved: the caller has this error, or an earlier one


async def _restore(log: PChannelLog, state: RecoveryState, checkpoint: Checkpoint, live: Live | None) -> None:
    assert checkpoint.state is not None
    try:
        blob = await log.load_state(checkpoint.state)
        # In a thread, so that tens of thousands of keys do not block the loop; nothing else uses the tables yet.
        await in_thread(state.restore, blob, live=live)
    except CorruptionError as error:
        raise CorruptionError(
            f"{error}. Only this file holds the idempotency keys, producers and broadcasts below position {checkpoint.position} of "
            f"pchannel {log.pchannel}: restore it from a copy of the directory, or give them up by removing the key "
            f"'checkpoints/{log.pchannel}' from the metadata",
            path=error.path,
            offset=error.offset,
            expected=error.expected,
        ) from error


SHARE: Final = 8
"""The bytes of frames with keyed events make a checkpoint due only when they are this many times its state."""
RETRY_S: Final = 1.0
RETRY_MAX_S: Final = 60.0


STATE_BYTES_AN_EVENT: Final = 200
"""The most bytes of state that a checkpoint writes for each keyed event since the last one: a large window of keys is written less often,
and an opening then replays more events."""


class Checkpoint(msgspec.Struct, frozen=True, gc=False):
    """Recovery begins at `position`, with the state that was stored for position `state` (None if nothing keyed is below)."""

    position: int
    state: int | None = None


class CheckpointRule(msgspec.Struct, frozen=True, gc=False):
    """The amounts after which a checkpoint is due: bytes of log, keyed events, bytes of the frames that hold keyed events.

    The default is three quarters of the 32,768 keyed events that an opening replays at most: more happen while it is written.
    """

    log_bytes: int = 256 << 20
    keyed_events: int = 24_576
    keyed_bytes: int = 32 << 20


class CheckpointLedger:
    """Where recovery begins, and when a new checkpoint is worth its cost. Pure.

    Keyed events, copies of broadcasts and broadcasts that end are all called keyed here. A checkpoint is due when

    * the keyed events since the last one, or the bytes of the frames that hold them, have grown so much that replaying them would make
      the next opening slow;
    * enough bytes of log were written since the last one;
    * enough truncated space waits for it to be worth its cost;
    * the log is closed cleanly and anything keyed happened.

    Except for the first rule, its state is at most an eighth of the frames that it replaces. If nothing keyed happened since the last
    checkpoint, the state stored for that one is still valid and only the position moves, which costs a record in the KV. After a failure
    the next attempt waits, each time longer. One checkpoint is under way at a time. The ledger reads no clock.

        (idle) --begin--> under way --done--> (idle)        under way --failed--> (idle, not before a later time)

    The next recovery begins with `last`, whose state takes `state_bytes`.
    """

    def __init__(self, last: Checkpoint, *, rule: CheckpointRule, state_bytes: int = 0) -> None:
        self.last: Checkpoint = last
        self.state_bytes: int = state_bytes
        self.failures: int = 0
        """The number of attempts that have failed since the last successful checkpoint."""
        self._rule = rule
        self._next: Checkpoint | None = None
        self._retry_at_s = 0.0
        self._backoff = Backoff(RETRY_S, RETRY_MAX_S)

    def is_due(
        self, *, end: int, keyed: int, keyed_bytes: int, held_bytes: int, now_s: float, log_bytes: int | None = None, moved: bool = False
    ) -> bool:
        """Returns whether a checkpoint should begin now.

        The log ends at `end`; since the last one `keyed` events happened, in frames of `keyed_bytes`; `held_bytes` of truncated space wait
        for it. `log_bytes` is the log since the last one, where positions do not count bytes. `moved` says that events were added, so that
        the state has to be stored again.
        """
        if self._next is not None or end <= self.last.position or now_s < self._retry_at_s:
            return False
        rule = self._rule
        return (
            keyed >= max(rule.keyed_events, self.state_bytes // STATE_BYTES_AN_EVENT)
            or (keyed > 0 and keyed_bytes >= max(rule.keyed_bytes, SHARE * self.state_bytes))
            or (end - self.last.position if log_bytes is None else log_bytes) >= rule.log_bytes
            or self.pays(keyed=keyed or moved, held_bytes=held_bytes)
        )

    def pays(self, *, keyed: int | bool, held_bytes: int) -> bool:
        """Returns whether a checkpoint frees at least the space that it takes."""
        return held_bytes > 0 and (not keyed or held_bytes >= self.state_bytes)

    def is_due_at_close(self, *, end: int, keyed: int) -> bool:
        """Returns whether a checkpoint should be taken before the log is closed."""
        return self._next is None and keyed > 0 and end >= self.last.position

    def is_possible(self, *, now_s: float) -> bool:
        """Returns whether a requested checkpoint may begin, even at the position of the last one, which may list broadcasts that ended."""
        return self._next is None and now_s >= self._retry_at_s

    def begin(self, *, end: int, keyed: int) -> Checkpoint:
        """Begins a checkpoint and returns it. Its state has to be stored if its `state` is its `position`."""
        assert self._next is None, "one at a time"
        self._next = Checkpoint(end, end if keyed else self.last.state)
        return self._next

    def done(self, state_bytes: int | None) -> None:
        """The checkpoint is durable. `state_bytes` is None if it reuses the previous state."""
        assert self._next is not None
        self.last, self._next = self._next, None
        if state_bytes is not None:
            self.state_bytes = state_bytes
        self.failures = 0
        self._backoff.reset()
        self._retry_at_s = 0.0

    def failed(self, now_s: float) -> float:
        """The checkpoint may not be stored. Returns the seconds after which the next attempt may begin."""
        self._next = None
        wait_s = self._backoff.next()
        self.failures += 1
        self._retry_at_s = now_s + wait_s
        return wait_s


PIECES_A_TURN: Final = 8
"""Copying this many takes less than a millisecond. One piece per turn would take very long while turns have other work."""
PAUSE_S: Final = 0.001
"""Without a pause, turns follow each other so closely that the threads that write frames wait 5 ms for the interpreter each time."""
_CHANGES_MIN: Final = 256
_CHANGE_BYTES: Final = 160
"""The bytes that a key of up to about 128 bytes and its result take in a stored state."""
_logger: Final = logging.getLogger("wal.checkpoint")


class Checkpointer:
    """Takes the checkpoints of a pchannel while appends continue, without delaying them.

    Owns the one checkpoint that is under way and the order of its steps: it copies the state of the tables as of one position, a few pieces
    a turn; stores it with the backend; records it in the metadata, if the term is still ours; and only then frees the space that recovery
    no longer needs. After a crash between any two steps, recovery has all that it needs. A failed checkpoint is logged and retried later;
    it never fails an append.

    `look` is cheap: call it while `moved`. Call `close` before the log is closed.
    """

    def __init__(
        self,
        log: PChannelLog,
        state: RecoveryState,
        *,
        last: Checkpoint,
        replayed_bytes: int = 0,
        end: Callable[[], int],
        save: Callable[[Checkpoint], Awaitable[None]],
        monotonic: Callable[[], float],
        rule: CheckpointRule | None = None,
    ) -> None:
        """The state was recovered from the checkpoint `last` and frames of `replayed_bytes`.

        `end` returns the position up to which the state knows the log. `save` stores the record, or raises ChannelFencedError when the
        record is another writer's.
        """
        self.ledger: CheckpointLedger = CheckpointLedger(last, rule=rule or CheckpointRule())
        self._log = log
        self._state = state
        self._keyed_bytes = log.keyed_bytes - replayed_bytes
        self._end = end
        self._save = save
        self._monotonic = monotonic
        self._running: asyncio.Task[None] | None = None
        self._requested = False
        self._ended = False
        self.moved: bool = True
        """Whether something happened since the last `look` that can make a checkpoint due: a durable frame, an attempt that ended. A
        retry after a failure becomes due with time alone."""
        self._room_for = 0
        """The number of changes since the last checkpoint for which the log keeps room."""
        self._marks: list[Callable[[WALError | None], None]] = []
        """Who waits for a checkpoint with a state that has what they have changed."""
        self.on_forgotten: Callable[[frozenset[int]], None] | None = None
        """Called with the broadcasts that a durable checkpoint no longer lists."""
        self._taken_at_s = monotonic()
        self._keep_room()  # before the first append, which may be the one that fills the disk

    @property
    def age_s(self) -> float:
        """Returns the seconds since the last checkpoint that succeeded, or since the opening."""
        return self._monotonic() - self._taken_at_s

    def look(self) -> None:
        """Begins a checkpoint if one is due."""
        if self._ended or self._running is not None:
            return
        self.moved = self._requested or self.ledger.failures > 0
        self._keep_room()
        due = self.ledger.is_due(
            end=self._end(),
            keyed=self._state.changes,
            keyed_bytes=self._log.keyed_bytes - self._keyed_bytes,
            held_bytes=self._log.held_bytes,
            now_s=self._monotonic(),
            moved=self._state.lasts.changes > 0,
            log_bytes=self._log.bytes_between(self.ledger.last.position, self._end()),
        )
        if due or (self._requested and self._state.changes and self.ledger.is_possible(now_s=self._monotonic())):
            self._begin()

    def request(self) -> None:
        """Requests a checkpoint soon, however little happened; it follows the one under way, if there is one."""
        self._requested = True
        self.look()

    def mark(self, settled: Callable[[WALError | None], None]) -> None:
        """Requests a checkpoint of what was changed until now, and calls back when it is durable, or with the reason why it is not."""
        if self._ended:
            settled(closed_log())
            return
        self._marks.append(settled)
        self.request()

    async def make_room(self) -> None:
        """After a truncation, frees the space that only the last checkpoint held, if that is worth a new one. A failure is only logged."""
        if self._running is not None:
            await asyncio.wait((self._running,))
        self.look()
        if self._running is not None:
            await asyncio.wait((self._running,))

    async def close(self) -> None:
        """Waits for the checkpoint under way and takes a last one, so that the next opening has nothing to replay. Idempotent."""
        if self._running is not None:
            await asyncio.wait((self._running,))
        if not self._ended and self.ledger.is_due_at_close(end=self._end(), keyed=self._state.changes):
            await asyncio.wait((self._begin(),))
        self._ended = True
        self._answer(self._marks, closed_log())

    def _keep_room(self) -> None:
        """Has the log keep room for the next checkpoint, if it does not."""
        state = self._state
        if (changes := state.changes + state.lasts.added + state.schedule.grown // _CHANGE_BYTES) >= self._room_for:
            # Room for twice as many, so that this is rare and comes before the disk is full.
            self._room_for = max(_CHANGES_MIN, 2 * changes)
            self._log.keep_room(self._room_for * _CHANGE_BYTES)

    def _begin(self) -> asyncio.Task[None]:
        # The state is that of this turn: nothing may happen between reading the end of the log and the snapshot.
        self._requested = False
        changes = self._state.take_changes()
        stored = sum(changes.counts)
        checkpoint = self.ledger.begin(end=self._end(), keyed=stored)
        snapshot = self._state.snapshot() if stored else None
        before, self._keyed_bytes = self._keyed_bytes, self._log.keyed_bytes
        marks, self._marks = self._marks, []
        self._running = asyncio.get_running_loop().create_task(
            self._guarded(checkpoint, snapshot, changes, before, marks), name=f"checkpoint {self._log.pchannel}"
        )
        return self._running

    async def _guarded(
        self,
        checkpoint: Checkpoint,
        snapshot: Iterable[bytes] | None,
        changes: StateChanges,
        keyed_bytes: int,
        marks: list[Callable[[WALError | None], None]],
    ) -> None:
        """Takes a checkpoint. If it fails, the changes since the previous one are counted again."""
        outcome: WALError | None = None
        try:
            await self._store(checkpoint, snapshot)
        except (ChannelFencedError, ClosedError) as error:
            self._ended = True  # the next writer continues from the last checkpoint
            outcome = error
        except Exception as error:
            outcome = error if isinstance(error, WALError) else StorageError(f"a checkpoint could not be stored: {error!r}")
            self._state.give_back(changes)
            self._requested = self._requested or bool(changes.forgotten)
            self._keyed_bytes = keyed_bytes
            wait_s = self.ledger.failed(self._monotonic())
            known = isinstance(error, WALError)
            _logger.log(
                logging.WARNING if known else logging.ERROR,
                "the checkpoint of pchannel %s at position %d could not be stored; the next try is in %g s or more: %s",
                self._log.pchannel,
                checkpoint.position,
                wait_s,
                error,
                exc_info=None if known else error,
                extra={
                    "wal_event": "checkpoint failed",
                    "wal_pchannel": self._log.pchannel,
                    "wal_position": checkpoint.position,
                    "wal_retry_s": wait_s,
                    "wal_error": type(error).__name__,
                },
            )
        else:
            self._room_for = 0
            if changes.forgotten and self.on_forgotten is not None:
                self.on_forgotten(changes.forgotten)
        finally:
            self._running = None
            self.moved = True
            self._answer(marks, outcome)

    def _answer(self, marks: list[Callable[[WALError | None], None]], error: WALError | None) -> None:
        while marks:
            marks.pop(0)(error)

    async def _store(self, checkpoint: Checkpoint, snapshot: Iterable[bytes] | None) -> None:
        size = None
        if snapshot is not None:
            pieces = []
            for piece in snapshot:
                pieces.append(piece)
                if not len(pieces) % PIECES_A_TURN:
                    await asyncio.sleep(PAUSE_S)
            size = sum(map(len, pieces))
            await self._log.save_state(checkpoint.position, pieces)
        await self._save(checkpoint)
        self.ledger.done(size)
        self._taken_at_s = self._monotonic()
        try:
            await self._log.release(checkpoint.position, state=checkpoint.state)
        except (ChannelFencedError, ClosedError):
            self._ended = True
        except WALError as error:
            _logger.warning("pchannel %s: space could not be given back: %s", self._log.pchannel, error)
