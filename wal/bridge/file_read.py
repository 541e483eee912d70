"""FileRead: one read of a journal, straight from its files, in whichever thread asks: no event loop, no thread of its own.

Owns the observed log, the `Progress` of the read, and the waiting at its tail: it looks at the control page every 1 to 20 ms, and at
the maps of vchannels that the writer keeps for other processes. Promises: each message once, whichever threads take them; a timeout
or an interrupt while it waits loses nothing; `close` from any thread ends who waits. It never writes, but for its cursor.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from wal.backends import ReadOnlyState
from wal.backends.journal import ABSENT_REMEDY, ReadOnlyJournalLog, wait_until_present
from wal.bridge.file_cursor import FileCursor, Place
from wal.bridge.file_events import event_of, first_event, log_origin
from wal.bridge.file_journal import FileJournal
from wal.channels import check_vchannels
from wal.cursors import Cursor
from wal.errors import ClosedError, InvalidArgumentError, TruncatedError
from wal.location import parse_location
from wal.message import MessageID
from wal.reading import READ_TAKES, Need, Progress, ReadOptions, ReadPosition, Selection
from wal.ticks import check_wait

__all__ = ["FileRead"]

PAGE_BYTES: Final = 1024 * 1024
"""About so much log is fetched at a time, as a scanner does."""
POLL_MIN_S: Final = 0.001
POLL_MAX_S: Final = 0.02
LOOK_S: Final = 0.05
"""How often the maps of vchannels are looked at."""


class FileRead:
    """What `Iteration` and `RecordBatches` stand on: they say how messages are handed over, in `_step`.

    It begins when it is entered, or at the first message. When it is made the arguments are checked, and that there is a journal: it is
    waited for, for at most `wait_s`.
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        vchannel: str | Sequence[str],
        *,
        timeout_s: float | None,
        wait_s: float,
        cursor: str | None,
        auto_ack: bool,
        **read: Any,
    ) -> None:
        if not isinstance(auto_ack, bool):
            raise TypeError(f"auto_ack must be a bool, not {auto_ack!r}")
        if auto_ack:
            raise InvalidArgumentError(
                "auto_ack=True acknowledges through the log, and this reads its files alone: read with it where the log is written"
            )
        self._directory = _directory(location)
        self._timeout_s = _timeout(timeout_s)
        names = check_vchannels(vchannel, READ_TAKES)
        self._options = options = ReadOptions.of(names, **read)
        if cursor is not None and options.resume is not None:
            raise InvalidArgumentError("cursor=… and resume=… both say where to go on: give one of them")
        self._names = names
        self._cursor = None if cursor is None else FileCursor(cursor, names)
        wait_until_present(self._directory, check_wait(wait_s), remedy=ABSENT_REMEDY)
        self._progress = Progress(options)
        self._lock = threading.RLock()  # a handler of a signal may close what its own thread is reading
        self._closing = threading.Event()
        self._journal: FileJournal | None = None
        self._log: ReadOnlyJournalLog
        self._state: ReadOnlyState
        self._looked_s = 0.0
        self._over = self._ended = False
        self._error: BaseException | None = None

    # -- beginning and ending

    def __enter__(self) -> Self:
        with self._lock:
            self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the read cleanly, from any thread; whoever waits for a message sees the end. Idempotent."""
        self._closing.set()
        with self._lock:
            self._finish(None)

    @property
    def position(self) -> ReadPosition | None:
        """Behind what was handed over, stretches that held nothing for this reader included; None before anything."""
        with self._lock:
            return self._place().position

    def save(self) -> None:
        """Stores the position under the name of the cursor, durably. Without `cursor=…` an InvalidArgumentError.

        TruncatedError when the cursor has turned stale or the log was truncated past it.
        """
        with self._lock:
            if self._cursor is None:
                raise InvalidArgumentError("save() stores a cursor, and this read has none: give it cursor=…")
            self._begin()
            if self._journal is None:
                raise ClosedError("this read is closed: save() while it is open")
            self._cursor.save(self._journal, self._log, self._progress.selection, self._place())

    def _begin(self) -> None:
        """Fixes where the read begins and ends; the first use does it."""
        if self._journal is not None or self._ended:
            return
        try:
            journal = self._journal = FileJournal(self._directory)
            self._log, selection = journal.attach(self._names)
            cursor = self._load_cursor(journal)
            if cursor is not None:
                self._progress.go_on(cursor.start, cursor.position)
            if (truncated := self._start(selection)) is not None:
                named = self._options.resume is None and cursor is None
                whole = event_of(self._log, truncated) if named else None
                if whole is None or self._start(selection, whole) is not None:
                    raise self._truncated(f"message id {truncated} has been truncated")
        except BaseException as error:
            self._finish(error)
            raise

    def _start(self, selection: Selection, after: MessageID | None = None) -> MessageID | None:
        log = self._log
        self._state = log.reach()
        return self._progress.begin(
            log_origin(log),
            selection,
            self._state,
            self._state.earliest,
            after=after,
            last_truncated=log.last_truncated,
        )

    def _load_cursor(self, journal: FileJournal) -> Cursor | None:
        if self._cursor is None:
            return None
        try:
            return self._cursor.load(journal, self._log)
        except TruncatedError as error:
            raise TruncatedError(str(error), earliest=first_event(self._log)) from error

    def _finish(self, error: BaseException | None) -> None:
        """Nothing is read any more; the first reason stays."""
        if not self._ended:
            self._ended = True
            self._error = error
            self._progress.let_go()
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    # -- going on

    def _ready(self) -> bool:
        """Whether there is something to hand over."""
        return self._progress.following < len(self._progress.messages)

    def _step(self) -> Need:
        """What the read needs next; MESSAGES once there is something to hand over."""
        return self._progress.advance(self._state)

    def _flush(self) -> bool:
        """When time is up: whether there is something to hand over after all."""
        return False

    def _place(self) -> Place:
        return Place.of(self._progress)

    def _fill(self) -> bool:
        """Goes on until there is something to hand over; False at the end. TimeoutError when it takes longer than `timeout_s`."""
        deadline: float | None = None
        pause_s = POLL_MIN_S
        while True:
            with self._lock:
                need, moved = self._turn()
            if need is Need.MESSAGES or need is Need.OVER:
                return need is Need.MESSAGES
            if self._timeout_s is not None and deadline is None:
                deadline = time.monotonic() + self._timeout_s
            if need is Need.TAIL and moved:
                pause_s = POLL_MIN_S
                continue
            left_s = POLL_MAX_S if deadline is None else deadline - time.monotonic()
            if left_s <= 0 and (
                need is Need.TAIL or self._timeout_s
            ):  # without any time it reads on, as long as there is something
                with self._lock:
                    if self._flush():
                        return True
                raise TimeoutError(f"no message came within {self._timeout_s} s; the read can go on")
            if need is Need.TAIL:
                self._closing.wait(min(pause_s, left_s))
                pause_s = min(2 * pause_s, POLL_MAX_S)

    def _turn(self) -> tuple[Need, bool]:
        """One step of the read, under the lock; at the tail, whether that has moved."""
        if self._ready():  # by another thread meanwhile
            return Need.MESSAGES, False
        self._begin()
        journal = self._journal
        if journal is None or self._over:
            if self._error is not None:
                raise self._error
            return Need.OVER, False
        try:
            need = self._step()
            self._over = need is Need.OVER
            if need is Need.PAGE:
                self._take_page()
            elif need is Need.TAIL:
                return need, self._look(journal)
        except Exception as error:
            if self._ended:  # by a handler of a signal, in the midst of it
                return Need.OVER, False
            self._finish(error)
            raise
        except BaseException as error:
            # Interrupted in the midst of a step: what was at hand may be half moved on; the position is not.
            reason = ClosedError(
                f"this read was ended by {type(error).__name__}: go on with a new one, from its position"
            )
            reason.__cause__ = error
            self._finish(reason)
            raise
        return need, False

    def _take_page(self) -> None:
        progress = self._progress
        try:
            page = self._log.page(progress.at, progress.page_end, progress.selection.names, PAGE_BYTES)
        except TruncatedError as error:
            raise self._truncated(
                f"the log of pchannel {self._log.pchannel} was truncated past position {progress.at}, where this read had got to"
            ) from error
        progress.take(page)

    def _look(self, journal: FileJournal) -> bool:
        """At the tail: looks at the control page again, and at times at the vchannels; whether something moved."""
        before, state = self._state, self._log.refresh()
        self._state = state
        now = time.monotonic()
        if now - self._looked_s >= LOOK_S:
            self._looked_s = now
            self._log.check()
            there = journal.made_elsewhere(self._progress.selection, self._names, self._log)
            if there is not None:
                self._log, self._state = there, there.reach()
                self._progress.move(log_origin(there), self._state, since=there.earliest)
                return True
        return state.durable_end != before.durable_end or state.promised_tick != before.promised_tick

    def _truncated(self, what: str) -> TruncatedError:
        first = first_event(self._log)
        return TruncatedError(
            f"{what}; the earliest event still there is {first}: start from it, or from All()", earliest=first
        )


def _directory(location: str | os.PathLike[str]) -> Path:
    parsed = parse_location(location)
    if parsed.pulsar is not None:
        raise InvalidArgumentError(
            f"{parsed} lies on Pulsar and has no files to read: read it with open_wal() and log.read(), or with Spark (service.url)"
        )
    if parsed.path is None:
        raise InvalidArgumentError(
            f"{parsed} lies in the memory of the process that opened it and has no files to read: read it there, "
            "with log.read() or blocking()"
        )
    return parsed.path


def _timeout(timeout_s: float | None) -> float | None:
    if timeout_s is None:
        return None
    if not isinstance(timeout_s, int | float) or isinstance(timeout_s, bool):
        raise TypeError(f"timeout_s must be a number of seconds or None, not {timeout_s!r}")
    if not timeout_s >= 0:
        raise InvalidArgumentError(f"timeout_s={timeout_s} is out of range: 0 or more, or None to wait for good")
    return float(timeout_s)
