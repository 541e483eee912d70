"""Writer: frames into a topic, several on their way at once, in order, and each answered with where it lies.

Owns: the producer, what is queued, what was sent, and the floor of what was answered. Sending only hands over; Pulsar's answers come
back to the loop. An answer that follows the one before directly (next entry of the same ledger) is what it seems. Any other means that
something came between: a new ledger, a frame that was sent again after a lost connection, somebody's mark. Then what lies between is
read, and the frame's place is where it lies first, as for every reader.

A frame that the client itself refuses (it is above the broker's limit, say) can never be written: nothing behind it is sent, so that the
log has no gap; what is before it is still answered, and then the writer fails for good.

A producer that was thrown out, or does not answer, is given up: if the term is still ours a new one is made, a mark is written (what
was on its way lies before it, or never comes), what lies up to there is read, and only what is not there is sent again. So an outcome
is never guessed. If that does not succeed in time, everything on its way fails as unknown, and the writer for good.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from wal.backends.base import AppendDone
from wal.backends.pulsar.connection import Connection, failure, position_of_id
from wal.backends.pulsar.control import Control
from wal.backends.pulsar.floor import Floor
from wal.backends.pulsar.floors import FloorIndex
from wal.backends.pulsar.layout import FRAMES_IN_FLIGHT, Mark, mark_properties
from wal.backends.pulsar.ledgers import LedgerTable
from wal.backends.pulsar.topic import Entry, TopicReader
from wal.backends.pulsar.window import Window
from wal.errors import ChannelFencedError, StorageError, UnknownError, WALError
from wal.frame import RECOVERED, EncodedFrame, FrameHeader

if TYPE_CHECKING:
    import pulsar

__all__ = ["Writer", "close_producer", "send_mark"]

SENT_BYTES_MAX: Final = 16 << 20
"""On their way, over all frames; always room for one."""
FLOOR_EVERY: Final = 64
LOOK_S: Final = 1.0
UNANSWERED_S: Final = 2.0
"""A lost producer whose oldest frame waits for longer is given up: the client's own next attempt may be many seconds away."""
RETRY_S: Final = 0.2
RETRY_MAX_S: Final = 2.0
OUTAGE_S: Final = 120.0
"""How long a broker may be away before the writer fails; also over several attempts, as long as no frame gets through."""
REFUSALS: Final = ("MessageTooBig", "InvalidMessage", "CryptoError", "OperationNotSupported", "IncompatibleSchema")
"""Pulsar's answers that are about one frame: it would be answered so however often it is sent."""
_log: Final = logging.getLogger("wal.pulsar")


class _Flight(msgspec.Struct, gc=False):
    """A frame that was handed over. `position`: as Pulsar answered; `settled`: it is where the frame lies. `held`: its number in the
    window."""

    frame: EncodedFrame
    done: AppendDone
    refused: BaseException | None = None
    position: int | None = None
    settled: bool = False
    held: int = 0


