"""The idempotency keys that are remembered, as rows and as bytes in a recovery checkpoint. Pure.

Owns the rows that the table keeps and the form of their pieces (see `pieces`):

    1 keys      [1, scopes, scope of each, key of each, position, index, tick, txn_id, keepalive_ms of each]
    2 producers [2, scopes, scope of each, name of each, last sequence of each, results of each, then of all results one after the
                other: sequence, position, index, tick, txn_id, keepalive_ms]

The pieces hold columns, because those are several times faster to read than rows. `scopes` are the ones that no earlier piece has named,
each a list of [name, incarnation]; scopes are numbered in the order they appear. Pieces are cut so that encoding one takes well below a
millisecond.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final

import msgspec

from wal.errors import CorruptionError
from wal.frame import RunName
from wal.message import Natural, PackedPosition, packed, unpacked
from wal.pchannel.idempotency.scopes import Scope
from wal.pchannel.pieces import PieceKind, encode_header, encode_piece, split_pieces

__all__ = ["Kept", "KeptKey", "KeptProducer", "decode_state", "encode_state"]

PIECE_ROWS: Final = 512
"""A piece is cut at this many keys, or results of producers, …"""
PIECE_NAMES: Final = 1024
"""… or earlier, when the scopes that it has to name have this many vchannels."""


class Kept(msgspec.Struct, frozen=True, gc=False):
    """The first result of a key, complete enough to return it again. `txn_id` is 0 for a plain message."""

    position: int
    index: int
    tick: int
    txn_id: int = 0
    keepalive_ms: int = 0


class KeptKey(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A plain key in the window."""

    scope: Scope
    key: str
    kept: Kept


class KeptProducer(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A producer: its last durable sequence, and its newest sequences with their results, ascending."""

    scope: Scope
    name: str
    last: int
    sequences: tuple[int, ...]
    results: tuple[Kept, ...]


def encode_state(keys: Sequence[KeptKey], producers: Sequence[KeptProducer]) -> Iterator[bytes]:
    """Yields the pieces, without the rows of scopes that are not live. The rows must not change during the iteration."""
    yield encode_header()
    numbers: dict[Scope, int] = {}
    for group, scopes in _groups(keys, numbers, lambda key: 1):
        yield encode_piece(
            PieceKind.KEYS,
            [
                scopes,
                [numbers[key.scope] for key in group],
                [key.key for key in group],
                *_columns([key.kept for key in group]),
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
    blob: bytes, scope_of: Callable[[tuple[RunName, ...]], Scope]
) -> tuple[list[KeptKey], list[KeptProducer]]:
    """Returns the rows of a blob, in the order they were given; `scope_of` returns the scope of these vchannels.

    Raises CorruptionError for bytes that are no such blob, FormatError for a blob of a newer version.
    """
    try:
        return _decode(blob, scope_of)
    except (struct.error, msgspec.MsgspecError, RecursionError, ValueError, LookupError, TypeError) as error:
        raise CorruptionError(
            f"the idempotency keys of a checkpoint are damaged: {error}", expected="pieces of MessagePack"
        ) from error


def _decode(blob: bytes, scope_of: Callable[[tuple[RunName, ...]], Scope]) -> tuple[list[KeptKey], list[KeptProducer]]:
    keys: list[KeptKey] = []
    producers: list[KeptProducer] = []
    scopes: list[Scope] = []
    for kind, data in split_pieces(blob):
        if kind not in (PieceKind.KEYS, PieceKind.PRODUCERS):
            continue
        piece = _keys.decode(data) if kind is PieceKind.KEYS else _producers.decode(data)
        scopes += [scope_of(tuple(names)) for names in piece.scopes]
        of_each = [scopes[number] for number in piece.of_each]
        if isinstance(piece, _Keys):
            _same_length(of_each, piece.names, *piece.columns())
            keys += map(KeptKey, of_each, piece.names, _kept(piece))
            continue
        _same_length(piece.sequences, *piece.columns())
        if sum(piece.counts) != len(piece.sequences):
            raise ValueError(f"producers have {sum(piece.counts)} results, but there are {len(piece.sequences)}")
        one_by_one, results = iter(piece.sequences), _kept(piece)
        producers += [
            KeptProducer(scope, name, last, tuple(islice(one_by_one, count)), tuple(islice(results, count)))
            for scope, name, last, count in zip(of_each, piece.names, piece.lasts, piece.counts, strict=True)
        ]
    return keys, producers


def _groups(
    rows: Sequence[Any], numbers: dict[Scope, int], weigh: Callable[[Any], int]
) -> Iterator[tuple[list[Any], list[list[RunName]]]]:
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

    def columns(self) -> tuple[list[Any], ...]:
        return self.positions, self.indices, self.ticks, self.txn_ids, self.keepalives_ms


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

    def columns(self) -> tuple[list[Any], ...]:
        return self.positions, self.indices, self.ticks, self.txn_ids, self.keepalives_ms


def _same_length(*columns: Sequence[Any]) -> None:
    if len(set(map(len, columns))) != 1:
        raise ValueError(f"the columns of a piece have {', '.join(map(str, map(len, columns)))} entries")


def _kept(piece: _Keys | _Producers) -> Iterator[Kept]:
    positions, *others = piece.columns()
    return map(Kept, map(unpacked, positions), *others)


def _columns(kept: list[Kept]) -> list[list[Any]]:
    positions, *others = map(list, zip(*map(msgspec.structs.astuple, kept), strict=True)) if kept else [[]] * 5
    return [list(map(packed, positions)), *others]


_keys: Final = msgspec.msgpack.Decoder(_Keys)
_producers: Final = msgspec.msgpack.Decoder(_Producers)
