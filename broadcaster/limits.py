"""The bounds of a broadcaster, and what it says of itself."""

from __future__ import annotations

from typing import Final

import msgspec

from broadcaster.tombstones import AGE_MAX_MS, COUNT_MAX
from wal.errors import InvalidArgumentError

__all__ = ["BroadcasterLimits", "BroadcasterStatistics"]

VCHANNELS_LIMIT: Final = 65_536
"""One operation of the KV removes all ack chunks of a broadcast: so many vchannels are 64 of its 128."""


class BroadcasterLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a broadcaster; over them an append is a WouldBlockError. The first two are settings of the log.

    `bytes_max`: payloads, properties and names of broadcasts that wait for keys or copies. `done_marks_max`: broadcasts that are
    over and that no checkpoint has left behind yet.
    """

    tasks_max: int = 65_536
    vchannels_max: int = 16_384
    bytes_max: int = 64 * 1024 * 1024
    done_marks_max: int = 65_536
    tombstones_max: int = COUNT_MAX
    tombstone_age_max_s: float = AGE_MAX_MS / 1000

    def __post_init__(self) -> None:
        if self.vchannels_max > VCHANNELS_LIMIT:
            raise InvalidArgumentError(
                f"broadcast_vchannels_max={self.vchannels_max} is too large: at most {VCHANNELS_LIMIT}, since the end of a "
                "broadcast is one operation of the KV"
            )


class BroadcasterStatistics(msgspec.Struct, frozen=True):
    """One moment. `waiting`: for keys; `frames`: under way; `done_marks`: not left behind by a checkpoint yet."""

    tasks: int
    waiting: int
    frames: int
    bytes_held: int
    tombstones: int
    done_marks: int
    appended: int
    finished: int
    saves: int
