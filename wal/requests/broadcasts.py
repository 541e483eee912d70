"""Requests about broadcasts, which the broadcaster of the log answers, where the log is coordinated."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain
from typing import ClassVar

import msgspec

from broadcaster.message import (
    BroadcastAppendResult,
    BroadcasterStatistics,
    BroadcastMessage,
    BroadcastTask,
    check_append,
    check_id,
    check_key,
    check_reason,
    copy_named,
)
from wal.errors import UnknownError
from wal.message import AppendResult, ImmutableMessage, MessageID, ResourceKey
from wal.requests.request import LogChange, LogRequest
from wal.requests.rights import Right

CALL_S = 30.0
"""How long a client waits for a broadcast, and sends again what is refused: a new leader's broadcaster, and the copies of a broadcast, wait
for every pchannel that is being moved."""


class AppendedCopies(msgspec.Struct, frozen=True):
    """The copies of a broadcast that follow each other in one frame: `count` of them, whose indices and ticks ascend by one."""

    count: int
    first_id: MessageID
    first_time_tick: int

    def results(self) -> Iterable[AppendResult]:
        """Yields the result of each copy."""
        first = self.first_id
        for step in range(self.count):
            message_id = MessageID(first.pchannel, first.incarnation, first.position, first.index + step, first.form)
            yield AppendResult(message_id, self.first_time_tick + step, message_id)


class AppendedBroadcast(msgspec.Struct, frozen=True):
    """A broadcast whose copies are all durable, as it is sent: the copies in the order of the vchannels."""

    broadcast_id: int
    copies: tuple[AppendedCopies, ...]


class AppendBroadcast(LogChange[BroadcastAppendResult], frozen=True):
    """Appends a copy of the message for each vchannel; all of them are durable when the answer comes. `LogBroadcast.append` has the errors.

    With `wait` it waits for resource keys that are held. It is sent at most once: without an answer the log completes what has begun.
    """

    saying: ClassVar[str] = "appending a broadcast"
    waits: ClassVar[bool] = True
    sent: ClassVar[type] = AppendedBroadcast
    insists_s: ClassVar[float] = CALL_S

    message: BroadcastMessage
    wait: bool = False
    seen_time_tick: int = 0

    def __post_init__(self) -> None:
        check_append(self.message, self.wait)

    @property
    def timeout_s(self) -> float | None:
        return math.inf if self.wait else CALL_S

    def newest_tick(self, answer: BroadcastAppendResult) -> int:
        return max((result.time_tick for result in answer.append_results.values()), default=0)

    def packed(self, answer: BroadcastAppendResult) -> AppendedBroadcast:
        return AppendedBroadcast(answer.broadcast_id, tuple(runs_of(answer.append_results.values())))

    def unpacked(self, answer: AppendedBroadcast) -> BroadcastAppendResult:
        names, count = self.message.vchannels, sum(copies.count for copies in answer.copies)
        if count != len(names):
            raise UnknownError(
                f"broadcast {answer.broadcast_id} has {count} results for {len(names)} vchannels: a server sends one for each"
            )
        results = chain.from_iterable(copies.results() for copies in answer.copies)
        return BroadcastAppendResult(answer.broadcast_id, dict(zip(names, results, strict=True)))


def runs_of(results: Iterable[AppendResult]) -> list[AppendedCopies]:
    """Returns the results of copies as they are sent."""
    joined: list[AppendedCopies] = []
    for result in results:
        message_id, tick = result.message_id, result.time_tick
        if joined:
            last = joined[-1]
            first, step = last.first_id, last.count
            if (
                message_id.index == first.index + step
                and tick == last.first_time_tick + step
                and message_id.position == first.position
                and message_id.same_log(first)
            ):
                joined[-1] = AppendedCopies(step + 1, first, last.first_time_tick)
                continue
        joined.append(AppendedCopies(1, message_id, tick))
    return joined


class AckBroadcast(LogRequest[None], frozen=True):
    """Acknowledges a vchannel's copy of a broadcast, durably. A repeated ack, or that of an unknown broadcast, does nothing."""

    saying: ClassVar[str] = "acknowledging broadcast {0.broadcast_id}"
    right: ClassVar[Right] = Right.WRITE
    writes: ClassVar[bool] = True
    insists_s: ClassVar[float] = CALL_S

    broadcast_id: int
    vchannel: str

    @classmethod
    def of(cls, broadcast: int | ImmutableMessage, vchannel: str | None = None) -> AckBroadcast:
        """Returns the request for the copy that is named by its broadcast and vchannel, or that is this message."""
        return cls(*copy_named(broadcast, vchannel))


class AwaitResourceKey(LogRequest[None], frozen=True):
    """Waits until each broadcast that holds the key now has been acknowledged by one vchannel, or (`everywhere`) has finished."""

    saying: ClassVar[str] = "waiting for the acknowledgement of {0.key}"
    right: ClassVar[Right] = Right.WRITE
    insists_s: ClassVar[float] = CALL_S

    key: ResourceKey
    everywhere: bool = False

    def __post_init__(self) -> None:
        check_key(self.key)

    @property
    def timeout_s(self) -> float | None:
        return math.inf


class ListBroadcasts(LogRequest[tuple[BroadcastTask, ...]], frozen=True):
    """Asks for the running broadcasts, also the stuck ones."""

    saying: ClassVar[str] = "listing the broadcasts"
    insists_s: ClassVar[float] = CALL_S


class AbortBroadcast(LogRequest[None], frozen=True):
    """Aborts a broadcast. A second abort waits for the same end; InvalidArgumentError for an unknown broadcast, or one with another end."""

    saying: ClassVar[str] = "aborting broadcast {0.broadcast_id}"
    right: ClassVar[Right] = Right.ADMIN
    writes: ClassVar[bool] = True
    insists_s: ClassVar[float] = CALL_S

    broadcast_id: int
    reason: str

    def __post_init__(self) -> None:
        check_id(self.broadcast_id)
        check_reason(self.reason)


class BroadcastCounts(LogRequest[BroadcasterStatistics], frozen=True):
    """Asks for the counts of the broadcaster: those of this moment, and those since it began."""

    saying: ClassVar[str] = "asking for the counts of broadcasts"
    insists_s: ClassVar[float] = CALL_S
