"""Announcements: the line that an open log writes when it was opened, and the one when it was closed.

Owns their texts, which docs/reference/logging.md shows, and the counts in them. It decides nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from wal.backends import LogState

__all__ = ["Announcements"]

_log: Final = logging.getLogger("wal")


class Announcements:
    """The announcements of one log, from the beginning of its opening on. `monotonic` is a clock in seconds."""

    def __init__(self, place: str, monotonic: Callable[[], float]) -> None:
        self.is_new = False
        """Whether there was no log here before."""
        self._place = place
        self._is_open = False
        self._monotonic = monotonic
        self._began = monotonic()
        self._terms: list[int] = []
        self._clean = True
        self._torn_bytes = 0
        self._replayed = 0

    def recovered(self, term: int, state: LogState, *, replayed: int) -> None:
        """A pchannel was opened in this term; `replayed`: how many events that the last checkpoint does not know."""
        self._terms.append(term)
        self._clean = self._clean and state.clean
        self._torn_bytes += state.torn_bytes
        self._replayed += replayed

    def opened(self) -> None:
        """The log is open."""
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
        )

    def closed(self, events: int, *, trouble: BaseException | str | None) -> None:
        """The log is closed, after `events` were appended; `trouble`: why that is not clean, so that the next opening recovers it.

        Nothing is said of a log that was not opened to the end.
        """
        if not self._is_open:
            return
        _log.info(
            "closed the log at %s after %.1f s, %s; events appended: %d",
            self._place,
            self._monotonic() - self._began,
            "cleanly" if trouble is None else f"not cleanly ({trouble})",
            events,
        )
