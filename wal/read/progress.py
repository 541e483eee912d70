"""Progress: the state of one read, from its beginning to its end. How a read begins, continues and ends. Pure.

    begin --> advance --PAGE--> take --> assemble --> MESSAGES --> hand_over --+
                 ^  |                                                          |
                 |  +--TAIL--> the caller waits for the log to move            |
                 |  +--END---> everything that was asked for was handed over   |
                 +-------------------------------------------------------------+

A reader drives it and fetches the pages: a scanner on an event loop (`loop.py`), `wal.bridge` and Spark's tasks in a thread. `Progress`
takes a snapshot of the tail, returns its next need (`Need`), takes a page, and returns messages. It never waits and never fetches.

* The beginning is decided once, as a `ReadStart` (`start.py`). `beginning.py` asks for what the decision needs.
* Each message comes once, in tick order, and the position moves exactly with what was handed over, also over ranges of the log that hold
  nothing for this reader. A caller that is cancelled before a hand-over gets the same messages again.
* The end is the tick or the position that the options name, or the durable end when the read began without following.

What can go wrong: the next page was truncated (TruncatedError names the earliest event that is left), the log is damaged
(CorruptionError), or it ends below what was read before (LogWentBackError). A vchannel that is created on another pchannel moves the read
there (`move`).
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Iterator
from operator import length_hint
from typing import Final

import msgspec

from wal.message import ImmutableMessage, Lineage, LogPosition, MessageID, MessageType, Origin, TimeTickMessage
from wal.read.assembly import NO_MESSAGES, MessagePage, assemble
from wal.read.frame_rows import FrameRows, frame_rows
from wal.read.options import NOTHING, All, Last, Latest, Reached, ReadOptions, ReadPosition, Selection, StartAt, TimeTickGTE
from wal.read.recent import SharedMessages
from wal.read.start import ReadStart, read_start, resumed_start
from wal.storage.base import FramePage, StoredFrame, TailView


class Need(enum.Enum):
    """The next need of a read.

    MESSAGES: nothing, `messages` are to be handed over. FRAME: a decision on `frame`, to `assemble` it or to take its `rows`.
    PAGE: the frames of [`at`, `page_end`), by `take`. TAIL: a move of the tail. OVER: nothing, the read has ended.
    """

    MESSAGES = enum.auto()
    FRAME = enum.auto()
    PAGE = enum.auto()
    TAIL = enum.auto()
    OVER = enum.auto()


class HandOver(abc.ABC):
    """The current messages of a read, and which of them its caller was handed: the first `following`."""

    __slots__ = ("_given", "coming", "message_count", "messages")

    def __init__(self) -> None:
        self.messages: MessagePage = NO_MESSAGES
        self.coming: Iterator[ImmutableMessage] | None = None
        """Taking a message from it hands the message over: `async for` needs one step of an iterator and counts nothing. See `open`."""
        self._given = 0
        """How many messages were handed over in another way, while there is no `coming`."""
        self.message_count: int = 0

    def open(self) -> Iterator[ImmutableMessage]:
        """Returns the messages that were not handed over as `coming`, one by one."""
        following, messages = self.following, self.messages.build()
        self.coming = coming = iter(messages[following:] if following else messages)
        return coming

    def page(self, count_max: int | None = None) -> MessagePage:
        """Returns the messages that were not handed over, at most `count_max`, without handing them over."""
        messages, following = self.messages, self.following
        count = len(messages)
        stop = count if count_max is None else min(following + count_max, count)
        return messages.part(following, stop) if following or stop < count else messages

    def hand_over(self, count: int) -> None:
        """Hands over the next `count` messages, or fewer if fewer are ready."""
        self._given, self.coming = min(self.following + count, len(self.messages)), None

    @property
    def following(self) -> int:
        """The number of current messages that were handed over."""
        return self._given if self.coming is None else len(self.messages) - length_hint(self.coming)

    @property
    @abc.abstractmethod
    def tick(self) -> int:
        """The tick up to which everything was handed over."""

    @property
    @abc.abstractmethod
    def position(self) -> ReadPosition | None:
        """The position after what was handed over, including ranges that held nothing for this reader; None before anything."""

    @abc.abstractmethod
    def let_go(self) -> None:
        """Drops the current messages and pages: they are neither handed over nor count as passed."""


class Progress(HandOver):
    """The state of the read of one pchannel."""

    __slots__ = (
        "_cursor_at", "_end", "_first", "_frame_reached", "_frames", "_log", "_options", "_page_reached", "_reached", "_shared",
        "_start", "_told_tick", "at", "frame", "frame_count", "page_count", "page_end", "selection",
    )  # fmt: skip

    def __init__(self, options: ReadOptions) -> None:
        super().__init__()
        self._options = options
        self._log = Origin("", 0, 0)
        self.selection: Selection
        """The runs that this reader sees; set by `begin`."""
        self._cursor_at: LogPosition | None = None
        """Where a cursor says that the read begins, instead of the policy."""
        self._first: LogPosition = (0, 0)
        """Where the search for the beginning ended, if the options need one."""
        self._start: ReadStart | None = None
        """Where the read began; None once all remaining frames belong to the read as a whole."""
        self._end: Reached | None = None
        """Where the read ends, once that is decided; None while it follows. See `_decide_end`."""
        self.at: int = 0
        """Where the next page begins."""
        self.page_end: int = 0
        """Where the page that is needed ends."""
        # The frames of the page that are not yet assembled, the next one last. An empty deque would take ten times the memory.
        self._frames: list[StoredFrame] = []
        self._shared: SharedMessages | None = None
        """Where the messages of these frames may be built already; None if this reader has the frames for itself."""
        self.frame: StoredFrame
        """The frame that `FRAME` is about, until it is assembled: a read that waits at the tail holds no frame."""
        self._reached = NOTHING
        """The progress of the read before the current messages …"""
        self._frame_reached = NOTHING
        """… once the messages of the current frame are handed over …"""
        self._page_reached = NOTHING
        """… and once the last frame of the page is."""
        self._told_tick = 0
        self.frame_count: int = 0
        self.page_count: int = 0

    # -- beginning

    def adopt(self, lineage: Lineage) -> ReadOptions:
        """Takes the ids in the options as those of a log with this lineage, and returns the options. Call it before `begin`.

        Raises LogWentBackError for an id whose event was lost by a restore.
        """
        if lineage.restores:
            self._options = self._options.adopted(lineage.current)
        return self._options

    def go_on(self, start: LogPosition, position: ReadPosition | None) -> None:
        """Makes the read begin at a cursor, whatever the options say. Call it before `begin`.

        `start` is the log position below which nothing is left for the reader, `position` the reader's position there.
        """
        self._options = msgspec.structs.replace(self._options, policy=All(), resume=position)
        self._cursor_at = start

    def searched_bound(self) -> TimeTickGTE | Last | None:
        """Returns what the read begins at if that has to be searched for: `Last`, or the lowest tick that passes a moment and the filters.

        Call it after `go_on`.
        """
        options = self._options.with_moment()
        if isinstance(options.policy, Last):
            return options.policy
        tick = options.event_filter.tick_min
        return TimeTickGTE(min(tick, (1 << 64) - 1)) if tick and not isinstance(options.policy, Latest) else None

    def begin_at(self, first: LogPosition) -> None:
        """Makes the read begin no earlier than at the log position that this search found. Call it before `begin`."""
        self._first = first

    def begin(
        self,
        log: Origin,
        selection: Selection,
        tail: TailView,
        earliest: LogPosition,
        *,
        after: MessageID | None = None,
        last_truncated: Callable[[], LogPosition | None] = lambda: None,
    ) -> MessageID | None:
        """Fixes where the read begins; returns the id to begin at if that has been truncated.

        `log` names the log (an origin in it, at any position), `earliest` its first event that is not truncated. `after` is the event
        to start after if the policy names a body of it, and `last_truncated` returns the newest event below `earliest`, if that is known.
        Raises InvalidArgumentError for an id of another log, or above the durable end.
        """
        self._log, self.selection = log, selection
        if self._options.resume is None and self._cursor_at is None and isinstance(self._options.policy, All | StartAt | Last):
            earliest = max(earliest, self._first)
        self._options = self._options.with_moment()
        if selection.begin > earliest[0] and self._begins_anywhere:
            earliest = (selection.begin, 0)
        if self._cursor_at is not None:
            start = resumed_start(self._options, log, earliest, self._cursor_at)
        else:
            start = read_start(self._options, log, tail, earliest, after=after, last_truncated=last_truncated)
        if isinstance(start, MessageID):
            return start
        if self._first > max(start.first, (start.at, 0), start.after or (0, 0)):  # no event between them passes the filters
            start = ReadStart(self._first[0], self._first, reached=start.reached)
        if not self._options.follow:
            self._end = Reached(tail.newest, tail.promised_tick, (tail.durable_end, 0))
        self._start, self._reached, self.at = start, start.reached, start.at
        return None

    @property
    def _begins_anywhere(self) -> bool:
        """Whether the read begins with the first event that there is, and not at an event or a cursor."""
        return isinstance(self._options.policy, All) and self._options.resume is None and self._cursor_at is None

    def move(self, log: Origin, tail: TailView, *, since: LogPosition | None = None) -> None:
        """Continues in another log, because the vchannel that the read waits for was created there. So far nothing was for this reader.

        The read begins there at the durable end, or at the event `since` if the vchannel may have been created some time ago.
        """
        self._log = log
        self.at = tail.durable_end if since is None else since[0]
        if self._end is not None and self._end.position != _WITHIN_A_FRAME:
            self._end = Reached(None, self._end.tick, (tail.durable_end, 0))
        self._start = None if since is None else ReadStart(since[0], since)
        self._reached = Reached(None, self._reached.tick, since or (self.at, 0))
        self._frame_reached = Reached(tick=self._frame_reached.later(self._page_reached).tick)
        self._page_reached = NOTHING
        self._frames.clear()

    # -- continuing

    def advance(self, tail: TailView) -> Need:
        """Continues until there are messages, or something else is needed; never returns FRAME.

        The current messages count as handed over. Raises CorruptionError for a damaged frame, and at the end of a log that has ended the
        log's failure.
        """
        while True:
            need = self.step(tail)
            if need is not Need.FRAME:
                return need
            if self.assemble():
                return Need.MESSAGES

    def step(self, tail: TailView) -> Need:
        """Returns the next need of the read, frame by frame. The current messages count as handed over."""
        self.settle()
        if self._frames:
            self.frame = self._frames.pop()
            return Need.FRAME
        if self.at < (limit := self._limit(tail)):
            if tail.failure is not None:
                raise tail.failure
            self.page_end = limit
            return Need.PAGE
        end_tick = self._decide_end(tail)
        if end_tick is None and tail.failure is not None:
            raise tail.failure
        tick = tail.promised_tick if end_tick is None else end_tick
        if self._options.include_time_ticks and tick > self._told_tick:
            self._tell_tick(tick)
            return Need.MESSAGES
        return Need.TAIL if end_tick is None else Need.OVER

    def has_page(self, tail: TailView) -> bool:
        """Returns whether the read continues with another page after its frames."""
        return self.at < self._limit(tail) and tail.failure is None

    def _limit(self, tail: TailView) -> int:
        """Returns where the pages of the read end for now."""
        return tail.durable_end if self._end is None else min(self._end.position[0], tail.durable_end)

    def take(self, page: FramePage, shared: SharedMessages | None = None) -> None:
        """Takes the page that was needed; it may reach beyond `page_end`. `shared` is for a page that other readers take as well."""
        self._shared = shared
        self.at = page.next_position
        self.page_count += 1
        end = self._end
        if end is not None and (page.promised_tick > end.tick or page.next_position > end.position[0]):
            # The page reaches beyond the end of this read: only its frames below the end count.
            self._frames = [frame for frame in reversed(page.frames) if frame.position < end.position[0]]
            self._page_reached = NOTHING
        else:
            self._frames = page.frames[::-1]
            self._page_reached = Reached(page.last_event, page.promised_tick, (page.next_position, 0))

    def assemble(self) -> bool:
        """Builds `messages` from the current frame; returns whether there are any."""
        frame = self.frame
        build = assemble if self._shared is None else self._shared.assemble
        messages = build(frame, self.origin(frame.position), self.selection, self._options.event_filter)
        if messages and (start := self._start) is not None:
            messages = MessagePage(start.skip(frame.position, messages))
            if start.is_passed(frame.position):
                self._start = None
        self._take_up(frame)
        until = self._options.until_time_tick
        if until is not None and frame.view.header.promised_tick >= until:
            messages = self._end_within(frame, messages, until)
        del self.frame  # the decoded parts of a frame of many vchannels take hundreds of KiB
        self.messages, self.coming, self._given = messages, None, 0
        self.message_count += len(messages)
        return bool(messages)

    def whole_ticks(self) -> tuple[int, int] | None:
        """Returns the ticks [first, end) between which all events of a frame at or after `at` belong to the read.

        Call it when a PAGE is needed. Frames of these ticks may be handed over as rows, and taken as a page without frames. Returns None
        if the read begins within the next frames, so that they have to be taken one by one.
        """
        start, options = self._start, self._options
        if start is not None and (start.first > (self.at, 0) or (start.after is not None and start.after[0] >= self.at)):
            return None
        end = _TICKS_END if self._end is None else self._end.tick + 1
        if options.until_time_tick is not None:
            end = min(end, options.until_time_tick)
        return options.event_filter.tick_min, end

    @property
    def types(self) -> frozenset[int] | None:
        """The types of messages that are read; None: all."""
        return self._options.event_filter.types

    def rows(self, *, end: int | None = None) -> FrameRows | None:
        """Returns the current frame as rows, up to the event with index `end`. The frame counts as assembled, its rows as handed over.

        Returns None if it has to be assembled instead. `message_count` does not count rows. A caller that gives an `end` reads no further.
        """
        frame = self.frame
        position, header = frame.position, frame.view.header
        until = self._options.until_time_tick
        first = 0 if self._start is None else self._start.first_index(position)
        if first is None or (until is not None and header.promised_tick >= until):
            return None  # once or twice per read: the progress has to be exact to the event
        if self._start is not None and self._start.is_passed(position):
            self._start = None
        event_filter = self._options.event_filter
        tick_min = event_filter.tick_min - header.first_tick
        runs = self.selection.runs(frame.view) if tick_min < header.indices else []
        self._take_up(frame)
        del self.frame
        return frame_rows(frame.view, self.origin(position), runs, first=max(first, tick_min), end=end, types=event_filter.types)

    def _take_up(self, frame: StoredFrame) -> None:
        """Notes the progress of the read with this frame, whose messages are the current ones now."""
        header = frame.view.header
        self.frame_count += 1
        event = (frame.position, header.indices - 1) if header.indices else None
        self._frame_reached = Reached(event, header.promised_tick, (frame.next_position, 0))

    def _tell_tick(self, tick: int) -> None:
        """Sets `messages` to the TimeTick message that announces this tick."""
        self._told_tick = tick
        event = self._reached.event
        position, index = event or (0, 0)
        message = TimeTickMessage(self.origin(position), index, tick, "", b"", int(MessageType.TIME_TICK), has_event=event is not None)
        self.messages, self.coming, self._given = MessagePage([message]), None, 0

    def origin(self, position: int) -> Origin:
        """Returns the origin of the frame at this position."""
        return Origin(self._log.pchannel, self._log.incarnation, position, self._log.form)

    # -- ending

    def _decide_end(self, tail: TailView) -> int | None:
        """Decides, if no page is left to fetch, whether the read ends here: returns the tick it ends with, or None if it continues.

        A read with `follow=False` ends after the last event that was durable when it began. A read with `until_time_tick` ends when that
        tick is promised; within a frame that holds later events, `_end_within` ends it.
        """
        if self._end is not None:
            self._reached = self._reached.later(self._end)
            return self._end.tick
        if tail.promised_tick > self._reached.tick:  # at the tail everything up to the promised tick was handed over
            self._reached = self._reached.later(Reached(tick=tail.promised_tick))
        until = self._options.until_time_tick
        return until if until is not None and tail.promised_tick >= until else None

    def _end_within(self, frame: StoredFrame, messages: MessagePage, until: int) -> MessagePage:
        """Ends the read within this frame: messages with a tick above `until` are neither handed over nor passed."""
        self._end = Reached(None, until, _WITHIN_A_FRAME)
        self._frames.clear()
        self._page_reached = NOTHING
        messages = MessagePage([message for message in messages if message.time_tick <= until])
        if frame.view.header.promised_tick > until:
            self._frame_reached = Reached(tick=until)
            if messages:
                index = messages[-1]._index
                self._frame_reached = Reached((frame.position, index), until, (frame.position, index + 1))
        return messages

    def let_go(self) -> None:
        self._reached = self.reached
        self._frames.clear()
        self.messages, self.coming, self._given = NO_MESSAGES, None, 0
        self._frame_reached = self._page_reached = NOTHING

    def settle(self) -> None:
        """Counts the current messages as handed over, and so their frame, and with the last frame the page."""
        self.messages, self.coming, self._given = NO_MESSAGES, None, 0
        passed = self._frame_reached
        if not self._frames and self._page_reached is not NOTHING:
            passed, self._page_reached = self._page_reached, NOTHING  # nothing in the page is later
        if passed is not NOTHING:
            self._reached, self._frame_reached = self._reached.later(passed), NOTHING

    # -- what was handed over

    @property
    def reached(self) -> Reached:
        """The progress of the read, counting what was handed over."""
        reached, messages, following = self._reached, self.messages, self.following
        if following < len(messages):
            tick = max(reached.tick, messages.tick(following) - 1)
            if following == 0:
                return Reached(reached.event, tick, reached.position)
            position, index = messages.position(following - 1)
            return Reached((position, index), tick, max(reached.position, (position, index + 1)))
        reached = reached.later(self._frame_reached)
        if self._frames:
            return reached
        return Reached(reached.event, reached.tick, max(reached.position, self._page_reached.position))

    @property
    def tick(self) -> int:
        return self.reached.tick

    @property
    def covered(self) -> int:
        """The tick up to which everything was handed over or is among the current messages."""
        return max(self._reached.tick, self._frame_reached.tick)

    @property
    def position(self) -> ReadPosition | None:
        return self.position_of(self.reached)

    def position_of(self, reached: Reached) -> ReadPosition | None:
        """Returns the position of a reader with this progress."""
        if reached.event is None:
            return self._options.resume
        position, index = reached.event
        return ReadPosition(self.origin(position).message_id(index), reached.tick)


_TICKS_END: Final = 1 << 64
_WITHIN_A_FRAME: Final = (-1, -1)
"""The log position of an end within a frame: no page is left to fetch."""


class BodyTurns:
    """Iterates over the bodies of one message after another, for reads that go body by body.

    A message counts as handed over with its last body. So a position in the middle of a transaction is the position before the transaction:
    a reader that resumes there gets all its bodies again. The same read continues with the next body.
    """

    __slots__ = ("_count", "_message")

    def __init__(self) -> None:
        self._message: ImmutableMessage | None = None
        """The message that was given in part; None between messages."""
        self._count = 0

    def next(self, message: ImmutableMessage) -> tuple[ImmutableMessage | None, bool]:
        """Returns the next body of `message`, and whether it is the last; a transaction without bodies has None, and that is its last."""
        if message is not self._message:
            self._message, self._count = message, 0
        bodies = message.bodies()
        body = bodies[self._count] if bodies else None
        self._count += 1
        is_last = self._count >= len(bodies)
        if is_last:
            self._message = None
        return body, is_last
