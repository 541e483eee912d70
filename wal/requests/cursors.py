"""Requests about cursors: load, save, list and delete them, and what a consumer asks of the home of its cursor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec

from wal.channels.vchannels import NAMES_MAX, check_vchannel
from wal.errors import InvalidArgumentError
from wal.message import LogPosition
from wal.message.matching import check_pattern
from wal.read.cursors.cursor import Cursor, CursorInfo, CursorKey, check_cursor
from wal.requests.request import Answer, Request, Where
from wal.requests.rights import Right

LEASE_MS: Final = (100, 600_000)
"""The shortest and the longest lease of a consumer, in milliseconds."""
HOLDER_BYTES_MAX: Final = 64


def check_cursor_key(key: CursorKey) -> CursorKey:
    """Returns the key of a cursor.

    Raises InvalidArgumentError for a bad name or pattern, and unless there is either a pattern or vchannels, sorted, each once.
    """
    check_cursor(key.name)
    if key.pattern:
        check_pattern(key.pattern)
        if key.vchannels:
            raise InvalidArgumentError(f"{key} has a pattern and {len(key.vchannels)} vchannels: give one of them")
        return key
    if not key.vchannels:
        raise InvalidArgumentError(f"cursor {key.name!r} has no vchannels: name at least one")
    if len(key.vchannels) > NAMES_MAX:
        raise InvalidArgumentError(
            f"the request names {len(key.vchannels)} vchannels, and one request may name {NAMES_MAX}: make several requests"
        )
    for name in key.vchannels:
        check_vchannel(name)
    if CursorKey.of(key.name, key.vchannels) != key:
        raise InvalidArgumentError(f"{key} names its vchannels in another order, or twice: name them sorted, each once")
    return key


class OneCursorRequest(Request[Answer], frozen=True):
    """A request about one cursor, for the node of this pchannel."""

    where: ClassVar[Where] = Where.PCHANNEL

    key: CursorKey
    pchannel: str

    def __post_init__(self) -> None:
        check_cursor_key(self.key)

    @property
    def target(self) -> str:
        return self.pchannel


class HomeRequest(OneCursorRequest[Answer], frozen=True):
    """A request of a consumer to the home of its cursor. Repeating such a request does no harm."""

    right: ClassVar[Right] = Right.WRITE
    changes: ClassVar[bool] = True
    writes: ClassVar[bool] = True


class LoadCursor(OneCursorRequest[Cursor | None], frozen=True):
    """Asks for the cursor to resume from on this pchannel, None when nothing is saved. TruncatedError for a stale one."""

    saying: ClassVar[str] = "loading {0.key}"


class SaveCursor(Request[bool], frozen=True):
    """Stores a reader's position durably, and answers whether it was stored.

    With `forward_only` a saved cursor at the same log position or later stays. A cursor that consumers or transactions move needs the
    right to write. `saved_at`, `stale`, `moved_at` and `moving` of the cursor are those of the node. `pchannel` is the one whose node has
    the cursor, empty for that of its position. TruncatedError if the log no longer
    has the events that the reader needs; InvalidArgumentError for a cursor of another log, or above the durable end.
    """

    saying: ClassVar[str] = "saving {0.cursor.key}"
    where: ClassVar[Where] = Where.PCHANNEL
    changes: ClassVar[bool] = True
    writes: ClassVar[bool] = True

    cursor: Cursor
    forward_only: bool = False
    pchannel: str = ""

    def __post_init__(self) -> None:
        check_saved(self.cursor)

    @property
    def target(self) -> str:
        return self.pchannel or self.cursor.pchannel


def check_saved(cursor: Cursor) -> None:
    """Raises InvalidArgumentError for a bad key, and unless the cursor has one incarnation for each of its vchannels."""
    check_cursor_key(cursor.key)
    vchannels = cursor.key.vchannels
    if len(cursor.incarnations) != len(vchannels):
        raise InvalidArgumentError(
            f"{cursor.key} has {len(cursor.incarnations)} incarnations: one for each of its {len(vchannels)} vchannels is needed"
        )


class CursorSave(msgspec.Struct, frozen=True):
    """The save of a cursor by a transaction. Without a `cursor` the position stays.

    A consumer's has its `fence`, the `number` of its commit and its state; one without a consumer is refused unless the saved cursor has
    passed the event `after`. Its checks are those of the node.
    """

    key: CursorKey
    cursor: Cursor | None = None
    fence: int = 0
    number: int = 0
    state: bytes = b""
    after: LogPosition | None = None


class ListCursors(Request[tuple[CursorInfo, ...]], frozen=True):
    """Asks for all cursors, by name and vchannels, without those of dropped vchannels.

    In a cluster, nodes without the home of the cursor of a pattern list what it holds back there, with `saved_at` 0.
    """

    saying: ClassVar[str] = "listing the cursors"
    where: ClassVar[Where] = Where.EACH_PCHANNEL

    def join(self, outcomes: Sequence[Any]) -> tuple[CursorInfo, ...]:
        listed = super().join(outcomes)
        infos = {(info.name, info.vchannels, info.pattern): info for info in listed if info.saved_at or not info.pattern}
        return tuple([_whole(infos[key], listed) if infos[key].pattern else infos[key] for key in sorted(infos)])


def _whole(info: CursorInfo, listed: Sequence[CursorInfo]) -> CursorInfo:
    """Returns the cursor of a pattern with what it holds back on all pchannels, from the answers of their nodes."""
    parts = [each for each in listed if (each.name, each.pattern) == (info.name, info.pattern)]
    lags = [each.lag_s for each in parts if each.lag_s is not None]
    return msgspec.structs.replace(
        info,
        lag_bytes=sum([each.lag_bytes for each in parts]),
        held_bytes=sum([each.held_bytes for each in parts]),
        lag_s=max(lags, default=None),
    )


class DeleteCursors(Request[None], frozen=True):
    """Deletes the cursor of this name and set, or (None) all of this name, durably; a missing cursor is fine."""

    saying: ClassVar[str] = "deleting cursor {0.name!r}"
    where: ClassVar[Where] = Where.EACH_PCHANNEL
    right: ClassVar[Right] = Right.ADMIN
    changes: ClassVar[bool] = True
    writes: ClassVar[bool] = True

    name: str
    vchannels: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_cursor(self.name)
        if self.vchannels is not None:
            check_cursor_key(CursorKey(self.name, self.vchannels))

    def join(self, outcomes: Sequence[Any]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome


class NameCursorHome(HomeRequest[str], frozen=True):
    """Asks for the home of a cursor, which becomes this pchannel, durably, if the cursor has none.

    InvalidArgumentError if a cursor of this name is saved for other vchannels and none for these.
    """

    saying: ClassVar[str] = "looking for the home of {0.key}"


class CursorClaim(msgspec.Struct, frozen=True):
    """The result of a consumer's claim of a cursor: its number `fence`, the saved cursor (None: nothing is saved), and its state."""

    fence: int
    position: Cursor | None
    state: bytes


