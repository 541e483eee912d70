"""WatchPosition: how far one watch has got, whatever stream it reads from. Pure.

Owns: the revision at which the watch goes on, and what is held back of a revision whose events come in several fragments. Promises: each
event is given once, in order, all events of a revision together; after a broken stream it goes on behind what was given, never behind
what the *store* has reached, for a stream says the store's revision before it has replayed anything. Knows of data that went back by a
witness: an event that was given must still be where it was.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from wal.kv.watch import WatchEvent

__all__ = ["WatchPosition", "Witness"]


class Witness(msgspec.Struct, frozen=True):
    """A key that was put at `revision`: as long as that is not compacted, the store can tell."""

    key: bytes
    revision: int


class WatchPosition:
    """Begins at the events of revision `start` (1 or more)."""

    def __init__(self, start: int) -> None:
        self.next_revision: int = start
        """The first revision whose events have not been given."""
        self.witness: Witness | None = None
        self._held: list[WatchEvent] = []

    def begin_stream(self) -> None:
        """A new stream starts at `next_revision`: what was held back comes again."""
        self._held.clear()

    def take(self, events: Iterable[WatchEvent], *, more: bool) -> list[list[WatchEvent]]:
        """The events that may be given now, one list a revision. `more`: the answer goes on in another fragment."""
        groups: list[list[WatchEvent]] = []
        for event in [*self._held, *events]:
            if event.revision < self.next_revision:
                continue  # given before
            if groups and groups[-1][0].revision == event.revision:
                groups[-1].append(event)
            else:
                groups.append([event])
        self._held = groups.pop() if more and groups else []
        if groups:
            self.next_revision = groups[-1][0].revision + 1
        return groups

    def progressed(self, revision: int) -> None:
        """The store said that everything up to `revision` has been sent."""
        if not self._held:
            self.next_revision = max(self.next_revision, revision + 1)

    def saw_put(self, key: bytes, revision: int) -> None:
        """An event that was given is a witness from now on."""
        self.witness = Witness(key, revision)

    def gone_back(self, store_revision: int) -> bool:
        """Whether a store whose newest revision this is cannot be the one whose events were given."""
        return store_revision + 1 < self.next_revision
