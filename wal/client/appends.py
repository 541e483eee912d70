"""RemoteAppends: how messages and transactions get from a call to the producer of their pchannel.

Owns the order in which an append is checked and sent: first the checks, then the room in flight, and last the vchannel, since looking it
up may create it. While the server is asked for the pchannel of an unknown vchannel, its messages already have their turn on the pchannel
that the name would get, so that calls keep their order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final
from weakref import WeakSet

from msgspec import structs

from wal.channels.vchannels import VChannelInfo, check_vchannel, place
from wal.client.directory import ShownVChannels
from wal.client.outbox import Hold, Sending, Withdrawable
from wal.client.producer import Producer
from wal.client.txn import RemoteTxn
from wal.errors import ChannelNotExistError, InvalidArgumentError, WALError, defect
from wal.message import AppendResult, ForgottenResult, Message, MessageType, type_properties
from wal.requests.appends import PLAIN, WriteOptions
from wal.requests.cursors import CursorSave
from wal.requests.txns import AppendTxn, BeginTxn
from wal.runtime.tasks import keep_task
from wal.settings import Settings
from wal.write.bulk import Piece
from wal.write.checks import (
    LETTER_BYTES,
    bodies_of,
    check_client_type,
    check_is_message,
    check_size,
    kept_key_ext,
    spans_pchannels,
    uniform,
)
from wal.write.idempotency.keys import Key
from wal.write.in_flight import InFlight
from wal.write.txn_table import BODY_OVERHEAD, TxnLimits, check_txn_size, names_size

Locate = Callable[[tuple[str, ...]], Awaitable[list[VChannelInfo]]]
"""Asks the server where these vchannels are; it creates those that do not exist, or raises ChannelNotExistError."""


class RemoteAppends:
    """The writing calls of a log on the network; see `wal.engine.Appends`. `settings` are those of the log."""

    def __init__(
        self,
        known: ShownVChannels,
        producers: Mapping[str, Producer],
        in_flight: InFlight,
        settings: Settings,
        limits: TxnLimits,
        *,
        locate: Locate,
        save_of: Callable[..., CursorSave],
    ) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._create_future = loop.create_future
        self._known = known
        self._producers = producers
        self._in_flight = in_flight
        self._settings = settings
        self._limits = limits
        self._locate = locate
        self._save_of = save_of
        self._held: dict[str, tuple[Hold, Producer]] = {}
        self._dropping: set[str] = set()
        self._txns: WeakSet[RemoteTxn] = WeakSet()
        self._tasks: set[asyncio.Task[None]] = set()
        self.message_bytes_max: int = settings.message_bytes_max

    # -- one message

    def append(self, message: Message, options: WriteOptions = PLAIN, *, taken: bool = False) -> asyncio.Future[Any] | None:
        """Sends a message; returns None without room for it (`taken`: the caller has taken it). The hot path of a client."""
        if message.__class__ is not Message or message.message_type is not _INSERT or options is not PLAIN:
            return self._append_special(message, options, taken=taken)
        size = len(message.payload) if not message.properties else message.estimate_size()
        if size > self.message_bytes_max:
            check_size(message, bytes_max=self.message_bytes_max)
        size += BODY_OVERHEAD
        in_flight = self._in_flight
        if not taken and not in_flight.has_room(size):
            return None
        future = self._create_future()
        sending = Sending(future, size, message)
        self._route(message.vchannel, sending).add(sending)
        if not taken:
            in_flight.size += size
        return future

    def _append_special(self, message: Message, options: WriteOptions, *, taken: bool) -> asyncio.Future[Any] | None:
        """Sends a message of any type with any options; returns None as `append` does."""
        size = self._size(message, options.key)
        if message.message_type is not _INSERT:
            check_client_type(message.message_type)
        in_flight = self._in_flight
        if not taken and not in_flight.has_room(size):
            return None
        future: asyncio.Future[Any]
        future = Withdrawable(loop=self._loop) if options.may_wait else self._create_future()
        sending = Sending(future, size, message, options, repeatable=options.key is not None)
        self._route(message.vchannel, sending).add(sending)
        if not taken:
            in_flight.size += size
        if message.message_type is not _INSERT and type_properties(message.message_type).exclusive:
            future.add_done_callback(partial(self._ended_transactions, message))
        return future

    def _ended_transactions(self, message: Message, future: asyncio.Future[AppendResult | ForgottenResult]) -> None:
        """Takes the outcome of a message that no transaction may span."""
        if not future.cancelled() and future.exception() is None and (tick := future.result().time_tick) is not None:
            self._known.appended(message.vchannel, message.message_type, tick)

    def no_room(self, message: Message) -> BaseException:
        """Returns why a message has no room in flight."""
        return self._in_flight.refusal(message.estimate_size() + BODY_OVERHEAD)

    async def append_waiting(self, message: Message, options: WriteOptions = PLAIN) -> Any:
        """Appends a message when there is room for it."""
        size = self._size(message, options.key)
        future: asyncio.Future[Any] = await self._in_flight.sent(size, lambda: self.append(message, options, taken=True))
        return await future

    # -- many messages

    async def append_txn(self, request: AppendTxn) -> AppendResult | ForgottenResult:
        """Appends a whole transaction, in one request."""
        names, key = request.vchannels, request.options.key
        bodies = bodies_of(request.bodies, names, bytes_max=self.message_bytes_max)
        key_bytes = 0 if key is None else len(kept_key_ext(key, self._settings))
        size = bodies.stored + names_size(names, key_bytes=key_bytes)
        check_txn_size(len(bodies.records), bodies.counted, size, self._limits)
        request = structs.replace(request, bodies=uniform(request.bodies, names))
        if len(names) > 1:
            await self._one_producer(names)
        await self._in_flight.take(size)
        future: asyncio.Future[AppendResult | ForgottenResult] = Withdrawable(loop=self._loop)
        sending = Sending(future, size, options=request.options, request=request, repeatable=request.is_repeatable)
        try:
            self._route(names[0], sending).add(sending)
        except BaseException:
            self._in_flight.release(size)
            raise
        return await future

    def pieces(self, messages: Sequence[Message]) -> AsyncGenerator[Piece, None]:
        """Sends checked messages in their order, each a piece; see `wal.engine.Appends`."""
        used: dict[str, int | None] = {}

        def send(message: Message) -> asyncio.Future[Any] | None:
            self._check_same(message.vchannel, used)  # after the wait for room, during which it may have been dropped
            return self.append(message, taken=True)

        async def sent() -> AsyncGenerator[Piece, None]:
            for message in messages:
                yield await self._in_flight.sent(self._checked_size(message), partial(send, message)), 1

        return sent()

    async def begin_txn(self, request: BeginTxn) -> RemoteTxn:
        """Opens a transaction."""
        if (key := request.options.key) is not None:
            kept_key_ext(key, self._settings)
        producer = await self._one_producer(request.vchannels)
        begun = await producer.ask(request)
        bytes_max = self.message_bytes_max
        txn = RemoteTxn(producer, self._in_flight, self._known, begun, request, self._limits, self._save_of, bytes_max=bytes_max)
        self._txns.add(txn)
        return txn

    def commit_with(self, messages: Sequence[Message], save: CursorSave, home: str) -> asyncio.Future[Any]:
        """Sends a whole transaction that saves a cursor, or the save alone; its vchannels must be on this pchannel.

        It takes room without asking. It may be sent again, since its number is recognised.
        """
        names = tuple(dict.fromkeys([message.vchannel for message in messages]))
        bodies = bodies_of(messages, names, bytes_max=self.message_bytes_max + LETTER_BYTES) if names else None
        size = names_size(save.key.vchannels, key_bytes=len(save.state))
        if bodies is not None:
            for name in names:
                if (info := self._known.records.get(check_vchannel(name))) is not None and info.pchannel != home:
                    raise InvalidArgumentError(
                        f"vchannel {name!r} is on pchannel {info.pchannel}, and cursor {save.key.name!r} is kept in the log of pchannel "
                        f"{home}: what is written together with a save has to be on that pchannel"
                    )
            size += bodies.stored + names_size(names, key_bytes=0)
            check_txn_size(len(bodies.records), bodies.counted, size, self._limits)
        request = AppendTxn(names, bodies=messages, save=save)
        future: asyncio.Future[Any] = self._create_future()
        sending = Sending(future, size, request=request, repeatable=request.is_repeatable)
        producer = self._route(names[0], sending) if names else self._producers[home]
        if producer is not self._producers[home]:
            raise InvalidArgumentError(
                f"vchannel {names[0]!r} would be created on another pchannel than {home}, where cursor {save.key.name!r} is kept: create "
                f"it there with create_vchannel(…, pchannel={home!r})"
            )
        producer.add(sending)
        self._in_flight.force(size)
        return future

    async def close(self) -> None:
        """Rolls back what is open, and waits until the pchannel of every vchannel is known for which requests wait."""
        for txn in list(self._txns):
            txn.close()
        for hold, guessed in self._held.values():
            if hold.finding is not None and not guessed.holds(hold):
                hold.finding.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)

    # -- the way to a producer

    def _check_same(self, name: str, used: dict[str, int | None]) -> None:
        """Raises ChannelNotExistError if a bulk has `used` this vchannel, and it was dropped since: its rest would be in another one."""
        info = self._known.records.get(name)
        before = used.get(name)
        if before is not None and (name in self._dropping or info is None or info.incarnation != before):
            raise ChannelNotExistError(f"vchannel {name!r} was dropped: append to it again to recreate it")
        used[name] = None if info is None else info.incarnation

    def _checked_size(self, message: Message) -> int:
        """Returns the room that a message takes in flight."""
        check_is_message(message)
        size = message.estimate_size()
        if size > self.message_bytes_max:
            check_size(message, bytes_max=self.message_bytes_max)
        return size + BODY_OVERHEAD

    def _size(self, message: Message, key: Key | None) -> int:
        """Returns the bytes that a message takes in flight, with its key; raises InvalidArgumentError for a key that is not kept."""
        size = self._checked_size(message)
        return size if key is None else size + len(kept_key_ext(key, self._settings))

    async def _one_producer(self, names: tuple[str, ...]) -> Producer:
        """Returns the producer of a transaction's vchannels; raises InvalidArgumentError if they are on several pchannels."""
        for name in names:
            check_vchannel(name)
        if any(name not in self._known.records for name in names):
            await self._locate(names)
        places = {name: self._known.records[name].pchannel for name in names}
        if len(set(places.values())) > 1:
            raise spans_pchannels(places)
        return self._producers[places[names[0]]]

    def _route(self, name: str, sending: Sending) -> Producer:
        """Returns the producer for this vchannel. If the vchannel is not known, the request is held until the server has answered."""
        info = self._known.records.get(name)
        if info is not None and name not in self._held:
            return self._producers[info.pchannel]
        if (held := self._held.get(name)) is None:
            check_vchannel(name)
            held = Hold(), self._producers[place(name, list(self._producers))]
            self._begin_finding(name, *held)
            self._held[name] = held  # which that task ends
        sending.hold, producer = held
        return producer

    async def dropping(self, name: str, drop: Callable[[], Awaitable[None]]) -> None:
        """Drops a vchannel in the order of the calls: after what was appended to it before, and before what is appended from now on."""
        info = self._known.records.get(name)
        if info is None or name in self._held:
            await drop()
            return
        producer, hold = self._producers[info.pchannel], Hold()
        taken = producer.all_taken()
        self._held[name] = hold, producer
        self._dropping.add(name)
        try:
            if taken is not None:
                await taken
            await drop()
        finally:
            self._dropping.discard(name)
            if producer.holds(hold):
                self._begin_finding(name, hold, producer)
            else:
                del self._held[name]

    def _begin_finding(self, name: str, hold: Hold, guessed: Producer) -> None:
        hold.finding = task = self._loop.create_task(self._find(name, hold, guessed), name=f"locate {name}")
        keep_task(self._tasks, task)

    async def _find(self, name: str, hold: Hold, guessed: Producer) -> None:
        producer = guessed
        with self._ending(name, hold, guessed) as moving:
            (info,) = await self._locate((name,))
            producer = self._producers[info.pchannel]
            if producer is not guessed:
                moving += guessed.withdraw(hold)
                while moving:
                    producer.add(moving[0])
                    moving.popleft()
        producer.wake()

    @contextmanager
    def _ending(self, name: str, hold: Hold, guessed: Producer) -> Iterator[deque[Sending]]:
        """Ends the hold with the block, whatever happens in it. Yields where the block keeps requests that it moves.

        After an exception those, and the requests that still wait for the hold, get it.
        """
        moving: deque[Sending] = deque()
        try:
            yield moving
        except BaseException as error:
            guessed.fail([*guessed.withdraw(hold), *moving], _not_located(name, error))
            if not isinstance(error, Exception):
                raise
        finally:
            del self._held[name]
            hold.pending = False
            guessed.wake()


def _not_located(name: str, error: BaseException) -> WALError:
    """Returns the error of requests for a vchannel whose pchannel could not be found."""
    if isinstance(error, WALError):
        return error
    return defect(f"locating vchannel {name!r} failed", error)


_INSERT: Final = MessageType.INSERT
