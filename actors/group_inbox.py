"""GroupInbox: the two lanes of a group's inbox, with the messages of all members in order.

Owns the data lane, the control lane, and the part of both that a running turn has yet to deliver. The data lane is stored as runs: a list
of members beside a list of batches, so that telling the same member again is one append and a turn is one call for each run. Guarantees:
the order never changes; no message is lost between the lanes and a turn. Pure: it knows no loop, no clock and no failure.

`Group` inherits from it instead of holding one: `tell` is the hottest call of the project and would pay for the indirection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from actors.errors import InboxFullError
from actors.member import Member

__all__ = ["GroupInbox"]


class GroupInbox:
    """The messages that wait, and those of the running turn.

    When a member may no longer be called (a pause, a leave, a failure), `_return_rest` ends a running turn early: the turn's iterators run
    dry, and the next turn continues from there.
    """

    __slots__ = (
        "_batches",
        "_control",
        "_control_turn",
        "_data_turn",
        "_inbox_max",
        "_last",
        "_name",
        "_pending",
        "_run",
        "_to",
    )

    def __init__(self, name: str, inbox_max: int) -> None:
        if inbox_max < 1:
            raise ValueError(f"inbox_max is {inbox_max}: a group needs room for at least 1 message")
        self._name = name
        self._inbox_max = inbox_max
        self._to: list[Member] = []
        self._batches: list[list[Any]] = []  # _batches[i] is for _to[i]
        self._last: Member | None = (
            None  # the member of _run, to which its next message is added; None if that opens a new run
        )
        self._run: list[Any] = []
        self._pending = 0  # messages in _batches
        self._control: list[tuple[Member, Any]] = []
        self._data_turn: Iterator[tuple[Member, list[Any]]] = iter(())
        self._control_turn: Iterator[tuple[Member, Any]] = iter(())

    @property
    def pending(self) -> int:
        """The number of data messages that wait; inside a turn, the number that waits for the next one."""
        return self._pending

    def _take_control(self) -> Iterator[tuple[Member, Any]]:
        """Returns the current control lane for delivery; a message that is told from now on waits for the next turn."""
        control, self._control = self._control, []
        self._control_turn = turn = iter(control)
        return turn

    def _take_data(self) -> Iterator[tuple[Member, list[Any]]]:
        """Returns the current data lane as runs for delivery."""
        to, batches = self._to, self._batches
        self._to, self._batches, self._last, self._pending = [], [], None, 0
        self._data_turn = turn = zip(to, batches)  # noqa: B905 - equal by construction; strict costs per run
        return turn

    def _return_rest(self) -> None:
        """Puts the messages that the running turn has not delivered back at the front of the lanes, which ends its loops."""
        if control := list(self._control_turn):
            self._control[:0] = control
        if data := list(self._data_turn):
            self._to[:0] = [member for member, _ in data]
            self._batches[:0] = [batch for _, batch in data]
            self._pending += sum(len(batch) for _, batch in data)

    def _take_out(self, member: Member) -> list[Any]:
        """Removes and returns all unhandled messages of the member: control first, then data in order."""
        self._return_rest()
        self._last = None
        taken = [message for to, message in self._control if to is member]
        if taken:
            self._control = [entry for entry in self._control if entry[0] is not member]
        if member in self._to:
            kept = []
            for to, batch in self._runs():
                if to is member:
                    taken += batch
                    self._pending -= len(batch)
                else:
                    kept.append((to, batch))
            self._to = [to for to, _ in kept]
            self._batches = [batch for _, batch in kept]
        return taken

    def _waiting(self) -> dict[Member, int]:
        """Returns the number of waiting messages of each member that has any; walks the lanes."""
        waiting: dict[Member, int] = {}
        for member, batch in self._runs():
            waiting[member] = waiting.get(member, 0) + len(batch)
        for member, _ in self._control:
            waiting[member] = waiting.get(member, 0) + 1
        return waiting

    def _full(self, count: int) -> InboxFullError:
        return InboxFullError(
            f"the inbox of group {self._name!r} holds {self._pending} of at most {self._inbox_max} messages, "
            f"no room for {count} more: wait until it has drained"
        )

    def _runs(self) -> Iterable[tuple[Member, list[Any]]]:
        return zip(self._to, self._batches, strict=True)
