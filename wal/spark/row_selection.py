"""RowSelection: which runs of a frame a Spark task shows: those of the vchannels asked for, each in a life that is not over.

A vchannel that was named is read in the life that was planned, also when it was dropped since: a batch that is read again has the same
rows. Where a later life of it is met, nobody had heard of that when the batch was planned: a stream fails over it or has its rows. Of
all others every life is shown that is not known to be over, so that vchannels made later appear by themselves.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from wal.errors import ChannelNotExistError
from wal.frame import FrameView, RunKind, RunRow
from wal.reading import Selection
from wal.spark.data_loss import was_dropped
from wal.spark.frame_source import Lives
from wal.spark.partitions import WALPartition

__all__ = ["RowSelection"]


class RowSelection(Selection):
    """`names`: those of the choice that the frames hold, None for all."""

    __slots__ = ("_accepted", "_known", "_partition", "_pchannel", "_wanted")

    def __init__(self, pchannel: str, names: frozenset[str] | None, partition: WALPartition, known: Lives) -> None:
        super().__init__(dict.fromkeys(names or ()), floor=0)
        self._pchannel = pchannel
        self._wanted: Container[str] = _EVERYTHING if names is None else names
        self._partition = partition
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
        partition = self._partition
        if name not in partition.choice:
            return False
        life = partition.lives.get(name)
        if life is not None and (incarnation <= life or not partition.follows):
            return life == incarnation
        if life is not None and partition.fail_on_data_loss:
            raise ChannelNotExistError(was_dropped(name))
        return not self._known.is_over(self._pchannel, name, incarnation)


class _Everything:
    """Every name."""

    def __contains__(self, name: object) -> bool:
        return bool(name)


_EVERYTHING: Final = _Everything()
