"""ScheduleTable: the messages of one pchannel that wait for their delivery time, and the bytes of their records. Pure.

A scheduled message is state of the pchannel, not an event: it has no id and no tick until it is due. Then one frame has both the message
and the record that it waits no more, so it is in the log once, whatever crashes. Until then it is in a record of a frame, and in every
checkpoint; the frame may be truncated.

    (none) --submit--> submitted --durable--> pending --take_due | withdraw--> leaving --removed--> (none)
                           |                     ^                                |
                           +--failed--> (none)   +-------------kept---------------+    (the frame was refused: a full disk)

Messages become due by the milliseconds of ticks, in the order of their times, and those of one time in the order of their calls. In a
vchannel each pending message has a key of its own. If the vchannel is dropped, so are its messages, in whichever state.

The records of a frame, in MessagePack:

    SCHEDULED     array, `_StoredMessage`
    UNSCHEDULED   [version, numbers]

The pieces of a checkpoint (see `wal/storage/state_table.py`):

    7 scheduled messages    [7, SCHEDULED records, next number]
"""

from __future__ import annotations

import enum
import heapq
import math
from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec

from wal.errors import InvalidArgumentError, WouldBlockError, corruption
from wal.frame import SCHEDULES, FrameView, RunName, SystemRecord
from wal.message import Natural
from wal.storage.pieces import PieceKind
from wal.storage.state_table import RECORD_VERSION, Decoders, Live, RecordTable, check_version, encode_record
from wal.timestamp.timestamp import MILLISECONDS_MAX

OVERHEAD: Final = 512
"""The memory of a message beside its payload, properties, key and vchannel, rounded up."""
GARBAGE_MIN: Final = 64


class State(enum.Enum):
    """The state of a scheduled message; GONE is the last state."""

    SUBMITTED = "submitted"
    PENDING = "pending"
    LEAVING = "leaving"
    GONE = "gone"


class Scheduled(msgspec.Struct, gc=False, eq=False):
    """A message for the vchannel `name` that is appended when the ticks reach `due_ms`, in milliseconds since 1970.

    `number` is unique in the pchannel. `key` identifies it in its vchannel; with `keyed` it is an idempotency key of its caller, which the
    appended message has too. `properties` are in their stored form.
    """

    number: int
    name: RunName
    key: str
    keyed: bool
    due_ms: int
    message_type: int
    properties: bytes
    payload: bytes
    state: State = State.PENDING

    @property
    def size(self) -> int:
        """The bytes of the payload and the properties."""
        return len(self.payload) + len(self.properties)

    @property
    def taken(self) -> int:
        """The bytes of the message, as the bound counts them."""
        return self.size + 4 * len(self.key) + 4 * len(self.name[0]) + OVERHEAD

    def encoded(self) -> bytes:
        """Returns the payload of its record in a frame."""
        name, incarnation = self.name
        fields = (self.key, self.keyed, self.due_ms, self.message_type, self.properties, self.payload)
        return encode_record((RECORD_VERSION, self.number, name, incarnation, *fields))


def encode_numbers(messages: Sequence[Scheduled]) -> bytes:
    """Returns the payload of the record that these messages wait no more."""
    return encode_record((RECORD_VERSION, [message.number for message in messages]))


def decode_scheduled(payload: bytes) -> Scheduled:
    """Returns the message in these bytes. Raises CorruptionError for damage, FormatError for a newer version."""
    with corruption("the record of a scheduled message is damaged", expected="a scheduled message"):
        stored = _decoder.decode(payload)
        check_version(stored.version, "the record of a scheduled message")
        if stored.due_ms > MILLISECONDS_MAX:
            raise ValueError(f"it is due at {stored.due_ms} ms")
    return Scheduled(
        stored.number,
        (stored.vchannel, stored.incarnation),
        stored.key,
        stored.keyed,
        stored.due_ms,
        stored.message_type,
        stored.properties,
        stored.payload,
    )


