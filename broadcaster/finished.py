"""Finished broadcasts: the memory of them, so that a late abort is answered and a recovered log is not misread.

Owns the tombstones, the done marks in the KV and their removal. Guarantees: the done mark of a broadcast outlives every checkpoint that
lists one of its copies; beyond that, tombstones and marks are bounded by number and by age, and the oldest are removed first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from functools import partial

import msgspec

from actors import Clock
from broadcaster.admission import BroadcasterLimits
from broadcaster.message import BroadcastState
from broadcaster.operator import AppendOperator
from broadcaster.records import DoneMark, done_key, encode_done, finished_keys
from broadcaster.saver import Saver
from broadcaster.task import Task


class FinishedBroadcasts:
    """The finished broadcasts of one broadcaster. `count` is the number that finished since it started."""

    def __init__(self, operator: AppendOperator, saver: Saver, clock: Clock, limits: BroadcasterLimits) -> None:
        self._operator = operator
        self._saver = saver
        self._clock = clock
        self._done_marks_max = limits.done_marks_max
        self._requested = False
        self.tombstones = Tombstones(count_max=limits.tombstones_max, age_max_ms=round(limits.tombstone_age_max_s * 1000))
        self.count = 0

    def resume_marked(self, broadcast_id: int, mark: DoneMark, pchannels: Collection[str]) -> None:
        """Adds a broadcast that recovery found marked done; the logs of these pchannels still list its copies."""
        self.tombstones.add(broadcast_id, Tombstone(mark.state, mark.at_ms, True), pchannels)
        if pchannels:
            self._operator.forget(broadcast_id, pchannels)

    def resume(self, task: Task, *, recorded: bool) -> None:
        """Finishes a broadcast for which recovery found everything except, perhaps, the done mark; `recorded`: the KV may have its record.

        It counts as finished from the first call on: no caller sees it running, and its keys are free. A crash before the mark is saved
        does not change that, since the next recovery finds the same.
        """
        touched, at_ms = task.touched(), self.now_ms()
        marked = needs_mark(task, recorded=recorded)
        self.add(task.broadcast_id, task.state, at_ms, touched if marked else None)
        forget = partial(self._operator.forget, task.broadcast_id, touched)
        if marked:
            self.mark(task, at_ms, recorded=recorded, then=forget)
        else:
            forget()

    def mark(self, task: Task, at_ms: int, *, recorded: bool, then: Callable[[], object]) -> None:
        """Saves the done mark and removes all other records of the broadcast, in one operation; calls `then` once it is durable."""
        removals = finished_keys(task.broadcast_id, recorded=recorded, acked=task.acked, aborted=task.reason is not None)
        self._saver.save({done_key(task.broadcast_id): encode_done(task.state, at_ms)}, removals, then=then)

    def add(self, broadcast_id: int, state: BroadcastState, at_ms: int, marked_on: Collection[str] | None) -> None:
        """Counts a broadcast as finished. `marked_on`: the pchannels that may list its copies, or None if it has no done mark."""
        self.count += 1
        self.tombstones.add(broadcast_id, Tombstone(state, at_ms, marked_on is not None), marked_on or ())

    def forgotten(self, pchannel: str, broadcast_ids: Collection[int]) -> None:
        """Records that a durable checkpoint of this pchannel no longer lists copies of these broadcasts."""
        self.tombstones.forgotten(pchannel, broadcast_ids)
        self._requested = False
        self.make_room()

    def make_room(self) -> None:
        """Removes the tombstones and marks over the bounds, and requests a checkpoint when half of the allowed done marks await one."""
        self._saver.remove([done_key(broadcast_id) for broadcast_id in self.tombstones.collect(self.now_ms())])
        crowded = self.tombstones.listed >= self._done_marks_max // 2
        if crowded and not self._requested:
            self._operator.request_checkpoint()
        self._requested = crowded

    def now_ms(self) -> int:
        """Returns the wall-clock time in milliseconds since 1970."""
        return round(self._clock.wall() * 1000)


class Tombstone(msgspec.Struct, gc=False):
    """The state in which a broadcast ended, when it ended, and whether the KV has a done mark of it."""

    state: BroadcastState
    at_ms: int
    saved: bool


class Tombstones:
    """The finished broadcasts by id. Pure: `collect` returns the done marks that may be removed.

    A tombstone that a log may still list is never removed. Of the others at most `count_max` are kept, for at most `age_max_ms`.
    """

    def __init__(self, *, count_max: int, age_max_ms: int) -> None:
        self._count_max = count_max
        self._age_max_ms = age_max_ms
        self._listed: dict[int, set[str]] = {}
        self._kept: dict[int, Tombstone] = {}
        self._free: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def listed(self) -> int:
        """The number of broadcasts that a log may still list."""
        return len(self._listed)

    def add(self, broadcast_id: int, tombstone: Tombstone, pchannels: Collection[str]) -> None:
        """Adds a finished broadcast; the logs of these pchannels may list it until `forgotten` is called for them."""
        self._kept[broadcast_id] = tombstone
        if pchannels:
            self._listed[broadcast_id] = set(pchannels)
        else:
            self._free[broadcast_id] = None

    def forgotten(self, pchannel: str, broadcast_ids: Collection[int]) -> None:
        """Records that recoveries of this pchannel no longer find these broadcasts; unknown ids are ignored."""
        for broadcast_id in broadcast_ids:
            pchannels = self._listed.get(broadcast_id)
            if pchannels is not None:
                pchannels.discard(pchannel)
                if not pchannels:
                    del self._listed[broadcast_id]
                    self._free[broadcast_id] = None

    def get(self, broadcast_id: int) -> Tombstone | None:
        """Returns the tombstone of this broadcast, or None."""
        return self._kept.get(broadcast_id)

    def collect(self, now_ms: int) -> list[int]:
        """Removes the tombstones over the bounds; returns the ids of those whose done mark must be removed as well."""
        removed = []
        while self._free:
            broadcast_id = next(iter(self._free))
            tombstone = self._kept[broadcast_id]
            if len(self._free) <= self._count_max and now_ms - tombstone.at_ms <= self._age_max_ms:
                break
            del self._free[broadcast_id], self._kept[broadcast_id]
            if tombstone.saved:
                removed.append(broadcast_id)
        return removed


def needs_mark(task: Task, *, recorded: bool) -> bool:
    """Returns whether the log alone does not show that this finished broadcast has finished, and how."""
    return task.state is not BroadcastState.DONE or recorded or task.header.needs_ack
