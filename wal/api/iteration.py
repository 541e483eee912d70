"""Iteration: the messages of a log as a plain iterator, read in the caller's thread."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from wal.api.blocking_read import BlockingRead
from wal.message import ImmutableMessage
from wal.read.options import DeliverFilter, DeliverPolicy, ReadPosition
from wal.read.progress import BodyTurns
from wal.settings import Settings


def iterate(
    location: str | os.PathLike[str],
    vchannel: str | Sequence[str],
    *,
    timeout_s: float | None = None,
    wait_s: float = 0.0,
    settings: Settings | None = None,
    deliver_policy: DeliverPolicy | None = None,
    filters: DeliverFilter | Iterable[DeliverFilter] = (),
    follow: bool = True,
    until_time_tick: int | None = None,
    resume: ReadPosition | None = None,
    cursor: str | None = None,
    include_time_ticks: bool = False,
    auto_ack: bool = False,
) -> Iteration:
    """Reads a log without an event loop: `with iterate("data/", "orders") as messages: for message in messages: …`.

    It works in any thread and any process, whether or not another process writes the log. The options are those of
    `WALAccesser.read`; `auto_ack=True` is an InvalidArgumentError, because only the process that writes the log can acknowledge. A
    `next()` that waits longer than `timeout_s` raises TimeoutError, and the iteration can continue. It blocks: in an event loop use
    `log.read`. `settings` are those for locating and reaching the log, for example `kv`.

    A log in `memory:` cannot be read this way: InvalidArgumentError. If there is no log, the call raises FormatError; with `wait_s`
    it first waits up to that many seconds for a process to create one.
    """
    return Iteration(
        location,
        vchannel,
        timeout_s=timeout_s,
        wait_s=wait_s,
        settings=settings,
        cursor=cursor,
        deliver_policy=deliver_policy,
        filters=filters,
        follow=follow,
        until_time_tick=until_time_tick,
        resume=resume,
        include_time_ticks=include_time_ticks,
        auto_ack=auto_ack,
    )


class Iteration(BlockingRead):
    """Messages in tick order, each once, as `Scanner` gives them; a context manager and an iterator. See `iterate`.

    Errors of the read (TruncatedError, CorruptionError, ChannelNotExistError if a vchannel is dropped) end it, and `next()` raises them.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._turns = BodyTurns()

    def __iter__(self) -> Iterator[ImmutableMessage]:
        return self

    def __next__(self) -> ImmutableMessage:
        progress = self._progress
        while True:
            with self._lock:
                for message in progress.coming:
                    return message
            if not self._fill():
                raise StopIteration

    def bodies(self) -> Iterator[tuple[ImmutableMessage, ImmutableMessage]]:
        """Yields each body with its message, as `Scanner.bodies` does: a message counts as handed over with its last body."""
        progress = self._progress
        while self._fill():
            while True:
                with self._lock:
                    following = progress.following
                    if following == len(progress.messages):
                        break
                    message = progress.messages[following]
                    body, is_last = self._turns.next(message)
                    if is_last:
                        progress.hand_over(1)
                if body is not None:
                    yield message, body
