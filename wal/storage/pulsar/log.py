"""PulsarLog: one pchannel's log in a topic of Pulsar, opened for writing in one term.

Owns the writer, the reader, truncation and checkpoints, and the order in which they end. The loop only queues and answers; every call that
waits for Pulsar runs in a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

from wal.errors import ChannelFencedError, WALError, closed_log
from wal.frame import EncodedFrame, RunName
from wal.message import LogPosition
from wal.storage.base import AppendDone, Extent, FramePage, LogState, PChannelLog, closed_before, past_end, too_long
from wal.storage.pulsar.broker_settings import group_bytes
from wal.storage.pulsar.checkpoints import PIECE_BYTES, Checkpoints
from wal.storage.pulsar.control import CHANGES_MAX
from wal.storage.pulsar.fencing_floor import FencingFloor
from wal.storage.pulsar.ledgers import LedgerRecord
from wal.storage.pulsar.opening import Opened
from wal.storage.pulsar.positions import text_of
from wal.storage.pulsar.reader import Passed, PulsarReader
from wal.storage.pulsar.topic import move_cursor
from wal.storage.pulsar.writer import FRAME_COST, PulsarWriter

_T = TypeVar("_T")
_log: Final = logging.getLogger("wal.pulsar")


class PulsarLog(PChannelLog):
    """See `PChannelLog`. `PulsarBackend.open` creates it, on the loop that uses it."""

    frames_in_flight: ClassVar[int] = 4
    frame_cost: ClassVar[int] = FRAME_COST
    tick_frames: ClassVar[bool] = True

    def __init__(self, opened: Opened, *, frame_bytes_limit: int) -> None:
        self.pchannel = opened.control.pchannel
        self.incarnation: int = opened.mark.incarnation
        self.term: int = opened.mark.term
        self.state: LogState = opened.state
        self.group_bytes: int = group_bytes(frame_bytes_limit)
        self._frame_bytes_limit = frame_bytes_limit
        self._loop = asyncio.get_running_loop()
        self._connection = opened.connection
        self._control = opened.control
        self._ledgers = opened.ledgers
        self._promise = opened.state.promised_tick
        self._working: set[asyncio.Task[Any]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._index = opened.index
        self._passed: Passed | None = None
        """The result of the last calls of `read_keyed`, one after the other: all messages are fetched once for a recovery, not twice."""
        self._writer = PulsarWriter(opened, ledger_full=self._ledger_full)
        self._reader = PulsarReader(
            opened.connection,
            opened.topic,
            opened.ledgers,
            opened.floors,
            pchannel=self.pchannel,
            incarnation=self.incarnation,
            earliest=lambda: self.earliest,
            kept_from=lambda: opened.control.record.kept_from,
            term_at=opened.control.term_at,
        )
        self._truncation = PulsarTruncation(opened, floor_before=self._reader.floor_before)
        self._checkpoints = Checkpoints(
            opened.connection,
            opened.control,
            topic=opened.connection.address.checkpoints(self.pchannel),
            term=self.term,
            piece_bytes=min(PIECE_BYTES, frame_bytes_limit),
        )

    @property
    def durable_end(self) -> int:
        return self._writer.durable_end

    @property
    def earliest(self) -> tuple[int, int]:
        return self._truncation.earliest

    @property
    def last_truncated(self) -> tuple[int, int] | None:
        return self._control.record.last_truncated

    @property
    def truncated_tick(self) -> int | None:
        return self._control.record.truncated_tick

    def append(self, frame: EncodedFrame, done: AppendDone) -> None:
        if self._closing is not None:
            closed = closed_before(self.pchannel)
            self._closing.add_done_callback(lambda _: done(-1, closed))
            return
        refused = too_long(frame.length, self._frame_bytes_limit) if frame.length > self._frame_bytes_limit else None
        self._writer.append(frame, done, refused=refused)

    async def read(self, start: int, *, names: frozenset[str] | None, bytes_max: int, end: int | None = None) -> FramePage:
        self._check_open()
        durable = self._writer.durable_end
        end = durable if end is None else min(end, durable)
        self._reader.check(start, durable)
        if start >= end:
            return FramePage([], start, None, 0)
        if names is not None:
            if (hole := self._index.hole(start, end, names)) is not None:
                return FramePage([], hole.end, hole.last_event, hole.promised_tick)
            end = self._index.run_end(start, end, names)
        return await self._page(lambda: self._reader.page(start, end, names, bytes_max))

    async def read_keyed(self, start: int, *, bytes_max: int) -> FramePage:
        self._check_open()
        end = self._writer.durable_end
        self._reader.check_held(start, end)
        if start >= end:
            return FramePage([], start, None, 0)
        if self._passed is None or self._passed.end != start:
            self._passed = Passed(start, start)
        return await self._page(partial(self._reader.keyed_page, self._passed, end, bytes_max, self._index))

    async def last_events(self, start: int) -> dict[RunName, LogPosition]:
        self._check_open()
        end = self._writer.durable_end
        passed, self._passed = self._passed, None
        if passed is None or self._ledgers.first_at(passed.start) != self._ledgers.first_at(start):
            passed = Passed(start, start)
        while passed.end < end:
            await self._page(partial(self._reader.last_events, passed, end, self._index))
        return passed.events

    async def intend(self, up_to: LogPosition | None) -> None:
        self._check_open()
        await self._truncation.intend(up_to)

    async def truncate(self, position: int, index: int) -> None:
        self._check_open()
        if position > self.durable_end:
            raise past_end(text_of(position), text_of(self.durable_end))
        await self._whole(self._truncation.truncate((position, index)))

    def extents(self) -> list[Extent]:
        return self._ledgers.extents(self.durable_end, self._writer.promised_tick)

    def bytes_between(self, start: int, end: int) -> int:
        return self._ledgers.bytes_between(start, end)

    @property
    def checkpointed(self) -> int | None:
        return self._truncation.checkpoint

    @property
    def held_bytes(self) -> int:
        return self._ledgers.bytes_within(self._control.record.kept_from, self.earliest[0])

    @property
    def keyed_bytes(self) -> int:
        return self._writer.keyed_bytes

    def promise(self, tick: int, limit: int) -> None:
        if self._closing is None:
            self._promise = max(self._promise, tick)

    async def save_state(self, position: int, pieces: Sequence[bytes]) -> None:
        self._check_open()
        await self._whole(self._checkpoints.save(position, list(pieces)))

    async def load_state(self, position: int) -> bytes:
        self._check_open()
        return await self._checkpoints.load(position)

    async def release(self, position: int, *, state: int | None) -> None:
        self._check_open()
        if await self._whole(self._truncation.release(position)):
            self._index.drop_below(self._control.record.kept_from)
            await self._whole(self._checkpoints.keep(state, self._index.encode()))

    async def close(self) -> None:
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(), name=f"close pchannel {self.pchannel}")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        await self._writer.close()
        if self._working:
            await asyncio.wait(list(self._working))
        if self._writer.failure is None:
            try:
                await self._control.change(
                    self.term,
                    clean=True,
                    promised_tick=max(self._promise, self._writer.promised_tick),
                    end=self.durable_end,
                    newest=self._writer.newest,
                )
            except ChannelFencedError:
                pass  # the log belongs to another owner now
            except WALError as error:
                _log.warning("pchannel %s is closed, but the metadata could not be told: %s", self.pchannel, error)
        await self._connection.run(self._reader.close)

    async def _page(self, read: Callable[[], FramePage]) -> FramePage:
        """Reads a page in a thread. A topic reader that stays open is closed after it was idle for a while."""
        if self._idle_timer is None:
            self._idle_timer = self._loop.call_later(self._reader.idle_s, self._close_idle_readers)
        return await self._connection.read(read)

    def _close_idle_readers(self) -> None:
        self._idle_timer = None
        if self._closing is not None:
            return
        if self._reader.is_open:
            self._idle_timer = self._loop.call_later(self._reader.idle_s, self._close_idle_readers)
        closing = self._loop.create_task(self._connection.run(self._reader.close_idle), name="close idle readers")
        self._working.add(closing)
        closing.add_done_callback(self._ended)

    def _ledger_full(self, position: int) -> None:
        """Describes the full ledger before the one of this position."""
        full = self._ledgers.ledgers[-2]
        full.record = LedgerRecord(full.entries, full.size, self._writer.promised_tick, self._writer.newest)
        saving = self._loop.create_task(self._save_record(full.number, full.record), name="save the record of a ledger")
        self._working.add(saving)
        saving.add_done_callback(self._ended)
        if self.sealed is not None:
            self.sealed()

    async def _save_record(self, number: int, record: LedgerRecord) -> None:
        try:
            await self._control.change(self.term, ledgers={number: record})
        except WALError as error:  # the next opening reads that ledger
            _log.info("the record of ledger %d of pchannel %s was not saved: %s", number, self.pchannel, error)

    async def _whole(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Finishes this work even if the caller is cancelled: the records in the metadata must change together."""
        task = self._loop.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._working.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have been cancelled

    def _check_open(self) -> None:
        if self._closing is not None:
            raise closed_log(f"of pchannel {self.pchannel!r}")


