"""LockTable: the owners of resource keys, and the waiters for them. Pure: its calls return the owners that get their keys next.

Owns the keys by (domain, key), each with one exclusive owner or any number of shared owners. Guarantees: an owner gets all of its keys or
none; waiters that conflict get theirs in order of arrival, so that no waiter starves. Owners are numbers that the caller chooses, each used
once.

    (none) --try_lock--> HOLDS | refused          (none) --lock_or_wait--> HOLDS | WAITS
    WAITS --release or cancel of others--> HOLDS  WAITS --cancel--> (none)    HOLDS --release--> (none)

A request that does not wait is refused because of holders alone, not because of waiters: a key without a holder is available. Such requests
may overtake a waiter OVERTAKEN_MAX times; after that they are refused because of the waiter, so that it does not starve.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from wal.message import ResourceKey

OVERTAKEN_MAX: Final = 16
"""The number of times that requests without waiting may take keys that an earlier waiter wants."""

_Name = tuple[str, str]


class Conflict(msgspec.Struct, frozen=True):
    """The reason why a request was refused: the keys that it cannot get, and an owner that blocks it."""

    keys: tuple[ResourceKey, ...]
    holder: int


def distinct_keys(keys: Iterable[ResourceKey]) -> tuple[ResourceKey, ...]:
    """Returns the distinct keys, ascending by (domain, key); a key that is both shared and exclusive is exclusive."""
    modes: dict[_Name, bool] = {}
    for key in keys:
        name = (key.domain, key.key)
        modes[name] = key.shared and modes.get(name, True)
    return tuple(ResourceKey(*name, shared=shared) for name, shared in sorted(modes.items()))


class LockTable:
    """The keys, their holders and their waiters. The keys of one call are distinct (see `distinct_keys`)."""

    def __init__(self) -> None:
        self._keys: dict[_Name, _Key] = {}
        self._held: dict[int, tuple[ResourceKey, ...]] = {}
        self._waiting: dict[int, _Waiter] = {}
        self._came = 0

    def try_lock(self, owner: int, keys: tuple[ResourceKey, ...]) -> Conflict | None:
        """Acquires all of the keys now and returns None, or acquires none and returns the conflict."""
        for resource_key in keys:
            if (holder := self._holder_against(resource_key)) is not None:
                refused = tuple(key for key in keys if self._holder_against(key) is not None)
                return Conflict(refused, holder)
        overtaken: dict[int, list[ResourceKey]] = {}
        for key in keys:
            for number in self._waiters_against(key):
                overtaken.setdefault(number, []).append(key)
        for number, meeting in overtaken.items():
            if self._waiting[number].overtaken >= OVERTAKEN_MAX:
                return Conflict(tuple(meeting), self._in_the_way_of(number))
        for number in overtaken:
            self._waiting[number].overtaken += 1
        self._hold(owner, keys)
        return None

    def lock_or_wait(self, owner: int, keys: tuple[ResourceKey, ...]) -> bool:
        """Returns True if the owner has the keys now, False if it waits until a `release` or `cancel` returns this owner."""
        if all(self._holder_against(key) is None and next(self._waiters_against(key), None) is None for key in keys):
            self._hold(owner, keys)
            return True
        self._came += 1
        self._waiting[owner] = _Waiter(keys, self._came)
        for key in keys:
            self._key(key).queue[owner] = key.shared
        return False

    def release(self, owner: int) -> list[int]:
        """Frees the keys of the owner, if any; returns the waiters that now get theirs, in order of arrival."""
        keys = self._held.pop(owner, ())
        waited_for = False
        for key in keys:
            entry = self._keys[key.domain, key.key]
            del entry.holders[owner]
            waited_for = waited_for or bool(entry.queue)
        if waited_for:
            return self._grant(keys)
        for key in keys:
            if not self._keys[key.domain, key.key].holders:
                del self._keys[key.domain, key.key]
        return []

    def cancel(self, owner: int) -> list[int]:
        """Removes a waiter; returns the waiters after it that now get their keys."""
        waiter = self._waiting.pop(owner, None)
        if waiter is None:
            return []
        for key in waiter.keys:
            del self._keys[key.domain, key.key].queue[owner]
        return self._grant(waiter.keys)

    def holders(self, key: ResourceKey) -> tuple[int, ...]:
        """Returns the owners that have this key, shared or exclusive; `key.shared` does not matter."""
        entry = self._keys.get((key.domain, key.key))
        return tuple(entry.holders) if entry is not None else ()

    def _grant(self, freed: Iterable[ResourceKey]) -> list[int]:
        """Gives keys to the waiters that can get them now, and forgets keys that no owner wants.

        Only the head of a freed key's queue can get it: its first waiter, or its leading shared ones. A waiter that gets its keys unblocks
        no other waiter, since it blocks the same requests as before.
        """
        candidates: set[int] = set()
        for key in freed:
            entry = self._keys[key.domain, key.key]
            for number, shared in entry.queue.items():
                if shared or number == next(iter(entry.queue)):
                    candidates.add(number)
                if not shared:
                    break
        granted = []
        for number in sorted(candidates, key=self._order):
            waiter = self._waiting[number]
            if all(self._is_next(number, key) for key in waiter.keys):
                del self._waiting[number]
                for key in waiter.keys:
                    del self._keys[key.domain, key.key].queue[number]
                self._hold(number, waiter.keys)
                granted.append(number)
        for key in freed:
            entry = self._keys[key.domain, key.key]
            if not entry.holders and not entry.queue:
                del self._keys[key.domain, key.key]
        return granted

    def _is_next(self, number: int, key: ResourceKey) -> bool:
        if self._holder_against(key) is not None:
            return False
        for earlier, shared in self._keys[key.domain, key.key].queue.items():
            if earlier == number:
                return True
            if not (shared and key.shared):
                return False
        return True

    def _order(self, number: int) -> int:
        return self._waiting[number].number

    def _holder_against(self, key: ResourceKey) -> int | None:
        entry = self._keys.get((key.domain, key.key))
        if entry is None:
            return None
        for holder, shared in entry.holders.items():
            # A key has one exclusive holder or only shared ones, so the first holder decides.
            return None if shared and key.shared else holder
        return None

    def _waiters_against(self, key: ResourceKey) -> Iterator[int]:
        entry = self._keys.get((key.domain, key.key))
        if entry is not None:
            for number, shared in entry.queue.items():
                if not (shared and key.shared):
                    yield number

    def _in_the_way_of(self, number: int) -> int:
        """Returns a holder that this waiter waits for, directly or through earlier waiters."""
        while True:
            keys = self._waiting[number].keys
            for key in keys:
                if (holder := self._holder_against(key)) is not None:
                    return holder
            number = min(
                (other for key in keys for other in self._waiters_against(key) if self._order(other) < self._order(number)), key=self._order
            )

    def _hold(self, owner: int, keys: tuple[ResourceKey, ...]) -> None:
        if keys:
            self._held[owner] = keys
        for key in keys:
            self._key(key).holders[owner] = key.shared

    def _key(self, key: ResourceKey) -> _Key:
        name = (key.domain, key.key)
        entry = self._keys.get(name)
        if entry is None:
            entry = self._keys[name] = _Key({}, {})
        return entry


class _Key(msgspec.Struct):
    """One key. `holders` and `queue` map an owner to whether it shares the key, in order of arrival."""

    holders: dict[int, bool]
    queue: dict[int, bool]


class _Waiter(msgspec.Struct):
    """One waiter; `number` counts waiters, `overtaken` the requests without waiting that took a key which this waiter wants."""

    keys: tuple[ResourceKey, ...]
    number: int
    overtaken: int = 0
