"""IdempotencyTable: the keys that a pchannel has seen, and the result of the first append with each. Pure.

Its caller reports operations that were called, became durable or failed; it answers with data or a typed error, and neither waits nor reads
a clock.

    (unknown) --claim--> pending --durable--> remembered        pending --failed--> unknown again (nothing was written)

Plain keys have a window over all vchannels, bounded by count and by age; only durable keys are in it. `Producers` remembers the keys with a
sequence. Consecutive keys of one kind are claimed and settled as a run, with a few calls for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from wal.frame import KEYED, FrameView, RunName
from wal.settings import IDEMPOTENCY_WINDOW_BYTES, Settings
from wal.storage.state_table import Live, StateTable
from wal.write.idempotency.keys import Key, ProducerKey, keyed_events
from wal.write.idempotency.producers import Producers
from wal.write.idempotency.scopes import RUN_KEYS, Claim, Kept, KeyEntry, KeyRun, KeyWindow, Scope, Scopes
from wal.write.idempotency.state import DECODERS, decode_state, encode_state


class IdempotencyTable(StateTable):
    """The keys of one pchannel. `changes` counts the keyed events."""

    what = "idempotency keys"
    decoders = DECODERS
    flag = KEYED

    def __init__(self, *, window_count: int | None, window_s: float, producers_max: int, window_bytes: int | None = None) -> None:
        super().__init__()
        self.scopes: Scopes = Scopes()
        self.producers: Producers = Producers(self.scopes, producers_max=producers_max)
        self._window = KeyWindow(self.scopes, count_max=window_count, age_max_ms=window_s * 1000, bytes_max=window_bytes)

    @classmethod
    def of(cls, settings: Settings) -> IdempotencyTable:
        """Returns an empty table with the bounds of these settings."""
        count = settings.idempotency_window_count
        return cls(
            window_count=count,
            window_s=settings.idempotency_window_s,
            window_bytes=IDEMPOTENCY_WINDOW_BYTES if count is None else None,
            producers_max=settings.producers_max,
        )

    def __len__(self) -> int:
        """Returns the number of plain keys."""
        return len(self._window)

    @property
    def cut(self) -> int:
        """The tick of the newest plain key that was forgotten before its age, for the number or the memory of keys; 0 for none."""
        return self._window.cut

    def reach_s(self, now_ms: int) -> float:
        """Returns how far back plain keys are remembered, in seconds."""
        return self._window.reach_ms(now_ms) / 1000

    # -- an operation's turn, and its outcome

    def find(self, names: tuple[RunName, ...], key: Key, *, now_ms: int) -> Kept | Claim | None:
        """Returns the first result of the key in this scope, its pending claim, or None; see also `Producers.find`."""
        if isinstance(key, ProducerKey):
            return self.producers.find(names, key)
        scope = self.scopes.get(names)
        if scope is None:
            return None
        if (entry := scope.keys.get(key)) is None:
            return None
        result = entry.find(key)
        return None if isinstance(result, Kept) and self._window.has_expired(result, now_ms=now_ms) else result

    def claim(self, names: tuple[RunName, ...], key: Key, *, barrier: int = 0) -> Claim:
        """Claims a key for which `find` returned None, until `durable` or `failed`. Raises WouldBlockError past `producers_max`."""
        if isinstance(key, ProducerKey):
            return self.producers.claim(names, key, barrier=barrier)
        scope = self.scopes.use(names)
        claim = Claim(scope, key, barrier)
        scope.keys[key] = KeyEntry([key], claim)
        return claim

    def claim_run(self, names: tuple[RunName, ...], keys: Sequence[Key]) -> list[Claim] | None:
        """Claims keys of one kind that need no barrier; returns the claim of each. Plain keys share claims, at most `RUN_KEYS` one claim.

        Returns None, without a claim, unless all of them are new and differ. See also `Producers.claim_run`.
        """
        if isinstance(keys[0], ProducerKey):
            return self.producers.claim_run(names, cast("Sequence[ProducerKey]", keys))
        scope, claims = self.scopes.use(names, len(keys)), list[Claim]()
        for start in range(0, len(keys), RUN_KEYS):
            run = cast("list[str]", keys[start : start + RUN_KEYS])
            if (claim := _claim_new(scope, run)) is None:
                for key in keys[:start]:
                    del scope.keys[cast("str", key)]
                self.scopes.release(scope, len(keys))
                return None
            claims += [claim] * len(run)
        return claims

    def durable_run(self, claims: list[Claim], keys: list[Key], position: int, index: int, tick: int) -> None:
        """Remembers claimed keys of one vchannel and one kind. The first event has this index and tick; the others follow it.

        `claims` has the claim of each key. Keys that share a claim have to be in the order in which they were claimed.
        """
        scope = claims[0].scope
        self.changed(len(claims))
        if isinstance(keys[0], ProducerKey):
            if scope.live:
                self.producers.durable_run(scope, claims, position, index, tick)
            return
        start, count = 0, len(claims)
        while start < count:
            claim, entry = claims[start], scope.keys[cast("str", keys[start])]
            end = start + len(entry.keys)
            if end > count or claims[end - 1] is not claim:
                # A part of the claimed keys: the other keys are in another frame, or have failed.
                end = start + 1
                while end < count and claims[end] is claim:
                    end += 1
                entry = _split_off(scope, cast("list[str]", keys[start:end]))
            self._remember(scope, entry, Kept(position, index + start, tick + start))
            start = end

    def durable_whole(self, claim: Claim, first: Key, count: int, position: int, index: int, tick: int) -> bool:
        """Remembers, as `durable_run` does, all plain keys that share a claim, `first` being the first of them.

        Returns False, without an effect, if they are producers' keys or not `count` in number.
        """
        scope = claim.scope
        if isinstance(first, ProducerKey) or len((entry := scope.keys[first]).keys) != count or entry.claim is not claim:
            return False
        self.changed(count)
        self._remember(scope, entry, Kept(position, index, tick))
        return True

    def durable(self, claim: Claim, key: Key, kept: Kept) -> None:
        """Remembers a claimed key and its result: its event is in the log."""
        scope = claim.scope
        self.changed()
        if isinstance(key, str):
            entry = scope.keys[key]
            self._remember(scope, entry if len(entry.keys) == 1 else _split_off(scope, [key]), kept)
        elif scope.live:
            self.producers.durable(scope, key.producer, key.sequence, kept)

    def failed(self, claim: Claim, key: Key, *, final: bool = False) -> list[Claim]:
        """Forgets a claimed key, whose event was not written. Returns the claims that have to fail with it, ascending.

        With `final` nothing can be appended to this log any more, and their callers get that reason instead.
        """
        if isinstance(key, ProducerKey):
            return self.producers.failed(claim, final=final)
        scope = claim.scope
        entry = scope.keys.get(key)
        if entry is not None and entry.claim is claim:
            del scope.keys[key]
            self.scopes.release(scope)
        return []

    def drop(self, name: RunName) -> None:
        """Forgets every scope with this vchannel, which ended. Keys that are pending there will not be remembered."""
        self.scopes.drop(name)
        self.producers.drop(name)

    def forgotten(self, producer: str) -> None:
        """Forgets a producer whose forgetting is durable."""
        self.changed()
        self.producers.forget(producer)

    # -- recovery

    def _replay(self, position: int, view: FrameView, live: Live | None) -> int:
        events, forgotten = keyed_events(view)
        first_tick = view.header.first_tick
        for name in forgotten:  # no event of that producer shares a frame with it, see `Producers.begin_to_forget`
            self.producers.forget(name)
        for event in events:
            names = event.names
            if live is not None and not (live(names[0]) if len(names) == 1 else all(map(live, names))):
                continue
            result = Kept(position, event.index, first_tick + event.index, event.txn_id, event.keepalive_ms)
            scope = self.scopes.use(names)
            if event.sequence is None:
                entry = scope.keys[event.text] = KeyEntry([event.text])
                self._window.add(KeyRun.known(scope, entry, result))
            else:
                self.producers.durable(scope, event.text, event.sequence, result)
                self.scopes.release(scope)
        return len(events) + len(forgotten)

    def snapshot(self) -> Iterator[bytes]:
        return encode_state(self._window.runs(), self.producers.rows(), cut=self._window.cut)

    def _restore(self, pieces: Iterable[Any], live: Live | None) -> None:
        def scope_of(names: tuple[RunName, ...]) -> Scope:
            scope = self.scopes.use(names) if live is None or all(map(live, names)) else Scope(names, 1, live=False)
            scopes.append(scope)
            return scope

        scopes: list[Scope] = []
        runs, producers, cut = decode_state(pieces, scope_of)
        self._window.restore((run for run in runs if run.scope.live), cut=cut)
        for row in producers:
            if row.scope.live:
                self.producers.restore(row)
        for scope in scopes:
            self.scopes.release(scope)

    def _remember(self, scope: Scope, entry: KeyEntry, kept: Kept) -> None:
        """Makes the pending keys of this entry a remembered run: the result of the first is `kept`, and the others follow it."""
        run = KeyRun.known(scope, entry, kept)
        if scope.live:
            self._window.add(run)  # the claims' uses become the window's
        else:
            self.scopes.release(scope, len(entry.keys))


def _claim_new(scope: Scope, keys: list[str]) -> Claim | None:
    """Claims these keys as a run. Returns None, without a claim, unless all of them are new and differ."""
    claim, entries_by_key = Claim(scope, keys[0], 0), scope.keys
    new = dict.fromkeys(keys, KeyEntry(keys, claim))
    if len(new) != len(keys) or not entries_by_key.keys().isdisjoint(keys):
        return None
    entries_by_key.update(new)
    return claim


def _split_off(scope: Scope, keys: list[str]) -> KeyEntry:
    """Returns a separate entry for some of the keys that share one."""
    entry = KeyEntry(keys)
    scope.keys.update(dict.fromkeys(keys, entry))
    return entry
