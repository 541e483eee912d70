"""Requests about pchannels and what their logs hold: ticks, last events, truncation, retention, statistics and producers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar

import msgspec

from wal.errors import InvalidArgumentError, WALError
from wal.message import MessageID
from wal.read.figures import PChannelStatistics, gauge
from wal.requests.request import Request, VChannelRequest, Where
from wal.requests.rights import Right
from wal.write.idempotency.keys import ProducerInfo


class LatestTick(VChannelRequest[int], frozen=True):
    """Asks for a tick that covers every write to this vchannel that has returned, to any client.

    With `local_only` a client of a cluster asks no other process: NotLocalError unless a node of its own has the vchannel.
    """

    saying: ClassVar[str] = "asking for the tick of {0.vchannel!r}"

    local: bool = False

    @property
    def local_only(self) -> bool:
        return self.local


class LastEvent(VChannelRequest[MessageID | None], frozen=True):
    """Asks for the id of the vchannel's last durable event, truncated or not; None if this incarnation never had one."""

    saying: ClassVar[str] = "asking for the last event of {0.vchannel!r}"


class Truncate(Request[None], frozen=True):
    """Truncates the pchannel of this event up to it, inclusive.

    InvalidArgumentError for an id that is above the durable end, of no pchannel of this log, or past what a cursor or a broadcast needs.
    """

    saying: ClassVar[str] = "truncating up to {0.up_to}"
    where: ClassVar[Where] = Where.PCHANNEL
    right: ClassVar[Right] = Right.ADMIN
    changes: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    visible: ClassVar[bool] = True

    up_to: MessageID

    def __post_init__(self) -> None:
        if not isinstance(self.up_to, MessageID):
            raise TypeError(f"up_to must be a MessageID, not {type(self.up_to).__name__}")

    @property
    def target(self) -> str:
        return self.up_to.pchannel

    def elsewhere(self, pchannels: Iterable[str]) -> WALError:
        return InvalidArgumentError(
            f"message id {self.up_to} belongs to no pchannel of this log ({', '.join(pchannels)}), or to another incarnation of one"
        )


class RetentionHolder(msgspec.Struct, frozen=True):
    """A holder that needs a part of the log.

    `kind` is "cursor", "damaged cursor" (`name` is its file), "broadcast" (`name` is the id of an unfinished one), "archive" (`name` is its
    place; it needs what it does not have yet) or "checkpoint".

    Nothing at or above `position` (the bytes of a message id's position) is dropped; from there to the end the log has `bytes`. The part
    that a checkpoint holds is already truncated, and its files are removed after the next checkpoint.
    """

    kind: str
    name: str
    vchannels: tuple[str, ...]
    position: int
    bytes: int


class PChannelRetention(msgspec.Struct, frozen=True):
    """The state of one pchannel's log.

    `earliest` is the first event that is not truncated and `oldest_time` its time; both are None without one. `bytes` are held now;
    the bounds are `bytes_max` and `age_max_s` (None: no bound). `holders`, lowest first, are all that need a part of the log, whether or
    not they hold back a bound. `clock_drift_s` is None, or how far the wall clock has moved from elapsed time: until it
    is back, has agreed for an hour, or is synchronised, nothing counts as too old by it.
    """

    pchannel: str
    earliest: MessageID | None
    oldest_time: datetime | None
    bytes: Annotated[int, gauge("wal_retention_bytes", "Bytes of the log that are not truncated")]
    bytes_max: Annotated[int | None, gauge("wal_retention_bytes_max", "The bound of these bytes, retention_bytes; absent without one")]
    age_max_s: float | None
    holders: tuple[RetentionHolder, ...]
    clock_drift_s: float | None


class Retention(Request[tuple[PChannelRetention, ...]], frozen=True):
    """Asks for the bytes that each pchannel keeps, the bounds, and the cursors that keep them."""

    saying: ClassVar[str] = "asking what is held"
    where: ClassVar[Where] = Where.EACH_PCHANNEL


class Statistics(Request[tuple[PChannelStatistics, ...]], frozen=True):
    """Asks for the counts of each pchannel since it was opened, as the node that has it counts them."""

    saying: ClassVar[str] = "asking for the counts"
    where: ClassVar[Where] = Where.EACH_PCHANNEL


class ListProducers(Request[tuple[ProducerInfo, ...]], frozen=True):
    """Asks for the producers that are remembered, in any order."""

    saying: ClassVar[str] = "listing the producers"
    where: ClassVar[Where] = Where.EACH_PCHANNEL


class ForgetProducer(Request[None], frozen=True):
    """Forgets a producer durably. InvalidArgumentError if no pchannel has it; WouldBlockError while its appends are in flight."""

    saying: ClassVar[str] = "forgetting producer {0.name!r}"
    where: ClassVar[Where] = Where.EACH_PCHANNEL
    right: ClassVar[Right] = Right.ADMIN
    changes: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    repeatable: ClassVar[bool] = False

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"a producer is named by a str, not {type(self.name).__name__}")

    def join(self, outcomes: Sequence[Any]) -> None:
        """Returns None if a pchannel knew the producer."""
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, InvalidArgumentError):
                raise outcome
        if outcomes and all(outcomes):
            raise outcomes[0]
