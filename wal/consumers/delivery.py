"""Delivery: one body as a consumer's handler gets it; Retry and Reject: exceptions with which a handler ends an attempt.

Owns the operations of a handler on a body. The delivery's state belongs to `Deliveries`, the table of the consumer. An output is stored in
the delivery until the handler has returned. If the attempt fails, the output is dropped; if it succeeds, it is committed together with the
position of the cursor. A call of an attempt that has ended (by a time-out, a cancellation or a return) is rejected.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, overload

import msgspec

from wal.errors import InvalidArgumentError, InvalidTransactionStateError
from wal.message import ImmutableMessage, LogPosition, Message
from wal.message.instead import Instead
from wal.timestamp.timestamp import due_of

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # supports defaults; the standard library's does from Python 3.13 on

    V_co = TypeVar("V_co", covariant=True, default=bytes)
    T_contra = TypeVar("T_contra", contravariant=True)
else:
    from typing import TypeVar

    V_co = TypeVar("V_co", covariant=True)
    T_contra = TypeVar("T_contra", contravariant=True)

DRAIN_S: Final = 10.0
"""The default time that the end of a consumer waits for handlers."""
RETRY_S_MAX: Final = 10 * 365 * 86_400.0
"""The longest pause of a Retry: the saved state has room for a time of this size."""
REASON_BYTES_MAX: Final = 1024
"""The maximum size of a reason in a dead letter, in UTF-8."""


class Retry(Exception):
    """A handler raises it to have the message redelivered after `delay_s` seconds; None means the backoff. It counts as an attempt."""

    def __init__(self, delay_s: float | None = None) -> None:
        if delay_s is not None and (isinstance(delay_s, bool) or not isinstance(delay_s, int | float)):
            raise TypeError(f"delay_s must be a number of seconds or None, not {delay_s!r}")
        if delay_s is not None and not 0 <= delay_s <= RETRY_S_MAX:
            raise InvalidArgumentError(f"delay_s={delay_s} is out of range: 0 to {RETRY_S_MAX:.0f} s (ten years)")
        super().__init__("the handler asked for a retry" if delay_s is None else f"the handler asked for a retry in {delay_s} s")
        self.delay_s: float | None = delay_s


class Reject(Exception):
    """A handler raises it for a message that it can never handle: the message becomes a dead letter at once, with this reason."""

    def __init__(self, reason: str = "") -> None:
        if not isinstance(reason, str):
            raise TypeError(f"the reason must be a str, not {type(reason).__name__}")
        super().__init__(reason or "the handler rejected the message")
        self.reason: str = str(self)


class DeliveryState(enum.IntEnum):
    """The states of a delivery, as numbers in their order below.

    WAITING  it is not handed out                      TRIED    not handed out, after a failed attempt
    CHOSEN   its hand-out is being recorded            HANDED   its hand-out is recorded, and it may run
    RUNNING  a handler has it                          ENDED    its handler has returned, and the next commit finishes it
    RESTING  it failed, and waits for its retry        DONE     it is finished
    """

    WAITING = 0
    CHOSEN = 1
    HANDED = 2
    RUNNING = 3
    ENDED = 4
    RESTING = 5
    TRIED = 6
    DONE = 7


class Outputs(msgspec.Struct, gc=False):
    """The outputs of one attempt, and their bytes as the bounds of transactions count them."""

    messages: list[Message]
    size: int = 0
    due_ms: dict[int, int] | None = None
    """By the number of an output: its time of delivery, in milliseconds since 1970. None if no output has one."""


class Handling(Protocol):
    """The methods of its consumer that a delivery calls."""

    @property
    def fence(self) -> int: ...

    def add_output(self, message: Message, outputs: Outputs | None, *, is_letter: bool = False, due_ms: int | None = None) -> Outputs:
        """Adds an output to the earlier ones; `is_letter` marks a dead letter that is redriven, `due_ms` is its time of delivery.

        Raises InvalidArgumentError if it cannot be committed together with them.
        """

    def extend(self, delivery: Delivery[Any], seconds: float) -> None: ...

    def has_ended(self, delivery: Delivery[Any]) -> bool: ...


class TypedTarget(Protocol[T_contra]):
    """A vchannel whose payloads are values of a type: the result of `log.typed`."""

    def message(self, value: T_contra, *, properties: Mapping[str, str] | None = None) -> Message: ...


class Delivery(msgspec.Struct, Generic[V_co], gc=False, eq=False):
    """One body for a handler. A plain message is one delivery, and each body of a transaction is one.

    `Delivery[Order]` is the annotation with the type of the consumer; `Delivery` without one means `Delivery[bytes]`.
    `message` is the body as it is in the log. `attempt` counts from 1 and never exceeds the consumer's `attempts`.
    """

    message: ImmutableMessage
    _owner: Handling
    _lane: Hashable = None
    _event: ImmutableMessage | bool | None = None
    """The transaction that ends with this body; False for an earlier body of a transaction, None for a plain message."""
    attempt: int = 1
    _state: int = 0
    _outputs: Outputs | None = None
    _value: Any = None
    _number: int = 0
    """The number of the hand-out, if the cursor is shared."""
    if not TYPE_CHECKING:
        ack = commit = Instead("nothing: a handler that returns has handled it")
        body = data = payload = Instead("value, or message.payload")
        headers = properties = Instead("message.properties")
        id = message_id = Instead("message.message_id")
        nack = reject = Instead("raise Reject(reason)")
        retry = Instead("raise Retry(delay_s=…)")

    @property
    def value(self) -> V_co:
        """The decoded payload if the consumer has a `type`, else the payload itself."""
        return self.message.payload if self._value is None else self._value[0]  # type: ignore[return-value]  # without a type V_co is bytes

    @property
    def vchannel(self) -> str:
        """The vchannel of the message."""
        return self.message.vchannel

    @property
    def fence(self) -> int:
        """The number of the consumer that handles it. Each new consumer of the cursor has a higher number. An outside system that stores
        the highest number so far and rejects lower ones is safe from a replaced consumer that still runs.

        With a shared cursor it is the number of the hand-out, and a message that is handed out again has a higher one. The outside system
        stores the highest number of each key then, or of each message.
        """
        return self._number or self._owner.fence

    @overload
    def append(
        self, vchannel: str, payload: bytes, *, properties: Mapping[str, str] | None = None, deliver_at: datetime | None = None
    ) -> None: ...

    @overload
    def append(
        self,
        vchannel: TypedTarget[T_contra],
        payload: T_contra,
        *,
        properties: Mapping[str, str] | None = None,
        deliver_at: datetime | None = None,
    ) -> None: ...

    def append(
        self,
        vchannel: str | TypedTarget[Any],
        payload: Any,
        *,
        properties: Mapping[str, str] | None = None,
        deliver_at: datetime | None = None,
    ) -> None:
        """Adds an output. It is appended with the save of the cursor if this attempt succeeds, and dropped if it fails.

        The output is a payload for a vchannel, or a value for a typed one: `delivery.append(log.typed("parcels", Parcel), parcel)`. With
        `deliver_at` it waits for its time, as with `log.append`; it is scheduled once, before the save, by a key of the input's id.

        Raises TypeError for a value of another type; InvalidArgumentError if the outputs of one message exceed the limits of a
        transaction (`txn_bytes_max`, `txn_bodies_max`); InvalidTransactionStateError once the attempt has ended.
        """
        if self._owner.has_ended(self):
            raise self._ended()
        if not isinstance(vchannel, str) and hasattr(vchannel, "message"):
            message = vchannel.message(payload, properties=properties)
        else:
            message = Message(vchannel, payload) if properties is None else Message(vchannel, payload, properties=properties)  # type: ignore[arg-type]
        if deliver_at is None:
            self._outputs = self._owner.add_output(message, self._outputs)
        else:
            self._outputs = self._owner.add_output(message, self._outputs, due_ms=due_of(deliver_at))

    def extend(self, seconds: float) -> None:
        """Moves the deadline of this attempt to that many seconds from now, overriding `timeout_s`. Without `timeout_s` it has no effect.

        A sync handler calls it in its own thread. Raises InvalidTransactionStateError once the attempt has ended.
        """
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TypeError(f"extend() takes a number of seconds, not {seconds!r}")
        if not 0 < seconds < float("inf"):
            raise InvalidArgumentError(f"extend({seconds}) is out of range: more than 0 s, and finite")
        if self._owner.has_ended(self):
            raise self._ended()
        self._owner.extend(self, seconds)

    def _ended(self) -> InvalidTransactionStateError:
        return InvalidTransactionStateError(
            f"this attempt at message {self.message.message_id} has ended (it returned, timed out or was cancelled): what it adds now "
            "would be lost; call append and extend before the handler returns"
        )

    def __repr__(self) -> str:
        return f"Delivery({self.message.message_id}, vchannel={self.vchannel!r}, attempt={self.attempt})"


def position_of(delivery: Delivery) -> LogPosition:
    """Returns the log position of the body."""
    message = delivery.message
    return (message._origin.position, message._index)


BodyPosition = tuple[Any, int]
"""Orders the bodies of a consumer: the log position of a body, or with a pattern its key in the merge of the pchannels, and its index."""
PositionOf = Callable[[ImmutableMessage], BodyPosition]


def log_position(message: ImmutableMessage) -> BodyPosition:
    """Returns the log position of an event or a body, for a consumer of one pchannel."""
    return message._origin.position, message._index


def merged_position(message: ImmutableMessage) -> BodyPosition:
    """Returns the tick and the pchannel of an event or a body, with its index, for a consumer of all pchannels."""
    return (message.time_tick, message._origin.pchannel), message._index


def cut_reason(reason: str) -> str:
    """Returns the reason cut to the limit of a dead letter: valid UTF-8, of at most REASON_BYTES_MAX bytes."""
    encoded = reason.encode("utf-8", "replace")
    return encoded[:REASON_BYTES_MAX].decode("utf-8", "ignore")
