"""The options of appends as callers give them, and the answers: `expected_last`, and what a conflict with it means; `append_messages`.

An event is a plain message, a transaction or a copy of a broadcast. The ids of a transaction's bodies name no event: the conflict with
one is explained, since a caller that uses them would never succeed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict, TypeVar, overload

import msgspec

from wal.channels.vchannels import check_vchannel
from wal.errors import ConflictError, InvalidArgumentError, WALError
from wal.message import AppendResult, Message, MessageID
from wal.requests.appends import UNCHECKED, Unchecked, WriteOptions
from wal.requests.txns import AppendTxn
from wal.write.bulk import bulk_results
from wal.write.checks import check_is_message, check_message
from wal.write.idempotency.keys import Key

if TYPE_CHECKING:
    from wal.engine import Appends, ReadableEngine


ExpectedLast = MessageID | None | Mapping[str, MessageID | None] | Unchecked
"""The last event of the only vchannel of a transaction (None: it never had one), or those of some of its vchannels by name."""


class TxnOptions(TypedDict, total=False):
    """The keywords of `log.txn(…)` that do not change the type of its result."""

    vchannels: Sequence[str] | None
    keepalive: float
    expected_last: ExpectedLast


def options_of(names: tuple[str, ...], barrier_time_tick: int, key: Key | None, expected: ExpectedLast) -> WriteOptions:
    """Returns the options of an append to this vchannel, or of a transaction over these.

    Raises TypeError for a wrong type; InvalidArgumentError for an expected event of a vchannel that is not one of them, and for one id if
    they are several.
    """
    if expected is UNCHECKED:
        return WriteOptions(barrier_time_tick, key)
    if not isinstance(expected, Mapping):
        if len(names) > 1:
            raise InvalidArgumentError(
                f"expected_last={_checked(expected)} does not say which of the vchannels {', '.join(map(repr, names))} it is about: pass a "
                "mapping from the names to the ids"
            )
        expected = {names[0]: expected}
    options = WriteOptions(barrier_time_tick, key, {name: _checked(event) for name, event in expected.items()})
    options.check_expected(names)
    return options


def message_options(message: Message, barrier_time_tick: int, key: Key | None, expected: ExpectedLast) -> WriteOptions:
    """Returns the options of an append of this message; raises what `options_of` raises."""
    if expected is UNCHECKED:
        return WriteOptions(barrier_time_tick, key)
    check_is_message(message)
    return options_of((message.vchannel,), barrier_time_tick, key, expected)


def _checked(event: object) -> MessageID | None:
    if event is None or isinstance(event, MessageID):
        return event
    raise TypeError(f"expected_last must be a MessageID, or None for a vchannel that never had an event, not {event!r}")


async def explained(engine: ReadableEngine, conflict: ConflictError, expected: Mapping[str, MessageID | None]) -> WALError:
    """Returns the error to raise for a conflict: an InvalidArgumentError if the expected id is that of a body of the last transaction."""
    body, last = expected.get(conflict.vchannel), conflict.last
    if body is None or last is None or body.position != last.position or body.index >= last.index:
        return conflict
    try:
        pchannel, _, _ = await engine.attach((conflict.vchannel,))
        event = await pchannel.event_of(body)
    except WALError:
        return conflict  # it is truncated, or cannot be read now
    if event is None or event == body:
        return conflict
    error = InvalidArgumentError(
        f"expected_last={body} is the id of a body of the transaction {event}: pass the id of the transaction, which its message and the "
        "result of its commit have"
    )
    error.__cause__ = conflict
    return error


def message_of(vchannel: str, payload: bytes, properties: Mapping[str, str] | None) -> Message:
    """Returns the INSERT that `append` appends. Raises TypeError and InvalidArgumentError as `Message` does."""
    if isinstance(vchannel, Message):
        raise TypeError("append takes a vchannel and a payload, as in append('orders', b'created'): a Message goes to raw_append(message)")
    if properties is None:
        return Message(vchannel, payload)
    return Message(vchannel, payload, properties=properties)  # type: ignore[arg-type]  # Message copies and checks any mapping


_M = TypeVar("_M", bound=Message | bytes)


def one_or_several(call: str, messages: Iterable[_M] | _M, more: tuple[_M, ...]) -> Iterable[_M]:
    """Returns the messages of a call that takes one iterable of them, or several arguments. Raises TypeError for a mixture."""
    if isinstance(messages, Message | bytes):
        return (messages, *more)
    if more:
        raise TypeError(f"{call} takes one iterable of messages, or messages: not {type(messages).__name__} and {len(more)} more")
    return messages


class AppendOption(msgspec.Struct, frozen=True):
    """`barrier_time_tick`: appends wait until everything at or below this tick is in the log (0: no barrier)."""

    barrier_time_tick: int = 0


class AppendResponses(Sequence[AppendResult | WALError]):
    """The results and errors in the order of the messages. The messages of one vchannel share one result or error."""

    __slots__ = ("_responses",)

    def __init__(self, responses: Sequence[AppendResult | WALError]) -> None:
        self._responses = tuple(responses)

    def unwrap(self) -> list[AppendResult]:
        """Returns all results, or raises the first error."""
        results = []
        for response in self._responses:
            if isinstance(response, WALError):
                raise response
            results.append(response)
        return results

    @property
    def first_error(self) -> WALError | None:
        """Returns the first error in input order, or None."""
        return next((response for response in self._responses if isinstance(response, WALError)), None)

    @property
    def max_time_tick(self) -> int:
        """Returns the largest tick among the results, or 0 if there are none."""
        return max((response.time_tick for response in self._responses if isinstance(response, AppendResult)), default=0)

    def __len__(self) -> int:
        return len(self._responses)

    @overload
    def __getitem__(self, at: int) -> AppendResult | WALError: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[AppendResult | WALError]: ...

    def __getitem__(self, at: int | slice) -> AppendResult | WALError | Sequence[AppendResult | WALError]:
        return self._responses[at]

    def __repr__(self) -> str:
        return f"AppendResponses({list(self._responses)!r})"


async def append_all(appends: Appends, messages: Sequence[Message]) -> list[AppendResult]:
    """Appends messages in order, without a transaction; a BulkAppendError carries the outcomes of all.

    A message that no engine accepts raises before anything is sent.
    """
    for message in messages:
        check_message(message, bytes_max=appends.message_bytes_max)
        check_vchannel(message.vchannel)
    return await bulk_results(messages, appends.pieces(messages))


async def append_groups(appends: Appends, messages: Sequence[Message], options: WriteOptions) -> AppendResponses:
    """Appends each vchannel's messages, as one transaction if there are two or more; vchannels are independent of each other.

    A message that no engine accepts raises before anything is sent; a later failure is the response of its vchannel.
    """
    groups: dict[str, list[Message]] = {}
    for message in messages:
        check_message(message, bytes_max=appends.message_bytes_max)
        if message.vchannel not in groups:
            groups[check_vchannel(message.vchannel)] = []
        groups[message.vchannel].append(message)
    calls = [_append_group(appends, group, options) for group in groups.values()]
    outcomes = [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)
    by_vchannel = dict(zip(groups, outcomes, strict=True))
    return AppendResponses([by_vchannel[message.vchannel] for message in messages])


async def _append_group(appends: Appends, group: list[Message], options: WriteOptions) -> AppendResult | WALError:
    try:
        if len(group) > 1:
            return await appends.append_txn(AppendTxn((group[0].vchannel,), options, bodies=group))  # type: ignore[return-value]
        result: AppendResult = await (appends.append(group[0], options) or appends.append_waiting(group[0], options))
        return result
    except WALError as error:
        return error
