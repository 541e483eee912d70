"""AppendResponses: the result of `append_messages`, one entry for each message in input order, and how its messages are grouped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

import msgspec

from wal.channels import check_vchannel
from wal.engine.checks import check_client_type, record_of
from wal.errors import WALError
from wal.message import AppendResult, Message

if TYPE_CHECKING:
    from wal.engine.base import Appends

__all__ = ["AppendOption", "AppendResponses", "append_groups"]


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
        return max(
            (response.time_tick for response in self._responses if isinstance(response, AppendResult)), default=0
        )

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


async def append_groups(appends: Appends, messages: Sequence[Message], barrier_time_tick: int) -> AppendResponses:
    """Appends each vchannel's messages, as one transaction if there are two or more; vchannels are independent of each other.

    A message that no engine accepts raises before anything is sent; a later failure is the response of its vchannel.
    """
    groups: dict[str, list[Message]] = {}
    for message in messages:
        record_of(message, bytes_max=appends.message_bytes_max)
        check_client_type(message)
        if message.vchannel not in groups:
            groups[check_vchannel(message.vchannel)] = []
        groups[message.vchannel].append(message)
    calls = [_append_group(appends, group, barrier_time_tick) for group in groups.values()]
    outcomes = [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)
    by_vchannel = dict(zip(groups, outcomes, strict=True))
    return AppendResponses([by_vchannel[message.vchannel] for message in messages])


async def _append_group(appends: Appends, group: list[Message], barrier_time_tick: int) -> AppendResult | WALError:
    try:
        if len(group) > 1:
            return await appends.append_txn((group[0].vchannel,), group, barrier_time_tick, None)  # type: ignore[return-value]
        future = appends.append(group[0], barrier_time_tick)
        return await (future or appends.append_waiting(group[0], barrier_time_tick))
    except WALError as error:
        return error
