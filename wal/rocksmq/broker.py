"""Broker: the actor of a RocksMQ. One turn takes all calls that wait, writes once, syncs once, then answers.

Owns the catalog, the thread that alone touches the store, and the consumers that wait. Promises: calls on one channel take effect in their
order; what is answered is durable (but for the position of `consume` with auto_ack, see there); nobody is shown a message before it is;
a consumer that goes away has taken nothing. A failing disk ends it: later calls get that error.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

from actors import Actor, ActorError, InboxFullError
from wal.errors import (
    ChannelNotExistError,
    ClosedError,
    InnerError,
    InvalidArgumentError,
    TruncatedError,
    WALError,
)
from wal.rocksmq.catalog import Catalog
from wal.rocksmq.changes import Changes
from wal.rocksmq.channel import Channel, Group
from wal.rocksmq.keys import ID_MAX, NOTHING, prefix_end
from wal.rocksmq.message import ConsumerMessage
from wal.rocksmq.requests import Ack, Change, Consume, Produce, Retain, Seek, Withdraw
from wal.rocksmq.retention import pages_to_drop
from wal.rocksmq.settings import RocksMQSettings
from wal.rocksmq.store import Store
from wal.rocksmq.waiting import Waiting

__all__ = ["Broker", "IDAllocator"]

T = TypeVar("T")
_log: Final = logging.getLogger("wal.rocksmq")


class IDAllocator(Protocol):
    """The seeds' allocator: `count` ids in a row, positive, above all that it gave before; `wal.timestamp.IdAllocator` is one."""

    def alloc(self, count: int) -> Awaitable[range]: ...


