"""Releases: open logs that were collected without being closed, on their way to being released.

Owns what becomes of such a log: while its event loop lives it is closed there, as `close()` would; once that loop has ended, a thread
releases its files, threads and locks, and the next opening recovers as after a crash. An opening of the same place in this process waits
for that. A collector may begin a release at any point in any thread, so beginning one takes no lock and waits for nothing.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import sys
import threading
import weakref
from typing import Final, Protocol

__all__ = ["Releasable", "Release", "all_released", "released"]

_log: Final = logging.getLogger("wal")


class Releasable(Protocol):
    """An open log, or one that is being opened or closed."""

    @property
    def place(self) -> str:
        """Where it lives: its directory, or another location as a text."""

    @property
    def released(self) -> bool:
        """Whether it holds nothing any more."""

    async def close(self) -> None:
        """Drains and closes it, on its loop."""

    def abandon(self) -> None:
        """Releases what it holds without its loop, which has ended. Blocks; idempotent."""


class Release:
    """One log, which nobody holds any more, and the event loop that it belongs to."""

    def __init__(self, log: Releasable, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._log = log
        self._over: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._abandoned = False
        self._pid = os.getpid()

    def begin(self) -> None:
        """Begins the release; for the finalizer of whoever held the log."""
        if sys.is_finalizing():  # the process ends, and what it holds ends with it
            return
        _pending.append(weakref.ref(self))
        if not self.loop.is_closed():
            try:
                self.loop.call_soon_threadsafe(self._close)
                return
            except RuntimeError:  # it was closed just now
                pass
        self._abandon()

    async def over(self) -> None:
        """Returns when the log is released; at once when nothing can be expected, because its loop stands still."""
        if self._abandoned or self.loop.is_running():
            await asyncio.shield(asyncio.wrap_future(self._over))

    @property
    def is_over(self) -> bool:
        """Whether the log is released."""
        return self._over.done()

    @property
    def place(self) -> str:
        """Where the log lives."""
        return self._log.place

    def _close(self) -> None:
        """On the loop of the log."""
        closing = self.loop.create_task(self._log.close(), name="close a log that was collected unclosed")
        closing.add_done_callback(self._closed)

    def _closed(self, closing: asyncio.Task[None]) -> None:
        if not closing.cancelled() and (failure := closing.exception()) is not None:
            _log.warning("closing the log at %s, which was collected unclosed, failed: %s", self.place, failure)
        if self._log.released:
            self._over.set_result(None)
        else:
            self._abandon()

    def _abandon(self) -> None:
        if not self._abandoned:
            self._abandoned = True
            try:
                threading.Thread(target=self._run, name="wal-release", daemon=True).start()
            except RuntimeError:  # the process ends
                self._over.set_result(None)

    def _run(self) -> None:
        try:
            self._log.abandon()
        finally:
            self._over.set_result(None)

    def __del__(self) -> None:
        # The loop was closed before it could close the log.
        if not self._over.done() and not sys.is_finalizing() and self._pid == os.getpid():
            self._abandon()


async def released(place: str) -> None:
    """Returns when every log that lived here, and was collected unclosed, is released."""
    for reference in _pending[:]:
        release = reference()
        if release is None or release.is_over:
            with contextlib.suppress(ValueError):  # another opening has removed it
                _pending.remove(reference)
        elif await asyncio.to_thread(_is_same, release.place, place):
            await release.over()


async def all_released(loop: asyncio.AbstractEventLoop) -> None:
    """Returns when every log that belongs to this loop, the running one, and was collected unclosed, is released."""
    for release in [reference() for reference in _pending[:]]:
        if release is not None and release.loop is loop:
            await release.over()


def _is_same(place: str, other: str) -> bool:
    return os.path.realpath(place) == os.path.realpath(other)


_pending: Final[list[weakref.ref[Release]]] = []
"""Changed by `append` and `remove` alone, which are whole even where a collector comes in between."""

# A forked child has copies of what its parent releases, and would release the parent's own locks with them.
os.register_at_fork(after_in_child=_pending.clear)
