"""What goes to a task: which pieces of the log it reads, and all that it needs to know to give the same rows however often it is run."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field, replace
from typing import Final, Self

from pyspark.sql.datasource import InputPartition

from wal.errors import ChannelNotExistError
from wal.frame import FrameView, RunKind, RunRow
from wal.message import Origin
from wal.reading import Selection
from wal.spark.edges import was_dropped
from wal.spark.frame_source import FrameSource, Lives
from wal.spark.options import ChannelChoice
from wal.spark.planning import Piece

__all__ = ["RowSelection", "WALPartition"]


@dataclass
class WALPartition(InputPartition):
    """The pieces of one task. `origins` name the log of each pchannel as it was planned, `lives` the vchannels asked for by name."""

    source: FrameSource
    choice: ChannelChoice
    pieces: tuple[Piece, ...] = ()
    origins: dict[str, Origin] = field(default_factory=dict)
    lives: dict[str, int] = field(default_factory=dict)
    types: frozenset[int] | None = None
    fail_on_data_loss: bool = True
    follows: bool = False
    """Of a stream: it goes on with a new life of a vchannel that it names, or fails over it, but never passes it by."""

    def with_pieces(self, pieces: tuple[Piece, ...]) -> Self:
        """The same for these pieces; only what they need of the logs goes with them."""
        origins = {piece.pchannel: self.origins[piece.pchannel] for piece in pieces}
        return replace(self, pieces=pieces, origins=origins)


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
