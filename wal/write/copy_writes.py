"""CopyWrites: writes the copies of broadcasts into the log of a pchannel, and keeps the table of existing copies up to date.

It is a member of the pchannel's group, so copies are ordered with the other calls. Guarantees: the answer for a vchannel with a copy is
that copy, even while it is being written; the other vchannels of a call share one frame and one payload; a copy of an exclusive type fails
the transactions on its vchannel as any other message of the type does. `CopyTable` decides what is remembered, and for how long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Final, overload

import msgspec

from actors import ActorError, Group
from wal.errors import ChannelNotExistError, WALError
from wal.frame import CopyNames, FrameDraft, Record, RunName
from wal.message import AppendResult, BroadcastHeader, CopyOutcomes, MessageID, MixedCopies, Origin, type_properties
from wal.write.copies import CopiesPart, CopyTable
from wal.write.in_flight import InFlight
from wal.write.operations import Answers, VChannelMember, answer_future, fail_future
from wal.write.pipeline import FramePipeline
from wal.write.state_writes import StateWrites
from wal.write.submissions import RUN_OVERHEAD, Submission
from wal.write.ticks import TickSupply


class CopyTargets(msgspec.Struct, frozen=True, eq=False):
    """Vchannels of one pchannel and their names as frames carry them, valid while the pchannel's `endings` has this value."""

    vchannels: tuple[VChannelMember, ...]
    names: CopyNames
    endings: int


class AppendCopies(Submission):
    """Copies of a broadcast for vchannels of one pchannel, from the call to the outcome: an operation of `CopyWrites`, and their entry in a
    frame.

    They are in the order of the header: one payload, one header, a COPY run for each. With `aborts` they are messages about the abort of
    the broadcast. The future gets the outcomes in the order of `targets`, as `PlacedCopies` or `MixedCopies`. `taken`: the operation was
    submitted or answered, and its room is given back from there. `settled` is called before the caller gets the outcome of a frame: with
    the part of the log that has the copies, or with None.
    """

    __slots__ = ("_outcomes", "_settled", "_stored", "aborts", "future", "header", "names", "record", "taken", "targets")

    def __init__(
        self, header: BroadcastHeader, targets: CopyTargets, record: Record, *, aborts: bool, size: int, future: Answers[CopyOutcomes]
    ) -> None:
        self.header: BroadcastHeader = header
        self.targets: CopyTargets = targets
        self.record: Record = record
        self.aborts: bool = aborts
        self.in_flight: int = size
        self.future: Answers[CopyOutcomes] = future
        self.taken: bool = False

    def select(
        self,
        names: CopyNames,
        outcomes: list[AppendResult | WALError | None] | None,
        settled: Callable[[AppendCopies, CopiesPart | None], None],
    ) -> None:
        """Makes it an entry for these vchannels, which have no copy yet.

        `outcomes` has None for each of `names`, in their order, and an outcome for each other vchannel of the operation. None instead of a
        list means that all vchannels of the operation are in `names`.
        """
        self.names: CopyNames = names
        self._outcomes = outcomes
        self._settled = settled
        self._stored: bytes = self.header.to_bytes(names.texts)
        self.count: int = names.count
        record = self.record
        contents = len(record.payload) + len(record.properties) + len(self._stored)
        self.size: int = contents + RUN_OVERHEAD * (2 + names.count) + len(names.joined)

    def draft(self, draft: FrameDraft) -> None:
        self.first: int = draft.broadcast(self.names, self.record, header=self._stored)

    def resolve(self, origin: Origin, first_tick: int) -> None:
        first, tick = self.first, first_tick + self.first
        self._settled(self, CopiesPart(origin.position, first, tick, self.names.names, self.aborts))
        if self.future.done():
            return
        results = PlacedCopies(origin, first=first, tick=tick, count=self.count)
        if self._outcomes is None:
            self.future.set_result(results)
        else:
            following = iter(results)
            mixed = (next(following) if outcome is None else outcome for outcome in self._outcomes)
            self.future.set_result(MixedCopies(mixed))

    def fail(self, error: BaseException) -> None:
        self._settled(self, None)
        fail_future(self.future, error)


class PlacedCopies(Sequence[AppendResult]):
    """The `count` results of a broadcast's copies in one frame; equal to any sequence of the same results.

    The first copy has the index `first` and the tick `tick`; both increase by one per copy. There may be thousands that no caller ever
    reads, so they are created on the first access.
    """

    __slots__ = ("_count", "_first", "_made", "_origin", "_tick")
    __hash__: Final = None  # type: ignore[assignment]
    all_in: Final = True
    """See `CopyOutcomes`."""

    def __init__(self, origin: Origin, *, first: int, tick: int, count: int) -> None:
        self._origin = origin
        self._first = first
        self._tick = tick
        self._count = count
        self._made: list[AppendResult] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> AppendResult: ...

    @overload
    def __getitem__(self, at: slice) -> list[AppendResult]: ...

    def __getitem__(self, at: int | slice) -> AppendResult | list[AppendResult]:
        return self._results()[at]

    def __iter__(self) -> Iterator[AppendResult]:
        return iter(self._results())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return self._results() == list(other)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._results()})"

    def _results(self) -> list[AppendResult]:
        made = self._made
        if made is None:
            origin = self._origin
            pchannel, incarnation, position, form = origin.pchannel, origin.incarnation, origin.position, origin.form
            indices = range(self._first, self._first + self._count)
            ids = list(map(MessageID, repeat(pchannel), repeat(incarnation), repeat(position), indices, repeat(form)))
            made = self._made = list(map(AppendResult, ids, range(self._tick, self._tick + self._count), ids))
        return made


