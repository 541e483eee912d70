"""FramePipeline: the way of submissions into the log of a pchannel, in one frame after the other (group commit), until they are durable.

    submit --> waiting --cut--> prepared --hand over--> in flight --settled--> durable: the callers have their results
                  ^                |                        |
                  +----withdraw----+                        +--> refused or failed: the callers have the error

1. A call checks the message, takes room in flight and sends it to the vchannel's actor (`wal/node/appends.py`). The actors of a pchannel
   share one inbox and one turn (`actors/group.py`), so all calls have one order.
2. The vchannel decides (`vchannel.py`) and submits. All submissions of one turn of the group become one frame at the end of the turn. The
   frame gets its ticks and is handed to the backend in that same turn, so ids, ticks and delivery have one order.
3. The backend writes and syncs it off the loop (a journal: `wal/storage/journal/writer.py`). It has a bound of frames in flight (two if it
   syncs one while the next is built); later submissions wait and make the following frame larger.
4. Its answer comes back in `_settled`: the lease is checked, the durable end moves, readers wake, and the callers get their results.

**Only `_hand_over` hands a frame to the backend, and its answer arrives only in `_settled`.** Every submission is settled exactly once:
resolved when its frame is durable, failed otherwise.

What can go wrong: the oracle has no ticks (the frame stays prepared until it has saved more). The backend refuses a frame before it touched
the log (a full disk: its callers get the error, the sequence is used again, the log continues). The write fails, or the lease is lost (the
pchannel fails for good: `PChannel.fail`). A caller that is cancelled changes nothing: its submission is written.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from math import inf
from typing import Final, Protocol

import msgspec

from wal.errors import NoSpaceError, StorageError, WALError, caused
from wal.frame import Compressor, CopyNames, EncodedFrame, FrameDraft, RunName, Tables, compressed, encode_frame, frame_tables
from wal.message import Origin
from wal.read.figures import Histogram
from wal.read.last_events import LastEvents
from wal.read.lease import Lease, lost_lease
from wal.runtime.threads import in_thread
from wal.storage.base import REFUSALS, PChannelLog
from wal.write.in_flight import InFlight
from wal.write.keyed_writes import KeyedWrites
from wal.write.operations import KeyedAppend, PlainAppend
from wal.write.submissions import KeyedSubmission, OwnSubmission, PlainSubmission, Submission, TxnSubmission, cut
from wal.write.ticks import PromisedTick, TickFrames, TickSupply

GROUP_RECORDS: Final = 4096
"""A frame has at most this many records, so that building it blocks the loop for about a millisecond. The backend bounds its bytes."""
COMPRESSED_HERE_BYTES_MAX: Final = 512 << 10
"""The largest body that is compressed on the loop, in 0.9 ms; a thread compresses larger ones (4 MiB of JSON take 6.5 ms)."""
LATENCY_BOUNDS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""From less than the sync of a fast disk to more than the slowest answer of Pulsar."""
EVENTS_BOUNDS: Final = tuple(float(1 << power) for power in range(13))
"""1 to GROUP_RECORDS."""
_log: Final = logging.getLogger("wal.pchannel")


class _FrameInFlight(msgspec.Struct, gc=False):
    """A frame that was handed to the backend at time `since` and is not yet answered. `oldest`: the time of its oldest append's
    submission.
    """

    submissions: list[Submission]
    sequence: int
    first_tick: int
    last_tick: int
    indices: int
    frame: EncodedFrame
    draft: FrameDraft
    since: float
    oldest: float


class FrameOwner(Protocol):
    """The notifications of a `FramePipeline` about its frames. Frames are expected, shown and settled in one order; a refused one is never
    shown.
    """

    def expect(self, frame: EncodedFrame) -> None:
        """Called when a frame was handed to the backend."""

    def show(self, position: int, frame: EncodedFrame, *, promised_tick: int) -> None:
        """Called when the oldest frame in flight is durable, before its callers have their results."""

    def frame_durable(self, frame: EncodedFrame) -> None:
        """Called when the callers of a durable frame have their results."""

    def frame_settled(self) -> None:
        """Called when a frame is durable or was refused, and the frames that could follow it were handed over."""

    def fail(self, error: WALError, *, answered: bool = False) -> None:
        """Called when the log takes no more frames: it must call `FramePipeline.stop`."""

    def poisoned(self, cause: BaseException, unhandled: list[object]) -> None:
        """Called for a defect in the pipeline: nothing can be written any more."""


