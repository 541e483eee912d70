"""KVBase: the one interface to metadata, for every store.

Owns: names, checks, the root path and the meaning of each operation; a store adds five primitives and no rules. KVBase guarantees that
operations are linearizable, and that a multi-operation is all or nothing and durable (where the store is) when its await returns. It never
splits a multi-operation to fit the bound of a store, because the parts would not be atomic.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from wal.errors import ClosedError, InvalidArgumentError
from wal.runtime.tasks import AsyncClosing
from wal.storage.kv.keys import check_key, check_keys, check_prefix, check_root_path, check_saves, check_value, missing_keys
from wal.storage.kv.watch import WATCH_BUFFER_MAX, Watch

OPERATIONS_MAX: Final = 128
"""The most operations in one multi-operation that every store accepts: etcd's default `max-txn-ops`."""
OPERATION_BYTES_MAX: Final = 1 << 20
"""The most bytes of keys and values in one multi-operation that every store accepts: two thirds of etcd's default `max-request-bytes`."""


class KVStatistics(msgspec.Struct, frozen=True):
    """Counters of a KV since it was opened. Plain numbers, a copy.

    `revision`: the number of committed changes. `operations`: completed calls, including reads and failed ones. `commits`: transactions of
    the store, fewer than changes when calls were committed as a group. `waiting`: unanswered calls. `watches`: open watches.
    """

    revision: int = 0
    operations: int = 0
    commits: int = 0
    waiting: int = 0
    watches: int = 0


class KVBatch(msgspec.Struct, frozen=True):
    """One change, which happens completely, as one revision, or not at all.

    KVBase passes a checked change to a store in this form: its keys are distinct, complete (root path included) and valid, so a store
    checks nothing again. `compare` has keys and the values that they must have (None: the key must not exist); if one differs, nothing
    happens. Then follow `saves` in their order, `removals` in theirs (a missing key is fine), and everything under `removed_prefix`,
    ascending. A watch sees the events in the same order.
    """

    saves: dict[str, str] = {}
    removals: tuple[str, ...] = ()
    compare: tuple[tuple[str, str | None], ...] = ()
    removed_prefix: str | None = None

    @property
    def operations(self) -> int:
        """Returns the number of operations as a server that bounds a transaction counts them: etcd bounds comparisons and changes each."""
        return max(len(self.saves) + len(self.removals) + (self.removed_prefix is not None), len(self.compare))


