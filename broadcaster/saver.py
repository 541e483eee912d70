"""Saver: runs the saves of a broadcaster one after the other, and collects the changes for the next one.

Owns the order of changes and their path to the KV: a group commit. Guarantees: only one operation is under way, so that no change becomes
durable before an earlier one; the changes that arrive meanwhile are saved together, in as few operations as the KV allows. A change that
can be refused is refused if the KV has no room for it, or if it is too large by itself. Without room all other changes are retried until
the KV has some or the log closes; a permanent error fails the broadcaster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from actors import Clock
from broadcaster.background import BackgroundJobs
from broadcaster.task import BACKOFF_MAX_S, BACKOFF_MIN_S
from wal.errors import InvalidArgumentError, NoSpaceError, WALError
from wal.runtime.backoff import Backoff
from wal.storage.kv import OPERATION_BYTES_MAX, OPERATIONS_MAX, KVBase


class Saver:
    """Collects the changes of a turn; `flush` ends the turn. `delayed(error)` is called when a save has to be retried."""

    def __init__(
        self, kv: KVBase, jobs: BackgroundJobs, clock: Clock, *, delayed: Callable[[WALError], object] = lambda error: None
    ) -> None:
        self._delayed = delayed
        self._kv = kv
        self._jobs = jobs
        self._clock = clock
        self._operations_max = kv.operations_max or OPERATIONS_MAX
        self._changes = TaskChanges(operations_max=self._operations_max, bytes_max=OPERATION_BYTES_MAX)
        self._saving = False
        self._closing = False
        self.saves = 0
        """The number of durable operations."""
        self.error: WALError | None = None
        """The error because of which the save under way has to be retried, or None."""

    def save(
        self,
        saves: Mapping[str, str],
        removals: Sequence[str] = (),
        *,
        then: Callable[[], object] | None = None,
        refused: Callable[[Exception], object] | None = None,
    ) -> None:
        """Saves the change whole or not at all, after every earlier change; `then` is called once it is durable.

        `refused(error)` is called if the KV has no room, or if the change is too large for it: then no part of it is saved.
        """
        self._changes.add(TaskChange(saves, removals, then, refused))

    def remove(self, keys: Sequence[str]) -> None:
        """Removes these keys, in as many operations as needed."""
        for at in range(0, len(keys), self._operations_max):
            self._changes.add(TaskChange({}, keys[at : at + self._operations_max]))

    def flush(self) -> None:
        """Starts the next save, unless one is under way."""
        if self._changes and not self._saving:
            self._saving = True
            self._jobs.run(self._save(), self._saved)

    def close(self) -> None:
        """Makes every later save that finds no room fail."""
        self._closing = True

    async def _save(self) -> SavedBatch:
        batch = self._changes.take()  # not earlier: this includes the changes of other turns in this loop iteration
        backoff = Backoff(BACKOFF_MIN_S, BACKOFF_MAX_S)
        while batch.saves or batch.removals:
            try:
                await self._kv.multi_save_and_remove(batch.saves, list(batch.removals))
            except WALError as error:
                refusals = [change.refused for change in batch.changes if change.refused is not None]
                too_large = isinstance(error, InvalidArgumentError) and len(batch.changes) == 1
                if refusals and (too_large or isinstance(error, NoSpaceError)):
                    self._changes.put_back(change for change in batch.changes if change.refused is None)
                    return SavedBatch(then=[partial(refused, error) for refused in refusals])
                if not error.retryable or self._closing:
                    raise
                self.error = error
                self._delayed(error)
                await self._clock.sleep(backoff.next())
            else:
                self.saves += 1
                self.error = None
                break
        return batch

    def _saved(self, batch: SavedBatch | None, error: BaseException | None) -> None:
        self._saving = False
        if error is not None or batch is None:
            raise error or RuntimeError("a save answered with nothing")
        for then in batch.then:
            then()


class TaskChange(msgspec.Struct, frozen=True):
    """A change that is saved whole. `then` is called once it is durable; `refused`, if set, when it cannot be saved."""

    saves: Mapping[str, str]
    removals: Sequence[str] = ()
    then: Callable[[], object] | None = None
    refused: Callable[[Exception], object] | None = None

    @property
    def operations(self) -> int:
        """The number of keys that it saves or removes."""
        return len(self.saves) + len(self.removals)

    def size(self) -> int:
        """Returns the characters of its keys and values, which are as many bytes: all of them are ASCII."""
        return sum(map(len, self.saves)) + sum(map(len, self.saves.values())) + sum(map(len, self.removals))


class SavedBatch(msgspec.Struct):
    """One operation of the KV for these `changes`, and the callbacks to call, in order, once it is durable."""

    saves: dict[str, str] = {}
    removals: dict[str, None] = {}
    then: list[Callable[[], object]] = []
    changes: list[TaskChange] = []


class TaskChanges:
    """The changes that wait, in the order of the calls. Pure.

    A change is saved whole and never before an earlier one. A later change of a key replaces an earlier one in the same operation, so that
    an ack bitmap that is removed at once is never written. Changes that together exceed an operation are split between changes.
    """

    def __init__(self, *, operations_max: int, bytes_max: int) -> None:
        self._operations_max = operations_max
        self._bytes_max = bytes_max
        self._waiting: deque[TaskChange] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, change: TaskChange) -> None:
        """Adds a change. A change larger than an operation is saved alone, and the KV may refuse it."""
        self._waiting.append(change)

    def put_back(self, changes: Iterable[TaskChange]) -> None:
        """Puts the unsaved changes of the last operation before the waiting ones."""
        self._waiting.extendleft(reversed(list(changes)))

    def take(self) -> SavedBatch:
        """Returns the next operation."""
        batch = SavedBatch()
        operations = size = 0
        while self._waiting:
            change = self._waiting[0]
            # Upper bounds: a change that replaces an earlier one is counted twice.
            operations += change.operations
            size += change.size()
            if batch.changes and (operations > self._operations_max or size > self._bytes_max):
                break
            batch.changes.append(self._waiting.popleft())
            for key, value in change.saves.items():
                batch.removals.pop(key, None)
                batch.saves[key] = value
            for key in change.removals:
                batch.saves.pop(key, None)
                batch.removals[key] = None
            if change.then is not None:
                batch.then.append(change.then)
        return batch
