"""Schedule: the messages of a vchannel that wait for their time, and their cancellation; what an append with a time is made of.

A schedule is what was pending when it was asked for. It does not change: a cancellation asks the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, overload
from uuid import uuid4

from wal.errors import InvalidArgumentError
from wal.message import Message, ScheduledMessage, ScheduledResult
from wal.requests.schedule import CancelMessage, ScheduleMessage
from wal.timestamp.timestamp import due_of
from wal.write.idempotency.keys import ProducerKey, check_key

if TYPE_CHECKING:
    from wal.api.lifecycle import Lifecycle


def schedule_key(key: object) -> tuple[str, bool]:
    """Returns the key of a scheduled message, and whether it is the caller's: without one (None) it is generated.

    Raises TypeError or InvalidArgumentError for a wrong key, and for a ProducerKey.
    """
    if key is None:
        return uuid4().hex, False
    if isinstance(key, ProducerKey):
        raise InvalidArgumentError(
            f"idempotency_key={key!r} cannot be that of a message with deliver_at: the sequences of a producer are in the order of its "
            "appends, and not in the order of times; use a plain key (str)"
        )
    return str(check_key(key)), True


async def schedule_message(
    lifecycle: Lifecycle, message: Message, deliver_at: datetime, idempotency_key: str | ProducerKey | None
) -> ScheduledResult:
    """Schedules a message; see `WALAccesser.append`."""
    due_ms = due_of(deliver_at)
    key, keyed = schedule_key(idempotency_key)
    request = ScheduleMessage(message.vchannel, message.payload, message.properties, due_ms, key, keyed)
    return await (await lifecycle.ready()).submit(request)


class Schedule(Sequence[ScheduledMessage]):
    """The messages of a vchannel that waited for their time at the call, the earliest first. Get one from `log.scheduled`."""

    __slots__ = ("_lifecycle", "_messages", "vchannel")

    def __init__(self, lifecycle: Lifecycle, vchannel: str, messages: Sequence[ScheduledMessage]) -> None:
        self._lifecycle = lifecycle
        self._messages = tuple(messages)
        self.vchannel: str = vchannel

    async def cancel(self, key: str) -> bool:
        """Cancels the message with this key, durably; returns False if no such message waits, or if it was delivered first.

        The key need not be in this schedule. After a cancellation it can be used again. Over the network a lost answer is an
        UnknownOutcomeError: `log.scheduled` shows whether the message still waits.
        """
        if not isinstance(key, str):
            raise TypeError(f"a scheduled message has a str as its key, not {key!r}")
        return await (await self._lifecycle.ready()).submit(CancelMessage(self.vchannel, key))

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, at: int) -> ScheduledMessage: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[ScheduledMessage, ...]: ...

    def __getitem__(self, at: int | slice) -> ScheduledMessage | tuple[ScheduledMessage, ...]:
        return self._messages[at]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.vchannel!r}, {list(self._messages)!r})"
