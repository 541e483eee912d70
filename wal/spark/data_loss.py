"""Data loss: what a read was to have and the log does not hold any more, told apart from what was only given back behind it.

Owns: when truncation has passed a place with events in it, and the words for it. With failOnDataLoss=true that is an error, with false a
`DataLossWarning` and the read goes on at the earliest event: never silently.
"""

from __future__ import annotations

import warnings

from wal.errors import TruncatedError
from wal.spark.frame_source import LogMoment
from wal.spark.offsets import Place

__all__ = ["DataLossWarning", "SnapshotWarning", "is_lost", "start_of", "was_dropped"]


class DataLossWarning(UserWarning):
    """Events that a query was to read are gone, and it goes on without them, as failOnDataLoss=false says."""


class SnapshotWarning(UserWarning):
    """A snapshot leaves out rows that are in the log, because nobody promises its tick."""


def was_dropped(name: str) -> str:
    """What is said of a vchannel that a stream names and that is another one now."""
    return (
        f"vchannel {name!r}, which this query names, was dropped: what it had not read of it is gone. With the option failOnDataLoss=false "
        "it goes on, with a new vchannel of that name if there is one"
    )


def is_lost(moment: LogMoment, start: Place) -> bool:
    """Whether events at or above this place were truncated."""
    if start >= moment.earliest:
        return False
    newest_gone = moment.last_truncated
    return newest_gone is None or newest_gone >= start


def start_of(moment: LogMoment, start: Place, *, fail_on_data_loss: bool) -> Place:
    """Where to read from in place of `start`: there, or at the earliest event behind it. TruncatedError when that would lose events."""
    if start >= moment.earliest:
        return start
    if is_lost(moment, start):
        origin, earliest = moment.origin, moment.earliest
        first = origin.message_id(0)
        gone = (
            f"events of pchannel {origin.pchannel!r} from position {start[0]}:{start[1]} to {earliest[0]}:{earliest[1]}"
        )
        if fail_on_data_loss:
            raise TruncatedError(
                f"{gone} were truncated before they were read: they are lost to this query. With the option failOnDataLoss=false it "
                "goes on at the earliest event; a cursor at what it has read keeps them from being truncated",
                earliest=type(first)(first.pchannel, first.incarnation, *earliest, first.form),
            )
        warnings.warn(
            f"{gone} were truncated before they were read; going on without them", DataLossWarning, stacklevel=2
        )
    return moment.earliest
