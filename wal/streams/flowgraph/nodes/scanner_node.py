"""ScannerNode: an input node that reads a log, in ticks that are the same in every run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from weakref import WeakKeyDictionary

import msgspec

from wal.api.accesser import WALAccesser
from wal.errors import InvalidArgumentError
from wal.message import ImmutableMessage, TimeTickMessage
from wal.read.cursors.cursor import check_cursor
from wal.read.options import DeliverFilter, DeliverPolicy, ReadPosition
from wal.streams.flowgraph.node import BaseNode, Msg
from wal.streams.flowgraph.nodes.function_node import BatchMsg
from wal.timestamp import LOGICAL_BITS


class TickOfLog(msgspec.Struct, frozen=True, gc=False):
    """The messages of one tick: time ticks above the previous tick, and at or below `time_tick`.

    A read continues after this tick at `position`.
    """

    time_tick: int
    messages: list[ImmutableMessage]
    position: ReadPosition | None


class TickCutter:
    """Cuts the messages of a scanner into ascending ticks, in the same way in every run. Pure.

    A sink that writes each tick once relies on the cut: if a tick were replayed with other messages, some would be lost or written twice.
    So the cut depends on the messages alone, never on the time at which they arrive. A tick ends with its frame (a frame is written as a
    whole, so it never grows). With an interval, it ends at a multiple of the interval. It also ends before a message that would exceed a
    bound. A read that begins after any tick of an earlier read continues with the ticks that followed there.
    """

    def __init__(self, *, interval_ms: int, messages_max: int, bytes_max: int) -> None:
        """`interval_ms` is 0 for ticks that end with their frame. A tick has at most `messages_max` messages, counting the bodies of
        transactions, and `bytes_max` bytes, or a single message above that.
        """
        self._width: Final = interval_ms << LOGICAL_BITS
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._messages: list[ImmutableMessage] = []
        self._bodies = 0
        self._bytes = 0
        self._cut_at = -1
        """The last tick that was returned."""

    def add(self, frame: Iterable[ImmutableMessage]) -> Iterator[TickOfLog]:
        """Adds the remaining messages of a frame, and yields the ticks that they end."""
        for message in frame:
            bodies, size = len(message.bodies()), message.estimate_size()
            if self._messages:
                if self._width and message.time_tick > (end := self._end_of(self._messages[-1].time_tick)):
                    yield self._cut(end)
                elif self._bodies + bodies > self._messages_max or self._bytes + size > self._bytes_max:
                    yield self._cut(self._messages[-1].time_tick)
            self._messages.append(message)
            self._bodies += bodies
            self._bytes += size
        if not self._width and self._messages:
            yield self._cut(self._messages[-1].time_tick)

    def promise(self, time_tick: int, position: ReadPosition | None) -> Iterator[TickOfLog]:
        """Records a promised tick, with the scanner's position there, and yields the ticks that it ends; the last one may be empty."""
        promised = time_tick
        if self._width:
            promised -= promised % self._width  # the last end of an interval at or below the promised tick
            if self._messages and (end := self._end_of(self._messages[-1].time_tick)) <= promised:
                yield self._cut(end)
        if promised > self._cut_at and not self._messages:
            self._cut_at = promised
            yield TickOfLog(promised, [], position)

    def _end_of(self, time_tick: int) -> int:
        """Returns the end of the interval that a time tick is in. An interval includes its end and excludes its beginning."""
        return -(-time_tick // self._width) * self._width

    def _cut(self, time_tick: int) -> TickOfLog:
        messages, self._messages = self._messages, []
        self._bodies = self._bytes = 0
        self._cut_at = time_tick
        last = messages[-1]
        return TickOfLog(time_tick, messages, ReadPosition(last.message_id, last.time_tick))


TICK_MESSAGES_MAX: Final = 4096
"""The default of the setting `txn_bodies_max`, so that a WalSinkNode can write a tick as one transaction."""
TICK_BYTES_MAX: Final = 2 * 1024 * 1024
"""Half of the default of `txn_bytes_max`, which counts 32 bytes more for each message."""


class ScannerNode(BaseNode):
    """Reads one vchannel, or several of one pchannel, from a cursor on, and saves the cursor once a tick has passed every sink.

    A tick is a frame of the log or, with `tick_interval_s`, all messages of one interval; a large one is divided. Its number is the last
    time tick that may be in it. Promised ticks of the log become ticks without messages, so that a quiet log stops no join. A transaction
    is one message. Each cursor serves one node: a second node with the cursor on the same open log fails at its first tick with an
    InvalidArgumentError, since each would move the cursor past messages that the other has not handled.
    """

    is_input: bool | None = True

    def __init__(
        self,
        name: str,
        log: WALAccesser,
        vchannel: str | Sequence[str],
        *,
        cursor: str,
        tick_interval_s: float = 0.0,
        deliver_policy: DeliverPolicy | None = None,
        filters: DeliverFilter | Iterable[DeliverFilter] = (),
        follow: bool = True,
    ) -> None:
        """`deliver_policy`, `filters` and `follow` are those of `log.read`. With `follow=False` the node ends at the end of the log.
        `follow=False` allows no `tick_interval_s`, as the last interval might grow later.
        """
        super().__init__(name)
        if not isinstance(log, WALAccesser):
            raise TypeError(f"node {name!r} reads an open log, as open_wal gives it, not {type(log).__name__}")
        check_cursor(cursor)
        if not isinstance(tick_interval_s, int | float) or isinstance(tick_interval_s, bool):
            raise TypeError(f"tick_interval_s of node {name!r} must be a number of seconds, not {tick_interval_s!r}")
        if not 0 <= tick_interval_s <= INTERVAL_S_MAX or 0 < tick_interval_s < INTERVAL_S_MIN:
            raise InvalidArgumentError(
                f"tick_interval_s={tick_interval_s} of node {name!r} is out of range: 0, or {INTERVAL_S_MIN} to {INTERVAL_S_MAX}"
            )
        if tick_interval_s and not follow:
            raise InvalidArgumentError(
                f"node {name!r} has follow=False, and tick_interval_s={tick_interval_s}: the last interval might grow after the end, and "
                "would not be the same tick then; leave out one of them"
            )
        self._log = log
        self._cursor = (cursor, frozenset((vchannel,) if isinstance(vchannel, str) else vchannel))
        self._scanner = log.read(
            vchannel, deliver_policy=deliver_policy, filters=filters, follow=follow, cursor=cursor, include_time_ticks=True
        )
        self._cutter = TickCutter(interval_ms=round(tick_interval_s * 1000), messages_max=TICK_MESSAGES_MAX, bytes_max=TICK_BYTES_MAX)
        self._cut: deque[TickOfLog] = deque()
        self._sent_ticks: deque[tuple[int, ReadPosition | None]] = deque()
        self._seen = False
        self._saved: ReadPosition | None = None

    async def operate(self, msgs: list[Msg]) -> Sequence[Msg]:
        """Returns the messages of the next tick; empty at the end of the log.

        Raises InvalidArgumentError at the first tick if another node of this process reads the log with the same cursor.
        """
        self._take_cursor()
        while not self._cut:
            page = await self._scanner._page()
            if not page:
                return ()
            self._scanner._hand_over(len(page))
            if isinstance(page[0], TimeTickMessage):
                self._cut += self._cutter.promise(page[0].time_tick, self._scanner.position)
            else:
                self._seen = True
                self._cut += self._cutter.add(page)
        tick = self._cut.popleft()
        self._sent_ticks.append((tick.time_tick, tick.position if self._seen else None))
        return (BatchMsg(tick.time_tick, tick.messages),)

    async def commit(self, tick: int) -> None:
        """Saves the cursor after this tick."""
        position = None
        while self._sent_ticks and self._sent_ticks[0][0] <= tick:
            position = self._sent_ticks.popleft()[1]
        if position is None or (self._saved is not None and position.message_id == self._saved.message_id):
            return  # no event since the last save, so the position is the same for retention
        await self._scanner.save(position)
        self._saved = position

    async def close(self) -> None:
        """Ends the read."""
        readers = _READERS.get(self._log, {})
        if readers.get(self._cursor) is self:
            del readers[self._cursor]
        await self._scanner.close()

    def _take_cursor(self) -> None:
        reader = _READERS.setdefault(self._log, {}).setdefault(self._cursor, self)
        if reader is not self:
            raise InvalidArgumentError(
                f"node {reader.name!r} reads with cursor {self._cursor[0]!r} already, and node {self.name!r} would move it past "
                "messages that the first has not handled: give each node a cursor of its own"
            )


_READERS: Final[WeakKeyDictionary[WALAccesser, dict[tuple[str, frozenset[str]], ScannerNode]]] = WeakKeyDictionary()
"""The nodes that read each open log, by cursor: its name and its vchannels."""


INTERVAL_S_MIN: Final = 0.001
"""The resolution of the clock in time ticks."""
INTERVAL_S_MAX: Final = 3600.0
