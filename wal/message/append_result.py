"""The answers to appends, which every layer above passes on: AppendResult, ScheduledResult, and CopyOutcomes of a broadcast."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeAlias

import msgspec

from wal.errors import WALError
from wal.message.message_id import MessageID

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # supports defaults; the standard library's does from Python 3.13 on

    _Id_co = TypeVar("_Id_co", covariant=True, default=MessageID)
    _Tick_co = TypeVar("_Tick_co", covariant=True, default=int)
else:
    from typing import TypeVar

    _Id_co = TypeVar("_Id_co", covariant=True)
    _Tick_co = TypeVar("_Tick_co", covariant=True)


class TxnContext(msgspec.Struct, frozen=True, gc=False):
    """The transaction that a message belongs to: its `txn_id`, unique in its pchannel, and its `keepalive` in seconds."""

    txn_id: int
    keepalive: float


class AppendResult(msgspec.Struct, Generic[_Id_co, _Tick_co], frozen=True, gc=False):
    """The answer to a durable append: the event's id and its tick.

    `last_confirmed` equals the id. `txn_context` is set for a commit. `extra` is for operations of the system itself.
    `duplicate` is True when the idempotency key had been seen and this is the first result. `AppendResult` in an annotation means a
    result with an id and a tick; an older duplicate of a producer is a `ForgottenResult`.
    """

    message_id: _Id_co
    time_tick: _Tick_co
    last_confirmed: _Id_co
    txn_context: TxnContext | None = None
    extra: object = None
    duplicate: bool = False

    def __repr__(self) -> str:
        txn = "" if self.txn_context is None else f", txn_context={self.txn_context!r}"
        return f"AppendResult(message_id={self.message_id}, time_tick={self.time_tick}{txn}, duplicate={self.duplicate})"


ForgottenResult: TypeAlias = AppendResult[None, None]
"""The answer to an older duplicate of a producer: the event was written, but its id and its tick are no longer kept.

It is only a type: an AppendResult with None for `message_id`, `time_tick` and `last_confirmed`. Only an append with a `ProducerKey` returns
it.
"""


class ScheduledResult(msgspec.Struct, frozen=True, gc=False):
    """The answer to an append with `deliver_at`: the message is durable, and is appended at that time.

    `key` names it for `schedule.cancel`: the idempotency key of the call, or a generated one. `deliver_at` is exact to the millisecond,
    rounded up, in UTC. `duplicate` is True if a message with this key had been scheduled, or appended: nothing new was written. While the
    earlier message waits, `deliver_at` is its time. `appended` is the result of a message that is in the log, such as one whose time had
    passed; None while it waits.
    """

    key: str
    deliver_at: datetime
    appended: AppendResult | None = None
    duplicate: bool = False


class ScheduledMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that waits for its delivery time. `size` is that of its payload and its stored properties, in bytes."""

    key: str
    deliver_at: datetime
    size: int


class CopyOutcomes(Collection[AppendResult | WALError], Protocol):
    """The outcomes of a broadcast's copies in one frame, in the order of the requested vchannels."""

    @property
    def all_in(self) -> bool:
        """Whether all of them are results, so that a caller need not search thousands for an error."""


class MixedCopies(list[AppendResult | WALError]):
    """The outcomes of copies that are not all in one frame: results and errors."""

    __slots__ = ()
    all_in: Final = False
    """See `CopyOutcomes`."""
