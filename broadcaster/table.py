"""Table: the broadcasts under way, by their ids and by who holds their keys, and which of them something happened to.

Owns membership alone. Never decides what is to be done with one.
"""

from __future__ import annotations

from collections.abc import Iterator

from broadcaster.calls import Running

__all__ = ["Table"]


class Table:
    """Iterating gives them in the order in which they began."""

    def __init__(self) -> None:
        self._by_id: dict[int, Running] = {}
        self._by_owner: dict[int, Running] = {}
        self._touched: dict[int, Running] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Running]:
        return iter(self._by_id.values())

    def get(self, broadcast_id: int) -> Running | None:
        """The broadcast of this id."""
        return self._by_id.get(broadcast_id)

    def of_owner(self, owner: int) -> Running:
        """The broadcast whose keys have this owner in the lock table; there must be one."""
        return self._by_owner[owner]

    def find_owner(self, owner: int) -> Running | None:
        """The same, if there is one."""
        return self._by_owner.get(owner)

    def add(self, running: Running) -> None:
        """It begins, or is recovered."""
        self._by_id[running.task.broadcast_id] = self._by_owner[running.owner] = running

    def remove(self, running: Running) -> None:
        """It is over."""
        del self._by_id[running.task.broadcast_id], self._by_owner[running.owner]

    def touch(self, running: Running) -> None:
        """Something happened to it: what follows is to be done before the turn ends."""
        self._touched[running.task.broadcast_id] = running

    def take_touched(self) -> list[Running]:
        """Those that were touched since they were taken last."""
        touched, self._touched = self._touched, {}
        return list(touched.values())
