"""FramesInFlight: the frames of one writer in order, from the append until the answer, and the frames in Pulsar's client. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec

from wal.errors import StorageError, WALError
from wal.frame import EncodedFrame
from wal.storage.base import AppendDone
from wal.storage.pulsar.layout import FRAMES_IN_FLIGHT

SENT_BYTES_MAX: Final = 16 << 20
"""The most bytes of all frames in flight; there is always room for one frame."""


class Flight(msgspec.Struct, gc=False):
    """A frame that was appended, and the `done` of its caller.

    `refused`: the error of a frame that is never written. `position`: the frame's position, from Pulsar's answer or read from the topic
    (`is_read`); -1 for a refused frame. `number`: the number of the frame in the client's window.
    """

    frame: EncodedFrame
    done: AppendDone
    refused: BaseException | None = None
    position: int | None = None
    is_read: bool = False
    number: int = 0


class FramesInFlight:
    """The frames of one writer in order, from the append until the answer. Pure.

    Owns: the queue of unsent frames, the frames in flight, and `ClientWindow`, which counts the frames in Pulsar's client. Guarantees:
    frames are sent in the order of the calls and without a gap in their sequences; after a frame that can never be written nothing is sent.

    `next_sequence`: the sequence of the next frame of its term.
    """

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
        """Queues a frame; a refused frame is answered in order."""
        self._queue.append(Flight(frame, done, refused))

    @property
    def oldest(self) -> Flight | None:
        """The oldest frame in flight."""
        return self._sent[0] if self._sent else None

    def take(self) -> Flight | None:
        """Moves the next frame in flight and returns it, to be sent unless it is refused. Returns None if no frame may be sent now."""
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
        """Marks a frame in flight as never to be written: no frame after it is sent."""
        flight.refused = self.refusal = error
        flight.position = -1

    def pop(self) -> Flight:
        """Removes the oldest frame in flight, to be answered."""
        flight = self._sent.popleft()
        self._sent_bytes -= flight.frame.length
        return flight

    def by_number(self) -> dict[tuple[int, int], Flight]:
        """Returns the frames in flight that are not refused, by term and sequence."""
        flights = (flight for flight in self._sent if flight.refused is None)
        return {(flight.frame.header.term, flight.frame.header.sequence): flight for flight in flights}

    def producer_replaced(self) -> None:
        """Records that the producer is closed: the client resends nothing, and its answers no longer count."""
        self.window.clear()
        for flight in self._sent:
            if flight.refused is None and not flight.is_read:
                flight.position = None

    def to_resend(self) -> Iterator[Flight]:
        """Yields the frames in flight without a position, until one of them is refused."""
        for flight in self._sent:
            if self.refusal is None and flight.position is None:
                yield flight

    def drain(self) -> tuple[deque[Flight], deque[Flight]]:
        """Removes all frames; returns the frames in flight, and the unsent ones."""
        sent, self._sent, self._sent_bytes = self._sent, deque(), 0
        queued, self._queue = self._queue, deque()
        self.window.clear()
        return sent, queued


class ClientWindow:
    """The frames in Pulsar's client, which it may resend: at most `frames_max` and `bytes_max`, but always room for one.

    The client resends all of them after a lost connection. A frame leaves the window only when the client has answered it, or when its
    producer was closed: reading the frame in the log meanwhile does not take it from the client. So a duplicate reaches back by at most
    `frames_max` frames; `FloorSearch` relies on that. The client answers in the order of sending.
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
        """Whether a frame of this size may be sent to the client."""
        return not self._held or (len(self._held) < self._frames_max and self.bytes + size <= self._bytes_max)

    def hand_over(self, size: int) -> int:
        """Counts a frame of this size that the client gets; returns its number, for `answered`."""
        self._handed += 1
        self._held[self._handed] = size
        self.bytes += size
        return self._handed

    def answered(self, number: int) -> None:
        """Records that the client has answered this frame. Ignores a number that is not in the window."""
        self.bytes -= self._held.pop(number, 0)

    def clear(self) -> None:
        """Records that the client's producer is closed: it resends nothing."""
        self._held.clear()
        self.bytes = 0
