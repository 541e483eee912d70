"""Forgetting: removes the oldest manifests of a store, and the objects that only they need."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

from wal.errors import CorruptionError, FormatError
from wal.storage.archive.manifest import OBJECTS, PREFIX, Manifest, manifest_name, numbered
from wal.storage.archive.objects import load_manifest
from wal.storage.archive.store import BackupStore, age_s

_GRACE_S: Final = 3600.0
"""Younger objects without a manifest may belong to a backup that is being made."""


def manifests(store: BackupStore) -> tuple[list[Manifest], dict[int, CorruptionError]]:
    """Returns the backups in the store, oldest first, and the errors of unreadable ones by number. Raises FormatError for a newer
    version.
    """
    readable: list[Manifest] = []
    damaged: dict[int, CorruptionError] = {}
    for number, name in numbered(store.names(PREFIX)):
        try:
            readable.append(load_manifest(store, name))
        except CorruptionError as error:
            damaged[number] = error
    return readable, damaged


class StoredBackups:
    """The backups in a store, oldest first, and the number of backups that need each object."""

    def __init__(self, store: BackupStore, backups: Iterable[Manifest]) -> None:
        self.uses: Counter[str] = Counter()
        self._store = store
        self._manifests: deque[Manifest] = deque()
        for manifest in backups:
            self.add(manifest)

    def add(self, manifest: Manifest) -> None:
        self._manifests.append(manifest)
        self.uses.update(manifest.names())

    def shrink(self, count: int, *, objects: bool = True) -> list[int]:
        """Removes all but the newest `count`, and the `objects` that only they need; returns the numbers of the removed backups."""
        removed = []
        while len(self._manifests) > count:
            manifest = self._manifests.popleft()
            removed.append(manifest.number)
            self._store.delete(manifest_name(manifest.number))
            for name in manifest.names():
                self.uses[name] -= 1
                if not self.uses[name]:
                    del self.uses[name]
                    if objects:
                        self._store.delete(name)
        return removed


def forget_all_but(store: BackupStore, keep: int) -> tuple[list[int], StoredBackups | None]:
    """Removes all but the newest backups; returns the numbers of the removed ones, and the remaining backups (None: some are damaged)."""
    backups, damaged = manifests(store)
    if not backups and not damaged:
        raise FormatError(f"{store.place} holds no backup: nothing was forgotten")
    # The objects that a damaged manifest needs are not known. Damaged manifests older than all kept backups are removed; as long as another
    # damaged one remains, no object is.
    for number in [number for number in damaged if backups and number < backups[-keep:][0].number]:
        store.delete(manifest_name(number))
        del damaged[number]
    stored = StoredBackups(store, backups)
    removed = stored.shrink(keep, objects=not damaged)
    if removed and not damaged:
        for name, put_at_s in store.names(OBJECTS).items():
            if name not in stored.uses and age_s(put_at_s) > _GRACE_S:
                store.delete(name)
    return removed, None if damaged else stored
