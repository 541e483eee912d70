"""Deliver filters: which of the messages of a vchannel a reader is handed. All filters of a read must hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from wal.errors import InvalidArgumentError
from wal.message import MessageType, type_properties

__all__ = ["DeliverFilter", "EventFilter", "MessageTypes", "TimeTickGT", "TimeTickGTE"]


class _Tick(msgspec.Struct, frozen=True):
    time_tick: int

    def __post_init__(self) -> None:
        if not isinstance(self.time_tick, int) or isinstance(self.time_tick, bool):
            raise TypeError(f"{type(self).__name__} takes a time tick (int), not {type(self.time_tick).__name__}")
        if not 0 <= self.time_tick < 1 << 64:
            raise InvalidArgumentError(f"time tick {self.time_tick} is out of range: ticks are 0 to 2**64 - 1")


class TimeTickGT(_Tick, frozen=True):
    """Messages with a tick above this one; of a transaction its commit's tick counts."""


class TimeTickGTE(_Tick, frozen=True):
    """Messages with a tick at or above this one; of a transaction its commit's tick counts."""


class MessageTypes:
    """Messages of these types. A transaction is delivered with the bodies that match, and not at all when none does.

    System types (TIME_TICK, TXN, …) cannot be named: InvalidArgumentError.
    """

    __slots__ = ("types",)

    def __init__(self, *types: MessageType) -> None:
        for message_type in types:
            if not isinstance(message_type, MessageType):
                raise TypeError(f"MessageTypes takes MessageType values, not {message_type!r}")
            if type_properties(message_type).system:
                raise InvalidArgumentError(
                    f"{message_type.name} is a system type and cannot be filtered for: name types that users append"
                )
        if not types:
            raise InvalidArgumentError("MessageTypes() names no type and would match nothing: name at least one")
        self.types: frozenset[MessageType] = frozenset(types)

    def __repr__(self) -> str:
        return f"MessageTypes({', '.join(sorted(t.name for t in self.types))})"


DeliverFilter = TimeTickGT | TimeTickGTE | MessageTypes


class EventFilter(msgspec.Struct, frozen=True):
    """All filters of a read in one: the smallest tick and, unless None, the types (as numbers)."""

    tick_min: int = 0
    types: frozenset[int] | None = None

    @classmethod
    def of(cls, filters: DeliverFilter | Iterable[DeliverFilter]) -> EventFilter:
        """The conjunction of these filters; something that is no filter is a TypeError."""
        tick_min = 0
        types: frozenset[int] | None = None
        given: Sequence[DeliverFilter] = (
            (filters,) if isinstance(filters, TimeTickGT | TimeTickGTE | MessageTypes) else tuple(filters)
        )
        for one in given:
            if isinstance(one, TimeTickGT):
                tick_min = max(tick_min, one.time_tick + 1)
            elif isinstance(one, TimeTickGTE):
                tick_min = max(tick_min, one.time_tick)
            elif isinstance(one, MessageTypes):
                numbers = _numbers(one.types)
                types = numbers if types is None else types & numbers
            else:
                raise TypeError(f"{one!r} is no deliver filter: use TimeTickGT, TimeTickGTE or MessageTypes")
        return cls(tick_min, types) if given else _EVERYTHING


_EVERYTHING: Final = EventFilter()
"""Most readers have no filter, and share this one."""


@lru_cache(maxsize=64)
def _numbers(types: frozenset[MessageType]) -> frozenset[int]:
    """The types as numbers; readers with the same filter share them."""
    return frozenset(int(message_type) for message_type in types)