class Broker(Actor):
    """Told the structs of `wal.rocksmq.requests`."""

    def __init__(
        self, store: Store, catalog: Catalog, settings: RocksMQSettings, allocator: IDAllocator | None
    ) -> None:
        self.catalog = catalog
        self.in_flight_bytes: int = 0
        self.writes: int = 0
        self.produced: int = 0
        self.consumed: int = 0
        self.pages_dropped: int = 0
        self._store = store
        self._settings = settings
        self._allocator = allocator
        self._thread = ThreadPoolExecutor(1, "rocksmq")
        self._compactions = ThreadPoolExecutor(1, "rocksmq-compaction")
        self._waiting = Waiting()
        self._serving: list[Consume] = []
        """Those in hand who waited: no inbox and no batch has them."""
        self._timer: asyncio.TimerHandle | None = None

    def waiting(self, channel: str, group: str) -> int:
        """How many calls of `consume` wait."""
        return sum(not consume.reply.done() for consume in self._waiting.of(channel, group))

    async def started(self) -> None:
        self._look_later()

    async def receive_control(self, message: Withdraw) -> None:
        """Takes back what a consumer has not got, before anybody else asks; others who wait get it."""
        consume = message.consume
        if message.messages:
            changes = Changes()
            await self._take_back(consume, message.messages, changes)
            if changes:
                await self._run(self._store.write, changes, sync=False)
            await self._consume(self._waiting.take(consume.channel))
        else:
            self._waiting.remove(consume)

    async def receive(self, batch: list[Any]) -> None:
        for part in _in_order(batch):
            await self._turn(part)

    async def _turn(self, batch: list[Any]) -> None:
        changes = Changes()
        answers: list[tuple[asyncio.Future[Any], Any]] = []
        consumes: list[Consume] = []
        now_us = time.time_ns() // 1000
        produced: dict[str, Channel] = {}
        dropped: list[Channel] = []
        sought: list[str] = []
        try:
            first = await self._take_ids(batch, changes)
        except (
            Exception
        ) as error:  # whatever an allocator raises is an answer to those who wanted ids, and to nobody else
            batch, first = self._without_ids(batch, error), 0
        for request in batch:
            try:
                if type(request) is Produce:
                    first = self._produce(request, first, now_us, changes, answers, produced)
                elif isinstance(request, Consume):
                    consumes.append(request)
                elif isinstance(request, Retain):
                    count = self._retain(changes, dropped)
                    if request.reply is not None:
                        answers.append((request.reply, count))
                else:
                    if isinstance(request, Seek):
                        await self._seek(request, changes)
                        sought.append(request.channel)
                    elif isinstance(request, Ack):
                        await self._ack(request, changes)
                    else:
                        self._change(request, changes, produced)
                    answers.append((request.reply, None))
            except WALError as error:
                if request.reply is not None and not request.reply.done():
                    request.reply.set_exception(error)
        for channel in produced.values():
            channel.store_end(changes)
        if changes:
            await self._run(self._store.write, changes)
            self.writes += 1
        for reply, answer in answers:
            if not reply.done():
                reply.set_result(answer)
        waited = [consume for name in [*produced, *sought] for consume in self._waiting.take(name)]
        if waited or consumes:
            await self._consume(waited + consumes)
        for channel in dropped:
            compacting = self._compactions.submit(self._store.compact, channel.prefix, prefix_end(channel.prefix))
            compacting.add_done_callback(_compacted)

    async def stopped(self) -> None:
        for consume in self._waiting.take_all():
            if not consume.reply.done():
                consume.reply.set_exception(ClosedError("the RocksMQ was closed while this call waited for messages"))
        self._end_timer()
        await self.close_store()

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        unhandled = [*unhandled, *self._serving, *self._waiting.take_all()]
        for request in unhandled:
            reply = getattr(request, "reply", None)
            if reply is not None and not reply.done():
                reply.set_exception(cause)
            if isinstance(request, Produce):
                self.landed(request)
        self._end_timer()

    async def close_store(self) -> None:
        """Closes the database and ends the threads; idempotent. Only when the actor is through."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._shut)

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
            self.ref.tell(Retain(None))
        except InboxFullError:
            pass  # next time
        except ActorError:
            return
        self._look_later()

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def landed(self, request: Produce) -> None:
        """Its payloads are not in flight any more; once, however often it is said."""
        self.in_flight_bytes -= request.size
        request.size = 0

    def _without_ids(self, batch: list[Any], error: Exception) -> list[Any]:
        """Fails what wanted ids; the rest of the turn."""
        for request in batch:
            if isinstance(request, Produce):
                self.landed(request)
                if not request.reply.done():
                    request.reply.set_exception(error)
        return [request for request in batch if not isinstance(request, Produce)]

    async def _run(self, call: Callable[..., T], *args: Any, **named: Any) -> T:
        """On the store's thread; a cancelled turn waits for it all the same."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: call(*args, **named))

    async def _take_ids(self, batch: list[Any], changes: Changes) -> int:
        count = sum([len(request.payloads) for request in batch if type(request) is Produce])
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
        request: Produce,
        first: int,
        now_us: int,
        changes: Changes,
        answers: list[tuple[asyncio.Future[Any], Any]],
        produced: dict[str, Channel],
    ) -> int:
        behind = first + len(request.payloads)
        self.landed(request)
        channel = self.catalog.channels.get(request.channel)
        if channel is None:
            if not request.reply.done():
                request.reply.set_exception(
                    ChannelNotExistError(f"channel {request.channel!r} does not exist: create_channel() makes it")
                )
            return behind
        channel.produce(request.payloads, first, changes, now_us=now_us, page_bytes=self._settings.page_bytes)
        produced[channel.name] = channel
        self.produced += len(request.payloads)
        answers.append((request.reply, range(first, behind)))
        return behind

    def _change(self, request: Change, changes: Changes, produced: dict[str, Channel]) -> None:
        match request.kind, request.group:
            case "create", None:
                self.catalog.create_channel(request.channel, changes)
            case "create", str(group):
                self.catalog.create_group(group, request.channel, changes, latest=request.latest)
            case "destroy", None:
                channel = self.catalog.channel(request.channel)
                channel.destroy(changes)
                del self.catalog.channels[channel.name]
                produced.pop(channel.name, None)
                self._end_waiting(channel, None)
            case "destroy", str(group):
                channel, _ = self.catalog.group(group, request.channel)
                channel.remove_group(group, changes)
                self._end_waiting(channel, group)

    def _end_waiting(self, channel: Channel, group: str | None) -> None:
        """Those who wait for messages of the channel, or of this group, learn that it was destroyed."""
        for consume in self._waiting.of(channel.name, group):
            self._waiting.remove(consume)
            if not consume.reply.done():
                what = f"channel {channel.name!r}" if group is None else f"consumer group {group!r}"
                consume.reply.set_exception(ChannelNotExistError(f"{what} was destroyed while this call waited"))

    async def _seek(self, request: Seek, changes: Changes) -> None:
        channel, group = self.catalog.group(request.group, request.channel)
        if request.message_id is None:
            behind = channel.last_id
        elif request.message_id == NOTHING:
            behind = self._beginning(channel)
        else:
            behind = await self._found(channel, request.message_id)
            if not request.inclusive:
                behind = request.message_id
        group = channel.groups[group.name] = Group(group.name)  # what was handed out before is nothing to give back
        channel.move(group, behind, changes)

    async def _found(self, channel: Channel, message_id: int) -> int:
        """The id before this one; an error if there is no such message."""
        if message_id <= channel.dropped_id:
            raise self._truncated(channel, f"message {message_id} of channel {channel.name!r} was dropped")
        before = None
        if channel.begin_id <= message_id < channel.end_id:
            before = await self._run(self._store.before, channel.prefix, message_id)
        if before is None:
            raise InvalidArgumentError(
                f"channel {channel.name!r} has no message {message_id}: seek to the id of one, to -1 for the beginning or to the latest"
            )
        return self._beginning(channel) if message_id == channel.begin_id else before

    def _beginning(self, channel: Channel) -> int:
        """The position of a group that reads from the first message that is there."""
        return channel.dropped_id or NOTHING

    async def _ack(self, request: Ack, changes: Changes) -> None:
        channel, group = self.catalog.group(request.group, request.channel)
        if request.message_id > group.read_id:
            raise InvalidArgumentError(
                f"group {group.name!r} was handed messages of {channel.name!r} up to {group.read_id}, not {request.message_id}: "
                "acknowledge what was consumed"
            )
        channel.ack(group, request.message_id, changes, held=await self._held(channel, group))

    async def _held(self, channel: Channel, group: Group) -> int | None:
        """The id before the first message that was given back: the group has consumed nothing behind it. None when there is none."""
        return await self._id_before(channel, group.returned[0].message_id) if group.returned else None

    async def _id_before(self, channel: Channel, message_id: int) -> int:
        """Where a group stands that reads on with this message; where it was dropped, with the first that is left."""
        if message_id <= channel.begin_id:
            return self._beginning(channel)
        before = await self._run(self._store.before, channel.prefix, message_id)
        return self._beginning(channel) if before is None else before

    def _retain(self, changes: Changes, dropped: list[Channel]) -> int:
        total, now_us = 0, time.time_ns() // 1000
        for channel in self.catalog.channels.values():
            count = pages_to_drop(channel, self._settings, now_us=now_us)
            if count:
                channel.drop(count, changes)
                dropped.append(channel)
                total += count
        self.pages_dropped += total
        return total

    async def _consume(self, consumes: list[Consume]) -> None:
        """Answers those for whom there is something; what is left waits. Positions are written once, unsynced, before the answers."""
        while consumes:
            self._serving = consumes
            changes = Changes()
            answers: list[tuple[Consume, list[ConsumerMessage]]] = []
            for consume in consumes:
                if not consume.reply.done():
                    try:
                        messages = await self._serve(consume, changes)
                    except WALError as error:
                        if not consume.reply.done():
                            consume.reply.set_exception(error)
                        continue
                    if messages:
                        answers.append((consume, messages))
            if changes:
                await self._run(self._store.write, changes, sync=False)
            changes, again = Changes(), []
            for consume, messages in answers:
                self.consumed += len(messages)
                if consume.reply.done():  # cancelled meanwhile
                    await self._take_back(consume, messages, changes)
                    again += self._waiting.take(consume.channel)
                else:
                    consume.reply.set_result(messages)
            self._serving = consumes = again
            if changes:
                await self._run(self._store.write, changes, sync=False)

    async def _serve(self, consume: Consume, changes: Changes) -> list[ConsumerMessage]:
        """What this call gets; it waits, or has its empty answer, when there is nothing."""
        channel, group = self.catalog.group(consume.group, consume.channel)
        messages = await self._next(channel, group, consume.count_max)
        if messages:
            first, last = messages[0].message_id, messages[-1].message_id
            acked = last if consume.auto_ack else group.acked_id
            if not consume.auto_ack and first <= group.acked_id:  # acknowledged for one who gave it back
                acked = group.acked_id = await self._id_before(channel, first)
            channel.ack(group, acked, changes, held=await self._held(channel, group))
            consume.taken = group
        elif consume.waits:
            self._waiting.add(consume)
        elif not consume.reply.done():
            consume.reply.set_result([])
        return messages

    async def _take_back(self, consume: Consume, messages: list[ConsumerMessage], changes: Changes) -> None:
        """The next call of the group gets them first, unless it is not where it was when they were handed out."""
        self.consumed -= len(messages)
        channel = self.catalog.channels.get(consume.channel)
        if channel is None or (group := channel.groups.get(consume.group)) is not consume.taken or group is None:
            return
        group.returned = sorted([*group.returned, *messages], key=lambda message: message.message_id)
        channel.ack(group, group.acked_id, changes, held=await self._held(channel, group))

    async def _next(self, channel: Channel, group: Group, count_max: int) -> list[ConsumerMessage]:
        """What the group reads next; the group has read it then."""
        if group.returned:
            messages, group.returned = group.returned[:count_max], group.returned[count_max:]
            return messages
        if channel.is_lost(group):
            raise self._truncated(
                channel, f"messages of channel {channel.name!r} that group {group.name!r} has not consumed were dropped"
            )
        if channel.last_id in (NOTHING, group.read_id) or group.read_id > channel.last_id:
            return []
        messages = await self._run(
            self._store.scan,
            channel.prefix,
            group.read_id,
            channel.begin_id,
            channel.last_id,
            count_max=count_max,
            bytes_max=self._settings.consume_bytes_max,
        )
        group.read_id = messages[-1].message_id
        return messages

    def _truncated(self, channel: Channel, what: str) -> TruncatedError:
        earliest = None if channel.begin_id == channel.end_id else channel.begin_id
        return TruncatedError(
            f"{what}; the earliest is {earliest}: seek to it, to -1 or to the latest", earliest=earliest
        )


def _compacted(compacting: Future[Any]) -> None:
    """Space that was not given back now is given back by RocksDB in time; why it failed is still told."""
    if not compacting.cancelled() and (error := compacting.exception()) is not None:
        _log.warning("the space of dropped pages could not be given back at once", exc_info=error)


def _in_order(batch: list[Any]) -> Iterator[list[Any]]:
    """The batch in parts, so that what moves or ends a group comes behind the calls of `consume` that were made before it."""
    part: list[Any] = []
    consuming: set[str] = set()
    for request in batch:
        if isinstance(request, Consume):
            consuming.add(request.channel)
        elif consuming and isinstance(request, Seek | Ack | Change) and request.channel in consuming:
            yield part
            part, consuming = [], set()
        part.append(request)
    yield part
