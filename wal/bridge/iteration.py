"""Iteration: the messages of a journal as a plain iterator, read straight from its files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from wal.bridge.file_read import FileRead
from wal.message import ImmutableMessage
from wal.reading import DeliverFilter, DeliverPolicy, ReadPosition

__all__ = ["Iteration", "iterate"]


def iterate(
    location: str | os.PathLike[str],
    vchannel: str | Sequence[str],
    *,
    timeout_s: float | None = None,
    wait_s: float = 0.0,
    deliver_policy: DeliverPolicy | None = None,
    filters: DeliverFilter | Iterable[DeliverFilter] = (),
    follow: bool = True,
    until_time_tick: int | None = None,
    resume: ReadPosition | None = None,
    cursor: str | None = None,
    include_time_ticks: bool = False,
    auto_ack: bool = False,
) -> Iteration:
    """Reads a journal without an event loop: `with iterate("data/", "orders") as messages: for message in messages: …`.

    It reads the files beside whoever writes them, or nobody, in any thread and any process; the options are those of
    `WALAccesser.read`, but for `auto_ack`, which needs the log itself: an InvalidArgumentError. A `next()` that waits longer than
    `timeout_s` raises TimeoutError, and the iteration can go on. It blocks: in an event loop use `log.read`. `memory:` has no files, and
    is an InvalidArgumentError. Where there is no journal the call is a FormatError; with `wait_s` it first waits for so many seconds at
    most for a process that makes one.
    """
    return Iteration(
        location,
        vchannel,
        timeout_s=timeout_s,
        wait_s=wait_s,
        cursor=cursor,
        deliver_policy=deliver_policy,
        filters=filters,
        follow=follow,
        until_time_tick=until_time_tick,
        resume=resume,
        include_time_ticks=include_time_ticks,
        auto_ack=auto_ack,
    )


class Iteration(FileRead):
    """Messages in tick order, each once, as `Scanner` gives them; a context manager and an iterator. See `iterate`.

    Errors of the read (TruncatedError, CorruptionError, ChannelNotExistError when a vchannel is dropped) end it and are raised by `next()`.
    """

    def __iter__(self) -> Iterator[ImmutableMessage]:
        return self

    def __next__(self) -> ImmutableMessage:
        progress = self._progress
        while True:
            with self._lock:
                at = progress.following
                if at < len(progress.messages):
                    message = progress.messages[at]
                    progress.following = at + 1
                    return message
            if not self._fill():
                raise StopIteration
