"""Changes: what is to be saved, in the order of the calls, gathered into as few operations as the KV allows. Pure.

Owns: the group commit of a broadcaster. Promises: a change is saved whole and never before an earlier one; a later change of a key
replaces an earlier one of the same operation, so that an ack bitmap which is removed in the same breath is never written; changes
that together are larger than an operation go one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

__all__ = ["Batch", "Changes"]


class Change(msgspec.Struct, frozen=True):
    """A change that happens whole. `then` is called once it is durable, or `refused`, if it has one, when it cannot be saved."""

    saves: Mapping[str, str]
    removals: Sequence[str]
    then: Callable[[], object] | None
    refused: Callable[[Exception], object] | None

    @property
    def operations(self) -> int:
        return len(self.saves) + len(self.removals)

    def size(self) -> int:
        """Characters of its keys and values, which are as many bytes: all of them are ASCII."""
        return sum(map(len, self.saves)) + sum(map(len, self.saves.values())) + sum(map(len, self.removals))


class Batch(msgspec.Struct):
    """One operation of the KV, made of these `changes`, and what is to be called once it is durable, in order."""

    saves: dict[str, str] = {}
    removals: dict[str, None] = {}
    then: list[Callable[[], object]] = []
    changes: list[Change] = []


class Changes:
    """The changes that wait."""

    def __init__(self, *, operations_max: int, bytes_max: int) -> None:
        self._operations_max = operations_max
        self._bytes_max = bytes_max
        self._waiting: deque[Change] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(
        self,
        saves: Mapping[str, str],
        removals: Sequence[str] = (),
        *,
        then: Callable[[], object] | None = None,
        refused: Callable[[Exception], object] | None = None,
    ) -> None:
        """A change that happens whole. One that is larger than an operation goes alone, and the KV may refuse it."""
        self._waiting.append(Change(saves, removals, then, refused))

    def put_back(self, changes: Iterable[Change]) -> None:
        """Changes of the last operation that were not saved go before those that wait."""
        self._waiting.extendleft(reversed(list(changes)))

    def take(self) -> Batch:
        """The next operation."""
        batch = Batch()
        operations = size = 0
        while self._waiting:
            change = self._waiting[0]
            # Upper bounds: what replaces something earlier is counted twice.
            operations += change.operations
            size += change.size()
            if batch.changes and (operations > self._operations_max or size > self._bytes_max):
                break
            batch.changes.append(self._waiting.popleft())
            for key, value in change.saves.items():
                batch.removals.pop(key, None)
                batch.saves[key] = value
            for key in change.removals:
                batch.saves.pop(key, None)
                batch.removals[key] = None
            if change.then is not None:
                batch.then.append(change.then)
        return batch
