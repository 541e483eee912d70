"""WALAccesser: the log as its users see it. Every public call starts here.

Owns the checks of arguments: a wrong type is a TypeError, a wrong value an InvalidArgumentError, and both are raised before anything is
sent. It has no state of its own: `Lifecycle` has the state of the log, and the engine that it opened serves the calls
(`wal/engine.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal, Never, overload

from actors import Actor, ActorRef
from wal.api.append_options import (
    AppendOption,
    AppendResponses,
    ExpectedLast,
    TxnOptions,
    append_all,
    append_groups,
    explained,
    message_of,
    message_options,
    one_or_several,
    options_of,
)
from wal.api.broadcast import LogBroadcast
from wal.api.consuming import check_only
from wal.api.lifecycle import Lifecycle
from wal.api.txn import Txn, TxnOpening, body_list, check_keepalive, txn_vchannels
from wal.channels.channels import CHANNELS_MAX, ChannelDescription, check_channel_names
from wal.channels.owners import OwnerDescription
from wal.channels.vchannels import VChannelInfo, check_vchannel, check_vchannels
from wal.engine import LogStatistics
from wal.errors import ConflictError, InvalidArgumentError
from wal.message import AppendResult, ForgottenResult, ImmutableMessage, Message, MessageID, ScheduledResult
from wal.message.matching import Matching
from wal.read.cursors.cursor import CursorInfo, CursorKey, check_cursor
from wal.read.cursors.service import Cursors, CursorUse
from wal.read.options import READ_TAKES, DeliverFilter, DeliverPolicy, ReadOptions, ReadPosition, Selection, named
from wal.read.pchannel import ReadablePChannel
from wal.read.scanner import AckingScanner, Handler, Scanner, check_handler
from wal.requests.appends import NO_BARRIER, PLAIN, UNCHECKED, Unchecked, WriteOptions
from wal.requests.pchannels import ForgetProducer, LastEvent, LatestTick, ListProducers, Retention, Truncate
from wal.requests.request import Answer, Request
from wal.requests.rights import Right
from wal.requests.txns import AppendTxn, BeginTxn
from wal.requests.vchannels import (
    AllocateTimeTicks,
    CreateChannels,
    CreateVChannel,
    DescribeChannels,
    DestroyChannels,
    DropVChannel,
    ListVChannels,
)
from wal.timestamp.checks import check_seconds, number_text
from wal.write.idempotency.keys import ProducerInfo, ProducerKey

if TYPE_CHECKING:
    from datetime import datetime
    from typing import Unpack

    from wal.api.scheduled import Schedule
    from wal.api.typed import TypedLog
    from wal.consumers.consumer import Consumer, ConsumerInfo
    from wal.consumers.delivery import Delivery
    from wal.consumers.options import ConsumeOptions
    from wal.engine import ReadableEngine
    from wal.message.payloads import CodecOption, PayloadType, T, Upcast
    from wal.operate.status.server import StatusServer
    from wal.requests.pchannels import PChannelRetention
    from wal.runtime.secret import Secret


class WALAccesser:
    """A log that is open or being opened. Get one from `open_wal` or `WAL()`, and use it on the event loop that opened it.

    A call from another event loop, or from a forked child, raises InvalidArgumentError. A log, scanner or transaction that is
    garbage-collected while it is open is released with a `ResourceWarning`.
    """

    if not TYPE_CHECKING:  # for type checkers

        def __getattr__(self, name: str) -> object:
            from wal.api.guesses import missing_call  # needed only once, by a new user

            raise AttributeError(missing_call(type(self), name), name=name, obj=self)

    def __init__(self, location: str, make_engine: Callable[[], Awaitable[ReadableEngine]], *, read_only: bool = False) -> None:
        self._lifecycle = Lifecycle(location, make_engine, read_only=read_only)
        self._broadcast = LogBroadcast(self._lifecycle)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._lifecycle.location!r}, {self._lifecycle.state})"

    @property
    def location(self) -> str:
        """Where the log is, without passwords."""
        return str(self._lifecycle.location)

    def serve_status(
        self, host: str = "127.0.0.1", port: int = 0, *, token: str | Secret | None = None, readiness_needs_consumers: bool = True
    ) -> StatusServer:
        """Serves the status page of the log, within `async with` or until its `close()`; its `address` is a URL. Needs the extra `status`.

        Actions need the token. `/readyz` is 503 while a consumer has ended with an error, unless `readiness_needs_consumers=False`.
        Raises InvalidArgumentError for another address than loopback without a token; serving raises StorageError if nothing can listen
        there. Close it before the log.
        """
        from wal.location import parse_location
        from wal.operate.status.server import StatusServer

        lifecycle = self._lifecycle
        writes = lifecycle.engine is not None
        directory = parse_location(lifecycle.location).path
        settings = getattr(lifecycle.readable_nowait(), "settings", None)
        return StatusServer(
            self,
            host,
            port,
            token=token,
            directory=directory,
            settings=settings,
            publish=writes,
            readiness_needs_consumers=readiness_needs_consumers,
        )

    # -- writing

    @overload
    async def append(
        self,
        vchannel: str,
        payload: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        deliver_at: None = None,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> AppendResult: ...

    @overload
    async def append(
        self,
        vchannel: str,
        payload: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        idempotency_key: ProducerKey,
        deliver_at: None = None,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> AppendResult | ForgottenResult: ...

    @overload
    async def append(
        self,
        vchannel: str,
        payload: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        deliver_at: datetime,
    ) -> ScheduledResult: ...

    async def append(
        self,
        vchannel: str,
        payload: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        idempotency_key: str | ProducerKey | None = None,
        deliver_at: datetime | None = None,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
        **wrong: Never,
    ) -> AppendResult | ForgottenResult | ScheduledResult:
        """Appends a payload to a vchannel as an INSERT; it is durable when the call returns.

        The short form of `raw_append(Message(vchannel, payload, properties=…))`, with its guarantees and errors, and with its
        `expected_last`, which a message with `deliver_at` cannot have. `raw_append` also takes other types of messages and a barrier.

        With `deliver_at`, a datetime with a time zone, the message is durable when the call returns, and is appended at that time, exact to
        `time_tick_interval_s`, with a tick at or above it; at once if the time has passed. Messages of a pchannel are appended in the order
        of their times. Returns a ScheduledResult, whose key `(await log.scheduled(vchannel)).cancel(key)` takes. A key of a message that
        waits, or that is remembered, schedules nothing again (`duplicate`). Raises InvalidArgumentError for a time without a zone, a time
        beyond the year 4199 and a ProducerKey; WouldBlockError past `scheduled_max` or `scheduled_bytes_max`.
        """
        if wrong:
            from wal.api.guesses import unknown_keywords

            raise unknown_keywords(self.append, wrong)
        message = message_of(vchannel, payload, properties)
        if deliver_at is not None:
            from wal.api.scheduled import schedule_message  # most clients schedule nothing, and import less

            if expected_last is not UNCHECKED:
                raise InvalidArgumentError(
                    "expected_last= is compared when a message is appended, and a message with deliver_at waits: leave one of them out"
                )
            return await schedule_message(self._lifecycle, message, deliver_at, idempotency_key)
        return await self.raw_append(message, idempotency_key=idempotency_key, expected_last=expected_last)

    @overload
    async def raw_append(
        self,
        message: Message,
        *,
        barrier_time_tick: int = 0,
        idempotency_key: str | None = None,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> AppendResult: ...

    @overload
    async def raw_append(
        self,
        message: Message,
        *,
        barrier_time_tick: int = 0,
        idempotency_key: ProducerKey,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> AppendResult | ForgottenResult: ...

    async def raw_append(
        self,
        message: Message,
        *,
        barrier_time_tick: int = 0,
        idempotency_key: str | ProducerKey | None = None,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> AppendResult | ForgottenResult:
        """Appends a message; it is durable when the call returns.

        The call waits for room when too much is in flight. Cancelling the caller does not undo the append. With a barrier, everything
        at or below the barrier is in the log before the message, and the message's tick is above it.

        With an idempotency key that this vchannel has seen, nothing is written, and the first result is returned with `duplicate`. If an
        append with the key is in flight, the call shares its result, or its failure. An older duplicate of a producer, whose result is no
        longer kept, returns a ForgottenResult. Raises InvalidRequestSeqError if a producer's sequence is below one in flight, or follows a
        failed one; WouldBlockError past `producers_max`.

        With `expected_last` the message is written only if this is the id of its vchannel's last event, or with None if the vchannel never
        had an event; an event in flight counts. Otherwise nothing is written, and a ConflictError has the id of the last event in `.last`.
        It is judged when the append joins its frame, after its barrier and its key: a retry with a key returns the first result. Raises
        InvalidArgumentError for an id of another log, or of a body of the last transaction.

        A key is a text of 1 to 255 bytes of UTF-8, or a `ProducerKey`; it belongs to its vchannel, and contents are not compared: the first
        write counts. See docs/howto/idempotent-retries.md for how long keys are remembered.
        """
        lifecycle = self._lifecycle
        engine = lifecycle.engine
        if engine is None or get_ident() != lifecycle.thread or not lifecycle.is_running():
            engine = await lifecycle.ready()
        appends = engine.appends
        options = PLAIN
        if barrier_time_tick is not NO_BARRIER or idempotency_key is not None or expected_last is not UNCHECKED:
            options = message_options(message, barrier_time_tick, idempotency_key, expected_last)
        future = appends.append(message, options)
        result: AppendResult | ForgottenResult
        try:
            result = await (future or appends.append_waiting(message, options))
        except ConflictError as error:
            raise await explained(engine, error, options.expected_last) from None
        return result

    @overload
    def append_nowait(
        self,
        message: Message,
        *,
        barrier_time_tick: int = 0,
        idempotency_key: str | None = None,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> asyncio.Future[AppendResult]: ...

    @overload
    def append_nowait(
        self,
        message: Message,
        *,
        barrier_time_tick: int = 0,
        idempotency_key: ProducerKey,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> asyncio.Future[AppendResult | ForgottenResult]: ...

    def append_nowait(
        self,
        message: Message,
        *,
        barrier_time_tick: int = 0,
        idempotency_key: str | ProducerKey | None = None,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> asyncio.Future[Any]:
        """Appends a message without waiting, and returns a future of the result.

        Calls are ordered within a pchannel, except that others may pass an append that waits for its barrier. Raises WouldBlockError if too
        much is in flight, or while the log is being opened. The future of an append with `expected_last` may raise a ConflictError, also if
        the id is that of a body.
        """
        appends = self._lifecycle.ready_nowait().appends
        options = PLAIN
        if barrier_time_tick is not NO_BARRIER or idempotency_key is not None or expected_last is not UNCHECKED:
            options = message_options(message, barrier_time_tick, idempotency_key, expected_last)
        future = appends.append(message, options)
        if future is None:
            raise appends.no_room(message)
        return future

    async def append_messages(self, *messages: Message, barrier_time_tick: int = 0) -> AppendResponses:
        """Appends messages; two or more for one vchannel form one transaction, with its bodies in input order.

        Returns one response for each message, in input order: the result or the error of its vchannel. Vchannels are independent of each
        other. The barrier is that of `raw_append`, for each of the appends.
        """
        options = WriteOptions(barrier_time_tick) if barrier_time_tick is not NO_BARRIER else PLAIN
        return await append_groups((await self._lifecycle.ready()).appends, messages, options)

    async def append_messages_with_option(self, option: AppendOption, *messages: Message) -> AppendResponses:
        """Appends messages as `append_messages` does, with the barrier of the option: the form of Milvus' protocol."""
        if not isinstance(option, AppendOption):
            raise TypeError(f"the first argument is an AppendOption, not {type(option).__name__}")
        return await self.append_messages(*messages, barrier_time_tick=option.barrier_time_tick)

    async def append_bulk(self, messages: Iterable[Message] | Message, *more: Message) -> list[AppendResult]:
        """Appends any number of messages in order, without a transaction, split into frames as needed.

        `messages` is one iterable, or they are several arguments.

        A failure in the middle raises a BulkAppendError, which is also of the class of its cause. Its `.results` are those of the messages
        before the first that is not known to be durable, `.outcomes` has the result or the error of each, and `.remaining` the messages
        that are not known to be durable, all in order: `await log.append_bulk(error.remaining)` continues.
        """
        several = one_or_several("append_bulk", messages, more)
        return await append_all((await self._lifecycle.ready()).appends, list(several))

    async def scheduled(self, vchannel: str) -> Schedule:
        """Returns the messages of a vchannel that wait for their time (`append(…, deliver_at=…)`), the earliest first.

        Raises NotLocalError if the log was opened from its files with `read_only=True`: the schedule is in the memory of its writer.
        """
        from wal.api.scheduled import Schedule
        from wal.requests.schedule import ListScheduled

        messages = await self._submit(ListScheduled(vchannel))
        return Schedule(self._lifecycle, vchannel, messages)

    async def producers(self) -> list[ProducerInfo]:
        """Returns the producers that are remembered, by name: one entry for each vchannel (or set of them) that a producer appends to."""
        infos = await self._submit(ListProducers())
        return sorted(infos, key=lambda info: (info.name, info.vchannels))

    async def forget_producer(self, name: str) -> None:
        """Forgets a producer on all vchannels, durably. That makes room under `producers_max`, and its sequences may start over.

        Raises InvalidArgumentError if the producer is not known, WouldBlockError while its appends are in flight.
        """
        await self._submit(ForgetProducer(name))

    async def allocate_time_tick(self) -> int:
        """Returns a time tick above every tick allocated before, for use as a barrier."""
        return (await (await self._lifecycle.ready()).submit(AllocateTimeTicks())).first

    def broadcast(self) -> LogBroadcast:
        """Returns the calls of the log's broadcaster, which appends one message to many vchannels on any pchannels."""
        self._lifecycle.check_writable()
        return self._broadcast

    # -- reading

    def read(
        self,
        vchannel: str | Sequence[str] | Matching,
        *,
        deliver_policy: DeliverPolicy | None = None,
        filters: DeliverFilter | Iterable[DeliverFilter] = (),
        handler: Handler | None = None,
        follow: bool = True,
        until_time_tick: int | None = None,
        resume: ReadPosition | None = None,
        cursor: str | None = None,
        include_time_ticks: bool = False,
        auto_ack: bool = False,
        **wrong: Never,
    ) -> Scanner:
        """Returns a scanner over one vchannel, or over several of one pchannel in tick order. The read begins when the scanner is entered.

        With `Matching("account-*")` the scanner reads all vchannels whose names match, on all pchannels, in the order of their ticks. A
        vchannel that is created later joins with its first event, and a dropped vchannel leaves silently. One position covers all of them.

        With `follow=False` the read ends after the last event that was durable when it began, with `until_time_tick=T` after everything at
        or below T. `resume` continues exactly after a `scanner.position`, and excludes a policy. `cursor` continues after the position that
        `scanner.save()` stored under that name for these vchannels; without a stored position the read begins at the policy. A stale cursor
        raises TruncatedError until `delete_cursor`. With a `handler` the scanner runs by itself once entered. `auto_ack` acknowledges each
        copy of a broadcast when the handler has returned, or when the loop asks for the next message or page.

        A vchannel that does not exist is read as an empty log until it is created; after 5 s without one, a warning lists the most similar
        names. With `create_vchannels=False` the read raises ChannelNotExistError.
        """
        if wrong:
            from wal.api.guesses import unknown_keywords

            raise unknown_keywords(self.read, wrong)
        names = vchannel if isinstance(vchannel, Matching) else check_vchannels(vchannel, READ_TAKES)
        check_handler(handler)
        options = ReadOptions.of(
            names,
            deliver_policy=deliver_policy,
            filters=filters,
            follow=follow,
            until_time_tick=until_time_tick,
            resume=resume,
            include_time_ticks=include_time_ticks,
        )
        use = None
        if cursor is not None:
            if resume is not None:
                raise InvalidArgumentError("resume=… and cursor=… both set the position: give one of them")
            use = CursorUse(check_cursor(cursor), names, self._cursors)
        if not isinstance(auto_ack, bool):
            raise TypeError(f"auto_ack must be a bool, not {auto_ack!r}")
        attach = self._attach if options.pattern is None else self._attach_matching
        if not auto_ack:
            return Scanner(options, attach=attach, handler=handler, cursor=use)
        self._lifecycle.check_writable()
        return AckingScanner(options, attach=attach, ack=self._broadcast.ack, handler=handler, cursor=use)

    def typed(
        self,
        vchannel: str,
        kind: type[T],
        *,
        codec: CodecOption[T] | None = None,
        version: int = 1,
        upcast: Mapping[int, Upcast] | None = None,
    ) -> TypedLog[T]:
        """Returns a vchannel whose payloads are values of a type: `orders = log.typed("orders", Order)`, `await orders.append(order)`.

        The type is a msgspec.Struct, a dataclass, a builtin type or a pydantic model, stored as JSON (or `codec="msgpack"`), or
        any type with `codec=(encode, decode)`. Values carry `version` in the property `payload_version`; `upcast={1: f}` has, for each
        older version, a function from its decoded value to that of the next. Raises InvalidArgumentError for a gap between them.
        """
        from wal.api.typed import TypedLog
        from wal.message.payloads import PayloadType

        return TypedLog(self, vchannel, PayloadType(kind, codec=codec, version=version, upcast=upcast))

    async def latest_tick(self, vchannel: str) -> int:
        """Returns a tick that covers every write to this vchannel that has returned; `scanner.wait_for` it to read your own writes.

        Raises NotLocalError if another process writes the vchannel.
        """
        return await self._submit(LatestTick(vchannel))

    async def get_latest_mvcc_timestamp_if_local(self, vchannel: str) -> int:
        """Returns what `latest_tick` returns, under the name that it has in Milvus.

        A client of a cluster gets NotLocalError unless a streaming node on this process's own loop has the vchannel.
        """
        return await self._submit(LatestTick(vchannel, local=True))

    async def last(self, vchannel: str) -> MessageID | None:
        """Returns the id of the vchannel's last durable event, for `expected_last`; None if it never had one, or does not exist.

        A plain message, a transaction (the id of its commit) and a copy of a broadcast are events. The id outlives restarts, and is known
        even if the event is truncated. A vchannel that was dropped and recreated begins without an event. Raises ChannelNotExistError if
        the vchannel does not exist and an append would not create it.
        """
        return await self._submit(LastEvent(vchannel))

    async def cursors(self) -> list[CursorInfo]:
        """Returns all cursors, by name and vchannels. A damaged one is left out with a warning, and `retention()` names it."""
        return await (await self._cursors()).infos()

    async def peek(self, cursor: str, n: int = 1, *, vchannels: str | Sequence[str] | None = None) -> list[ImmutableMessage]:
        """Returns the next `n` messages of a saved cursor, or as many as are durable, and does not move it.

        A transaction is one message. Raises InvalidArgumentError if no cursor of this name, or of this name and these vchannels, is saved,
        or if there are several and `vchannels` does not say which; TruncatedError if the cursor is stale.
        """
        names = _cursor_vchannels("peek", cursor, vchannels)
        if not isinstance(n, int) or isinstance(n, bool):
            raise TypeError(f"n must be a number of messages (int), not {type(n).__name__}")
        if n < 1:
            raise InvalidArgumentError(f"n={number_text(n)} is out of range: 1 or more")
        saved = [info for info in await self.cursors() if info.name == cursor and names in (None, info.vchannels)]
        if not saved:
            of = "" if names is None else f" of {named(names)}"
            raise InvalidArgumentError(f"no cursor {cursor!r}{of} is saved: cursors() lists the saved ones")
        check_only(cursor, [info.vchannels for info in saved])
        messages: list[ImmutableMessage] = []
        async with self.read(
            Matching(saved[0].pattern) if saved[0].pattern else saved[0].vchannels, cursor=cursor, follow=False
        ) as scanner:
            async for message in scanner:
                messages.append(message)
                if len(messages) == n:
                    break
        return messages

    async def seek(
        self,
        cursor: str,
        *,
        to: DeliverPolicy | ReadPosition | MessageID | datetime,
        vchannels: str | Sequence[str] | None = None,
        reset: bool = False,
    ) -> None:
        """Moves a saved cursor, also back; durable when it returns. The next reader continues there, and so does a running consumer.

        `to` is a deliver policy, a position, a moment, or the id of the next message. `vchannels` selects one of several cursors of this
        name, and creates a missing one. Finished messages and attempts that a consumer has saved in the cursor are forgotten. With `reset`
        a stale cursor begins again there too.

        Raises InvalidArgumentError if no cursor of this name is saved, or several are and `vchannels` selects none; TruncatedError if the
        target is truncated, or the cursor is stale; NotLocalError in a process that only reads the log, for a cursor that moves with
        transactions.
        """
        from wal.api.consuming import seek

        names = _cursor_vchannels("seek", cursor, vchannels)
        await seek(self._lifecycle, self._attach, self._attach_matching, self._cursors, cursor, to, names, reset=reset)

    async def delete_cursor(self, name: str, *, vchannels: str | Sequence[str] | None = None) -> None:
        """Deletes the cursor of this name and these vchannels, or (None) all of this name, including stale and damaged ones.

        The deletion is durable when the call returns. A missing cursor raises nothing, since another caller may have deleted it. A reader
        that uses the cursor continues, and its next `save()` recreates it.
        """
        names = _cursor_vchannels("delete_cursor", name, vchannels)
        await (await self._cursors()).delete(name, names)

    # -- housekeeping

    async def truncate(self, *, up_to: MessageID) -> None:
        """Truncates a pchannel up to this event, inclusive. Reads end there exactly; files are removed segment by segment.

        An id that is truncated already raises nothing. An id above the durable end, or of another log, raises an InvalidArgumentError. So
        does an id past an event that a live cursor or an unfinished broadcast still needs: nothing is truncated then, and the error names
        the holders.
        """
        await self._submit(Truncate(up_to))

    async def retention(self) -> list[PChannelRetention]:
        """Returns the held bytes, the bounds and the holders of each pchannel."""
        reports = await self._submit(Retention())
        return list(reports)

    def statistics(self) -> LogStatistics:
        """Returns the counts since the log was opened; with `read_only=True` those of writing are 0."""
        return self._lifecycle.readable_nowait().statistics()

    @property
    def backend(self) -> str:
        """The name of the backend: "journal", "memory" or "pulsar"."""
        return self._lifecycle.readable_nowait().name

    @property
    def wal_name(self) -> str:
        """The name of the backend, under the name that it has in Milvus."""
        return self.backend

    async def close(self) -> None:
        """Drains what is in flight, then closes the log. Idempotent; concurrent calls all wait, and cancelling one does not stop it.

        Once the event loop that opened the log has ended, a task of any other loop may call it: files, threads and locks are released, and
        the next opening recovers as after a crash. Appends in flight when the loop ended have an unknown outcome. Raises a StorageError,
        after everything is released, if the directory was removed or replaced.
        """
        await self._lifecycle.close()

    def _begin(self) -> None:
        """Starts opening the log, on the running loop. Without this call, the first call that needs the log starts it."""
        self._lifecycle.begin()

    async def _wait_open(self) -> None:
        """Returns when the log is open; raises the error of the opening."""
        await self._lifecycle.readable()

    async def _submit(self, request: Request[Answer]) -> Answer:
        """Returns the answer to a request. A request that changes the log needs a log that was opened for writing."""
        lifecycle = self._lifecycle
        engine = await (lifecycle.readable() if request.right is Right.READ else lifecycle.ready())
        return await engine.submit(request)

    async def _cursors(self) -> Cursors:
        return (await self._lifecycle.readable()).cursors

    async def _attach(self, vchannels: tuple[str, ...]) -> tuple[ReadablePChannel, Selection, Callable[[Actor, str], ActorRef]]:
        """Returns the pchannel that these vchannels are read on, and the vchannels as they are now."""
        return await (await self._lifecycle.readable()).attach(vchannels)

    async def _attach_matching(
        self, pattern: Matching
    ) -> tuple[Sequence[tuple[ReadablePChannel, Selection]], Callable[[Actor, str], ActorRef]]:
        """Returns all pchannels, each with the vchannels on it that match."""
        return await (await self._lifecycle.readable()).attach_matching(pattern)

    # -- consumers

    @overload
    def consume(
        self,
        vchannels: str | Sequence[str] | Matching,
        handler: Callable[[Delivery], Any],
        *,
        cursor: str,
        batch: None = None,
        type: None = None,
        **options: Unpack[ConsumeOptions],
    ) -> Consumer: ...

    @overload
    def consume(
        self,
        vchannels: str | Sequence[str] | Matching,
        handler: Callable[[list[Delivery]], Any],
        *,
        cursor: str,
        batch: int,
        type: None = None,
        **options: Unpack[ConsumeOptions],
    ) -> Consumer: ...

    @overload
    def consume(
        self,
        vchannels: str | Sequence[str] | Matching,
        handler: Callable[[Delivery[T]], Any],
        *,
        cursor: str,
        batch: None = None,
        type: PayloadType[T] | type[T],
        **options: Unpack[ConsumeOptions],
    ) -> Consumer: ...

    @overload
    def consume(
        self,
        vchannels: str | Sequence[str] | Matching,
        handler: Callable[[list[Delivery[T]]], Any],
        *,
        cursor: str,
        batch: int,
        type: PayloadType[T] | type[T],
        **options: Unpack[ConsumeOptions],
    ) -> Consumer: ...

    def consume(
        self,
        vchannels: str | Sequence[str] | Matching,
        handler: Callable[[Any], Any],
        *,
        cursor: str,
        concurrency: int = 1,
        order: Literal["vchannel", "key", "none"] = "vchannel",
        key: Callable[[ImmutableMessage], str | bytes] | str | None = None,
        attempts: int = 5,
        backoff_s: tuple[float, float] = (0.1, 30.0),
        on_failure: Literal["block", "park"] = "block",
        dead_letter: str | None = None,
        batch: int | None = None,
        timeout_s: float | None = None,
        type: PayloadType[Any] | type[Any] | None = None,
        exclusive: Literal["wait", "error"] = "wait",
        trip_after: int | None = None,
        shared: bool = False,
        lease_s: float = 10.0,
        **wrong: Never,
    ) -> Consumer:
        """Returns a consumer: `async with log.consume("jobs", handle, cursor="worker"):` runs `handle` on each message, and drains it.

        The handler (async, or sync in a thread) gets a `Delivery` for each body, or with `batch=100` a list of up to 100. An attempt ends
        when the handler returns, raises `Retry(delay_s=…)` or `Reject(reason)`, or raises another exception, which is a failed attempt.
        After `attempts` the message goes to the vchannel `dead_letter`; without one the consumer ends with a HandlerFailedError. Outputs of
        `delivery.append` are committed together with the position of the cursor, if the attempt succeeds.

        With `Matching("account-*")` it handles the messages of all vchannels whose names match. Up to `concurrency` handlers run
        concurrently. `order` is the unit that keeps its order: a vchannel, a key (`key` is the name of a property, or a function of the
        message), or nothing. With `on_failure="block"` later messages of the vchannel or key wait for a retry, with "park" they do not.
        `backoff_s` is the first pause before a retry and the longest; pauses double. `timeout_s` bounds an attempt. With a `type`, payloads
        are decoded to `delivery.value` of a `Delivery[type]`, and an undecodable payload becomes a dead letter. After `trip_after` messages
        in a row that are out of attempts, or undecodable, the consumer pauses until `resume()`, instead of turning a backlog into dead
        letters: after 20 by default with a dead letter, with 0 never.

        A cursor has one consumer. Another consumer waits for the cursor, or with `exclusive="error"` ends with a ResourceAcquiredError. A
        message is handled at least once, and its outputs are in the log once; see docs/howto/consumers.md.

        With `shared=True` any number of consumers share the cursor, in this process and in others that use the same server or cluster. One
        consumer has a message at each moment. A consumer that dies, or shows no life for `lease_s`, loses its messages to the others.
        """
        if wrong:
            from wal.api.guesses import unknown_keywords

            raise unknown_keywords(self.consume, wrong)
        from wal.api.consuming import consume
        from wal.consumers.options import ConsumerOptions

        options = ConsumerOptions.of(
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
            trip_after=trip_after,
            shared=shared,
            lease_s=lease_s,
        )
        return consume(self._lifecycle, options)

    def consumers(self) -> list[ConsumerInfo]:
        """Returns the consumers of this process, by cursor, with state and counts: the running consumers, and those ended by an error.

        An ended consumer is listed until its owner closes it (leaving its block does), or starts another consumer of the cursor.
        """
        registry = self._lifecycle.consumers
        return [] if registry is None else registry.infos()

    async def shared_consumers(self) -> list[ConsumerInfo]:
        """Returns the shared cursors of the log that have consumers in any process, by cursor, each with its members.

        The numbers are those of all members, counted at the home of the cursor since the first one joined. `state` is "running", or
        "tripped" with the `error` for which all members pause. Raises NotLocalError with `read_only=True` beside a log's writer.
        """
        from wal.consumers.consumer import shared_infos
        from wal.requests.work import ListMembers

        cursors = await self._submit(ListMembers())
        return shared_infos(cursors)

    async def redrive(self, dead_letter: str, *, limit_s: float | None = None) -> int:
        """Appends each dead letter of a vchannel once to its original vchannel, and returns their number.

        With `limit_s` the call returns after about so many seconds, but not before it has appended one: 0 means that none is left.
        Dead letters that were redriven before are left out: the cursor "redrive" of the vchannel remembers them, also after a crash. The
        message has its original content and the property `redrive_cursor`: the consumer of that cursor handles it, and other consumers
        finish it unseen. Raises ChannelNotExistError for a vchannel that does not exist, InvalidArgumentError at a message that was not a
        dead letter, ResourceAcquiredError while another call redrives this vchannel.
        """
        from wal.api.consuming import redrive

        return await redrive(self._lifecycle, dead_letter, None if limit_s is None else check_seconds("limit_s", limit_s))

    # -- transactions

    @overload
    async def append_txn(
        self,
        vchannel: str | Sequence[str],
        messages: Iterable[Message | bytes] | Message | bytes,
        *more: Message | bytes,
        barrier_time_tick: int = 0,
        idempotency_key: str | None = None,
        expected_last: ExpectedLast = UNCHECKED,
    ) -> AppendResult: ...

    @overload
    async def append_txn(
        self,
        vchannel: str | Sequence[str],
        messages: Iterable[Message | bytes] | Message | bytes,
        *more: Message | bytes,
        barrier_time_tick: int = 0,
        idempotency_key: ProducerKey,
        expected_last: ExpectedLast = UNCHECKED,
    ) -> AppendResult | ForgottenResult: ...

    async def append_txn(
        self,
        vchannel: str | Sequence[str],
        messages: Iterable[Message | bytes] | Message | bytes,
        *more: Message | bytes,
        barrier_time_tick: int = 0,
        idempotency_key: str | ProducerKey | None = None,
        expected_last: ExpectedLast = UNCHECKED,
    ) -> AppendResult | ForgottenResult:
        """Appends a whole transaction on one vchannel, or on several of one pchannel; it is durable when the call returns.

        `messages` is one iterable, or they are several arguments; `bytes` are an INSERT on its only vchannel. If one message is refused
        (TypeError, InvalidArgumentError), nothing is written.
        The call waits for room when too much is in flight, and cancelling the caller does not undo the transaction. Without messages
        the transaction has no body, and is delivered. The barrier and the idempotency key mean what they mean for `raw_append`; the
        key belongs to the vchannel, or to the set of vchannels, as that of `txn` does. `expected_last` means the same as for `raw_append`;
        for several vchannels it is a mapping from names to ids (or None), and a vchannel that it does not name is not checked.
        """
        names = check_vchannels(vchannel, "append_txn takes the name of a vchannel, or several")
        if not names:
            raise InvalidArgumentError("append_txn([], …) names no vchannel: name at least one")
        bodies = body_list(one_or_several("append_txn", messages, more))
        lifecycle = self._lifecycle
        engine = lifecycle.engine
        if engine is None or get_ident() != lifecycle.thread or not lifecycle.is_running():
            engine = await lifecycle.ready()
        options = PLAIN
        if barrier_time_tick is not NO_BARRIER or idempotency_key is not None or expected_last is not UNCHECKED:
            options = options_of(names, barrier_time_tick, idempotency_key, expected_last)
        try:
            return await engine.appends.append_txn(AppendTxn(names, options, bodies=bodies))
        except ConflictError as error:
            raise await explained(engine, error, options.expected_last) from None

    @overload
    def txn(
        self, vchannel: str | None = None, *, idempotency_key: str | None = None, **options: Unpack[TxnOptions]
    ) -> TxnOpening[AppendResult]: ...

    @overload
    def txn(
        self, vchannel: str | None = None, *, idempotency_key: ProducerKey, **options: Unpack[TxnOptions]
    ) -> TxnOpening[AppendResult | ForgottenResult]: ...

    def txn(
        self,
        vchannel: str | None = None,
        *,
        vchannels: Sequence[str] | None = None,
        keepalive: float = 0.0,
        idempotency_key: str | ProducerKey | None = None,
        expected_last: ExpectedLast = UNCHECKED,
    ) -> TxnOpening[AppendResult | ForgottenResult]:
        """Opens a transaction on one vchannel, or on several of one pchannel: await it, or use `async with`.

        `async with` commits at the end, and rolls back on an exception. The transaction expires after `keepalive` seconds without an
        append; 0 means the setting `txn_keepalive`. An idempotency key is checked at the commit, for the vchannel or the set of vchannels:
        a commit with a key that was seen returns the first result. The commit checks `expected_last` too, as `append_txn` does: after a
        ConflictError nothing is written, and the transaction has ended.
        """
        self._lifecycle.check_writable()
        names = txn_vchannels(vchannel, vchannels)
        check_keepalive(keepalive)
        options = options_of(names, NO_BARRIER, idempotency_key, expected_last)

        async def begin() -> Txn[AppendResult | ForgottenResult]:
            appends = (await self._lifecycle.ready()).appends
            served = await appends.begin_txn(BeginTxn(names, options, keepalive_s=float(keepalive)))
            return Txn(self._lifecycle, served, names, options.expected_last)

        return TxnOpening(begin)

    # -- vchannels and channels

    async def vchannels(self) -> list[VChannelInfo]:
        """Returns all vchannels, by name; with `read_only=True` those of this process's view, which may lag by a moment."""
        infos = await (await self._lifecycle.readable()).submit(ListVChannels())
        return sorted(infos, key=lambda info: info.name)

    async def create_vchannel(self, name: str, *, pchannel: str | None = None) -> VChannelInfo:
        """Creates a vchannel durably; raises ChannelExistError if the name is taken."""
        return await (await self._lifecycle.ready()).submit(CreateVChannel(name, pchannel))

    async def drop_vchannel(self, name: str) -> None:
        """Drops a vchannel: its transactions fail, its readers end, and a recreated vchannel shows nothing of it.

        Once the call has returned, no new read in any process shows anything of it, even after a crash. If readers in other processes
        cannot be told, the call raises NoSpaceError or StorageError: the vchannel is gone here; repeat the call when there is room.
        """
        await (await self._lifecycle.ready()).submit(DropVChannel(name))

    async def create_channels(self, owner: OwnerDescription, count: int = 1) -> list[str]:
        """Creates `count` channels (1 … 60) durably, all or none, and returns their names.

        A channel is a vchannel with an owner and a generated name, which the log uses only once. Once the call has returned, processes that
        read the log see the channels too. A cancelled caller does not learn the names: `describe_channels` lists them.
        """
        request = CreateChannels(owner, count)
        names = await (await self._lifecycle.ready()).submit(request)
        return list(names)

    async def destroy_channels(self, names: Iterable[str]) -> None:
        """Destroys channels (at most 60), all or none: each ends as `drop_vchannel` ends a vchannel.

        Raises ChannelNotExistError if one of the names is not that of a channel: then none is destroyed. If the metadata cannot be written,
        or readers in other processes cannot be told, the call raises the error and may be repeated.
        """
        request = DestroyChannels(check_channel_names(names, names_max=CHANNELS_MAX))
        await (await self._lifecycle.ready()).submit(request)

    async def describe_channels(self, names: Iterable[str] | None = None) -> list[ChannelDescription]:
        """Returns these channels and their owners, in the order of the names; None means all, in the order of their creation.

        The answer has every change that a `create_channels` or `destroy_channels` of any process made before this call began, also with
        `read_only=True`. Raises ChannelNotExistError if one of the names is not that of a channel.
        """
        request = DescribeChannels(None if names is None else check_channel_names(names))
        described = await (await self._lifecycle.readable()).submit(request)
        return list(described)


Log = WALAccesser
"""The same class, under a shorter name for annotations."""


def _cursor_vchannels(call: str, name: str, vchannels: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Returns the vchannels of a cursor as its key has them, None for those of any; raises TypeError or InvalidArgumentError."""
    check_cursor(name)
    if vchannels is None:
        return None
    if not isinstance(vchannels, str | Sequence):
        raise TypeError(f"vchannels must be a name or a sequence of names, not {type(vchannels).__name__}")
    names = CursorKey.of(name, map(check_vchannel, (vchannels,) if isinstance(vchannels, str) else vchannels)).vchannels
    if not names:
        raise InvalidArgumentError(f"{call}(vchannels=[]) names no vchannel: name them, or None for all cursors of this name")
    return names
