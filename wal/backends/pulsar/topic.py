"""TopicReader: the messages of a topic in their order, from a position on; and what each of them is.

Owns: one reader of Pulsar's client, made anew when it lost its broker, so that nothing is skipped and nothing comes twice. It blocks,
so it runs in threads, one at a time. It knows nothing of floors: repeats and frames of fenced writers come as they lie.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import msgspec

from wal.backends.pulsar.connection import Connection, failure, position_of_id
from wal.backends.pulsar.layout import Mark, mark_of, text_of
from wal.errors import ClosedError, CorruptionError
from wal.frame import FrameHeader

if TYPE_CHECKING:
    import pulsar

__all__ = ["Entry", "TopicReader"]

WAIT_MS: Final = 500
LOST_S: Final = 1.0
"""How long a reader that has lost its broker is left to itself: its own next attempt may be many seconds away."""
TIMEOUT_S: Final = 90.0


class Entry(msgspec.Struct, gc=False):
    """A message: where it lies, its bytes, and what they are: a `mark`, or else (for a frame) its `header`; neither for what is not the
    log's."""

    position: int
    data: bytes
    mark: Mark | None = None
    header: FrameHeader | None = None


class TopicReader:
    """Reads one topic. `last` is the position of what was given last, or before which it begins.

    `start`: the position (of an entry) to begin with; None: the beginning of the topic. With `after` it begins behind that.
    """

    def __init__(self, connection: Connection, topic: str, start: int | None, *, after: bool = False) -> None:
        self._connection = connection
        self._topic = topic
        self._start = start
        self._after = after
        self._reader: pulsar.Reader | None = None
        self._closed = False
        self.last: int | None = start if after else None

    def next(self, incarnation: int) -> Entry:
        """The next message; it must be known to be there.

        StorageError when Pulsar does not give it within `TIMEOUT_S`; CorruptionError for a message that cannot be a frame.
        """
        message = self._message()
        position = position_of_id(message.message_id())
        if self.last is not None and position <= self.last:
            raise CorruptionError(
                f"Pulsar gave the message at {text_of(position)} of {self._topic} after {text_of(self.last)}",
                expected="ascending positions",
            )
        self.last = position
        data = message.data()
        if not data:
            mark = mark_of(message.properties(), position)
            return Entry(position, data, mark if mark is not None and mark.incarnation == incarnation else None)
        try:
            header = FrameHeader.unpack(data)
        except CorruptionError as error:
            raise damaged(error, self._topic, position) from error
        if header.frame_bytes != len(data):
            raise damaged(
                CorruptionError(f"a frame of {len(data)} bytes", expected=f"{header.frame_bytes} bytes"),
                self._topic,
                position,
            )
        return Entry(position, data, None, header if header.incarnation == incarnation else None)

    def message(self) -> pulsar.Message:
        """The next message as it is, in a topic that is no log."""
        message = self._message()
        self.last = position_of_id(message.message_id())
        return message

    def close(self) -> None:
        """Lets go of it; who is reading gets ClosedError soon. Idempotent."""
        self._closed = True
        self._let_go()

    def _message(self) -> pulsar.Message:
        import pulsar

        deadline = time.monotonic() + TIMEOUT_S
        lost_since: float | None = None
        while not self._closed:
            try:
                if self._reader is None:
                    self._reader = self._made()
                    lost_since = None
                return self._reader.read_next(timeout_millis=WAIT_MS)
            except pulsar.exceptions.Timeout as error:
                problem: Exception = error
                now = time.monotonic()
                if self._reader is not None and not self._reader.is_connected():
                    lost_since = lost_since or now
                    if now - lost_since >= LOST_S:
                        self._let_go()
            except pulsar.PulsarException as error:
                problem = error
                self._let_go()
                time.sleep(0.05)  # in a thread: not to ask a broker that is starting over and over
            if time.monotonic() > deadline:
                raise failure(problem, f"reading {self._topic}", self._connection.address)
        raise ClosedError(f"the log of {self._topic} is closed: open it again to go on")

    def _made(self) -> pulsar.Reader:
        if self.last is not None:
            return self._connection.reader(self._topic, self.last, inclusive=False)
        if self._start is None:
            return self._connection.first_reader(self._topic)
        return self._connection.reader(self._topic, self._start, inclusive=True)

    def _let_go(self) -> None:
        import pulsar

        reader, self._reader = self._reader, None
        if reader is not None:
            try:
                reader.close()
            except pulsar.PulsarException:
                pass  # it was lost already


def damaged(error: CorruptionError, topic: str, position: int) -> CorruptionError:
    """The same error, naming the message."""
    return CorruptionError(
        f"{topic} at {text_of(position)}: {error}", path=topic, offset=position, expected=error.expected
    )
