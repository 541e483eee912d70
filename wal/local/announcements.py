"""Announcements: the lines that a log writes when it has been opened and when it has been closed.

Owns their texts, which docs/reference/logging.md shows, and the counts in them. It decides nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from wal.storage.base import LogState

_log: Final = logging.getLogger("wal")


class Announcements:
    """The announcements of one log, created when its opening begins. `monotonic` is a clock in seconds."""

    def __init__(self, place: str, monotonic: Callable[[], float]) -> None:
        self.is_new = False
        """Whether this opening created the log."""
        self._place = place
        self._is_open = False
        self._monotonic = monotonic
        self._began = monotonic()
        self._terms: list[int] = []
        self._clean = True
        self._torn_bytes = 0
        self._replayed = 0

    def recovered(self, term: int, state: LogState, *, replayed: int) -> None:
        """Counts a pchannel that was opened in this term, after replaying `replayed` events that followed its last checkpoint."""
        self._terms.append(term)
        self._clean = self._clean and state.clean
        self._torn_bytes += state.torn_bytes
        self._replayed += replayed

    def opened(self) -> None:
        """Writes the line of a log that was opened."""
        self._is_open = True
        before = "new" if self.is_new else f"recovered, {'closed' if self._clean else 'not closed'} cleanly before"
        low, high = min(self._terms), max(self._terms)
        _log.info(
            "opened the log at %s in %.1f ms: %s, %s; torn bytes cut: %d; events replayed: %d; pchannels: %d",
            self._place,
            1000 * (self._monotonic() - self._began),
            before,
            f"term {low}" if low == high else f"terms {low} to {high}",
            self._torn_bytes,
            self._replayed,
            len(self._terms),
            extra={
                "wal_event": "opened",
                "wal_location": self._place,
                "wal_seconds": self._monotonic() - self._began,
                "wal_new": self.is_new,
                "wal_clean": self._clean,
                "wal_term": high,
                "wal_torn_bytes": self._torn_bytes,
                "wal_replayed_events": self._replayed,
                "wal_pchannels": len(self._terms),
            },
        )

    def closed(self, events: int, *, trouble: BaseException | str | None) -> None:
        """Writes the line of a log that was closed after `events` appends; `trouble` says why the next opening has to recover it.

        A log whose opening failed gets no line.
        """
        if not self._is_open:
            return
        _log.info(
            "closed the log at %s after %.1f s, %s; events appended: %d",
            self._place,
            self._monotonic() - self._began,
            "cleanly" if trouble is None else f"not cleanly ({trouble})",
            events,
            extra={
                "wal_event": "closed",
                "wal_location": self._place,
                "wal_seconds": self._monotonic() - self._began,
                "wal_clean": trouble is None,
                "wal_events": events,
            },
        )
