"""ScannerNode: an input node that reads a log, in ticks that are the same at every reading."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final
from weakref import WeakKeyDictionary

from wal.accesser.accesser import WALAccesser
from wal.cursors import check_cursor
from wal.errors import InvalidArgumentError
from wal.flowgraph.msg import Msg
from wal.flowgraph.node import BaseNode
from wal.flowgraph.nodes.batch_msg import BatchMsg
from wal.flowgraph.nodes.tick_cutter import TickCutter, TickOfLog
from wal.message import TimeTickMessage
from wal.reading import DeliverFilter, DeliverPolicy, ReadPosition

__all__ = ["ScannerNode"]

TICK_MESSAGES_MAX: Final = 4096
"""The setting `txn_bodies_max`, so that a WalSinkNode can write a tick as one transaction."""
TICK_BYTES_MAX: Final = 2 * 1024 * 1024
"""Half of the setting `txn_bytes_max`, which counts 32 bytes more for each message."""


class ScannerNode(BaseNode):
    """Reads one vchannel, or several of one pchannel, after the position of a cursor, and saves it there once a tick has passed every sink.

    A tick is a frame of the log or, with `tick_interval_s`, what has time ticks in one multiple of it; a large one is divided. Its number
    is the last time tick that may be in it. Ticks without messages come as the log promises them, so that a quiet log stops no join. A
    transaction is one message. One node reads under one name of a cursor: a second one on the same open log fails at its first tick with
    an InvalidArgumentError, since each would move the cursor past what the other has not handled.
    """

    is_input = True

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
        """`deliver_policy`, `filters` and `follow` are those of `log.read`. The node ends at the end of the log with `follow=False`, which
        takes no `tick_interval_s`, as the last interval might grow later."""
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
            vchannel,
            deliver_policy=deliver_policy,
            filters=filters,
            follow=follow,
            cursor=cursor,
            include_time_ticks=True,
        )
        self._cutter = TickCutter(
            interval_ms=round(tick_interval_s * 1000), messages_max=TICK_MESSAGES_MAX, bytes_max=TICK_BYTES_MAX
        )
        self._cut: deque[TickOfLog] = deque()
        self._given: deque[tuple[int, ReadPosition | None]] = deque()
        self._seen = False
        self._saved: ReadPosition | None = None

    async def operate(self, msgs: list[Msg]) -> Sequence[Msg]:
        """Returns the messages of the next tick, none at the end of the log.

        Raises InvalidArgumentError at the first tick if another node of this process reads the log with the same cursor.
        """
        self._take_cursor()
        while not self._cut:
            page = await self._scanner.page()
            if not page:
                return ()
            self._scanner.hand_over(len(page))
            if isinstance(page[0], TimeTickMessage):
                self._cut += self._cutter.promise(page[0].time_tick, self._scanner.position)
            else:
                self._seen = True
                self._cut += self._cutter.add(page)
        tick = self._cut.popleft()
        self._given.append((tick.time_tick, tick.position if self._seen else None))
        return (BatchMsg(tick.time_tick, tick.messages),)

    async def commit(self, tick: int) -> None:
        """Saves the cursor after this tick."""
        position = None
        while self._given and self._given[0][0] <= tick:
            position = self._given.popleft()[1]
        if position is None or (self._saved is not None and position.message_id == self._saved.message_id):
            return  # no event since the last save: nothing that the log would have to keep
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
                f"node {reader.name!r} reads with cursor {self._cursor[0]!r} already, and node {self.name!r} would move it past what that "
                "one has not handled: give each node a cursor of its own"
            )


_READERS: Final[WeakKeyDictionary[WALAccesser, dict[tuple[str, frozenset[str]], ScannerNode]]] = WeakKeyDictionary()
"""The nodes that read each open log, by their cursors: a name and the vchannels that it is for."""


INTERVAL_S_MIN: Final = 0.001
"""The unit of the clock in time ticks."""
INTERVAL_S_MAX: Final = 3600.0
