"""Checkpointer: takes the checkpoints of a pchannel while appends continue, without delaying them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from wal.errors import ChannelFencedError, ClosedError, StorageError, WALError, closed_log
from wal.storage.base import PChannelLog
from wal.write.checkpoint_ledger import Checkpoint, CheckpointLedger, CheckpointRule
from wal.write.recovery import RecoveryState, StateChanges

PIECES_A_TURN: Final = 8
"""Copying this many takes less than a millisecond. One piece per turn would take very long while turns have other work."""
PAUSE_S: Final = 0.001
"""Without a pause, turns follow each other so closely that the threads that write frames wait 5 ms for the interpreter each time."""
_CHANGES_MIN: Final = 256
_CHANGE_BYTES: Final = 160
"""The bytes that a key of up to about 128 bytes and its result take in a stored state."""
_logger: Final = logging.getLogger("wal.checkpoint")


class Checkpointer:
    """The checkpoints of one pchannel.

    Owns the one checkpoint that is under way and the order of its steps: it copies the state of the tables as of one position, a few pieces
    a turn; stores it with the backend; records it in the metadata, if the term is still ours; and only then frees the space that recovery
    no longer needs. A crash between any two steps loses nothing that recovery needs. A failed checkpoint is logged and retried later; it
    never fails an append.

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

        `end` returns the end of the log in the state. `save` stores the record, or raises ChannelFencedError when the record belongs to
        another writer.
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
        """Whether an event since the last `look` can make a checkpoint due: a durable frame, an attempt that ended. A retry after a failure
        becomes due with time alone.
        """
        self._room_for = 0
        """The number of changes since the last checkpoint for which the log keeps room."""
        self._marks: list[Callable[[WALError | None], None]] = []
        """The callers that wait for a checkpoint whose state has their changes."""
        self.on_forgotten: Callable[[frozenset[int]], None] | None = None
        """Called with the broadcasts that a durable checkpoint no longer lists."""
        self._taken_at_s = monotonic()
        self._keep_room()  # before the first append, which may fill the disk

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
        # A request needs a change to store, and waits for the end of the pause after a failure.
        if due or (self._requested and self._state.changes and self.ledger.is_possible(now_s=self._monotonic())):
            self._begin()

    def request(self) -> None:
        """Requests a checkpoint soon, however few events there were; it follows the one under way, if there is one."""
        self._requested = True
        self.look()

    def mark(self, settled: Callable[[WALError | None], None]) -> None:
        """Requests a checkpoint of all changes until now, and calls back when it is durable, or with the reason of a failure."""
        if self._ended:
            settled(closed_log())
            return
        self._marks.append(settled)
        self.request()

    async def make_room(self) -> None:
        """After a truncation, frees the space that only the last checkpoint needed, if that is worth a new one. A failure is only
        logged.
        """
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
        """Makes the log keep room for the next checkpoint, unless it already does."""
        state = self._state
        if (changes := state.changes + state.lasts.added + state.schedule.grown // _CHANGE_BYTES) >= self._room_for:
            # Room for twice as many, so that this is rare and comes before the disk is full.
            self._room_for = max(_CHANGES_MIN, 2 * changes)
            self._log.keep_room(self._room_for * _CHANGE_BYTES)

    def _begin(self) -> asyncio.Task[None]:
        # The state is that of this turn: no other code may run between reading the end of the log and the snapshot.
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
            is_expected = isinstance(error, WALError)
            _logger.log(
                logging.WARNING if is_expected else logging.ERROR,
                "the checkpoint of pchannel %s at position %d could not be stored; the next try is in %g s or more: %s",
                self._log.pchannel,
                checkpoint.position,
                wait_s,
                error,
                exc_info=None if is_expected else error,
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
