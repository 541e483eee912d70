"""Selection: the vchannels that a reader reads, and the incarnation of each.

A vchannel that is dropped and recreated under its name is another vchannel: its runs carry another incarnation. A reader is bound to
the incarnation that was current when it began. A name that did not exist then is bound to the first incarnation created afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from wal.frame import FrameView, RunKind, RunRow

__all__ = ["BoundNames", "Selection", "WholePChannel", "named"]

BoundNames = frozenset[tuple[str, int]]
"""What a reader reads: the name and the incarnation of each of its vchannels."""

NAMES_MAX: Final = 5


class Selection:
    """The vchannels of one read.

    `bound` maps each name to its incarnation, or to None if the name does not exist yet; such a name is bound to the first incarnation
    at or above `floor` whose run is met.
    """

    __slots__ = ("_bound", "_bound_names", "_floor", "names")

    def __init__(self, bound: Mapping[str, int | None], *, floor: int) -> None:
        self._bound = dict(bound)
        self._floor = floor
        self.names: frozenset[str] | None = frozenset(bound)
        """The vchannels; None: all of the pchannel."""
        self._bound_names: BoundNames | None = None

    def runs(self, view: FrameView) -> list[RunRow]:
        """Returns the runs of this frame that the reader sees, including those for every reader."""
        return [run for run in view.runs.find(self._bound) if run.kind == RunKind.PCHANNEL or self._accepts(run)]

    @property
    def bound(self) -> BoundNames | None:
        """The names with their incarnations, so that readers which read the same are equal in it; None while a name is not bound."""
        found = self._bound_names
        if found is None and None not in self._bound.values():
            found = self._bound_names = frozenset(self._bound.items())  # type: ignore[arg-type]
        return found

    def incarnation(self, name: str) -> int | None:
        """Returns the incarnation of this vchannel that the reader is bound to, or None."""
        return self._bound[name]

    def bind(self, name: str, incarnation: int) -> None:
        """Binds a name that was not bound yet."""
        self._bound[name] = incarnation

    def _accepts(self, run: RunRow) -> bool:
        bound = self._bound[run.name]
        if bound is None and run.incarnation >= self._floor:
            bound = self._bound[run.name] = run.incarnation
        return run.incarnation == bound


class WholePChannel(Selection):
    """Everything on a pchannel: all vchannels, in every incarnation."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__({}, floor=0)
        self.names = None

    def runs(self, view: FrameView) -> list[RunRow]:
        """Returns the runs of this frame that hold messages."""
        return [run for run in view.runs if run.kind in _WITH_MESSAGES]

    @property
    def bound(self) -> None:
        """None: such readers share no messages."""
        return

    def incarnation(self, name: str) -> int | None:
        """Returns None: it is bound to no incarnation."""
        return None


_WITH_MESSAGES: Final = (RunKind.VCHANNEL, RunKind.PCHANNEL, RunKind.COPY)


def named(vchannels: Sequence[str]) -> str:
    """Returns the names of vchannels as text for errors: quoted, and only the first few of many."""
    more = len(vchannels) - NAMES_MAX
    return ", ".join(map(repr, vchannels[:NAMES_MAX])) + (f" and {more} more" if more > 0 else "")
