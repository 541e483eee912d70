"""Lease: the right of this process to write its pchannels and to answer for them.

It is asked wherever an answer leaves: before the callers of a frame get their results, before the promised tick moves, before a request
finds its pchannel, before a page or a tick is sent to a reader. It is asked there and not awaited as an event, since a process that was
stopped for a while would answer before the event reached it. A pchannel whose lease is lost fails for good with a SessionLostError: what
was in flight has an unknown outcome, and nothing is acknowledged, answered or delivered any more.
"""

from __future__ import annotations

from typing import Final, Protocol

from wal.errors import SessionLostError


class Lease(Protocol):
    """The lease as a pchannel uses it. `alive` only reads memory and a clock: it is read for every frame."""

    @property
    def alive(self) -> bool:
        """Whether this process may still write and answer; once False, always False."""


class _Own:
    """The lease on a log that no other process can take over without being seen: the fence of the backend is enough."""

    alive: Final = True


OWN: Final[Lease] = _Own()
"""The lease of a local log."""


def lost_lease(pchannel: str) -> SessionLostError:
    """Returns the error of a pchannel whose lease is lost."""
    return SessionLostError(
        f"the lease of this process on pchannel {pchannel} is lost, and another one may write it: nothing is answered here any more; ask "
        "AssignmentDiscover where it is"
    )
