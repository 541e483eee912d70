"""The figures that a client takes from the results of its appends: SeenTick, the largest tick, and Written, its events and frames. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from wal.rpc.api import result_pb2
from wal.rpc.positions import id_from_bytes

__all__ = ["SeenTick", "Written"]


class SeenTick:
    """The largest tick that this client has seen. Its later appends get larger ones, whichever server executes them."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int = 0

    def saw(self, tick: int) -> None:
        """Notes a tick."""
        if tick > self.value:
            self.value = tick


class Written:
    """The events that a client appended to a pchannel, and the frames that hold them."""

    __slots__ = ("_newest", "events", "frames")

    def __init__(self) -> None:
        self.frames: int = 0
        self.events: int = 0
        self._newest = -1

    def count(self, appended: Iterable[result_pb2.AppendedRange]) -> None:
        """Counts results, but not those of duplicates."""
        for results in appended:
            if results.first_id and not results.duplicate:
                self.events += results.count
                position = id_from_bytes("first_id", results.first_id).position
                if position > self._newest:
                    self._newest = position
                    self.frames += 1
