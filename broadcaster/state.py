"""BroadcastState: the state of a broadcast; and EDGES: all its transitions. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

__all__ = ["EDGES", "BroadcastState"]


class BroadcastState(enum.IntEnum):
    """The state of a broadcast. The numbers 1 to 3 are the seeds'."""

    PENDING = 1
    """Copies are missing, and are being written."""
    DONE = 2
    """Every copy is durable, and acknowledged if required."""
    WAIT_ACK = 3
    """Every copy is durable; acks are missing."""
    STUCK = 6
    """The missing copies were refused permanently: recreate those vchannels, or abort the broadcast."""
    ABORTING = 7
    """The broadcast was aborted; the ABORT_BROADCAST messages to the vchannels that have a copy are being written."""
    ABORTED = 8
    """The broadcast was aborted, and every vchannel that has a copy got its ABORT_BROADCAST."""
    WITHDRAWN = 9
    """Every vchannel refused the broadcast before any part of it was in a log."""


EDGES: Final[Mapping[BroadcastState, frozenset[BroadcastState]]] = {
    BroadcastState.PENDING: frozenset(
        (
            BroadcastState.STUCK,
            BroadcastState.WAIT_ACK,
            BroadcastState.DONE,
            BroadcastState.ABORTING,
            BroadcastState.WITHDRAWN,
        )
    ),
    BroadcastState.STUCK: frozenset(
        (BroadcastState.PENDING, BroadcastState.WAIT_ACK, BroadcastState.DONE, BroadcastState.ABORTING)
    ),
    BroadcastState.WAIT_ACK: frozenset((BroadcastState.DONE, BroadcastState.ABORTING)),
    BroadcastState.ABORTING: frozenset((BroadcastState.ABORTED,)),
    BroadcastState.DONE: frozenset(),
    BroadcastState.ABORTED: frozenset(),
    BroadcastState.WITHDRAWN: frozenset(),
}
"""The transitions. A task that every vchannel acknowledges while copies are still missing goes from PENDING to DONE."""
