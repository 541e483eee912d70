"""Answers: the errors that a broadcaster gives, in one place, each saying what to do."""

from __future__ import annotations

from broadcaster.lock_table import Conflict
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
from wal.message import BroadcastHeader

__all__ = ["aborted", "delayed", "held", "held_twice", "left", "not_abortable", "stuck", "unsaved", "unsettled"]


def held(conflict: Conflict, holder: int) -> ResourceAcquiredError:
    """Keys are not to be had now; `holder` is the id of a broadcast."""
    names = ", ".join(f"{key.domain}:{key.key}" for key in conflict.keys)
    return ResourceAcquiredError(
        f"resource keys {names} are held by broadcast {holder} until it is acknowledged: try again later, or append with wait=True",
        keys=conflict.keys,
        holder=holder,
    )


def held_twice(conflict: Conflict, holder: int, other: int) -> CorruptionError:
    """What recovery found cannot be."""
    return CorruptionError(
        f"broadcasts {holder} and {other} both hold the resource keys {conflict.keys}",
        expected="at most one exclusive holder of a key",
    )


def stuck(task: Task) -> WALError:
    """Some vchannels cannot take their copy, others have it; or a write failed, and nobody knows what of it is in the log."""
    missing, cause = task.missing_appends, task.last_error
    error: WALError
    if task.uncertain:
        text = (
            f"broadcast {task.broadcast_id} may or may not be in the log ({missing[0]!r}: {cause}): open the log again, which completes "
            "it if anything of it is durable; tasks() lists it then until it is acknowledged"
        )
        error = (
            StorageError(text, outcome_unknown=True) if isinstance(cause, StorageError) else UnknownOutcomeError(text)
        )
    else:
        remedy = "make the vchannel" if isinstance(cause, ChannelNotExistError) else "open the log"
        error = UnrecoverableError(
            f"broadcast {task.broadcast_id} is stuck: {len(missing)} of its vchannels cannot take their copy ({missing[0]!r}: "
            f"{cause}); it keeps its resource keys: {remedy} again, or abort({task.broadcast_id}, reason)"
        )
    error.__cause__ = cause
    return error


def delayed(task: Task) -> UnknownOutcomeError:
    """Some logs have no room for their copies, others have theirs."""
    missing, cause = task.missing_appends, task.last_error
    error = UnknownOutcomeError(
        f"broadcast {task.broadcast_id} is in the log in part: {len(missing)} of its vchannels have no copy yet, because there is no room "
        f"({missing[0]!r}: {cause}); make room, and it is completed: do not repeat it, tasks() lists it until then"
    )
    error.__cause__ = cause
    return error


def unsettled(task: Task, cause: WALError) -> UnknownOutcomeError:
    """The metadata has no room for the end of a broadcast."""
    error = UnknownOutcomeError(
        f"how broadcast {task.broadcast_id} ended ({task.state.name}) could not be saved in the metadata: {cause}; make room, and it is: "
        "do not repeat it, tasks() lists it until then"
    )
    error.__cause__ = cause
    return error


def aborted(task: Task) -> UnrecoverableError:
    """To whoever waited for its copies."""
    return UnrecoverableError(f"broadcast {task.broadcast_id} was aborted: {task.reason}")


def not_abortable(broadcast_id: int, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"broadcast {broadcast_id} {why}: tasks() lists those that can be aborted")


def unsaved(header: BroadcastHeader, cause: InvalidArgumentError) -> InvalidArgumentError:
    """The metadata does not take the record of the broadcast, so that nothing was written."""
    error = InvalidArgumentError(
        f"a broadcast to {len(header.vchannels)} vchannels on several pchannels is recorded in the metadata before its first copy, with "
        f"its payload and all names, and the metadata refuses that record: {cause}; send a smaller payload, or several broadcasts to "
        "fewer vchannels each"
    )
    error.__cause__ = cause
    return error


def left(task: Task, *, intent: bool) -> WALError:
    """The log closes before all copies are in; `intent`: something durable says that they are to be."""
    if intent:
        return UnknownOutcomeError(
            f"the log was closed before broadcast {task.broadcast_id} was complete: the next opening completes it, do not repeat it"
        )
    return ClosedError(
        "the log was closed before anything of this broadcast was in it: open it again and repeat the call"
    )
