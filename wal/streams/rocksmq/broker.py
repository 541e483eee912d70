"""Broker: the actor of a RocksMQ. One turn takes all waiting calls, writes once, syncs once, then answers.

Owns the catalog, and the only thread that uses the store. It guarantees that calls on one channel take effect in order, and that every
answered change is durable (except the position of `consume` with auto_ack, see there). No message is visible before it is durable, and a
cancelled consumer has taken nothing. A disk error ends the broker: later calls raise that error.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

import msgspec

from actors import Actor, ActorError, InboxFullError
from wal.errors import ChannelNotExistError, ClosedError, InnerError, WALError
from wal.runtime.threads import in_thread
from wal.streams.rocksmq.catalog import Catalog
from wal.streams.rocksmq.channel import Channel, pages_to_drop
from wal.streams.rocksmq.consuming import Consuming
from wal.streams.rocksmq.keys import ID_MAX, TurnWrites, prefix_end
from wal.streams.rocksmq.requests import ChangeRequest, ConsumeRequest, ProduceRequest, WithdrawRequest
from wal.streams.rocksmq.settings import RocksMQSettings
from wal.streams.rocksmq.store import Store

T = TypeVar("T")
_log: Final = logging.getLogger("wal.rocksmq")


class IDAllocator(Protocol):
    """Milvus' allocator: `count` consecutive ids, positive, above all earlier ones. `wal.timestamp.IdAllocator` is an implementation."""

    def alloc(self, count: int) -> Awaitable[range]:
        """Returns the next `count` ids."""


class RocksMQStatistics(msgspec.Struct, frozen=True):
    """Counters since the RocksMQ was opened. `writes` counts synced write batches; `produced` and `consumed` count messages;
    `in_flight_bytes` is the size of the payloads that wait to be written.
    """

    channels: int
    groups: int
    writes: int
    produced: int
    consumed: int
    in_flight_bytes: int
    pages_dropped: int


