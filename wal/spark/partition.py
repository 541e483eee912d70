"""WALPartition: the data sent to a task, and the selection of the runs of a frame that the task returns.

A partition has everything that a task needs to return the same rows at every run. A vchannel that the read names is read in the planned
incarnation, even when it was dropped since. If a task meets an incarnation that is later than the plan, a stream fails or returns its rows.
For all other vchannels the task returns every incarnation that has not ended, so that vchannels that are created later appear
automatically.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field, replace
from typing import Final, Self

from pyspark.sql.datasource import InputPartition

from wal.channels.vchannel_map import VChannelView
from wal.errors import ChannelNotExistError
from wal.frame import FrameView, RunKind, RunRow
from wal.message import Origin
from wal.read.options import Selection
from wal.spark.edges import was_dropped
from wal.spark.frame_source import LogSource
from wal.spark.options import ChannelChoice
from wal.spark.planning import EventRange


@dataclass
class WALPartition(InputPartition):
    """The pieces of one task. `origins` identify the log of each pchannel as planned, `incarnations` the named vchannels."""

    source: LogSource
    choice: ChannelChoice
    pieces: tuple[EventRange, ...] = ()
    origins: dict[str, Origin] = field(default_factory=dict)
    incarnations: dict[str, int] = field(default_factory=dict)
    types: frozenset[int] | None = None
    fail_on_data_loss: bool = True
    follows: bool = False
    """True for a stream, which never skips a new incarnation of a named vchannel: the stream fails or continues with it."""

    def with_pieces(self, pieces: tuple[EventRange, ...]) -> Self:
        """Returns a copy with these pieces, and only the origins of their pchannels."""
        origins = {piece.pchannel: self.origins[piece.pchannel] for piece in pieces}
        return replace(self, pieces=pieces, origins=origins)


class RowSelection(Selection):
    """Selects the runs of a frame that a task returns. `names` are the selected names in the frames, None for all."""

    __slots__ = ("_accepted", "_known", "_names", "_partition", "_pchannel")

    def __init__(self, pchannel: str, names: frozenset[str] | None, partition: WALPartition, view: VChannelView) -> None:
        super().__init__(dict.fromkeys(names or ()), floor=0)
        self.names = names
        self._pchannel = pchannel
        self._names: Container[str] = _EVERYTHING if names is None else names
        self._partition = partition
        self._known = view
        self._accepted: dict[tuple[str, int], bool] = {}

    def runs(self, view: FrameView) -> list[RunRow]:
        return [
            run
            for run in view.runs.find(self._names)
            if run.kind == RunKind.PCHANNEL or (run.name and self.accepts(run.name, run.incarnation))
        ]

    def accepts(self, name: str, incarnation: int) -> bool:
        key = name, incarnation
        accepted = self._accepted.get(key)
        if accepted is None:
            accepted = self._accepted[key] = name in self._names and self._shows(name, incarnation)
        return accepted

    def _shows(self, name: str, incarnation: int) -> bool:
        partition = self._partition
        if name not in partition.choice:
            return False
        planned = partition.incarnations.get(name)
        if planned is not None and (incarnation <= planned or not partition.follows):
            return planned == incarnation
        if planned is not None and partition.fail_on_data_loss:
            raise ChannelNotExistError(was_dropped(name))
        return not self._known.is_over(self._pchannel, name, incarnation)


class _Everything:
    """Contains every name."""

    def __contains__(self, name: object) -> bool:
        return bool(name)


_EVERYTHING: Final = _Everything()
