"""StateWrites: the common part of group members that write changes of one of a pchannel's tables.

They take operations in the order of the calls; without ticks, operations are held. A defect ends one member alone: it refuses every later
operation, and the pchannel continues, including the frames under way.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar

from actors import ActorError, Group, InboxFullError, Member
from wal.errors import WALError, WouldBlockError, closed_log, defect
from wal.write.in_flight import InFlight
from wal.write.operations import fail_future
from wal.write.pipeline import FramePipeline
from wal.write.ticks import TickSupply


class StateWrites(Member, abc.ABC):
    """The changes of one table of a pchannel. `ended` names, in an error, the work that ends after a defect."""

    ended: ClassVar[str]

    def __init__(self, group: Group, frames: FramePipeline, ticks: TickSupply, in_flight: InFlight) -> None:
        self._actor_group = group
        self._frames = frames
        self._ticks = ticks
        self._in_flight = in_flight
        self._defect: WALError | None = None
        """The reason why no operations are accepted any more, or None."""

    def tell(self, operation: Any) -> None:
        """Adds an operation to the inbox of the group; raises as `Group.tell` does."""
        self._actor_group.tell(self, operation)

    def refusal(self, error: ActorError) -> WALError:
        """Returns the log's error for an operation that the group refused."""
        if isinstance(error, InboxFullError):
            return WouldBlockError(f"{error}: wait for some of the results")
        return self._frames.fault or self._defect or closed_log()

    def receive(self, batch: list[Any]) -> None:
        """Takes operations in the order of their calls."""
        if self._defect is not None:
            self.refuse(batch, self._defect)
            return
        for operation in batch:
            if self._ticks.held:
                self._ticks.hold(self, [operation])
            else:
                self.released(operation)

    def receive_control(self, message: Any) -> None:
        """Runs a callable between two turns."""
        message()

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        """Accepts no more operations after a defect in here."""
        self._defect = error = defect(f"pchannel {self._actor_group.name} {self.ended} until the log is reopened", cause)
        self.refuse([operation for operation in unhandled if not callable(operation)], error)
        self.refuse(self._ticks.take_held_by(self), error)
        self.stop(error)

    def refuse(self, operations: list[Any], error: BaseException) -> None:
        """Fails operations that were not submitted."""
        for operation in operations:
            fail_future(operation.future, error)

    @abc.abstractmethod
    def released(self, operation: Any) -> None:
        """Carries an operation out."""

    @abc.abstractmethod
    def stop(self, error: WALError) -> None:
        """Fails the operations that wait in here: they are not carried out any more."""
