"""The scopes of idempotency keys, the claims (pending keys) in them, and the window of plain keys that are remembered. Pure.

The scope of a key is its vchannel, or the sorted set of vchannels of a wide transaction, each in its incarnation. A scope lasts while it
has a key or a producer, or until one of its vchannels is dropped.

Keys that are claimed in one turn form a run, and their events usually follow each other in one frame. A run costs one record and a few
calls, however many keys it has. They share one entry in their scope, which is set when they are claimed and stays until they leave the
window: with tens of thousands of keys in memory, each further lookup costs as much as all other work on a key.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from itertools import repeat
from typing import Any, Final

import msgspec

from wal.frame import RunName
from wal.timestamp.timestamp import LOGICAL_BITS
from wal.write.idempotency.keys import Key

RUN_KEYS: Final = 256
"""The most keys of a run that is claimed or stored: a key is searched in its run one by one, when it is appended again."""

_AGED_A_CALL: Final = 64
"""Adding a run removes at most this many expired keys, plus as many as it adds, so that the first append after a long pause does not remove
all of them."""


class Scope(msgspec.Struct, eq=False, gc=False):
    """The sorted vchannels that a key belongs to. `uses` counts its keys and producers; it is `live` until one of them is dropped.

    `keys` has the entry of each plain key that is pending or in the window.
    """

    names: tuple[RunName, ...]
    uses: int = 0
    live: bool = True
    keys: dict[str, KeyEntry] = {}


class Claim(msgspec.Struct, eq=False, gc=False):
    """A key whose operation was accepted and is not settled yet. Plain keys that are claimed as a run share one claim; `key` is the first.

    `barrier` is the tick that the operation has to wait for, so that it does not overtake an earlier one of its producer. A `doomed` claim
    must fail, since an earlier sequence of its producer failed. `sharers` are the other callers that wait for each key.
    """

    scope: Scope
    key: Key
    barrier: int
    sharers: dict[Key, list[Any]] | None = None
    doomed: bool = False

    def share(self, key: Key, caller: Any) -> None:
        """Adds a caller that waits for this key."""
        if self.sharers is None:
            self.sharers = {}
        self.sharers.setdefault(key, []).append(caller)

    def sharers_of(self, key: Key) -> list[Any]:
        """Returns the callers that wait for this key, besides the caller whose operation was accepted."""
        return [] if self.sharers is None else self.sharers.get(key, [])


class Scopes:
    """The scopes in use, by their vchannels and by each of these."""

    def __init__(self) -> None:
        self.by_names: dict[tuple[RunName, ...], Scope] = {}
        self.by_vchannel: dict[RunName, set[Scope]] = {}

    def get(self, names: tuple[RunName, ...]) -> Scope | None:
        """Returns the scope of these vchannels, None if it is not in use."""
        return self.by_names.get(names)

    def use(self, names: tuple[RunName, ...], count: int = 1) -> Scope:
        """Returns the scope of these vchannels, and adds `count` uses."""
        scope = self.by_names.get(names)
        if scope is None:
            scope = self.by_names[names] = Scope(names)
            for name in names:
                self.by_vchannel.setdefault(name, set()).add(scope)
        scope.uses += count
        return scope

    def release(self, scope: Scope, count: int = 1) -> None:
        """Ends `count` uses; a scope without uses is forgotten."""
        scope.uses -= count
        if not scope.uses and scope.live:
            self._unlink(scope)

    def drop(self, name: RunName) -> None:
        """Ends every scope with this vchannel."""
        for scope in self.by_vchannel.pop(name, set()):
            scope.live = False
            self._unlink(scope)

    def _unlink(self, scope: Scope) -> None:
        del self.by_names[scope.names]
        for name in scope.names:
            scopes = self.by_vchannel.get(name)
            if scopes is not None:
                scopes.discard(scope)
                if not scopes:
                    del self.by_vchannel[name]


class Kept(msgspec.Struct, frozen=True, gc=False):
    """The first result of a key, complete enough to return it again. `txn_id` is 0 for a plain message."""

    position: int
    index: int
    tick: int
    txn_id: int = 0
    keepalive_ms: int = 0


class KeyEntry(msgspec.Struct, eq=False, gc=False):
    """The entry of a scope for the plain keys of a run: their claim while they are pending, then the result `kept` of the first.

    It has no reference to its scope, because the garbage collector would not find such a cycle.
    """

    keys: list[str]
    claim: Claim | None = None
    kept: Kept | None = None

    def find(self, key: str) -> Claim | Kept:
        """Returns the claim or the result of one of its keys."""
        first = self.kept
        if first is None:
            assert self.claim is not None
            return self.claim
        at = self.keys.index(key)
        return Kept(first.position, first.index + at, first.tick + at, first.txn_id, first.keepalive_ms)


class KeyRun(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Plain keys of one scope, whose events follow each other in the frame at `position`; `index` and `tick` are those of the first.

    `entry` is what the scope has for these keys, None for a run that is only stored.
    """

    scope: Scope
    keys: list[str]
    position: int
    index: int
    tick: int
    txn_id: int = 0
    keepalive_ms: int = 0
    entry: KeyEntry | None = None

    @classmethod
    def known(cls, scope: Scope, entry: KeyEntry, kept: Kept) -> KeyRun:
        """Returns the run of an entry that is remembered from now on: the result of its first key is `kept`."""
        entry.claim, entry.kept = None, kept
        return cls(scope, entry.keys, kept.position, kept.index, kept.tick, kept.txn_id, kept.keepalive_ms, entry)

    def part(self, start: int, end: int) -> KeyRun:
        """Returns the run of the keys [start, end), to be stored."""
        keys = self.keys[start:end]
        return KeyRun(self.scope, keys, self.position, self.index + start, self.tick + start, self.txn_id, self.keepalive_ms)


