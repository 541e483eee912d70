"""MemoryKV: the KV of this process, for `memory:` logs and for all tests that use a KV.

Owns: a dict and its keys in order. It behaves like every other KV except that nothing is durable. It never waits: each operation is done
within the call, so the order of calls is the order of commits.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from wal.errors import ClosedError
from wal.storage.kv.base import KVBase, KVBatch, KVStatistics
from wal.storage.kv.keys import prefix_end
from wal.storage.kv.watch import Watch, WatchHub


class MemoryKV(KVBase):
    """An ordered map in memory. Its content is lost when it is closed or dropped."""

    def __init__(self, *, root_path: str = "") -> None:
        super().__init__(root_path=root_path)
        self._values: dict[str, str] = {}
        self._keys: list[str] = []  # ascending
        self._hub = WatchHub()
        self._operations = 0
        self._commits = 0

    async def close(self) -> None:
        """Ends the watches with ClosedError and drops all values. Idempotent."""
        self._closed = True
        self._hub.fail(ClosedError("the KV was closed: open it again, load the keys again and watch them again"))
        self._values.clear()
        self._keys.clear()

    def statistics(self) -> KVStatistics:
        return KVStatistics(revision=self._hub.revision, operations=self._operations, commits=self._commits, watches=len(self._hub))

    async def _load(self, keys: list[str]) -> list[str | None]:
        self._operations += 1
        return [self._values.get(key) for key in keys]

    async def _scan(self, prefix: str) -> list[tuple[str, str]]:
        self._operations += 1
        return [(key, self._values[key]) for key in self._under(prefix)]

    async def _commit(self, batch: KVBatch) -> str | None:
        # This cannot fail half way: everything was checked before, and nothing waits in between.
        self._operations += 1
        for key, expected in batch.compare:
            if self._values.get(key) != expected:
                return key
        for key, value in batch.saves.items():
            if key not in self._values:
                insort(self._keys, key)
            self._values[key] = value
        removed = [key for key in batch.removals if key in self._values]
        if batch.removed_prefix is not None:
            removed += self._under(batch.removed_prefix)
        for key in removed:
            del self._values[key]
        if len(removed) > 1:
            self._keys = [key for key in self._keys if key in self._values]
        elif removed:
            del self._keys[bisect_left(self._keys, removed[0])]
        if batch.saves or removed:
            self._commits += 1
            self._hub.commit(batch.saves, removed)
        return None

    async def _watch(self, subject: str, *, is_prefix: bool, root_length: int, buffer_max: int) -> Watch:
        return self._hub.open(subject, is_prefix=is_prefix, root_length=root_length, buffer_max=buffer_max)

    def _under(self, prefix: str) -> list[str]:
        end = prefix_end(prefix)
        last = len(self._keys) if end is None else bisect_left(self._keys, end)
        return self._keys[bisect_left(self._keys, prefix) : last]
