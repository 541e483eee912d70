"""CopyWrites: the way of broadcasts' copies into the log of a pchannel, around the table of those that are there.

A member of the pchannel's group, so that copies have their place in the order of the calls. Promises: a vchannel that has its copy is
answered with that one, also while it is being written; the others of a call share one frame and one payload; a copy of an exclusive
type fails the transactions on its vchannel as any other message of the type. What is remembered, and for how long, `CopyTable` decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from actors import ActorError, Member
from wal.errors import ChannelNotExistError, ClosedError, UnknownError, WALError
from wal.frame import CopyNames, RunName
from wal.message import AppendResult, BroadcastHeader, Origin, type_properties
from wal.pchannel.copies import CopiesPart, CopyTable
from wal.pchannel.operations import AppendCopies
from wal.pchannel.placed_copies import MixedCopies
from wal.pchannel.submissions import CopiesSubmission, fail_future

if TYPE_CHECKING:
    from wal.pchannel.pchannel import PChannel
    from wal.pchannel.vchannel import VChannel

__all__ = ["CopyWrites"]


class CopyWrites(Member):
    """Of one pchannel; its operations are `AppendCopies`."""

    def __init__(self, pchannel: PChannel, table: CopyTable) -> None:
        self.table = table
        self._pchannel = pchannel
        self._under_way: dict[tuple[int, bool], list[AppendCopies]] = {}
        """Broadcasts of which a frame is under way, and the calls that wait for its outcome."""
        self._defect: WALError | None = None
        """Why no copies are taken any more."""

    def receive(self, batch: list[Any]) -> None:
        """Operations in the order of their calls."""
        if self._defect is not None:
            self.refuse(batch, self._defect)
            return
        for operation in batch:
            if self._pchannel.held:
                self._pchannel.after_ticks(self, operation)
            else:
                self._append(operation)

    def receive_control(self, message: Any) -> None:
        """The control lane: operations that waited for others of their broadcast."""
        self.receive(message)

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        """A defect in here: no copies are taken any more, everything else goes on, frames with copies that are under way among it."""
        self._defect = error = UnknownError(
            f"pchannel {self._pchannel.channel} takes no copies of broadcasts any more until the log is reopened: {cause!r}; please "
            "report it"
        )
        error.__cause__ = cause
        # Of the control lane each message is a list. Who waits for a frame that is under way waits for nothing any more.
        for operations in (*unhandled, *self._under_way.values()):
            self.refuse(operations if isinstance(operations, list) else [operations], error)
        pchannel = self._pchannel
        held = [operation for holder, operation in pchannel.held if holder is self]
        pchannel.held = [waiting for waiting in pchannel.held if waiting[0] is not self]
        self.refuse(held, error)

    def refuse(self, operations: list[Any], error: BaseException) -> None:
        """Fails operations that were not submitted, and gives back their room. Those that were are left to their frame."""
        for operation in operations:
            if not operation.taken:
                operation.taken = True
                self._pchannel.in_flight.release(operation.size)
                fail_future(operation.future, error)

    def _append(self, operation: AppendCopies) -> None:
        broadcast = (operation.header.broadcast_id, operation.aborts)
        if (waiting := self._under_way.get(broadcast)) is not None:
            waiting.append(operation)
            return
        outcomes, wanted = self._judge(operation)
        if not wanted:
            operation.taken = True
            self._pchannel.in_flight.release(operation.size)
            if not operation.future.done():
                operation.future.set_result(MixedCopies(outcome for outcome in outcomes or () if outcome is not None))
            return
        message_type = operation.record.message_type
        if type_properties(message_type).exclusive:
            for vchannel in wanted:
                vchannel.fail_spanned(message_type)
        names = operation.targets.names
        if len(wanted) != len(names):
            names = CopyNames([vchannel.run_name for vchannel in wanted])
        settled = partial(self._settled, operation.header, operation.aborts)
        submission = CopiesSubmission(operation, names, outcomes, settled)
        operation.taken = True
        self._under_way[broadcast] = []
        self._pchannel.submit(submission)

    def _judge(self, operation: AppendCopies) -> tuple[list[AppendResult | WALError | None] | None, Sequence[VChannel]]:
        """The outcomes, None for the vchannels that are wanted in the frame, and those; no outcomes at all when all are."""
        broadcast_id, targets = operation.header.broadcast_id, operation.targets.vchannels
        if operation.targets.endings == self._pchannel.endings and self.table.get(broadcast_id) is None:
            return None, targets  # as good as always
        names = [vchannel.channel for vchannel in targets]
        there = self.table.find(broadcast_id, names, aborts=operation.aborts)
        copies = self.table.find(broadcast_id, names, aborts=False) if operation.aborts else {}
        log = self._pchannel.log
        outcomes: list[AppendResult | WALError | None] = []
        wanted: list[VChannel] = []
        for vchannel in targets:
            name, incarnation = vchannel.run_name
            if (place := there.get(name)) is not None:
                origin = Origin(log.pchannel, log.incarnation, place.position, self._pchannel.form)
                message_id = origin.message_id(place.index)
                outcomes.append(AppendResult(message_id, place.tick, message_id))
            elif vchannel.closed is not None:
                outcomes.append(vchannel.closed())
            elif operation.aborts and (name not in copies or copies[name].incarnation != incarnation):
                outcomes.append(_has_no_copy((name, incarnation), broadcast_id))
            else:
                outcomes.append(None)
                wanted.append(vchannel)
        return outcomes, wanted

    def _settled(self, header: BroadcastHeader, aborts: bool, part: CopiesPart | None) -> None:
        """A frame with copies is durable, or (None) not written."""
        waiting = self._under_way.pop((header.broadcast_id, aborts))
        if part is not None:
            self.table.durable(header, part)
        if waiting:
            try:
                self._pchannel.actor_group.tell_control(self, waiting)
            except ActorError:
                self.refuse(waiting, self._defect or ClosedError("the log was closed: open it again to go on"))


def _has_no_copy(name: RunName, broadcast_id: int) -> ChannelNotExistError:
    return ChannelNotExistError(
        f"vchannel {name[0]!r} was made anew and has no copy of broadcast {broadcast_id}: nobody there has to be told that it was aborted"
    )