class KVBase(AsyncClosing):
    """Text values under text keys: load, save, remove, compare and swap, watch; one key or many at once.

    Keys are non-empty UTF-8 without NUL, ordered by code point; values are any UTF-8 text. With a `root_path`, keys are under `root_path/`
    in the store and are named without it here; KVs with different root paths never see each other's keys.

    A wrong type raises TypeError. A wrong value raises InvalidArgumentError: a key that one operation both saves and removes or names
    twice, or more operations than `operations_max`. After `close()` every call raises ClosedError. The outcome for a cancelled caller is
    unknown; the operation happens completely or not at all.
    """

    operations_max: int | None = None
    """The most operations that the store accepts in one multi-operation (multi_load counts its keys); None if the store has no bound."""

    def __init__(self, *, root_path: str = "") -> None:
        self._root = check_root_path(root_path)
        self._closed = False

    @property
    def root_path(self) -> str:
        """Returns the path of the keys, or `""` without one."""
        return self._root.removesuffix("/")

    def under(self, root_path: str) -> RootedKV:
        """Returns a KV of the same store whose keys are under `root_path` below this one's. Closing it leaves this one open."""
        if not check_root_path(root_path):
            raise InvalidArgumentError("the root path '' names nothing: use the KV itself, or name a path")
        return RootedKV(self, root_path)

    async def load(self, key: str) -> str:
        """Returns the value on `key`. Raises a KeyNotExistError that names a missing key."""
        if (value := await self.find(key)) is None:
            raise missing_keys([key])
        return value

    async def find(self, key: str) -> str | None:
        """Returns the value on `key`, None if the key is missing."""
        (value,) = await self._load_full([self._full(check_key(key))])
        return value

    async def multi_load(self, keys: Sequence[str]) -> list[str]:
        """Returns the values on `keys`, in their order, all from one moment. Raises one KeyNotExistError that lists all missing keys."""
        checked = check_keys("keys", keys)
        self._check_operations(len(checked))
        values = await self._load_full([self._full(key) for key in checked])
        missing = [key for key, value in zip(checked, values, strict=True) if value is None]
        if missing:
            raise missing_keys(missing)
        return [value for value in values if value is not None]

    async def load_with_prefix(self, prefix: str) -> tuple[list[str], list[str]]:
        """Returns the keys that start with `prefix`, ascending and without the root path, and their values: two parallel lists."""
        full = self._full(check_prefix(prefix))
        self._check_open()
        pairs = await self._scan(full)
        return [key[len(self._root) :] for key, _ in pairs], [value for _, value in pairs]

    async def save(self, key: str, value: str) -> None:
        """Sets `key` to `value`."""
        await self._change(KVBatch({self._full(check_key(key)): check_value(key, value)}))

    async def multi_save(self, kvs: Mapping[str, str]) -> None:
        """Saves all of `kvs`, or nothing."""
        await self.multi_save_and_remove(kvs, ())

    async def remove(self, key: str) -> None:
        """Removes `key`; a missing key is fine."""
        await self._change(KVBatch(removals=(self._full(check_key(key)),)))

    async def multi_remove(self, keys: Sequence[str]) -> None:
        """Removes all of `keys`, or nothing; missing ones are fine."""
        await self.multi_save_and_remove({}, keys)

    async def multi_save_and_remove(self, saves: Mapping[str, str], removals: Sequence[str]) -> None:
        """Saves all of `saves` and removes all of `removals`, or does nothing."""
        batch = self._batch(check_saves(saves), check_keys("removals", removals))
        if batch.operations:
            await self._change(batch)
        else:
            self._check_open()

    async def remove_with_prefix(self, prefix: str) -> None:
        """Atomically removes every key that starts with `prefix`; `""` means everything under the root path."""
        await self._change(KVBatch(removed_prefix=self._full(check_prefix(prefix))))

    async def compare_and_swap(
        self, key: str, expected: str | None, value: str, *, saves: Mapping[str, str] | None = None, removals: Sequence[str] = ()
    ) -> bool:
        """Sets `key` to `value` if its value is `expected` (None: if it does not exist), with `saves` and `removals`.

        Returns True if all changes were made, False if the comparison failed and nothing was changed.
        """
        check_key(key)
        more = check_saves({} if saves is None else saves)
        if key in more:
            raise InvalidArgumentError(f"the key {key!r} is both swapped and saved: one operation writes a key once")
        swap = {key: check_value(key, value), **more}
        return await self.change_if({key: expected}, saves=swap, removals=removals) is None

    async def change_if(
        self, compare: Mapping[str, str | None], *, saves: Mapping[str, str] | None = None, removals: Sequence[str] = ()
    ) -> str | None:
        """Saves all of `saves` and removes all of `removals` if each key of `compare` has the value named there (None: does not exist).

        Returns None if all changes were made. Otherwise nothing was changed, and the result is the first key of `compare` whose value
        differs.
        """
        batch = self._batch(check_saves({} if saves is None else saves), check_keys("removals", removals))
        for key, expected in compare.items():
            check_key(key)
            if expected is not None:
                check_value(key, expected)
        compared = tuple((self._full(key), expected) for key, expected in compare.items())
        failed = await self._change(KVBatch(batch.saves, batch.removals, compared))
        return None if failed is None else failed[len(self._root) :]

    async def watch(self, key: str, *, buffer_max: int = WATCH_BUFFER_MAX) -> Watch:
        """Returns a Watch of one key, active when this returns. `buffer_max` is in events."""
        full = self._full(check_key(key))
        self._check_open()
        return await self._watch(full, is_prefix=False, root_length=len(self._root), buffer_max=buffer_max)

    async def watch_with_prefix(self, prefix: str, *, buffer_max: int = WATCH_BUFFER_MAX) -> Watch:
        """Returns a Watch of all keys that start with `prefix`, active when this returns."""
        full = self._full(check_prefix(prefix))
        self._check_open()
        return await self._watch(full, is_prefix=True, root_length=len(self._root), buffer_max=buffer_max)

    async def upgrade(self) -> None:
        """Checks every record, and adds the checksum to each record that an earlier version saved without it; such a version is refused
        then.

        Only the one writer of the records may call it. Raises CorruptionError for a damaged record.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finishes the calls in progress, ends the watches with ClosedError and releases the store. Idempotent."""

    def abandon(self) -> None:
        """Releases the store after the event loop has ended. Blocks until the calls that were sent are done; idempotent."""
        self._closed = True

    @abstractmethod
    def statistics(self) -> KVStatistics:
        """Returns the counters of this KV's store since it was opened."""

    # The primitives of a store. Their keys are complete (root path included), checked and distinct.

    @abstractmethod
    async def _load(self, keys: list[str]) -> list[str | None]:
        """Returns the values at one moment, None for a missing key."""

    @abstractmethod
    async def _scan(self, prefix: str) -> list[tuple[str, str]]:
        """Returns the keys that start with `prefix` and their values, at one moment, ascending."""

    @abstractmethod
    async def _commit(self, batch: KVBatch) -> str | None:
        """Carries out the whole batch durably (None), or no part of it: the first key whose comparison failed, or an error."""

    @abstractmethod
    async def _watch(self, subject: str, *, is_prefix: bool, root_length: int, buffer_max: int) -> Watch:
        """Returns an active watch whose events name keys without their first `root_length` characters."""

    def _full(self, key: str) -> str:
        return self._root + key

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this KV is closed: open it again to continue")

    def _check_operations(self, operations: int) -> None:
        if self.operations_max is not None and operations > self.operations_max:
            raise InvalidArgumentError(
                f"{operations} operations are more than the {self.operations_max} that this KV takes in one: make fewer of "
                f"them (splitting would not be atomic), or keep the data in fewer keys"
            )

    def _batch(self, saves: dict[str, str], removals: list[str]) -> KVBatch:
        for key in removals:
            if key in saves:
                raise InvalidArgumentError(f"the key {key!r} is both saved and removed by one operation: choose one")
        return KVBatch({self._full(key): value for key, value in saves.items()}, tuple(self._full(key) for key in removals))

    async def _load_full(self, keys: list[str]) -> list[str | None]:
        self._check_open()
        return await self._load(keys) if keys else []

    async def _change(self, batch: KVBatch) -> str | None:
        self._check_operations(batch.operations)
        self._check_open()
        return await self._commit(batch)


