"""Saver: the one save that a broadcaster has under way, and what waits for the next.

Owns: the order of changes and their way to the KV. Promises: one operation at a time, so that nothing becomes durable before an
earlier change; what arrives meanwhile goes together. A change that can be refused is, if there is no room, or if it is alone too large for
the KV. Without room all others are tried again until there is some or the log closes; an error that does not go away is the end of the
broadcaster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from actors import Clock
from broadcaster.changes import Batch, Changes
from broadcaster.errands import Errands
from broadcaster.task import BACKOFF_MAX_S, BACKOFF_MIN_S
from wal.errors import InvalidArgumentError, NoSpaceError, WALError
from wal.kv import OPERATION_BYTES_MAX, OPERATIONS_MAX, KVBase

__all__ = ["Saver"]


class Saver:
    """Told what to save in a turn; `flush` ends the turn. `delayed(error)` is called when a save has to be tried again."""

    def __init__(
        self, kv: KVBase, errands: Errands, clock: Clock, *, delayed: Callable[[WALError], object] = lambda error: None
    ) -> None:
        self._delayed = delayed
        self._kv = kv
        self._errands = errands
        self._clock = clock
        self._operations_max = kv.operations_max or OPERATIONS_MAX
        self._changes = Changes(operations_max=self._operations_max, bytes_max=OPERATION_BYTES_MAX)
        self._saving = False
        self._closing = False
        self.saves = 0
        """Operations that are durable."""
        self.error: WALError | None = None
        """Why the save under way has to be tried again; None when nothing keeps it."""

    def save(
        self,
        saves: Mapping[str, str],
        removals: Sequence[str] = (),
        *,
        then: Callable[[], object] | None = None,
        refused: Callable[[Exception], object] | None = None,
    ) -> None:
        """All of it or nothing, after everything before it; then `then` is called.

        `refused(error)` is called if there is no room for it, or if the KV does not take so large a change: nothing of it is saved then.
        """
        self._changes.add(saves, removals, then=then, refused=refused)

    def remove(self, keys: Sequence[str]) -> None:
        """In as many operations as it takes."""
        for at in range(0, len(keys), self._operations_max):
            self._changes.add({}, keys[at : at + self._operations_max])

    def flush(self) -> None:
        """Starts the next save, unless one is under way."""
        if self._changes and not self._saving:
            self._saving = True
            self._errands.run(self._save(), self._saved)

    def close(self) -> None:
        """From now on a save that finds no room fails."""
        self._closing = True

    async def _save(self) -> Batch:
        batch = self._changes.take()  # only now: what other turns of this turn of the loop change goes along
        delay_s = BACKOFF_MIN_S
        while batch.saves or batch.removals:
            try:
                await self._kv.multi_save_and_remove(batch.saves, list(batch.removals))
            except WALError as error:
                refusals = [change.refused for change in batch.changes if change.refused is not None]
                too_large = isinstance(error, InvalidArgumentError) and len(batch.changes) == 1
                if refusals and (too_large or isinstance(error, NoSpaceError)):
                    self._changes.put_back(change for change in batch.changes if change.refused is None)
                    return Batch(then=[partial(refused, error) for refused in refusals])
                if not error.retryable or self._closing:
                    raise
                self.error = error
                self._delayed(error)
                await self._clock.sleep(delay_s)
                delay_s = min(2 * delay_s, BACKOFF_MAX_S)
            else:
                self.saves += 1
                self.error = None
                break
        return batch

    def _saved(self, batch: Batch | None, error: BaseException | None) -> None:
        self._saving = False
        if error is not None or batch is None:
            raise error or RuntimeError("a save answered with nothing")
        for then in batch.then:
            then()
