"""BlockingWAL: the accesser's calls as blocking methods, for threads without an event loop.

It owns a loop in a thread of its own (`LoopThread`) and the log that is open there. Every public call of `WALAccesser` has its counterpart
here, with the same arguments, results and errors; any number of threads may call at once. It ends with `close()` from any thread, at the
end of its `with` block, or at the exit of the interpreter; a thread that waits in a call then gets the error that the accesser raises.

`BlockingTxn` and `BlockingBroadcast` own only the way to the loop: `Txn` is the transaction, and `LogBroadcast` sends the broadcasts.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, Self, TypeVar, Unpack, overload

from broadcaster.message import BroadcastAppendResult, BroadcasterStatistics, BroadcastMessage, BroadcastTask
from wal.api.accesser import WALAccesser
from wal.api.append_options import UNCHECKED, AppendOption, AppendResponses, ExpectedLast, Unchecked, one_or_several
from wal.api.blocking_consumer import BlockingConsumer
from wal.api.blocking_scanner import BlockingHandler, BlockingScanner, blocking_handler
from wal.api.broadcast import LogBroadcast
from wal.api.lifecycle import all_released
from wal.api.opening import LogOpening, open_wal
from wal.api.txn import R_co, Txn, body_list
from wal.channels.channels import ChannelDescription
from wal.channels.vchannels import OwnerDescription, VChannelInfo
from wal.engine import LogStatistics, PChannelRetention
from wal.errors import InvalidArgumentError
from wal.loop_thread import LoopThread
from wal.message import AppendResult, ForgottenResult, ImmutableMessage, Message, MessageID, ResourceKey, ScheduledResult, TxnContext
from wal.read.cursors.cursor import CursorInfo
from wal.read.options import DeliverFilter, DeliverPolicy, ReadPosition
from wal.settings import Settings, SettingsOverrides
from wal.write.idempotency.keys import ProducerInfo, ProducerKey

if TYPE_CHECKING:
    from wal.api.scheduled import BlockingSchedule
    from wal.consumers.consumer import ConsumerStatistics
    from wal.message.payloads import PayloadType

_T = TypeVar("_T")


class BlockingTxn(Generic[R_co]):
    """An open transaction: `append` any number of times, then `commit` or `rollback`, once. See `Txn`.

    As a context manager it commits at the end of the block and rolls back on an exception; it may also be ended inside the block.
    """

    def __init__(self, txn: Txn[R_co], thread: LoopThread) -> None:
        self._txn = txn
        self._thread = thread

    def append(self, message: Message | bytes, *, barrier_time_tick: int = 0) -> None:
        """Adds a message and renews the keepalive. `bytes` stand for an INSERT on the transaction's only vchannel."""
        self._thread.call(self._txn.append, message, barrier_time_tick=barrier_time_tick)

    def append_many(self, messages: Iterable[Message | bytes], *, barrier_time_tick: int = 0) -> None:
        """Adds messages in order, all or none of them, and renews the keepalive."""
        self._thread.call(self._txn.append_many, body_list(messages), barrier_time_tick=barrier_time_tick)

    def save(
        self, read: BlockingScanner | ReadPosition, cursor: str | None = None, *, vchannels: str | Sequence[str] | None = None
    ) -> None:
        """Has the commit save a cursor: it moves if and only if the transaction is written. See `Txn.save`."""
        if isinstance(read, BlockingScanner):
            read._save_with(self._txn, cursor, vchannels)
        else:
            self._txn.save(read, cursor, vchannels=vchannels)

    def commit(self) -> R_co:
        """Makes the whole transaction durable as one event, and returns its result."""
        return self._thread.call(self._txn.commit)

    def rollback(self) -> None:
        """Forgets the transaction; does nothing if it has expired."""
        self._thread.call(self._txn.rollback)

    @property
    def context(self) -> TxnContext:
        """Its id and keepalive."""
        return self._txn.context

    @property
    def result(self) -> R_co:
        """The result of `commit`. Raises InvalidTransactionStateError if there is none: before the commit, or after a failed one."""
        return self._txn.result

    @property
    def ended(self) -> bool:
        """Whether commit or rollback was called."""
        return self._txn.ended

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._txn.ended:
            return
        if kind is None:
            self.commit()
        else:
            self.rollback()

    def __repr__(self) -> str:
        return f"Blocking{self._txn!r}"


