"""RecentFrames: the newest frames of a pchannel, as they were written, for the readers at its tail.

Owns: a bounded window of frames up to the durable end, complete from `start` on, and the messages that readers have built from them. All
tailing readers share both, so a frame is decoded once, and its messages are built once, for any number of readers with the same selection.
No reader asks the disk for what has just been written. One frame may be decoded while it is written; no page has it before `add`. A page is
exactly what the backend's `read` would return; positions below the window are read from the backend.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final

import msgspec

from wal.frame import EncodedFrame, FrameHeader, FrameView, RunKind, RunRow
from wal.message import LogPosition, Origin
from wal.read.assembly import MessagePage, assemble, assemble_runs
from wal.read.options import BoundNames, EventFilter, Selection
from wal.storage.base import FramePage, StoredFrame

RECENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""A few group commits of the largest kind, for each pchannel; counted as `cost_bytes` does."""
_FRAME_COST: Final = 8192
"""Bytes of the objects of a decoded frame besides its own bytes, measured with frames of one message …"""
_RECORD_COST: Final = 128
"""… and for each of its records."""


class RecentFrames:
    """Frames at or above `start`, oldest first."""

    __slots__ = ("_bytes_max", "_frames", "_page", "_prepared", "_size", "shared", "start")

    def __init__(self, start: int, *, bytes_max: int = RECENT_BYTES_MAX) -> None:
        self.start: int = start
        self._bytes_max = bytes_max
        self._size = 0
        self._frames: deque[_Recent | _ReadFrame] = deque()
        self._page: tuple[tuple[int, int, frozenset[str] | None, int], FramePage] | None = None
        """The page that was asked for last: at the tail many readers ask for the same one."""
        self._prepared: _Recent | None = None
        """A frame that is being written, decoded for the readers that wait for it."""
        self.shared: SharedMessages = SharedMessages()
        """The messages that were built from these frames last."""

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, position: int, frame: EncodedFrame) -> None:
        """Adds the next durable frame as it was written; the oldest frames leave when the window is full."""
        recent, self._prepared = self._prepared, None
        if recent is None or recent.frame is not frame:
            recent = _Recent(frame)
        recent.position = position
        self.shared.settle(recent.view, position)
        self._add(recent)

    def prepare(self, frame: EncodedFrame) -> None:
        """Decodes a frame that is being written, and builds its messages as the last reader did, unless an earlier one is prepared."""
        if self._prepared is None and not self.shared.names.isdisjoint((recent := _Recent(frame)).names):
            self._prepared = recent
            self.shared.prepare(recent.decode())
            self._make_room(recent.cost)  # while the disk writes; in `add` the readers would have to wait for it

    def add_stored(self, stored: StoredFrame) -> None:
        """Adds the next durable frame as it was read, with all its runs."""
        self._add(_ReadFrame(stored))

    def restart(self, start: int) -> None:
        """Empties the window and begins again at `start`: frames below it were not added."""
        self._frames.clear()
        self._size = 0
        self._page = self._prepared = None
        self.shared.forget(start - 1)
        self.start = start

    def page(self, start: int, end: int, *, names: frozenset[str] | None, bytes_max: int) -> FramePage | None:
        """Returns the frames in [start, end) that a reader of these names (None: of all) sees, about `bytes_max` bytes.

        Returns None below the window.
        """
        if start < self.start:
            return None
        question = (start, end, names, bytes_max)
        if self._page is not None and self._page[0] == question:
            return self._page[1]
        frames: list[StoredFrame] = []
        next_position = end
        last_event: LogPosition | None = None
        promised_tick = taken = 0
        for recent in self._from(start):
            if recent.position >= end:
                break
            if taken >= bytes_max:
                next_position = recent.position
                break
            header = recent.header
            if header.indices:
                last_event = (recent.position, header.indices - 1)
            promised_tick = max(promised_tick, header.promised_tick)
            if names is None or recent.pchannel_wide or not names.isdisjoint(recent.names):
                frames.append(recent.stored())
                taken += header.frame_bytes
        page = FramePage(frames, next_position, last_event, promised_tick)
        self._page = question, page
        return page

    def _add(self, frame: _Recent | _ReadFrame) -> None:
        self._page = None
        self._frames.append(frame)
        self._size += frame.cost
        self._make_room(0)

    def _make_room(self, size: int) -> None:
        """Drops the oldest frames until there is room for `size` more bytes, or no frame is left."""
        while self._size + size > self._bytes_max and self._frames:
            oldest = self._frames.popleft()
            self._size -= oldest.cost
            self.start = oldest.position + 1
            self.shared.forget(oldest.position)

    def _from(self, start: int) -> list[_Recent | _ReadFrame]:
        """Returns the frames at or above `start`. Readers are near the end, so the search begins at the newest frame."""
        frames: list[_Recent | _ReadFrame] = []
        for recent in reversed(self._frames):
            if recent.position < start:
                break
            frames.append(recent)
        frames.reverse()
        return frames


