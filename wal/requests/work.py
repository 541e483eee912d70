"""Requests of the members of a shared cursor to its home: join, take work, settle it with its outputs, stay, and leave.

A member is known by random bytes of its own. Its hand-outs are numbered: the number of a hand-out is above all earlier ones of the cursor,
also over homes and restarts, and the home refuses to settle a hand-out that the member has lost. Each of these requests may be sent again
after a lost answer: `TakeWork` names the last hand-out that has arrived, and `SettleWork` counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate, repeat
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from wal.errors import InvalidArgumentError, UnknownError
from wal.message import BroadcastHeader, ImmutableMessage, Message, MessageType, Origin, TxnContext
from wal.read.cursors.cursor import CursorKey
from wal.requests.cursors import HOLDER_BYTES_MAX, LEASE_MS, HomeRequest
from wal.requests.request import Answer, Request, Where

UNIT_MAX: Final = 8192
"""The most bodies that a member may ask for at once."""
WAIT_MS_MAX: Final = 10_000
"""The longest time that a request of a member waits at the home, in milliseconds."""
CONCURRENCY_MAX: Final = 1024
PROCESS_BYTES_MAX: Final = 256
"""The longest name of a member's process, in bytes."""
_INSERT: Final = int(MessageType.INSERT)
_V = TypeVar("_V")


class WorkTerms(msgspec.Struct, frozen=True):
    """The options that all members of a shared cursor have in common. `key` is the name of a property; `blocks` is on_failure="block"."""

    order: str
    key: str | None
    attempts: int
    backoff_s: tuple[float, float]
    blocks: bool
    dead_letter: str | None
    trip_after: int = 0

    def __str__(self) -> str:
        key = "" if self.key is None else f", key={self.key!r}"
        on_failure = "block" if self.blocks else "park"
        return (
            f"order={self.order!r}{key}, attempts={self.attempts}, backoff_s={self.backoff_s}, on_failure={on_failure!r}, "
            f"dead_letter={self.dead_letter!r}, trip_after={self.trip_after}"
        )


class MemberRequest(HomeRequest[Answer], frozen=True):
    """A request of one member."""

    member: bytes

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < len(self.member) <= HOLDER_BYTES_MAX:
            raise InvalidArgumentError(f"member has {len(self.member)} bytes: 1 to {HOLDER_BYTES_MAX}, for example 16 random ones")


class JoinCursor(MemberRequest[int], frozen=True):
    """Makes a consumer a member of a shared cursor, and answers the number of the claim under which the home hands out.

    The member keeps its messages for `lease_ms` after each of its requests. `process` is its host and pid, for people. `tripped` is the
    error of the trip that the member has from an earlier home: then all members of this one trip too.
    ResourceAcquiredError while a consumer has the cursor alone; InvalidArgumentError if the other members have other terms.
    """

    saying: ClassVar[str] = "joining the consumers of {0.key}"

    terms: WorkTerms
    concurrency: int
    batch: int
    lease_ms: int
    process: str = ""
    tripped: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("lease_ms", self.lease_ms, *LEASE_MS)
        _check("the length of process", len(self.process.encode()), 0, PROCESS_BYTES_MAX)
        _check("concurrency", self.concurrency, 1, CONCURRENCY_MAX)
        _check("batch", self.batch, 1, UNIT_MAX)


class WorkUnit(msgspec.Struct, frozen=True):
    """Bodies for one handler after the other, numbered from `first` on. An attempt above the limit asks for a dead letter instead."""

    first: int
    messages: tuple[ImmutableMessage, ...]
    attempts: tuple[int, ...]


