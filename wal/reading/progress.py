"""Progress: how far one read has got, from where it begins to where it ends.

Owns: the start (policy or position to resume from) and the end of the read, the page at hand and the messages of its current frame,
and what was handed over. It is driven: it looks at a snapshot of the tail, says what it needs next (`Need`), takes a page, and
has messages. Promises: each message once, in tick order, and a position that moves exactly with what was handed over, also
over stretches that hold nothing for this reader. It never waits and never fetches; a scanner, the bridge and Spark do that around it.
"""

from __future__ import annotations

import enum
from typing import Final, Protocol

import msgspec

from wal.backends import FramePage, StoredFrame
from wal.errors import InvalidArgumentError
from wal.message import ImmutableMessage, ImmutableTxnMessage, MessageID, MessageType, Origin, TimeTickMessage
from wal.reading.assembly import assemble
from wal.reading.frame_rows import FrameRows, frame_rows
from wal.reading.options import ReadOptions
from wal.reading.policies import All, Latest, StartAfter, StartFrom
from wal.reading.position import ReadPosition
from wal.reading.selection import Selection

__all__ = ["Need", "Progress", "TailView"]


class TailView(Protocol):
    """What a reader sees of the log's end at one moment: everything at or below `promise` lies below `durable_end`."""

    @property
    def durable_end(self) -> int: ...

    @property
    def promised_tick(self) -> int: ...

    @property
    def newest(self) -> tuple[int, int] | None: ...

    @property
    def failure(self) -> BaseException | None:
        """Why nothing comes any more."""


class Need(enum.Enum):
    """What a read needs to go on.

    MESSAGES: nothing, `messages` are to be handed over. FRAME: a decision on `frame`: `assemble` it, or pass it `whole`.
    PAGE: the frames of [`at`, `page_end`), by `take`. TAIL: that the tail moves. OVER: nothing, the read has ended.
    """

    MESSAGES = enum.auto()
    FRAME = enum.auto()
    PAGE = enum.auto()
    TAIL = enum.auto()
    OVER = enum.auto()


