"""BlockingRead: one read of a log in the caller's thread, without an event loop and without a thread of its own.

It owns the read-only core of the log, the `Progress` of the read, and the wait at the log's tail: it asks the log every 1 to 20 ms, and
looks for vchannels every 50 ms. Each message is delivered once, whichever threads take them; a timeout or an interrupt during the wait
loses nothing; `close` from any thread ends a wait. It writes nothing but its cursor. `Iteration` gives its messages as a plain iterator.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self

from wal.api.blocking_calls import listed
from wal.api.factory import make_source
from wal.channels.vchannels import check_vchannels
from wal.errors import ChannelNotExistError, ClosedError, InvalidArgumentError, TruncatedError, UnavailableError, caused
from wal.location import parse_location
from wal.message import ImmutableMessage
from wal.message.matching import Matching
from wal.read.beginning import AttachRequest, CursorRequest, begin
from wal.read.cursors.cursor import Cursor, CursorKey, check_cursor
from wal.read.cursors.status import resumable
from wal.read.options import READ_TAKES, Reached, ReadOptions, ReadPosition, named
from wal.read.progress import BodyTurns, Need, Progress
from wal.read.read_only_core import ReadOnlyCore, ReadOnlySource
from wal.read.sources import pauses
from wal.read.truncated import first_event, overtaken, shrinkage, went_back
from wal.runtime.backoff import Backoff
from wal.settings import Settings
from wal.storage.base import LogSnapshot
from wal.storage.read_only import ReadOnlyPChannelLog
from wal.storage.search import run
from wal.timestamp.checks import check_wait

PAGE_BYTES: Final = 1024 * 1024
"""About this many bytes of the log are fetched at a time."""
POLL_MIN_S: Final = 0.001
POLL_MAX_S: Final = 0.02
LOOK_S: Final = 0.05
"""The pause in seconds between two looks for vchannels."""


class BlockingRead:
    """One read in the caller's thread. A subclass hands over messages in `_step`.

    The constructor checks the arguments, and waits at most `wait_s` seconds for the log to exist. The read begins when it is
    entered, or with the first message.
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        vchannel: str | Sequence[str] | Matching,
        *,
        timeout_s: float | None,
        wait_s: float,
        settings: Settings | None,
        cursor: str | None,
        auto_ack: bool,
        **read: Any,
    ) -> None:
        if not isinstance(auto_ack, bool):
            raise TypeError(f"auto_ack must be a bool, not {auto_ack!r}")
        if auto_ack:
            raise InvalidArgumentError(
                "auto_ack=True acknowledges through the log, and this read does not write: read with it where the log is written"
            )
        if not isinstance(settings, Settings | None):
            raise TypeError(f"settings must be a Settings, not {type(settings).__name__}")
        settings = settings or Settings()
        source = make_source(parse_location(location), settings, wait_s=check_wait(wait_s))
        self._timeout_s = _timeout(timeout_s)
        subject = vchannel if isinstance(vchannel, Matching) else check_vchannels(vchannel, READ_TAKES)
        read["filters"] = listed(read["filters"])
        options = ReadOptions.of(subject, **read)
        if cursor is not None and options.resume is not None:
            raise InvalidArgumentError("cursor=… and resume=… both set the position: give one of them")
        self._cursor = None if cursor is None else CursorKey.of(check_cursor(cursor), subject)
        _wait_until_present(source, wait_s)
        self._lock = threading.RLock()  # a signal handler may close what its own thread is reading
        self._closing = threading.Event()
        self._log: ReadOnlyPChannelLog
        self._tail: LogSnapshot
        self._looked_s = -math.inf  # never
        self._begun = self._over = self._ended = False
        self._error: BaseException | None = None
        self._prepare(location, source, settings, options, read)

    def _prepare(
        self, location: str | os.PathLike[str], source: ReadOnlySource, settings: Settings, options: ReadOptions, read: dict[str, Any]
    ) -> None:
        """Sets up what reads the log."""
        self._names = options.vchannels
        self._subject = named(self._names)
        self._core = ReadOnlyCore(source, create_vchannels=settings.create_vchannels)
        self._progress = Progress(options)

    def __repr__(self) -> str:
        cursor = "" if self._cursor is None else f"cursor={self._cursor.name!r}, "
        state = "ended" if self._ended else "open" if self._begun else "not entered yet"
        return f"{type(self).__name__}({self._subject}, {cursor}{state})"

    # -- beginning and ending

    def __enter__(self) -> Self:
        with self._lock:
            self._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the read cleanly, from any thread; a thread that waits for a message sees the end. Idempotent."""
        self._closing.set()
        self._end_waits()
        with self._lock:
            self._finish(None)

    def _end_waits(self) -> None:
        """Ends the wait of another thread for a server, which holds the lock."""
        self._core.end_waits()

    @property
    def position(self) -> ReadPosition | None:
        """The position after what was handed over, including ranges that held nothing for this reader; None before anything."""
        with self._lock:
            return self._progress.position_of(self._reached())

    def save(self) -> None:
        """Stores the position under the name of the cursor, durably. Raises InvalidArgumentError without `cursor=…`,

        TruncatedError if the cursor has become stale or the log was truncated past it.
        """
        with self._lock:
            key, log, reached, source = self._begun_cursor(), self._log, self._reached(), self._core.source
            cursor = Cursor(
                key,
                tuple(map(self._progress.selection.incarnation, key.vchannels)),
                log.pchannel,
                log.incarnation,
                reached.position,
                reached.event,
                reached.tick,
                time.time(),
                source.form,
            )
            source.cursors.save(cursor)

    def _begun_cursor(self) -> CursorKey:
        """Begins the read, and returns the key of the cursor that `save` stores. Raises what `save` documents."""
        if self._cursor is None:
            raise InvalidArgumentError("save() stores a cursor, and this read has none: give it cursor=…")
        self._begin()
        if self._ended:
            raise ClosedError("this read is closed: save() while it is open")
        return self._cursor

    def _begin(self) -> None:
        """Fixes where the read begins and ends. The first use of the read calls it."""
        if self._begun or self._ended:
            return
        try:
            self._core.open()
            run(
                begin(self._progress, has_cursor=self._cursor is not None, measure=lambda *extent: self._log.measure(*extent)), self._answer
            )
            self._begun = True
        except BaseException as error:
            self._finish(error)
            raise

    def _answer(self, request: Any) -> Any:
        """Returns what the beginning needs."""
        match request:
            case AttachRequest():
                self._log, self._tail, selection = self._core.attach(self._names)
                self._log.lineage.note(self._log.pchannel)
                return self._tail, selection
            case CursorRequest():
                return self._load_cursor()
            case _:
                return self._log.answer(request)

    def _load_cursor(self) -> Cursor | None:
        """Returns the saved cursor to continue from, or None if none is saved; see `resumable` for the errors."""
        assert self._cursor is not None
        core, log = self._core, self._log
        try:
            return resumable(core.source.cursors.load(self._cursor), core.cursor_view(), pchannel=log.pchannel)
        except TruncatedError as error:
            error.earliest = run(first_event(), log.answer)
            raise

    def _finish(self, error: BaseException | None) -> None:
        """Ends the read for this reason, None after a clean end; the first reason stays."""
        if not self._ended:
            self._ended = True
            self._error = error
            self._progress.let_go()
        self._core.close()

    # -- continuing

    def _ready(self) -> bool:
        """Whether there is something to hand over."""
        return self._progress.following < len(self._progress.messages)

    def _step(self) -> Need:
        """Returns what the read needs next; MESSAGES once there is something to hand over."""
        return self._progress.advance(self._tail)

    def _flush(self) -> bool:
        """Makes what was gathered ready, since the time is up; returns whether there is something to hand over."""
        return False

    def _reached(self) -> Reached:
        """Returns the progress of the read, counting what was handed over."""
        return self._progress.reached

    def _fill(self) -> bool:
        """Continues until there is something to hand over; returns False at the end. Raises TimeoutError after `timeout_s` seconds."""
        deadline: float | None = None
        backoff = Backoff(POLL_MIN_S, POLL_MAX_S)
        while True:
            with self._lock:
                need, moved = self._turn()
            if need is Need.MESSAGES or need is Need.OVER:
                return need is Need.MESSAGES
            if self._timeout_s is not None and deadline is None:
                deadline = time.monotonic() + self._timeout_s
            if need is Need.TAIL and moved:
                backoff.reset()
                continue
            left_s = POLL_MAX_S if deadline is None else deadline - time.monotonic()
            # With timeout_s=0 it reads on as long as there is something to read.
            if left_s <= 0 and (need is Need.TAIL or self._timeout_s):
                with self._lock:
                    if self._flush():
                        return True
                raise TimeoutError(f"no message came within {self._timeout_s} s; the read can continue")
            if need is Need.TAIL:
                self._closing.wait(min(backoff.next(), left_s))

    def _turn(self) -> tuple[Need, bool]:
        """Takes one step of the read, under the lock; returns its next need, and at the tail whether the tail has moved."""
        if self._ready():  # another thread read on while this one waited
            return Need.MESSAGES, False
        self._begin()
        if self._ended or self._over:
            if self._error is not None:
                raise self._error
            return Need.OVER, False
        try:
            need = self._step()
            self._over = need is Need.OVER
            if need is Need.PAGE:
                self._take_page()
            elif need is Need.TAIL:
                return need, self._look()
            elif need is Need.OVER:
                self._at_end()
        except Exception as error:
            if self._ended:  # a signal handler closed the read during the step
                return Need.OVER, False
            if isinstance(error, ClosedError) and self._closing.is_set():  # another thread closes the read, and waits for the lock
                self._finish(None)
                return Need.OVER, False
            self._finish(error)
            raise
        except BaseException as error:
            # An interrupted step may have consumed half of the current messages; the position has not moved.
            reason = caused(ClosedError(f"this read was ended by {type(error).__name__}: go on with a new one, from its position"), error)
            self._finish(reason)
            raise
        return need, False

    def _at_end(self) -> None:
        """Warns of vchannels that do not exist."""
        self._core.warn_unknown()

    def _take_page(self) -> None:
        progress = self._progress
        try:
            self._fetch_page()
        except TruncatedError as error:
            raise overtaken(self._log.pchannel, progress.at, run(first_event(), self._log.answer)) from error

    def _fetch_page(self) -> None:
        """Fetches and takes the page that the progress needs."""
        progress = self._progress
        progress.take(self._log.page(progress.at, progress.page_end, progress.selection.names, PAGE_BYTES))

    def _look(self) -> bool:
        """Asks the log again, and from time to time looks for vchannels; returns whether there is anything new."""
        before, tail = self._tail, self._log.refresh()
        if (what := shrinkage(before, tail)) is not None:
            raise run(went_back(tail, what, self._reached().tick), self._log.answer)
        self._tail = tail
        now = time.monotonic()
        if now - self._looked_s >= LOOK_S:
            self._looked_s = now
            with contextlib.suppress(UnavailableError):  # known vchannels stay; a lasting outage makes `refresh` above raise
                self._core.look()
            if self._follow_vchannels():
                return True
        return tail.durable_end != before.durable_end or tail.promised_tick != before.promised_tick

    def _follow_vchannels(self) -> bool:
        """Moves to the pchannel of a vchannel that the read waits for, if it was created elsewhere; returns whether it did.

        Raises ChannelNotExistError if a vchannel that it reads was dropped.
        """
        core, selection = self._core, self._progress.selection
        for name, change in core.changes(self._log.pchannel, self._names, selection.incarnation):
            if isinstance(change, ChannelNotExistError):
                raise change
            if len(self._names) > 1:
                raise InvalidArgumentError(
                    f"vchannel {name!r} was created on {change.pchannel}, but this reader reads {', '.join(self._names)} on "
                    f"{self._log.pchannel}, and a reader reads one pchannel: read them apart"
                )
            selection.bind(name, change.incarnation)
            self._log = log = core.logs[change.pchannel]
            self._tail = log.reach()
            self._progress.move(core.origin(log), self._tail, since=log.earliest)
            return True
        return False


def _wait_until_present(source: ReadOnlySource, wait_s: float) -> None:
    """Returns when the log exists; raises FormatError if it does not exist after `wait_s` seconds."""
    try:
        for pause_s in pauses(wait_s, time.monotonic):
            if source.absence(0.0) is None:
                return
            time.sleep(pause_s)
        if (absent := source.absence(wait_s)) is not None:
            raise absent
    except BaseException:
        source.close()
        raise


def _timeout(timeout_s: float | None) -> float | None:
    if timeout_s is None:
        return None
    if not isinstance(timeout_s, int | float) or isinstance(timeout_s, bool):
        raise TypeError(f"timeout_s must be a number of seconds or None, not {timeout_s!r}")
    if not timeout_s >= 0:
        raise InvalidArgumentError(f"timeout_s={timeout_s} is out of range: 0 or more, or None to wait for good")
    return float(timeout_s)


class Iteration(BlockingRead):
    """Messages in tick order, each once, as `Scanner` gives them; a context manager and an iterator. See `iterate`.

    Errors of the read (TruncatedError, CorruptionError, ChannelNotExistError if a vchannel is dropped) end it, and `next()` raises them.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._turns = BodyTurns()

    def __iter__(self) -> Iterator[ImmutableMessage]:
        return self

    def __next__(self) -> ImmutableMessage:
        progress = self._progress
        while True:
            with self._lock:
                for message in progress.coming or progress.open():
                    return message
            if not self._fill():
                raise StopIteration

    def bodies(self) -> Iterator[tuple[ImmutableMessage, ImmutableMessage]]:
        """Yields each body with its message, as `Scanner.bodies` does: a message counts as handed over with its last body."""
        progress = self._progress
        while self._fill():
            while True:
                with self._lock:
                    following = progress.following
                    if following == len(progress.messages):
                        break
                    message = progress.messages[following]
                    body, is_last = self._turns.next(message)
                    if is_last:
                        progress.hand_over(1)
                if body is not None:
                    yield message, body