class SentWork(msgspec.Struct, frozen=True):
    """Units of work as they are sent: their messages as columns. A column is empty if all its values are defaults.

    A frame is of the first pchannel, or has the number of its pchannel among those of the last columns.
    """

    firsts: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    pchannel: str = ""
    incarnation: int = 0
    form: int = 0
    frames: tuple[int, ...] = ()
    frame_numbers: tuple[int, ...] = ()
    indexes: tuple[int, ...] = ()
    ticks: tuple[int, ...] = ()
    vchannels: tuple[str, ...] = ()
    vchannel_numbers: tuple[int, ...] = ()
    payloads: tuple[bytes, ...] = ()
    types: tuple[int, ...] = ()
    properties: tuple[bytes, ...] = ()
    attempts: tuple[int, ...] = ()
    txn_ids: tuple[int, ...] = ()
    keepalives: tuple[float, ...] = ()
    broadcasts: tuple[bytes, ...] = ()
    pchannels: tuple[str, ...] = ()
    incarnations: tuple[int, ...] = ()
    frame_pchannels: tuple[int, ...] = ()

    @classmethod
    def of(cls, units: Sequence[WorkUnit]) -> SentWork:
        """Returns the columns of these units."""
        messages = [message for unit in units for message in unit.messages]
        if not messages:
            return cls()
        places = [(each._origin.pchannel, each._origin.position) for each in messages]
        frames = {place: number for number, place in enumerate(dict.fromkeys(places))}
        pchannels = {each._origin.pchannel: each._origin.incarnation for each in messages}
        numbers = {pchannel: number for number, pchannel in enumerate(pchannels)}
        names = {name: number for number, name in enumerate(dict.fromkeys([each.vchannel for each in messages]))}
        attempts = [attempt for unit in units for attempt in unit.attempts]
        txns = [each.txn_context for each in messages]
        headers = [each.broadcast for each in messages]
        origin = messages[0]._origin
        return cls(
            tuple([unit.first for unit in units]),
            tuple([len(unit.messages) for unit in units]),
            origin.pchannel,
            origin.incarnation,
            origin.form,
            tuple([position for _, position in frames]),
            tuple([frames[place] for place in places]) if len(frames) > 1 else (),
            tuple([each._index for each in messages]),
            tuple([each.time_tick for each in messages]),
            tuple(names),
            tuple([names[each.vchannel] for each in messages]) if len(names) > 1 else (),
            tuple([each.payload for each in messages]),
            _column([each._type for each in messages], _INSERT),
            _column([each._properties for each in messages], b""),
            _column(attempts, 1),
            _column([0 if txn is None else txn.txn_id for txn in txns], 0),
            _column([0.0 if txn is None else txn.keepalive for txn in txns], 0.0) if any(txns) else (),
            _column([b"" if header is None else header.to_bytes() for header in headers], b"") if any(headers) else (),
            *((tuple(pchannels), tuple(pchannels.values()), tuple([numbers[name] for name, _ in frames])) if len(pchannels) > 1 else ()),
        )

    def units(self) -> tuple[WorkUnit, ...]:
        """Returns the units. Raises UnknownError if the columns do not fit each other."""
        rows = len(self.payloads)
        try:
            pchannels = list(zip(self.pchannels, self.incarnations, strict=True)) or [(self.pchannel, self.incarnation)]
            origins = [
                Origin(*pchannels[number], position, self.form)
                for position, number in zip(self.frames, self.frame_pchannels or repeat(0, len(self.frames)), strict=True)
            ]
            messages = [
                ImmutableMessage(
                    origins[number],
                    index,
                    tick,
                    self.vchannels[vchannel],
                    payload,
                    kind,
                    properties,
                    TxnContext(txn_id, keepalive) if txn_id else None,
                    BroadcastHeader.from_bytes(header) if header else None,
                )
                for number, index, tick, vchannel, payload, kind, properties, txn_id, keepalive, header in zip(
                    self.frame_numbers or repeat(0, rows),
                    self.indexes,
                    self.ticks,
                    self.vchannel_numbers or repeat(0, rows),
                    self.payloads,
                    self.types or repeat(_INSERT, rows),
                    self.properties or repeat(b"", rows),
                    self.txn_ids or repeat(0, rows),
                    self.keepalives or repeat(0.0, rows),
                    self.broadcasts or repeat(b"", rows),
                    strict=True,
                )
            ]
            attempts = self.attempts or (1,) * rows
            starts = accumulate(self.sizes, initial=0)
            return tuple(
                WorkUnit(first, tuple(messages[start : start + size]), tuple(attempts[start : start + size]))
                for first, size, start in zip(self.firsts, self.sizes, starts, strict=False)
            )
        except (IndexError, ValueError) as error:
            raise UnknownError(f"the work that the server sent has columns that do not fit each other: {error}") from error


def _column(values: Sequence[_V], default: _V) -> tuple[_V, ...]:
    return () if all(value == default for value in values) else tuple(values)


class TakeWork(MemberRequest[tuple[WorkUnit, ...]], frozen=True):
    """Asks for up to `room` bodies, in units of up to `size`; waits up to `wait_ms` until there are any.

    `after` is the number of the last hand-out that the member has got, 0 before the first: later ones did not arrive, and come again.
    """

    saying: ClassVar[str] = "taking messages of {0.key}"
    waits: ClassVar[bool] = True
    sent: ClassVar[type[Any] | None] = SentWork

    after: int
    room: int
    size: int
    wait_ms: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("room", self.room, 1, UNIT_MAX)
        _check("size", self.size, 1, UNIT_MAX)
        _check("wait_ms", self.wait_ms, 0, WAIT_MS_MAX)

    def packed(self, answer: tuple[WorkUnit, ...]) -> SentWork:
        """Returns the work as it is sent."""
        return SentWork.of(answer)

    def unpacked(self, answer: SentWork) -> tuple[WorkUnit, ...]:
        """Returns the work that was sent."""
        return answer.units()


