"""Operations: what callers tell a vchannel actor, and what it answers.

Each operation carries the future of its caller. A future that was cancelled is left alone: the operation goes on, its caller just
does not hear of it.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import msgspec

from wal.frame import CopyNames, Record
from wal.message import AppendResult, BroadcastHeader, CopyOutcomes, ForgottenResult, TxnContext
from wal.pchannel.idempotency import Claim
from wal.pchannel.idempotency.keys import Key

if TYPE_CHECKING:
    from wal.pchannel.vchannel import VChannel

__all__ = [
    "Append",
    "AppendCopies",
    "Atomic",
    "Begin",
    "Bulk",
    "Commit",
    "CopyTargets",
    "Drop",
    "ForgetProducer",
    "KeyedAppend",
    "KeyedCommit",
    "OrderedAppend",
    "Rollback",
    "Settles",
    "fail_future",
]

_T_contra = TypeVar("_T_contra", contravariant=True)


class Settles(Protocol[_T_contra]):
    """A caller's future, as far as an operation uses it: one that takes more kinds of results can stand for one that takes fewer."""

    def done(self) -> bool: ...

    def cancelled(self) -> bool: ...

    def set_result(self, result: _T_contra, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...

    def add_done_callback(self, fn: Callable[[Any], object], /) -> None: ...


class Append(Record, gc=False):
    """A plain message. `size` is what it counts in flight."""

    future: Settles[AppendResult] = cast("Settles[AppendResult]", None)
    size: int = 0


class OrderedAppend(Append, gc=False):
    """A message that needs more than its turn: it waits for a barrier, or it is exclusive."""

    barrier: int = 0
    exclusive: bool = False


class KeyedAppend(OrderedAppend, gc=False):
    """A message with an idempotency key, which also stands in its ext; `claim` from its turn on."""

    future: Settles[AppendResult | ForgottenResult] = cast("Settles[AppendResult | ForgottenResult]", None)
    key: Key = ""
    claim: Claim | None = None


class Bulk(msgspec.Struct, gc=False):
    """Plain messages of one vchannel that share a frame and a future."""

    records: list[Record]
    size: int
    future: asyncio.Future[list[AppendResult]]


class Atomic(msgspec.Struct, gc=False):
    """A transaction that is complete when it is told: `counted` is its size as the bounds count it."""

    records: list[Record]
    counted: int
    size: int
    barrier: int
    future: Settles[AppendResult]


class Begin(msgspec.Struct, gc=False):
    """Opens a transaction over these vchannels (all of this pchannel)."""

    vchannels: tuple[str, ...]
    keepalive: float
    future: asyncio.Future[TxnContext]
    key_bytes: int = 0
    """What its idempotency key will take in each commit row."""


class Commit(msgspec.Struct, gc=False):
    txn_id: int
    future: Settles[AppendResult]


class KeyedCommit(Commit, gc=False):
    """A commit with an idempotency key."""

    future: Settles[AppendResult | ForgottenResult]
    key: Key = ""


class Rollback(msgspec.Struct, gc=False):
    txn_id: int
    future: asyncio.Future[None]


class CopyTargets(msgspec.Struct, frozen=True, eq=False):
    """Vchannels of one pchannel, as they were when `endings` of its vchannels had ended, and their names as frames carry them."""

    vchannels: tuple[VChannel, ...]
    names: CopyNames
    endings: int


class AppendCopies(msgspec.Struct, gc=False):
    """Copies of a broadcast for vchannels of this pchannel, in the order of the header; told to the pchannel itself.

    The record is what they share. `aborts`: they say that the broadcast was aborted. The future's outcomes are in the order of `targets`.
    `taken`: it is in a frame to come, or answered, so that its room is given back from there.
    """

    header: BroadcastHeader
    targets: CopyTargets
    record: Record
    aborts: bool
    size: int
    future: asyncio.Future[CopyOutcomes]
    taken: bool = False


class Drop(msgspec.Struct, gc=False):
    """Ends the vchannel: its transactions, its readers, and itself."""

    future: asyncio.Future[None]


class ForgetProducer(msgspec.Struct, gc=False):
    """Forgets a producer on the whole pchannel; told to any of its vchannels, so that it has a place in the order of the calls."""

    name: str
    future: asyncio.Future[None]


def fail_future(future: Settles[Any], error: BaseException) -> None:
    """Gives the caller an error of its own (callers do not share tracebacks), if it still waits."""
    if not future.done():
        own = copy.copy(error)
        own.__cause__ = error.__cause__
        future.set_exception(own)
