"""WatchHub: which watches of one store see which change, and the count of changes.

Owns: the revision of a store that lives in this process, and its open watches. It is fed with each committed change in commit
order. It never waits and never calls back into the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wal.errors import WALError
from wal.kv.watch import Watch, WatchEvent, WatchKind

__all__ = ["WatchHub"]


class WatchHub:
    """The watches of one store. `revision` is the number of changes committed since the store was opened."""

    def __init__(self) -> None:
        self.revision: int = 0
        self._by_key: dict[str, dict[Watch, int]] = {}  # the number: characters of root path to cut from the key
        self._by_prefix: dict[str, dict[Watch, int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values())) + sum(map(len, self._by_prefix.values()))

    def open(self, subject: str, *, is_prefix: bool, root_length: int, buffer_max: int) -> Watch:
        """A watch of the complete key or prefix `subject`, active at once; its events name keys without the root path."""
        table = self._by_prefix if is_prefix else self._by_key

        def forget(watch: Watch) -> None:
            watches = table.get(subject, {})
            watches.pop(watch, None)
            if not watches:
                table.pop(subject, None)

        name = f"{'prefix' if is_prefix else 'key'} {subject[root_length:]!r}"
        watch = Watch(name, buffer_max=buffer_max, on_end=forget)
        table.setdefault(subject, {})[watch] = root_length
        return watch

    def commit(self, saves: Mapping[str, str], removed: Iterable[str]) -> None:
        """Counts one committed change and shows it: `saves` in their order, then the keys that were really `removed`."""
        self.revision += 1
        if not self._by_key and not self._by_prefix:
            return
        shown: dict[Watch, list[WatchEvent]] = {}
        for key, value in saves.items():
            self._show(shown, WatchKind.PUT, key, value)
        for key in removed:
            self._show(shown, WatchKind.DELETE, key, None)
        for watch, events in shown.items():
            watch.feed(events)

    def fail(self, error: WALError) -> None:
        """Ends every watch with `error`."""
        for table in (self._by_key, self._by_prefix):
            for watch in [watch for watches in table.values() for watch in watches]:
                watch.fail(error)

    def _show(self, shown: dict[Watch, list[WatchEvent]], kind: WatchKind, key: str, value: str | None) -> None:
        matching = [self._by_key[key]] if key in self._by_key else []
        matching += [watches for prefix, watches in self._by_prefix.items() if key.startswith(prefix)]
        for watches in matching:
            for watch, root_length in watches.items():
                shown.setdefault(watch, []).append(WatchEvent(kind, key[root_length:], value, self.revision))
