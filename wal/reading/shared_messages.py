"""SharedMessages: the messages that one reader has built, for the other readers of the same frames with the same selection. Pure.

Owns: the lists that were built last, by frame, by the incarnations that a reader reads, and by its filters; at most so many bytes of them,
the oldest lists leave first. A list also leaves with its frame, because the copies of a broadcast keep the frame's payload in memory.
The messages of one frame may be built while it is written; no reader gets them before it is durable.
Messages never change, so all readers get the same objects; no reader changes a list that it got. A reader whose list has left builds it
again, so what is delivered never depends on what is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec

from wal.backends import StoredFrame
from wal.frame import FrameView, RunRow
from wal.message import ImmutableMessage, Origin
from wal.reading.assembly import assemble, assemble_runs
from wal.reading.options import EventFilter
from wal.reading.selection import BoundNames, Selection

__all__ = ["SharedMessages"]

SHARED_BYTES_MAX: Final = 8 * 1024 * 1024
"""The messages of the largest group commit by default (4.5 MiB, 4,096 records) and of a few usual ones; counted as `_cost` does."""
_MESSAGE_COST: Final = 256
"""Bytes of a message besides its payload and properties: its struct (88), tick, index, headers of the bytes, its place in the list."""

_LIST_COST: Final = 512
"""Bytes of a list besides its messages: its key, its entry and the list."""

_Key = tuple[int, BoundNames, frozenset[int] | None]
"""The position of the frame, what is read of it, and the types that pass."""

_Prepared = tuple[FrameView, Origin, BoundNames, frozenset[int] | None, list[ImmutableMessage], int]
"""Messages of a frame at a position to come: its view, their origin, what was read of it, the types that passed, and the cost."""

_set_field: Final = msgspec.structs.force_setattr


class SharedMessages:
    """The messages of the readers at the tail of one log. `size` counts the bytes that are kept."""

    __slots__ = ("_bytes_max", "_last", "_lists", "_prepared", "_start", "size")

    def __init__(self, *, bytes_max: int = SHARED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lists: OrderedDict[_Key, tuple[list[ImmutableMessage], int]] = OrderedDict()
        self._start = 0
        self._last: tuple[Selection, EventFilter, Origin] | None = None
        self._prepared: _Prepared | None = None
        self.size: int = 0

    def __len__(self) -> int:
        return len(self._lists)

    def assemble(
        self, frame: StoredFrame, origin: Origin, selection: Selection, event_filter: EventFilter
    ) -> list[ImmutableMessage]:
        """Returns what `assemble` returns for the same arguments, and raises what it raises. The caller must not change the list."""
        names, view = selection.bound, frame.view
        if names is None or event_filter.tick_min > view.header.first_tick:
            # Rare: the frame may decide which incarnation is read, or only some of its ticks pass.
            return assemble(frame, origin, selection, event_filter)
        key = (frame.position, names, event_filter.types)
        known = self._lists.get(key)
        if known is not None:
            return known[0]
        runs = selection.runs(view)
        messages = assemble_runs(view, runs, origin, event_filter)
        self._keep(key, messages, _cost(runs))
        self._last = selection, event_filter, origin
        return messages

    @property
    def names(self) -> frozenset[str]:
        """The vchannels of the reader that built messages last."""
        return (self._last and self._last[0].names) or frozenset()

    def prepare(self, view: FrameView) -> None:
        """Builds the messages of a frame whose position is not known yet, as the last reader would."""
        if self._last is None:
            return
        selection, event_filter, log = self._last
        names = selection.bound
        if names is None or event_filter.tick_min > view.header.first_tick:
            return
        origin = msgspec.structs.replace(log, position=-1)
        runs = selection.runs(view)
        messages = assemble_runs(view, runs, origin, event_filter)
        self._prepared = view, origin, names, event_filter.types, messages, _cost(runs)

    def settle(self, view: FrameView | None, position: int) -> None:
        """Keeps the prepared messages if this is their frame, which is at this position, and else drops them."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared[0] is view:
            _, origin, names, types, messages, size = prepared
            _set_field(origin, "position", position)  # nobody has seen it, and all these messages share it
            self._keep((position, names, types), messages, size)

    def forget(self, position: int) -> None:
        """Drops the lists of the frames up to this position, which have left the window, and keeps none of them from now on.

        A list that a slow reader built after those of later frames leaves with them.
        """
        self._start = position + 1
        lists = self._lists
        while lists and next(iter(lists))[0] <= position:
            self._drop_oldest()

    def _keep(self, key: _Key, messages: list[ImmutableMessage], size: int) -> None:
        if size > self._bytes_max or key[0] < self._start:
            return
        self._lists[key] = messages, size
        self.size += size
        while self.size > self._bytes_max:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, (_, size) = self._lists.popitem(last=False)
        self.size -= size


def _cost(runs: Sequence[RunRow]) -> int:
    """Returns the bytes that the messages of these runs take at most. The copies of a broadcast share their payload with the frame."""
    return _LIST_COST + sum(
        [run.body_end - run.body_start + _MESSAGE_COST * max(1, run.end - run.first) for run in runs]
    )
