"""Producers: the sequences of each producer that a pchannel has accepted. Pure.

For each producer and scope it remembers the last durable sequence for good, and the results of the last RESULTS_KEPT. The number of
producers is bounded by `producers_max`; a producer whose first append is pending counts.

A producer's sequences are written in ascending order or not at all. A sequence below a pending one is refused. If a pending sequence waits
for a barrier, every later sequence waits for that barrier, and when a sequence fails, the later pending ones fail too. Failed sequences are
gaps until each is appended again, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import lt
from typing import Final, cast

from wal.errors import InvalidArgumentError, InvalidRequestSeqError, WouldBlockError
from wal.frame import RunName
from wal.write.idempotency.keys import ProducerInfo, ProducerKey
from wal.write.idempotency.scopes import Claim, Kept, Scope, Scopes
from wal.write.idempotency.state import KeptProducer

RESULTS_KEPT: Final = 16
"""The number of results that are remembered of each producer."""
FORGOTTEN: Final = Kept(-1, -1, 0)
"""The answer for a producer's duplicate whose result is no longer kept."""


class Producers:
    """The producers of one pchannel."""

    def __init__(self, scopes: Scopes, *, producers_max: int) -> None:
        self._scopes = scopes
        self._producers_max = producers_max
        self._producers: dict[tuple[Scope, str], _Producer] = {}
        self._forgetting: set[str] = set()
        # The sequences that failed and were not appended again, ascending. They have a table of their own, since a producer without a
        # durable sequence is not remembered. It is bounded like the producers; the oldest entry goes first.
        self._gaps: dict[tuple[tuple[RunName, ...], str], list[int]] = {}

    # -- an operation's turn, and its outcome

    def find(self, names: tuple[RunName, ...], key: ProducerKey) -> Kept | Claim | None:
        """Returns the first result of the key (FORGOTTEN when that is no longer kept), its pending claim, or None.

        Raises InvalidRequestSeqError if the sequence is below a pending one or after a gap; WouldBlockError if the producer is being
        forgotten.
        """
        if key.producer in self._forgetting:
            raise WouldBlockError(f"producer {key.producer!r} is being forgotten: append when forget_producer has returned")
        scope = self._scopes.get(names)
        producer = None if scope is None else self._producers.get((scope, key.producer))
        sequence, gaps = key.sequence, self._gaps.get((names, key.producer)) if self._gaps else None
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
                    f"sequence {sequence} of producer {key.producer!r} was appended after its sequence {pending}, which is in flight: "
                    "append a producer's sequences in ascending order"
                )
        return claim

    def claim(self, names: tuple[RunName, ...], key: ProducerKey, *, barrier: int) -> Claim:
        """Takes a key for which `find` returned None. Raises WouldBlockError past `producers_max`."""
        scope = self._scopes.use(names)
        try:
            producer = self._producers.get((scope, key.producer))
            if producer is None:
                if len(self._producers) >= self._producers_max:
                    raise WouldBlockError(
                        f"producer {key.producer!r} would be one more than producers_max={self._producers_max} on its pchannel: see "
                        "log.producers() and make room with log.forget_producer(name), or raise the setting"
                    )
                producer = self._add(scope, key.producer)
        finally:
            self._scopes.release(scope)
        newest = producer.newest
        claim = Claim(producer.scope, key, barrier if newest is None else max(barrier, newest.barrier))
        producer.pending[key.sequence] = claim
        gaps = self._gaps.get((names, key.producer)) if self._gaps else None
        if gaps is not None and gaps[0] == key.sequence:
            del gaps[0]
            if not gaps:
                del self._gaps[names, key.producer]
        return claim

    def claim_run(self, names: tuple[RunName, ...], keys: Sequence[ProducerKey]) -> list[Claim] | None:
        """Claims keys that need no barrier. Returns None, and claims none, unless a known producer continues with them, ascending."""
        scope, name = self._scopes.get(names), keys[0].producer
        producer = None if scope is None else self._producers.get((scope, name))
        if producer is None or name in self._forgetting or (names, name) in self._gaps:
            return None
        newest = producer.newest
        if newest is not None and newest.barrier:
            return None
        sequences = [key.sequence for key in keys if key.producer == name]
        last = producer.last if newest is None else cast("ProducerKey", newest.key).sequence
        if len(sequences) != len(keys) or last >= sequences[0] or not all(map(lt, sequences, sequences[1:])):
            return None
        claims = list(map(Claim, repeat(producer.scope), keys, repeat(0)))
        producer.pending.update(zip(sequences, claims, strict=True))
        return claims

    def durable_run(self, scope: Scope, claims: list[Claim], position: int, index: int, tick: int) -> None:
        """Remembers claimed sequences that are in the log. The first one has this index and tick, and the others follow it."""
        keys = cast("list[ProducerKey]", [claim.key for claim in claims])
        producer = self._producers.get((scope, keys[0].producer))
        sequences = [key.sequence for key in keys if producer is not None and key.producer == producer.name]
        if producer is None or len(sequences) != len(keys) or sequences[0] <= producer.last:
            for offset, key in enumerate(keys):
                result = Kept(position, index + offset, tick + offset)
                self.durable(scope, key.producer, key.sequence, result)
            return
        for sequence in sequences:
            producer.pending.pop(sequence, None)
        first = max(len(keys) - RESULTS_KEPT, 0)
        results = [Kept(position, index + offset, tick + offset) for offset in range(first, len(keys))]
        producer.keep(sequences[first:], results)

    def durable(self, scope: Scope, name: str, sequence: int, kept: Kept) -> None:
        """Remembers a sequence that is in the log, with its result."""
        producer = self._producers.get((scope, name)) or self._add(scope, name)
        producer.pending.pop(sequence, None)
        if sequence > producer.last:
            producer.keep([sequence], [kept])

    def failed(self, claim: Claim, *, final: bool) -> list[Claim]:
        """Forgets a claim that was not written, and dooms the later ones of its producer; returns those, ascending.

        Their sequences are gaps from now on. With `final` nothing is written any more, so their order no longer matters.
        """
        scope, key = claim.scope, cast("ProducerKey", claim.key)
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
            self._remove(producer)
        return later

    def drop(self, name: RunName) -> None:
        """Forgets the producers in the scopes with this vchannel, which are not live any more."""
        self._gaps = {key: gaps for key, gaps in self._gaps.items() if name not in key[0]}
        self._producers = {key: producer for key, producer in self._producers.items() if producer.scope.live}

    # -- calls of the user

    def listed(self) -> list[ProducerInfo]:
        """Returns the producers with a durable sequence, by name and vchannels."""
        infos = [
            ProducerInfo(producer.name, tuple(name for name, _ in producer.scope.names), producer.last)
            for producer in self._producers.values()
            if producer.last >= 0
        ]
        return sorted(infos, key=lambda info: (info.name, info.vchannels))

    def scope_of(self, producer: str) -> tuple[RunName, ...] | None:
        """Returns the vchannels of a scope in which this producer is known, None without one."""
        return next((scope.names for scope, name in self._producers if name == producer), None)

    def forget_gaps(self, producer: str) -> bool:
        """Forgets which sequences of a producer failed, so that it may continue without them; returns whether any had."""
        gaps = [key for key in self._gaps if key[1] == producer]
        for key in gaps:
            del self._gaps[key]
        return bool(gaps)

    def begin_to_forget(self, producer: str) -> None:
        """Refuses the keys of a producer until `forget` or `remember` is called.

        Raises InvalidArgumentError if it is unknown, WouldBlockError while appends of it are pending.
        """
        entries = [entry for (_, name), entry in self._producers.items() if name == producer]
        if not entries:
            raise InvalidArgumentError(f"producer {producer!r} is unknown: log.producers() lists the producers")
        if producer in self._forgetting:
            raise WouldBlockError(f"producer {producer!r} is being forgotten already: wait for that call")
        if pending := sum(len(entry.pending) for entry in entries):
            raise WouldBlockError(f"producer {producer!r} has {pending} appends in flight: wait for them, then forget it")
        self._forgetting.add(producer)

    def forget(self, producer: str) -> None:
        """Forgets a producer whose forgetting is durable."""
        self._forgetting.discard(producer)
        for entry in [entry for entry in self._producers.values() if entry.name == producer]:
            self._remove(entry)
        self.forget_gaps(producer)

    def remember(self, producer: str) -> None:
        """Accepts the keys of a producer again that could not be forgotten: nothing was written."""
        self._forgetting.discard(producer)

    # -- checkpoints

    def rows(self) -> list[KeptProducer]:
        """Returns the durable state of producers, as a checkpoint keeps it."""
        return [
            KeptProducer(producer.scope, producer.name, producer.last, producer.sequences, producer.results)
            for producer in self._producers.values()
            if producer.last >= 0
        ]

    def restore(self, row: KeptProducer) -> None:
        """Adds a producer from a checkpoint."""
        producer = self._add(row.scope, row.name)
        producer.last, producer.sequences, producer.results = row.last, row.sequences, row.results

    def _add(self, scope: Scope, name: str) -> _Producer:
        scope.uses += 1
        producer = self._producers[scope, name] = _Producer(scope, name)
        return producer

    def _remove(self, producer: _Producer) -> None:
        del self._producers[producer.scope, producer.name]
        self._scopes.release(producer.scope)


class _Producer:
    """A producer in a scope. `last` is -1 until a sequence of it is durable; `pending` are its claims by sequence, ascending."""

    __slots__ = ("last", "name", "pending", "results", "scope", "sequences")

    def __init__(self, scope: Scope, name: str) -> None:
        self.scope = scope
        self.name = name
        self.last = -1
        self.sequences: tuple[int, ...] = ()
        self.results: tuple[Kept, ...] = ()
        # A dict, so that lookups need no search: one producer may have as much in flight as there is room for.
        self.pending: dict[int, Claim] = {}

    @property
    def newest(self) -> Claim | None:
        """The last claim in `pending`."""
        return self.pending[next(reversed(self.pending))] if self.pending else None

    def keep(self, sequences: list[int], results: list[Kept]) -> None:
        """Remembers durable sequences above the last one, ascending. Results are kept in tuples, which a snapshot can share."""
        self.last = sequences[-1]
        self.sequences = (*self.sequences, *sequences)[-RESULTS_KEPT:]
        self.results = (*self.results, *results)[-RESULTS_KEPT:]
