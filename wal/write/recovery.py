"""RecoveryState: the state of a pchannel that survives restarts, and its recovery from a checkpoint and the frames written after it."""

from __future__ import annotations

import asyncio
import functools
import gc
from collections.abc import Iterator
from itertools import chain
from typing import Final

import msgspec

from wal.errors import CorruptionError
from wal.frame import FrameView
from wal.read.last_events import LastEvents
from wal.runtime.threads import in_thread
from wal.storage.base import PChannelLog
from wal.storage.state_table import Live, StateTable
from wal.write.checkpoint_ledger import Checkpoint
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
        """Returns the changes since the last checkpoint, for a checkpoint that begins now; later changes count for the next."""
        changes = StateChanges(tuple([table.changes for table in self.tables]), frozenset(self.copies.forgotten), self.schedule.grown)
        for table in self.tables:
            table.changes = 0
        self.schedule.grown = 0
        self.copies.forgotten.clear()
        return changes

    def give_back(self, changes: StateChanges) -> None:
        """Counts the changes again of a checkpoint that was not stored."""
        for table, count in zip(self.tables, changes.counts, strict=True):
            table.changes += count
        self.schedule.grown += changes.grown
        self.copies.forgotten |= changes.forgotten

    def replay(self, position: int, view: FrameView, *, live: Live | None = None) -> int:
        """Applies one durable frame written after the checkpoint; returns its number of changes."""
        return sum([table.replay(position, view, live=live) for table in self.tables])

    def snapshot(self) -> Iterator[bytes]:
        """Returns the state as of this call, in pieces that are cheap to produce one by one; joined they are the blob."""
        return chain.from_iterable([table.snapshot() for table in self.tables])

    def restore(self, blob: bytes, *, live: Live | None = None) -> None:
        """Sets empty tables to the state of a snapshot. Raises CorruptionError if it is damaged, FormatError for a newer version."""
        for table in self.tables:
            table.restore(blob, live=live)

    def recovered(self) -> None:
        """Releases objects that only recovery needed."""
        self.copies.recovered()


PAGE_BYTES: Final = 1 << 20


async def recover(log: PChannelLog, state: RecoveryState, checkpoint: Checkpoint, *, live: Live | None = None) -> tuple[int, int]:
    """Sets empty tables to their state at the end of the log; returns the result of `replay`.

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
        # A state of version 0.1.0 has no last events: those are looked up once in all frames of the log.
        start = checkpoint.position if lasts.complete else log.extents()[0].start
        lasts.recovered(await log.last_events(start), live=live)
        return counts
    finally:
        if collecting:
            gc.enable()


async def replay(log: PChannelLog, state: RecoveryState, start: int, *, live: Live | None = None) -> tuple[int, int]:
    """Applies the frames at or after `start`; returns the number of keyed events and broadcasts, and their `keyed_bytes`.

    An index of the log selects the frames that contain any; without one all frames are read.
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
