"""RootedKV: a part of another KV, under a root path of its own.

Owns: nothing but a prefix and the watches opened through it; everything else is its parent's. It promises that what it does
stays under its root path. It never closes its parent; when the parent is closed, so is it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal.errors import ClosedError, InvalidArgumentError
from wal.kv.base import KVBase
from wal.kv.keys import check_root_path

if TYPE_CHECKING:
    from wal.kv.batch import Batch
    from wal.kv.statistics import KVStatistics
    from wal.kv.watch import Watch

__all__ = ["RootedKV"]


class RootedKV(KVBase):
    """The keys of `parent` under `root_path`. Get one with `kv.under(root_path)`."""

    def __init__(self, parent: KVBase, root_path: str) -> None:
        super().__init__()
        if not check_root_path(root_path):
            raise InvalidArgumentError("the root path '' names nothing: use the KV itself, or name a path")
        self._root = parent._full(check_root_path(root_path))
        self._parent = parent
        self._watches: list[Watch] = []
        self.operations_max: int | None = parent.operations_max  # the bound of the store it really is

    async def close(self) -> None:
        """Ends the watches opened here with ClosedError; the parent stays open. Idempotent."""
        self._closed = True
        for watch in self._watches:
            watch.fail(ClosedError(f"the KV under {self.root_path!r} was closed: open it again to go on"))
        self._watches.clear()

    def statistics(self) -> KVStatistics:
        """The parent's: the store is one."""
        return self._parent.statistics()

    async def _load(self, keys: list[str]) -> list[str | None]:
        return await self._parent._load(keys)

    async def _scan(self, prefix: str) -> list[tuple[str, str]]:
        return await self._parent._scan(prefix)

    async def _commit(self, batch: Batch) -> bool:
        return await self._parent._commit(batch)

    async def _watch(self, subject: str, *, is_prefix: bool, root_length: int, buffer_max: int) -> Watch:
        watch = await self._parent._watch(subject, is_prefix=is_prefix, root_length=root_length, buffer_max=buffer_max)
        self._watches = [open_one for open_one in self._watches if not open_one.ended]
        self._watches.append(watch)
        return watch

    def _check_open(self) -> None:
        super()._check_open()
        self._parent._check_open()