class FramePipeline:
    """The frames of one pchannel in one term. All its methods run on the loop; only `begin_term` and `write_alone` wait.

    `origin` returns the frame at a position, as ids name it. `frames`, `bytes` and `events` count what is durable since the opening.
    """

    def __init__(
        self,
        log: PChannelLog,
        *,
        owner: FrameOwner,
        ticks: TickSupply,
        promised: PromisedTick,
        in_flight: InFlight,
        lasts: LastEvents,
        origin: Callable[[int], Origin],
        monotonic: Callable[[], float],
        lease: Lease,
        compressor: Compressor | None = None,
    ) -> None:
        self.fault: WALError | None = None
        """The reason why the pipeline writes nothing any more, or None; final."""
        self.owes_start: bool = False
        """Whether the first frame of the term found no room: it is written before any other frame."""
        self.frames: int = 0
        self.bytes: int = 0
        self.events: int = 0
        self.committed: int = 0
        self.failed_txns: int = 0
        # Of durable frames, plain numbers in place: the hot path adds four of them a frame.
        self._event_counts = [0] * (len(EVENTS_BOUNDS) + 1)
        self._append_counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self._sync_counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self._append_s = self._sync_s = 0.0
        self._waiting_since = 0.0  # the time of the oldest submission in `_waiting`, or before: the rest of a cut keeps it
        self._log = log
        self._owner = owner
        self._ticks = ticks
        self._promised = promised
        self._in_flight = in_flight
        self._lasts = lasts
        self._origin = origin
        self._monotonic = monotonic
        self._lease = lease
        self._compressor = compressor
        self._waiting: deque[Submission] = deque()
        self._plain: PlainSubmission | None = None  # the last one in `_waiting`, while more appends may join it
        self._keyed: KeyedSubmission | None = None  # the same; at most one of the two is open
        self._prepared: tuple[FrameDraft, list[Submission]] | None = None
        self._prepared_since = 0.0
        self._packed: tuple[FrameDraft, Tables] | None = None
        """The prepared draft, compressed; only with a compressor."""
        self._packing = False  # a thread compresses
        self.flights: deque[_FrameInFlight] = deque()
        self.flights_max = log.frames_in_flight
        self._group_bytes = log.group_bytes
        self._tick_frames = TickFrames(monotonic()) if log.tick_frames else None
        self._serial = 0
        self._copies: deque[tuple[int, CopyNames]] = deque()  # of submissions that are perhaps not settled yet
        self._after: list[tuple[int, Callable[[], None]]] = []
        self._sequence = 0
        self._refusing = False  # Invariant: while it is set, every frame in flight follows a refused one, and the backend refuses it next.

    # -- submissions

    def submit(self, submission: Submission) -> int:
        """Takes a submission for the next frame and returns its serial. Once the pipeline is stopped it fails it and returns 0."""
        if self.fault is not None:
            self._fail(submission, self.fault)
            return 0
        self._serial = submission.serial = self._serial + 1
        if not self._waiting:
            self._waiting_since = self._monotonic()
        self._waiting.append(submission)
        self._plain = self._keyed = None
        return submission.serial

    def submit_plain(self, name: RunName, appends: list[PlainAppend]) -> int:
        """Takes plain appends for the next frame; consecutive ones share one submission, whose serial is returned."""
        plain = self._plain or PlainSubmission()
        plain.add(name, appends)
        if plain is self._plain:
            return plain.serial
        if serial := self.submit(plain):
            self._plain = plain
        return serial

    def submit_keyed(self, name: RunName, appends: list[KeyedAppend], keyed: KeyedWrites) -> int:
        """Takes appends with claimed keys for the next frame; consecutive ones share one submission, whose serial is returned."""
        joined = self._keyed or KeyedSubmission(keyed)
        joined.add(name, appends)
        if joined is self._keyed:
            return joined.serial
        if serial := self.submit(joined):
            self._keyed = joined
        return serial

    def submit_copies(self, copies: Submission, names: CopyNames) -> None:
        """Takes copies of a broadcast for these vchannels."""
        while self._copies and not self.is_pending(self._copies[0][0]):
            self._copies.popleft()
        if serial := self.submit(copies):
            self._copies.append((serial, names))

    def withdraw(self, claims: frozenset[Hashable], error: WALError) -> None:
        """Fails the operations with these claims, or with changes of these cursors, that were not handed over yet."""
        if self._prepared is not None and any(submission.split(claims)[0] for submission in self._prepared[1]):
            self._waiting.extendleft(reversed(self._prepared[1]))  # the frame is drafted again, without them
            self._prepared = None
        parts = [submission.split(claims) for submission in self._waiting]
        self._waiting = deque(rest for _, rest in parts if rest is not None)
        self._plain = self._keyed = None
        for withdrawn, _ in parts:
            if withdrawn is not None:
                self._fail(withdrawn, error)
        if self._after:
            self._call_settled()

    def fail_waiting(self, error: BaseException) -> None:
        """Fails every submission that was not handed over; none of them is written."""
        prepared = [] if self._prepared is None else self._prepared[1]
        waiting = [*prepared, *self._waiting]
        self._waiting.clear()
        self._plain = self._keyed = self._prepared = None
        for submission in waiting:
            self._fail(submission, error)
        if self._after:
            self._call_settled()

    def stop(self, fault: WALError, *, in_flight: WALError) -> None:
        """Stops writing: frames in flight fail with `in_flight`, all other submissions, now and later, with `fault`."""
        self.fault = fault
        while self.flights:
            for submission in self.flights.popleft().submissions:
                self._fail(submission, in_flight)
        self.fail_waiting(fault)

    # -- the submissions in it

    def is_pending(self, serial: int) -> bool:
        """Returns whether a submission with this serial, or with a smaller one, may not be settled yet."""
        return serial >= self._oldest()

    def pending_copies(self, name: RunName) -> int:
        """Returns the serial of the newest unsettled submission with a copy for this vchannel; 0 without one."""
        for serial, copies in reversed(self._copies):
            if not self.is_pending(serial):
                break
            if name in copies.members:
                return serial
        return 0

    def when_settled(self, serial: int, call: Callable[[], None]) -> None:
        """Calls `call` once no submission up to this serial is pending; at once if that is so now."""
        if self.is_pending(serial):
            self._after.append((serial, call))
        else:
            call()

    @property
    def newest(self) -> int:
        """The serial of the newest submission, 0 before any."""
        return self._serial

    def _oldest(self) -> float:
        """Returns the serial of the oldest unsettled submission, infinity without one."""
        for flight in self.flights:
            if flight.submissions and (serial := flight.submissions[0].serial):
                return serial
        if self._prepared is not None:
            return self._prepared[1][0].serial
        return self._waiting[0].serial if self._waiting else inf

    def _call_settled(self) -> None:
        """Makes the calls that are due; see `when_settled`."""
        oldest, waiting = self._oldest(), self._after
        self._after = [after for after in waiting if after[0] >= oldest]
        for serial, call in waiting:
            if serial < oldest:
                call()

    @property
    def busy(self) -> bool:
        """Whether any submission is not settled."""
        return bool(self.flights or self._waiting or self._prepared)

    @property
    def unsynced_since(self) -> float | None:
        """The monotonic time when the oldest frame in flight was handed over, or None."""
        return self.flights[0].since if self.flights else None

    @property
    def waiting(self) -> int:
        """The number of records that wait for a frame."""
        return sum(submission.count for submission in self._waiting)

    @property
    def frames_in_flight(self) -> int:
        """The number of frames that were handed over and are not yet answered."""
        return len(self.flights)

    @property
    def bytes_in_flight(self) -> int:
        """The bytes of the frames in flight."""
        return sum(flight.frame.length for flight in self.flights)

    def histograms(self) -> tuple[Histogram, Histogram, Histogram]:
        """Returns the measurements of durable frames with events: their events, and the seconds of their appends and of their syncs."""
        return (
            Histogram(EVENTS_BOUNDS, tuple(self._event_counts), self.events),
            Histogram(LATENCY_BOUNDS_S, tuple(self._append_counts), self._append_s),
            Histogram(LATENCY_BOUNDS_S, tuple(self._sync_counts), self._sync_s),
        )

    # -- frames of the log's own

    async def begin_term(self, tick: int) -> None:
        """Writes the first frame of the term; when it returns, this handle owns the pchannel.

        Without room for the frame, it returns anyway, so that the log can be truncated. The frame then precedes the first frame that finds
        room.
        """
        try:
            await self.write_alone(self._term_start(), tick)
        except NoSpaceError as error:
            self.owes_start = True
            _log.warning(
                "pchannel %s was opened on a full disk and takes no append until there is room: %s",
                self._log.pchannel,
                error,
                extra={"wal_event": "disk full", "wal_pchannel": self._log.pchannel},
            )

    async def write_alone(self, draft: FrameDraft, tick: int) -> None:
        """Writes a frame without events that promises `tick`, and waits until it is durable. Raises the reason if it fails."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settled(error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self._hand_over(draft, [OwnSubmission(settled)], tick, promised_tick=tick)
        await done

    def write_due_tick(self) -> None:
        """Writes a TimeTick frame if one is due and no other frame, which would promise as much, is under way."""
        if self._tick_frames is None or not self._tick_frames.is_due(self._monotonic()):
            return
        # The first frame of the term comes before it, and any frame under way promises as much. The tick is taken last, since taking uses
        # it up.
        if self.fault is None and not self.owes_start and not self.busy and (tick := self._ticks.take()) is not None:
            self._hand_over(FrameDraft(), [], tick, promised_tick=tick)

    def _term_start(self) -> FrameDraft:
        draft, state = FrameDraft(), self._log.state
        draft.term_start(previous_term=state.last_term, previous_last_sequence=max(state.last_sequence, 0))
        return draft

    def _start_settled(self, error: BaseException | None) -> None:
        """Takes the outcome of a first frame that is written late: a failed one is written again."""
        self.owes_start = error is not None

    # -- the way of a frame

    def pump(self) -> None:
        """Hands frames over until the backend has enough of them, no submission waits, or the oracle has no ticks.

        Frames in flight after a refused one are refused first: later sequences that wait may follow the submissions that fail with it.
        """
        if self._refusing and self.flights:
            return
        self._refusing = False
        while len(self.flights) < self.flights_max and self.fault is None:
            prepared = self._prepared
            if prepared is None and not self._waiting:
                return
            if self.owes_start:
                if (tick := self._ticks.take()) is None:
                    return
                self.owes_start = False
                self._hand_over(self._term_start(), [OwnSubmission(self._start_settled)], tick, promised_tick=tick)
                self._prepared = prepared  # it is the next frame
                continue
            if prepared is None:
                # Kept until the hand-over: an earlier failure finds the callers there.
                self._plain = self._keyed = None
                self._prepared_since = self._waiting_since
                prepared = self._prepared = (FrameDraft(), cut(self._waiting, size=self._group_bytes, count=GROUP_RECORDS))
                for submission in prepared[1]:
                    submission.draft(prepared[0])
            draft, submissions = prepared
            if self._compressor is not None and not self._is_packed(draft, self._compressor):
                return
            first_tick = self._ticks.take(draft.indices or 1)
            if first_tick is None:
                return
            # A frame without events (a producer was forgotten) promises a tick of its own.
            self._hand_over(draft, submissions, first_tick, promised_tick=None if draft.indices else first_tick)

    def _is_packed(self, draft: FrameDraft, compressor: Compressor) -> bool:
        """Returns whether the prepared frame is compressed; if not, a thread does it, and pumps again."""
        if self._packing:
            return False
        if self._packed is None or self._packed[0] is not draft:
            tables = frame_tables(draft)
            if tables.body_len > COMPRESSED_HERE_BYTES_MAX:
                self._packing = True
                packing = in_thread(compressed, tables, compressor)
                packing.add_done_callback(partial(self._pack_ended, draft))
                return False
            self._packed = draft, compressed(tables, compressor)
        return True

    def _pack_ended(self, draft: FrameDraft, packing: asyncio.Future[Tables]) -> None:
        """Hands over the frame that a thread has compressed, unless it was withdrawn meanwhile."""
        self._packing = False
        try:
            self._packed = draft, packing.result()
            self.pump()
        except Exception as defect:
            self._owner.poisoned(defect, [])

    def _hand_over(self, draft: FrameDraft, submissions: list[Submission], first_tick: int, *, promised_tick: int | None = None) -> None:
        """Encodes the frame and hands it to the backend, which writes it off the loop and calls `_settled`."""
        sequence = self._sequence
        frame = encode_frame(
            draft,
            incarnation=self._log.incarnation,
            term=self._log.term,
            sequence=sequence,
            first_tick=first_tick,
            promised_tick=promised_tick,
            tables=self._packed[1] if self._packed is not None and self._packed[0] is draft else None,
        )
        now = self._monotonic()
        oldest = now if self._prepared is None else self._prepared_since
        self._prepared = self._packed = None
        self._sequence = sequence + 1
        self._promised.submitted(first_tick)
        self.flights.append(
            _FrameInFlight(submissions, sequence, first_tick, frame.header.promised_tick, draft.indices, frame, draft, now, oldest)
        )
        self._log.append(frame, self._settled)
        self._owner.expect(frame)

    def _settled(self, position: int, error: BaseException | None) -> None:
        """Takes the backend's answer for the oldest frame in flight: its position, or an error."""
        if self.fault is not None:
            return
        try:
            if error is None:
                if self._lease.alive:
                    self._durable(position)
                else:
                    self._owner.fail(lost_lease(self._log.pchannel))
            elif isinstance(error, REFUSALS):
                self._refused(error)
            elif isinstance(error, WALError):
                self._owner.fail(error, answered=True)
            else:
                failure = caused(StorageError(f"pchannel {self._log.pchannel}: the write failed: {error!r}", outcome_unknown=True), error)
                self._owner.fail(failure, answered=True)
        except Exception as defect:  # a defect here must reach every caller, not the loop's exception handler
            self._owner.poisoned(defect, [])

    def _durable(self, position: int) -> None:
        flight = self.flights.popleft()
        promised_tick = self._promised.settled(flight.last_tick, durable=True)
        self.frames += 1
        self.bytes += flight.frame.length
        self.events += flight.indices
        if flight.indices:
            now = self._monotonic()
            self._event_counts[bisect_left(EVENTS_BOUNDS, flight.indices)] += 1
            self._append_counts[bisect_left(LATENCY_BOUNDS_S, took_s := now - flight.oldest)] += 1
            self._append_s += took_s
            self._sync_counts[bisect_left(LATENCY_BOUNDS_S, took_s := now - flight.since)] += 1
            self._sync_s += took_s
        self._lasts.durable(position, flight.draft)
        if self._tick_frames is not None:
            self._tick_frames.written(self._monotonic(), data=flight.indices > 0)
        # Readers wake before the frame's callers: the callers' next appends would delay them, and take their turn after both anyway.
        self._owner.show(position, flight.frame, promised_tick=promised_tick)
        origin = self._origin(position)
        returned = 0
        for submission in flight.submissions:
            submission.resolve(origin, flight.first_tick)
            returned += submission.in_flight
            if submission.__class__ is TxnSubmission:
                self.committed += 1
        if returned:
            self._in_flight.release(returned)
        if self._after:
            self._call_settled()
        self._owner.frame_durable(flight.frame)
        self.pump()
        self._owner.frame_settled()

    def _refused(self, error: BaseException) -> None:
        """Fails the oldest frame. No part of it or of the later frames was written: their sequence numbers are reused."""
        flight = self.flights.popleft()
        self._refusing = True
        self._promised.settled(flight.last_tick, durable=False)
        self._sequence = min(self._sequence, flight.sequence)
        for submission in flight.submissions:
            self._fail(submission, error)
        if self._after:
            self._call_settled()
        self.pump()
        self._owner.frame_settled()

    def _fail(self, submission: Submission, error: BaseException) -> None:
        self._in_flight.release(submission.in_flight)
        submission.fail(error)
        if submission.__class__ is TxnSubmission:
            self.failed_txns += 1