class Progress:
    """The state of one read. `messages[following:]` are to be handed over next; who takes them moves `following`."""

    __slots__ = (
        "_after", "_end", "_end_event", "_end_promise", "_event", "_filter", "_frame_event", "_frame_passed", "_frame_tick", "_frames",
        "_from", "_log", "_options", "_over", "_page_event", "_page_passed", "_page_promise", "_passed", "_tick", "_told_tick", "_went_on",
        "at", "following", "frame", "frame_count", "message_count", "messages", "page_count", "page_end", "selection",
    )  # fmt: skip

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._filter = options.event_filter
        self._log = Origin("", 0, 0)
        self.selection: Selection
        """Which runs this reader sees; set by `begin`."""
        self.at: int = 0
        """Where the next page begins."""
        self.page_end: int = 0
        """Where the page that is needed ends."""
        # Where this read ends (None: it follows), what was promised there, and the newest event before it.
        self._end: int | None = None
        self._end_promise = 0
        self._end_event: tuple[int, int] | None = None
        # Where a cursor says to begin, in the place of the policy.
        self._went_on: tuple[int, int] | None = None
        # Events whose last index is below this (position, index) were handed over before; see `_skip`.
        self._from: tuple[int, int] | None = None
        self._after: tuple[int, int] | None = None
        # The page at hand: frames still to be assembled (the next one last), what the page says of itself, and the messages of the
        # current frame. A list, since an empty deque takes ten times the memory and most readers wait at the tail with none.
        self._frames: list[StoredFrame] = []
        self._page_event: tuple[int, int] | None = None
        self._page_promise = 0
        self.frame: StoredFrame
        """The frame that `FRAME` is about, until it is assembled: a read that waits at the tail holds no frame."""
        self.messages: list[ImmutableMessage] = []
        self.following: int = 0
        # Handed over so far, when the messages are used up: the newest event passed, and the tick up to which everything was.
        self._event: tuple[int, int] | None = None
        self._tick = 0
        self._told_tick = 0
        # The same for the frame whose messages are at hand, once these are handed over.
        self._frame_event: tuple[int, int] | None = None
        self._frame_tick = 0
        # Both once more as places in the log: everything below was handed over, or held nothing for this reader.
        self._passed = self._frame_passed = self._page_passed = _BEGINNING
        self._over = False
        self.message_count: int = 0
        self.frame_count: int = 0
        self.page_count: int = 0

    # -- beginning

    def go_on(self, start: tuple[int, int], position: ReadPosition | None) -> None:
        """Before `begin`: begin at this place, where a reader before this one was at `position`, whatever the options say."""
        self._options = msgspec.structs.replace(self._options, policy=All(), resume=position)
        self._went_on = start

    def begin(
        self,
        log: Origin,
        selection: Selection,
        tail: TailView,
        earliest: tuple[int, int],
        *,
        after: MessageID | None = None,
        last_truncated: tuple[int, int] | None = None,
    ) -> MessageID | None:
        """Fixes start and end; returns the id that the read should start at if that has been truncated.

        `log` names the log (an origin in it, at any position), `earliest` its first event that is not truncated; `after` is the
        event to start after, in the place of a policy that names a body of it, `last_truncated` the newest event below `earliest`, if
        that is known. An id of another log, or one above the durable end, is an InvalidArgumentError.
        """
        options = self._options
        self._log, self.selection = log, selection
        self._end = None if options.follow else tail.durable_end
        self._end_promise, self._end_event = tail.promised_tick, tail.newest
        if self._went_on is not None:
            return self._begin_there(self._went_on, earliest)
        policy = options.policy
        if options.resume is not None:
            policy = StartAfter(options.resume.message_id)
            self._tick = options.resume.time_tick
        if after is not None and isinstance(policy, StartAfter):
            policy = StartAfter(after)
        if isinstance(policy, StartFrom | StartAfter):
            start = self._own(policy.message_id, tail)
            inclusive = isinstance(policy, StartFrom)
            # The last truncated event itself is no lost start: everything after it is there.
            if start < earliest and (inclusive or start not in ((earliest[0], earliest[1] - 1), last_truncated)):
                return policy.message_id
            if inclusive:
                self._from = start
            else:
                self._after = start
                self._event = start
            self._passed = start if inclusive else (start[0], start[1] + 1)
            self.at = max(start[0], earliest[0])
        elif isinstance(policy, Latest):
            self.at = tail.durable_end
            self._tick = tail.promised_tick
            self._event = tail.newest
            self._passed = (self.at, 0)
        else:
            self.at = earliest[0]
        if self._from is None or self._from < earliest:
            self._from = earliest
        self._passed = max(self._passed, earliest)
        return None

    def move(self, log: Origin, tail: TailView, *, since: tuple[int, int] | None = None) -> None:
        """The read goes on in another log: what it waits for is made there. So far nothing was for it.

        It begins at the durable end, or at the event `since` when it may have been made some time ago.
        """
        self._log = log
        self.at = tail.durable_end if since is None else since[0]
        self._end = None if self._end is None else tail.durable_end
        self._from, self._after = since, None
        self._event = self._frame_event = self._page_event = self._end_event = None
        self._passed = since or (self.at, 0)
        self._frame_passed = self._page_passed = _BEGINNING
        self._frames.clear()

    # -- going on

    def advance(self, tail: TailView) -> Need:
        """Goes on until there are messages, or something else is needed; never answers FRAME.

        What was at hand counts as handed over. CorruptionError when a frame is damaged; what ended the log, at its end.
        """
        while True:
            need = self.step(tail)
            if need is not Need.FRAME:
                return need
            if self.assemble():
                return Need.MESSAGES

    def step(self, tail: TailView) -> Need:
        """The next thing that is needed, one frame at a time. What was at hand counts as handed over."""
        self.settle()
        if self._frames:
            self.frame = self._frames.pop()
            return Need.FRAME
        options = self._options
        durable_end, promised_tick = tail.durable_end, tail.promised_tick
        if self._over:
            return self._last_tick(options.until_time_tick or 0)
        end = durable_end if self._end is None else min(self._end, durable_end)
        if self.at < end:
            if tail.failure is not None:
                raise tail.failure
            self.page_end = end
            return Need.PAGE
        if self._end is not None:
            self._pass(self._end_event, self._end_promise, (self._end, 0))
            return self._last_tick(self._end_promise)
        until = options.until_time_tick
        if promised_tick > self._tick:  # at the tail everything up to the promise was handed over
            self._tick = promised_tick
        if until is not None and promised_tick >= until:
            return self._last_tick(until)
        if tail.failure is not None:
            raise tail.failure
        if options.include_time_ticks and promised_tick > self._told_tick:
            return self._tell_tick(promised_tick)
        return Need.TAIL

    def take(self, page: FramePage) -> None:
        """The page that was needed; it may reach beyond `page_end`."""
        self.at = page.next_position
        self.page_count += 1
        end = self._end
        if end is not None and page.promised_tick > self._end_promise:
            # The page reaches beyond this read's end: only its frames below the end count.
            self._frames = [frame for frame in reversed(page.frames) if frame.position < end]
            self._page_event, self._page_promise, self._page_passed = None, 0, _BEGINNING
        else:
            self._frames = page.frames[::-1]
            self._page_event, self._page_promise = page.last_event, page.promised_tick
            self._page_passed = (page.next_position, 0)

    def assemble(self) -> bool:
        """Makes `messages` of the frame at hand; whether there are any."""
        frame = self.frame
        messages = assemble(frame, self._origin(frame.position), self.selection, self._filter)
        if messages and (self._from is not None or self._after is not None):
            messages = self._skip(frame, messages)
        self._reach(frame)
        until = self._options.until_time_tick
        if until is not None and frame.view.header.promised_tick >= until:
            messages = self._cut(frame, messages, until)
        del self.frame  # what is decoded of a frame of many vchannels takes hundreds of KiB
        self.messages = messages
        self.message_count += len(messages)
        return bool(messages)

    def rows(self, *, end: int | None = None) -> FrameRows | None:
        """The frame at hand as rows, up to the event with index `end`; then it counts as assembled, and its rows are handed over with it.

        None: `assemble` it. `message_count` does not count rows. Whoever gives an `end` reads nothing behind it.
        """
        frame = self.frame
        position, header = frame.position, frame.view.header
        if self._from is not None and position > self._from[0]:
            self._from = None
        if self._after is not None and position > self._after[0]:
            self._after = None
        until = self._options.until_time_tick
        if (self._after is not None and position == self._after[0]) or (
            until is not None and header.promised_tick >= until
        ):
            return None  # once or twice a read: what was handed over has to be known to the event
        first = self._from[1] if self._from is not None and position == self._from[0] else 0
        tick_min = self._filter.tick_min - header.first_tick
        runs = self.selection.runs(frame.view) if tick_min < header.indices else []
        self._reach(frame)
        del self.frame
        self.messages = []
        return frame_rows(
            frame.view,
            self._origin(position),
            runs,
            first=max(first, tick_min),
            end=end,
            types=self._filter.types,
        )

    def _reach(self, frame: StoredFrame) -> None:
        """The frame is at hand, and is passed when the read goes on."""
        header = frame.view.header
        self.frame_count += 1
        self.following = 0
        if header.indices:
            self._frame_event = (frame.position, header.indices - 1)
        self._frame_tick = header.promised_tick
        self._frame_passed = (frame.next_position, 0)

    # -- what was handed over

    @property
    def handed(self) -> tuple[tuple[int, int] | None, int]:
        """The newest event handed over or passed, and the tick up to which everything was handed over."""
        messages, following = self.messages, self.following
        if following < len(messages):
            before = messages[following].time_tick - 1
            if following == 0:
                return self._event, max(self._tick, before)
            last = messages[following - 1]
            return (last._origin.position, last._index), max(self._tick, before)
        event, tick = self._event, self._tick
        if self._frame_event is not None and self._frame_event > (event or _NONE):
            event = self._frame_event
        return event, max(tick, self._frame_tick)

    @property
    def position(self) -> ReadPosition | None:
        """Behind what was handed over, stretches that held nothing for this reader included; None before anything."""
        event, tick = self.handed
        if event is None:
            return self._options.resume
        return ReadPosition(self._origin(event[0]).message_id(event[1]), tick)

    @property
    def start(self) -> tuple[int, int]:
        """Where what follows begins: everything below this place was handed over, or held nothing for this reader."""
        messages, following = self.messages, self.following
        if following < len(messages):
            if following == 0:
                return self._passed
            last = messages[following - 1]
            return max(self._passed, (last._origin.position, last._index + 1))
        passed = max(self._passed, self._frame_passed)
        return passed if self._frames else max(passed, self._page_passed)

    def let_go(self) -> None:
        """What is still at hand will neither be handed over nor count as passed."""
        self._passed = self.start
        self._event, self._tick = self.handed
        self._frames.clear()
        self.messages, self.following = [], 0
        self._frame_event = self._page_event = None
        self._frame_tick = self._page_promise = 0
        self._frame_passed = self._page_passed = _BEGINNING

    def settle(self) -> None:
        """The messages at hand were handed over, all of them: so was their frame, and with the last frame the page."""
        self.messages, self.following = [], 0
        self._pass(self._frame_event, self._frame_tick, self._frame_passed)
        if not self._frames:
            self._pass(self._page_event, self._page_promise, self._page_passed)
            self._frame_event, self._frame_passed = (
                None,
                _BEGINNING,
            )  # passed: not held while the read waits at the tail

    def _pass(self, event: tuple[int, int] | None, tick: int, place: tuple[int, int]) -> None:
        if event is not None and event > (self._event or _NONE):
            self._event = event
        if tick > self._tick:
            self._tick = tick
        if place > self._passed:
            self._passed = place

    # -- where it begins and ends

    def _begin_there(self, start: tuple[int, int], earliest: tuple[int, int]) -> MessageID | None:
        """`begin` where a cursor stands."""
        if start < earliest:
            return self._origin(start[0]).message_id(start[1])
        position = self._options.resume
        if position is not None:
            # Behind it, as StartAfter: it may be the id of a body, whose transaction ends at or above `start`.
            self._event = self._after = (position.message_id.position, position.message_id.index)
            self._tick = position.time_tick
        self.at = start[0]
        self._from = self._passed = start
        return None

    def _own(self, message_id: MessageID, tail: TailView) -> tuple[int, int]:
        """The (position, index) of an id, checked to be one of this log."""
        log = self._log
        if not message_id.same_log(log.message_id(0)):
            raise InvalidArgumentError(
                f"message id {message_id} belongs to another pchannel, or to another life of it, than {self._options.vchannels[0]!r} "
                f"lies on ({log.pchannel}:{log.incarnation:x}): use an id that was read from this vchannel"
            )
        if message_id.position >= tail.durable_end:
            raise InvalidArgumentError(
                f"message id {message_id} lies above the durable end {tail.durable_end} of pchannel "
                f"{log.pchannel}: use the id of a message that was appended"
            )
        return (message_id.position, message_id.index)

    def _skip(self, frame: StoredFrame, messages: list[ImmutableMessage]) -> list[ImmutableMessage]:
        """Drops the events before the start of the read, which can only be in its first frames."""
        position = frame.position
        if self._from is not None:
            if position == self._from[0]:
                first = self._from[1]
                messages = [message for message in messages if message._index >= first]
            if position >= self._from[0]:
                self._from = None
        if self._after is not None:
            if position == self._after[0]:
                last = self._after[1]
                messages = [message for message in messages if _first_index(message) > last]
            if position >= self._after[0]:
                self._after = None
        return messages

    def _cut(self, frame: StoredFrame, messages: list[ImmutableMessage], until: int) -> list[ImmutableMessage]:
        """Ends the read within this frame: what is above `until` is neither handed over nor passed."""
        self._over = True
        self._frames.clear()
        self._page_event, self._page_promise, self._page_passed = None, 0, _BEGINNING
        messages = [message for message in messages if message.time_tick <= until]
        if frame.view.header.promised_tick > until:
            self._frame_event = (frame.position, messages[-1]._index) if messages else None
            self._frame_tick = until
            self._frame_passed = (frame.position, messages[-1]._index + 1) if messages else _BEGINNING
        return messages

    def _last_tick(self, promised_tick: int) -> Need:
        """At the end of a read: its last TimeTick message, if it wants those and has not had it."""
        if not self._options.include_time_ticks or promised_tick <= self._told_tick:
            return Need.OVER
        return self._tell_tick(promised_tick)

    def _tell_tick(self, promised_tick: int) -> Need:
        self._told_tick = promised_tick
        event = self._event
        self.messages = [
            TimeTickMessage(
                self._origin(event[0] if event else 0),
                event[1] if event else 0,
                promised_tick,
                "",
                b"",
                int(MessageType.TIME_TICK),
                has_event=event is not None,
            )
        ]
        self.following = 0
        return Need.MESSAGES

    def _origin(self, position: int) -> Origin:
        log = self._log
        return Origin(log.pchannel, log.incarnation, position, log.form)


_NONE: Final = (-1, -1)
_BEGINNING: Final = (0, 0)


def _first_index(message: ImmutableMessage) -> int:
    return message._first_index if isinstance(message, ImmutableTxnMessage) else message._index