class CopyWrites(StateWrites):
    """The copies of broadcasts on one pchannel. Its operations are `AppendCopies`.

    `endings` returns the number of vchannels of the pchannel that have ended, `origin` the frame at a position.
    """

    ended = "takes no copies of broadcasts any more"

    def __init__(
        self,
        table: CopyTable,
        group: Group,
        frames: FramePipeline,
        ticks: TickSupply,
        *,
        in_flight: InFlight,
        origin: Callable[[int], Origin],
        endings: Callable[[], int],
    ) -> None:
        super().__init__(group, frames, ticks, in_flight)
        self.table = table
        self._origin = origin
        self._endings = endings
        self._under_way: dict[tuple[int, bool], list[AppendCopies]] = {}
        """Broadcasts with copies in a frame under way, and the calls that wait for its outcome."""
        self._returning: list[AppendCopies] = []
        """The calls that are carried out now, after they waited for a frame."""

    def stop(self, error: WALError) -> None:
        """Fails the calls that wait for a frame under way: no frame would answer them."""
        for operations in (self._returning, *self._under_way.values()):
            self.refuse(operations, error)

    def refuse(self, operations: list[Any], error: BaseException) -> None:
        """Fails operations that were not submitted, and gives their room back. Their frame settles the submitted ones."""
        for operation in operations:
            if not operation.taken:
                operation.taken = True
                self._in_flight.release(operation.in_flight)
                fail_future(operation.future, error)

    def released(self, operation: AppendCopies) -> None:
        broadcast = (operation.header.broadcast_id, operation.aborts)
        if (waiting := self._under_way.get(broadcast)) is not None:
            waiting.append(operation)
            return
        outcomes, members = self._judge(operation)
        if not members:
            operation.taken = True
            self._in_flight.release(operation.in_flight)
            answer_future(operation.future, MixedCopies(outcome for outcome in outcomes or () if outcome is not None))
            return
        message_type = operation.record.message_type
        if type_properties(message_type).exclusive:
            for vchannel in members:
                vchannel.fail_spanned(message_type)
        names = operation.targets.names
        if len(members) != names.count:
            names = CopyNames([vchannel.run_name for vchannel in members])
        operation.select(names, outcomes, self._settled)
        operation.taken = True
        self._under_way[broadcast] = []
        self._frames.submit_copies(operation, names)

    def _judge(self, operation: AppendCopies) -> tuple[list[AppendResult | WALError | None] | None, Sequence[VChannelMember]]:
        """Returns the outcomes, with None for each vchannel whose copy goes into the frame, and those vchannels.

        The outcomes are None when that is true of all vchannels.
        """
        broadcast_id, targets = operation.header.broadcast_id, operation.targets.vchannels
        if operation.targets.endings == self._endings() and self.table.get(broadcast_id) is None:
            return None, targets  # nearly always
        names = [vchannel.channel for vchannel in targets]
        there = self.table.find(broadcast_id, names, aborts=operation.aborts)
        copies = self.table.find(broadcast_id, names, aborts=False) if operation.aborts else {}
        outcomes: list[AppendResult | WALError | None] = []
        members: list[VChannelMember] = []
        for vchannel in targets:
            name, incarnation = vchannel.run_name
            if (copy := there.get(name)) is not None:
                message_id = self._origin(copy.position).message_id(copy.index)
                outcomes.append(AppendResult(message_id, copy.tick, message_id))
            elif vchannel.closed is not None:
                outcomes.append(vchannel.closed())
            elif operation.aborts and (name not in copies or copies[name].incarnation != incarnation):
                outcomes.append(_has_no_copy((name, incarnation), broadcast_id))
            else:
                outcomes.append(None)
                members.append(vchannel)
        return outcomes, members

    def _settled(self, operation: AppendCopies, part: CopiesPart | None) -> None:
        """Adds copies whose frame is durable to the table (None: it was not written), and continues the calls that waited for it."""
        broadcast = (operation.header.broadcast_id, operation.aborts)
        if part is not None:
            self.table.durable(operation.header, part)
        if not self._under_way[broadcast]:
            del self._under_way[broadcast]
            return
        try:
            self._actor_group.tell_control(self, partial(self._go_on, broadcast))
        except ActorError as error:
            self.refuse(self._under_way.pop(broadcast), self.refusal(error))

    def _go_on(self, broadcast: tuple[int, bool]) -> None:
        """Carries out the calls that waited for a frame with copies of this broadcast."""
        self._returning = self._under_way.pop(broadcast)
        self.receive(self._returning)
        self._returning = []


def _has_no_copy(name: RunName, broadcast_id: int) -> ChannelNotExistError:
    return ChannelNotExistError(
        f"vchannel {name[0]!r} was recreated and has no copy of broadcast {broadcast_id}: there is the abort has no reader"
    )