class PulsarTruncation:
    """The position where the log begins, the one where its recovery begins, and what Pulsar may delete below both.

    Owns the order of the steps. The earliest event is first stored in the control record; only then is the durable cursor advanced, past
    messages that neither a reader nor the next recovery needs. Pulsar deletes whole ledgers, when they are full and its own retention
    allows it. The next opening moves the cursor again, so a failure only delays freeing space.

    `floor_before` returns the fencing floor below a position; it blocks.
    """

    def __init__(self, opened: Opened, *, floor_before: Callable[[int], FencingFloor]) -> None:
        self._connection = opened.connection
        self._control = opened.control
        self._ledgers = opened.ledgers
        self._floors = opened.floors
        self._topic = opened.topic
        self._term = opened.mark.term
        self._floor_before = floor_before
        self._turn = asyncio.Lock()
        self.checkpoint: int | None = opened.checkpoint
        """Nothing at or above this position is released, truncated or not; None: recovery needs nothing."""

    @property
    def earliest(self) -> tuple[int, int]:
        return self._control.record.earliest

    async def intend(self, up_to: LogPosition | None) -> None:
        """See `PChannelLog.intend`."""
        async with self._turn:
            if self._control.record.intent != up_to:
                await self._control.change(self._term, intent=up_to)

    async def truncate(self, earliest: tuple[int, int]) -> None:
        """Makes this the earliest event, unless a later one already is. Raises ChannelFencedError, or an error of the metadata."""
        async with self._turn:
            if earliest <= self.earliest:
                await self._control.check_owner(self._term)
                return
            below = self._record_below(earliest[0])
            last_truncated = (None if below is None else below.newest) or self._control.record.last_truncated
            tick = None if below is None or earliest[1] else below.newest_tick
            await self._control.change(self._term, earliest=earliest, last_truncated=last_truncated, truncated_tick=tick, intent=None)
            await self._give_back()

    async def release(self, checkpoint: int) -> bool:
        """Lets recovery begin here from now on; returns False if it already begins later. Raises ChannelFencedError."""
        async with self._turn:
            await self._control.check_owner(self._term)
            if self.checkpoint is not None and checkpoint < self.checkpoint:
                return False
            self.checkpoint = checkpoint
            await self._give_back()
            return True

    async def _give_back(self) -> None:
        record = self._control.record
        kept_from = record.earliest[0] if self.checkpoint is None else min(record.earliest[0], self.checkpoint)
        if kept_from <= record.kept_from:
            return
        floor = await self._connection.run(lambda: self._floor_before(kept_from))
        terms = sorted(term for term, position in self._control.terms.items() if position < kept_from)[:-1]
        await self._control.change(
            self._term,
            kept_from=kept_from,
            floor=(floor.term, floor.sequence),
            dropped_terms=terms[:CHANGES_MAX],
            dropped_ledgers=self._ledgers.numbers_below(kept_from)[: 4 * CHANGES_MAX],
        )
        self._floors.add(kept_from, floor, lasting=True)
        self._floors.drop_below(kept_from)
        last = self._ledgers.last_below(kept_from)
        self._ledgers.drop_below(kept_from)
        if last is not None:
            await self._connection.run(lambda: move_cursor(self._connection, self._topic, last))

    def _record_below(self, position: int) -> LedgerRecord | None:
        """Returns the record of the ledger below this position if the next one begins there, else None."""
        for ledger, following in zip(self._ledgers.ledgers, self._ledgers.ledgers[1:], strict=False):
            if following.start == position:
                return ledger.record
        return None
