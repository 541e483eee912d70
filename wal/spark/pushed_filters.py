"""PushedFilters: the filters of a query that the source applies itself, so that a task reads less of the log. Pure.

Owns the translation of Spark's filters into a smaller read: names of vchannels, types of messages, and a range of ticks, from `time_tick`
and from `append_time`. Every other filter stays with Spark. The rows are the same as without pushing; only the cost differs.

Spark pushes filters into batch reads only, and only with `spark.sql.python.filterPushdown.enabled`. Without that setting it refuses every
read whose reader accepts filters, so a reader accepts them only in the process that Spark starts in order to push them. Spark 4.1 to 4.3
store the filtered plan with the loaded DataFrame, for all of its queries, so the option `pushFilters` is off by default.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, IsNotNull, LessThan, LessThanOrEqual

from wal.message import MessageType, type_properties
from wal.spark.options import ChannelChoice
from wal.spark.row_reader import COLUMNS, NULLABLE
from wal.timestamp.timestamp import LOGICAL_BITS, LOGICAL_MAX, TICK_MAX

_PUSHING_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"
"""The module that pushes filters, in a process that loads it for nothing else. Under another name the source accepts no filters."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FAR: Final = 1 << 80
"""Above every tick and time."""
_TYPES: Final = {kind.name: int(kind) for kind in MessageType if not type_properties(kind).system}
_UNSELECTABLE: Final = frozenset(kind.name for kind in MessageType) - _TYPES.keys()
"""The names of the types that a read cannot select."""


class PushedFilters(msgspec.Struct, frozen=True):
    """The rows that all pushed filters accept: of these vchannels and types (None: all), with ticks from `first_tick` to `last_tick`."""

    names: frozenset[str] | None = None
    types: frozenset[int] | None = None
    first_tick: int = 0
    last_tick: int = TICK_MAX

    @property
    def accept_nothing(self) -> bool:
        """True if no row can pass."""
        return self.first_tick > self.last_tick or self.names == frozenset() or self.types == frozenset()

    def choice(self, channels: ChannelChoice) -> ChannelChoice:
        """Returns the vchannels of this choice that pass."""
        return channels if self.names is None else ChannelChoice(names=tuple(sorted(channels.among(self.names))))

    def types_of(self, types: frozenset[int] | None) -> frozenset[int] | None:
        """Returns the types of these (None: all) that pass."""
        return types if self.types is None else self.types if types is None else self.types & types

    def __and__(self, other: PushedFilters) -> PushedFilters:
        names = other.names if self.names is None else self.names if other.names is None else self.names & other.names
        first, last = max(self.first_tick, other.first_tick), min(self.last_tick, other.last_tick)
        return PushedFilters(names, self.types_of(other.types), first, last)


def push(filters: Iterable[Filter]) -> tuple[PushedFilters, list[Filter]]:
    """Returns the filters that the source applies, and those that Spark still has to apply, which are some of the given ones."""
    pushed, rest = PushedFilters(), []
    for one in filters:
        accepted, is_exact = _pushed(one)
        pushed &= accepted
        if not is_exact:
            rest.append(one)
    return pushed, rest


def pushdown_is_on() -> bool:
    """Returns whether this process pushes filters for Spark, and so may create a reader that accepts them."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING_WORKER in sys.modules or (main is not None and main.name == _PUSHING_WORKER)


def _pushed(one: Filter) -> tuple[PushedFilters, bool]:
    """Returns this filter as filters of the source, and whether they apply it completely."""
    path: tuple[str, ...] = getattr(one, "attribute", ())
    column = path[0] if len(path) == 1 else ""
    if isinstance(one, IsNotNull):
        return PushedFilters(), column in COLUMNS and column != NULLABLE
    if column in ("vchannel", "message_type"):
        texts = _values(one)
        if column == "vchannel":
            return PushedFilters() if texts is None else PushedFilters(names=texts), texts is not None
        if texts is None or not texts.isdisjoint(_UNSELECTABLE):
            return PushedFilters(), False
        # System types pass every selection of types, so Spark checks the rows again.
        return PushedFilters(types=frozenset(_TYPES[text] for text in texts if text in _TYPES)), False
    if column in ("time_tick", "append_time"):
        bounds = _bounds(one)
        if bounds is None:
            return PushedFilters(), False
        first, last = bounds if column == "time_tick" else (_first_tick(bounds[0]), _last_tick(bounds[1]))
        return PushedFilters(first_tick=max(first, 0), last_tick=min(last, TICK_MAX)), not isinstance(one, In)
    return PushedFilters(), False


def _values(one: Filter) -> frozenset[str] | None:
    """Returns the texts that a filter accepts; None if it is not of this kind. A null accepts no row."""
    if isinstance(one, (EqualTo, EqualNullSafe)):
        values = [one.value]
    elif isinstance(one, In):
        values = list(one.value)
    else:
        return None
    return frozenset(value for value in values if isinstance(value, str))


def _bounds(one: Filter) -> tuple[int, int] | None:
    """Returns the smallest and the largest number that a filter accepts, None for other filters; for times in microseconds since 1970."""
    if isinstance(one, In):
        numbers = [_number(value) for value in one.value if value is not None]
    elif isinstance(one, (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)):
        numbers = [_number(one.value)]
    else:
        return None
    known = [number for number in numbers if number is not None]
    if not known or len(known) < len(numbers):
        return None
    if isinstance(one, (GreaterThan, GreaterThanOrEqual)):
        return known[0] + isinstance(one, GreaterThan), _FAR
    if isinstance(one, (LessThan, LessThanOrEqual)):
        return -_FAR, known[0] - isinstance(one, LessThan)
    return min(known), max(known)


def _number(value: Any) -> int | None:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // timedelta(microseconds=1)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _first_tick(microseconds: int) -> int:
    """Returns the first tick of a time at or above this one. The column has the milliseconds of a tick."""
    return -(-microseconds // 1000) << LOGICAL_BITS


def _last_tick(microseconds: int) -> int:
    return microseconds // 1000 << LOGICAL_BITS | LOGICAL_MAX
