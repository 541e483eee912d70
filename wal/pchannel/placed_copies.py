"""PlacedCopies: the results of a broadcast's copies in one frame. Pure.

Owns the few numbers that a result for each of them follows from: they lie behind each other, one index and one tick apart. The results
are made when one is looked at; nobody may ever do so, and there may be thousands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Final, overload

from wal.errors import WALError
from wal.message import AppendResult, MessageID, Origin

__all__ = ["MixedCopies", "PlacedCopies"]


class PlacedCopies(Sequence[AppendResult]):
    """`count` results, of the events from `first` (an index of the frame, with the tick `tick`) on; equal to any sequence of the same."""

    __slots__ = ("_count", "_first", "_made", "_origin", "_tick")
    __hash__: Final = None  # type: ignore[assignment]
    all_in: Final = True
    """See `CopyOutcomes`."""

    def __init__(self, origin: Origin, *, first: int, tick: int, count: int) -> None:
        self._origin = origin
        self._first = first
        self._tick = tick
        self._count = count
        self._made: list[AppendResult] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> AppendResult: ...

    @overload
    def __getitem__(self, at: slice) -> list[AppendResult]: ...

    def __getitem__(self, at: int | slice) -> AppendResult | list[AppendResult]:
        return self._results()[at]

    def __iter__(self) -> Iterator[AppendResult]:
        return iter(self._results())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return self._results() == list(other)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._results()})"

    def _results(self) -> list[AppendResult]:
        made = self._made
        if made is None:
            origin = self._origin
            pchannel, incarnation, position, form = origin.pchannel, origin.incarnation, origin.position, origin.form
            indices = range(self._first, self._first + self._count)
            ids = list(map(MessageID, repeat(pchannel), repeat(incarnation), repeat(position), indices, repeat(form)))
            made = self._made = list(map(AppendResult, ids, range(self._tick, self._tick + self._count), ids))
        return made


class MixedCopies(list[AppendResult | WALError]):
    """The outcomes of copies that are not all in one frame: results and errors."""

    __slots__ = ()
    all_in: Final = False
    """See `CopyOutcomes`."""
