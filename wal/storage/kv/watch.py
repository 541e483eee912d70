"""Watch: the changes of a key or of a prefix, in the order in which they were committed; WatchHub: the watches of one store.

A Watch owns the bounded buffer between a KV and one consumer, and its end. It guarantees that no event is lost silently: an event that does
not fit ends the watch with an error. It never waits for the consumer and never delays the KV. A WatchHub owns the revision of a store of
this process, and its open watches. It never waits and never calls back into the store.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from wal.errors import InvalidArgumentError, TruncatedError, WALError
from wal.runtime.tasks import AsyncClosing

WATCH_BUFFER_MAX: Final = 4096
"""Events that a watch keeps for its consumer by default (about 1 MiB with keys and values of 64 B)."""


class WatchKind(enum.Enum):
    """The kind of change that happened to the key."""

    PUT = "put"
    DELETE = "delete"


class WatchEvent(msgspec.Struct, frozen=True):
    """One change of one key. A DELETE has no `value` (None). The events of one multi-operation share their `revision`.

    Within a KV, revisions increase by one with each committed change. A KV on a server counts the server's changes; memory and sqlite
    count from their opening, so a revision means nothing to another opening.
    """

    kind: WatchKind
    key: str
    value: str | None
    revision: int


class Watch(AsyncClosing, AsyncIterator[WatchEvent]):
    """An async iterator of events, active from the moment the KV returned it until `close()`.

    To follow a key from its current value, watch the key first, then load it; changes between the two may be seen twice.

    After `close()` the iteration ends cleanly. When the buffer overflows it raises TruncatedError (load and watch again), and when the KV
    is closed ClosedError, both after the events that were buffered before; each later call raises the error again. Cancelling a waiting
    `__anext__` loses nothing. Several tasks may iterate; each event goes to one of them.
    """

    def __init__(self, subject: str, *, buffer_max: int = WATCH_BUFFER_MAX, on_end: Callable[[Watch], None] | None = None) -> None:
        if buffer_max < 1:
            raise InvalidArgumentError(f"buffer_max={buffer_max} is below 1: a watch keeps at least one event")
        self._subject = subject
        self._buffer: deque[WatchEvent] = deque()
        self._buffer_max = buffer_max
        self._on_end = on_end
        self._waiters: list[asyncio.Future[None]] = []
        self._ended = False
        self._error: WALError | None = None

    @property
    def error(self) -> WALError | None:
        """Returns why the watch ended; None while it runs and after `close()`."""
        return self._error

    @property
    def ended(self) -> bool:
        """Returns whether no further event comes in; buffered events may still be taken."""
        return self._ended

    async def __anext__(self) -> WatchEvent:
        while not self._buffer:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        return self._buffer.popleft()

    async def close(self) -> None:
        """Releases the watch: no more events come, and the iteration ends. Idempotent."""
        self._buffer.clear()
        self._error = None
        self._end()

    def feed(self, events: Sequence[WatchEvent]) -> None:
        """Adds all events of one commit; if they do not fit, the watch ends. For KVs."""
        if self._ended:
            return
        if len(self._buffer) + len(events) > self._buffer_max:
            self.fail(
                TruncatedError(
                    f"the watch of {self._subject} fell behind: revision {events[0].revision} does not fit into its buffer of "
                    f"{self._buffer_max} events; load the keys again and watch them again (or raise buffer_max)"
                )
            )
            return
        self._buffer.extend(events)
        self._wake()

    def fail(self, error: WALError) -> None:
        """Ends the watch with `error`, after the buffered events. Only the first end counts. For KVs."""
        if not self._ended:
            self._error = error
            self._end()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            if self._on_end is not None:
                self._on_end(self)
        self._wake()

    def _wake(self) -> None:
        # All waiters are woken and check again, so a cancelled one cannot lose another's wake-up.
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class WatchHub:
    """The watches of one store; it is fed with each committed change, in commit order.

    `revision` is the number of changes committed since the store was opened.
    """

    def __init__(self) -> None:
        self.revision: int = 0
        self._by_key: dict[str, dict[Watch, int]] = {}  # the number of characters of root path to cut from the key
        self._by_prefix: dict[str, dict[Watch, int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values())) + sum(map(len, self._by_prefix.values()))

    def open(self, subject: str, *, is_prefix: bool, root_length: int, buffer_max: int) -> Watch:
        """Returns a watch of the complete key or prefix `subject`, active at once; its events name keys without the root path."""
        table = self._by_prefix if is_prefix else self._by_key

        def forget(watch: Watch) -> None:
            watches = table.get(subject, {})
            watches.pop(watch, None)
            if not watches:
                table.pop(subject, None)

        name = f"{'prefix' if is_prefix else 'key'} {subject[root_length:]!r}"
        watch = Watch(name, buffer_max=buffer_max, on_end=forget)
        table.setdefault(subject, {})[watch] = root_length
        return watch

    def commit(self, saves: Mapping[str, str], removed: Iterable[str]) -> None:
        """Counts one committed change and shows it to watches: `saves` in their order, then the keys that were actually `removed`."""
        self.revision += 1
        if not self._by_key and not self._by_prefix:
            return
        events_by_watch: dict[Watch, list[WatchEvent]] = {}
        for key, value in saves.items():
            self._show(events_by_watch, WatchKind.PUT, key, value)
        for key in removed:
            self._show(events_by_watch, WatchKind.DELETE, key, None)
        for watch, events in events_by_watch.items():
            watch.feed(events)

    def fail(self, error: WALError) -> None:
        """Ends every watch with `error`."""
        for table in (self._by_key, self._by_prefix):
            for watch in [watch for watches in table.values() for watch in watches]:
                watch.fail(error)

    def _show(self, events_by_watch: dict[Watch, list[WatchEvent]], kind: WatchKind, key: str, value: str | None) -> None:
        matching = [self._by_key[key]] if key in self._by_key else []
        matching += [watches for prefix, watches in self._by_prefix.items() if key.startswith(prefix)]
        for watches in matching:
            for watch, root_length in watches.items():
                events_by_watch.setdefault(watch, []).append(WatchEvent(kind, key[root_length:], value, self.revision))