def cost_bytes(header: FrameHeader) -> int:
    """Returns the bytes that a decoded frame takes in memory; for small frames, the common case, that is mostly its objects."""
    return header.frame_bytes + _FRAME_COST + _RECORD_COST * header.records


class _Recent:
    """A frame as it was written; decoded when the first reader wants it."""

    __slots__ = ("_names", "_stored", "cost", "frame", "header", "pchannel_wide", "position", "view")

    def __init__(self, frame: EncodedFrame) -> None:
        self.position = -1
        """Set when the frame is durable."""
        self.frame = frame
        self.view: FrameView | None = None
        self.header = frame.header
        self.cost = cost_bytes(frame.header)
        self.pchannel_wide = frame.pchannel_wide
        self._names: frozenset[str] | None = None
        self._stored: StoredFrame | None = None

    @property
    def names(self) -> frozenset[str]:
        """The vchannels in it; collected when the first reader asks."""
        names = self._names
        if names is None:
            names = self._names = frozenset([name for name, _ in self.frame.vchannels])
        return names

    def stored(self) -> StoredFrame:
        """Returns the decoded frame, the same for all readers."""
        stored = self._stored
        if stored is None:
            stored = self._stored = StoredFrame(self.position, self.position + 1, self.view or self.decode())
        return stored

    def decode(self) -> FrameView:
        """Returns the decoded frame, and keeps it."""
        view = self.view
        if view is None:
            head, *blocks = self.frame.buffers
            starts = [0]
            for block in blocks:
                starts.append(starts[-1] + len(block))

            def body(start: int, end: int) -> bytes:
                first, last = bisect_left(starts, start), bisect_left(starts, end)
                return blocks[first] if last == first + 1 else b"".join(blocks[first:last])

            view = self.view = FrameView.decode(head, body, header=self.header, own=True)
        return view


class _ReadFrame:
    """A frame that was read from the log of another process."""

    __slots__ = ("_stored", "cost", "header", "names", "pchannel_wide", "position")

    def __init__(self, stored: StoredFrame) -> None:
        view = stored.view
        self.position = stored.position
        self.header = view.header
        self.cost = cost_bytes(view.header)
        kinds = {run.kind for run in view.runs}
        self.pchannel_wide = RunKind.PCHANNEL in kinds
        self.names = frozenset([run.name for run in view.runs if run.kind in (RunKind.VCHANNEL, RunKind.COPY)])
        self._stored = stored

    def stored(self) -> StoredFrame:
        return self._stored


SHARED_BYTES_MAX: Final = 8 * 1024 * 1024
"""The messages of the largest group commit by default (4.5 MiB, 4,096 records) and of a few usual ones; counted as `_cost` does."""
_MESSAGE_COST: Final = 256
"""Bytes of a message besides its payload and properties: its struct (88), tick, index, headers of the bytes, its place in the list."""

_LIST_COST: Final = 512
"""Bytes of a list besides its messages: its key, its entry and the list."""

_Key = tuple[int, BoundNames, frozenset[int] | None]
"""The position of the frame, what is read of it, and the types that pass."""

_Prepared = tuple[FrameView, Origin, BoundNames, frozenset[int] | None, MessagePage, int]
"""Messages of a frame at a position to come: its view, their origin, what was read of it, the types that passed, and the cost."""

_set_field: Final = msgspec.structs.force_setattr


class SharedMessages:
    """The messages that one reader has built, for the other readers of the same frames with the same selection. Pure.

    Owns: the lists that were built last, by frame, by the incarnations that a reader reads, and by its filters; within a bound of bytes,
    beyond which the oldest lists leave first. A list also leaves with its frame, because the copies of a broadcast keep the frame's payload
    in memory. The messages of one frame may be built while it is written; no reader gets them before it is durable. Messages never change,
    so all readers get the same objects. A reader whose list has left builds it again, so deliveries never depend on this cache.

    `size` counts the bytes of the lists.
    """

    __slots__ = ("_bytes_max", "_last", "_lists", "_prepared", "_start", "size")

    def __init__(self, *, bytes_max: int = SHARED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lists: OrderedDict[_Key, tuple[MessagePage, int]] = OrderedDict()
        self._start = 0
        self._last: tuple[Selection, EventFilter, Origin] | None = None
        self._prepared: _Prepared | None = None
        self.size: int = 0

    def __len__(self) -> int:
        return len(self._lists)

    def assemble(self, frame: StoredFrame, origin: Origin, selection: Selection, event_filter: EventFilter) -> MessagePage:
        """Returns what `assemble` returns for the same arguments, and raises what it raises."""
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
        newest = next(reversed(self._lists.values()), None)
        if newest is None or newest[0].is_built:
            messages.build()  # while the disk writes; readers of columns alone do not need it
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

    def _keep(self, key: _Key, messages: MessagePage, size: int) -> None:
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
    return _LIST_COST + sum([run.body_end - run.body_start + _MESSAGE_COST * max(1, run.end - run.first) for run in runs])
