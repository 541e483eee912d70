"""ConsumerOptions: the options of `log.consume`, checked.

A wrong type is a TypeError and a wrong value an InvalidArgumentError that names the value, the limit and the remedy; both are raised at the
call, before anything is read or claimed. Whether the vchannels are on one pchannel is checked when the consumer begins, since that needs
the log.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypedDict, cast

import msgspec

from wal.channels.vchannels import check_vchannel, check_vchannels
from wal.consumers.plan import PAGE_MAX, ConsumerPlan
from wal.errors import InvalidArgumentError
from wal.message import ImmutableMessage
from wal.message.matching import Matching
from wal.message.payloads import PayloadType
from wal.read.cursors.cursor import CursorKey, check_cursor
from wal.requests.cursors import LEASE_MS
from wal.runtime.user_code import check_runs, shown

CONCURRENCY_MAX: Final = 1024
"""The maximum number of a consumer's handlers that run at once."""
ATTEMPTS_MAX: Final = 1000
BACKOFF_S_MAX: Final = 7 * 86_400.0
"""The longest pause between two attempts."""
TIMEOUT_S_MAX: Final = 7 * 86_400.0
LEASE_S: Final = 10.0
"""The time without heartbeats after which a member of a shared cursor loses its messages."""
TRIP_AFTER: Final = 20
"""The messages out of attempts in a row after which a consumer with a dead letter trips, by default."""
TRIP_AFTER_MAX: Final = 1_000_000
CONSUME_TAKES: Final = "consume takes the name of a vchannel, several names, or a pattern, as in consume(Matching('account-*'), …)"
"""The text of the error for a caller that names no vchannel."""

Key = Callable[[ImmutableMessage], str | bytes]


class ConsumeOptions(TypedDict, total=False):
    """The keywords of `log.consume(…)` that do not change the type of what its handler gets."""

    concurrency: int
    order: Literal["vchannel", "key", "none"]
    key: Key | str | None
    attempts: int
    backoff_s: tuple[float, float]
    on_failure: Literal["block", "park"]
    dead_letter: str | None
    timeout_s: float | None
    exclusive: Literal["wait", "error"]
    trip_after: int | None
    shared: bool
    lease_s: float


class PropertyKey(msgspec.Struct, frozen=True):
    """The key of a message is its property `name`; messages without the property are those of one key, the empty text."""

    name: str

    def __call__(self, message: ImmutableMessage) -> str:
        """Returns the key of a message."""
        return message.properties.get(self.name, "")


class ConsumerOptions(msgspec.Struct, frozen=True):
    """The options of a consumer; see `WALAccesser.consume`. With `is_async` calling the handler returns an awaitable at once.

    With `trip_after` 0 the consumer never trips. `lease_s` is None for a consumer that has its cursor alone.
    """

    vchannels: tuple[str, ...] | Matching
    handler: Callable[[Any], Any]
    cursor: CursorKey
    plan: ConsumerPlan
    key: Key | None
    dead_letter: str | None
    batch: int | None
    timeout_s: float | None
    payloads: PayloadType[Any] | None
    exclusive: Literal["wait", "error"]
    is_async: bool
    trip_after: int = 0
    lease_s: float | None = None

    @classmethod
    def of(
        cls,
        vchannels: str | Sequence[str] | Matching,
        handler: Callable[[Any], Any],
        *,
        cursor: str,
        concurrency: int = 1,
        order: str = "vchannel",
        key: Key | str | None = None,
        attempts: int = 5,
        backoff_s: tuple[float, float] = (0.1, 30.0),
        on_failure: str = "block",
        dead_letter: str | None = None,
        batch: int | None = None,
        timeout_s: float | None = None,
        type: Any = None,
        exclusive: str = "wait",
        trip_after: int | None = None,
        shared: bool = False,
        lease_s: float = LEASE_S,
    ) -> ConsumerOptions:
        """Returns the checked options of a call."""
        names = vchannels if isinstance(vchannels, Matching) else check_vchannels(vchannels, CONSUME_TAKES)
        if not names:
            raise InvalidArgumentError("consume([], …) names no vchannel: name at least one")
        if not callable(handler):
            raise TypeError(f"handler must be a callable that takes a Delivery, not {shown(handler)}")
        check_runs(handler)
        _check_choice("order", order, ("vchannel", "key", "none"))
        _check_choice("on_failure", on_failure, ("block", "park"))
        _check_choice("exclusive", exclusive, ("wait", "error"))
        _check_key(key, order, shared=_check_shared(shared))
        lease = _check_lease(lease_s, shared=shared)
        if _check_number("concurrency", concurrency, 1, CONCURRENCY_MAX) > 1 and order == "vchannel" and only_vchannel(names) is not None:
            raise InvalidArgumentError(
                f"concurrency={concurrency} has no effect with order='vchannel' on one vchannel, whose messages are handled one after the "
                "other: use order='key' with key= (the messages of a key keep their order) or order='none', or leave concurrency out"
            )
        if dead_letter is not None and check_vchannel(dead_letter) in names:
            raise InvalidArgumentError(
                f"dead_letter={dead_letter!r} is a vchannel that this consumer reads, so its dead letters would come back to it: name "
                f"another vchannel{f', which {names} does not match' if isinstance(names, Matching) else ''}"
            )
        plan = ConsumerPlan(
            concurrency,
            cast("Literal['vchannel', 'key', 'none']", order),
            1 if batch is None else _check_number("batch", batch, 1, PAGE_MAX),
            _check_number("attempts", attempts, 1, ATTEMPTS_MAX),
            _check_backoff(backoff_s),
            on_failure == "block",
        )
        return cls(
            names,
            handler,
            CursorKey.of(check_cursor(cursor), names),
            plan,
            PropertyKey(key) if isinstance(key, str) else key,
            dead_letter,
            batch,
            None if timeout_s is None else _check_seconds("timeout_s", timeout_s, TIMEOUT_S_MAX),
            None if type is None else type if isinstance(type, PayloadType) else PayloadType(type),
            cast("Literal['wait', 'error']", exclusive),
            _is_async(handler),
            _check_trip(trip_after, dead_letter),
            lease,
        )


