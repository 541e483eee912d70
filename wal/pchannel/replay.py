"""Recovery of what a pchannel remembers: what the last checkpoint says, then what the log says behind it.

Owns the way from both to the tables; what a frame means is theirs. The log must not be written meanwhile, and is not looked at where it
holds nothing for them: its index knows which frames do.
"""

from __future__ import annotations

import asyncio
import functools
import gc
from collections.abc import Callable
from typing import Final

from wal.backends import PChannelLog
from wal.errors import CorruptionError
from wal.frame import RunName
from wal.pchannel.checkpoint import Checkpoint
from wal.pchannel.recovery_state import RecoveryState

__all__ = ["recover", "replay"]

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
