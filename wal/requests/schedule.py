"""Requests about messages that wait for their time: schedule, list and cancel them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wal.errors import InvalidArgumentError
from wal.message import Message, ScheduledMessage, ScheduledResult
from wal.requests.request import VChannelRequest
from wal.requests.rights import Right
from wal.settings import Settings
from wal.timestamp.timestamp import MILLISECONDS_MAX
from wal.write.checks import check_size, kept_key_ext
from wal.write.idempotency.keys import check_key, key_ext
from wal.write.txn_table import BODY_OVERHEAD


class ScheduleMessage(VChannelRequest[ScheduledResult], frozen=True):
    """Schedules an INSERT for this time, in milliseconds since 1970; appends it if the time has passed.

    `keyed`: the key is the caller's idempotency key, not a generated one; only such a request may be repeated. Raises
    WouldBlockError past the bounds of scheduled messages, InvalidArgumentError if the settings would forget the key at once.
    """

    saying: ClassVar[str] = "scheduling a message on {0.vchannel!r}"
    right: ClassVar[Right] = Right.WRITE
    changes: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    creates: ClassVar[bool] = True

    payload: bytes
    properties: Mapping[str, str]
    due_ms: int
    key: str
    keyed: bool
    seen_time_tick: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_key(self.key)
        if self.due_ms > MILLISECONDS_MAX:
            raise InvalidArgumentError(f"due_ms={self.due_ms} is after the last time tick: at most {MILLISECONDS_MAX} (the year 4199)")

    @property
    def message(self) -> Message:
        """The message; raises TypeError or InvalidArgumentError if it cannot be one."""
        return Message(self.vchannel, self.payload, properties=dict(self.properties))

    @property
    def repeatable(self) -> bool:
        return self.keyed

    @property
    def room(self) -> int:
        return self.message.estimate_size() + len(key_ext(self.key)) + BODY_OVERHEAD

    def check(self, settings: Settings) -> None:
        check_size(self.message, bytes_max=settings.message_bytes_max)
        if self.keyed:
            kept_key_ext(self.key, settings)

    def newest_tick(self, answer: ScheduledResult) -> int:
        return 0 if answer.appended is None else answer.appended.time_tick


class ListScheduled(VChannelRequest[tuple[ScheduledMessage, ...]], frozen=True):
    """Asks for the messages of this vchannel that wait for their time, the earliest first."""

    saying: ClassVar[str] = "listing what is scheduled on {0.vchannel!r}"


class CancelMessage(VChannelRequest[bool], frozen=True):
    """Cancels the scheduled message with this key durably; answers False if none with it waits any more.

    Raises ChannelNotExistError for a vchannel that does not exist.
    """

    saying: ClassVar[str] = "cancelling a message on {0.vchannel!r}"
    right: ClassVar[Right] = Right.WRITE
    changes: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    repeatable: ClassVar[bool] = False

    key: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_key(self.key)