class RootedKV(KVBase):
    """The keys of `parent` under `root_path`; created by `kv.under(root_path)`.

    It owns a prefix and the watches that were opened through it; the parent has everything else. It never closes its parent, and it counts
    as closed when its parent is.
    """

    def __init__(self, parent: KVBase, root_path: str) -> None:
        super().__init__()
        self._root = parent._full(check_root_path(root_path))
        self._parent = parent
        self._watches: list[Watch] = []
        self.operations_max: int | None = parent.operations_max  # the bound of the store below

    async def close(self) -> None:
        """Ends the watches that were opened here with ClosedError; the parent stays open. Idempotent."""
        self._closed = True
        for watch in self._watches:
            watch.fail(ClosedError(f"the KV under {self.root_path!r} was closed: open it again to continue"))
        self._watches.clear()

    def statistics(self) -> KVStatistics:
        """Returns the parent's statistics, because both use one store."""
        return self._parent.statistics()

    async def upgrade(self) -> None:
        """Upgrades the whole store below."""
        await self._parent.upgrade()

    async def _load(self, keys: list[str]) -> list[str | None]:
        return await self._parent._load(keys)

    async def _scan(self, prefix: str) -> list[tuple[str, str]]:
        return await self._parent._scan(prefix)

    async def _commit(self, batch: KVBatch) -> str | None:
        return await self._parent._commit(batch)

    async def _watch(self, subject: str, *, is_prefix: bool, root_length: int, buffer_max: int) -> Watch:
        watch = await self._parent._watch(subject, is_prefix=is_prefix, root_length=root_length, buffer_max=buffer_max)
        self._watches = [open_one for open_one in self._watches if not open_one.ended]
        self._watches.append(watch)
        return watch

    def _check_open(self) -> None:
        super()._check_open()
        self._parent._check_open()
