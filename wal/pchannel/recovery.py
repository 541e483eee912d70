"""RecoveryState: all that a pchannel remembers over restarts, and its recovery from a checkpoint and the frames written after it."""

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

__all__ = [
    "Changes",
    "RecoveryState",
    "recover",
    "replay",
]


class Changes(msgspec.Struct, frozen=True):
    """What happened between two checkpoints: counts, and the broadcasts that ended."""

    keyed: int
    copies: int
    forgotten: frozenset[int]


class RecoveryState:
    """The tables of one pchannel."""

    def __init__(self, keys: IdempotencyTable, copies: CopyTable) -> None:
        self.keys = keys
        self.copies = copies

    @property
    def changes(self) -> int:
        """How much happened since the last checkpoint."""
        return self.keys.keyed_since_checkpoint + self.copies.changes

    def take_changes(self) -> Changes:
        """A checkpoint of this moment is being made: from now on changes count for the next."""
        copies = self.copies
        taken = Changes(self.keys.keyed_since_checkpoint, copies.changes, frozenset(copies.forgotten))
        self.keys.keyed_since_checkpoint = copies.changes = 0
        copies.forgotten.clear()
        return taken

    def give_back(self, changes: Changes) -> None:
        """It was not stored: they count again."""
        self.keys.keyed_since_checkpoint += changes.keyed
        self.copies.changes += changes.copies
        self.copies.forgotten |= changes.forgotten

    def replay(self, position: int, view: FrameView, *, live: Callable[[RunName], bool] | None = None) -> int:
        """Applies one durable frame behind what was restored; answers how much there was. `live`: whether a vchannel still exists."""
        return self.keys.replay(position, view, live=live) + self.copies.replay(position, view)

    def snapshot(self) -> Iterator[bytes]:
        """The state as of this call, in pieces that are cheap to make one by one; joined they are the blob."""
        return chain(self.keys.snapshot(), self.copies.snapshot())

    def restore(self, blob: bytes, *, live: Callable[[RunName], bool] | None = None) -> None:
        """Sets empty tables to the state of a snapshot. CorruptionError for what is none, FormatError for a newer version."""
        self.keys.restore(blob, live=live)
        self.copies.restore(blob)

    def recovered(self) -> None:
        """Nothing more is restored or replayed: what only served that is let go."""
        self.copies.recovered()


PAGE_BYTES: Final = 1 << 20


async def recover(
    log: PChannelLog, state: RecoveryState, checkpoint: Checkpoint, *, live: Callable[[RunName], bool] | None = None
) -> tuple[int, int]:
    """Sets empty tables to what they were when the log ended; answers as `replay`. `live`: whether a vchannel still exists.

    CorruptionError when the checkpoint's state is missing or damaged; it names the file, and what can be done.
    """
    # What is made here stays: a collector that looks through it again and again, as it grows, takes a sixth of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        if checkpoint.state is not None:
            await _restore(log, state, checkpoint, live)
        # The same few vchannels are asked for again and again.
        found = await replay(log, state, checkpoint.position, live=None if live is None else functools.cache(live))
        state.recovered()
        return found
    finally:
        if collecting:
            gc.enable()


async def replay(
    log: PChannelLog, state: RecoveryState, start: int, *, live: Callable[[RunName], bool] | None = None
) -> tuple[int, int]:
    """Applies what happened at or after `start`; answers how many keyed events and broadcasts, and the bytes of their frames."""
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
            reading.exception()  # it was said already, or something else was


async def _restore(
    log: PChannelLog, state: RecoveryState, checkpoint: Checkpoint, live: Callable[[RunName], bool] | None
) -> None:
    assert checkpoint.state is not None
    try:
        blob = await log.load_state(checkpoint.state)
        # In a thread, so that tens of thousands of keys do not hold the loop; nobody else has the tables yet.
        await asyncio.to_thread(state.restore, blob, live=live)
    except CorruptionError as error:
        raise CorruptionError(
            f"{error}. What is known of idempotency keys, producers and broadcasts below position {checkpoint.position} of pchannel "
            f"{log.pchannel} is in there alone: restore it from a copy of the directory, or give that up by removing the key "
            f"'checkpoints/{log.pchannel}' from the metadata",
            path=error.path,
            offset=error.offset,
            expected=error.expected,
        ) from error
