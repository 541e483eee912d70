"""AppendResponses: what `append_messages` answers, one entry for each message in input order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from wal.errors import WALError
from wal.message import AppendResult

__all__ = ["AppendOption", "AppendResponses"]

import msgspec


class AppendOption(msgspec.Struct, frozen=True):
    """`barrier_time_tick`: the append gets its tick only once everything up to this one is in the log (0: no barrier)."""

    barrier_time_tick: int = 0


class AppendResponses(Sequence[AppendResult | WALError]):
    """A sequence of results and errors in the order of the messages. The messages of one vchannel share theirs."""

    __slots__ = ("_responses",)

    def __init__(self, responses: Sequence[AppendResult | WALError]) -> None:
        self._responses = tuple(responses)

    def unwrap(self) -> list[AppendResult]:
        """All results, or the first error raised."""
        results = []
        for response in self._responses:
            if isinstance(response, WALError):
                raise response
            results.append(response)
        return results

    @property
    def first_error(self) -> WALError | None:
        """The first error in input order, None when there is none."""
        return next((response for response in self._responses if isinstance(response, WALError)), None)

    @property
    def max_time_tick(self) -> int:
        """The largest tick among the results; 0 when there is none."""
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
