"""History: what the clients of a run asked for, when, and what came of it.

Times are those of the simulation, which all clients share: an operation takes effect somewhere between its `began_s` and its `ended_s`.
"""

from __future__ import annotations

from enum import Enum

import msgspec


class Kind(Enum):
    """What an operation is."""

    APPEND = "append"
    KEYED = "keyed append"
    TXN = "transaction"
    BROADCAST = "broadcast"
    MVCC = "MVCC answer"
    READ = "read"
    SCHEDULED = "scheduled append"


class Outcome(Enum):
    """What became of an operation."""

    OPEN = "no answer yet"
    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Operation(msgspec.Struct):
    """One operation. `payloads` are what it writes, or what a read returned; `ticks` go by vchannel."""

    kind: Kind
    client: str
    vchannels: tuple[str, ...]
    payloads: tuple[bytes, ...]
    began_s: float
    ended_s: float = float("inf")
    outcome: Outcome = Outcome.OPEN
    ticks: dict[str, int] = {}
    error: str = ""
    due_tick: int = 0
    """The first tick that a message with a time of delivery may have."""

    def __str__(self) -> str:
        shown = b" ".join(payload[:40] for payload in self.payloads[:3]).decode()
        ended = "" if self.outcome is Outcome.OPEN else f" to {self.ended_s - 1000:.4f}"
        ticks = f", ticks {self.ticks}" if self.ticks else ""
        return (
            f"{self.kind.value} {shown!r} on {','.join(self.vchannels)} by {self.client}, from {self.began_s - 1000:.4f}{ended}: "
            f"{self.outcome.value}{ticks}{self.error and f' ({self.error})'}"
        )


class Follower(msgspec.Struct):
    """What one reader saw of a vchannel, with every resumption: payloads with their ticks."""

    client: str
    vchannel: str
    seen: list[tuple[bytes, int]] = []
    resumed: int = 0


class History(msgspec.Struct):
    """All operations of a run in the order in which they began, and its readers."""

    operations: list[Operation] = []
    followers: list[Follower] = []
    counts: dict[str, int] = {}
    faults: list[str] = []
    """What clients found wrong at once."""

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


class LoggedEvent(msgspec.Struct, frozen=True):
    """An event in the log of a pchannel, as it is at the end of a run."""

    vchannel: str
    pchannel: str
    tick: int
    payload: bytes
