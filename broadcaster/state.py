"""BroadcastState: where a broadcast stands, and EDGES, which is all there is. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

__all__ = ["EDGES", "BroadcastState"]


class BroadcastState(enum.IntEnum):
    """Where a broadcast stands. Numbers 1-3 are the seeds'."""

    PENDING = 1
    """Copies are missing, and on their way."""
    DONE = 2
    """Every copy is in, and acknowledged if it has to be."""
    WAIT_ACK = 3
    """Every copy is in; acks are missing."""
    STUCK = 6
    """What is missing was refused for good: make those vchannels again, or abort the broadcast."""
    ABORTING = 7
    """Given up; the vchannels that have a copy are being told."""
    ABORTED = 8
    """Given up, and every vchannel that has a copy was told."""
    WITHDRAWN = 9
    """Refused by every vchannel before anything was in a log."""


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
"""The transitions. A task that is acknowledged everywhere while copies are still missing goes from PENDING to DONE."""
