"""IdempotencyTable: which keys a pchannel has seen, and what the first append of each was answered. Pure.

It is told what was called, what became durable and what failed, and answers with data or a typed error; it neither waits nor reads a
clock. The scope of a key is its vchannel, or the sorted set of vchannels of a wide transaction, each in its incarnation.

    (unknown) --claim--> pending --durable--> remembered        pending --failed--> unknown again (nothing was written)

* Plain keys: a window over all vchannels, bounded by count and by age. Only durable ones take a place in it; one whose vchannel was
  dropped keeps its place until it leaves in its turn, so the window always is the last `window_count` keyed events.
* Producers: for each name and scope the last durable sequence, for good, and the results of the last RESULTS_KEPT. Their number
  is bounded by `producers_max`; a producer whose first append is pending counts.
* A producer's sequences are written in ascending order or not at all: one below a pending one is refused, one behind a pending
  one that waits for a barrier waits for that as well, and when one fails, those pending behind it fail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, Final, cast

import msgspec

from wal.errors import InvalidArgumentError, InvalidRequestSeqError, WouldBlockError
from wal.frame import FrameView, RunName
from wal.pchannel.idempotency.keys import Key, ProducerInfo, ProducerKey, keyed_events
from wal.pchannel.idempotency.state import Kept, KeptKey, KeptProducer, Scope, decode_state, encode_state

__all__ = ["FORGOTTEN", "Claim", "IdempotencyTable", "Kept"]

RESULTS_KEPT: Final = 16
"""Results remembered of each producer."""
_LOGICAL_BITS: Final = 18
_EVICTED_A_CALL: Final = 64
"""Aged keys removed at a time, so that the first append after a long pause does not pay for all of them."""


FORGOTTEN: Final = Kept(-1, -1, 0)
"""The answer for a producer's duplicate whose result is no longer kept."""


class Claim(msgspec.Struct, eq=False):
    """A key that is pending: its operation was taken and is not settled yet. `sharers` are its holder's to use.

    `barrier`: what the operation has to wait for, so that it does not overtake an earlier one of its producer. `doomed`: an
    earlier sequence of its producer failed, so this one must fail, too.
    """

    scope: Scope
    key: Key
    barrier: int
    sharers: list[Any]
    doomed: bool = False


