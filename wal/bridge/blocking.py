"""BlockingWAL: the accesser's calls as blocking methods, for threads without an event loop.

It owns a loop in a thread of its own (`LoopThread`) and the log that is open there. Every public call of `WALAccesser` has its counterpart
here, with the same arguments, results and errors; any number of threads may call at once. It ends with `close()` from any thread, at the
end of its `with` block, or at the exit of the interpreter; a thread that waits in a call then gets the error that the accesser raises.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from wal.accesser import LogStatistics, WALAccesser
from wal.accesser.expected import UNCHECKED, Unchecked
from wal.accesser.opening import LogOpening, open_wal
from wal.accesser.releases import all_released
from wal.accesser.responses import AppendOption, AppendResponses
from wal.bridge.blocking_scanner import BlockingHandler, BlockingScanner, blocking_handler
from wal.bridge.blocking_writes import BlockingBroadcast, BlockingTxnCalls, on_loop
from wal.channels import ChannelDescription, OwnerDescription, VChannelInfo
from wal.cursors import CursorInfo
from wal.errors import InvalidArgumentError
from wal.loop_thread import LoopThread
from wal.message import AppendResult, ForgottenResult, Message, MessageID
from wal.pchannel import ProducerInfo, ProducerKey
from wal.reading import DeliverFilter, DeliverPolicy, ReadPosition
from wal.retention import PChannelRetention
from wal.settings import Settings, SettingsOverrides

__all__ = ["BlockingOpening", "BlockingWAL", "blocking"]

_T = TypeVar("_T")


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
    return BlockingOpening(
        open_wal(location, settings=settings, read_only=read_only, create=create, wait_s=wait_s, **overrides)
    )


class BlockingOpening:
    """The result of `blocking`: a log to open by `with`, or by `open()` and `close()`, for example in the cells of a notebook."""

    def __init__(self, opening: LogOpening) -> None:
        self._opening = opening
        self._log: BlockingWAL | None = None
        self._thread: LoopThread | None = None
        self._turn = threading.Lock()

    def open(self) -> BlockingWAL:
        """Opens the log. `close()`, here or of the log, closes it; then, or if the opening failed, it can be opened again.

        Raises InvalidArgumentError if it is open.
        """
        with self._turn:
            if self._thread is not None and not self._thread.stopped:
                raise InvalidArgumentError(
                    "this log is open already: use the log that open() gave, or close() it first"
                )
            opening, self._opening = self._opening, self._opening.again()
            thread = LoopThread(collected=all_released)
            try:
                log = BlockingWAL(thread.call(_awaited, opening), thread)
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class BlockingWAL(BlockingTxnCalls):
    """An open log for blocking callers. Get one from `blocking`. See `WALAccesser` for what the calls guarantee."""

    if not TYPE_CHECKING:  # a type checker knows the names

        def __getattr__(self, name: str) -> object:
            from wal.accesser.guesses import missing_call

            raise AttributeError(missing_call(type(self), name), name=name, obj=self)

    def __init__(self, log: WALAccesser, thread: LoopThread) -> None:
        super().__init__(log, thread)
        thread.closing = log.close

    # -- writing

    @overload
    def raw_append(
        self,
        message: Message,
        *,
        barrier_time_tick: int = 0,
        idempotency_key: str | None = None,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> AppendResult: ...

    @overload
    def raw_append(
        self,
        message: Message,
        *,
        barrier_time_tick: int = 0,
        idempotency_key: ProducerKey,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> AppendResult | ForgottenResult: ...

    def raw_append(
        self,
        message: Message,
        *,
        barrier_time_tick: int = 0,
        idempotency_key: str | ProducerKey | None = None,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> AppendResult | ForgottenResult:
        """Appends a message, which is durable on return. Interrupting the caller does not undo the append."""

        async def append() -> AppendResult | ForgottenResult:
            return await self._log.raw_append(
                message,
                barrier_time_tick=barrier_time_tick,
                idempotency_key=idempotency_key,
                expected_last=expected_last,
            )

        return self._call(append)

    @overload
    def append_nowait(
        self,
        message: Message,
        *,
        barrier_time_tick: int = 0,
        idempotency_key: str | None = None,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> concurrent.futures.Future[AppendResult]: ...

    @overload
    def append_nowait(
        self,
        message: Message,
        *,
        barrier_time_tick: int = 0,
        idempotency_key: ProducerKey,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> concurrent.futures.Future[AppendResult | ForgottenResult]: ...

    def append_nowait(
        self,
        message: Message,
        *,
        barrier_time_tick: int = 0,
        idempotency_key: str | ProducerKey | None = None,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> concurrent.futures.Future[Any]:
        """Appends a message without waiting for the disk; returns a future of the result, which cannot be cancelled.

        The calls of one thread are ordered. Raises WouldBlockError if too much is in flight.
        """

        def start() -> asyncio.Future[Any]:
            return self._log.append_nowait(
                message,
                barrier_time_tick=barrier_time_tick,
                idempotency_key=idempotency_key,
                expected_last=expected_last,
            )

        return self._call(_started, start)

    def append_messages(self, *messages: Message) -> AppendResponses:
        """Appends messages. Two or more for one vchannel are one transaction, with its bodies in input order."""
        return self._call(self._log.append_messages, *messages)

    def append_messages_with_option(self, option: AppendOption, *messages: Message) -> AppendResponses:
        """Appends messages as `append_messages` does, with a barrier for each append."""
        return self._call(self._log.append_messages_with_option, option, *messages)

    def append_bulk(self, messages: Iterable[Message]) -> list[AppendResult]:
        """Appends any number of messages in order, without a transaction. `messages` is iterated in the caller's thread."""
        return self._call(self._log.append_bulk, list(messages))

    def producers(self) -> list[ProducerInfo]:
        """Returns the producers that are remembered, by name."""
        return self._call(self._log.producers)

    def forget_producer(self, name: str) -> None:
        """Forgets a producer on all vchannels, durably; raises InvalidArgumentError if it is not known."""
        self._call(self._log.forget_producer, name)

    def allocate_time_tick(self) -> int:
        """Returns a time tick above every tick allocated before, for use as a barrier."""
        return self._call(self._log.allocate_time_tick)

    def broadcast(self) -> BlockingBroadcast:
        """Returns the calls that send one message to many vchannels, on any pchannels."""
        return BlockingBroadcast(self._call(on_loop, self._log.broadcast), self._thread)

    # -- reading

    def read(
        self,
        vchannel: str | Sequence[str],
        *,
        deliver_policy: DeliverPolicy | None = None,
        filters: DeliverFilter | Iterable[DeliverFilter] = (),
        handler: BlockingHandler | None = None,
        follow: bool = True,
        until_time_tick: int | None = None,
        resume: ReadPosition | None = None,
        cursor: str | None = None,
        include_time_ticks: bool = False,
        auto_ack: bool = False,
    ) -> BlockingScanner:
        """Returns a scanner: a context manager and a plain iterator of messages. The read begins when it is entered.

        A `handler` is called in a thread of a pool, one message at a time; it may block and use the log.
        """
        read = partial(
            self._log.read,
            vchannel,
            deliver_policy=deliver_policy,
            filters=filters,
            handler=blocking_handler(handler),
            follow=follow,
            until_time_tick=until_time_tick,
            resume=resume,
            cursor=cursor,
            include_time_ticks=include_time_ticks,
            auto_ack=auto_ack,
        )
        scanner = self._call(on_loop, read) if auto_ack else read()
        return BlockingScanner(scanner, self._thread)

    def get_latest_mvcc_timestamp_if_local(self, vchannel: str) -> int:
        """Returns a tick that covers every write to this vchannel that has returned; `scanner.wait_for` it to read your writes."""
        return self._call(self._log.get_latest_mvcc_timestamp_if_local, vchannel)

    def last(self, vchannel: str) -> MessageID | None:
        """Returns the id of the vchannel's last durable event, for `expected_last`; None if it never had one, or does not exist."""
        return self._call(self._log.last, vchannel)

    def cursors(self) -> list[CursorInfo]:
        """Returns all cursors, by name and vchannels."""
        return self._call(self._log.cursors)

    def delete_cursor(self, name: str, *, vchannels: str | Sequence[str] | None = None) -> None:
        """Deletes the cursor of this name and these vchannels; None deletes all of this name."""
        self._call(self._log.delete_cursor, name, vchannels=vchannels)

    # -- housekeeping

    def vchannels(self) -> list[VChannelInfo]:
        """Returns all vchannels, by name."""
        return self._call(self._log.vchannels)

    def create_vchannel(self, name: str, *, pchannel: str | None = None) -> VChannelInfo:
        """Creates a vchannel durably; raises ChannelExistError if the name is taken."""
        return self._call(self._log.create_vchannel, name, pchannel=pchannel)

    def drop_vchannel(self, name: str) -> None:
        """Drops a vchannel: its transactions fail and its readers end. A new one of that name shows nothing of it."""
        self._call(self._log.drop_vchannel, name)

    def create_channels(self, owner: OwnerDescription, count: int = 1) -> list[str]:
        """Creates channels (1 … 60) with an owner, all or none, and returns their generated names."""
        return self._call(self._log.create_channels, owner, count)

    def destroy_channels(self, names: Iterable[str]) -> None:
        """Destroys channels (at most 60), all or none; raises ChannelNotExistError if one of them does not exist."""
        self._call(self._log.destroy_channels, names)

    def describe_channels(self, names: Iterable[str] | None = None) -> list[ChannelDescription]:
        """Returns these channels and their owners; None means all, in the order of their creation."""
        return self._call(self._log.describe_channels, names)

    def truncate(self, *, up_to: MessageID) -> None:
        """Truncates a pchannel up to this event, inclusive."""
        self._call(self._log.truncate, up_to=up_to)

    def retention(self) -> list[PChannelRetention]:
        """Returns, for each pchannel, what is held, by which bounds, and who holds it."""
        return self._call(self._log.retention)

    def statistics(self) -> LogStatistics:
        """Returns a snapshot of the counts since the log was opened."""
        return self._call(on_loop, self._log.statistics)

    @property
    def wal_name(self) -> str:
        """The name of the backend: "journal", "memory" or "pulsar"."""
        return self._call(on_loop, lambda: self._log.wal_name)

    def close(self) -> None:
        """Drains what is in flight, closes the log and ends the thread. Idempotent, from any thread; concurrent calls all wait."""
        self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


async def _awaited(awaitable: Awaitable[_T]) -> _T:
    return await awaitable


async def _started(start: Callable[[], asyncio.Future[_T]]) -> concurrent.futures.Future[_T]:
    """Returns a thread-safe future for a future of the loop. It cannot be cancelled, since that would undo nothing."""
    inner = start()
    outer: concurrent.futures.Future[_T] = concurrent.futures.Future()
    outer.set_running_or_notify_cancel()

    def settle(_: object) -> None:
        if inner.cancelled():
            outer.set_exception(concurrent.futures.CancelledError())
        elif (error := inner.exception()) is not None:
            outer.set_exception(error)
        else:
            outer.set_result(inner.result())

    inner.add_done_callback(settle)
    return outer