def decode_numbers(payload: bytes) -> list[int]:
    """Returns the numbers in the payload of an UNSCHEDULED record. Raises CorruptionError for damage, FormatError for a newer version."""
    with corruption("the record of messages that wait no more is damaged", expected="numbers"):
        version, numbers = _numbers_decoder.decode(payload)
    check_version(version, "the record of a scheduled message")
    return numbers


class ScheduleTable(RecordTable):
    """The scheduled messages of one pchannel: at most `count_max`, of `bytes_max` bytes together. The floor is the next number.

    `next_due_ms` is the smallest time of a pending message, infinity without one.
    """

    what = "scheduled messages"
    decoders: ClassVar[Decoders] = {PieceKind.SCHEDULES: msgspec.msgpack.Decoder(tuple[int, list[bytes], Natural])}
    flag = SCHEDULES

    def __init__(self, *, count_max: int = 65_536, bytes_max: int = 32 << 20) -> None:
        super().__init__(floors=(1,))
        self.grown: int = 0
        """The bytes of the messages scheduled since the last checkpoint."""
        self.bytes: int = 0
        """The bytes of all messages, as the bound counts them."""
        self.next_due_ms: float = math.inf
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._by_number: dict[int, Scheduled] = {}
        self._by_name: dict[RunName, dict[str, Scheduled]] = {}
        self._heap: list[tuple[int, int, int, Scheduled]] = []
        """Time, number and a count that differs for each entry. Invariant: it has every pending message, and may have others, which `_look`
        removes.
        """
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def find(self, name: RunName, key: str) -> Scheduled | None:
        """Returns the message with this key for a vchannel, in whichever state, or None."""
        messages = self._by_name.get(name)
        return None if messages is None else messages.get(key)

    def listed(self, name: RunName) -> list[Scheduled]:
        """Returns the durable messages for a vchannel in the order of their times."""
        return sorted([message for message in self._by_name.get(name, {}).values() if message.state is not State.SUBMITTED], key=_order)

    # -- changes

    def submit(
        self, name: RunName, key: str, due_ms: int, *, keyed: bool, message_type: int, properties: bytes, payload: bytes
    ) -> Scheduled:
        """Accepts a message whose record is written next; its key is not in use. The caller calls `durable` or `failed` with it.

        Raises WouldBlockError without room for it, InvalidArgumentError if it never fits.
        """
        message = Scheduled(self.floors[0], name, key, keyed, due_ms, message_type, properties, payload, State.SUBMITTED)
        size = message.taken
        if size > self._bytes_max:
            raise InvalidArgumentError(
                f"a message of {size} bytes (with what it takes in memory) exceeds scheduled_bytes_max={self._bytes_max}: store the "
                "payload in another place and schedule a reference, or raise the setting"
            )
        if len(self) >= self._count_max:
            raise WouldBlockError(
                f"{len(self)} messages wait for their time on the pchannel of vchannel {name[0]!r}, which is all of scheduled_max="
                f"{self._count_max}: cancel some of them, try again when some are delivered, or raise the setting"
            )
        if self.bytes + size > self._bytes_max:
            raise WouldBlockError(
                f"messages of {self.bytes} bytes wait for their time on the pchannel of vchannel {name[0]!r}, and {size} more would pass "
                f"scheduled_bytes_max={self._bytes_max}: cancel some of them, try again when some are delivered, or raise the setting"
            )
        self._insert(message)
        return message

    def durable(self, message: Scheduled) -> None:
        """Records that the record of a submitted message is in the log."""
        self.changed()
        self.grown += message.taken
        if message.state is State.SUBMITTED:
            self._wait(message)

    def failed(self, message: Scheduled) -> None:
        """Records that the record of a submitted message was not written."""
        self._forget(message)

    def take_due(self, now_ms: int, *, count_max: int, bytes_max: int) -> list[Scheduled]:
        """Takes pending messages that are due, the earliest first: at least one if any is due, and no more than the bounds allow.

        The caller calls `removed` or `kept` with them.
        """
        due: list[Scheduled] = []
        size = 0
        while self.next_due_ms <= now_ms and len(due) < count_max:
            message = self._heap[0][3]
            size += message.taken
            if due and size > bytes_max:
                break
            heapq.heappop(self._heap)
            message.state = State.LEAVING
            due.append(message)
            self._look()
        return due

    def withdraw(self, message: Scheduled) -> None:
        """Takes a pending message before its time; the caller calls `removed` or `kept` with it."""
        assert message.state is State.PENDING, message.state
        message.state = State.LEAVING
        self._look()

    def removed(self, messages: Sequence[Scheduled]) -> None:
        """Records that the end of the wait of these leaving messages is in the log."""
        self.changed(len(messages))
        for message in messages:
            self._forget(message)

    def kept(self, messages: Sequence[Scheduled]) -> None:
        """Makes these leaving messages pending again: the end of their wait was not written."""
        for message in messages:
            if message.state is State.LEAVING:
                self._wait(message)

    def drop(self, name: RunName) -> list[Scheduled]:
        """Forgets all messages for a vchannel that was dropped, and returns them. It writes nothing: no later incarnation has its name."""
        dropped = list(self._by_name.get(name, {}).values())
        for message in dropped:
            self._forget(message)
        return dropped

    # -- recovery

    def _replay(self, position: int, view: FrameView, live: Live | None) -> int:
        count = 0
        for kind, payload in view.system_records():
            if kind == SystemRecord.SCHEDULED:
                self._add(payload, live)
            elif kind == SystemRecord.UNSCHEDULED:
                for number in decode_numbers(payload):
                    if (message := self._by_number.get(number)) is not None:
                        self._forget(message)
            else:
                continue
            count += 1
        self.begin_use()
        return count

    def _durable(self) -> list[Scheduled]:
        return [message for message in self._by_number.values() if message.state is not State.SUBMITTED]

    # -- privates

    def _add(self, payload: bytes, live: Live | None) -> None:
        message = decode_scheduled(payload)
        if live is None or live(message.name):
            self._insert(message)
            self._wait(message)
        else:
            self.raise_floors(message.number + 1)

    def _insert(self, message: Scheduled) -> None:
        self.begin_use()
        self.raise_floors(message.number + 1)
        self.bytes += message.taken
        self._by_number[message.number] = message
        self._by_name.setdefault(message.name, {})[message.key] = message

    def _wait(self, message: Scheduled) -> None:
        message.state = State.PENDING
        self._pushed += 1
        heapq.heappush(self._heap, (message.due_ms, message.number, self._pushed, message))
        self._look()

    def _forget(self, message: Scheduled) -> None:
        if message.state is State.GONE:
            return
        message.state = State.GONE
        self.bytes -= message.taken
        del self._by_number[message.number]
        messages = self._by_name[message.name]
        del messages[message.key]
        if not messages:
            del self._by_name[message.name]
        self._look()

    def _look(self) -> None:
        """Removes messages that are no longer pending from the front of the heap, or all of them if they are most of the heap."""
        heap = self._heap
        if len(heap) > 2 * len(self._by_number) + GARBAGE_MIN:
            heap[:] = [entry for entry in heap if entry[3].state is State.PENDING]
            heapq.heapify(heap)
        while heap and heap[0][3].state is not State.PENDING:
            heapq.heappop(heap)
        self.next_due_ms = heap[0][0] if heap else math.inf


def _order(message: Scheduled) -> tuple[int, int]:
    return message.due_ms, message.number


class _StoredMessage(msgspec.Struct, array_like=True, gc=False):
    version: int
    number: Natural
    vchannel: str
    incarnation: Natural
    key: str
    keyed: bool
    due_ms: Natural
    message_type: Natural
    properties: bytes
    payload: bytes


_decoder: Final = msgspec.msgpack.Decoder(_StoredMessage)
_numbers_decoder: Final = msgspec.msgpack.Decoder(tuple[int, list[Natural]])
