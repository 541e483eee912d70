"""Member: an actor that never waits, and shares the turn of its group.

Owns: its own state, its own failure and its own counters; no task, no inbox, no lock. Its methods are called by the group only,
one at a time, on the group's event loop. It never blocks and never awaits: what has to wait is an `Actor`, or is arranged with a
callback that answers on the control lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from actors.group import Group

__all__ = ["Member"]


class Member:
    """Subclass it, give it to `Group.join`. The last call it ever gets is either `stopped` or `poisoned`."""

    __slots__ = ("_failure", "_group", "_handled", "_name", "_turns")

    _failure: BaseException | None
    _group: Group | None
    _handled: int
    _name: str
    _turns: int

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        # Here and not in __init__: a subclass may forget to call super().__init__(), and tell() must not pay for a check.
        self = super().__new__(cls)
        self._failure = None
        self._group = None
        self._handled = 0
        self._name = ""
        self._turns = 0
        return self

    @property
    def name(self) -> str:
        """The name it joined with; empty before."""
        return self._name

    @property
    def group(self) -> Group | None:
        """The group it is in; None before it joined, and after it left or failed."""
        return self._group

    @property
    def failure(self) -> BaseException | None:
        """What it raised when it failed, or None."""
        return self._failure

    def receive(self, batch: list[Any]) -> None:
        """Handles messages told to it one after the other, in the order of the calls. The list is its own to keep or change.

        Raising poisons the member; its neighbours go on.
        """
        raise TypeError(f"{type(self).__name__} takes no data: implement receive()")

    def receive_control(self, message: Any) -> None:
        """Handles one message of the control lane, which goes before the data and is not held by a pause."""
        raise TypeError(f"{type(self).__name__} takes no control messages: implement receive_control()")

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        """Called once when it failed (or was cut off by a stop that took too long): fail what the messages promised.

        `unhandled`: what it had in hand when it failed (the failing batch, as it left the list, or control message), then
        everything that still waited for it, control first. A batch may be handled in part: only the member can know.
        """

    def stopped(self) -> None:
        """Called once when it leaves its group or the group stops, with nothing left that waits for it."""
