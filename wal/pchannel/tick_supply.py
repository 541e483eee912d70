"""TickSupply: the time ticks that a pchannel takes from the oracle, and the operations that wait for more of them.

Taking a tick never waits: if the oracle has to save a new limit first, one request is sent for all callers that found no tick.
Operations that need a tick are held meanwhile, together with every later operation, which must not overtake them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from wal.errors import WALError

__all__ = ["Holder", "TickOracle", "TickSupply"]


class TickOracle(Protocol):
    """The part of the timestamp oracle that a pchannel uses."""

    def take(self, count: int) -> int | None:
        """Returns the first of `count` contiguous ticks, or None when the saved limit is reached."""

    @property
    def limit(self) -> int:
        """The saved limit: no tick at or above it is allocated."""

    @property
    def last(self) -> int:
        """The largest tick allocated so far."""


class Holder(Protocol):
    """A member of the group whose operations may have to wait for ticks."""

    def receive(self, batch: list[Any]) -> None:
        """Takes the operations again, once there are ticks."""

    def refuse(self, operations: list[Any], error: BaseException) -> None:
        """Fails operations that were not submitted."""


class TickSupply:
    """The ticks of one pchannel. `held` are the operations that wait, in the order of their calls, each with its holder.

    `request` asks for a new limit; the answer is a call of `take_held`. `fenced` is called if another writer has taken the oracle over.
    """

    __slots__ = ("_fault", "_fenced", "_request", "_requested", "held", "oracle")

    def __init__(self, oracle: TickOracle, *, request: Callable[[], None], fenced: Callable[[WALError], None]) -> None:
        self.oracle: TickOracle = oracle
        self.held: list[tuple[Holder, Any]] = []
        self._request = request
        self._requested = False
        self._fenced = fenced
        self._fault: WALError | None = None

    def take(self, count: int = 1) -> int | None:
        """Returns the first of `count` contiguous ticks, or None: then it has requested more, or this writer is fenced."""
        try:
            tick = self.oracle.take(count)
        except WALError as error:
            self._fenced(error)
            return None
        if tick is None and not self._requested:
            self._requested = True
            self._request()
        return tick

    def hold(self, holder: Holder, operations: Sequence[Any]) -> None:
        """Keeps operations until there are ticks (the caller found none, so they are requested); once stopped it refuses them."""
        if self._fault is not None:
            holder.refuse(list(operations), self._fault)
        else:
            self.held += [(holder, operation) for operation in operations]

    def take_held(self) -> list[tuple[Holder, Any]]:
        """Returns all held operations and holds them no longer, since the request was answered."""
        self._requested = False
        held, self.held = self.held, []
        return held

    def take_held_by(self, holder: Holder) -> list[Any]:
        """Returns the held operations of one holder, which accepts no more, and holds them no longer."""
        taken = [operation for owner, operation in self.held if owner is holder]
        self.held = [waiting for waiting in self.held if waiting[0] is not holder]
        return taken

    def stop(self, fault: WALError) -> None:
        """Refuses every operation that is held now or later: nothing is written any more."""
        self._fault = fault
        for holder, operation in self.take_held():
            holder.refuse([operation], fault)
