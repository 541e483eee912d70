"""FamilyIteration and FamilyBatches: reads with a pattern for callers without an event loop.

The read is that of an open log (`wal/read/merged.py`), on a loop in a thread of its own. The log is opened when the read begins.
The caller's thread takes one page after the other, hands its messages over, and reports that to the scanner before it asks for a position.
"""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable
from typing import Any, Final, TypeVar

from wal.api.blocking_opening import BlockingOpening, blocking
from wal.api.blocking_read import POLL_MAX_S, BlockingRead, Iteration
from wal.api.record_batches import RecordBatches
from wal.message.matching import Matching
from wal.read.assembly import NO_MESSAGES, MessagePage
from wal.read.merged import MergedRead
from wal.read.options import ReadOptions, ReadPosition, TickPosition
from wal.read.progress import HandOver, Need
from wal.read.read_only_core import ReadOnlySource
from wal.read.scanner import Scanner
from wal.runtime.loop_thread import LoopThread
from wal.settings import Settings

_T = TypeVar("_T")
_PAGE_MAX: Final = 1024
"""The most messages that become rows at once."""


class _FetchedPage(HandOver):
    """The current page of the scanner."""

    __slots__ = ("_reported",)

    def __init__(self) -> None:
        super().__init__()
        self._reported = 0

    def take(self, messages: MessagePage) -> None:
        """Makes this the current page, after all messages of the one before were reported."""
        self.messages, self.coming, self._given, self._reported = messages, None, 0, 0

    def report(self) -> int:
        """Returns how many more messages were handed over since the last report."""
        before, self._reported = self._reported, self.following
        return self._reported - before

    @property
    def tick(self) -> int:
        raise NotImplementedError  # the scanner has it

    @property
    def position(self) -> ReadPosition | None:
        raise NotImplementedError  # the scanner has it

    def let_go(self) -> None:
        self.take(NO_MESSAGES)


class FamilyRead(BlockingRead):
    """See the top of the file."""

    _progress: _FetchedPage  # type: ignore[assignment]
    _scanner: Scanner
    _thread: LoopThread

    def _prepare(
        self, location: str | os.PathLike[str], source: ReadOnlySource, settings: Settings, options: ReadOptions, read: dict[str, Any]
    ) -> None:
        source.close()
        assert options.pattern is not None
        self._pattern: Matching = options.pattern
        self._subject = f"{options.pattern}"
        self._read = read
        self._opening: BlockingOpening = blocking(location, settings=settings, read_only=True)
        self._progress = _FetchedPage()
        self._fetching: concurrent.futures.Future[MessagePage] | None = None

    def _end_waits(self) -> None:
        """Does nothing: the lock is held for short times only."""

    def _begin(self) -> None:
        if self._begun or self._ended:
            return
        try:
            log = self._opening.open()
            cursor = None if self._cursor is None else self._cursor.name
            scanner = log.read(self._pattern, cursor=cursor, **self._read)
            self._scanner, self._thread = scanner._async, scanner._thread
            scanner.__enter__()
            self._begun = True
        except BaseException as error:
            self._finish(error)
            raise

    def _finish(self, error: BaseException | None) -> None:
        if not self._ended:
            self._ended = True
            self._error = error
            if self._begun:
                self._on_loop(lambda: None)
            self._progress.let_go()
        self._opening.close()

    # -- continuing

    def _step(self) -> Need:
        progress = self._progress
        if progress.following < len(progress.messages):
            return Need.MESSAGES
        if self._fetching is None:
            self._fetching = self._thread.start(self._fetch, progress.report())
        if not self._fetching.done():
            read = self._scanner._loop
            return Need.TAIL if isinstance(read, MergedRead) and read.at_tail else Need.PAGE
        fetching, self._fetching = self._fetching, None
        progress.take(fetching.result())
        return Need.MESSAGES if progress.messages else Need.OVER

    async def _fetch(self, handed_over: int) -> MessagePage:
        if handed_over:
            self._scanner._hand_over(handed_over)
        return await self._scanner._page()

    def _take_page(self) -> None:
        """Waits for the page that the scanner reads."""
        if self._fetching is not None:
            concurrent.futures.wait((self._fetching,), POLL_MAX_S)

    def _look(self) -> bool:
        return self._fetching is None or self._fetching.done()

    def _at_end(self) -> None:
        """Does nothing: a pattern names no vchannel that might be missing."""

    # -- the position

    @property
    def position(self) -> ReadPosition | None:
        with self._lock:
            return self._reached_position()

    def _reached_position(self) -> ReadPosition | None:
        """Returns the position of the scanner."""
        return self._on_loop(lambda: self._scanner.position) if self._begun else None

    def save(self) -> None:
        with self._lock:
            self._begun_cursor()
            self._on_loop(lambda: None)
            self._thread.call(self._scanner.save, self._delivered())

    def _delivered(self) -> ReadPosition | None:
        """Returns the position after what was delivered if the scanner is further; None if it is there."""
        return None

    def _on_loop(self, call: Callable[[], _T]) -> _T:
        """Reports what was handed over to the scanner, then makes the call, on its loop."""
        handed_over = self._progress.report()

        def after_report() -> _T:
            if handed_over:
                self._scanner._hand_over(handed_over)
            return call()

        # Once the loop has ended, this thread may touch the scanner.
        return after_report() if self._thread.stopped else self._thread.run(after_report)


class FamilyIteration(FamilyRead, Iteration):
    """The messages of all vchannels that match a pattern; see `iterate`."""


class FamilyBatches(FamilyRead, RecordBatches):
    """Batches of the messages of all vchannels that match a pattern; see `record_batches`."""

    _delivered_at: ReadPosition | None = None
    """The end of the delivered batches, while some rows are undelivered."""

    def _step(self) -> Need:
        progress = self._progress
        while True:
            rows = self._rows
            if not rows.rows:
                self._delivered_at = self._reached_position()
            need = super()._step()
            if need is Need.MESSAGES:
                page = progress.page(min(self._rows_max - rows.rows, _PAGE_MAX))
                rows.add_messages(page)
                progress.hand_over(len(page))
            full = rows.rows >= self._rows_max or rows.size >= self._bytes_max
            if rows.rows and (full or need is Need.TAIL or need is Need.OVER):
                self._cut()
                return Need.MESSAGES
            if need is not Need.MESSAGES:
                return need

    @property
    def position(self) -> ReadPosition | None:
        with self._lock:
            return self._delivered_at if self._batches or self._rows.rows else self._reached_position()

    def _delivered(self) -> ReadPosition | None:
        if not self._batches and not self._rows.rows:
            return None
        return self._delivered_at or TickPosition.at(0, self._scanner._loop.anchor.pchannel)
