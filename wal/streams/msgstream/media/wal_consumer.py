"""WalConsumer: one vchannel of a log under one subscription, which is a cursor of the log.

The consumer has two scanners: `_saver` was entered with the cursor and saves positions, `_scanner` reads. A scanner resumes after whole
events, a subscription also between two bodies of a transaction. So `_scanner` begins at the event of the position, and the consumer skips
the handled bodies.

The cursor moves with the acknowledgements. While none of its messages are outstanding, it also moves over the events of other vchannels:
with the acknowledged ticks of a time-ticked stream, else once in QUIET_S. So a quiet channel does not block retention.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, MutableMapping, Sequence
from typing import Final
from weakref import WeakKeyDictionary

import msgspec

from wal.api.accesser import WALAccesser
from wal.errors import ClosedError, InvalidArgumentError, LockedError, TruncatedError, WALError
from wal.message import ImmutableMessage, LogPosition, MessageID, Origin, TimeTickMessage
from wal.read.assembly import MessagePage
from wal.read.options import All, DeliverPolicy, Latest, ReadPosition, StartAfter, StartFrom
from wal.read.scanner import Scanner
from wal.streams.msgstream.media.wal_ids import INDEX, WalId, message_prefix
from wal.streams.msgstream.medium import Received
from wal.timestamp.timestamp import LOGICAL_BITS

_INTERVAL_MAX_S: Final = 86_400


class TickGrid:
    """The ticks at which a time-ticked stream over a log is cut. Pure.

    The times of a log's promised ticks differ in every run. The grid makes the cuts depend on the log's content: they are multiples of an
    interval, and a message belongs to the cell (k - 1, k] in which its tick lies. The grid announces the beginning of a message's cell
    before the message, and its end when that is promised. So every pack with messages is exactly one cell, in every run. Over cells without
    messages one announcement may pass several of them, and their number depends on timing.
    """

    __slots__ = ("_end", "_last", "_step")

    def __init__(self, interval_s: float) -> None:
        """Raises InvalidArgumentError for an interval that is not 1 ms to a day."""
        if not isinstance(interval_s, int | float) or isinstance(interval_s, bool):
            raise TypeError(f"tick_interval_s must be a number of seconds, not {interval_s!r}")
        if not 0.001 <= interval_s <= _INTERVAL_MAX_S:
            raise InvalidArgumentError(
                f"tick_interval_s={interval_s} is out of range: give 0.001 (a millisecond) to {_INTERVAL_MAX_S} (a day)"
            )
        self._step = round(interval_s * 1000) << LOGICAL_BITS
        self._last = 0
        """The last tick that was announced."""
        self._end = 0
        """The end of the last message's cell; at or below `_last` if it was announced."""

    def resume(self, tick: int, *, inclusive: bool = False) -> None:
        """Begins after this tick: all cuts up to it were announced, except the tick itself if it is `inclusive`."""
        self._end = tick - tick % self._step
        self._last = max(self._end - self._step, 0) if inclusive else self._end

    def before(self, tick: int) -> Sequence[int]:
        """Returns the ticks to announce before a message with this tick."""
        if tick <= self._end:
            return ()
        announced = self.promised(tick - 1)
        self._end = tick + -tick % self._step
        return announced

    def promised(self, tick: int) -> Sequence[int]:
        """Returns the ticks to announce after the log has promised this one.

        They are the new ones of these two: the end of the last message's cell, and the newest end of a cell at or below this tick.
        """
        newest = tick - tick % self._step
        if newest <= self._last:
            return ()
        last, self._last = self._last, newest
        return (self._end, newest) if last < self._end < newest else (newest,)


QUIET_S: Final = 1.0
"""The time that a consumer without ticks waits for a message before it moves the cursor: a save is a synced write of a file."""


