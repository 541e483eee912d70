"""IdempotencyTable: the keys that a pchannel has seen, and the result of the first append with each. Pure.

Its caller reports operations that were called, became durable or failed; it answers with data or a typed error, and neither waits nor
reads a clock.

    (unknown) --claim--> pending --durable--> remembered        pending --failed--> unknown again (nothing was written)

Plain keys have a window over all vchannels, bounded by count and by age. Only durable keys are in it. A key whose vchannel was dropped
stays until its turn to leave, so the window always holds the last `window_count` keyed events. `Producers` remembers the keys with a
sequence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Final

from wal.frame import FrameView, RunName
from wal.pchannel.idempotency.keys import Key, ProducerKey, keyed_events
from wal.pchannel.idempotency.producers import Producers
from wal.pchannel.idempotency.scopes import Claim, Scope, Scopes
from wal.pchannel.idempotency.state import Kept, KeptKey, decode_state, encode_state

__all__ = ["IdempotencyTable"]

_LOGICAL_BITS: Final = 18
_EVICTED_A_CALL: Final = 64
"""The number of aged keys that are removed at a time, so that the first append after a long pause does not pay for all of them."""


class IdempotencyTable:
    """The keys of one pchannel. `keyed_since_checkpoint` counts the keyed events applied since it was last set to 0."""

    def __init__(self, *, window_count: int, window_s: float, producers_max: int) -> None:
        self.keyed_since_checkpoint: int = 0
        self.scopes: Scopes = Scopes()
        self.producers: Producers = Producers(self.scopes, producers_max=producers_max)
        self._window_count = window_count
        self._window_ms = window_s * 1000
        self._pending: dict[tuple[Scope, str], Claim] = {}
        self._window: dict[tuple[Scope, str], KeptKey] = {}
        self._order: deque[KeptKey] = deque()
        """The keys in the window, and those that a later append with the same key has replaced there."""

    def __len__(self) -> int:
        """Returns how many plain keys it holds."""
        return len(self._order)

    # -- an operation's turn, and its outcome

    def find(self, names: tuple[RunName, ...], key: Key, *, now_ms: int) -> Kept | Claim | None:
        """Returns the first result of the key in this scope, its pending claim, or None; see also `Producers.find`."""
        if isinstance(key, ProducerKey):
            return self.producers.find(names, key)
        scope = self.scopes.get(names)
        if scope is None:
            return None
        place = (scope, key)
        claim = self._pending.get(place)
        if claim is not None:
            return claim
        entry = self._window.get(place)
        if entry is None or now_ms - (entry.kept.tick >> _LOGICAL_BITS) > self._window_ms:
            return None
        return entry.kept

    def claim(self, names: tuple[RunName, ...], key: Key, *, barrier: int = 0) -> Claim:
        """Takes a key for which `find` returned None, until `durable` or `failed`. Raises WouldBlockError past `producers_max`."""
        if isinstance(key, ProducerKey):
            return self.producers.claim(names, key, barrier=barrier)
        scope = self.scopes.use(names)
        claim = self._pending[scope, key] = Claim(scope, key, barrier)
        return claim

    def durable(self, claim: Claim, kept: Kept) -> None:
        """Remembers the claimed key and its result: its event is in the log."""
        scope, key = claim.scope, claim.key
        self.keyed_since_checkpoint += 1
        if isinstance(key, str):
            place = (scope, key)
            del self._pending[place]
            if scope.live and self._window_count:
                self._remember(place, kept)  # the claim's use of the scope becomes the window's
            else:
                self.scopes.release(scope)
        elif scope.live:
            self.producers.durable(scope, key.producer, key.sequence, kept)

    def failed(self, claim: Claim, *, final: bool = False) -> list[Claim]:
        """Forgets the claimed key, whose event was not written. Returns the claims that have to fail with it, ascending.

        With `final` nothing can be appended to this log any more, and their callers get that reason instead.
        """
        if isinstance(claim.key, ProducerKey):
            return self.producers.failed(claim, final=final)
        if self._pending.pop((claim.scope, claim.key), None) is not None:
            self.scopes.release(claim.scope)
        return []

    def drop(self, name: RunName) -> None:
        """Forgets every scope with this vchannel, which ended. Keys that are pending there will not be remembered."""
        self.scopes.drop(name)
        self.producers.drop(name)

    def forgotten(self, producer: str) -> None:
        """Forgets a producer whose forgetting is durable."""
        self.keyed_since_checkpoint += 1
        self.producers.forget(producer)

    # -- recovery

    def replay(self, position: int, view: FrameView, *, live: Callable[[RunName], bool] | None = None) -> int:
        """Applies the keyed events of one durable frame written after the checkpoint, in order; returns how many there are.

        Scopes with a vchannel that is not `live` any more are left out.
        """
        events, forgotten = keyed_events(view)
        first_tick = view.header.first_tick
        for name in forgotten:  # no event of that producer shares a frame with it, see `Producers.begin_to_forget`
            self.producers.forget(name)
        for event in events:
            names = event.names
            if live is not None and not (live(names[0]) if len(names) == 1 else all(map(live, names))):
                continue
            kept = Kept(position, event.index, first_tick + event.index, event.txn_id, event.keepalive_ms)
            scope = self.scopes.use(names)
            if event.sequence is None and self._window_count:
                self._remember((scope, event.text), kept)
                continue
            if event.sequence is not None:
                self.producers.durable(scope, event.text, event.sequence, kept)
            self.scopes.release(scope)
        count = len(events) + len(forgotten)
        self.keyed_since_checkpoint += count
        return count

    def snapshot(self) -> Iterator[bytes]:
        """Returns the durable state as of this call, in pieces that are cheap to produce one by one; joined they are the blob.

        Changes between two pieces are not in it.
        """
        return encode_state(list(self._order), self.producers.rows())

    def restore(self, blob: bytes, *, live: Callable[[RunName], bool] | None = None) -> None:
        """Sets an empty table to the state of a snapshot, without the scopes that are not `live` any more.

        Raises CorruptionError for bytes that are no snapshot, FormatError for a snapshot of a newer version.
        """

        def scope_of(names: tuple[RunName, ...]) -> Scope:
            scope = self.scopes.use(names) if live is None or all(map(live, names)) else Scope(names, 1, live=False)
            scopes.append(scope)
            return scope

        scopes: list[Scope] = []
        keys, producers = decode_state(blob, scope_of)
        keys = [entry for entry in keys if entry.scope.live]
        keys = keys[-self._window_count :] if self._window_count else []
        self._order.extend(keys)
        self._window.update(zip(map(_SCOPE_AND_KEY, keys), keys, strict=True))
        for entry in keys:
            entry.scope.uses += 1
        for row in producers:
            if row.scope.live:
                self.producers.restore(row)
        for scope in scopes:
            self.scopes.release(scope)

    # -- the window

    def _remember(self, place: tuple[Scope, str], kept: Kept) -> None:
        """Adds the key, with a use of its scope, to the window as its newest, and removes what is over the bounds."""
        order = self._order
        entry = self._window[place] = KeptKey(place[0], place[1], kept)
        order.append(entry)
        if len(order) > self._window_count:
            self._evict()
        oldest = (kept.tick >> _LOGICAL_BITS) - self._window_ms
        evicted = 0
        while order[0].kept.tick >> _LOGICAL_BITS < oldest and evicted < _EVICTED_A_CALL:
            self._evict()
            evicted += 1

    def _evict(self) -> None:
        entry = self._order.popleft()
        place = (entry.scope, entry.key)
        if self._window.get(place) is entry:
            del self._window[place]
        self.scopes.release(entry.scope)


_SCOPE_AND_KEY: Final[Callable[[KeptKey], tuple[Scope, str]]] = attrgetter("scope", "key")
