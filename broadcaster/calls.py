"""The calls to a broadcaster, each with the future of its caller, and the errors that they can get. Each error has its remedy.

An append that still waits for its keys, and a watch, end when their callers are cancelled; a broadcast that has begun continues.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from broadcaster.lock_table import Conflict
from broadcaster.message import BroadcastAppendResult, BroadcastMessage, BroadcastTask
from broadcaster.task import Task
from wal.errors import (
    ChannelNotExistError,
    ClosedError,
    CorruptionError,
    InvalidArgumentError,
    ResourceAcquiredError,
    StorageError,
    UnknownOutcomeError,
    UnrecoverableError,
    WALError,
)
from wal.message import BroadcastHeader, ResourceKey


class AppendCall(msgspec.Struct, eq=False):
    """Requests a broadcast of this message. `owner` is its number in the lock table, once it has one.

    `broadcast_id` was fresh when the call arrived; a call that `waited` for its keys takes a newer id when it begins, if it can.
    """

    message: BroadcastMessage
    wait: bool
    reply: asyncio.Future[BroadcastAppendResult]
    broadcast_id: int
    size: int = 0
    owner: int = 0
    waited: bool = False
    withdrawn: bool = False

    def asked(self, reply: asyncio.Future[BroadcastAppendResult]) -> AppendCall:
        """Sets the reply of an ask through the inbox, and returns this call."""
        self.reply = reply
        return self


class AckCall(msgspec.Struct, eq=False):
    """Requests that a vchannel's acknowledgement is saved."""

    broadcast_id: int
    vchannel: str
    reply: asyncio.Future[None]


class AbortCall(msgspec.Struct, eq=False):
    """Requests that a broadcast is aborted."""

    broadcast_id: int
    reason: str
    reply: asyncio.Future[None]


class WatchCall(msgspec.Struct, eq=False):
    """Waits until each broadcast that has the key now is acknowledged by one vchannel (or by all); `owners` has the remaining ones."""

    key: ResourceKey
    everywhere: bool
    reply: asyncio.Future[None]
    owners: set[int] = set()


class TasksCall(msgspec.Struct, eq=False):
    """Requests the running broadcasts."""

    reply: asyncio.Future[list[BroadcastTask]]


class WithdrawCall(msgspec.Struct, eq=False):
    """Reports that the caller of this call was cancelled."""

    call: AppendCall | WatchCall


def settle(*replies: asyncio.Future[None]) -> None:
    """Answers calls that have no result, unless their callers are gone."""
    for reply in replies:
        if not reply.done():
            reply.set_result(None)


def refuse(reply: asyncio.Future[Any], error: Exception) -> None:
    """Answers a call with an error, unless its caller is gone."""
    if not reply.done():
        reply.set_exception(error)


def held(conflict: Conflict, holder: int) -> ResourceAcquiredError:
    """Returns the error of an append whose keys belong to the broadcast `holder`."""
    names = ", ".join(f"{key.domain}:{key.key}" for key in conflict.keys)
    return ResourceAcquiredError(
        f"resource keys {names} are held by broadcast {holder} until it is acknowledged: try again later, or append with wait=True",
        keys=conflict.keys,
        holder=holder,
    )


def held_twice(conflict: Conflict, holder: int, other: int) -> CorruptionError:
    """Returns the error of a recovery that found two broadcasts which cannot both have the same keys."""
    return CorruptionError(
        f"broadcasts {holder} and {other} both hold the resource keys {conflict.keys}", expected="at most one exclusive holder of a key"
    )


def stuck(task: Task) -> WALError:
    """Returns the error of an append if some vchannels cannot take their copy, or if a write has an unknown outcome."""
    missing, cause = task.missing_appends, task.last_error
    error: WALError
    if task.uncertain:
        text = (
            f"broadcast {task.broadcast_id} may or may not be in the log ({missing[0]!r}: {cause}): open the log again, which completes "
            "the broadcast if any copy is durable; tasks() lists it then until it is acknowledged"
        )
        error = StorageError(text, outcome_unknown=True) if isinstance(cause, StorageError) else UnknownOutcomeError(text)
    else:
        remedy = "create the vchannel" if isinstance(cause, ChannelNotExistError) else "open the log"
        error = UnrecoverableError(
            f"broadcast {task.broadcast_id} is stuck: {len(missing)} of its vchannels cannot take their copy ({missing[0]!r}: "
            f"{cause}); it keeps its resource keys: {remedy} again, or abort({task.broadcast_id}, reason)"
        )
    error.__cause__ = cause
    return error


def delayed(task: Task) -> UnknownOutcomeError:
    """Returns the error of an append whose copies are durable in some logs while others have no room for theirs."""
    missing, cause = task.missing_appends, task.last_error
    error = UnknownOutcomeError(
        f"broadcast {task.broadcast_id} is in the log in part: {len(missing)} of its vchannels have no copy yet, because there is no room "
        f"({missing[0]!r}: {cause}); make room, and it is completed: do not repeat it, tasks() lists it until then"
    )
    error.__cause__ = cause
    return error


def unsettled(task: Task, cause: WALError) -> UnknownOutcomeError:
    """Returns the error of an append if the metadata has no room for the end of its broadcast."""
    error = UnknownOutcomeError(
        f"the end of broadcast {task.broadcast_id} ({task.state.name}) could not be saved in the metadata: {cause}; make room, and it "
        "is saved: do not repeat the broadcast, tasks() lists it until then"
    )
    error.__cause__ = cause
    return error


def aborted(task: Task) -> UnrecoverableError:
    """Returns the error of an append whose broadcast was aborted while the caller waited."""
    return UnrecoverableError(f"broadcast {task.broadcast_id} was aborted: {task.reason}")


def not_abortable(broadcast_id: int, why: str) -> InvalidArgumentError:
    """Returns the error of an abort that comes too late, or names a broadcast that is not in this log."""
    return InvalidArgumentError(f"broadcast {broadcast_id} {why}: tasks() lists those that can be aborted")


def unsaved(header: BroadcastHeader, cause: InvalidArgumentError) -> InvalidArgumentError:
    """Returns the error of an append whose record the metadata refuses; no part of the broadcast was written."""
    error = InvalidArgumentError(
        f"a broadcast to {len(header.vchannels)} vchannels on several pchannels is recorded in the metadata before its first copy, with "
        f"its payload and all names, and the metadata refuses that record: {cause}; send a smaller payload, or several broadcasts to "
        "fewer vchannels each"
    )
    error.__cause__ = cause
    return error


def closed_early(task: Task, *, intent: bool) -> WALError:
    """Returns the error of an append that the closing of the log cuts short. `intent`: a durable record or copy requires the other
    copies.
    """
    if intent:
        return UnknownOutcomeError(
            f"the log was closed before broadcast {task.broadcast_id} was complete: the next opening completes it, do not repeat it"
        )
    return ClosedError("the log was closed before anything of this broadcast was in it: open it again and repeat the call")
