"""Changes: what is to be saved, in the order of the calls, gathered into as few operations as the KV allows. Pure.

Owns: the group commit of a broadcaster. Promises: a change is saved whole and never before an earlier one; a later change of a key
replaces an earlier one of the same operation, so that an ack bitmap which is removed in the same breath is never written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

__all__ = ["Batch", "Changes"]


class Change(msgspec.Struct, frozen=True):
    """What happens whole. `then` is called once it is durable; `refused`, if it has one, instead when there is no room for it."""

    saves: Mapping[str, str]
    removals: Sequence[str]
    then: Callable[[], object] | None
    refused: Callable[[Exception], object] | None


class Batch(msgspec.Struct):
    """One operation of the KV, made of these `changes`, and what is to be called once it is durable, in order."""

    saves: dict[str, str] = {}
    removals: dict[str, None] = {}
    then: list[Callable[[], object]] = []
    changes: list[Change] = []


class Changes:
    """The changes that wait."""

    def __init__(self, *, operations_max: int) -> None:
        self._operations_max = operations_max
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
        """A change that happens whole. One that is larger than an operation goes alone, and the KV says so."""
        self._waiting.append(Change(saves, removals, then, refused))

    def put_back(self, changes: Iterable[Change]) -> None:
        """Changes of the last operation that were not saved go before those that wait."""
        self._waiting.extendleft(reversed(list(changes)))

    def take(self) -> Batch:
        """The next operation."""
        batch = Batch()
        counted = 0
        while self._waiting:
            change = self._waiting[0]
            saves, removals, then = change.saves, change.removals, change.then
            # An upper bound: what replaces something earlier is counted twice.
            counted += len(saves) + len(removals)
            if counted > self._operations_max and (batch.saves or batch.removals or batch.then):
                break
            batch.changes.append(self._waiting.popleft())
            for key, value in saves.items():
                batch.removals.pop(key, None)
                batch.saves[key] = value
            for key in removals:
                batch.saves.pop(key, None)
                batch.removals[key] = None
            if then is not None:
                batch.then.append(then)
        return batch
