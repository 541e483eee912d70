"""The status of a component."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Status"]


class Status(IntEnum):
    """What a component says of itself. The seed names the type and not its values; these are those of component states."""

    INITIALIZING = 0
    HEALTHY = 1
    ABNORMAL = 2
    STAND_BY = 3
    STOPPING = 4
    """It is ending in order: its silence is expected."""
