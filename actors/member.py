"""Member: an actor that never waits, and shares the turn of its group.

Owns its own state, failure and counters; it has no task, no inbox and no lock. Only the group calls its methods, one at a time, on the
group's event loop. It never blocks and never awaits: work that has to wait belongs in an `Actor`, or answers on the control lane with a
callback.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol, Self

from actors.statistics import MemberStatistics, failure_text

log = logging.getLogger("actors")


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class Member:
    """The base class of members: subclass it and give it to `Group.join`. Its last call is `stopped` or `poisoned`."""

    __slots__ = ("_failure", "_group", "_handled", "_name", "_turns")

    _failure: BaseException | None
    _group: _Named | None
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
        """The name that it joined with; empty before."""
        return self._name

    @property
    def failure(self) -> BaseException | None:
        """The exception that it raised when it failed, or None."""
        return self._failure

    def receive(self, batch: list[Any]) -> None:
        """Handles consecutive messages to it, in the order of the calls. It may keep or change the list.

        An exception poisons this member; the other members continue.
        """
        raise TypeError(f"{type(self).__name__} takes no data: implement receive()")

    def receive_control(self, message: Any) -> None:
        """Handles one message of the control lane, which precedes the data and is not held by a pause."""
        raise TypeError(f"{type(self).__name__} takes no control messages: implement receive_control()")

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        """Called once when it failed (or was cut off by a stop that took too long), to fail whatever depends on the unhandled messages.

        `unhandled` has the failing batch (as the member left the list) or control message, then all messages that still waited for it,
        control first. A batch may be handled in part: only the member can know.
        """

    def stopped(self) -> None:
        """Called once when it leaves its group or the group stops, after its last message."""

    def _dismiss(self, group: str) -> None:
        """Ends its membership in order."""
        self._group = None
        try:
            self.stopped()
        except Exception:
            log.exception("stopped() of member %r of group %r raised", self._name, group)

    def _poison(self, group: str, cause: BaseException, unhandled: list[Any]) -> None:
        """Ends its membership with an error."""
        self._group = None
        try:
            self.poisoned(cause, unhandled)
        except Exception:
            log.exception("poisoned() of member %r of group %r raised", self._name, group)

    def _statistics(self, name: str, pending: int) -> MemberStatistics:
        return MemberStatistics(name=name, pending=pending, handled=self._handled, turns=self._turns, failure=failure_text(self._failure))
