"""Operations: the calls of a vchannel actor, each with the future of its caller.

A cancelled future is left alone: the operation continues, but its caller does not get the outcome.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import msgspec

from wal.errors import ClosedError, WALError, caused
from wal.frame import Payloads, Record, RunName
from wal.message import AppendResult, ForgottenResult, MessageID, Origin, ScheduledResult, TxnContext
from wal.write.idempotency.keys import Key
from wal.write.idempotency.scopes import Claim
from wal.write.ticks import Holder
from wal.write.txn_table import TxnOwner

if TYPE_CHECKING:
    from wal.write.cursor_table import CursorChange  # clients import operations, without the tables

_T = TypeVar("_T")
_T_contra = TypeVar("_T_contra", contravariant=True)


class Answers(Protocol[_T_contra]):
    """Receives an operation's outcome. Futures satisfy this protocol, and so does a caller that ignores it. It is contravariant."""

    def done(self) -> bool: ...

    def set_result(self, result: _T_contra, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class Settles(Answers[_T_contra], Protocol[_T_contra]):
    """The part of a caller's future that an operation uses. It is contravariant: a future for more kinds of results also fits."""

    def cancelled(self) -> bool: ...

    def add_done_callback(self, fn: Callable[[Any], object], /) -> None: ...


def answer_future(future: Answers[_T], result: _T) -> None:
    """Gives the caller its result, if it still waits."""
    if not future.done():
        future.set_result(result)


def fail_future(future: Answers[Any], error: BaseException) -> None:
    """Gives the caller an error of its own (callers do not share tracebacks), if it still waits."""
    if not future.done():
        own = caused(copy.copy(error), error.__cause__)
        future.set_exception(own)


def with_outcome(error: WALError, *, unknown: bool) -> WALError:
    """Returns the same error, with `outcome_unknown` for calls that may have been written."""
    if error.outcome_unknown == unknown:
        return error
    own = caused(copy.copy(error), error.__cause__)
    own.outcome_unknown = unknown
    return own


def closed_at_barrier() -> ClosedError:
    """Returns the error of an operation that still waits for its barrier when the log is closed."""
    return ClosedError("the log was closed while this append waited for its barrier; it was not written")


class VChannelMember(Holder, Protocol):
    """A vchannel of the group, as its pchannel and the copies of broadcasts use it: `VChannel` implements it."""

    channel: str
    run_name: RunName
    closed: Callable[[], WALError] | None
    newest: int
    """The serial of the newest submission with events of it."""

    @property
    def pchannel(self) -> object:
        """The pchannel that it is on."""

    def released(self, operation: Any) -> None:
        """Continues an operation whose barrier was passed."""

    def fail_spanned(self, message_type: int) -> None:
        """Fails the open transactions on the vchannel, which must not span a message of this exclusive type."""


Expected = tuple[tuple[VChannelMember, MessageID | None], ...]
"""The last event that each of these vchannels must have (None: no event) when an operation joins a frame."""


class PlainAppend(Record, gc=False):
    """A plain message. `size` is the room it takes in flight."""

    future: Settles[AppendResult] = cast("Settles[AppendResult]", None)
    size: int = 0


class OrderedAppend(PlainAppend, gc=False):
    """A message with a condition beyond its turn: it waits for a barrier, or it is exclusive."""

    barrier: int = 0
    exclusive: bool = False


class KeyedAppend(OrderedAppend, gc=False):
    """A message with an idempotency key, which is also in its ext; `claim` is set in its turn."""

    future: Settles[AppendResult | ForgottenResult] = cast("Settles[AppendResult | ForgottenResult]", None)
    key: Key = ""
    claim: Claim | None = None


class ConditionalAppend(OrderedAppend, gc=False):
    """A message with an expected last event of its vchannel."""

    expected: Expected = ()


class ConditionalKeyedAppend(KeyedAppend, gc=False):
    """A message with an idempotency key of either kind and an expected last event of its vchannel."""

    expected: Expected = ()


class ProducerAppend(KeyedAppend, gc=False):
    """A message whose key is a `ProducerKey`. A message with a plain key is a `KeyedAppend` itself."""


class ScheduledAppend(KeyedAppend, gc=False):
    """A message that is appended when the ticks reach `due_ms`. Its key names it; with `keyed` it is an idempotency key, and in its ext."""

    future: Settles[AppendResult | ForgottenResult | ScheduledResult] = cast(
        "Settles[AppendResult | ForgottenResult | ScheduledResult]", None
    )
    due_ms: int = 0
    keyed: bool = False


class CancelScheduled(msgspec.Struct, gc=False):
    """Cancels the scheduled message with this key; the future gets whether an undelivered message was cancelled."""

    key: str
    future: Settles[bool]


class Together(msgspec.Struct, frozen=True, gc=False):
    """The results of messages with consecutive indices and ticks in one frame. Iterating over it creates each result."""

    origin: Origin
    first_index: int
    first_tick: int
    count: int

    def __iter__(self) -> Iterator[AppendResult]:
        ids = map(self.origin.message_id, range(self.first_index, self.first_index + self.count))
        for tick, message_id in enumerate(ids, self.first_tick):
            yield AppendResult(message_id, tick, message_id)


class Bulk(msgspec.Struct, gc=False):
    """Plain messages of one vchannel that share a frame and a future."""

    records: list[Record]
    size: int
    future: asyncio.Future[Together]


class Atomic(msgspec.Struct, gc=False):
    """A transaction over these vchannels of the pchannel that arrives complete, and within the bounds of transactions.

    `change` is the save of a cursor that it commits.

    `bodies` are its bodies, and `names` the vchannel of each; None for a single vchannel. `size` is its room in flight and in the frame.
    """

    vchannels: tuple[VChannelMember, ...]
    bodies: list[Record] | Payloads
    names: list[RunName] | None
    size: int
    barrier: int
    future: Settles[AppendResult | ForgottenResult]
    key: Key | None = None
    expected: Expected = ()
    change: CursorChange | None = None


class Begin(msgspec.Struct, gc=False):
    """Opens a transaction over these vchannels, all of this pchannel.

    `key_bytes` is the size of its idempotency key in each commit row. `owner` is the client that begins it, for a client over the network.
    """

    vchannels: tuple[str, ...]
    keepalive: float
    future: asyncio.Future[TxnContext]
    key_bytes: int = 0
    owner: TxnOwner | None = None


class Commit(msgspec.Struct, gc=False):
    """Commits a transaction, with the save of a cursor if there is a `change`."""

    txn_id: int
    future: Settles[AppendResult]
    expected: Expected = ()
    change: CursorChange | None = None


class KeyedCommit(Commit, gc=False):
    """Commits a transaction with an idempotency key; `scope` are its vchannels, sorted."""

    future: Settles[AppendResult | ForgottenResult]
    key: Key = ""
    scope: tuple[RunName, ...] = ()


class Rollback(msgspec.Struct, gc=False):
    """Rolls a transaction back."""

    txn_id: int
    future: asyncio.Future[None]


class Drop(msgspec.Struct, gc=False):
    """Ends the vchannel: its transactions, its readers, and itself."""

    future: asyncio.Future[None]


class RemoveProducer(msgspec.Struct, gc=False):
    """Forgets a producer on the whole pchannel; sent to any of its vchannels, so that it is ordered with the other calls."""

    name: str
    future: asyncio.Future[None]
