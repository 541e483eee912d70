"""ReadOnlyPChannelLog: the blocking interface of a log, for a process or a thread that reads one pchannel's log and does not write it.

The log may have a writer in another process. A snapshot has its end at one moment, and reads end there: frames above may still be cut off
and rewritten. Every kind of log implements it: a journal on this host, a topic on Pulsar, a log on the network. The bridge and Spark use it
in the caller's thread, the scanners of a read-only log on an event loop with threads.

Searches have a general form here, which needs pages alone; a log with an index, or a server, answers them itself.
"""

from __future__ import annotations

import abc
from collections.abc import Hashable, Iterator
from typing import Protocol

from wal.errors import TruncatedError
from wal.frame import RunName
from wal.message import Lineage, LogPosition
from wal.storage import search
from wal.storage.base import FramePage, FrameWeight, LogSnapshot, RowsPage, RowsRequest, StoredFrame, Unread
from wal.storage.search import PAGE_BYTES, MomentRequest, PageRequest, TickRequest, Weighed, run


class VChannelChoice(Hashable, Protocol):
    """The vchannels that a read selects: a set of names, or a pattern."""

    def __contains__(self, name: object, /) -> bool: ...


class ReadOnlyPChannelLog(abc.ABC):
    """One pchannel's log, open for reading. Its calls block; it needs no event loop.

    Any number of threads may call, but `names` and `weights`, which cache their results, are for a single thread.

    An implementation guarantees that frames below the end of any snapshot are read whole and in order, or that a call raises:
    TruncatedError for truncated frames, also if truncated during the read, CorruptionError for damage, StorageError when the log cannot be
    reached, and ClosedError after `close`, or when the log was recreated.
    """

    pchannel: str
    incarnation: int
    """The incarnation of the log that is read. A recreated log has another one."""
    lineage: Lineage
    """The restores of the log."""
    refresh_waits: bool
    """Whether `refresh` blocks, for a server say, so that an event loop must call it in a thread."""

    @property
    @abc.abstractmethod
    def earliest(self) -> LogPosition:
        """The (position, index) of the first event that is not truncated, as far as known without blocking."""

    @property
    def local_earliest(self) -> LogPosition:
        """The earliest event that the log stores itself: above `earliest` where an archive has what lies between."""
        return self.earliest

    @property
    @abc.abstractmethod
    def last_truncated(self) -> LogPosition | None:
        """The newest event below `earliest`, None without one or if it is unknown; known after `reach`. Never blocks."""

    @property
    def truncated_tick(self) -> int | None:
        """A tick as `ReadableLog.truncated_tick`, None if it is not known. Never blocks."""
        return None

    @abc.abstractmethod
    def refresh(self) -> LogSnapshot:
        """Returns the log as it is now. Its `newest` may be older than its end, and a server's answer may be reused for a while."""

    @abc.abstractmethod
    def reach(self) -> LogSnapshot:
        """Returns the log as it is now, with the newest event for certain."""

    def moment(self) -> LogSnapshot:
        """Returns the log as it is now, with its last truncated event if that can be known; `newest` may be older than its end."""
        return self.reach()

    @abc.abstractmethod
    def page(self, start: int, end: int, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        """Returns frames in [start, end) that hold a run of one of these names, as `ReadableLog.read` does; `end` is durable."""

    def rows_page(self, request: RowsRequest) -> RowsPage | None:
        """Returns frames as rows if the next ones fit; None if they do not, or if this kind of log cannot: then take a `page`.

        Raises TruncatedError as `page` does; any other error is left to `page`, which raises it.
        """
        return None

    def head_page(self, request: PageRequest) -> FramePage:
        """Returns at least the frames of this page; their bodies, and the choice of names, may be left out."""
        return self.page(request.start, request.end, request.names, request.bytes_max)

    def frames(self, start: int, end: int, bytes_max: int = PAGE_BYTES) -> Iterator[StoredFrame]:
        """Yields all frames in [start, end), from pages of `bytes_max` bytes; `end` is durable."""
        while start < end:
            page = self.page(start, end, None, bytes_max)
            yield from page.frames
            start = page.next_position

    def heads(self, start: int, end: int, names: frozenset[str] | None = None, bytes_max: int = PAGE_BYTES) -> Iterator[StoredFrame]:
        """Yields at least the frames in [start, end) that hold a run of one of these names, or all; their bodies may be left out."""
        while start < end:
            page = self.head_page(PageRequest(start, end, names, bytes_max))
            yield from page.frames
            start = page.next_position

    def answer(self, request: PageRequest | TickRequest | MomentRequest) -> FramePage | LogPosition | LogSnapshot:
        """Returns the answer of this log to a question."""
        match request:
            case MomentRequest():
                return self.refresh()
            case TickRequest():
                return self.position_after(request.time_tick, request.start, request.end)
            case _ if request.whole:
                return self.page(request.start, request.end, request.names, request.bytes_max)
            case _:
                return self.head_page(request)

    @abc.abstractmethod
    def bytes_between(self, start: int, end: int) -> int:
        """Returns the approximate number of bytes of log in [start, end). Never blocks."""

    def bytes_for(self, names: frozenset[str] | None, start: LogPosition, end: int) -> int:
        """Returns the bytes that `unread_for` counts, None: for all vchannels. It may block."""
        return self.bytes_between(start[0], end)

    def unread_for(self, names: frozenset[str], start: LogPosition, end: int) -> Unread:
        """Returns what `ReadableLog.unread_for` does. It may block."""
        return Unread(self.bytes_for(names, start, end))

    def measure(self, start: int, end: int) -> int:
        """Returns about how many bytes a search goes through in [start, end). Never blocks."""
        return self.bytes_between(start, end)

    def position_after(self, tick: int, start: int, end: int) -> LogPosition:
        """Returns the log position in [start, end) after all events with a tick up to this one; (end, 0) without a larger tick."""
        return run(search.position_after(tick, start, end, self.measure), self.head_page)

    def event_below(self, since: LogPosition, below: LogPosition) -> LogPosition | None:
        """Returns the newest durable event in [since, below), None without one or if it may be truncated. Reads few frames."""
        below = below if below[1] else (min(below[0], self.moment().durable_end), 0)
        return run(search.event_below(since, below, self.earliest, self.measure), self.head_page)

    def newest_tick(self) -> int:
        """Returns the tick of the newest durable event, or 0 if all events are truncated."""
        return run(search.newest_tick(self.reach().newest, self.earliest), self.head_page)

    def names(self, start: int, end: int, choice: VChannelChoice) -> frozenset[str] | None:
        """Returns the names of the choice that have frames in [start, end), and perhaps others of the choice; None if they are unknown, so
        that every frame is read.
        """
        return choice if isinstance(choice, frozenset) else None

    def weights(
        self, start: int, end: int, choice: VChannelChoice | None, *, rows_max: int | None = None, bytes_max: int | None = None
    ) -> list[FrameWeight]:
        """Returns the weights of the frames in [start, end) that hold rows of this choice, in the order of the log.

        With a limit it ends after the frame that brings the total above `rows_max` rows or `bytes_max` bytes, and names only frames that
        hold rows. Without one, adjacent frames may share one weight, of which only `position`, `next_position` and `size` are valid.
        """
        weights: list[FrameWeight] = []
        rows = size = 0
        while start < end and not search.exceeds(rows, rows_max) and not search.exceeds(size, bytes_max):
            part = self.weigh(
                start,
                end,
                choice,
                rows_max=None if rows_max is None else rows_max - rows,
                bytes_max=None if bytes_max is None else bytes_max - size,
            )
            weights += part.weights
            rows += sum(weight.rows for weight in part.weights)
            size += sum(weight.size for weight in part.weights)
            start = part.upto
        return weights

    def weigh(self, start: int, end: int, choice: VChannelChoice | None, *, rows_max: int | None, bytes_max: int | None) -> Weighed:
        """Returns the first of these weights, and the position up to which they are complete."""
        if rows_max is None and bytes_max is None:
            return Weighed(search.weigh_pieces(start, end, self.bytes_between), end)
        return run(search.weigh(start, end, choice, rows_max=rows_max, bytes_max=bytes_max), self.head_page)

    @abc.abstractmethod
    def close(self) -> None:
        """Releases the log. Idempotent. If `refresh_waits`, calls in progress raise ClosedError; otherwise no call may be in progress."""


class ReadOnlyStoredLog(ReadOnlyPChannelLog):
    """A log that is read where it is stored, with what its writer stores for recovery. Its calls block and are thread-safe."""

    @abc.abstractmethod
    def kept(self) -> tuple[LogPosition, LogPosition]:
        """Returns the earliest event, and how far the writer may truncate the log next ((0, 0): not at all), both at this moment.

        See `PChannelLog.intend`. The intent of a dead writer is not shown if its death is known.
        """

    def first_after(self, tick: int, begun: LogPosition) -> LogPosition | None:
        """Returns the first event with a later tick, or the end; None if such events at or after `begun` were truncated."""
        while True:
            earliest, state = self.kept()[0], self.reach()
            try:
                lost = run(search.truncated_tick(self.truncated_tick, earliest, state.durable_end, state.promised_tick), self.head_page)
                if lost > tick and earliest > begun:
                    return None
                return max(earliest, self.position_after(tick, earliest[0], state.durable_end))
            except TruncatedError:
                if self.kept()[0] == earliest:
                    raise  # otherwise it was truncated meanwhile

    @abc.abstractmethod
    def keyed_page(self, start: int, end: int, bytes_max: int) -> FramePage:
        """Returns the durable frames in [start, end) that a recovery needs, truncated or not, with all their runs.

        Raises TruncatedError if frames from `start` on were freed.
        """

    @abc.abstractmethod
    def last_events(self, start: int, names: frozenset[str]) -> tuple[int, dict[RunName, LogPosition]]:
        """Returns the newest durable event at or after `start` of each of these vchannels, truncated or not, and where it began to look.

        That is after `start` if frames from there on were freed. Of several incarnations of a name only the newest is certain to be there.
        """

    @abc.abstractmethod
    def checkpoint_position(self) -> int | None:
        """Returns the position of the newest state that is stored for recovery, or None without one."""

    @abc.abstractmethod
    def checkpoint_state(self, position: int) -> bytes | None:
        """Returns the state stored for this position, None if a newer one has replaced it meanwhile. CorruptionError if it is damaged."""
