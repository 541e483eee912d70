"""Channel: the state of one channel, and its changes as puts and deletions. Pure: it never waits and reads no clock.

Owns the range of existing ids, the pages by which retention drops messages, and the consumer groups with their positions. It guarantees
that its `changes` bring the stored channel to the state of this object.

    begin_id <= ids < end_id                    equal: empty
    full pages, oldest first | the open page    a message that fills a page is the last one in it
    current_id of a group                       the last id finally consumed; NOTHING for none, LOST where unconsumed ones were dropped
    read_id of a group                          the last id delivered in this opening; a new opening begins after current_id
    returned of a group                         delivered and returned, for its next call; current_id stays before the first of them
    acked_id of a group                         the value of current_id after all returned messages are delivered again
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from wal.streams.rocksmq.keys import (
    NOTHING,
    TurnWrites,
    begin_id_key,
    current_id_key,
    data_prefix,
    end_id_key,
    group_prefix,
    number,
    open_page_key,
    page_key,
    page_prefix,
    record_key,
)
from wal.streams.rocksmq.settings import RocksMQSettings

RECORD_BYTES: Final = 16
"""The bytes that a message counts in addition to its payload: its id, and the previous id."""
LOST: Final = 0
"""The current_id of a group that had consumed nothing when the first messages were dropped. Ids begin at 1."""


class ProducerMessage(msgspec.Struct, frozen=True, gc=False):
    """A payload for a channel; `produce` also accepts plain `bytes`."""

    payload: bytes


class ConsumerMessage(msgspec.Struct, frozen=True, gc=False):
    """A payload and its id: 64 bits, positive, ascending within a channel with gaps."""

    message_id: int
    payload: bytes


class ChannelPage(msgspec.Struct, frozen=True):
    """Messages that are dropped together: the first and the last id, their bytes, and the time at which the page was filled (µs since
    1970).
    """

    first_id: int
    last_id: int
    bytes: int
    filled_us: int


class ConsumerGroup(msgspec.Struct):
    """A consumer group of one channel."""

    name: str
    current_id: int = NOTHING
    read_id: int = NOTHING
    acked_id: int = NOTHING
    returned: list[ConsumerMessage] = []


class Channel:
    """One channel; a new one is empty."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.prefix: bytes = data_prefix(name)
        self.begin_id: int = 0
        self.end_id: int = 0
        self.first_id: int = 0
        """The first id of the open page; 0 while the page is empty."""
        self.open_bytes: int = 0
        self.dropped_id: int = 0
        """The last id that retention dropped; 0 for none."""
        self.pages: deque[ChannelPage] = deque()
        self.groups: dict[str, ConsumerGroup] = {}

    @property
    def size(self) -> int:
        """Returns the bytes of the channel: the payloads, and RECORD_BYTES a message."""
        return self.open_bytes + sum(page.bytes for page in self.pages)

    @property
    def last_id(self) -> int:
        """Returns the last existing id; NOTHING when the channel is empty."""
        return NOTHING if self.begin_id == self.end_id else self.end_id - 1

    def consumed(self) -> int:
        """Returns the id up to which every group has consumed all messages; NOTHING without groups."""
        return min((group.current_id for group in self.groups.values()), default=NOTHING)

    def create(self, changes: TurnWrites) -> None:
        """Stores the empty channel."""
        changes.put(begin_id_key(self.name), number(self.begin_id))
        changes.put(end_id_key(self.name), number(self.end_id))
        self._store_page(changes)

    def destroy(self, changes: TurnWrites) -> None:
        """Removes the channel, its messages and its groups."""
        for key in (begin_id_key(self.name), end_id_key(self.name), open_page_key(self.name)):
            changes.delete(key)
        for prefix in (self.prefix, page_prefix(self.name), group_prefix(self.name)):
            changes.delete_prefix(prefix)

    def produce(self, payloads: Sequence[bytes], first_id: int, changes: TurnWrites, *, now_us: int, page_bytes: int) -> None:
        """Adds the payloads under the ids from `first_id` on, which must be at or above `end_id`."""
        prefix, previous, message_id = self.prefix, self.last_id, first_id
        if self.begin_id == self.end_id:
            self.begin_id = first_id
            changes.put(begin_id_key(self.name), number(first_id))
        for payload in payloads:
            changes.put(record_key(prefix, message_id), number(previous) + payload)
            self.first_id = self.first_id or message_id
            self.open_bytes += len(payload) + RECORD_BYTES
            if self.open_bytes >= page_bytes:
                self._fill(message_id, now_us, changes)
            previous = message_id
            message_id += 1
        self.end_id = message_id

    def store_end(self, changes: TurnWrites) -> None:
        """Stores the end of the channel, once for all messages that a turn produced."""
        changes.put(end_id_key(self.name), number(self.end_id))
        self._store_page(changes)

    def drop(self, count: int, changes: TurnWrites) -> None:
        """Removes the `count` oldest pages, and marks the groups that had consumed nothing."""
        dropped = [self.pages.popleft() for _ in range(count)]
        begin = self.begin_id
        self.begin_id = self.pages[0].first_id if self.pages else self.first_id or self.end_id
        self.dropped_id = dropped[-1].last_id
        for page in dropped:
            changes.delete(page_key(self.name, page.last_id))
        changes.delete_range(record_key(self.prefix, begin), record_key(self.prefix, self.dropped_id + 1))
        changes.put(begin_id_key(self.name), number(self.begin_id))
        self._store_page(changes)
        for group in self.groups.values():
            if group.current_id == NOTHING:
                group.current_id = LOST
                group.read_id = max(group.read_id, LOST)
                changes.put(current_id_key(group.name, self.name), number(LOST))

    def add_group(self, name: str, changes: TurnWrites, *, latest: bool) -> None:
        """Adds a group that has consumed nothing, or everything if `latest`."""
        group = self.groups[name] = ConsumerGroup(name)
        self.move(group, self.last_id if latest else NOTHING, changes)

    def remove_group(self, name: str, changes: TurnWrites) -> None:
        del self.groups[name]
        changes.delete(current_id_key(name, self.name))

    def move(self, group: ConsumerGroup, message_id: int, changes: TurnWrites) -> None:
        """Marks everything up to this id as finally consumed; the group continues after it."""
        group.current_id = group.read_id = group.acked_id = message_id
        changes.put(current_id_key(group.name, self.name), number(message_id))

    def ack(self, group: ConsumerGroup, message_id: int, changes: TurnWrites, *, first_returned: int | None = None) -> None:
        """Marks everything up to this id as finally consumed; the group's next read stays. An id below the current one changes nothing.

        `first_returned` is the id before the first returned message; the group has consumed nothing after it.
        """
        group.acked_id = max(group.acked_id, message_id)
        current = group.acked_id if first_returned is None else min(group.acked_id, first_returned)
        if current != group.current_id:
            group.current_id = current
            changes.put(current_id_key(group.name, self.name), number(current))

    def is_lost(self, group: ConsumerGroup) -> bool:
        """Returns whether a message that the group has not read was dropped."""
        return group.read_id != NOTHING and group.read_id < self.dropped_id

    def _fill(self, last_id: int, now_us: int, changes: TurnWrites) -> None:
        page = ChannelPage(self.first_id, last_id, self.open_bytes, now_us)
        self.pages.append(page)
        changes.put(page_key(self.name, last_id), number(page.first_id) + number(page.bytes) + number(page.filled_us))
        self.first_id = self.open_bytes = 0

    def _store_page(self, changes: TurnWrites) -> None:
        changes.put(open_page_key(self.name), number(self.first_id) + number(self.open_bytes) + number(self.dropped_id))


def pages_to_drop(channel: Channel, settings: RocksMQSettings, *, now_us: int) -> int:
    """Returns the number of the channel's oldest pages to drop now, because they are too old or exceed the bytes.

    Messages that a group has not consumed stay unless the settings allow their loss. A channel without groups keeps everything (it is
    unconsumed), as in Milvus, unless `retention_unconsumed`. The open page always stays.
    """
    if settings.retention_bytes is None and settings.retention_s is None:
        return 0
    consumed, remaining_bytes, count = channel.consumed(), channel.size, 0
    for page in channel.pages:
        old = settings.retention_s is not None and page.filled_us + settings.retention_s * 1e6 <= now_us
        large = settings.retention_bytes is not None and remaining_bytes > settings.retention_bytes
        if not (old or large) or not (settings.retention_unconsumed or page.last_id <= consumed):
            break
        remaining_bytes -= page.bytes
        count += 1
    return count
