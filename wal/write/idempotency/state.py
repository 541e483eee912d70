"""The remembered idempotency keys, as rows and as bytes in a recovery checkpoint. Pure.

Owns the rows that the table keeps and the form of their pieces (see `pieces`):

    1 keys      [1, scopes, scope of each, key of each, position, index, tick, txn_id, keepalive_ms of each]: read, and not written any more
    2 producers [2, scopes, scope of each, name of each, last sequence of each, results of each, then of all results one after the
                other: sequence, position, index, tick, txn_id, keepalive_ms]
    4 key runs  [4, scopes, of each run: scope, number of keys, position, index, tick, txn_id, keepalive_ms; the keys of all runs one
                after the other; the tick of the newest key that was forgotten before its age, in a first piece without runs, if there
                is one (0.1.0 ignores it)]

The pieces have columns, because those are several times faster to read than rows. `scopes` are the ones that no earlier piece has named,
each a list of [name, incarnation]; scopes are numbered in the order they appear. A run is a `KeyRun`: keys of one scope whose indices and
ticks follow each other. Pieces are cut so that encoding one takes well below a millisecond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
from typing import Any, Final

import msgspec

from wal.frame import RunName
from wal.message import Natural, PackedPosition, packed, unpacked
from wal.storage.pieces import PieceKind, encode_header, encode_piece
from wal.write.idempotency.scopes import RUN_KEYS, Kept, KeyRun, Scope

PIECE_ROWS: Final = 512
"""A piece is cut at this many keys, or results of producers, …"""
PIECE_NAMES: Final = 1024
"""… or earlier, when the scopes that it has to name have this many vchannels."""


class KeptProducer(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A producer: its last durable sequence, and its newest sequences with their results, ascending."""

    scope: Scope
    name: str
    last: int
    sequences: tuple[int, ...]
    results: tuple[Kept, ...]


def encode_state(keys: Sequence[KeyRun], producers: Sequence[KeptProducer], *, cut: int = 0) -> Iterator[bytes]:
    """Yields the pieces, without the rows of scopes that are not live. The rows must not change during the iteration.

    `cut` is the tick of the newest key that was forgotten before its age, 0 for none.
    """
    yield encode_header()
    if cut:
        yield encode_piece(PieceKind.KEY_RUNS, [*([] for _ in range(9)), cut])
    numbers: dict[Scope, int] = {}
    for runs, scopes in _groups(_short(keys), numbers, lambda run: len(run.keys)):
        yield encode_piece(
            PieceKind.KEY_RUNS,
            [
                scopes,
                [numbers[run.scope] for run in runs],
                [len(run.keys) for run in runs],
                [packed(run.position) for run in runs],
                [run.index for run in runs],
                [run.tick for run in runs],
                [run.txn_id for run in runs],
                [run.keepalive_ms for run in runs],
                list(chain.from_iterable([run.keys for run in runs])),
            ],
        )
    for group, scopes in _groups(producers, numbers, lambda producer: len(producer.results)):
        yield encode_piece(
            PieceKind.PRODUCERS,
            [
                scopes,
                [numbers[producer.scope] for producer in group],
                [producer.name for producer in group],
                [producer.last for producer in group],
                [len(producer.results) for producer in group],
                list(chain.from_iterable(producer.sequences for producer in group)),
                *_columns(list(chain.from_iterable(producer.results for producer in group))),
            ],
        )


def decode_state(
    pieces: Iterable[_Keys | _KeyRuns | _Producers], scope_of: Callable[[tuple[RunName, ...]], Scope]
) -> tuple[list[KeyRun], list[KeptProducer], int]:
    """Returns the rows of decoded pieces, in the order they were given, and their `cut`; `scope_of` returns the scope of these vchannels.

    Raises ValueError or LookupError for pieces that do not fit together.
    """
    keys: list[KeyRun] = []
    producers: list[KeptProducer] = []
    scopes: list[Scope] = []
    cut = 0
    for piece in pieces:
        scopes += [scope_of(tuple(names)) for names in piece.scopes]
        of_each = [scopes[number] for number in piece.of_each]
        if isinstance(piece, _KeyRuns):
            keys += _runs(piece, of_each, piece.counts)
            cut = max(cut, piece.cut)
            continue
        if isinstance(piece, _Keys):
            keys += _runs(piece, of_each, [1] * len(piece.names))
            continue
        _same_length(piece.sequences, *_results_of(piece))
        if sum(piece.counts) != len(piece.sequences):
            raise ValueError(f"producers have {sum(piece.counts)} results, but there are {len(piece.sequences)}")
        one_by_one, results = iter(piece.sequences), _kept(piece)
        producers += [
            KeptProducer(scope, name, last, tuple(islice(one_by_one, count)), tuple(islice(results, count)))
            for scope, name, last, count in zip(of_each, piece.names, piece.lasts, piece.counts, strict=True)
        ]
    for before, run in pairwise(keys):
        if run.tick < before.tick + len(before.keys):
            raise ValueError(f"the keys of tick {run.tick} come after those of tick {before.tick}")
    return keys, producers, cut