class ClaimCursor(HomeRequest[CursorClaim], frozen=True):
    """Gives a cursor to a consumer, `holder`, at its home, for `lease_ms` from each claim and renewal on, by the clock of the node.

    ResourceAcquiredError while another consumer has it. Repeating its own claim, whose answer was lost, gives it the cursor again.
    """

    saying: ClassVar[str] = "claiming {0.key}"

    holder: bytes
    lease_ms: int

    def __post_init__(self) -> None:
        super().__post_init__()
        shortest, longest = LEASE_MS
        if not shortest <= self.lease_ms <= longest:
            raise InvalidArgumentError(f"lease_ms={self.lease_ms} is out of range: {shortest} to {longest}")
        if not 0 < len(self.holder) <= HOLDER_BYTES_MAX:
            raise InvalidArgumentError(f"holder has {len(self.holder)} bytes: 1 to {HOLDER_BYTES_MAX}, for example 16 random ones")


class KeepCursor(HomeRequest[None], frozen=True):
    """Renews the claim of the consumer with the number `fence`, or ends it with `release`. ResourceAcquiredError if another one has it."""

    saying: ClassVar[str] = "keeping {0.key}"

    fence: int
    holder: bytes
    release: bool = False

    @property
    def doing(self) -> str:
        return f"releasing {self.key}" if self.release else super().doing
