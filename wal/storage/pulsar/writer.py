"""PulsarWriter: writes frames into a topic in order, several in flight at once, and answers each with its position.

Owns: the producer, the frames in flight, and the fencing floor after the last answered frame. Sending only queues a frame in the client,
whose answers come back to the loop. An answer that directly follows the previous one (the next entry of the same ledger) is accepted. Any
other answer means that something is between them: a new ledger, a frame that the client resent after a lost connection, the mark of another
owner. Then the writer reads the messages between them, and a frame's position is its first one in the topic, as for every reader. The table
in `repair.py` has the actions that follow, and those after a lost producer.

A frame that the client itself refuses (one above the broker's limit, say) can never be written. No frame after it is sent, so that the log
has no gap; the frames before it are still answered, and then the writer fails for good.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from wal.errors import ChannelFencedError, StorageError, WALError, caused, defect
from wal.frame import RECOVERED, EncodedFrame, FrameHeader
from wal.storage.base import AppendDone
from wal.storage.pulsar.connection import close_quietly, failure, is_refusal, position_of_id
from wal.storage.pulsar.frames_in_flight import Flight, FramesInFlight
from wal.storage.pulsar.opening import Opened
from wal.storage.pulsar.repair import Outage, Repair, WriterAction, WriterEvent, WriterState
from wal.storage.pulsar.topic import TopicEntry, read_entries, send_mark

FRAME_COST: Final = 16 << 10
"""See `PChannelLog.frame_cost`: each frame is fetched as a message of its own. So an opening replays about 2,000 small frames at most."""
FLOOR_EVERY: Final = 64
LOOK_S: Final = 1.0
UNANSWERED_S: Final = 2.0
"""A producer without a connection is given up when its oldest frame waits for longer: the client's next attempt may be many seconds
away."""
_log: Final = logging.getLogger("wal.pulsar")


class PulsarWriter:
    """The writer of one log in one term. `ledger_full` is called with the position of the first message of each new ledger."""

    def __init__(self, opened: Opened, *, ledger_full: Callable[[int], None]) -> None:
        state = opened.state
        self.durable_end: int = state.end
        self.promised_tick: int = state.promised_tick
        """The newest tick in the log."""
        self.newest: tuple[int, int] | None = state.newest
        self.keyed_bytes: int = 0
        self.failure: WALError | None = None
        self._connection = opened.connection
        self._control = opened.control
        self._producer = opened.producer
        self._ledgers = opened.ledgers
        self._floors = opened.floors
        self._topic = topic = opened.topic
        self._mark = opened.mark
        self._index = opened.index
        self._is_first = True
        self._last = state.end - 1
        """The newest message that was answered or read; initially this writer's mark."""
        self._floor = floor = opened.floor
        self._ledger_full = ledger_full
        self._loop = asyncio.get_running_loop()
        self._flights = FramesInFlight(topic, floor.sequence + 1)
        self._repair = Repair()
        self._outage = Outage()
        self._generation = 0
        """The number of the producer: late answers of an earlier one are ignored."""
        self._working: asyncio.Task[None] | None = None
        """The task that READING and REPLACING wait for."""
        self._oldest_since = 0.0
        self._look: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None

    def append(self, frame: EncodedFrame, done: AppendDone, *, refused: BaseException | None = None) -> None:
        """Queues a frame; a `refused` frame is answered with that error, in order."""
        if self.failure is not None:
            self._loop.call_soon(done, -1, error_for(self.failure, unknown=False))
            return
        self._flights.add(frame, done, refused=refused)
        self._pump()

    async def close(self) -> None:
        """Waits until every frame is answered, then closes the producer."""
        if self._flights and self.failure is None:
            self._idle = self._loop.create_future()
            await self._idle
        if self._look is not None:
            self._look.cancel()
        while self._working is not None:
            await asyncio.wait((self._working,))
        await self._connection.run(lambda: close_quietly(self._producer))

    # -- sending and answers

    def _pump(self) -> None:
        """Sends as many frames as may be in flight."""
        flights = self._flights
        while self._repair.state is WriterState.WRITING and (flight := flights.take()) is not None:
            if flight is flights.oldest:
                self._oldest_since = self._loop.time()
            if flight.refused is None and (cause := self._send(flight)) is not None:
                self._on(WriterEvent.LOST, cause)
            if flight.refused is not None:
                self._loop.call_soon(self._answer)
        if (flights.oldest is not None or flights.window) and self._look is None:
            self._look = self._loop.call_later(LOOK_S, self._look_after)

    def _send(self, flight: Flight) -> str | None:
        """Sends a frame to the client. Returns the client's reason if it does not accept the frame now; a frame that it never accepts is
        `refused` from now on."""
        loop, generation, here = self._loop, self._generation, threading.get_ident()
        at_once: list[Any] = []

        def answered(result: Any, message_id: Any) -> None:
            # In a thread of the client, or within send_async when it does not accept the frame. That must be known before the next frame is
            # sent, which the client might accept. If the loop is closed, no caller waits for the answer.
            if threading.get_ident() == here:
                at_once.append(result)
                return
            try:
                loop.call_soon_threadsafe(self._answered, generation, flight, result, message_id)
            except RuntimeError:
                pass

        flight.number = self._flights.window.hand_over(flight.frame.length)
        try:
            self._producer.send_async(b"".join(flight.frame.buffers), answered)
        except Exception as error:  # the producer is closed: treated like such an answer
            at_once.append(error)
        if not at_once:
            return None
        self._flights.window.answered(flight.number)
        if is_refusal(at_once[0]):
            self._flights.refuse(flight, self._refused(flight, at_once[0]))
            return None
        return f"a frame was answered with {at_once[0]}"

    def _refused(self, flight: Flight, result: Any) -> WALError:
        return StorageError(
            f"{self._topic}: Pulsar's client refuses a frame of {flight.frame.length} bytes ({result}); neither this frame nor any after "
            "it was written. Open the log again, which asks the broker for its limits; if the frame is too large for the broker, "
            "raise maxMessageSize there, or lower txn_bytes_max and message_bytes_max"
        )

    def _answered(self, generation: int, flight: Flight, result: Any, message_id: Any) -> None:
        """Handles Pulsar's answer for a frame."""
        import _pulsar

        if generation != self._generation or self.failure is not None:
            return
        self._flights.window.answered(flight.number)
        if result == _pulsar.Result.Ok:
            if not flight.is_read:
                flight.position = position_of_id(message_id)
            self._answer()
        elif is_refusal(result):
            self._on(WriterEvent.ERROR, self._refused(flight, result))
        else:
            self._on(WriterEvent.LOST, f"a frame was answered with {result}")

    def _answer(self) -> None:
        """Answers the frames whose position is known, from the oldest on, and continues sending."""
        flights = self._flights
        while self._repair.state is WriterState.WRITING and (flight := flights.oldest) is not None:
            position = flight.position
            if position is None:
                break
            if flight.refused is None and not flight.is_read and position != self._last + 1:
                self._on(WriterEvent.GAP, position)
                return
            flights.pop()
            self._oldest_since = self._loop.time()
            if flight.refused is None:
                self._durable(flight, position)
                continue
            flight.done(-1, flight.refused)
            if flights.refusal is not None and flight.refused is flights.refusal:
                self._on(WriterEvent.ERROR, flights.refusal)
        self._pump()
        self._check_idle()

    def _durable(self, flight: Flight, position: int) -> None:
        header = flight.frame.header
        self._outage.end()
        if not flight.is_read:  # else the frame was counted when it was read
            self._count(position, flight.frame.length, header)
            self._last = position
            self._floor.term, self._floor.sequence = header.term, header.sequence
            if header.sequence % FLOOR_EVERY == 0:
                self._floors.add(position + 1, self._floor)
        frame = flight.frame
        if self._is_first:
            self._is_first = False
            self._index.begin(self.durable_end)  # frames below were added by recovery, or are unknown
        names = [name for name, _ in frame.vchannels]
        self._index.add(position, names, indices=header.indices, promised_tick=header.promised_tick, for_all=frame.pchannel_wide)
        self.durable_end = max(self.durable_end, self._last + 1)
        if header.compatible & RECOVERED:
            self.keyed_bytes += max(flight.frame.length, FRAME_COST)
        flight.done(position, None)

    def _count(self, position: int, size: int, header: FrameHeader | None) -> None:
        """Counts a message of the topic; `header` is None unless it is a frame of the log."""
        if self._ledgers.added(position, size):
            self._ledger_full(position)
        if header is not None:
            self.promised_tick = max(self.promised_tick, header.promised_tick)
            if header.indices:
                self.newest = (position, header.indices - 1)

    def _check_idle(self) -> None:
        if self._idle is not None and not self._idle.done() and not self._flights:
            self._idle.set_result(None)

    def _look_after(self) -> None:
        """Checks, once a second while frames are in flight, whether the producer has lost its broker and cannot reconnect."""
        self._look = None
        waits = self._flights.oldest is not None or bool(self._flights.window)
        if not waits or self._repair.state is not WriterState.WRITING:
            return
        late = self._loop.time() - self._oldest_since > UNANSWERED_S
        if late and not self._producer.is_connected():
            self._on(WriterEvent.LOST, "the connection to the broker was lost")
        else:
            self._look = self._loop.call_later(LOOK_S, self._look_after)

    # -- repair

    def _on(self, event: WriterEvent, detail: Any = None) -> None:
        """Carries out the action in the table of repair. `detail`: for GAP the position of the answer, for LOST the cause, for ERROR the
        error."""
        if event is WriterEvent.LOST:
            self._generation += 1
        action = self._repair.on(event)
        if action is WriterAction.READ:
            self._work(self._read_up_to(detail))
        elif action is WriterAction.REPLACE:
            self._work(self._replace_producer(detail or "the producer was lost while the writer read the messages between two answers"))
        elif action is WriterAction.ANSWER:
            self._answer()
        elif action is WriterAction.FAIL:
            self._fail(detail)

    def _work(self, work: Coroutine[Any, Any, str | None]) -> None:
        """Runs the work that a state waits for, and reports its end. `work` returns why the producer was lost again, or None."""

        async def whole() -> None:
            event = WriterEvent.FOUND
            detail: str | WALError | None = None
            try:
                lost = await work
                if lost is not None:
                    event, detail = WriterEvent.LOST, lost
            except WALError as error:
                event, detail = WriterEvent.ERROR, error
            except Exception as error:
                event, detail = WriterEvent.ERROR, defect("finding out which frames were written failed", error)
            finally:
                self._working = None
            self._on(event, detail)
            self._check_idle()

        self._working = self._loop.create_task(whole(), name=f"pulsar writer of {self._topic}")

    async def _read_up_to(self, position: int) -> None:
        """Finds the frames in flight among the messages after the last known one, up to this position."""
        read = partial(read_entries, self._connection, self._topic, self._last, position, self._mark.incarnation)
        self._take_in(await self._connection.run(read))

    async def _replace_producer(self, cause: str) -> str | None:
        """Creates a new producer if the term is still this writer's, and sends the frames that the old one did not get into the log.

        Returns the new producer's reason if it did not accept a frame.
        """
        _log.warning("%s: %s; replacing the producer", self._topic, cause)
        if pause_s := self._outage.begin(self._loop.time()):
            self._check_outage(cause, None)
            await asyncio.sleep(pause_s)
        while True:
            try:
                await self._control.check_owner(self._mark.term)
                await self._connection.run(lambda: close_quietly(self._producer))
                self._producer = await self._connection.run(lambda: self._connection.producer(self._topic, fencing=True))
                # After the fence: an owner that takes the term from now on fences this producer; an earlier claim is seen here.
                await self._control.check_owner(self._mark.term)
                mark = await self._connection.run(partial(send_mark, self._producer, self._mark))
                break
            except ChannelFencedError:
                raise
            except Exception as error:
                problem = failure(error, f"replacing the producer of {self._topic}", self._connection.address)
                self._check_outage(cause, problem)
                pause_s = self._outage.next_pause_s()
                _log.info("%s; trying again in %g s", problem, pause_s)
                await asyncio.sleep(pause_s)
        self._generation += 1
        self._flights.producer_replaced()
        await self._read_up_to(mark)
        self._oldest_since = self._loop.time()
        for flight in self._flights.to_resend():
            if (lost := self._send(flight)) is not None:
                return lost
        if not self._flights.window:
            self._outage.end()  # every frame had got through
        return None

    def _check_outage(self, cause: str, problem: WALError | None) -> None:
        if self._outage.is_too_long(self._loop.time()):
            raise StorageError(
                f"{self._topic}: {cause}, and the producer could not be replaced within {self._outage.limit_s:g} s"
                + (": no frame got through" if problem is None else f": {problem}"),
                outcome_unknown=True,
            ) from problem

    def _take_in(self, entries: list[tuple[int, TopicEntry]]) -> None:
        """Counts the messages read, by the fencing floor as every reader does, and sets the position of each frame in flight."""
        floor, waiting = self._floor, self._flights.by_number()
        for size, entry in entries:
            position, header = entry.position, entry.header
            if entry.mark is not None:
                floor.mark(entry.mark.term)
            if header is not None and floor.takes(header.term, header.sequence, position):
                self._count(position, size, header)
                flight = waiting.get((header.term, header.sequence))
                if flight is not None:
                    flight.position, flight.is_read = position, True
            else:
                self._count(position, size, None)
            self._last = position
        if floor.term > self._mark.term:
            raise ChannelFencedError(f"{self._topic} is owned by term {floor.term} now; this handle is of term {self._mark.term}")
        self._floors.add(self._last + 1, floor)

    def _fail(self, error: WALError) -> None:
        """Answers every frame with this error: frames in flight may be in the log, unsent ones are not."""
        self.failure = error
        self._generation += 1
        sent, queued = self._flights.drain()
        for flight in sent:
            flight.done(-1, flight.refused or error_for(error, unknown=True))
        for flight in queued:
            flight.done(-1, flight.refused or error_for(error, unknown=False))
        self._check_idle()


def error_for(error: WALError, *, unknown: bool) -> WALError:
    """Returns the error for a frame that was not written, or whose outcome is `unknown`."""
    own = caused(copy.copy(error), error.__cause__)
    own.outcome_unknown = unknown
    return own
