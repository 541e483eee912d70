"""MergedRead: the read of one scanner on all pchannels of a log, of the vchannels that match a pattern.

Owns: a `ReadLoop` for each pchannel, whose pages and waiting at the tail it drives, and the `Merge` of their messages. How it works:

* everything is bounded by ticks. Where the read begins is a position of the merge, which has a tick for each pchannel, and where it ends is
  one tick for all. So one position covers the deliveries of every pchannel;
* a message waits in its lane until the other pchannels have promised its tick. At their tails the read asks for that promise. A pchannel
  that this process writes makes it at once, so an idle one holds up nothing;
* a vchannel that is dropped leaves: its messages are taken out of the lanes, and later frames are judged as they are read
  (`MatchingSelection`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from wal.errors import InvalidArgumentError, TruncatedError
from wal.message import ImmutableMessage, MessageID, MessageType, Origin, TimeTickMessage
from wal.message.matching import Matching
from wal.read.assembly import NO_MESSAGES, MessagePage
from wal.read.cursors.cursor import Cursor, CursorKey, Mark
from wal.read.cursors.service import CursorUse
from wal.read.loop import Read, ReadLoop, Spawn
from wal.read.merge import Key, Merge, key_of, without
from wal.read.options import (
    All,
    EventFilter,
    Latest,
    MatchingSelection,
    ReadOptions,
    ReadPosition,
    Selection,
    StartAfter,
    StartAt,
    StartFrom,
    TickPosition,
)
from wal.read.pchannel import ReadablePChannel
from wal.read.progress import HandOver, Need
from wal.read.truncated import start_truncated, truncated_start

AttachMatching = Callable[[Matching], Awaitable[tuple[Sequence[tuple[ReadablePChannel, Selection]], Spawn]]]
"""Returns all pchannels of the log, each with the vchannels on it that match, and a function that starts a handler's actor."""


class MergedProgress(HandOver):
    """The progress of a merge: everything taken from it was handed over, except the rest of the current messages."""

    __slots__ = ("_stopped", "merge", "parts")

    def __init__(self) -> None:
        super().__init__()
        self.merge: Merge = Merge(())
        """Empty until the read begins."""
        self.parts: dict[str, ReadLoop] = {}
        self._stopped: Key | None = None
        """The key of the first message that was not handed over when the read ended."""

    def advance(self) -> bool:
        """Takes the next messages from the merge; returns whether there are any. The current ones count as handed over."""
        self._become(self.merge.take())
        self.message_count += len(self.messages)
        return bool(self.messages)

    def tell(self, message: TimeTickMessage) -> None:
        """Sets the current messages to this one."""
        self._become(MessagePage([message]))

    def drop(self, pchannel: str, vchannel: str, indices: range, types: frozenset[int] | None) -> None:
        """Removes messages of a vchannel that were not handed over yet; see `without`."""
        self.merge.drop(pchannel, vchannel, indices, types)
        following = self.following
        if following < len(self.messages):
            messages = self.messages.build()
            self._become(MessagePage(messages[:following] + without(messages[following:], pchannel, vchannel, indices, types)))
            self._given = following

    def let_go(self) -> None:
        self._stopped = self._next
        self._become(NO_MESSAGES)

    def _become(self, messages: MessagePage) -> None:
        self.messages, self.coming, self._given = messages, None, 0

    @property
    def _next(self) -> Key:
        """The key below which everything was handed over."""
        if self._stopped is not None:
            return self._stopped
        following = self.following
        return key_of(self.messages[following]) if following < len(self.messages) else self.merge.limit

    @property
    def tick(self) -> int:
        return self._next[0] - 1

    @property
    def position(self) -> TickPosition | None:
        return self.merge.position_before(self._next)