def _check_shared(shared: object) -> bool:
    if not isinstance(shared, bool):
        raise TypeError(f"shared must be True or False, not {shared!r:.80}")
    return shared


def _check_key(key: object, order: str, *, shared: bool) -> None:
    if key is not None and not isinstance(key, str) and not callable(key):
        raise TypeError(f"key must be a function from a message to a str or bytes, or the name of a property, not {key!r:.80}")
    if (key is None) == (order == "key"):
        remedy = "give key=, the name of a property or a function" if key is None else "leave key out, or use order='key'"
        kind = "None" if key is None else repr(key) if isinstance(key, str) else "a function"
        raise InvalidArgumentError(f"order={order!r} with key={kind}: {remedy}")
    if key == "":
        raise InvalidArgumentError("key='' names no property: name the property that has the key")
    if shared and callable(key):
        raise InvalidArgumentError(
            "shared=True with key=a function: the server that has the cursor hands out the messages, and cannot call the function; store "
            "the key in a property of each message, and give its name: key='customer'"
        )


def _check_lease(lease_s: object, *, shared: bool) -> float | None:
    """Returns the lease of a member; None for a consumer that has its cursor alone."""
    if isinstance(lease_s, bool) or not isinstance(lease_s, int | float):
        raise TypeError(f"lease_s must be a number of seconds, not {lease_s!r:.80}")
    shortest, longest = LEASE_MS[0] / 1000, LEASE_MS[1] / 1000
    if not shortest <= lease_s <= longest:
        raise InvalidArgumentError(f"lease_s={lease_s} is out of range: {shortest} to {longest:.0f} s")
    if lease_s != LEASE_S and not shared:
        raise InvalidArgumentError(f"lease_s={lease_s} is for the members of a shared cursor: use it with shared=True, or leave it out")
    return float(lease_s) if shared else None


def _check_trip(value: int | None, dead_letter: str | None) -> int:
    if value is None:
        return 0 if dead_letter is None else TRIP_AFTER
    if _check_number("trip_after", value, 0, TRIP_AFTER_MAX) and dead_letter is None:
        raise InvalidArgumentError(
            f"trip_after={value} has no effect without dead_letter=, since the first message out of attempts ends the consumer: name a "
            "vchannel with dead_letter=, or leave trip_after out"
        )
    return value


def only_vchannel(vchannels: tuple[str, ...] | Matching) -> str | None:
    """Returns the vchannel if these are one; a pattern may match any number."""
    return vchannels[0] if isinstance(vchannels, tuple) and len(vchannels) == 1 else None


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r:.80}")
    if value not in choices:
        raise InvalidArgumentError(f"{name}={value!r} is not known: use one of {', '.join(map(repr, choices))}")


def _check_number(name: str, value: object, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not {value!r:.80}")
    if not least <= value <= most:
        raise InvalidArgumentError(f"{name}={value} is out of range: {least} to {most}")
    return value


def _check_seconds(name: str, value: object, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, not {value!r:.80}")
    if not 0 < value <= most:
        raise InvalidArgumentError(f"{name}={value} is out of range: more than 0 s, and at most {most:.0f} s")
    return float(value)


def check_drain(value: object) -> float:
    """Returns the drain time in seconds; raises TypeError or InvalidArgumentError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"drain_s must be a number of seconds, not {value!r:.80}")
    if not 0 <= value < float("inf"):
        raise InvalidArgumentError(f"drain_s={value} is out of range: 0 s or more, and finite")
    return float(value)


def _check_backoff(value: object) -> tuple[float, float]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"backoff_s must be a pair (first pause, longest pause) of seconds, not {value!r:.80}")
    first, longest = value
    for seconds in value:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TypeError(f"backoff_s must be a pair of numbers of seconds, not {value!r:.80}")
    if not 0 <= first <= longest <= BACKOFF_S_MAX:
        raise InvalidArgumentError(f"backoff_s={value!r} is out of range: 0 <= first pause <= longest pause <= {BACKOFF_S_MAX:.0f} s")
    return float(first), float(longest)


def _is_async(handler: Callable[[Any], Any]) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004
