"""BlockingConsumer: a consumer for callers without an event loop.

It owns nothing but the way to the loop of its log, where the `Consumer` runs. Handlers that are plain functions run in threads, as they do
for `WALAccesser.consume`, so they may use the log that the consumer came from; an async handler runs on the loop of the log.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from wal.consumers.delivery import DRAIN_S
from wal.loop_thread import LoopThread

if TYPE_CHECKING:
    from wal.consumers.consumer import Consumer, ConsumerStatistics
    from wal.read.cursors.cursor import CursorKey


class BlockingConsumer:
    """A handler on the messages of vchannels: `with log.consume(…)` starts and drains it, `run()` runs it to its end. See `Consumer`."""

    def __init__(self, consumer: Consumer, thread: LoopThread) -> None:
        self._consumer = consumer
        self._thread = thread

    @property
    def key(self) -> CursorKey:
        """The cursor: its name and its vchannels."""
        return self._consumer.key

    def __enter__(self) -> Self:
        self._thread.call(self._consumer.__aenter__)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._thread.call(self._consumer.__aexit__, kind, error, traceback)

    def run(self) -> None:
        """Runs the consumer until it is closed, and raises the error that ends it. An interrupt releases what handlers have."""
        self._thread.call(self._consumer.run)

    def close(self, *, drain_s: float = DRAIN_S) -> None:
        """Ends the consumer: no more handlers start, and those that run get `drain_s` seconds before they are released. Idempotent."""
        self._thread.call(self._consumer.close, drain_s=drain_s)

    def caught_up(self) -> None:
        """Returns when every message that is durable now is finished: handled, or a dead letter; and the position is saved."""
        self._thread.call(self._consumer.caught_up)

    def pause(self) -> None:
        """Starts no more handlers, and reads no further; those that run go on. It keeps the cursor."""
        self._thread.run(self._consumer.pause)

    def resume(self) -> None:
        """Goes on after `pause`."""
        self._thread.run(self._consumer.resume)

    def statistics(self) -> ConsumerStatistics:
        """Returns a snapshot of its counts."""
        return self._thread.run(self._consumer.statistics)

    def __repr__(self) -> str:
        return f"Blocking{self._consumer!r}"
