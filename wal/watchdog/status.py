"""The status of a component."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Status", "checked_status"]


class Status(IntEnum):
    """The status that a component reports. The seed names the type but not its values; these are the values of component states."""

    INITIALIZING = 0
    HEALTHY = 1
    ABNORMAL = 2
    STAND_BY = 3
    STOPPING = 4
    """The component is shutting down, so it may stop sending heartbeats."""


def checked_status(status: object, what: str) -> Status:
    """Returns the status; raises TypeError, which begins with `what`, for anything that is not one."""
    if not isinstance(status, Status):
        raise TypeError(f"{what} is {status!r}: it must be a wal.watchdog.Status")
    return status
