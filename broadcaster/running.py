"""Running: a broadcast between its keys and its end, the callers that wait for it, and the table of all running broadcasts.

Makes no decisions: the task decides what is written next, and the lifecycle writes it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final

import msgspec

from broadcaster.calls import AppendCall, WatchCall, refuse, settle
from broadcaster.message import BroadcastAppendResult, BroadcastState, Content, Outcomes
from broadcaster.records import CHUNK_BITS
from broadcaster.task import Task
from wal.message import BroadcastHeader

_IDS_MIN: Final = 64
"""The number of ids of finished broadcasts that are kept in any case, so that a few broadcasts do not rebuild the heap for each."""


class Callers(msgspec.Struct, eq=False):
    """The callers that wait for one broadcast.

    `append` is None after its answer, or when its caller is gone; `outcomes` are collected for it. `acks` are answered after the next save,
    `aborts` and `watch_all` at the end, and `watch_once` when the first ack is durable.
    """

    append: AppendCall | None = None
    outcomes: list[Outcomes] = []
    acks: list[asyncio.Future[None]] = []
    aborts: list[asyncio.Future[None]] = []
    watch_once: list[WatchCall] = []
    watch_all: list[WatchCall] = []

    def answer_append(self, header: BroadcastHeader) -> None:
        """Answers the append, if its caller still waits: all copies are durable."""
        call, self.append = self.append, None
        if call is not None and not call.reply.done():
            call.reply.set_result(BroadcastAppendResult.of(header.broadcast_id, header.vchannels, self.outcomes))
        self.outcomes = []

    def refuse_append(self, error: Exception) -> None:
        """Answers the append with an error, if its caller still waits."""
        call, self.append = self.append, None
        self.outcomes = []
        if call is not None:
            refuse(call.reply, error)

    def watchers(self, call: WatchCall) -> list[WatchCall]:
        """Returns the list that this call belongs to."""
        return self.watch_all if call.everywhere else self.watch_once

    def answer_watchers(self, watchers: list[WatchCall], owner: int) -> None:
        """Removes this owner from the watchers, and answers each watcher that waits for no other broadcast."""
        for call in watchers:
            call.owners.discard(owner)
            if not call.owners:
                settle(call.reply)
        watchers.clear()

    def settle_all(self, owner: int) -> None:
        """Answers all callers but the append: the broadcast has finished."""
        settle(*self.acks, *self.aborts)
        self.answer_watchers(self.watch_once, owner)
        self.answer_watchers(self.watch_all, owner)

    def refuse_all(self, error: Exception) -> None:
        """Answers all callers but the append with this error."""
        for reply in (*self.acks, *self.aborts):
            refuse(reply, error)
        for call in (*self.watch_once, *self.watch_all):
            refuse(call.reply, error)


class Acks(msgspec.Struct, eq=False):
    """The chunks of the ack bitmap with new acks (`unsaved`), the number of saves under way, and whether any ack is durable."""

    unsaved: set[int] = set()
    saving: int = 0
    durable: bool = False

    def add(self, bit: int | None) -> None:
        """Records the bit of a new ack; None means no new ack."""
        if bit is not None:
            self.unsaved.add(bit // CHUNK_BITS)


class Running(msgspec.Struct, eq=False):
    """One broadcast that has its keys in the lock table under the number `owner`.

    `content` is dropped, and its `size` released, once all copies are durable. `recorded`: the metadata has, or is about to have, a record
    of it, because it spans pchannels. `saved_appends`: the last saved bitmap of copies. `dropped`: one of its vchannels may have been
    dropped. `finishing`: its end is being saved, and nothing else happens to it.
    """

    task: Task
    owner: int
    content: Content | None
    size: int = 0
    callers: Callers = msgspec.field(default_factory=Callers)
    acks: Acks = msgspec.field(default_factory=Acks)
    recorded: bool = False
    saved_appends: int = 0
    dropped: bool = False
    finishing: bool = False


class RunningTable:
    """The running broadcasts, by id and by owner, and the broadcasts that were touched in this turn.

    Iteration yields them in the order in which they began. `states` counts them by state, and is kept up to date: there may be many, and a
    number must not cost a walk through all of them.
    """

    def __init__(self) -> None:
        self.states: Counter[BroadcastState] = Counter()
        self._ids: list[int] = []
        """A heap that has the ids of all running broadcasts, and of some that have finished."""
        self._by_id: dict[int, Running] = {}
        self._by_owner: dict[int, Running] = {}
        self._touched: dict[int, Running] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Running]:
        return iter(self._by_id.values())

    def get(self, broadcast_id: int) -> Running | None:
        """Returns the broadcast with this id, or None."""
        return self._by_id.get(broadcast_id)

    def of_owner(self, owner: int) -> Running | None:
        """Returns the broadcast whose keys this owner has in the lock table, or None."""
        return self._by_owner.get(owner)

    def of_owners(self, owners: Iterable[int]) -> list[Running]:
        """Returns the broadcasts of these owners, each of which has one."""
        return [self._by_owner[owner] for owner in owners]

    def add(self, running: Running) -> None:
        """Adds a broadcast that begins or was recovered."""
        task = running.task
        self._by_id[task.broadcast_id] = self._by_owner[running.owner] = running
        heappush(self._ids, task.broadcast_id)
        self.states[task.state] += 1
        task.on_move = self._moved

    def remove(self, running: Running) -> None:
        """Removes a broadcast that has finished."""
        task = running.task
        del self._by_id[task.broadcast_id], self._by_owner[running.owner]
        self.states[task.state] -= 1
        task.on_move = None
        if len(self._ids) > 2 * len(self._by_id) + _IDS_MIN:
            self._ids = list(self._by_id)
            heapify(self._ids)

    @property
    def oldest(self) -> int:
        """The smallest id of a running broadcast, 0 if there is none."""
        while self._ids and self._ids[0] not in self._by_id:
            heappop(self._ids)
        return self._ids[0] if self._ids else 0

    def _moved(self, before: BroadcastState, after: BroadcastState) -> None:
        self.states[before] -= 1
        self.states[after] += 1

    def touch(self, running: Running) -> None:
        """Marks a broadcast as changed, so that it is advanced before the turn ends."""
        self._touched[running.task.broadcast_id] = running

    def take_touched(self) -> list[Running]:
        """Returns the broadcasts that were touched since the last call."""
        if not self._touched:
            return []
        touched, self._touched = self._touched, {}
        return list(touched.values())
