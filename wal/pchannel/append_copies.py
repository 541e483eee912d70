"""AppendCopies: copies of a broadcast, from the call to the outcome: what `CopyWrites` is told, and their entry in a frame.

`PlacedCopies` and `MixedCopies` are the outcomes that a caller gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Final, overload

import msgspec

from wal.errors import WALError
from wal.frame import CopyNames, FrameDraft, Record
from wal.message import AppendResult, BroadcastHeader, CopyOutcomes, MessageID, Origin
from wal.pchannel.copies import CopiesPart
from wal.pchannel.operations import Answers, VChannelMember, fail_future
from wal.pchannel.submissions import RUN_OVERHEAD, Submission

__all__ = ["AppendCopies", "CopyTargets", "MixedCopies", "PlacedCopies"]


class CopyTargets(msgspec.Struct, frozen=True, eq=False):
    """Vchannels of one pchannel and their names as frames carry them, valid while the pchannel's `endings` has this value."""

    vchannels: tuple[VChannelMember, ...]
    names: CopyNames
    endings: int


class AppendCopies(Submission):
    """Copies of a broadcast for vchannels of one pchannel, in the order of the header: one payload, one header, a COPY run for each.

    With `aborts` they say that the broadcast was aborted. The future gets the outcomes in the order of `targets`. `taken` says that the
    operation was submitted or answered: its room is given back from there. `settled` is called before the caller gets the outcome of a
    frame: with the part of the log that holds the copies, or with None.
    """

    __slots__ = (
        "_outcomes",
        "_settled",
        "_stored",
        "aborts",
        "future",
        "header",
        "names",
        "record",
        "taken",
        "targets",
    )

    def __init__(
        self,
        header: BroadcastHeader,
        targets: CopyTargets,
        record: Record,
        *,
        aborts: bool,
        size: int,
        future: Answers[CopyOutcomes],
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


class MixedCopies(list[AppendResult | WALError]):
    """The outcomes of copies that are not all in one frame: results and errors."""

    __slots__ = ()
    all_in: Final = False
    """See `CopyOutcomes`."""
