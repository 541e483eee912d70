"""BlockingLog: the log of one pchannel on a server, read from threads without an event loop.

Owns the prefetched page: while a caller works on a page, the next page of the same read is under way. The server pushes how far the log
reaches, so looking at it costs no request.
"""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Final

from wal.backends import FramePage, LogSnapshot
from wal.engine.remote.blocking import BlockingRemote
from wal.errors import ClosedError
from wal.message import Lineage

__all__ = ["BlockingLog"]

_Read = tuple[int, int, frozenset[str] | None, int]
"""The start of a page, the end of the read, its vchannels, and the bytes of a page."""


class BlockingLog:
    """See `ReadOnlyPChannelLog`."""

    refresh_waits: bool = True

    def __init__(self, remote: BlockingRemote, pchannel: str) -> None:
        self.pchannel: str = pchannel
        self._remote = remote
        self._found = remote.log.pchannels[pchannel]
        self.incarnation: int = self._found.log.incarnation
        self.lineage: Lineage = self._found.log.lineage
        self._ahead: tuple[_Read, concurrent.futures.Future[FramePage]] | None = None
        self._turn = threading.Lock()
        self._closed = False

    @property
    def form(self) -> int:
        """The form of the log's message ids."""
        return self._found.log.form

    @property
    def earliest(self) -> tuple[int, int]:
        return self._found.log.earliest

    @property
    def last_truncated(self) -> tuple[int, int] | None:
        return self._found.log.last_truncated

    def refresh(self) -> LogSnapshot:
        """Returns the log as the server last showed it. Raises the error that ended its readers, for example for a recreated log."""
        self._check_open()
        if (failure := self._found.tail.failure) is not None:
            raise failure
        return self._found.log.shown

    def reach(self) -> LogSnapshot:
        """Returns the log as it is now, from the server."""
        self._check_open()
        self._remote.call(self._found.look, f"looking at pchannel {self.pchannel}", owner=self)
        return self._found.log.shown

    def follow(self) -> None:
        """Lets the server push how far the log reaches from now on. Without it, `refresh` returns what the last `reach` found."""
        self._remote.call(self._follow, f"following pchannel {self.pchannel}", owner=self)

    def page(self, start: int, end: int, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        """Returns frames in [start, end) as `ReadOnlyPChannelLog.page` does, and begins to fetch the following ones."""
        self._check_open()
        wanted: _Read = (start, end, names, bytes_max)
        with self._turn:
            ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == wanted:
            future = ahead[1]
        else:
            if ahead is not None:
                ahead[1].cancel()
            future = self._fetch(wanted)
        page = self._remote.result(future)
        if page.next_position < end and bytes_max >= _AHEAD_BYTES_MIN:
            following: _Read = (page.next_position, end, names, bytes_max)
            with self._turn:
                if self._ahead is None and not self._closed:
                    self._ahead = following, self._fetch(following)
        return page

    def bytes_for(self, names: frozenset[str], start: tuple[int, int], end: int) -> int:
        return self.bytes_between(start[0], end)  # cursors are shown by the server, which has the indexes

    def bytes_between(self, start: int, end: int) -> int:
        return self._found.log.bytes_between(start, end)

    def close(self) -> None:
        """Ends the calls under way. Idempotent."""
        with self._turn:
            self._closed = True
            self._ahead = None
        self._remote.end_calls(self)

    def _fetch(self, read: _Read) -> concurrent.futures.Future[FramePage]:
        start, end, names, bytes_max = read
        log = self._found.log
        return self._remote.start(
            lambda: log.read(start, names=names, bytes_max=bytes_max, end=end),
            f"reading pchannel {self.pchannel}",
            owner=self,
        )

    async def _follow(self) -> None:
        self._found.follow()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the log of pchannel {self.pchannel!r} is closed: open it again to go on")


_AHEAD_BYTES_MIN: Final = 1 << 16
"""A read of smaller pages looks at single frames, so the following page is not fetched."""
