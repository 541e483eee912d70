"""The figures of a client: the largest tick in its results, its events and frames, and its uncommitted bodies."""

from __future__ import annotations

from collections.abc import Iterable

from wal.rpc.api import result_pb2
from wal.rpc.converters import id_from_bytes


class SeenTick:
    """The largest tick that this client has seen. Its later appends get larger ones, whichever server executes them."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int = 0

    def saw(self, tick: int) -> None:
        """Notes a tick."""
        if tick > self.value:
            self.value = tick


class OpenTxns:
    """The open transactions of a client on a pchannel, and the bytes that their bodies take."""

    __slots__ = ("bytes", "count")

    def __init__(self) -> None:
        self.count: int = 0
        self.bytes: int = 0


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