def _runs(piece: _Keys | _KeyRuns, of_each: list[Scope], counts: list[int]) -> Iterator[KeyRun]:
    """Returns the runs of a piece, each of at least one key."""
    positions, *others = _results_of(piece)
    _same_length(of_each, counts, positions, *others)
    if sum(counts) != len(piece.names) or not all(counts):
        raise ValueError(f"runs have {sum(counts)} keys, but there are {len(piece.names)}, or one has none")
    one_by_one = iter(piece.names)
    keys = (list(islice(one_by_one, count)) for count in counts)
    return map(KeyRun, of_each, keys, map(unpacked, positions), *others)


def _short(runs: Iterable[KeyRun]) -> Iterator[KeyRun]:
    """Yields the runs in parts of at most RUN_KEYS keys."""
    for run in runs:
        if len(run.keys) <= RUN_KEYS:
            yield run
        else:
            for start in range(0, len(run.keys), RUN_KEYS):
                yield run.part(start, start + RUN_KEYS)


def _groups(rows: Iterable[Any], numbers: dict[Scope, int], weigh: Callable[[Any], int]) -> Iterator[tuple[list[Any], list[list[RunName]]]]:
    """Yields the rows of each piece, and the scopes that it is the first to name; they get their numbers here."""
    group: list[Any] = []
    scopes: list[list[RunName]] = []
    weight = named = 0
    for row in rows:
        if not row.scope.live:
            continue
        group.append(row)
        weight += weigh(row)
        if row.scope not in numbers:
            numbers[row.scope] = len(numbers)
            scopes.append(list(row.scope.names))
            named += len(row.scope.names)
        if weight >= PIECE_ROWS or named >= PIECE_NAMES:
            yield group, scopes
            group, scopes, weight, named = [], [], 0, 0
    if group:
        yield group, scopes


class _Keys(msgspec.Struct, array_like=True, gc=False):
    kind: int
    scopes: list[list[tuple[str, Natural]]]
    of_each: list[Natural]
    names: list[str]
    positions: list[PackedPosition]
    indices: list[Natural]
    ticks: list[Natural]
    txn_ids: list[Natural]
    keepalives_ms: list[Natural]


class _KeyRuns(msgspec.Struct, array_like=True, gc=False):
    kind: int
    scopes: list[list[tuple[str, Natural]]]
    of_each: list[Natural]
    counts: list[Natural]
    positions: list[PackedPosition]
    indices: list[Natural]
    ticks: list[Natural]
    txn_ids: list[Natural]
    keepalives_ms: list[Natural]
    names: list[str]
    cut: Natural = 0


class _Producers(msgspec.Struct, array_like=True, gc=False):
    kind: int
    scopes: list[list[tuple[str, Natural]]]
    of_each: list[Natural]
    names: list[str]
    lasts: list[Natural]
    counts: list[Natural]
    sequences: list[Natural]
    positions: list[PackedPosition]
    indices: list[Natural]
    ticks: list[Natural]
    txn_ids: list[Natural]
    keepalives_ms: list[Natural]


def _results_of(piece: _Keys | _KeyRuns | _Producers) -> tuple[list[Any], ...]:
    """Returns the columns of the results of a piece."""
    return piece.positions, piece.indices, piece.ticks, piece.txn_ids, piece.keepalives_ms


def _same_length(*columns: Sequence[Any]) -> None:
    if len(set(map(len, columns))) != 1:
        raise ValueError(f"the columns of a piece have {', '.join(map(str, map(len, columns)))} entries")


def _kept(piece: _Producers) -> Iterator[Kept]:
    positions, *others = _results_of(piece)
    return map(Kept, map(unpacked, positions), *others)


def _columns(kept: list[Kept]) -> list[list[Any]]:
    positions, *others = map(list, zip(*map(msgspec.structs.astuple, kept), strict=True)) if kept else [[]] * 5
    return [list(map(packed, positions)), *others]


DECODERS: Final[dict[PieceKind, msgspec.msgpack.Decoder[_Keys | _KeyRuns | _Producers]]] = {
    PieceKind.KEYS: msgspec.msgpack.Decoder(_Keys),
    PieceKind.KEY_RUNS: msgspec.msgpack.Decoder(_KeyRuns),
    PieceKind.PRODUCERS: msgspec.msgpack.Decoder(_Producers),
}
