"""AppendResult: the answer to a durable append, which every layer above the messages passes on; and the TxnContext in it.

CopyOutcomes: the answers to a broadcast's copies in one frame.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias

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


ForgottenResult: TypeAlias = AppendResult[None, None]
"""The answer to an older duplicate of a producer: the event was written, but its id and its tick are no longer kept.

It is only a type: an AppendResult with None for `message_id`, `time_tick` and `last_confirmed`. Only an append with a `ProducerKey` returns
it.
"""


class CopyOutcomes(Collection[AppendResult | WALError], Protocol):
    """The outcomes of a broadcast's copies in one frame, in the order of the requested vchannels."""

    @property
    def all_in(self) -> bool:
        """Whether all of them are results, so that no caller has to search thousands for an error."""
