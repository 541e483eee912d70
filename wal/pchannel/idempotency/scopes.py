"""The scopes of idempotency keys, the claims (pending keys) in them, and the window of plain keys that are remembered. Pure.

The scope of a key is its vchannel, or the sorted set of vchannels of a wide transaction, each in its incarnation. A scope lasts while
something is known in it, or until one of its vchannels is dropped.

The window keeps runs: keys of one scope whose events follow each other in a frame, as those of one turn do. A run costs one record and a
few calls, however many keys it has. Each key also has one entry in its scope, which maps it to the tick of its event. Ticks ascend in the
window, so a tick leads to its run by bisection, and the run gives the rest of the result.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from itertools import islice
from operator import attrgetter
from typing import Any, Final

import msgspec

from wal.frame import RunName
from wal.pchannel.idempotency.keys import Key

__all__ = ["Claim", "Kept", "KeyRun", "KeyWindow", "Scope", "Scopes"]

_LOGICAL_BITS: Final = 18
_AGED_A_CALL: Final = 64
"""Adding a run removes at most this many expired keys, plus as many as it adds, so that the first append after a long pause does not remove
all of them."""


class Scope(msgspec.Struct, eq=False, gc=False):
    """The sorted vchannels that a key belongs to. `uses` counts what is known in it; it is `live` until one of them is dropped.

    `window` belongs to the `KeyWindow`: the tick of each plain key in it.
    """

    names: tuple[RunName, ...]
    uses: int = 0
    live: bool = True
    window: dict[str, int] = {}


class Claim(msgspec.Struct, eq=False, gc=False):
    """A key whose operation was taken and is not settled yet. `sharers` is for the holder of the claim to use.

    `barrier` is the tick that the operation has to wait for, so that it does not overtake an earlier one of its producer. A `doomed`
    claim must fail, since an earlier sequence of its producer failed.
    """

    scope: Scope
    key: Key
    barrier: int
    sharers: list[Any] | None = None
    doomed: bool = False


class Scopes:
    """The scopes in which something is known, by their vchannels and by each of these."""

    def __init__(self) -> None:
        self.by_names: dict[tuple[RunName, ...], Scope] = {}
        self.by_vchannel: dict[RunName, set[Scope]] = {}

    def get(self, names: tuple[RunName, ...]) -> Scope | None:
        """Returns the scope of these vchannels, None when nothing is known in it."""
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


class KeyRun(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Plain keys of one scope, whose events follow each other in the frame at `position`; `index` and `tick` are those of the first."""

    scope: Scope
    keys: list[str]
    position: int
    index: int
    tick: int
    txn_id: int = 0
    keepalive_ms: int = 0

    def part(self, start: int, end: int) -> KeyRun:
        """Returns the run of the keys [start, end)."""
        keys = self.keys[start:end]
        return KeyRun(
            self.scope, keys, self.position, self.index + start, self.tick + start, self.txn_id, self.keepalive_ms
        )


class KeyWindow:
    """The newest events with plain keys in a pchannel; every key in the window is a use of its scope.

    The keys of a dropped vchannel stay until they are the oldest, so the window always holds the last `count_max` keys.
    """

    def __init__(self, scopes: Scopes, *, count_max: int, age_max_ms: float) -> None:
        self._scopes = scopes
        self._count_max = count_max
        self._age_max_ms = age_max_ms
        self._runs: deque[KeyRun] = deque()
        self._count = 0
        self._gone = 0  # the number of keys of the oldest run that were evicted

    def __len__(self) -> int:
        """Returns the number of events; a key that was appended again after it had expired counts for each of them."""
        return self._count

    def find(self, scope: Scope, key: str, *, now_ms: int) -> Kept | None:
        """Returns the result of a key, or None if the key is unknown or has expired."""
        tick = scope.window.get(key)
        if tick is None or now_ms - (tick >> _LOGICAL_BITS) > self._age_max_ms:
            return None
        run = self._runs[bisect_right(self._runs, tick, key=_TICK) - 1]
        return Kept(run.position, run.index + tick - run.tick, tick, run.txn_id, run.keepalive_ms)

    def add(self, run: KeyRun) -> None:
        """Adds the newest keys, takes over their uses of the scope, and evicts keys beyond the bounds."""
        if not self._count_max:
            self._scopes.release(run.scope, len(run.keys))
            return
        self._append(run)
        count = len(run.keys)
        if self._count > self._count_max:
            self._evict(self._count - self._count_max)
        oldest = (run.tick >> _LOGICAL_BITS) - self._age_max_ms
        if self._runs[0].tick >> _LOGICAL_BITS < oldest:
            self._evict_aged(oldest, most=_AGED_A_CALL + count)

    def restore(self, runs: Iterable[KeyRun]) -> None:
        """Fills an empty window with runs of live scopes, oldest first, and adds their uses."""
        for run in runs:
            run.scope.uses += len(run.keys)
            self._append(run)
        if self._count > self._count_max:
            self._evict(self._count - self._count_max)

    def runs(self) -> list[KeyRun]:
        """Returns the runs, oldest first. Later changes do not change the list."""
        runs = list(self._runs)
        if self._gone:
            runs[0] = runs[0].part(self._gone, len(runs[0].keys))
        return runs

    def _append(self, run: KeyRun) -> None:
        keys, tick = run.keys, run.tick
        if len(keys) == 1:
            run.scope.window[keys[0]] = tick
        else:
            run.scope.window.update(zip(keys, range(tick, tick + len(keys)), strict=True))
        self._runs.append(run)
        self._count += len(keys)

    def _evict_aged(self, oldest: float, *, most: int) -> None:
        while most > 0 and self._runs:
            run = self._runs[0]
            waiting = len(run.keys) - self._gone
            if (run.tick + len(run.keys) - 1) >> _LOGICAL_BITS >= oldest:
                return
            self._evict(min(waiting, most))
            most -= waiting

    def _evict(self, count: int) -> None:
        """Removes the oldest keys."""
        self._count -= count
        while count:
            run, start = self._runs[0], self._gone
            scope, window = run.scope, run.scope.window
            tick = run.tick + start
            end = min(start + count, len(run.keys))
            for key in islice(run.keys, start, end):
                if window[key] == tick:  # otherwise it was appended again after it had expired
                    del window[key]
                tick += 1
            if end == len(run.keys):
                self._runs.popleft()
                self._gone = 0
            else:
                self._gone = end
            self._scopes.release(scope, end - start)
            count -= end - start


_TICK: Final = attrgetter("tick")
