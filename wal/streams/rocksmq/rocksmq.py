"""RocksMQ: the calls. Each call checks its arguments here and passes them to the broker, which executes it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from actors import ActorFailedError, ActorRef, ActorStoppedError, ActorSystem, InboxFullError
from wal.errors import ClosedError, InvalidArgumentError, StorageError, WALError, WouldBlockError
from wal.location import absolute_path
from wal.runtime.tasks import AsyncClosing
from wal.runtime.threads import in_thread
from wal.streams.rocksmq.broker import Broker, IDAllocator, RocksMQStatistics
from wal.streams.rocksmq.catalog import Catalog, ChannelInfo
from wal.streams.rocksmq.channel import ConsumerMessage, ProducerMessage
from wal.streams.rocksmq.keys import NOTHING, TurnWrites, check_name
from wal.streams.rocksmq.requests import ChangeRequest, ConsumeRequest, ProduceRequest, WithdrawRequest
from wal.streams.rocksmq.settings import BATCH_MESSAGES_MAX, RocksMQSettings
from wal.streams.rocksmq.store import Store

__all__ = ["IDAllocator", "RocksMQ"]

STOP_TIMEOUT_S = 60.0
"""The time that a close waits for running writes, even on a disk that stalls."""


class RocksMQ(AsyncClosing):
    """Channels of messages, and consumer groups that read them, in one RocksDB. Created by `await RocksMQ.open(…)`.

    A wrong type raises TypeError, a wrong value InvalidArgumentError, an unknown channel or group ChannelNotExistError, and every call
    after `close` ClosedError. When a write fails, that call and all later ones get StorageError until the RocksMQ is reopened.
    """

    def __init__(self, broker: Broker, ref: ActorRef, system: ActorSystem, settings: RocksMQSettings, path: Path) -> None:
        self._broker = broker
        self._consuming = broker.consuming
        self._ref = ref
        self._system = system
        self.settings: RocksMQSettings = settings
        self._path = path
        self._closed = False

    @classmethod
    async def open(
        cls, name: str | os.PathLike[str], id_allocator: IDAllocator | None = None, *, settings: RocksMQSettings | None = None
    ) -> Self:
        """Opens the RocksMQ in the directory `name`, or creates it. A leading `~` is expanded.

        Ids come from `id_allocator`, else from the database itself, which never allocates an id twice. Raises LockedError when the RocksMQ
        is open already, even in this process; FormatError for a directory with other content; CorruptionError for damage; ImportError
        without rocksdict.
        """
        settings = settings or RocksMQSettings()
        path = absolute_path(str(Path(name)), "the directory of a RocksMQ")
        opening = in_thread(_open, path, settings)
        try:
            store, catalog = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_again)
            raise
        broker = Broker(store, catalog, settings, id_allocator)
        system = ActorSystem(f"rocksmq {path}", stop_timeout_s=STOP_TIMEOUT_S)
        try:
            await system.start()
            ref = system.spawn(broker, name="broker", inbox_max=settings.calls_max)
            await ref.wait_started()
        except BaseException:
            await system.stop()
            await broker.close_store()
            raise
        return cls(broker, ref, system, settings, path)

    async def close(self) -> None:
        """Executes the earlier calls, fails waiting consumers with ClosedError, and closes the database. Idempotent."""
        self._closed = True
        await self._system.stop()
        await self._broker.close_store()

    async def create_channel(self, channel_name: str) -> None:
        """Creates an empty channel; raises ChannelExistError when the name exists."""
        check_name("channel_name", channel_name)
        await self._ask(partial(self._broker.catalog.create_channel, channel_name), channel_name)

    async def destroy_channel(self, channel_name: str) -> None:
        """Removes a channel with its messages and groups; waiting consumers get ChannelNotExistError."""
        check_name("channel_name", channel_name)
        await self._ask(partial(self._consuming.destroy, channel_name, None), channel_name)

    async def create_consumer_group(self, group_name: str, channel_name: str, *, latest: bool = False) -> None:
        """Creates a group of a channel that has consumed nothing, or all messages there if `latest`; raises ChannelExistError if it
        exists."""
        _check_names(group_name, channel_name)
        await self._ask(partial(self._broker.catalog.create_group, group_name, channel_name, latest=latest), channel_name)

    async def destroy_consumer_group(self, group_name: str, channel_name: str) -> None:
        """Removes a group and its position; its waiting consumers get ChannelNotExistError."""
        _check_names(group_name, channel_name)
        await self._ask(partial(self._consuming.destroy, channel_name, group_name), channel_name)

    async def produce(self, channel_name: str, messages: Sequence[ProducerMessage | bytes]) -> range:
        """Adds the messages in order, all or none of them; they are durable when it returns. Returns the range of their ids.

        An empty list, more than BATCH_MESSAGES_MAX messages, or bytes above `message_bytes_max` or `batch_bytes_max` raise
        InvalidArgumentError; above `in_flight_bytes_max` it raises WouldBlockError. A cancelled call has happened completely or not at all.
        """
        if channel_name not in self._broker.catalog.channels:
            check_name("channel_name", channel_name)
        payloads = [
            message if type(message) is bytes else _payload(message)
            for message in (messages if type(messages) is list else _sequence(messages))
        ]
        size = self._check_sizes(payloads)
        broker = self._broker
        if broker.in_flight_bytes + size > self.settings.in_flight_bytes_max:
            raise WouldBlockError(
                f"{broker.in_flight_bytes} bytes are waiting to be written, and {size} more would exceed in_flight_bytes_max="
                f"{self.settings.in_flight_bytes_max}: await some calls first"
            )
        self._check_open()
        broker.in_flight_bytes += size
        reply: asyncio.Future[range] = asyncio.get_running_loop().create_future()
        request = ProduceRequest(reply, channel_name, payloads, size)
        try:
            try:
                self._ref.tell(request)
            except InboxFullError:
                await self._ref.tell_wait(request)
        except BaseException as error:
            broker.landed(request)
            reply.cancel()  # a call that was cancelled in the turn in which there was room has reached the broker
            if isinstance(error, ActorFailedError | ActorStoppedError):
                raise self._ended() from error
            raise
        return await reply

    async def consume(
        self, group_name: str, channel_name: str, n: int, *, timeout_s: float | None = 0.0, auto_ack: bool = True
    ) -> list[ConsumerMessage]:
        """Returns the next messages of the group, at most `n` and about `consume_bytes_max` bytes. Returns an empty list if no message
        comes within `timeout_s`.

        With `timeout_s` None it waits without limit; `produce` wakes it. Several consumers of a group share its messages. A cancelled call
        has taken nothing.

        With `auto_ack` the messages count as consumed: the next opening continues after them. (After a power cut, but not after a crash of
        the process, some may be redelivered.) Without it, the next opening begins after the last `ack`. Raises TruncatedError, with the id
        to `seek` to, when retention dropped a message that the group had not consumed.
        """
        _check_names(group_name, channel_name)
        _check_int("n", n)
        if n < 1:
            raise InvalidArgumentError(f"n={n} is out of range: ask for at least 1 message")
        if timeout_s is not None and not timeout_s >= 0:
            raise InvalidArgumentError(f"timeout_s={timeout_s} is out of range: give 0 or more, or None to wait without a limit")
        self._check_open()
        reply: asyncio.Future[list[ConsumerMessage]] = asyncio.get_running_loop().create_future()
        request = ConsumeRequest(reply, group_name, channel_name, n, waits=timeout_s is None or timeout_s > 0, auto_ack=auto_ack)
        try:
            await self._ref.tell_wait(request)
        except (ActorFailedError, ActorStoppedError) as error:
            raise self._ended() from error
        except asyncio.CancelledError:
            reply.cancel()  # a call cancelled in the turn in which there was room has reached the broker
            raise
        try:
            if request.waits:
                await asyncio.wait((reply,), timeout=timeout_s)
                if not reply.done():
                    reply.set_result([])
                    self._withdraw(request, [])
            return await reply
        except asyncio.CancelledError:
            if not reply.done() or reply.cancelled():
                self._withdraw(request, [])
                reply.cancel()
            elif reply.exception() is None and reply.result():
                self._withdraw(request, reply.result())
            raise

    async def ack(self, group_name: str, channel_name: str, message_id: int) -> None:
        """Marks everything up to this id as consumed by the group, durably. An id below the current one changes nothing.

        Raises InvalidArgumentError for an id above the last one delivered to the group.
        """
        _check_names(group_name, channel_name)
        _check_int("message_id", message_id)
        await self._ask(partial(self._consuming.ack, group_name, channel_name, message_id), channel_name)

    async def give_back(self, group_name: str, channel_name: str, messages: Sequence[ConsumerMessage]) -> None:
        """Returns messages that `consume` handed over with `auto_ack=False`: the next calls of the group get them first, in order.

        Raises InvalidArgumentError for an id above the last one delivered to the group.
        """
        _check_names(group_name, channel_name)
        await self._ask(partial(self._consuming.give_back, group_name, channel_name, list(messages)), channel_name, wakes=True)

    async def find(self, channel_name: str, message_id: int) -> None:
        """Returns if the channel has a message of this id, and raises the errors of `seek` otherwise."""
        check_name("channel_name", channel_name)
        _check_int("message_id", message_id)
        await self._ask(partial(self._consuming.find, channel_name, message_id))

    async def seek(self, group_name: str, channel_name: str, message_id: int | None, *, inclusive: bool = False) -> None:
        """Moves the group *after* the message of this id, as if it had consumed it, or before it if `inclusive`; durable when it
        returns.

        -1 is before all messages, None after all of them. Raises InvalidArgumentError for an id that no message of the channel has, and
        TruncatedError for a dropped one.
        """
        _check_names(group_name, channel_name)
        if message_id is not None:
            _check_int("message_id", message_id)
            if message_id < 1 and message_id != NOTHING:
                raise InvalidArgumentError(f"message_id={message_id} is out of range: give an id of at least 1, or -1 for the beginning")
        await self._ask(partial(self._consuming.seek, group_name, channel_name, message_id, inclusive=inclusive), channel_name, wakes=True)

    async def retain(self) -> int:
        """Drops now the pages that retention allows to drop; returns their number. RocksMQ itself does this every
        `retention_interval_s`.
        """
        return int(await self._ask(self._broker.retain))

    def channels(self) -> list[ChannelInfo]:
        """Returns all channels with their groups, by name."""
        self._check_open()
        if self._ref.failure is not None:
            raise self._ended()
        return self._broker.catalog.infos(self._consuming.waiting.count)

    def statistics(self) -> RocksMQStatistics:
        """Returns the current counts."""
        broker = self._broker
        channels = broker.catalog.channels.values()
        return RocksMQStatistics(
            channels=len(channels),
            groups=sum(len(channel.groups) for channel in channels),
            writes=broker.writes,
            produced=broker.produced,
            consumed=self._consuming.consumed,
            in_flight_bytes=broker.in_flight_bytes,
            pages_dropped=broker.pages_dropped,
        )

    def _check_sizes(self, payloads: list[bytes]) -> int:
        settings = self.settings
        if not 0 < len(payloads) <= BATCH_MESSAGES_MAX:
            raise InvalidArgumentError(f"{len(payloads)} messages are too few or too many for one produce: give 1 to {BATCH_MESSAGES_MAX}")
        sizes = [*map(len, payloads)]
        largest = max(sizes)
        if largest > settings.message_bytes_max:
            raise InvalidArgumentError(
                f"a payload of {largest} bytes exceeds message_bytes_max={settings.message_bytes_max}: split it, or raise the setting"
            )
        size = sum(sizes)
        if size > settings.batch_bytes_max:
            raise InvalidArgumentError(
                f"{size} bytes in one produce exceed batch_bytes_max={settings.batch_bytes_max}: produce them in parts"
            )
        return size

    def _withdraw(self, request: ConsumeRequest, messages: list[ConsumerMessage]) -> None:
        try:
            self._ref.tell_control(WithdrawRequest(request, messages))
        except (ActorFailedError, ActorStoppedError):
            pass  # no later call will read it

    async def _ask(self, change: Callable[[TurnWrites], object], channel: str | None = None, *, wakes: bool = False) -> Any:
        self._check_open()
        try:
            return await self._ref.ask(lambda reply: ChangeRequest(reply, change, channel, wakes))
        except (ActorFailedError, ActorStoppedError) as error:
            raise self._ended() from error

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self._path} was closed: open it again")

    def _ended(self) -> WALError:
        cause = self._ref.failure
        if cause is None:
            return ClosedError(f"{self._path} was closed: open it again")
        if isinstance(cause, WALError):
            return StorageError(f"{self._path} failed before: {cause}; open it again")
        return StorageError(f"{self._path} failed before: {cause!r}; open it again")


def _open(path: Path, settings: RocksMQSettings) -> tuple[Store, Catalog]:
    store = Store.open(path, settings)
    try:
        catalog = Catalog.load(store.scan_meta())
        for channel in catalog.channels.values():
            store.check_ends(channel.prefix, channel.begin_id, channel.last_id)
    except BaseException:
        store.close()
        raise
    return store, catalog


def _close_again(opening: asyncio.Future[tuple[Store, Catalog]]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].close()


def _sequence(messages: object) -> Sequence[ProducerMessage | bytes]:
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise TypeError(f"messages must be a sequence of ProducerMessage or bytes, not {type(messages).__name__}")
    return messages


def _payload(message: object) -> bytes:
    payload = message.payload if isinstance(message, ProducerMessage) else message
    if not isinstance(payload, bytes):
        raise TypeError(f"a message is a ProducerMessage or bytes, not {type(payload).__name__}")
    return payload


def _check_names(group_name: str, channel_name: str) -> None:
    check_name("group_name", group_name)
    check_name("channel_name", channel_name)


def _check_int(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not {value!r}")
