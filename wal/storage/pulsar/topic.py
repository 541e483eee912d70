"""TopicReader: the messages of a topic in order, from a position on, and the kind of each message.

Owns: one reader of Pulsar's client, recreated when it loses its broker, so that no message is skipped or returned twice. It blocks, so it
runs in threads, in only one at any moment. It does not use fencing floors: it also returns duplicates and frames of fenced writers.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

import msgspec

from wal.errors import ClosedError, CorruptionError
from wal.frame import FrameHeader
from wal.storage.pulsar.address import LOG_SUBSCRIPTION
from wal.storage.pulsar.connection import READ_AHEAD, PulsarConnection, close_quietly, failure, position_of_id
from wal.storage.pulsar.layout import Mark, mark_of, mark_properties
from wal.storage.pulsar.positions import entry_of, ledger_of, text_of

if TYPE_CHECKING:
    import pulsar


WAIT_MS: Final = 500
LOST_S: Final = 1.0
"""The time for which a reader that has lost its broker may reconnect by itself: its own next attempt may be many seconds away."""
TIMEOUT_S: Final = 90.0
_log: Final = logging.getLogger("wal.pulsar")


class TopicEntry(msgspec.Struct, gc=False):
    """A message: its position and its bytes. A mark of the log has `mark`, a frame of the log has `header`; other messages have neither."""

    position: int
    data: bytes
    mark: Mark | None = None
    header: FrameHeader | None = None


class TopicReader:
    """Reads one topic. `last` is the position of the last message returned, or of the message after which the reader begins.

    `start`: the position of the message to begin with; None: the beginning of the topic. With `after` the reader begins after it. Its
    client fetches `ahead` messages ahead.
    """

    def __init__(
        self, connection: PulsarConnection, topic: str, start: int | None, *, after: bool = False, ahead: int = READ_AHEAD
    ) -> None:
        self._ahead = ahead
        self._connection = connection
        self._topic = topic
        self._start = start
        self._reader: pulsar.Reader | None = None
        self._closed = False
        self.last: int | None = start if after else None

    def next(self, incarnation: int) -> TopicEntry:
        """Returns the next message, which must be known to exist.

        Raises StorageError when Pulsar does not return it within `TIMEOUT_S`, CorruptionError for a message that cannot be a frame.
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
            return TopicEntry(position, data, mark if mark is not None and mark.incarnation == incarnation else None)
        try:
            header = FrameHeader.unpack(data)
        except CorruptionError as error:
            raise damaged(error, self._topic, position) from error
        if header.frame_bytes != len(data):
            raise damaged(CorruptionError(f"a frame of {len(data)} bytes", expected=f"{header.frame_bytes} bytes"), self._topic, position)
        return TopicEntry(position, data, None, header if header.incarnation == incarnation else None)

    def message(self) -> pulsar.Message:
        """Returns the next raw message, in a topic that is not a log."""
        message = self._message()
        self.last = position_of_id(message.message_id())
        return message

    def close(self) -> None:
        """Closes the reader; a thread that is reading soon gets a ClosedError. Idempotent."""
        self._closed = True
        self._close_reader()

    def _message(self) -> pulsar.Message:
        import pulsar

        deadline = time.monotonic() + TIMEOUT_S
        lost_since: float | None = None
        while not self._closed:
            try:
                if self._reader is None:
                    self._reader = self._open_reader()
                    lost_since = None
                return self._reader.read_next(timeout_millis=WAIT_MS)
            except pulsar.exceptions.Timeout as error:
                problem: Exception = error
                now = time.monotonic()
                if self._reader is not None and not self._reader.is_connected():
                    lost_since = lost_since or now
                    if now - lost_since >= LOST_S:
                        self._close_reader()
            except pulsar.PulsarException as error:
                problem = error
                self._close_reader()
                time.sleep(0.05)  # do not ask a starting broker in a tight loop
            if time.monotonic() > deadline:
                raise failure(problem, f"reading {self._topic}", self._connection.address)
        raise ClosedError(f"the log of {self._topic} is closed: open it again to continue")

    def _open_reader(self) -> pulsar.Reader:
        if self.last is not None:
            return self._connection.reader(self._topic, self.last, inclusive=False, ahead=self._ahead)
        if self._start is None:
            return self._connection.first_reader(self._topic)
        return self._connection.reader(self._topic, self._start, inclusive=True, ahead=self._ahead)

    def _close_reader(self) -> None:

        reader, self._reader = self._reader, None
        if reader is not None:
            close_quietly(reader)


def read_entries(connection: PulsarConnection, topic: str, after: int, last: int, incarnation: int) -> list[tuple[int, TopicEntry]]:
    """Returns the messages after this position up to `last`, which must exist: their sizes, and the entries without bytes. Blocks."""
    reader = TopicReader(connection, topic, after, after=True)
    entries: list[tuple[int, TopicEntry]] = []
    try:
        while not entries or entries[-1][1].position < last:
            entry = reader.next(incarnation)
            size, entry.data = len(entry.data), b""
            entries.append((size, entry))
    finally:
        reader.close()
    return entries


def send_mark(producer: pulsar.Producer, mark: Mark) -> int:
    """Writes a mark, waits for it and returns its position. Blocks."""
    return position_of_id(producer.send(b"", properties=mark_properties(mark)))


def move_cursor(connection: PulsarConnection, topic: str, last: int) -> None:
    """Releases messages up to this position in Pulsar, which then may delete them. Blocks; a failure is logged, and the next opening
    repeats it.
    """
    import pulsar

    try:
        consumer = connection.consumer(topic, LOG_SUBSCRIPTION)
        try:
            consumer.acknowledge_cumulative(pulsar.MessageId(-1, ledger_of(last), entry_of(last), -1)._msg_id)
        finally:
            consumer.close()
    except Exception as error:
        _log.warning("%s; it is tried again later", failure(error, f"giving back what was truncated of {topic}", connection.address))


def damaged(error: CorruptionError, topic: str, position: int) -> CorruptionError:
    """Returns this error with the topic and the position of the message."""
    return CorruptionError(f"{topic} at {text_of(position)}: {error}", path=topic, offset=position, expected=error.expected)
