"""Cutting: the pchannel of each vchannel of a copied log, and the frames of the target that a frame of the source becomes. Pure.

Routes: with the same number of pchannels or fewer, all of a source's pchannel goes to one of the target, number modulo number. With more,
vchannels are spread by a hash of their names, as new ones are; vchannels that share a transaction or a cursor stay together (`groups_of`).

An event keeps its tick. The event with index i of a frame has the tick `first_tick + i`, so the events of a frame that go to one pchannel
stay in one frame only where their indices are consecutive; elsewhere they become several frames. A transaction is never cut.

Records of the log itself are left out: the starts of terms, checkpoints, and the states of cursors and scheduled messages, which are copied
as they are at the end. A forgotten producer is forgotten in the target too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from wal.errors import InvalidArgumentError
from wal.frame import FLAG_COMMIT, FrameDraft, FrameView, RunKind, SystemRecord
from wal.read.options import TickPosition
from wal.read.parts import Part, draft_of, parts_of

_FORGOTTEN: Final = int(SystemRecord.PRODUCER_FORGOTTEN)


class TargetRoutes:
    """The pchannel of the target for each vchannel of the source.

    `place` returns the pchannel of a new vchannel; `groups` are the vchannels that have to stay together.
    """

    def __init__(
        self, sources: Sequence[str], targets: Sequence[str], place: Callable[[str, list[str]], str], groups: Iterable[Collection[str]] = ()
    ) -> None:
        self.targets: list[str] = list(targets)
        self.spreads: bool = len(targets) > len(sources)
        """Whether the vchannels of one pchannel go to several."""
        self._place = place
        self._defaults = {name: targets[number % len(targets)] for number, name in enumerate(sources)}
        self._leaders = {name: min(group) for group in groups for name in group}

    def default(self, source: str) -> str:
        """Returns the target for records of this pchannel that belong to no vchannel."""
        return self._defaults[source]

    def target(self, source: str, vchannel: str) -> str:
        """Returns the target of a vchannel of this pchannel."""
        return self._place(self._leaders.get(vchannel, vchannel), self.targets) if self.spreads else self._defaults[source]


class CutFrame(msgspec.Struct, frozen=True):
    """A frame of the target: its records, and its ticks from `first_tick` on; `last_tick` is its promised tick."""

    target: str
    draft: FrameDraft
    first_tick: int
    last_tick: int


def cut(view: FrameView, routes: TargetRoutes, source: str, *, least: int = 0) -> list[CutFrame]:
    """Returns the frames of the target for a frame, in the order of their ticks; events with an index below `least` are left out.

    Raises InvalidArgumentError for a transaction whose vchannels go to several pchannels: it began after `groups_of` has run.
    """
    first_tick, promised = view.header.first_tick, view.header.promised_tick
    parts = parts_of(view)
    default = routes.default(source)
    targets = [routes.target(source, part.name) if part.kind in (RunKind.VCHANNEL, RunKind.COPY) else default for part in parts]
    systems = [record for part in parts if part.kind == RunKind.SYSTEM for record in part.records]
    forgotten = [record.payload.decode() for record in systems if record.message_type == _FORGOTTEN]
    segments = _segments(parts, targets, view.header.indices, least)
    touching = _touching(parts, view.header.indices) if len(segments) > 1 else []
    pieces = []
    newest: dict[str, CutFrame] = {}
    for target, start, end in segments:
        own = sorted({ordinal for at in touching[start:end] for ordinal in at}) if touching else range(len(parts))
        piece = CutFrame(target, draft_of(view, parts, own, start, end), first_tick + start, first_tick + end - 1)
        pieces.append(piece)
        newest[target] = piece
    for target in routes.targets if forgotten else ():
        if target not in newest:
            pieces.append(CutFrame(target, FrameDraft(), promised, promised))
            newest[target] = pieces[-1]
        for name in forgotten:
            newest[target].draft.producer_forgotten(name)
    return pieces


def moved_position(at: TickPosition, events: Mapping[str, str], targets: Iterable[str]) -> TickPosition:
    """Returns the position in the target of a reader with a pattern. `events` are the pchannels with an event of its tick, and the targets
    of these events.

    Pchannels of a cluster may use the same tick, and those events may have another order in the target. Then the position is before the
    first event that was not handed over: earlier events come again, and no event is lost.
    """
    following = [target for source, target in events.items() if source > at.pchannel]
    before = [target for target in targets if not following or target < min(following)]
    return TickPosition.at(at.time_tick, max(before)) if before else TickPosition.at(at.time_tick - 1, max(targets))


def groups_of(views: Iterable[FrameView], cursors: Iterable[Collection[str]]) -> list[list[str]]:
    """Returns the vchannels that share a transaction of these frames, or a cursor: groups of several, sorted. Reads no bodies."""
    leaders: dict[str, str] = {}

    def leader(name: str) -> str:
        while (above := leaders.setdefault(name, name)) != name:
            name = above
        return name

    def join(names: Collection[str]) -> None:
        first, *others = names
        for other in others:
            leaders[leader(other)] = leader(first)

    for names in cursors:
        join(names)
    for view in views:
        if view.header.runs > 1 and view.runs.flags is not None:
            for names in _wide_txns(view):
                join(names)
    groups: dict[str, list[str]] = {}
    for name in leaders:
        groups.setdefault(leader(name), []).append(name)
    return sorted(sorted(group) for group in groups.values() if len(group) > 1)


def _wide_txns(view: FrameView) -> Iterator[list[str]]:
    commits: dict[int, list[str]] = {}
    for run in view.runs.of_kind(RunKind.VCHANNEL):
        rows = view.runs.rows(run.first, run.end)
        for index, flag in zip(rows.indices, rows.flags or b"", strict=False):
            if flag == FLAG_COMMIT:
                commits.setdefault(index, []).append(run.name)
    return (names for names in commits.values() if len(names) > 1)


def _segments(parts: list[Part], targets: list[str], events: int, least: int) -> list[tuple[str, int, int]]:
    """Returns (target, start, end) of consecutive indices that go to one target, in their order."""
    owners: list[str] = [""] * events
    for part, target in zip(parts, targets, strict=True):
        if part.kind in (RunKind.SHARED, RunKind.SYSTEM):
            continue
        for index in part.indices:
            if owners[index] not in ("", target):
                raise InvalidArgumentError(
                    f"vchannel {part.name!r} shares a transaction with a vchannel that goes to another pchannel, which began while the "
                    "log was copied: remove what was copied, and copy again"
                )
            owners[index] = target
    segments: list[tuple[str, int, int]] = []
    start = least
    for index in range(least + 1, events + 1):
        if index == events or owners[index] != owners[start]:
            segments.append((owners[start], start, index))
            start = index
    return segments


def _touching(parts: list[Part], events: int) -> list[list[int]]:
    """Returns, for each index, the ordinals of the runs with a record at it."""
    touching: list[list[int]] = [[] for _ in range(events)]
    for ordinal, part in enumerate(parts):
        if part.kind not in (RunKind.SHARED, RunKind.SYSTEM):
            for index in part.indices:
                touching[index].append(ordinal)
    return touching
