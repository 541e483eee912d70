"""blocking: opens a log for threads without an event loop, which gives the calls of the accesser as blocking methods.

A `BlockingOpening` owns the log that it has opened, and the thread with the loop of the log.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Unpack

from wal.api.blocking import BlockingWAL
from wal.api.lifecycle import all_released
from wal.api.opening import LogOpening, open_wal
from wal.errors import InvalidArgumentError
from wal.runtime.loop_thread import LoopThread
from wal.settings import Settings, SettingsOverrides


def blocking(
    location: str | os.PathLike[str],
    *,
    settings: Settings | None = None,
    read_only: bool = False,
    create: bool = True,
    wait_s: float = 0.0,
    **overrides: Unpack[SettingsOverrides],
) -> BlockingOpening:
    """Opens the log at a location for code that blocks: `with blocking("data/") as log`, or `log = blocking("data/").open()`.

    Arguments and errors are those of `open_wal`. In a running event loop use `open_wal`: this call would block the loop.
    """
    return BlockingOpening(open_wal(location, settings=settings, read_only=read_only, create=create, wait_s=wait_s, **overrides))


class BlockingOpening:
    """The result of `blocking`: a log to open by `with`, or by `open()` and `close()`, for example in the cells of a notebook."""

    def __init__(self, opening: LogOpening) -> None:
        self._opening = opening
        self._log: BlockingWAL | None = None
        self._thread: LoopThread | None = None
        self._turn = threading.Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._opening.location!r})"

    def open(self) -> BlockingWAL:
        """Opens the log. `close()`, here or of the log, closes it; then, or if the opening failed, it can be opened again.

        Raises InvalidArgumentError if it is open.
        """
        with self._turn:
            if self._thread is not None and not self._thread.stopped:
                raise InvalidArgumentError("this log is open already: use the log that open() gave, or close() it first")
            opening, self._opening = self._opening, self._opening.again()
            thread = LoopThread(collected=all_released)
            try:
                log = BlockingWAL(thread.call(lambda: opening), thread)
            except BaseException:
                thread.stop()
                raise
            self._log, self._thread = log, thread
            return log

    def close(self) -> None:
        """Closes the log after draining what is in flight. Idempotent; before `open()` it does nothing."""
        with self._turn:
            log = self._log
        if log is not None:
            log.close()

    def __enter__(self) -> BlockingWAL:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()
