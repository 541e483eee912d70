"""FramesInFlight: the frames of one writer, from the call that appends them until each is answered, in their order. Pure.

Owns: the queue of frames that were not sent yet, the frames on their way, and `ClientWindow`, which counts what Pulsar's client holds.
Guarantees: frames are sent in the order of the calls and without a gap in their sequences; after a frame that can never be written
nothing is sent.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec

from wal.backends.base import AppendDone
from wal.backends.pulsar.layout import FRAMES_IN_FLIGHT
from wal.errors import StorageError, WALError
from wal.frame import EncodedFrame

__all__ = ["ClientWindow", "Flight", "FramesInFlight", "error_for"]

SENT_BYTES_MAX: Final = 16 << 20
"""Bytes of all frames on their way together; there is always room for one frame."""


class Flight(msgspec.Struct, gc=False):
    """A frame that was appended, and the `done` that its caller waits for.

    `refused`: the error of a frame that is never written. `position`: where the frame lies, as Pulsar answered, or as it was read in the
    topic (`is_read`); -1 for a refused frame. `number`: the number of the frame in the client's window.
    """

    frame: EncodedFrame
    done: AppendDone
    refused: BaseException | None = None
    position: int | None = None
    is_read: bool = False
    number: int = 0


class FramesInFlight:
    """The frames of one writer. `next_sequence`: the sequence of the next frame of its term."""

    def __init__(self, topic: str, next_sequence: int) -> None:
        self.window: ClientWindow = ClientWindow(frames_max=FRAMES_IN_FLIGHT, bytes_max=SENT_BYTES_MAX)
        self.refusal: WALError | None = None
        """The error of a frame that can never be written: it is the last frame sent, and the log ends before it."""
        self._topic = topic
        self._next = next_sequence
        self._queue: deque[Flight] = deque()
        self._sent: deque[Flight] = deque()
        self._sent_bytes = 0

    def __bool__(self) -> bool:
        """Whether any frame waits for its answer."""
        return bool(self._queue or self._sent)

    def add(self, frame: EncodedFrame, done: AppendDone, *, refused: BaseException | None) -> None:
        """Queues a frame; a refused frame is answered in its turn."""
        self._queue.append(Flight(frame, done, refused))

    @property
    def oldest(self) -> Flight | None:
        """The oldest frame on its way."""
        return self._sent[0] if self._sent else None

    def take(self) -> Flight | None:
        """Moves the next frame to those on their way and returns it: to be sent, unless it is refused. None if none may be sent now."""
        if not self._queue or len(self._sent) >= FRAMES_IN_FLIGHT or self.refusal is not None:
            return None
        flight = self._queue[0]
        size, sequence = flight.frame.length, flight.frame.header.sequence
        if (self._sent and self._sent_bytes + size > SENT_BYTES_MAX) or not self.window.has_room(size):
            return None
        self._queue.popleft()
        self._sent.append(flight)
        self._sent_bytes += size
        if flight.refused is not None:
            flight.position = -1
        elif sequence > self._next:
            error = StorageError(
                f"{self._topic}: frame {sequence} was handed over where {self._next} is next: writing it would leave a gap, so no frame "
                "from here on is written. Open the log again"
            )
            self.refuse(flight, error)
        else:
            self._next = max(self._next, sequence + 1)
        return flight

    def refuse(self, flight: Flight, error: WALError) -> None:
        """Marks a frame on its way as one that can never be written: no frame after it is sent."""
        flight.refused = self.refusal = error
        flight.position = -1

    def pop(self) -> Flight:
        """Removes the oldest frame on its way, to be answered."""
        flight = self._sent.popleft()
        self._sent_bytes -= flight.frame.length
        return flight

    def by_number(self) -> dict[tuple[int, int], Flight]:
        """Returns the frames on their way that are not refused, by term and sequence."""
        found = (flight for flight in self._sent if flight.refused is None)
        return {(flight.frame.header.term, flight.frame.header.sequence): flight for flight in found}

    def producer_replaced(self) -> None:
        """Notes that the producer is closed: the client sends no frame again, and its answers count no longer."""
        self.window.clear()
        for flight in self._sent:
            if flight.refused is None and not flight.is_read:
                flight.position = None

    def to_resend(self) -> Iterator[Flight]:
        """Yields the frames on their way without a position, as long as none of them is refused."""
        for flight in self._sent:
            if self.refusal is None and flight.position is None:
                yield flight

    def drain(self) -> tuple[deque[Flight], deque[Flight]]:
        """Removes all frames; returns those on their way, and those that were not sent."""
        sent, self._sent, self._sent_bytes = self._sent, deque(), 0
        queued, self._queue = self._queue, deque()
        self.window.clear()
        return sent, queued


class ClientWindow:
    """The frames that Pulsar's client holds and may send again: at most `frames_max` and `bytes_max`, but always room for one.

    The client sends everything it holds again after a lost connection. A frame leaves the window only when the client has answered it,
    or when its producer was closed: reading the frame in the log meanwhile does not take it from the client. So a duplicate reaches back
    by at most `frames_max` frames, which is what `FloorSearch` relies on. The client answers in the order of sending.
    """

    def __init__(self, *, frames_max: int, bytes_max: int) -> None:
        self.bytes: int = 0
        self._frames_max = frames_max
        self._bytes_max = bytes_max
        self._held: dict[int, int] = {}
        self._handed = 0

    def __len__(self) -> int:
        return len(self._held)

    def has_room(self, size: int) -> bool:
        """Whether a frame of this size may be handed to the client."""
        return not self._held or (len(self._held) < self._frames_max and self.bytes + size <= self._bytes_max)

    def hand_over(self, size: int) -> int:
        """Counts a frame of this size that the client gets; returns its number, for `answered`."""
        self._handed += 1
        self._held[self._handed] = size
        self.bytes += size
        return self._handed

    def answered(self, number: int) -> None:
        """Notes that the client has answered this frame. A number that is not held is ignored."""
        self.bytes -= self._held.pop(number, 0)

    def clear(self) -> None:
        """Notes that the client's producer is closed: it sends nothing again."""
        self._held.clear()
        self.bytes = 0


def error_for(error: WALError, *, unknown: bool) -> WALError:
    """Returns the error for a frame of which it is known, or `unknown`, whether it was written."""
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    own.outcome_unknown = unknown
    return own