class Writer:
    """Of one log in one term. `last`: the position of the newest message read at opening (our mark), and `floor` what counts up to it."""

    def __init__(
        self,
        connection: Connection,
        control: Control,
        producer: pulsar.Producer,
        ledgers: LedgerTable,
        floors: FloorIndex,
        *,
        topic: str,
        mark: Mark,
        last: int,
        floor: Floor,
        promised_tick: int,
        newest: tuple[int, int] | None,
        ledger_full: Callable[[int], None],
    ) -> None:
        self.durable_end: int = last + 1
        self.promised_tick: int = promised_tick
        """The newest tick in the log."""
        self.newest = newest
        self.keyed_bytes: int = 0
        self.failure: WALError | None = None
        self._connection = connection
        self._control = control
        self._producer = producer
        self._ledgers = ledgers
        self._floors = floors
        self._topic = topic
        self._mark = mark
        self._last = last
        self._floor = floor
        self._ledger_full = ledger_full
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Flight] = deque()
        self._sent: deque[_Flight] = deque()
        self._sent_bytes = 0
        self._window = Window(frames_max=FRAMES_IN_FLIGHT, bytes_max=SENT_BYTES_MAX)
        self._refusal: WALError | None = None
        """Why a frame can never be written: it is the last of what was sent, and nothing is sent behind it."""
        self._next = floor.sequence + 1
        """The sequence of the next frame that is sent for the first time."""
        self._outage_since: float | None = None
        """When the producer was given up, as long as no frame has got through since."""
        self._life = 0
        """Of the producer: what an earlier one answers late is not looked at."""
        self._repair: asyncio.Task[None] | None = None
        self._oldest_since = 0.0
        self._look: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None
        self._replacing = False

    def append(self, frame: EncodedFrame, done: AppendDone, *, refused: BaseException | None = None) -> None:
        """Takes a frame; one that is `refused` is answered with that in its turn."""
        if self.failure is not None:
            self._loop.call_soon(done, -1, _told(self.failure, unknown=False))
            return
        self._queue.append(_Flight(frame, done, refused))
        self._pump()

    async def close(self) -> None:
        """Waits until all is answered, then lets go of the producer."""
        if (self._queue or self._sent) and self.failure is None:
            self._idle = self._loop.create_future()
            await self._idle
        if self._look is not None:
            self._look.cancel()
        if self._repair is not None:
            await asyncio.wait((self._repair,))
        await self._connection.run(lambda: close_producer(self._producer))

    # -- sending and answers

    def _pump(self) -> None:
        while self._queue and len(self._sent) < FRAMES_IN_FLIGHT and self._repair is None and self._refusal is None:
            flight = self._queue[0]
            if self._sent and self._sent_bytes + flight.frame.length > SENT_BYTES_MAX:
                break
            if not self._window.has_room(flight.frame.length):
                break
            self._queue.popleft()
            if not self._sent:
                self._oldest_since = self._loop.time()
            self._sent.append(flight)
            self._sent_bytes += flight.frame.length
            if flight.refused is None and flight.frame.header.sequence > self._next:
                flight.refused = self._refusal = StorageError(
                    f"{self._topic}: frame {flight.frame.header.sequence} was handed over where {self._next} is next: writing it would "
                    "leave a gap, so nothing from here on is written. Open the log again"
                )
            if flight.refused is None:
                self._next = max(self._next, flight.frame.header.sequence + 1)
                cause = self._send(flight)
                if cause is not None:
                    self._begin_repair(cause)
            if flight.refused is not None:
                flight.position = -1
                self._loop.call_soon(self._settle)
        if (self._sent or self._window) and self._look is None:
            self._look = self._loop.call_later(LOOK_S, self._look_after)

    def _send(self, flight: _Flight) -> str | None:
        """Hands a frame to the client. What it says when it does not take it; a frame that it never will is `refused` from now on."""
        loop, life, here = self._loop, self._life, threading.get_ident()
        at_once: list[Any] = []

        def answered(result: Any, message_id: Any) -> None:
            # In a thread of the client, or within send_async when it does not take the frame. It must be known before the next one is
            # sent, which the client might take. A loop that is closed has nobody who waits.
            if threading.get_ident() == here:
                at_once.append(result)
                return
            try:
                loop.call_soon_threadsafe(self._answered, life, flight, result, message_id)
            except RuntimeError:
                pass

        flight.held = self._window.hand_over(flight.frame.length)
        try:
            self._producer.send_async(b"".join(flight.frame.buffers), answered)
        except Exception as error:  # it is closed: as if it had answered so
            at_once.append(error)
        if not at_once:
            return None
        self._window.answered(flight.held)
        if _is_refusal(at_once[0]):
            flight.refused = self._refusal = self._refused(flight, at_once[0])
            flight.position = -1
            return None
        return f"a frame was answered with {at_once[0]}"

    def _refused(self, flight: _Flight, result: Any) -> WALError:
        return StorageError(
            f"{self._topic}: Pulsar's client refuses a frame of {flight.frame.length} bytes ({result}); this frame and nothing behind it "
            "was written. Open the log again: that takes the broker's limits as they are now; if it is too large for the broker, raise "
            "maxMessageSize there, or lower txn_bytes_max and message_bytes_max"
        )

    def _answered(self, life: int, flight: _Flight, result: Any, message_id: Any) -> None:
        """Pulsar's answer for a frame."""
        import _pulsar

        if life != self._life or self.failure is not None:
            return
        self._window.answered(flight.held)
        if result == _pulsar.Result.Ok:
            if not flight.settled:
                flight.position = position_of_id(message_id)
            self._settle()
        elif _is_refusal(result):
            self._fail(self._refused(flight, result))
        else:
            self._begin_repair(f"a frame was answered with {result}")

    def _settle(self) -> None:
        """Answers the frames whose place is known, from the oldest on."""
        while self._sent and self._repair is None and self.failure is None:
            flight = self._sent[0]
            if flight.position is None:
                break
            if flight.refused is None and not flight.settled and flight.position != self._last + 1:
                self._start_repair(self._look_between(flight.position))
                return
            self._sent.popleft()
            self._sent_bytes -= flight.frame.length
            self._oldest_since = self._loop.time()
            if flight.refused is None:
                self._durable(flight)
                continue
            flight.done(-1, flight.refused)
            if self._refusal is not None and flight.refused is self._refusal:
                self._fail(self._refusal)
        if self.failure is None:
            self._pump()
        self._check_idle()

    def _durable(self, flight: _Flight) -> None:
        position, header = flight.position, flight.frame.header
        assert position is not None
        self._outage_since = None
        if not flight.settled:  # else it was counted when it was read
            self._count(position, flight.frame.length, header)
            self._last = position
            self._floor.term, self._floor.sequence = header.term, header.sequence
            if header.sequence % FLOOR_EVERY == 0:
                self._floors.add(position + 1, self._floor)
        self.durable_end = max(self.durable_end, self._last + 1)
        if header.compatible & RECOVERED:
            self.keyed_bytes += flight.frame.length
        flight.done(position, None)

    def _count(self, position: int, size: int, header: FrameHeader | None) -> None:
        """A message was added to the topic; `header`: of a frame of the log."""
        if self._ledgers.added(position, size):
            self._ledger_full(position)
        if header is not None:
            self.promised_tick = max(self.promised_tick, header.promised_tick)
            if header.indices:
                self.newest = (position, header.indices - 1)

    def _check_idle(self) -> None:
        if self._idle is not None and not self._idle.done() and not self._queue and not self._sent:
            self._idle.set_result(None)

    def _look_after(self) -> None:
        """Now and then while frames are on their way: has the producer lost its broker, and does not find back?"""
        self._look = None
        if not (self._sent or self._window) or self._repair is not None or self.failure is not None:
            return
        late = self._loop.time() - self._oldest_since > UNANSWERED_S
        if late and not self._producer.is_connected():
            self._begin_repair("the connection to the broker was lost")
        else:
            self._look = self._loop.call_later(LOOK_S, self._look_after)

    # -- finding out

    def _begin_repair(self, cause: str) -> None:
        """The producer is given up."""
        self._life += 1
        if self._repair is None:
            self._start_repair(self._replace_producer(cause))

    def _start_repair(self, work: Any) -> None:
        life = self._life

        async def whole() -> None:
            again: str | None = None
            try:
                again = await work
                if self._life != life and not self._replacing:
                    again = "the producer was lost while its answers were looked at"
            except WALError as error:
                self._fail(error)
            except Exception as defect:
                failed = UnknownError(f"finding out what became of frames failed: {defect!r}; please report it")
                failed.__cause__ = defect
                self._fail(failed)
            finally:
                self._repair = None
            if self.failure is None:
                if again is not None:
                    self._start_repair(self._replace_producer(again))
                else:
                    self._settle()
            self._check_idle()

        self._replacing = False
        self._repair = self._loop.create_task(whole(), name=f"pulsar writer of {self._topic}")

    async def _look_between(self, position: int) -> str | None:
        """Reads what lies between the last known message and this answer; says where the frames on their way lie."""
        entries = await self._connection.run(lambda: self._read_up(self._last, position))
        self._take_in(entries)
        return None

    async def _replace_producer(self, cause: str) -> str | None:
        """Makes a new producer, if the term is still ours, and sends what the old one did not get into the log. What that one said when
        it did not take a frame."""
        self._replacing = True
        _log.warning("%s: %s; taking the log up again", self._topic, cause)
        wait_s = RETRY_S
        if self._outage_since is None:
            self._outage_since = self._loop.time()
        else:  # the one before got nothing through
            self._check_outage(cause, None)
            await asyncio.sleep(RETRY_MAX_S)
        while True:
            try:
                await self._control.check_owner(self._mark.term)
                await self._connection.run(lambda: close_producer(self._producer))
                producer = await self._connection.run(lambda: self._connection.producer(self._topic, fencing=True))
                self._producer = producer
                # After the fence: who takes the term from now on fences this producer, and who did before is seen here.
                await self._control.check_owner(self._mark.term)
                mark = await self._connection.run(partial(send_mark, producer, self._mark))
                break
            except ChannelFencedError:
                raise
            except Exception as error:
                problem = failure(error, f"taking up {self._topic} again", self._connection.address)
                self._check_outage(cause, problem)
                _log.info("%s; trying again in %g s", problem, wait_s)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, RETRY_MAX_S)
        self._life += 1
        self._window.replaced()
        entries = await self._connection.run(lambda: self._read_up(self._last, mark))
        for flight in self._sent:
            if flight.refused is None:
                flight.position = None
        self._take_in(entries)
        self._oldest_since = self._loop.time()
        for flight in self._sent:
            if self._refusal is None and flight.position is None:
                again = self._send(flight)
                if again is not None:
                    return again
        if not self._window:
            self._outage_since = None  # all of it had got through
        return None

    def _check_outage(self, cause: str, problem: WALError | None) -> None:
        assert self._outage_since is not None
        if self._loop.time() - self._outage_since > OUTAGE_S:
            raise StorageError(
                f"{self._topic}: {cause}, and it could not be taken up again within {OUTAGE_S:g} s"
                + (": no frame got through" if problem is None else f": {problem}"),
                outcome_unknown=True,
            ) from problem

    def _read_up(self, last: int, position: int) -> list[tuple[int, Entry]]:
        """In a thread: the messages behind `last` up to `position`, which is there, without their bytes but with their sizes."""
        reader = TopicReader(self._connection, self._topic, last, after=True)
        found: list[tuple[int, Entry]] = []
        try:
            while not found or found[-1][1].position < position:
                entry = reader.next(self._mark.incarnation)
                size, entry.data = len(entry.data), b""
                found.append((size, entry))
        finally:
            reader.close()
        return found

    def _take_in(self, entries: list[tuple[int, Entry]]) -> None:
        """Counts what was read as every reader does, and settles the frames on their way that are in it."""
        floor = self._floor
        waiting = {
            (flight.frame.header.term, flight.frame.header.sequence): flight
            for flight in self._sent
            if flight.refused is None
        }
        for size, entry in entries:
            position, header = entry.position, entry.header
            if entry.mark is not None:
                floor.mark(entry.mark.term)
            if header is not None and floor.takes(header.term, header.sequence, position):
                self._count(position, size, header)
                flight = waiting.get((header.term, header.sequence))
                if flight is not None:
                    flight.position, flight.settled = position, True
            else:
                self._count(position, size, None)
            self._last = position
        if floor.term > self._mark.term:
            raise ChannelFencedError(
                f"{self._topic} is owned by term {floor.term} now; this handle is of term {self._mark.term}"
            )
        self._floors.add(self._last + 1, floor)

    def _fail(self, error: WALError) -> None:
        """Nothing is written any more. What is on its way may be in the log; what is queued was not sent."""
        self.failure = error
        self._life += 1
        self._window.replaced()
        sent, self._sent, self._sent_bytes = self._sent, deque(), 0
        queued, self._queue = self._queue, deque()
        for flight in sent:
            flight.done(-1, flight.refused or _told(error, unknown=True))
        for flight in queued:
            flight.done(-1, flight.refused or _told(error, unknown=False))
        self._check_idle()


def send_mark(producer: pulsar.Producer, mark: Mark) -> int:
    """Writes a mark and waits for it; its position. Blocks."""
    return position_of_id(producer.send(b"", properties=mark_properties(mark)))


def close_producer(producer: pulsar.Producer) -> None:
    """Lets go of it, whether or not it is there any more. Blocks."""
    import pulsar

    try:
        producer.close()
    except pulsar.PulsarException:
        pass  # it was thrown out, or its broker is gone


def _told(error: WALError, *, unknown: bool) -> WALError:
    """The same error for a call of which it is known, or not, whether it was written."""
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    own.outcome_unknown = unknown
    return own


def _is_refusal(result: Any) -> bool:
    """Whether this answer, or error, is about the frame alone."""
    import _pulsar

    return any(result == getattr(_pulsar.Result, name) for name in REFUSALS) or type(result).__name__ in REFUSALS