KEY_BYTES: Final = 100
"""The memory of a remembered key besides the bytes of its text: the text's object and the entry in its scope's table."""
RUN_BYTES: Final = 320
"""The memory of a run of keys besides its keys. On CPython 3.11, 50,000 keys of 36 bytes took 440 bytes each alone in a frame, and 133
each in runs of 256."""


class KeyWindow:
    """The newest events with plain keys in a pchannel; every key in the window is a use of its scope.

    Keys stay until they are older than `age_max_ms`, unless their number exceeds `count_max`, or their memory `bytes_max`; None means no
    bound. The keys of a dropped vchannel stay until they are the oldest, so the window always has the newest keys.
    """

    def __init__(self, scopes: Scopes, *, count_max: int | None, age_max_ms: float, bytes_max: int | None = None) -> None:
        self._scopes = scopes
        self._count_max = math.inf if count_max is None else count_max
        self._bytes_max = math.inf if bytes_max is None else bytes_max
        self._age_max_ms = age_max_ms
        self._runs: deque[KeyRun] = deque()
        self._count = 0
        self._bytes = 0
        self.cut: int = 0
        """The tick of the newest key that was evicted before its age; 0 for none. Keys at or below it are forgotten."""
        self._gone = 0  # the number of keys of the oldest run that were evicted

    def __len__(self) -> int:
        """Returns the number of events; a key that was appended again after it had expired counts for each of them."""
        return self._count

    def has_expired(self, kept: Kept, *, now_ms: int) -> bool:
        """Returns whether a result is older than the window."""
        return now_ms - (kept.tick >> LOGICAL_BITS) > self._age_max_ms

    def add(self, run: KeyRun) -> None:
        """Adds the newest keys, which have their entry, takes over their uses of the scope, and evicts keys beyond the bounds."""
        count = len(run.keys)
        self._runs.append(run)
        self._count += count
        self._bytes += RUN_BYTES + KEY_BYTES * count + sum(map(len, run.keys))
        if self._count > self._count_max or self._bytes > self._bytes_max:
            self._cut()
        if not self._runs:
            return
        oldest = (run.tick >> LOGICAL_BITS) - self._age_max_ms
        if self._runs[0].tick >> LOGICAL_BITS < oldest:
            self._evict_aged(oldest, most=_AGED_A_CALL + count)

    def restore(self, runs: Iterable[KeyRun], *, cut: int = 0) -> None:
        """Fills an empty window with runs of live scopes, oldest first, and adds their uses. `cut` is as it was stored, 0 if it was not."""
        self.cut = cut
        for run in runs:
            run.scope.uses += len(run.keys)
            entry = KeyEntry(run.keys)
            first_result = Kept(run.position, run.index, run.tick, run.txn_id, run.keepalive_ms)
            run.scope.keys.update(dict.fromkeys(run.keys, entry))
            self._runs.append(KeyRun.known(run.scope, entry, first_result))
            self._count += len(run.keys)
            self._bytes += RUN_BYTES + KEY_BYTES * len(run.keys) + sum(map(len, run.keys))
        self._cut()

    def runs(self) -> list[KeyRun]:
        """Returns the runs, oldest first. Later changes do not change the list."""
        runs = list(self._runs)
        if self._gone:
            runs[0] = runs[0].part(self._gone, len(runs[0].keys))
        return runs

    def reach_ms(self, now_ms: int) -> float:
        """Returns how far back keys are remembered: the age, or less after keys were evicted for their number or memory."""
        if not self.cut:
            return self._age_max_ms
        return min(self._age_max_ms, max(0, now_ms - (self.cut >> LOGICAL_BITS)))

    def _cut(self) -> None:
        """Evicts the oldest keys beyond the number and the memory."""
        while self._runs and (self._count > self._count_max or self._bytes > self._bytes_max):
            run = self._runs[0]
            remaining = len(run.keys) - self._gone
            over = max(self._count - self._count_max, -((self._bytes_max - self._bytes) // KEY_BYTES))
            count = int(min(remaining, max(1, over)))
            last, newest = run.tick + self._gone + count - 1, self._runs[-1].tick
            if run.scope.live and last >> LOGICAL_BITS >= (newest >> LOGICAL_BITS) - self._age_max_ms:
                self.cut = last
            self._evict(count)

    def _evict_aged(self, oldest: float, *, most: int) -> None:
        while most > 0 and self._runs:
            run = self._runs[0]
            waiting = len(run.keys) - self._gone
            if (run.tick + len(run.keys) - 1) >> LOGICAL_BITS >= oldest:
                return
            self._evict(min(waiting, most))
            most -= waiting

    def _evict(self, count: int) -> None:
        """Removes the oldest keys."""
        self._count -= count
        self._bytes -= KEY_BYTES * count
        while count:
            run, start = self._runs[0], self._gone
            scope, entries_by_key = run.scope, run.scope.keys
            end = min(start + count, len(run.keys))
            keys = run.keys[start:end]
            self._bytes -= sum(map(len, keys))
            entries: list[KeyEntry | None] = list(map(entries_by_key.pop, keys, repeat(None)))
            entry = run.entry
            if entries.count(entry) != len(keys):
                # Keys that were appended again after they had expired have newer entries.
                entries_by_key.update({key: other for key, other in zip(keys, entries, strict=True) if other and other is not entry})
            if end == len(run.keys):
                self._runs.popleft()
                self._bytes -= RUN_BYTES
                self._gone = 0
            else:
                self._gone = end
            self._scopes.release(scope, end - start)
            count -= end - start