class IdempotencyTable:
    """The keys of one pchannel. `keyed_since_checkpoint` counts the keyed events applied since it was last set to 0."""

    def __init__(self, *, window_count: int, window_s: float, producers_max: int) -> None:
        self.keyed_since_checkpoint: int = 0
        self._window_count = window_count
        self._window_ms = window_s * 1000
        self._producers_max = producers_max
        self._scopes: dict[tuple[RunName, ...], Scope] = {}
        self._of_run: dict[RunName, set[Scope]] = {}
        self._pending: dict[tuple[Scope, str], Claim] = {}  # plain keys; those of producers stand with them
        self._window: dict[tuple[Scope, str], KeptKey] = {}
        self._order: deque[KeptKey] = (
            deque()
        )  # what is in the window, and what has lost its place there to a later append
        self._producers: dict[tuple[Scope, str], _Producer] = {}
        self._forgetting: set[str] = set()
        # By scope and producer the sequences that failed and were not appended again, ascending. In its own table, since a producer of
        # which nothing is durable is not remembered; bounded like the producers, the oldest goes first.
        self._gaps: dict[tuple[tuple[RunName, ...], str], list[int]] = {}

    # -- an operation's turn

    def find(self, names: tuple[RunName, ...], key: Key, *, now_ms: int) -> Kept | Claim | None:
        """What is known of the key in this scope: its first result (FORGOTTEN when that is no longer kept), its pending claim, nothing.

        InvalidRequestSeqError for a sequence below a pending one, WouldBlockError while the producer is being forgotten.
        """
        if isinstance(key, ProducerKey):
            return self._find_sequence(names, key)
        scope = self._scopes.get(names)
        if scope is None:
            return None
        claim = self._pending.get((scope, key))
        if claim is not None:
            return claim
        entry = self._window.get((scope, key))
        if entry is None or now_ms - (entry.kept.tick >> _LOGICAL_BITS) > self._window_ms:
            return None
        return entry.kept

    def claim(self, names: tuple[RunName, ...], key: Key, *, barrier: int = 0) -> Claim:
        """Takes a key of which `find` knew nothing, until `durable` or `failed`. WouldBlockError past `producers_max`."""
        if not isinstance(key, ProducerKey):
            scope = self._use(names)
            claim = self._pending[scope, key] = Claim(scope, key, barrier, [])
            return claim
        scope = self._use(names)
        try:
            producer = self._producers.get((scope, key.producer))
            if producer is None:
                if len(self._producers) >= self._producers_max:
                    raise WouldBlockError(
                        f"producer {key.producer!r} would be one more than producers_max={self._producers_max} on its pchannel: see "
                        "log.producers() and make room with log.forget_producer(name), or raise the setting"
                    )
                producer = self._producer(scope, key.producer)
        finally:
            self._release(scope)
        newest = producer.newest
        claim = Claim(producer.scope, key, barrier if newest is None else max(barrier, newest.barrier), [])
        producer.pending[key.sequence] = claim
        gaps = self._gaps.get((names, key.producer))
        if gaps is not None and gaps[0] == key.sequence:
            del gaps[0]
            if not gaps:
                del self._gaps[names, key.producer]
        return claim

    # -- what became of it

    def durable(
        self, claim: Claim, *, position: int, index: int, tick: int, txn_id: int = 0, keepalive_ms: int = 0
    ) -> None:
        """The claimed key's event is in the log: from now on it is remembered."""
        kept = Kept(position, index, tick, txn_id, keepalive_ms)
        scope, key = claim.scope, claim.key
        self.keyed_since_checkpoint += 1
        if isinstance(key, ProducerKey):
            if not scope.live:
                return
            producer = self._producers.get((scope, key.producer)) or self._producer(scope, key.producer)
            producer.pending.pop(key.sequence, None)
            producer.keep(key.sequence, kept)
        else:
            if scope.live:
                self._remember(scope, key, kept)
            if self._pending.pop((scope, key), None) is not None:
                self._release(scope)

    def failed(self, claim: Claim, *, final: bool = False) -> list[Claim]:
        """The claimed key's event was not written: it is unknown again. Answers the claims that have to fail with it, ascending.

        The sequences of a producer are gaps then, until each is claimed again, in order: later ones are refused. `final`: nothing can be
        appended to this log any more, which is told to those instead.
        """
        scope, key = claim.scope, claim.key
        if not isinstance(key, ProducerKey):
            if self._pending.pop((scope, key), None) is not None:
                self._release(scope)
            return []
        producer = self._producers.get((scope, key.producer))
        if producer is None or producer.pending.get(key.sequence) is not claim:
            return []
        later = [pending for sequence, pending in producer.pending.items() if sequence > key.sequence]
        del producer.pending[key.sequence]
        gaps = {key.sequence, *self._gaps.get((scope.names, key.producer), ())}
        for doomed in later:
            doomed.doomed = True
            sequence = cast("ProducerKey", doomed.key).sequence
            del producer.pending[sequence]
            gaps.add(sequence)
        if not final:
            self._gaps[scope.names, key.producer] = sorted(gaps)
            if len(self._gaps) > self._producers_max:
                del self._gaps[next(iter(self._gaps))]
        if producer.last < 0 and not producer.pending:
            self._remove_producer(producer)
        return later

    def drop(self, name: RunName) -> None:
        """The vchannel ended: every scope that contains it is forgotten. What is pending there will not be remembered."""
        self._gaps = {place: gaps for place, gaps in self._gaps.items() if name not in place[0]}
        scopes = self._of_run.pop(name, None)
        if not scopes:
            return
        for scope in scopes:
            scope.live = False
            self._unlink(scope)
        for producer in [producer for producer in self._producers.values() if not producer.scope.live]:
            del self._producers[producer.scope, producer.name]

    # -- producers

    def forget_gaps(self, producer: str) -> bool:
        """Forgets which sequences of a producer failed, so that it may go on without them; False when none had."""
        places = [place for place in self._gaps if place[1] == producer]
        for place in places:
            del self._gaps[place]
        return bool(places)

    def producers(self) -> list[ProducerInfo]:
        """Those of which something is durable, by name and vchannels."""
        infos = [
            ProducerInfo(producer.name, tuple(name for name, _ in producer.scope.names), producer.last)
            for producer in self._producers.values()
            if producer.last >= 0
        ]
        return sorted(infos, key=lambda info: (info.name, info.vchannels))

    def scope_of(self, producer: str) -> tuple[RunName, ...] | None:
        """A scope on which this producer is known, None when there is none."""
        return next((scope.names for scope, name in self._producers if name == producer), None)

    def forget(self, producer: str) -> None:
        """Begins to forget a producer: its keys are refused until `forgotten` or `remembered`.

        InvalidArgumentError when nothing is known of it, WouldBlockError while appends of it are pending.
        """
        found = [entry for (_, name), entry in self._producers.items() if name == producer]
        if not found:
            raise InvalidArgumentError(f"producer {producer!r} is not known: log.producers() lists those that are")
        if producer in self._forgetting:
            raise WouldBlockError(f"producer {producer!r} is being forgotten already: wait for that call")
        if pending := sum(len(entry.pending) for entry in found):
            raise WouldBlockError(
                f"producer {producer!r} has {pending} appends in flight: wait for them, then forget it"
            )
        self._forgetting.add(producer)

    def forgotten(self, producer: str) -> None:
        """It is durable that the producer is forgotten."""
        self._forgetting.discard(producer)
        self.keyed_since_checkpoint += 1
        self._forget_now(producer)

    def remembered(self, producer: str) -> None:
        """The producer could not be forgotten: nothing was written."""
        self._forgetting.discard(producer)

    # -- recovery

    def replay(self, position: int, view: FrameView, *, live: Callable[[RunName], bool] | None = None) -> int:
        """Applies the keyed events of one durable frame, those behind what was restored, in their order; answers how many there are.

        Scopes with a vchannel that is not `live` any more are left out.
        """
        events, forgotten = keyed_events(view)
        first_tick = view.header.first_tick
        for name in forgotten:  # no event of that producer shares a frame with it, see `forget`
            self._forget_now(name)
        for event in events:
            names, text, sequence = event.names, event.text, event.sequence
            if live is not None and not (live(names[0]) if len(names) == 1 else all(map(live, names))):
                continue
            kept = Kept(position, event.index, first_tick + event.index, event.txn_id, event.keepalive_ms)
            scope = self._scopes.get(names)
            if scope is None:
                scope = self._use(names)
                scope.uses -= 1  # what is remembered of it below is its use
            if sequence is None:
                self._remember(scope, text, kept)
            else:
                producer = self._producers.get((scope, text)) or self._producer(scope, text)
                producer.keep(sequence, kept)
            if not scope.uses:
                self._unlink(scope)
        count = len(events) + len(forgotten)
        self.keyed_since_checkpoint += count
        return count

    def snapshot(self) -> Iterator[bytes]:
        """The state as of this call, in pieces that are cheap to make one by one, whatever happens meanwhile; joined they are the blob.

        Only what is durable is in it.
        """
        keys = list(self._order)
        producers = [
            KeptProducer(producer.scope, producer.name, producer.last, producer.sequences, producer.results)
            for producer in self._producers.values()
            if producer.last >= 0
        ]
        return encode_state(keys, producers)

    def restore(self, blob: bytes, *, live: Callable[[RunName], bool] | None = None) -> None:
        """Sets an empty table to the state of a snapshot, without the scopes that are not `live` any more.

        CorruptionError for what is no snapshot, FormatError for one of a newer version.
        """

        def scope_of(names: tuple[RunName, ...]) -> Scope:
            scope = self._use(names) if live is None or all(map(live, names)) else Scope(names, 1, live=False)
            scopes.append(scope)
            return scope

        scopes: list[Scope] = []
        keys, producers = decode_state(blob, scope_of)
        keys = [entry for entry in keys if entry.scope.live]
        keys = keys[-self._window_count :] if self._window_count else []
        self._order.extend(keys)
        self._window.update(zip(map(_PLACE, keys), keys, strict=True))
        for entry in keys:
            entry.scope.uses += 1
        for row in producers:
            if row.scope.live:
                producer = self._producer(row.scope, row.name)
                producer.last, producer.sequences, producer.results = row.last, row.sequences, row.results
        for scope in scopes:
            self._release(scope)

    # -- privates

    def _find_sequence(self, names: tuple[RunName, ...], key: ProducerKey) -> Kept | Claim | None:
        if key.producer in self._forgetting:
            raise WouldBlockError(
                f"producer {key.producer!r} is being forgotten: append when forget_producer has returned"
            )
        scope = self._scopes.get(names)
        producer = None if scope is None else self._producers.get((scope, key.producer))
        sequence, gaps = key.sequence, self._gaps.get((names, key.producer))
        if gaps is not None and sequence > (gap := gaps[0]):
            raise InvalidRequestSeqError(
                f"sequence {sequence} of producer {key.producer!r} comes after its sequence {gap}, which failed and was not written: "
                f"append sequence {gap} again first, since it would be taken for a duplicate once a later one is written, "
                "or give it up with forget_producer()"
            )
        if producer is None:
            return None
        if sequence <= producer.last:
            if sequence in producer.sequences:
                return producer.results[producer.sequences.index(sequence)]
            return FORGOTTEN
        claim = producer.pending.get(sequence)
        if claim is None and (newest := producer.newest) is not None:
            pending = cast("ProducerKey", newest.key).sequence
            if sequence < pending:
                raise InvalidRequestSeqError(
                    f"sequence {sequence} of producer {key.producer!r} comes behind its sequence {pending}, which is in flight: append "
                    "a producer's sequences in ascending order"
                )
        return claim

    def _remember(self, scope: Scope, key: str, kept: Kept) -> None:
        """Gives the key the newest place in the window, and ends what is over its bounds."""
        if not self._window_count:
            return
        entry = KeptKey(scope, key, kept)
        scope.uses += 1
        self._window[scope, key] = entry
        self._order.append(entry)
        while len(self._order) > self._window_count:
            self._leave()
        oldest = (kept.tick >> _LOGICAL_BITS) - self._window_ms
        for _ in range(_EVICTED_A_CALL):
            if self._order[0].kept.tick >> _LOGICAL_BITS >= oldest:
                break
            self._leave()

    def _leave(self) -> None:
        entry = self._order.popleft()
        place = entry.scope, entry.key
        if self._window.get(place) is entry:
            del self._window[place]
        self._release(entry.scope)

    def _use(self, names: tuple[RunName, ...]) -> Scope:
        """The scope of these vchannels, with one use more."""
        scope = self._scopes.get(names)
        if scope is None:
            scope = self._scopes[names] = Scope(names)
            for name in names:
                self._of_run.setdefault(name, set()).add(scope)
        scope.uses += 1
        return scope

    def _release(self, scope: Scope) -> None:
        """A use less; a scope in which nothing is known goes."""
        scope.uses -= 1
        if not scope.uses and scope.live:
            self._unlink(scope)

    def _unlink(self, scope: Scope) -> None:
        del self._scopes[scope.names]
        for name in scope.names:
            scopes = self._of_run.get(name)
            if scopes is not None:
                scopes.discard(scope)
                if not scopes:
                    del self._of_run[name]

    def _producer(self, scope: Scope, name: str) -> _Producer:
        scope.uses += 1
        producer = self._producers[scope, name] = _Producer(scope, name)
        return producer

    def _remove_producer(self, producer: _Producer) -> None:
        del self._producers[producer.scope, producer.name]
        self._release(producer.scope)

    def _forget_now(self, name: str) -> None:
        for producer in [producer for producer in self._producers.values() if producer.name == name]:
            self._remove_producer(producer)
        self.forget_gaps(name)


class _Producer:
    """A producer in a scope: `last` is -1 before anything of it is durable, `pending` are its claims by sequence, ascending."""

    __slots__ = ("last", "name", "pending", "results", "scope", "sequences")

    def __init__(self, scope: Scope, name: str) -> None:
        self.scope = scope
        self.name = name
        self.last = -1
        self.sequences: tuple[int, ...] = ()
        self.results: tuple[Kept, ...] = ()
        # A dict, so that nothing is searched for: one producer may have as much in flight as there is room for.
        self.pending: dict[int, Claim] = {}

    @property
    def newest(self) -> Claim | None:
        """The last of `pending`."""
        return self.pending[next(reversed(self.pending))] if self.pending else None

    def keep(self, sequence: int, kept: Kept) -> None:
        """The sequence is durable. Tuples, so that a snapshot can hold on to them."""
        if sequence <= self.last:
            return
        self.last = sequence
        self.sequences = (*self.sequences[1 - RESULTS_KEPT :], sequence)
        self.results = (*self.results[1 - RESULTS_KEPT :], kept)


_PLACE: Final[Callable[[KeptKey], tuple[Scope, str]]] = attrgetter("scope", "key")
