"""What goes to a task: which pieces of the log it reads, and all that it needs to know to give the same rows however often it is run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

from pyspark.sql.datasource import InputPartition

from wal.message import Origin
from wal.spark.channel_choice import ChannelChoice
from wal.spark.frame_source import FrameSource
from wal.spark.planning import Piece

__all__ = ["WALPartition"]


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
