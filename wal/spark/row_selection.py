"""RowSelection: which runs of a frame a Spark task shows: those of the vchannels asked for, each in a life that is not over.

A vchannel that was named is read in the life that was planned, also when it was dropped since: a batch that is read again has the same
rows. Of all others every life is shown that is not known to be over, so that vchannels made later appear by themselves.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final

from wal.frame import FrameView, RunKind, RunRow
from wal.reading import Selection
from wal.spark.channel_choice import ChannelChoice
from wal.spark.frame_source import Lives

__all__ = ["RowSelection"]


class RowSelection(Selection):
    """`names`: those of the choice that the frames hold, None for all."""

    __slots__ = ("_accepted", "_choice", "_known", "_lives", "_pchannel", "_wanted")

    def __init__(
        self, pchannel: str, names: frozenset[str] | None, choice: ChannelChoice, lives: Mapping[str, int], known: Lives
    ) -> None:
        super().__init__(dict.fromkeys(names or ()), floor=0)
        self._pchannel = pchannel
        self._wanted: Container[str] = _EVERYTHING if names is None else names
        self._choice = choice
        self._lives = lives
        self._known = known
        self._accepted: dict[tuple[str, int], bool] = {}

    def runs(self, view: FrameView) -> list[RunRow]:
        accepted = self._accepted
        found = []
        for run in view.find(self._wanted):
            if run.kind == RunKind.PCHANNEL:
                found.append(run)
            elif run.name:
                life = run.name, run.incarnation
                shown = accepted.get(life)
                if shown is None:
                    shown = accepted[life] = self._shows(*life)
                if shown:
                    found.append(run)
        return found

    def _shows(self, name: str, incarnation: int) -> bool:
        if name not in self._choice:
            return False
        if (life := self._lives.get(name)) is not None:
            return life == incarnation
        return not self._known.is_over(self._pchannel, name, incarnation)


class _Everything:
    """Every name."""

    def __contains__(self, name: object) -> bool:
        return bool(name)


_EVERYTHING: Final = _Everything()