class MergedRead(Read):
    """See the top of the file."""

    __slots__ = ("_attach", "_attached", "_end", "_is_joining", "_told_tick", "at_tail")

    progress: MergedProgress

    def __init__(self, options: ReadOptions, *, attach: AttachMatching, cursor: CursorUse | None) -> None:
        super().__init__(options, cursor=cursor)
        self._attach = attach
        self._attached: dict[str, tuple[ReadablePChannel, Selection, Spawn]] = {}
        self.progress = MergedProgress()
        self._end: int | None = None
        """The tick with which the read ends, None while it follows."""
        self._is_joining = False
        """Whether pchannels have come to the log that are not read yet."""
        self._told_tick = 0
        self.at_tail: bool = False
        """Whether the read waits, every pchannel was read to its end, and no message waits for the promise of another one."""

    @property
    def _parts(self) -> Iterable[ReadLoop]:
        return self.progress.parts.values()

    @property
    def failure(self) -> BaseException | None:
        return next((failure for part in self._parts if (failure := part.failure) is not None), None)

    @property
    def lag_bytes(self) -> int:
        return sum(part.lag_bytes for part in self._parts)

    @property
    def counts(self) -> tuple[int, int]:
        parts = [part.counts for part in self._parts]
        return sum(frames for frames, _ in parts), sum(pages for _, pages in parts)

    # -- beginning

    async def _begin(self) -> Spawn:
        """Fixes where the read begins and ends on all pchannels, again if one of them was truncated meanwhile."""
        options = self._options.with_moment()
        assert options.pattern is not None
        attached, spawn = await self._attach(options.pattern)
        while True:
            self._attached = {pchannel.channel: (pchannel, selection, spawn) for pchannel, selection in attached}
            pchannels = {pchannel.channel: pchannel for pchannel, _ in attached}
            before = {name: pchannel.log.earliest for name, pchannel in pchannels.items()}
            try:
                await self._begin_in(options, pchannels)
                return spawn
            except TruncatedError:
                for part in self._parts:
                    part.finish(None)
                self.progress.parts.clear()
                attached, spawn = await self._attach(options.pattern)
                if all(pchannel.log.earliest == before.get(pchannel.channel) for pchannel, _ in attached):
                    raise

    async def _begin_in(self, options: ReadOptions, pchannels: Mapping[str, ReadablePChannel]) -> None:
        """Begins on these pchannels, as they were attached. Raises TruncatedError for a lost start, or if one was truncated since."""
        start = await self._start(options, pchannels)
        self._end = options.until_time_tick
        if not options.follow:
            now = max(pchannel.tail.promised_tick for pchannel in pchannels.values())
            self._end = now if self._end is None else min(now, self._end)
            for pchannel in pchannels.values():
                await pchannel.wait_promised(self._end)
        merge = Merge(pchannels, start)
        is_lenient = isinstance(options.policy, StartAt) and not isinstance(options.resume, TickPosition)
        for pchannel in pchannels.values():
            await self._note_begin(merge, pchannel, None if is_lenient else start)
        for name in merge.lanes:
            self._add_part(name, merge)
        self.progress.merge = merge
        outcomes = await asyncio.gather(*[part.enter() for part in self._parts], return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def _add_part(self, name: str, merge: Merge) -> ReadLoop:
        """Adds the read of a pchannel, which is a lane of the merge."""
        options = self._options.with_moment()
        event_filter = EventFilter(max(options.event_filter.tick_min, merge.lanes[name].covered + 1), options.event_filter.types)
        own = ReadOptions((), All(), event_filter, until_time_tick=self._end, pattern=options.pattern)
        part = self.progress.parts[name] = ReadLoop(own, attach=partial(self._attach_one, name), cursor=None)
        part.on_dropped, part.on_joined = self._dropped, self._joined
        return part

    def _joined(self) -> None:
        if self._options.follow:
            self._is_joining = True
            self._wake()

    async def _join(self) -> None:
        """Reads the pchannels that have come to the log. Their events are later than what the others have promised before."""
        assert self._options.pattern is not None
        attached, spawn = await self._attach(self._options.pattern)
        self._attached = {pchannel.channel: (pchannel, selection, spawn) for pchannel, selection in attached}
        merge, parts = self.progress.merge, self.progress.parts
        for name in self._attached.keys() - merge.lanes.keys():
            merge.add(name)
            self._add_part(name, merge)
        for part in list(parts.values()):
            await part.enter()
        self._is_joining = self._attached.keys() != parts.keys()

    async def _attach_one(self, name: str, _: tuple[str, ...]) -> tuple[ReadablePChannel, Selection, Spawn]:
        """Returns one of the pchannels with the vchannels on it that match."""
        return self._attached[name]

    async def _start(self, options: ReadOptions, pchannels: Mapping[str, ReadablePChannel]) -> TickPosition | None:
        """Returns the position after which the read begins, None for the beginning of the log."""
        if self.cursor is not None and (saved := await self.cursor.load(pchannel=max(pchannels))) is not None:
            return saved.tick_position
        if isinstance(options.resume, TickPosition):
            return options.resume
        policy = options.policy
        if isinstance(policy, Latest):
            # One tick for all, so that the position of the beginning is exact: every durable event of any pchannel has a tick up to it.
            tick = max(pchannel.tail.promised_tick for pchannel in pchannels.values())
            for pchannel in pchannels.values():
                await pchannel.wait_promised(tick)
            return TickPosition.at(tick, max(pchannels))
        if isinstance(policy, StartFrom | StartAfter):
            message_id = policy.message_id
            if (of := pchannels.get(message_id.pchannel)) is None:
                raise InvalidArgumentError(
                    f"message id {message_id} is of no pchannel of this log ({', '.join(pchannels)}): use an id that was read from it"
                )
            at = TickPosition.at(await _tick_of(of, message_id), of.channel)
            return at if isinstance(policy, StartAfter) else Merge(pchannels).position_before((at.time_tick, at.pchannel))
        if isinstance(policy, StartAt):
            return TickPosition.at(max(policy.time_tick - 1, 0), max(pchannels))
        return None

    async def _note_begin(self, merge: Merge, pchannel: ReadablePChannel, start: TickPosition | None) -> None:
        """Notes what a pchannel has lost before the read begins. Raises TruncatedError if that comes after the position to begin at."""
        name, earliest = pchannel.channel, pchannel.log.earliest
        lost = await pchannel.truncated_tick()
        if lost <= merge.lanes[name].covered:
            return
        if start is not None and earliest > start.first_of(name):
            raise truncated_start(f"what pchannel {name} had after position {start}", await pchannel.first_event())
        merge.begun[name] = lost, earliest

    # -- continuing

    async def fill(self) -> bool:
        progress = self.progress
        while True:
            if self.ended:
                if self.error is not None:
                    raise self.error
                return False
            try:
                if self._is_joining:
                    await self._join()
                pages, tails = self._collect()
                try:
                    has_messages = progress.advance() or self._tell_tick()
                finally:
                    if self.tick_waiters:
                        self.wake_tick_waiters()
                if has_messages:
                    self._told_tick = max(self._told_tick, progress.messages.tick(-1))
                    for part in self._parts:
                        part.pchannel.check_lease()
                    return True
                if pages or tails:
                    await self._wait(pages, tails)
                    continue
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                self.finish(error)
                raise
            self.finish(None)

    def _collect(self) -> tuple[list[ReadLoop], list[ReadLoop]]:
        """Fills the lanes that are empty; returns the parts that need a page, and those at their tails."""
        merge = self.progress.merge
        pages: list[ReadLoop] = []
        tails: list[ReadLoop] = []
        for name, part in self.progress.parts.items():
            if not merge.lanes[name].is_empty:
                continue
            progress = part.progress
            need = progress.advance(part.pchannel.tail)
            if need is Need.PAGE and not part.unbroken and part.take_recent():
                need = progress.advance(part.pchannel.tail)
            match need:
                case Need.MESSAGES:
                    merge.put(name, progress.page(), progress.covered)
                    progress.hand_over(len(progress.messages))
                case Need.PAGE:
                    merge.cover(name, progress.tick)
                    pages.append(part)
                case Need.TAIL:
                    merge.cover(name, progress.tick)
                    tails.append(part)
                    progress.selection.forget()
                case _:
                    assert self._end is not None
                    merge.cover(name, self._end)
        return pages, tails

    async def _wait(self, pages: list[ReadLoop], tails: list[ReadLoop]) -> None:
        """Returns when one of these parts can continue: its page has arrived, or its tail has moved as far as the merge needs."""
        waits: list[asyncio.Future[Any]] = []
        waiters: list[asyncio.Future[None]] = []
        is_unbroken = False
        for part in pages:
            part.unbroken = False
            if (fetch := part.take_page()) is None:
                is_unbroken = True
            else:
                waits.append(fetch)
        merge = self.progress.merge
        wanted = merge.next_tick
        ticks = [tick for tick, _ in self.tick_waiters]
        for part in tails:
            part.unbroken = False
            if wanted is not None and merge.lanes[part.pchannel.channel].covered >= wanted:
                continue  # it holds nothing up
            promised_tick = part.pchannel.tail.promised_tick
            needed = [tick for tick in (wanted, self._end, *ticks) if tick is not None and tick > promised_tick]
            waiter = part.tail_waiter(min(needed, default=None), ticks=self._options.include_time_ticks)
            if waiter is None:
                is_unbroken = True
            else:
                waiters.append(waiter)
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            if is_unbroken:  # otherwise no other task gets a turn of the loop while many pages follow each other
                await asyncio.sleep(0)
            else:
                self.at_tail = not pages and wanted is None
                await asyncio.wait([*waits, *waiters, self._waiter], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.at_tail = False
            for waiter in (*waiters, self._waiter):
                waiter.cancel()
            self._waiter = None

    def _tell_tick(self) -> bool:
        """Makes a TimeTick message the current one if the caller wants them, and everything up to a further tick was handed over."""
        tick = self.progress.tick
        if not self._options.include_time_ticks or tick <= self._told_tick:
            return False
        self._told_tick = tick
        name = max(self.progress.parts)
        origin = self.progress.parts[name].pchannel.origin()
        self.progress.tell(TimeTickMessage(origin, 0, tick, "", b"", int(MessageType.TIME_TICK), has_event=False))
        return True

    def _dropped(self, pchannel: str, vchannel: str, incarnation: int) -> None:
        """Takes what was not handed over of a dropped vchannel out of the merge, which has the messages of one frame of each pchannel."""
        selection = self.progress.parts[pchannel].progress.selection
        assert isinstance(selection, MatchingSelection)
        if indices := selection.indices_of(vchannel, incarnation):
            self.progress.drop(pchannel, vchannel, indices, self._options.event_filter.types)

    # -- for a consumer

    @property
    def anchor(self) -> Origin:
        return Origin(max(self.progress.parts), 0, 0)

    def cursor_after(self, key: CursorKey, event: ImmutableMessage | None) -> Cursor:
        merge = self.progress.merge
        if event is not None:
            return _cursor_of(key, merge.position_after(key_of(event)))
        if (at := self.progress.position) is None:
            at = TickPosition.at(0, max(self.progress.parts), tuple([(name, *first) for name, (_, first) in merge.begun.items()]))
        return _cursor_of(key, at)

    @property
    def places(self) -> tuple[int, ...]:
        return tuple([part.progress.at for part in self._parts])

    def bytes_since(self, places: tuple[int, ...]) -> int:
        pairs = zip(self._parts, places, strict=True)
        return sum([part.pchannel.log.bytes_between(place, part.progress.at) for part, place in pairs if place < part.progress.at])

    def bytes_after(self, cursor: Cursor) -> int:
        return self.lag_bytes

    def fetch_ahead(self) -> None:
        for part in self._parts:
            part.fetch_ahead()

    # -- the cursor

    @property
    def mark(self) -> Mark | None:
        at = self.progress.position
        return None if at is None else (at.time_tick, at.pchannel)

    def cursor_at(self, key: CursorKey, position: ReadPosition | None = None) -> Cursor:
        if not self.entered:
            raise InvalidArgumentError(f"the scanner of {self.subject} has not begun to read: save it after messages were read")
        return self.cursor_after(key, None) if position is None else tick_cursor(key, position, self.progress.parts)

    async def save(self, cursor: CursorUse, position: ReadPosition | None = None) -> None:
        await cursor.store(self.cursor_at(cursor.key, position))

    async def is_before(self, cursor: CursorUse, event: Mark) -> bool:
        saved = await cursor.load(pchannel=max(self.progress.parts))
        return saved is None or saved.order < event

    # -- ending

    async def close(self) -> None:
        await super().close()
        await asyncio.gather(*[part.close() for part in self._parts])

    def abandon(self) -> None:
        super().abandon()
        for part in self._parts:
            part.abandon()

    def _leave(self) -> None:
        for part in self._parts:
            part.finish(self.error)


def tick_cursor(key: CursorKey, position: ReadPosition, pchannels: Container[str]) -> Cursor:
    """Returns a position of a reader as a cursor of this pattern; `pchannels` are those of the log."""
    if not isinstance(position, TickPosition):
        raise InvalidArgumentError(f"{position} is a position of a read of names: save the position of a scanner of {key.subject}")
    if position.pchannel not in pchannels:
        raise InvalidArgumentError(f"{position} is of a pchannel that is not in this log: save the position of a scanner that reads it")
    return _cursor_of(key, position)


def _cursor_of(key: CursorKey, at: TickPosition) -> Cursor:
    """Returns a position as a cursor of this pattern."""
    return Cursor(key, (), at.pchannel, 0, (0, 0), None, at.time_tick, 0.0, begun=at.begun)


async def _tick_of(pchannel: ReadablePChannel, message_id: MessageID) -> int:
    """Returns the tick of an event, a body's being that of its transaction.

    Raises TruncatedError if the event was truncated, InvalidArgumentError for an id that is not in the log.
    """
    message_id = pchannel.current(message_id)
    if not message_id.same_log(pchannel.log_id) or message_id.position >= pchannel.tail.durable_end:
        raise InvalidArgumentError(
            f"message id {message_id} is in another log, or above the durable end {pchannel.tail.durable_end} of pchannel "
            f"{pchannel.channel}: use the id of a message that was read"
        )
    event = await pchannel.event_of(message_id)
    if event is None or (event.position, event.index) < pchannel.log.earliest:
        raise start_truncated(message_id, await pchannel.first_event())
    page = await pchannel.page(event.position, None)
    tick: int = page.frames[0].view.header.first_tick + event.index
    return tick