class BlockingBroadcast:
    """Sends one message to many vchannels. See `LogBroadcast` for what the calls guarantee; an interrupt cancels the call there."""

    def __init__(self, broadcast: LogBroadcast, thread: LoopThread) -> None:
        self._broadcast = broadcast
        self._thread = thread
        self._call = thread.call

    def __repr__(self) -> str:
        return f"Blocking{self._broadcast!r}"

    def append(self, message: BroadcastMessage, *, wait: bool = False) -> BroadcastAppendResult:
        """Appends a copy for each vchannel; all of them are durable on return."""
        return self._call(self._broadcast.append, message, wait=wait)

    def check(self, message: BroadcastMessage) -> None:
        """Returns if the message is within the log's bounds; raises the InvalidArgumentError of `append` otherwise."""
        self._call(self._broadcast.check, message)

    def ack(self, broadcast: int | ImmutableMessage, vchannel: str | None = None) -> None:
        """Acknowledges that a vchannel's consumer has processed its copy: `ack(broadcast_id, vchannel)` or `ack(message)`."""
        self._call(self._broadcast.ack, broadcast, vchannel)

    def block_until_resource_key_ack_once(self, key: ResourceKey) -> None:
        """Returns when each broadcast that holds the key now was acknowledged by at least one vchannel."""
        self._call(self._broadcast.block_until_resource_key_ack_once, key)

    def block_until_resource_key_ack_all(self, key: ResourceKey) -> None:
        """Returns when each broadcast that holds the key now is over."""
        self._call(self._broadcast.block_until_resource_key_ack_all, key)

    def tasks(self) -> list[BroadcastTask]:
        """Returns the unfinished broadcasts, including those that cannot continue."""
        return self._call(self._broadcast.tasks)

    def abort(self, broadcast_id: int, reason: str) -> None:
        """Aborts a broadcast; every vchannel that has its copy gets an ABORT_BROADCAST."""
        self._call(self._broadcast.abort, broadcast_id, reason)

    def statistics(self) -> BroadcasterStatistics:
        """Returns the counts of this moment, and those since the log was opened."""
        return self._thread.run(self._broadcast.statistics)


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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


