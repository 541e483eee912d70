"""Snapshot: the log positions up to which each pchannel is read, so that all of them show exactly the same moment.

Owns the choice of the tick, the wait until the promised tick of every pchannel reaches it, and its position in each of them. A snapshot
holds every event that was committed at or before its tick, and none after it, across all vchannels and pchannels.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from typing import Final

import msgspec

from wal.errors import WouldBlockError
from wal.spark.frame_source import FrameLogs, LogMoment
from wal.spark.offsets import LogPosition

__all__ = ["Snapshot", "SnapshotWarning", "take_snapshot"]

_POLL_S: Final = 0.005
_QUIET_S: Final = 0.5
"""A writer that seems gone (its process may run on another machine) counts as gone if its promised tick does not advance for this long:
a live writer advances it at least every 0.2 s."""


class SnapshotWarning(UserWarning):
    """Warns that a snapshot omits rows of the log: their ticks are above the promised ticks, which no writer advances."""


class Snapshot(msgspec.Struct, frozen=True):
    """The log positions up to which a snapshot reads, and its tick."""

    time_tick: int
    ends: Mapping[str, LogPosition]


def take_snapshot(logs: FrameLogs, *, time_tick: int | None, timeout_s: float) -> Snapshot:
    """Takes a snapshot at this tick or, if None, at the newest tick that is durable now.

    It waits for a given tick; after `timeout_s` it raises WouldBlockError. Without a given tick it omits everything above the promised
    ticks if no writer advances them, with a SnapshotWarning if that includes rows.
    """
    moments = {name: logs.moment(name) for name in logs.pchannels()}
    newest = {name: logs.newest_tick(name) for name in moments}
    tick = max(newest.values(), default=0) if time_tick is None else time_tick
    moments = _wait(logs, moments, tick, timeout_s, given=time_tick is not None)
    reached = min((moment.promised_tick for moment in moments.values()), default=tick)
    if reached < tick:
        if time_tick is not None:
            late = ", ".join(name for name, moment in moments.items() if moment.promised_tick < tick)
            raise WouldBlockError(
                f"{late} has not promised time tick {tick} after {timeout_s:g} s, only {reached}: events at or below it may still "
                "come. Ask for a tick that has passed, raise tickTimeoutMs, or open the log for writing: a writer promises "
                "a tick every 0.2 s"
            )
        late = ", ".join(name for name, found in newest.items() if found > reached)
        if late:
            warnings.warn(
                f"this snapshot is at time tick {reached}, and leaves out rows of {late} with later ones: no process writes the "
                "log, so that none promises a later tick for all pchannels",
                SnapshotWarning,
                stacklevel=2,
            )
        tick = reached
    ends = {
        name: logs.log_position_after(name, tick, moment.earliest[0], moment.durable_end)
        for name, moment in moments.items()
    }
    return Snapshot(tick, ends)


def _wait(
    logs: FrameLogs, moments: dict[str, LogMoment], tick: int, timeout_s: float, *, given: bool
) -> dict[str, LogMoment]:
    """Waits until the promised tick of every pchannel reaches the tick, or until waiting is useless; returns the last moments."""
    deadline = time.monotonic() + timeout_s
    moved_s = time.monotonic()
    while True:
        now = time.monotonic()
        if min((moment.promised_tick for moment in moments.values()), default=tick) >= tick or now >= deadline:
            return moments
        if not given and logs.writer_is_gone() and now - moved_s >= _QUIET_S:
            return moments
        time.sleep(_POLL_S)
        before = moments
        moments = {name: logs.moment(name) for name in logs.pchannels()}
        if moments != before:
            moved_s = time.monotonic()
