"""Selection: which vchannels, in which life of each, a reader reads.

A vchannel that is dropped and made again under its name is another vchannel: its runs carry another incarnation. A reader is bound to
the incarnation that was current when it began; for a name that nobody had made yet it binds to the first one made from then on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from wal.frame import FrameView, RunKind, RunRow

__all__ = ["Selection", "named"]

NAMES_MAX: Final = 5


class Selection:
    """`bound`: name → incarnation, or None for a name unknown so far; such a name binds to an incarnation of at least `floor`."""

    __slots__ = ("_bound", "_floor", "names")

    def __init__(self, bound: Mapping[str, int | None], *, floor: int) -> None:
        self._bound = dict(bound)
        self._floor = floor
        self.names: frozenset[str] = frozenset(bound)

    def runs(self, view: FrameView) -> list[RunRow]:
        """The runs of this frame that the reader sees, those for every reader included."""
        return [run for run in view.find(self.names) if run.kind == RunKind.PCHANNEL or self._accepts(run)]

    def incarnation(self, name: str) -> int | None:
        """The life of this vchannel that the reader is bound to; None while it is to no one."""
        return self._bound[name]

    def bind(self, name: str, incarnation: int) -> None:
        """Binds a name that was unknown so far."""
        self._bound[name] = incarnation

    def _accepts(self, run: RunRow) -> bool:
        bound = self._bound[run.name]
        if bound is None and run.incarnation >= self._floor:
            bound = self._bound[run.name] = run.incarnation
        return run.incarnation == bound


def named(vchannels: Sequence[str]) -> str:
    """The names of vchannels for a text: quoted, the first few of many."""
    more = len(vchannels) - NAMES_MAX
    return ", ".join(map(repr, vchannels[:NAMES_MAX])) + (f" and {more} more" if more > 0 else "")