class BlockingWAL:
    """An open log for blocking callers. Get one from `blocking`. See `WALAccesser` for what the calls guarantee."""

    if not TYPE_CHECKING:  # a type checker knows the names

        def __getattr__(self, name: str) -> object:
            from wal.api.guesses import missing_call

            raise AttributeError(missing_call(type(self), name), name=name, obj=self)

    def __init__(self, log: WALAccesser, thread: LoopThread) -> None:
        self._log = log
        self._thread = thread
        self._call = thread.call
        thread.closing = log.close

    def __repr__(self) -> str:
        return repr(self._log).replace(type(self._log).__name__, type(self).__name__, 1)

    # -- writing

    @overload
    def append(
        self,
        vchannel: str,
        payload: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        deliver_at: None = None,
    ) -> AppendResult: ...

    @overload
    def append(
        self,
        vchannel: str,
        payload: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        idempotency_key: ProducerKey,
        deliver_at: None = None,
    ) -> AppendResult | ForgottenResult: ...

    @overload
    def append(
        self,
        vchannel: str,
        payload: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        deliver_at: datetime,
    ) -> ScheduledResult: ...

    def append(
        self,
        vchannel: str,
        payload: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        idempotency_key: str | ProducerKey | None = None,
        deliver_at: datetime | None = None,
        **wrong: Never,
    ) -> AppendResult | ForgottenResult | ScheduledResult:
        """Appends a payload to a vchannel as an INSERT, which is durable on return. Interrupting the caller does not undo the append.

        With `deliver_at` it is appended at that time; see `WALAccesser.append`.
        """
        if wrong:
            from wal.api.guesses import unknown_keywords

            raise unknown_keywords(self.append, wrong)

        async def append() -> AppendResult | ForgottenResult | ScheduledResult:
            call: Any = self._log.append
            result: AppendResult | ForgottenResult | ScheduledResult = await call(
                vchannel, payload, properties=properties, idempotency_key=idempotency_key, deliver_at=deliver_at
            )
            return result

        return self._call(append)

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
                message, barrier_time_tick=barrier_time_tick, idempotency_key=idempotency_key, expected_last=expected_last
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
                message, barrier_time_tick=barrier_time_tick, idempotency_key=idempotency_key, expected_last=expected_last
            )

        return self._call(_started, start)

    def append_messages(self, *messages: Message, barrier_time_tick: int = 0) -> AppendResponses:
        """Appends messages. Two or more for one vchannel are one transaction, with its bodies in input order."""
        return self._call(self._log.append_messages, *messages, barrier_time_tick=barrier_time_tick)

    def append_messages_with_option(self, option: AppendOption, *messages: Message) -> AppendResponses:
        """Appends messages as `append_messages` does, with the barrier of the option."""
        return self._call(self._log.append_messages_with_option, option, *messages)

    def append_bulk(self, messages: Iterable[Message] | Message, *more: Message) -> list[AppendResult]:
        """Appends any number of messages in order, without a transaction. An iterable is iterated in the caller's thread."""
        return self._call(self._log.append_bulk, list(one_or_several("append_bulk", messages, more)))

    def scheduled(self, vchannel: str) -> BlockingSchedule:
        """Returns the messages of a vchannel that wait for their time, the earliest first."""
        from wal.api.scheduled import BlockingSchedule

        return BlockingSchedule(self._call(self._log.scheduled, vchannel), self._call)

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
        return BlockingBroadcast(self._thread.run(self._log.broadcast), self._thread)

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
        **wrong: Never,
    ) -> BlockingScanner:
        """Returns a scanner: a context manager and a plain iterator of messages. The read begins when it is entered.

        A `handler` is called in a thread of a pool, one message at a time; it may block and use the log.
        """
        if wrong:
            from wal.api.guesses import unknown_keywords

            raise unknown_keywords(self.read, wrong)
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
        scanner = self._thread.run(read) if auto_ack else read()
        return BlockingScanner(scanner, self._thread)

    def latest_tick(self, vchannel: str) -> int:
        """Returns a tick that covers every write to this vchannel that has returned; `scanner.wait_for` it to read your writes."""
        return self._call(self._log.latest_tick, vchannel)

    def get_latest_mvcc_timestamp_if_local(self, vchannel: str) -> int:
        """Returns what `latest_tick` returns, under the name that it has in Milvus."""
        return self.latest_tick(vchannel)

    def last(self, vchannel: str) -> MessageID | None:
        """Returns the id of the vchannel's last durable event, for `expected_last`; None if it never had one, or does not exist."""
        return self._call(self._log.last, vchannel)

    def cursors(self) -> list[CursorInfo]:
        """Returns all cursors, by name and vchannels."""
        return self._call(self._log.cursors)

    def peek(self, cursor: str, n: int = 1, *, vchannels: str | Sequence[str] | None = None) -> list[ImmutableMessage]:
        """Returns the next `n` messages of a saved cursor, or as many as are durable, and does not move it."""
        return self._call(self._log.peek, cursor, n, vchannels=vchannels)

    def delete_cursor(self, name: str, *, vchannels: str | Sequence[str] | None = None) -> None:
        """Deletes the cursor of this name and these vchannels; None deletes all of this name."""
        self._call(self._log.delete_cursor, name, vchannels=vchannels)

    def seek(
        self,
        cursor: str,
        *,
        to: DeliverPolicy | ReadPosition | MessageID | datetime,
        vchannels: str | Sequence[str] | None = None,
        reset: bool = False,
    ) -> None:
        """Moves a saved cursor, also back; durable on return. The next reader, and a consumer that runs, go on there."""
        self._call(self._log.seek, cursor, to=to, vchannels=vchannels, reset=reset)

    # -- consumers

    def consume(
        self,
        vchannels: str | Sequence[str],
        handler: Callable[[Any], Any],
        *,
        cursor: str,
        concurrency: int = 1,
        order: Literal["vchannel", "key", "none"] = "vchannel",
        key: Callable[[ImmutableMessage], str | bytes] | None = None,
        attempts: int = 5,
        backoff_s: tuple[float, float] = (0.1, 30.0),
        on_failure: Literal["block", "park"] = "block",
        dead_letter: str | None = None,
        batch: int | None = None,
        timeout_s: float | None = None,
        type: PayloadType[Any] | type[Any] | None = None,
        exclusive: Literal["wait", "error"] = "wait",
        **wrong: Never,
    ) -> BlockingConsumer:
        """Returns a consumer: `with log.consume("jobs", handle, cursor="worker"):` runs `handle` on each message, and drains it.

        A handler that is a plain function runs in a thread, and may use this log; an async one runs on the loop of the log.
        """
        if wrong:
            from wal.api.guesses import unknown_keywords

            raise unknown_keywords(self.consume, wrong)
        return BlockingConsumer(
            self._log.consume(
                vchannels,
                handler,
                cursor=cursor,
                concurrency=concurrency,
                order=order,
                key=key,
                attempts=attempts,
                backoff_s=backoff_s,
                on_failure=on_failure,
                dead_letter=dead_letter,
                batch=batch,
                timeout_s=timeout_s,
                type=type,
                exclusive=exclusive,
            ),
            self._thread,
        )

    def consumers(self) -> list[ConsumerStatistics]:
        """Returns the counts of the consumers that run in this process, by cursor."""
        return self._thread.run(self._log.consumers)

    def redrive(self, dead_letter: str) -> int:
        """Appends the dead letters of a vchannel to where they came from, each once, and returns how many they were."""
        return self._call(self._log.redrive, dead_letter)

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
        return self._thread.run(self._log.statistics)

    @property
    def location(self) -> str:
        """Where the log is, without passwords."""
        return self._log.location

    @property
    def backend(self) -> str:
        """The name of the backend: "journal", "memory" or "pulsar"."""
        return self._thread.run(lambda: self._log.backend)

    @property
    def wal_name(self) -> str:
        """The name of the backend, under the name that it has in Milvus."""
        return self.backend

    def close(self) -> None:
        """Drains what is in flight, closes the log and ends the thread. Idempotent, from any thread; concurrent calls all wait."""
        self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    # -- transactions

    @overload
    def append_txn(
        self,
        vchannel: str | Sequence[str],
        messages: Iterable[Message | bytes] | Message | bytes,
        *more: Message | bytes,
        barrier_time_tick: int = 0,
        idempotency_key: str | None = None,
        expected_last: ExpectedLast = UNCHECKED,
    ) -> AppendResult: ...

    @overload
    def append_txn(
        self,
        vchannel: str | Sequence[str],
        messages: Iterable[Message | bytes] | Message | bytes,
        *more: Message | bytes,
        barrier_time_tick: int = 0,
        idempotency_key: ProducerKey,
        expected_last: ExpectedLast = UNCHECKED,
    ) -> AppendResult | ForgottenResult: ...

    def append_txn(
        self,
        vchannel: str | Sequence[str],
        messages: Iterable[Message | bytes] | Message | bytes,
        *more: Message | bytes,
        barrier_time_tick: int = 0,
        idempotency_key: str | ProducerKey | None = None,
        expected_last: ExpectedLast = UNCHECKED,
    ) -> AppendResult | ForgottenResult:
        """Appends a whole transaction, which is durable on return. Interrupting the caller does not undo it."""
        bodies = body_list(one_or_several("append_txn", messages, more))

        async def append() -> AppendResult | ForgottenResult:
            return await self._log.append_txn(
                vchannel, bodies, barrier_time_tick=barrier_time_tick, idempotency_key=idempotency_key, expected_last=expected_last
            )

        return self._call(append)

    @overload
    def txn(
        self,
        vchannel: str | None = None,
        *,
        vchannels: Sequence[str] | None = None,
        keepalive: float = 0.0,
        idempotency_key: str | None = None,
        expected_last: ExpectedLast = UNCHECKED,
    ) -> BlockingTxn[AppendResult]: ...

    @overload
    def txn(
        self,
        vchannel: str | None = None,
        *,
        vchannels: Sequence[str] | None = None,
        keepalive: float = 0.0,
        idempotency_key: ProducerKey,
        expected_last: ExpectedLast = UNCHECKED,
    ) -> BlockingTxn[AppendResult | ForgottenResult]: ...

    def txn(
        self,
        vchannel: str | None = None,
        *,
        vchannels: Sequence[str] | None = None,
        keepalive: float = 0.0,
        idempotency_key: str | ProducerKey | None = None,
        expected_last: ExpectedLast = UNCHECKED,
    ) -> BlockingTxn[AppendResult | ForgottenResult]:
        """Begins a transaction: `append`, then `commit` or `rollback`. As a context manager it commits, or rolls back on an exception."""

        async def begin() -> Txn[AppendResult | ForgottenResult]:
            return await self._log.txn(
                vchannel, vchannels=vchannels, keepalive=keepalive, idempotency_key=idempotency_key, expected_last=expected_last
            )

        return BlockingTxn(self._call(begin), self._thread)


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
