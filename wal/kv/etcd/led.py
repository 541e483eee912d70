"""LedKV: the KV of a leader. Every change is made only while this process leads, which etcd decides in the same transaction.

It owns nothing: reads and watches are those of the KV below. A change after the leadership is over raises ChannelFencedError, and nothing
was changed. No clock is asked.
"""

from __future__ import annotations

from wal.kv.base import KVBase, KVBatch, KVStatistics
from wal.kv.etcd.election import Leadership
from wal.kv.etcd.kv import EtcdKV
from wal.kv.watch import Watch


class LedKV(KVBase):
    """`kv` as the holder of `leadership` may change it. Closing it leaves `kv` open."""

    def __init__(self, kv: EtcdKV, leadership: Leadership) -> None:
        super().__init__(root_path=kv.root_path)
        assert kv.operations_max is not None, "etcd has a bound"
        self.operations_max: int | None = kv.operations_max - 1
        """The comparison of the leader's key is an operation too."""
        self.leadership: Leadership = leadership
        self._kv = kv

    async def close(self) -> None:
        """Ends the use of this KV. Idempotent."""
        self._closed = True

    def statistics(self) -> KVStatistics:
        """Returns the statistics of the KV below."""
        return self._kv.statistics()

    async def _load(self, keys: list[str]) -> list[str | None]:
        return await self._kv._load(keys)

    async def _scan(self, prefix: str) -> list[tuple[str, str]]:
        return await self._kv._scan(prefix)

    async def _commit(self, batch: KVBatch) -> str | None:
        return await self._kv.commit_as((self.leadership.key, self.leadership.token), batch)

    async def _watch(self, subject: str, *, is_prefix: bool, root_length: int, buffer_max: int) -> Watch:
        return await self._kv._watch(subject, is_prefix=is_prefix, root_length=root_length, buffer_max=buffer_max)