class WalConsumer:
    """Reads one vchannel. `open` creates it. With a `grid` it delivers ticks."""

    def __init__(self, log: WALAccesser, vchannel: str, cursor: str, grid: TickGrid | None, saver: Scanner) -> None:
        self._log = log
        self._vchannel = vchannel
        self._cursor = cursor
        self._grid = grid
        self._saver = saver
        self._scanner = saver
        self._skip: LogPosition = _NONE
        """Events and bodies up to this position are skipped in this read."""
        self._event: tuple[Origin, int] | None = None
        """The newest event that was passed; None: the event before `_first` is not known."""
        self._first: MessageID | None = None
        """The event at which the read began; None: the earliest event."""
        self._ready: deque[Received] = deque()
        self._unhandled: deque[tuple[bytes, tuple[Origin, int] | None, int]] = deque()
        """The unhandled messages, in order: the id, and the event (or body) and the tick up to which everything is handled with it."""
        self._handled: set[bytes] = set()
        self._saved: MessageID | None = None
        """The event after which the cursor is; None: before the first event, or not known."""
        self._origin: Origin | None = None
        self._prefix = b""
        self._closed = False

    @classmethod
    async def open(cls, log: WALAccesser, vchannel: str, cursor: str, *, earliest: bool, grid: TickGrid | None) -> WalConsumer:
        """Continues at the cursor. If the cursor is new, it is created before the first message or after the last one.

        Raises LockedError if the process has another consumer of this cursor of the vchannel.
        """
        policy = All() if earliest else Latest()
        saver = log.read(vchannel, cursor=cursor, deliver_policy=policy, include_time_ticks=grid is not None)
        cursors = _CURSORS.setdefault(log, set())
        if (vchannel, cursor) in cursors:
            raise LockedError(
                f"channel {vchannel!r} has a consumer of subscription {cursor!r} in this process, and a log has one reader a name: close "
                "it, or subscribe under another name"
            )
        cursors.add((vchannel, cursor))
        consumer = cls(log, vchannel, cursor, grid, saver)
        try:
            await saver.__aenter__()
            await saver.save()  # from now on the subscription exists, and retention keeps what follows
            if (position := saver.position) is not None:
                consumer._begin_after(position.message_id)
                if grid is not None:
                    grid.resume(position.time_tick)
                # Otherwise the saver reads: the log before its beginning was truncated, and that is not within a transaction.
                with contextlib.suppress(TruncatedError):
                    consumer._scanner = await consumer._entered(StartFrom(position.message_id))
        except BaseException:
            await consumer.close()
            raise
        return consumer

    # -- receiving

    async def receive(self, count_max: int) -> list[Received]:
        """Returns the next messages and ticks."""
        ready = self._ready
        while not ready:
            messages = await self._page()
            if not messages or self._closed:
                raise ClosedError(f"the consumer of channel {self._vchannel!r} as {self._cursor!r} was closed: open another one")
            self._scanner._hand_over(len(messages))
            self._take(messages)
        return [ready.popleft() for _ in range(min(count_max, len(ready)))]

    async def _page(self) -> MessagePage:
        """Returns the next page; empty at the end."""
        while self._grid is None:
            try:
                async with asyncio.timeout(QUIET_S) as quiet:
                    return await self._scanner._page()
            except TimeoutError:
                if not quiet.expired():
                    raise
            await self._pass_over()
        return await self._scanner._page()

    async def _pass_over(self) -> None:
        """Moves the cursor over the events of other vchannels, unless a message of its own is unhandled."""
        if self._unhandled or (position := self._scanner.position) is None:
            return
        at, saved = position.message_id, self._saved
        if saved is None or saved.pchannel != at.pchannel or at > saved:
            try:
                await self._saver.save(position)
            except WALError as error:
                if not error.retryable:
                    raise
            else:
                self._saved = at

    def _take(self, messages: Iterable[ImmutableMessage]) -> None:
        grid = self._grid
        for message in messages:
            if isinstance(message, TimeTickMessage):
                if message.has_event:
                    self._event = (message._origin, message._index)
                if grid is not None:
                    self._add_ticks(grid.promised(message.time_tick))
            elif (message._origin.position, message._index) > self._skip:
                if grid is not None and (ticks := grid.before(message.time_tick)):
                    self._add_ticks(ticks)
                self._add(message)
                self._event = (message._origin, message._index)

    def _add_ticks(self, ticks: Sequence[int]) -> None:
        event, first = self._event, self._first
        at = first if event is None else event[0].message_id(event[1])
        for tick in ticks:
            msg_id = bytes(WalId(self._vchannel, at, tick, before=event is None and first is not None))
            self._ready.append(Received(msg_id, b"", tick, True))
            self._unhandled.append((msg_id, event, tick))

    def _add(self, message: ImmutableMessage) -> None:
        origin, tick = message._origin, message.time_tick
        if origin is not self._origin:
            self._origin, self._prefix = origin, message_prefix(self._vchannel, origin.message_id(0))
        bodies = message.bodies()
        skip = self._skip[1] if origin.position == self._skip[0] else -1
        prefix, pack, last = self._prefix, INDEX.pack, len(bodies) - 1
        for at, body in enumerate(bodies):
            # The last body has the id of the event: with it, everything up to the event's tick is handled.
            index, complete = (body._index, tick - 1) if at < last else (message._index, tick)
            if index > skip:
                msg_id = prefix + pack(index)
                self._ready.append(Received(msg_id, body.payload, tick))
                self._unhandled.append((msg_id, (origin, index), complete))

    # -- positions

    async def ack(self, msg_ids: Sequence[bytes]) -> None:
        """Saves the cursor just below the first unhandled message, if it moved."""
        unhandled, handled = self._unhandled, self._handled
        reached = None
        for msg_id in msg_ids:
            if unhandled and unhandled[0][0] == msg_id:  # the usual case: in order
                reached = unhandled.popleft()
            else:
                handled.add(msg_id)
        while handled and unhandled and unhandled[0][0] in handled:
            reached = unhandled.popleft()
            handled.discard(reached[0])
        if reached is not None and (event := reached[1]) is not None:
            (origin, index), tick = event, reached[2]
            self._saved = origin.message_id(index)
            await self._saver.save(ReadPosition(self._saved, tick))

    async def check(self, msg_id: bytes) -> None:
        """Checks that the log still has the events after this id."""
        wal_id = WalId.parse(msg_id, self._vchannel)
        if wal_id.message_id is not None:
            await (await self._reader(wal_id.message_id)).close()

    async def seek(self, msg_id: bytes, *, inclusive: bool) -> None:
        """Reads from this id on, and moves the cursor."""
        wal_id = WalId.parse(msg_id, self._vchannel)
        at, tick = wal_id.message_id, wal_id.tick or 0
        again = inclusive and wal_id.tick is not None  # the tick itself follows
        if at is not None and (wal_id.before or (inclusive and wal_id.tick is None)):
            first, at = at, msgspec.structs.replace(at, index=at.index - 1) if at.index else None
        else:
            first = None
        if at is None:
            await self._move_to_beginning(first)
        else:
            scanner = await self._reader(at)
            await self._saver.save(ReadPosition(at, max(tick - again, 0)))
            await self._replace(scanner, self._saver)
            self._begin_after(at)
        if self._grid is not None:
            self._grid.resume(tick, inclusive=again)

    async def close(self) -> None:
        """Ends the scanners. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._scanner.close()
            await self._saver.close()
        finally:
            _CURSORS[self._log].discard((self._vchannel, self._cursor))

    def _begin_after(self, message_id: MessageID) -> None:
        origin = Origin(message_id.pchannel, message_id.incarnation, message_id.position, message_id.form)
        self._event = (origin, message_id.index)
        self._skip = (message_id.position, message_id.index)
        self._saved = message_id

    async def _reader(self, after: MessageID) -> Scanner:
        """Returns a scanner from the event of this id on, or after the event if the log only has the later ones."""
        try:
            return await self._entered(StartFrom(after))
        except TruncatedError:
            scanner = await self._entered(StartAfter(after))
            if scanner.position is not None and scanner.position.message_id == after:
                return scanner
            await scanner.close()
            raise  # the id is of a body: the later bodies were truncated with their transaction

    async def _entered(self, policy: DeliverPolicy) -> Scanner:
        ticks = self._grid is not None
        scanner = self._log.read(self._vchannel, deliver_policy=policy, include_time_ticks=ticks)
        await scanner.__aenter__()
        return scanner

    async def _move_to_beginning(self, first: MessageID | None) -> None:
        """Moves the cursor to an event (None: the earliest one) that cannot be described as the position after another event."""
        scanner = await self._entered(All() if first is None else StartFrom(first))
        try:
            scanner._use_cursor_of(self._saver)
            await scanner.save()
        except BaseException:
            await scanner.close()
            raise
        await self._replace(scanner, scanner)
        self._event, self._first, self._skip, self._saved = None, first, _NONE, None

    async def _replace(self, scanner: Scanner, saver: Scanner) -> None:
        old = [one for one in (self._scanner, self._saver) if one not in (scanner, saver)]
        self._scanner, self._saver = scanner, saver
        self._ready.clear()
        self._unhandled.clear()
        self._handled.clear()
        for one in old:
            await one.close()


_NONE: Final = (-1, -1)
_CURSORS: MutableMapping[WALAccesser, set[tuple[str, str]]] = WeakKeyDictionary()
"""The cursors that consumers of this process use, by log: the vchannel and the name."""