class FailedWork(msgspec.Struct, frozen=True):
    """A failed attempt at a hand-out, which is repeated after `delay_s` (None: the backoff)."""

    number: int
    delay_s: float | None = None


class SettleWork(MemberRequest[int], frozen=True):
    """Settles hand-outs, and answers how many the member still had when the commit with their outputs is durable.

    `number` counts the settlements of the member from 1 on. `handled` are finished, the last `dead` of them as dead letters, and
    `output_counts` are the numbers of `outputs` of each; empty: no outputs. `released` count no attempt. Those `restarted` are
    released too, and begin with attempt 1: their member ends, since they have no attempt left and it writes no dead letters. The last
    `exhausted` of the handled ones, in a row, were out of attempts or undecodable, the last one with the error `exhausted_text`.
    """

    saying: ClassVar[str] = "settling messages of {0.key}"

    number: int
    handled: Sequence[int] = ()
    outputs: tuple[Message, ...] = ()
    output_counts: Sequence[int] = ()
    dead: int = 0
    failed: tuple[FailedWork, ...] = ()
    released: Sequence[int] = ()
    restarted: Sequence[int] = ()
    exhausted: int = 0
    exhausted_text: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.output_counts and (len(self.output_counts) != len(self.handled) or min(self.output_counts) < 0):
            raise InvalidArgumentError(
                f"output_counts has {len(self.output_counts)} numbers for {len(self.handled)} handled messages: give one of at least 0 for "
                "each of them"
            )
        if sum(self.output_counts) != len(self.outputs):
            raise InvalidArgumentError(f"output_counts has {sum(self.output_counts)} outputs in all, and {len(self.outputs)} were sent")


class CursorMember(msgspec.Struct, frozen=True):
    """A member of a shared cursor: its `name` (the first digits of its random bytes), and its `client` (empty in the home's process).

    `process` is its host and pid. `in_hand` messages are with the member. `handled` counts since it joined, at `joined_at`, and `rate` is
    messages a second over the last five seconds. `lease_s` is the time left to its lease, None in the home's process, which needs none.
    """

    name: str
    client: str = ""
    in_hand: int = 0
    handled: int = 0
    rate: float = 0.0
    process: str = ""
    joined_at: datetime | None = None
    lease_s: float | None = None


class SharedWork(msgspec.Struct, frozen=True):
    """The state of a shared cursor at its home; the fields are those of `ConsumerInfo`. `is_caught_up`: see `KeepMember`.

    `trip` counts the trips of its members, and `tripped` is the error of the last one until a member resumes.
    """

    members: tuple[CursorMember, ...]
    pending: int = 0
    lag_messages: int = 0
    lag_bytes: int = 0
    lag_s: float = 0.0
    held_by: str = ""
    is_caught_up: bool = False
    trip: int = 0
    tripped: str = ""


class KeepMember(MemberRequest[SharedWork], frozen=True):
    """Shows that the member lives, waits for `wait_ms`, and answers what there is of the cursor.

    A member always has such a request under way: if its connection ends, and it does not come back within a second, the member is lost.
    With `caught_up_to`, a tick, the answer comes as soon as all messages up to it are finished durably. Otherwise it comes as soon as the
    members trip or resume, and at once if a later trip than `trip` has not arrived. `resumes` ends this trip for all members.
    """

    saying: ClassVar[str] = "keeping a member of {0.key}"
    waits: ClassVar[bool] = True

    wait_ms: int
    caught_up_to: int = 0
    trip: int = 0
    resumes: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("wait_ms", self.wait_ms, 0, WAIT_MS_MAX)


class SharedCursor(msgspec.Struct, frozen=True):
    """A shared cursor at its home: what `work` it has, and the counts of all members since the first one joined.

    The fields are those of `ConsumerInfo`. `tripped_at` is the time of the last trip, until a member resumes.
    """

    key: CursorKey
    fence: int
    work: SharedWork
    handled: int = 0
    failed: int = 0
    retried: int = 0
    dead_lettered: int = 0
    idle_s: float = 0.0
    tripped_at: datetime | None = None


class ListMembers(Request[tuple[SharedCursor, ...]], frozen=True):
    """Asks for the shared cursors that have members, with the members."""

    saying: ClassVar[str] = "listing the members of shared cursors"
    where: ClassVar[Where] = Where.EACH_PCHANNEL


class LeaveCursor(MemberRequest[None], frozen=True):
    """Ends the membership; what the member has is released, which counts no attempt. A member that has gone already is fine."""

    saying: ClassVar[str] = "leaving the consumers of {0.key}"


def _check(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidArgumentError(f"{name}={value} is out of range: {least} to {most}")
