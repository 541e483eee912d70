"""Books: the messages that a consumer of Pulsar has received, and which of them are handled."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from wal.streams.msgstream.media.pulsar_ids import UNBATCHED, TopicIds, TopicPosition, batch_size
from wal.streams.msgstream.medium import Received

if TYPE_CHECKING:
    import pulsar


_NONE: Final = UNBATCHED - 1
"""An index below that of every message."""


class Books:
    """The messages that a consumer of Pulsar has received, and which of them are handled.

    A batch of Pulsar is one entry. An entry whose messages are all handled is acknowledged as a whole. A part of an entry is acknowledged
    by the native ids of its messages, which share the client's state of the batch. (An id made from bytes would acknowledge all of it.) The
    books also recognise messages that a broker redelivers to this consumer. These are the messages of an entry that is not handled yet and,
    for the only consumer of a subscription, all up to the last one.

    Threads use the books without overlap. `acked` are the native ids that wait to be acknowledged.
    """

    def __init__(self, ids: TopicIds, *, exclusive: bool) -> None:
        self.acked: deque[Any] = deque()
        self._ids = ids
        self._exclusive = exclusive
        self._entries: dict[tuple[int, int], BookEntry] = {}
        self._unhandled: dict[bytes, tuple[BookEntry, Any]] = {}  # with the native id
        self._done: TopicPosition | None = None
        self._lock = threading.Lock()

    def begin(self, end: TopicPosition) -> None:
        """Skips all messages up to this position. Pulsar seeks to whole entries, so the broker delivers the position's entry from its
        start.
        """
        self._done = end

    def receive(self, messages: Iterable[pulsar.Message]) -> list[Received]:
        """Returns the new ones among these messages."""
        received: list[Received] = []
        with self._lock:
            unhandled, ids = self._unhandled, self._ids
            ledger = number = -1
            newest: BookEntry | None = None
            for message in messages:
                native = message.message_id()
                if native.entry_id() != number or native.ledger_id() != ledger:
                    ledger, number = native.ledger_id(), native.entry_id()
                    entry, start = self._entry(ledger, number, native), ids.entry(ledger, number)
                index = native.batch_index()
                if index <= entry.seen:
                    if index > entry.counted:  # a skipped message, or one whose acknowledgement was lost
                        entry.counted = index
                        self._count(entry, 1)
                    continue
                entry.seen = entry.counted = index
                newest = entry
                msg_id = start + ids.end(index)
                unhandled[msg_id] = entry, native
                received.append(Received(msg_id, message.data()))
            if self._exclusive and newest is not None:
                self._done = TopicPosition(newest.ledger, newest.number, newest.seen)
        return received

    def handle(self, msg_ids: Iterable[bytes]) -> None:
        """Marks these messages as handled; ids that are not in the books were handled before."""
        with self._lock:
            parts: dict[BookEntry, list[Any]] = {}
            for msg_id in msg_ids:
                entry, native = self._unhandled.pop(msg_id, (None, None))
                if entry is not None:
                    parts.setdefault(entry, []).append(native)
            for entry, natives in parts.items():
                if not self._count(entry, len(natives)):
                    self.acked.extend(natives)

    def _entry(self, ledger: int, number: int, native: Any) -> BookEntry:
        """Returns the entry in the books. In a new entry the messages up to the begin position are skipped."""
        entry = self._entries.get((ledger, number))
        if entry is None:
            entry = self._entries[ledger, number] = BookEntry(ledger, number, batch_size(native.serialize()))
            if self._done is not None and self._done[:2] == (ledger, number):
                entry.seen = self._done.batch_index
            elif self._done is not None and self._exclusive and (ledger, number) < self._done[:2]:
                entry.seen = entry.size
        return entry

    def _count(self, entry: BookEntry, count: int) -> bool:
        """Counts handled messages of an entry; returns whether all are handled, so that the entry is acknowledged."""
        entry.left -= count
        if entry.left:
            return False
        self.acked.append(entry.native())
        del self._entries[entry.ledger, entry.number]
        return True


class BookEntry:
    """An entry of the topic. Of `size` messages `left` are not handled.

    Invariant: counted <= seen. Messages up to the index `seen` were received or skipped. Messages up to `counted` are counted, or will be
    counted when they are handled.
    """

    __slots__ = ("counted", "ledger", "left", "number", "seen", "size")

    def __init__(self, ledger: int, number: int, size: int) -> None:
        self.ledger: int = ledger
        self.number: int = number
        self.size: int = size
        self.left: int = size
        self.seen: int = _NONE
        self.counted: int = _NONE

    def native(self) -> Any:
        """Returns the native id of the whole entry."""
        import pulsar

        return pulsar.MessageId(-1, self.ledger, self.number, UNBATCHED)