class Broker(Actor):
    """The actor; its messages are the structs of `wal.streams.rocksmq.requests`."""

    def __init__(self, store: Store, catalog: Catalog, settings: RocksMQSettings, allocator: IDAllocator | None) -> None:
        self.catalog = catalog
        self.in_flight_bytes: int = 0
        self.writes: int = 0
        self.produced: int = 0
        self.pages_dropped: int = 0
        self._store = store
        self._settings = settings
        self._allocator = allocator
        self._thread = ThreadPoolExecutor(1, "rocksmq")
        self._compactions = ThreadPoolExecutor(1, "rocksmq-compaction")
        self.consuming: Consuming = Consuming(store, catalog, self._run, bytes_max=settings.consume_bytes_max)
        self._dropped: list[Channel] = []
        """The channels that lost pages in this turn."""
        self._timer: asyncio.TimerHandle | None = None

    async def started(self) -> None:
        self._look_later()

    async def receive_control(self, message: WithdrawRequest) -> None:
        """Returns a cancelled consumer's messages to its group before any other call; waiting calls then get them."""
        consume = message.consume
        if message.messages:
            changes = TurnWrites()
            await self.consuming.take_back(consume, message.messages, changes)
            if changes:
                await self._run(self._store.write, changes, sync=False)
            await self.consuming.consume(self.consuming.waiting.take(consume.channel))
        else:
            self.consuming.waiting.remove(consume)

    async def receive(self, batch: list[Any]) -> None:
        for part in _in_order(batch):
            await self._turn(part)

    async def _turn(self, batch: list[Any]) -> None:
        changes = TurnWrites()
        answers: list[tuple[asyncio.Future[Any] | None, Any]] = []
        consumes: list[ConsumeRequest] = []
        now_us = time.time_ns() // 1000
        produced: dict[str, Channel] = {}
        sought: list[str] = []
        try:
            first = await self._take_ids(batch, changes)
        except Exception as error:  # An allocator's error is the answer to the calls that need ids, and to no others.
            batch, first = self._without_ids(batch, error), 0
        for request in batch:
            try:
                if type(request) is ProduceRequest:
                    first = self._produce(request, first, now_us, changes, answers, produced)
                elif isinstance(request, ConsumeRequest):
                    consumes.append(request)
                else:
                    answer = request.change(changes)
                    if isinstance(answer, Awaitable):
                        answer = await answer
                    answers.append((request.reply, answer))
                    if request.wakes:
                        sought.append(request.channel)
            except WALError as error:
                if request.reply is not None and not request.reply.done():
                    request.reply.set_exception(error)
        for channel in produced.values():
            if self.catalog.channels.get(channel.name) is channel:  # otherwise it was destroyed later in this turn
                channel.store_end(changes)
        if changes:
            await self._run(self._store.write, changes)
            self.writes += 1
        for reply, answer in answers:
            if reply is not None and not reply.done():
                reply.set_result(answer)
        waited = [consume for name in [*produced, *sought] for consume in self.consuming.waiting.take(name)]
        if waited or consumes:
            await self.consuming.consume(waited + consumes)
        dropped, self._dropped = self._dropped, []
        for channel in dropped:
            compacting = self._compactions.submit(self._store.compact, channel.prefix, prefix_end(channel.prefix))
            compacting.add_done_callback(_compacted)

    async def stopped(self) -> None:
        for consume in self.consuming.waiting.take_all():
            if not consume.reply.done():
                consume.reply.set_exception(ClosedError("the RocksMQ was closed while this call waited for messages"))
        self._end_timer()
        await self.close_store()

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        unhandled = [*unhandled, *self.consuming.serving, *self.consuming.waiting.take_all()]
        for request in unhandled:
            reply = getattr(request, "reply", None)
            if reply is not None and not reply.done():
                reply.set_exception(cause)
            if isinstance(request, ProduceRequest):
                self.landed(request)
        self._end_timer()

    async def close_store(self) -> None:
        """Closes the database and ends the threads; idempotent. Call it only after the actor has ended."""
        await in_thread(self._shut)

    def _shut(self) -> None:
        self._compactions.shutdown(cancel_futures=True)
        self._thread.shutdown()
        self._store.close()

    def _look_later(self) -> None:
        settings = self._settings
        if settings.retention_bytes is None and settings.retention_s is None:
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(settings.retention_interval_s, self._look)

    def _look(self) -> None:
        try:
            self.ref.tell(ChangeRequest(None, self.retain))
        except InboxFullError:
            pass  # the next check retries it
        except ActorError:
            return
        self._look_later()

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def landed(self, request: ProduceRequest) -> None:
        """Stops counting the payloads of a request as in flight; a second call changes nothing."""
        self.in_flight_bytes -= request.size
        request.size = 0

    def _without_ids(self, batch: list[Any], error: Exception) -> list[Any]:
        """Fails the requests that need ids, and returns the rest of the turn."""
        for request in batch:
            if isinstance(request, ProduceRequest):
                self.landed(request)
                if not request.reply.done():
                    request.reply.set_exception(error)
        return [request for request in batch if not isinstance(request, ProduceRequest)]

    async def _run(self, call: Callable[..., T], *args: Any, **named: Any) -> T:
        """Runs a call on the store's thread. A cancelled turn still waits for the call."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: call(*args, **named))

    async def _take_ids(self, batch: list[Any], changes: TurnWrites) -> int:
        count = sum([len(request.payloads) for request in batch if type(request) is ProduceRequest])
        if not count:
            return 0
        if self._allocator is None:
            return self.catalog.take_ids(count, changes)
        try:
            ids = await self._allocator.alloc(count)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise InnerError("the id allocator was cancelled: produce again when it works") from None
        if len(ids) != count or ids.step != 1 or not self.catalog.next_id <= ids.start <= ID_MAX - count:
            raise InnerError(
                f"the id allocator gave {ids} for {count} ids: they must be that many in a row, at or above {self.catalog.next_id} "
                f"and below {ID_MAX}"
            )
        self.catalog.next_id = ids.start
        self.catalog.take_ids(count, changes)
        return ids.start

    def _produce(
        self,
        request: ProduceRequest,
        first: int,
        now_us: int,
        changes: TurnWrites,
        answers: list[tuple[asyncio.Future[Any] | None, Any]],
        produced: dict[str, Channel],
    ) -> int:
        end = first + len(request.payloads)
        self.landed(request)
        channel = self.catalog.channels.get(request.channel)
        if channel is None:
            if not request.reply.done():
                request.reply.set_exception(ChannelNotExistError(f"channel {request.channel!r} does not exist: create_channel() makes it"))
            return end
        channel.produce(request.payloads, first, changes, now_us=now_us, page_bytes=self._settings.page_bytes)
        produced[channel.name] = channel
        self.produced += len(request.payloads)
        answers.append((request.reply, range(first, end)))
        return end

    def retain(self, changes: TurnWrites) -> int:
        """Drops the pages that retention allows to drop; returns their number."""
        total, now_us = 0, time.time_ns() // 1000
        for channel in self.catalog.channels.values():
            count = pages_to_drop(channel, self._settings, now_us=now_us)
            if count:
                channel.drop(count, changes)
                self._dropped.append(channel)
                total += count
        self.pages_dropped += total
        return total


def _compacted(compacting: Future[Any]) -> None:
    """Logs why space could not be reclaimed at once; RocksDB reclaims it eventually."""
    if not compacting.cancelled() and (error := compacting.exception()) is not None:
        _log.warning("the space of dropped pages could not be given back at once", exc_info=error)


def _in_order(batch: list[Any]) -> Iterator[list[Any]]:
    """Yields the batch in parts, so that a call that moves or ends a group runs after all earlier calls of `consume`."""
    part: list[Any] = []
    consuming: set[str] = set()
    for request in batch:
        if isinstance(request, ConsumeRequest):
            consuming.add(request.channel)
        elif consuming and isinstance(request, ChangeRequest) and request.channel in consuming:
            yield part
            part, consuming = [], set()
        part.append(request)
    yield part
