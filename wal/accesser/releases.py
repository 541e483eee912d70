"""Releases: how a log is released that was garbage-collected without being closed.

While the log's event loop exists, the log is closed there, as by `close()`. Once that loop has ended, a thread releases the log's files,
threads and locks, and the next opening recovers as after a crash. An opening of the same location in this process waits for the release.
The garbage collector may begin a release at any point in any thread, so `begin` takes no lock and waits for nothing.
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
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from wal.engine.base import ReadableEngine

__all__ = ["Release", "all_released", "released"]

_log: Final = logging.getLogger("wal")


class Release:
    """The release of one engine that no caller holds any more; `loop` is the event loop that it belongs to."""

    def __init__(self, engine: ReadableEngine, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._engine = engine
        self._over: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._abandoned = False
        self._pid = os.getpid()

    def begin(self) -> None:
        """Begins the release. The finalizer of the object that held the engine calls this."""
        if sys.is_finalizing():  # the process ends, and releases everything it holds
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
        """Returns when the log is released; at once if its loop is not running, since waiting would never end."""
        if self._abandoned or self.loop.is_running():
            await asyncio.shield(asyncio.wrap_future(self._over))

    @property
    def is_over(self) -> bool:
        """Returns whether the log is released."""
        return self._over.done()

    @property
    def place(self) -> str:
        """Returns where the log is."""
        return self._engine.place

    def _close(self) -> None:
        """Closes the log, on its loop."""
        closing = self.loop.create_task(self._engine.close(), name="close a log that was garbage-collected unclosed")
        closing.add_done_callback(self._closed)

    def _closed(self, closing: asyncio.Task[None]) -> None:
        if not closing.cancelled() and (failure := closing.exception()) is not None:
            _log.warning("closing the log at %s, which was garbage-collected unclosed, failed: %s", self.place, failure)
        if self._engine.released:
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
            self._engine.abandon()
        finally:
            self._over.set_result(None)

    def __del__(self) -> None:
        # The loop was closed before it could close the log.
        if not self._over.done() and not sys.is_finalizing() and self._pid == os.getpid():
            self._abandon()


async def released(place: str) -> None:
    """Returns when every log at this location that was garbage-collected unclosed is released."""
    for reference in _pending[:]:
        release = reference()
        if release is None or release.is_over:
            with contextlib.suppress(ValueError):  # another opening has removed it
                _pending.remove(reference)
        elif await asyncio.to_thread(_is_same, release.place, place):
            await release.over()


async def all_released(loop: asyncio.AbstractEventLoop) -> None:
    """Returns when every log of this loop, which must be the running loop, that was garbage-collected unclosed is released."""
    for release in [reference() for reference in _pending[:]]:
        if release is not None and release.loop is loop:
            await release.over()


def _is_same(place: str, other: str) -> bool:
    return os.path.realpath(place) == os.path.realpath(other)


_pending: Final[list[weakref.ref[Release]]] = []
"""Changed only by `append` and `remove`, which a garbage collection cannot interrupt halfway."""

# A forked child has copies of the parent's pending releases; running them would release the parent's own locks.
os.register_at_fork(after_in_child=_pending.clear)
