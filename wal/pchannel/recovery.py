"""RecoveryState: the state of a pchannel that survives restarts, and its recovery from a checkpoint and the frames written after it."""

from __future__ import annotations

import asyncio
import functools
import gc
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final

import msgspec

from wal.backends import PChannelLog
from wal.errors import CorruptionError
from wal.frame import FrameView, RunName
from wal.pchannel.checkpoint import Checkpoint
from wal.pchannel.copies import CopyTable
from wal.pchannel.idempotency import IdempotencyTable
from wal.pchannel.last_events import LastEvents

__all__ = [
    "Changes",
    "RecoveryState",
    "recover",
    "replay",
]


class Changes(msgspec.Struct, frozen=True):
    """The changes between two checkpoints: counts, the broadcasts that ended, and whether any event was added."""

    keyed: int
    copies: int
    forgotten: frozenset[int]
    moved: bool


class RecoveryState:
    """The tables of one pchannel: idempotency keys, copies of broadcasts, and the last event of each vchannel.

    They share one blob in a checkpoint, one pass over the frames written after it, and one count of changes since then.
    """

    def __init__(self, keys: IdempotencyTable, copies: CopyTable) -> None:
        self.keys = keys
        self.copies = copies
        self.lasts: LastEvents = LastEvents()

    @property
    def changes(self) -> int:
        """The number of changes since the last checkpoint."""
        return self.keys.keyed_since_checkpoint + self.copies.changes

    def take_changes(self) -> Changes:
        """Returns the changes since the last checkpoint, for one that begins now; later changes count for the next."""
        copies = self.copies
        taken = Changes(self.keys.keyed_since_checkpoint, copies.changes, frozenset(copies.forgotten), self.lasts.moved)
        self.keys.keyed_since_checkpoint = copies.changes = 0
        self.lasts.moved = False
        copies.forgotten.clear()
        return taken

    def give_back(self, changes: Changes) -> None:
        """Counts the changes again of a checkpoint that was not stored."""
        self.keys.keyed_since_checkpoint += changes.keyed
        self.copies.changes += changes.copies
        self.copies.forgotten |= changes.forgotten
        self.lasts.moved = self.lasts.moved or changes.moved

    def replay(self, position: int, view: FrameView, *, live: Callable[[RunName], bool] | None = None) -> int:
        """Applies one durable frame written after the checkpoint; returns how many changes it holds.

        `live` returns whether a vchannel still exists.
        """
        return self.keys.replay(position, view, live=live) + self.copies.replay(position, view)

    def snapshot(self) -> Iterator[bytes]:
        """Returns the state as of this call, in pieces that are cheap to produce one by one; joined they are the blob."""
        return chain(self.keys.snapshot(), self.copies.snapshot(), self.lasts.snapshot())

    def restore(self, blob: bytes, *, live: Callable[[RunName], bool] | None = None) -> None:
        """Sets empty tables to the state of a snapshot. Raises CorruptionError if it is damaged, FormatError for a newer version."""
        self.keys.restore(blob, live=live)
        self.copies.restore(blob)
        self.lasts.restore(blob, live=live)

    def recovered(self) -> None:
        """Releases what was only needed for recovery."""
        self.copies.recovered()


PAGE_BYTES: Final = 1 << 20


async def recover(
    log: PChannelLog, state: RecoveryState, checkpoint: Checkpoint, *, live: Callable[[RunName], bool] | None = None
) -> tuple[int, int]:
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
        found = await replay(log, state, checkpoint.position, live=None if live is None else functools.cache(live))
        state.recovered()
        lasts = state.lasts
        # A state of version 0.1.0 has no last events: those are looked up once in all that the log holds.
        start = checkpoint.position if lasts.complete else log.extents()[0].start
        lasts.recovered(await log.last_events(start), live=live)
        return found
    finally:
        if collecting:
            gc.enable()


async def replay(
    log: PChannelLog, state: RecoveryState, start: int, *, live: Callable[[RunName], bool] | None = None
) -> tuple[int, int]:
    """Applies the frames at or after `start`; returns how many keyed events and broadcasts there were, and the bytes of their frames.

    Only frames that hold any are read: the log's index knows them.
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
                size += frame.view.header.frame_bytes
                await asyncio.sleep(0)
            if not more:
                return count, size
    finally:
        if not reading.cancel() and not reading.cancelled():
            reading.exception()  # retrieved: the caller has this error, or an earlier one


async def _restore(
    log: PChannelLog, state: RecoveryState, checkpoint: Checkpoint, live: Callable[[RunName], bool] | None
) -> None:
    assert checkpoint.state is not None
    try:
        blob = await log.load_state(checkpoint.state)
        # In a thread, so that tens of thousands of keys do not block the loop; nothing else uses the tables yet.
        await asyncio.to_thread(state.restore, blob, live=live)
    except CorruptionError as error:
        raise CorruptionError(
            f"{error}. Only this file holds the idempotency keys, producers and broadcasts below position {checkpoint.position} of "
            f"pchannel {log.pchannel}: restore it from a copy of the directory, or give them up by removing the key "
            f"'checkpoints/{log.pchannel}' from the metadata",
            path=error.path,
            offset=error.offset,
            expected=error.expected,
        ) from error
