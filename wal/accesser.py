"""WALAccesser: the log as its users see it. Every public call begins here.

Owns the checks of arguments (a wrong type is a TypeError, a wrong value an InvalidArgumentError, both before anything is sent), the
bounds that a caller meets, and the routing of a vchannel to its actor. It holds no state of the log itself: `Embedded` does.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

import msgspec

from actors import Actor, ActorError, ActorRef, InboxFullError
from wal.channels import VChannelInfo, check_vchannel
from wal.embedded import Embedded
from wal.errors import (
    ChannelNotExistError,
    ClosedError,
    InvalidArgumentError,
    WALError,
    WouldBlockError,
)
from wal.frame import Record
from wal.message import Message, MessageID, MessageType, encode_properties, type_properties
from wal.pchannel import (
    BODY_OVERHEAD,
    Append,
    AppendResult,
    Atomic,
    Begin,
    Body,
    Bulk,
    Commit,
    Handler,
    OrderedAppend,
    PChannel,
    PChannelStatistics,
    ReadOptions,
    Rollback,
    Scanner,
    VChannel,
    check_handler,
)
from wal.reading import (
    All,
    DeliverFilter,
    DeliverPolicy,
    EventFilter,
    Latest,
    ReadPosition,
    Selection,
    StartAfter,
    StartFrom,
)
from wal.responses import AppendOption, AppendResponses
from wal.txn import Txn, TxnOpening

__all__ = ["LogStatistics", "WALAccesser"]

BULK_BYTES: Final = 1024 * 1024
"""`append_bulk` hands over about so much at a time, …"""
BULK_RECORDS: Final = 1024
"""… in pieces of at most so many messages."""
KEEPALIVE_MIN: Final = 0.001
"""The shortest keepalive, of the seeds' system: 1 ms."""


class LogStatistics(msgspec.Struct, frozen=True):
    """`bytes_in_flight`: handed over and not yet durable. `appends_waiting`: callers that wait for room."""

    wal_name: str
    vchannels: int
    bytes_in_flight: int
    appends_waiting: int
    pchannels: tuple[PChannelStatistics, ...]


class WALAccesser:
    """A log that is open or being opened. Get one from `open_wal` or `WAL()`; use it from the loop that opened it."""

    def __init__(self, location: str, open_log: Callable[[], Coroutine[Any, Any, Embedded]]) -> None:
        self._location = location
        self._open = open_log
        self._loop: asyncio.AbstractEventLoop | None = None
        self._log: Embedded | None = None
        self._opening: asyncio.Task[Embedded] | None = None
        self._unusable: Callable[[], WALError] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._message_bytes_max = 0
        _accessers.add(self)

    # -- writing

    async def raw_append(self, message: Message, *, barrier_time_tick: int = 0) -> AppendResult:
        """Appends a message; durable when it returns.

        With a barrier the tick is above it, and everything at or below the barrier is in the log before. Waits for room when too
        much is in flight. Cancelling the caller does not take the append back.
        """
        log = self._log
        if log is None or self._unusable is not None or asyncio.get_running_loop() is not self._loop:
            log = await self._ready()
        future = self._append(log, message, barrier_time_tick)
        if future is None:
            size = _record_size(self._check_message(message))
            await log.in_flight.take(size)
            try:
                future = self._append(log, message, barrier_time_tick, taken=True)
            except BaseException:
                log.in_flight.release(size)
                raise
            assert future is not None
        return await future

    def append_nowait(self, message: Message, *, barrier_time_tick: int = 0) -> asyncio.Future[AppendResult]:
        """Appends a message without waiting: a future of the result.

        Calls are ordered within a pchannel; only an append that waits for its barrier is set aside. WouldBlockError when too
        much is in flight, or while the log is still being opened.
        """
        log = self._ready_nowait()
        future = self._append(log, message, barrier_time_tick)
        if future is None:
            log.in_flight.take_nowait(
                message.estimate_size() + BODY_OVERHEAD
            )  # raises: that is why there was no future
            raise AssertionError("in-flight room was refused and then granted")
        return future

    async def append_messages(self, *messages: Message) -> AppendResponses:
        """Appends messages; those of one vchannel, if two or more, as one transaction with its bodies in input order.

        One response a message, in input order: its vchannel's result or error. Vchannels are independent of each other.
        """
        return await self.append_messages_with_option(AppendOption(), *messages)

    async def append_messages_with_option(self, option: AppendOption, *messages: Message) -> AppendResponses:
        """`append_messages` with a barrier for each of its appends."""
        if not isinstance(option, AppendOption):
            raise TypeError(f"the first argument is an AppendOption, not {type(option).__name__}")
        log = await self._ready()
        barrier = _check_barrier(option.barrier_time_tick)
        groups: dict[str, list[int]] = {}
        for at, message in enumerate(messages):
            self._check_message(message)
            groups.setdefault(message.vchannel, []).append(at)
        outcomes = await asyncio.gather(
            *(self._append_group(log, [messages[at] for at in group], barrier) for group in groups.values())
        )
        responses: list[AppendResult | WALError | None] = [None] * len(messages)
        for group, outcome in zip(groups.values(), outcomes, strict=True):
            for at in group:
                responses[at] = outcome
        return AppendResponses([response for response in responses if response is not None])

    async def append_bulk(self, messages: Iterable[Message]) -> list[AppendResult]:
        """Appends any number of messages in order, without a transaction, split into frames as they come.

        Failing midway it raises, with `.results` holding those of the messages that are durable, in order.
        """
        log = await self._ready()
        pieces = self._pieces(log, messages)
        futures: list[asyncio.Future[Any]] = []
        failure: BaseException | None = None
        for vchannel, operation in pieces:
            try:
                await log.in_flight.take(operation.size)
                try:
                    _tell(vchannel, operation)
                except WALError:
                    log.in_flight.release(operation.size)
                    raise
            except WALError as error:
                failure = error
                break
            futures.append(operation.future)
            if futures[0].done() and any(future.done() and future.exception() for future in futures):
                break
        results: list[AppendResult] = []
        for outcome in await asyncio.gather(*futures, return_exceptions=True):
            if isinstance(outcome, BaseException):
                failure = failure or outcome
            elif isinstance(outcome, AppendResult):
                results.append(outcome)
            else:
                results += outcome
        if failure is not None:
            failure.results = results  # type: ignore[attr-defined]
            raise failure
        return results

    def _pieces(self, log: Embedded, messages: Iterable[Message]) -> list[tuple[VChannel, Bulk | Append]]:
        """Consecutive messages of one vchannel in pieces of bounded size; what is exclusive stands alone."""
        pieces: list[tuple[VChannel, Bulk | Append]] = []
        create_future = asyncio.get_running_loop().create_future
        for message in messages:
            record = self._check_message(message)
            self._check_clients(message)
            vchannel = log.route(message.vchannel)
            size = _record_size(record)
            if type_properties(message.message_type).exclusive:
                pieces.append((vchannel, self._special(message, 0, record.properties, create_future(), size)))
                continue
            if pieces:
                last, piece = pieces[-1]
                if (
                    last is vchannel
                    and isinstance(piece, Bulk)
                    and piece.size + size <= BULK_BYTES
                    and len(piece.records) < BULK_RECORDS
                ):
                    piece.records.append(record)
                    piece.size += size
                    continue
            pieces.append((vchannel, Bulk([record], size, create_future())))
        return pieces

    def txn(
        self,
        vchannel: str | None = None,
        *,
        vchannels: Sequence[str] | None = None,
        keepalive: float = 0.0,
    ) -> TxnOpening:
        """A transaction on one vchannel, or on several that lie on one pchannel.

        `keepalive`: seconds without an append after which it expires; 0 means the setting `txn_keepalive`, otherwise at least
        1 ms. Await it, or use `async with`: commits at the end, rolls back on an exception.
        """
        if (vchannel is None) == (vchannels is None):
            raise InvalidArgumentError("txn() takes either vchannel=… or vchannels=[…]")
        if isinstance(vchannels, str):
            raise TypeError(f"vchannels must be a sequence of names, not the str {vchannels!r}: use vchannel=…")
        names = tuple(dict.fromkeys((vchannel,) if vchannels is None else vchannels))
        for name in names:
            check_vchannel(name)
        if not names:
            raise InvalidArgumentError("txn(vchannels=[]) names no vchannel: name at least one")
        if not isinstance(keepalive, int | float) or isinstance(keepalive, bool):
            raise TypeError(f"keepalive must be a number of seconds, not {keepalive!r}")
        if keepalive != 0 and not KEEPALIVE_MIN <= keepalive < float("inf"):
            raise InvalidArgumentError(
                f"keepalive={keepalive} is out of range: 0 for the default, otherwise at least {KEEPALIVE_MIN} s"
            )

        async def begin() -> Txn:
            log = await self._ready()
            routes = [log.route(str(name)) for name in names]
            pchannel = routes[0].pchannel
            if any(route.pchannel is not pchannel for route in routes):
                places = ", ".join(f"{route.channel!r} on {route.pchannel.channel}" for route in routes)
                raise InvalidArgumentError(
                    f"a transaction is one frame and cannot span pchannels ({places}): make the vchannels on one pchannel with "
                    "create_vchannel(name, pchannel=…), or use the broadcaster, log.broadcast(), which writes to all of them"
                )
            future = asyncio.get_running_loop().create_future()
            _tell(routes[0], Begin(tuple(map(str, names)), float(keepalive), future))
            return Txn(self, await future, tuple(map(str, names)))

        return TxnOpening(begin)

    async def allocate_time_tick(self) -> int:
        """A time tick above every one given before, for use as a barrier."""
        log = await self._ready()
        return await log.oracle.allocate()

    # -- reading

    def read(
        self,
        vchannel: str | Sequence[str],
        *,
        deliver_policy: DeliverPolicy | None = None,
        filters: DeliverFilter | Iterable[DeliverFilter] = (),
        handler: Handler | None = None,
        follow: bool = True,
        until_time_tick: int | None = None,
        resume: ReadPosition | None = None,
        include_time_ticks: bool = False,
    ) -> Scanner:
        """A scanner over one vchannel, or several of one pchannel in tick order. It begins when it is entered.

        `follow=False` ends behind what is durable at entry, `until_time_tick=T` behind everything at or below T. `resume`
        continues exactly behind a `scanner.position` and excludes a policy. With a `handler` it runs by itself from entry.
        """
        names = (vchannel,) if isinstance(vchannel, str) else tuple(dict.fromkeys(vchannel))
        for name in names:
            check_vchannel(name)
        if not names:
            raise InvalidArgumentError("read([]) names no vchannel: name at least one")
        if deliver_policy is not None and not isinstance(deliver_policy, All | Latest | StartFrom | StartAfter):
            raise TypeError(
                f"deliver_policy must be All(), Latest(), StartFrom(id) or StartAfter(id), not {deliver_policy!r}"
            )
        if resume is not None and not isinstance(resume, ReadPosition):
            raise TypeError(f"resume must be a ReadPosition, not {type(resume).__name__}: use ReadPosition.parse(text)")
        if resume is not None and deliver_policy is not None:
            raise InvalidArgumentError("resume=… and deliver_policy=… both say where to begin: give one of them")
        for flag, value in (("follow", follow), ("include_time_ticks", include_time_ticks)):
            if not isinstance(value, bool):
                raise TypeError(f"{flag} must be a bool, not {value!r}")
        if until_time_tick is not None:
            _check_tick("until_time_tick", until_time_tick)
        check_handler(handler)
        options = ReadOptions(
            names, deliver_policy or All(), EventFilter.of(filters), follow, until_time_tick, resume, include_time_ticks
        )
        return Scanner(options, attach=self._attach, handler=handler)

    async def get_latest_mvcc_timestamp_if_local(self, vchannel: str) -> int:
        """A tick that covers every write to this vchannel that has returned; with `scanner.wait_for` it gives read-your-writes."""
        check_vchannel(vchannel)
        log = await self._ready()
        info = log.directory.records.get(vchannel)
        if info is None:
            if not log.settings.create_vchannels:
                raise ChannelNotExistError(
                    f"vchannel {vchannel!r} does not exist: make it with create_vchannel({vchannel!r})"
                )
            return min(pchannel.ledger.promise for pchannel in log.pchannels.values())
        return log.pchannels[info.pchannel].ledger.promise

    # -- housekeeping

    async def vchannels(self) -> list[VChannelInfo]:
        """All vchannels, by name."""
        log = await self._ready()
        return sorted(log.directory.records.values(), key=lambda info: info.name)

    async def create_vchannel(self, name: str, *, pchannel: str | None = None) -> VChannelInfo:
        """Makes a vchannel, durably; ChannelExistError when there is one of that name."""
        log = await self._ready()
        return await log.create_vchannel(name, pchannel)

    async def drop_vchannel(self, name: str) -> None:
        """Drops a vchannel: its transactions fail, its readers end; a new one of that name shows nothing of it."""
        log = await self._ready()
        await log.drop_vchannel(name)

    async def truncate(self, *, up_to: MessageID) -> None:
        """Truncates a pchannel up to this event, inclusive. Exact in what is answered; files go segment by segment.

        An id that is truncated already is fine; one above the durable end, or of another log, is an InvalidArgumentError.
        """
        if not isinstance(up_to, MessageID):
            raise TypeError(f"up_to must be a MessageID, not {type(up_to).__name__}")
        log = await self._ready()
        pchannel = log.pchannels.get(up_to.pchannel)
        if pchannel is None or not up_to.same_log(pchannel.log_id):
            raise InvalidArgumentError(
                f"message id {up_to} belongs to no pchannel of this log ({', '.join(log.pchannels)}), or to another life of one"
            )
        await pchannel.truncate(up_to)

    def statistics(self) -> LogStatistics:
        """A snapshot of counts since opening."""
        log = self._ready_nowait()
        return LogStatistics(
            log.backend.name,
            len(log.directory.records),
            log.in_flight.size,
            log.in_flight.waiting,
            tuple(pchannel.statistics() for pchannel in log.pchannels.values()),
        )

    @property
    def wal_name(self) -> str:
        """The name of the backend: "journal" or "memory"."""
        return self._ready_nowait().backend.name

    async def close(self) -> None:
        """Drains what is in flight, then closes. Idempotent; concurrent calls all wait, and a cancelled one does not stop it."""
        self._check_place()
        if self._closing is None:
            opening, self._opening = self._opening, None
            if opening is None and self._log is None:
                self._unusable = self._unusable or self._closed
                return
            self._unusable = self._closed
            self._closing = asyncio.ensure_future(self._close(opening))
        await asyncio.shield(self._closing)

    # -- what transactions ask

    async def txn_append(self, txn_id: int, message: Message, barrier_time_tick: int) -> None:
        """A body of an open transaction."""
        log = await self._ready()
        record = self._check_message(message)
        if not type_properties(message.message_type).dml:
            raise InvalidArgumentError(
                f"a {message.message_type.name} message cannot stand in a transaction, only INSERT and DELETE can: append it by itself"
            )
        vchannel = _live(log, message.vchannel)
        future = asyncio.get_running_loop().create_future()
        body = Body(txn_id, record, message.estimate_size(), _check_barrier(barrier_time_tick), future)
        _tell(vchannel, body)
        await future

    async def txn_commit(self, txn_id: int, vchannel: str) -> AppendResult:
        """The end of an open transaction: its result, durable when it returns."""
        log = await self._ready()
        actor = _live(log, vchannel)
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        _tell(actor, Commit(txn_id, future))
        return await future

    async def txn_rollback(self, txn_id: int, vchannel: str) -> None:
        """Forgets an open transaction."""
        log = await self._ready()
        try:
            actor = _live(log, vchannel)
        except ChannelNotExistError:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        _tell(actor, Rollback(txn_id, future))
        await future

    # -- opening and closing

    async def wait_open(self) -> None:
        """Waits until the log is open; raises the error of the opening."""
        await self._ready()

    def begin(self) -> None:
        """Starts opening, in the running loop; without it the first call that needs the log does."""
        self._loop = asyncio.get_running_loop()
        self._opening = asyncio.ensure_future(self._open())
        self._opening.add_done_callback(self._opened)

    def _opened(self, opening: asyncio.Task[Embedded]) -> None:
        if self._opening is not opening:
            return
        if opening.cancelled():
            self._unusable = lambda: ClosedError("opening the log was cancelled: open it again")
        elif (error := opening.exception()) is not None:
            failure = error

            def unusable() -> WALError:
                if isinstance(failure, WALError):
                    return failure
                return InvalidArgumentError(f"the log could not be opened: {failure!r}")

            self._unusable = unusable
            self._failure = failure
        else:
            self._log = opening.result()
            self._message_bytes_max = self._log.settings.message_bytes_max

    _failure: BaseException | None = None

    async def _ready(self) -> Embedded:
        """The open log, waiting for the opening; its error if that failed."""
        self._check_place()
        if self._unusable is not None:
            raise self._failure or self._unusable()
        if self._log is not None:
            return self._log
        if self._opening is None:
            self.begin()
        assert self._opening is not None
        await asyncio.shield(self._opening)
        return self._ready_nowait() if self._log is not None else self._opening.result()

    def _ready_nowait(self) -> Embedded:
        self._check_place()
        if self._unusable is not None:
            raise self._failure or self._unusable()
        if self._log is None:
            raise WouldBlockError("the log is still being opened: await a call first, for example raw_append")
        return self._log

    def _check_place(self) -> None:
        """Refuses a call from another event loop or from a forked child."""
        loop = asyncio.get_running_loop()
        if self._loop is not None and loop is not self._loop:
            raise InvalidArgumentError(
                f"the log at {self._location} was opened in another event loop: use it there, or open it in this one "
                "(one process opens a journal once; wal.bridge serves code without a loop)"
            )
        if self._forked:
            raise InvalidArgumentError(
                f"the log at {self._location} was opened before this process was forked: open it in the child instead"
            )

    _forked = False

    def _closed(self) -> ClosedError:
        return ClosedError(f"the log at {self._location} is closed: open it again to go on")

    async def _close(self, opening: asyncio.Task[Embedded] | None) -> None:
        if opening is not None and self._log is None:
            try:
                self._log = await opening
            except BaseException:
                if not opening.done():
                    raise
                return  # a failed opening undid itself
        log, self._log = self._log, None
        if log is not None:
            await log.close()

    # -- checks

    def _append(
        self, log: Embedded, message: Message, barrier: int, *, taken: bool = False
    ) -> asyncio.Future[AppendResult] | None:
        """Tells the vchannel of a message to append it; None when there is no room in flight (`taken`: the caller has it).

        The hot path of the whole product: no coroutine, no container, one future and one operation a message.
        """
        if message.__class__ is not Message and not isinstance(message, Message):
            raise TypeError(f"an append takes a Message, not {type(message).__name__}: Message(vchannel, payload)")
        vchannel = log.routes.get(message.vchannel) or log.route(message.vchannel)
        payload = message.payload
        properties = encode_properties(message.properties) if message.properties else b""
        size = len(payload) + len(properties)
        if size > self._message_bytes_max:
            self._check_size(message)
        size += BODY_OVERHEAD
        in_flight = log.in_flight
        if not taken and (in_flight.queued or (in_flight.size + size > in_flight.bytes_max and in_flight.size)):
            return None
        assert self._loop is not None
        future: asyncio.Future[AppendResult] = self._loop.create_future()
        kind = message.message_type
        append: Append
        if kind is MessageType.INSERT and barrier.__class__ is int and not barrier:
            append = Append(payload, _INSERT, 0, properties, b"", future, size)
        else:
            append = self._special(message, barrier, properties, future, size)
        try:
            vchannel.pchannel.lanes.tell(vchannel, append)
        except ActorError as error:
            raise _refusal(vchannel, error) from error
        if not taken:
            in_flight.size += size
        return future

    def _special(
        self, message: Message, barrier: int, properties: bytes, future: asyncio.Future[AppendResult], size: int
    ) -> Append:
        """The operation for an append that is no plain INSERT."""
        _check_barrier(barrier)
        self._check_clients(message)
        kind = int(message.message_type)
        exclusive = type_properties(kind).exclusive
        if not exclusive and not barrier:
            return Append(message.payload, kind, 0, properties, b"", future, size)
        return OrderedAppend(message.payload, kind, 0, properties, b"", future, size, barrier, exclusive)

    def _check_message(self, message: Message) -> Record:
        """The record of a message, checked for its type and size."""
        if not isinstance(message, Message):
            raise TypeError(f"an append takes a Message, not {type(message).__name__}: Message(vchannel, payload)")
        self._check_size(message)
        properties = encode_properties(message.properties) if message.properties else b""
        return Record(message.payload, int(message.message_type), 0, properties)

    def _check_size(self, message: Message) -> None:
        size = message.estimate_size()
        if size > self._message_bytes_max:
            raise InvalidArgumentError(
                f"a message of {size} bytes (payload and properties) for vchannel {message.vchannel!r} is over message_bytes_max="
                f"{self._message_bytes_max}: split it, store the payload elsewhere and append a reference, or raise the setting"
            )

    def _check_clients(self, message: Message) -> None:
        if type_properties(message.message_type).system:
            raise InvalidArgumentError(
                f"a {message.message_type.name} message is written only by the WAL itself: append one of another type, such as INSERT"
            )

    async def _append_group(self, log: Embedded, messages: list[Message], barrier: int) -> AppendResult | WALError:
        """The messages of one vchannel: one as it is, more as a transaction."""
        try:
            if len(messages) == 1:
                return await self.raw_append(messages[0], barrier_time_tick=barrier)
            for message in messages:
                if not type_properties(message.message_type).dml:
                    raise InvalidArgumentError(
                        f"a {message.message_type.name} message cannot stand in a transaction with the {len(messages) - 1} other "
                        f"messages for vchannel {message.vchannel!r}: append it by itself"
                    )
            records = [self._check_message(message) for message in messages]
            counted = sum(message.estimate_size() + BODY_OVERHEAD for message in messages)
            size = sum(map(_record_size, records))
            vchannel = log.route(messages[0].vchannel)
            await log.in_flight.take(size)
            future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
            try:
                _tell(vchannel, Atomic(records, counted, size, barrier, future))
            except WALError:
                log.in_flight.release(size)
                raise
            return await future
        except WALError as error:
            return error

    async def _attach(self, scanner: Scanner) -> tuple[PChannel, Selection, Callable[[Actor, str], ActorRef]]:
        """The pchannel that a scanner reads, and its vchannels as they are now."""
        log = await self._ready()
        names = scanner.vchannels
        records = log.directory.records
        for name in names:
            if name not in records and not log.settings.create_vchannels:
                raise ChannelNotExistError(
                    f"vchannel {name!r} does not exist and create_vchannels is off: make it with create_vchannel({name!r})"
                )
        places = {name: log.place(name) for name in names}
        if len(set(places.values())) > 1:
            found = ", ".join(f"{name!r} on {pchannel}" for name, pchannel in places.items())
            raise InvalidArgumentError(
                f"one scanner reads one pchannel, but these lie on several ({found}): read them apart"
            )
        bound = {name: records[name].incarnation if name in records else None for name in names}
        selection = Selection(bound, floor=log.directory.next_incarnation)
        return log.pchannels[places[names[0]]], selection, log.spawn


def _tell(vchannel: VChannel, operation: object) -> None:
    """Tells a vchannel an operation; why it takes none is a WALError."""
    try:
        vchannel.pchannel.lanes.tell(vchannel, operation)
    except ActorError as error:
        raise _refusal(vchannel, error) from error


def _refusal(vchannel: VChannel, error: ActorError) -> WALError:
    """Why an actor takes nothing, in the words of the log."""
    if isinstance(error, InboxFullError):
        return WouldBlockError(f"{error}: wait for some of the results")
    if vchannel.closed is not None:
        return vchannel.closed()
    return ClosedError("the log was closed: open it again to go on")


def _live(log: Embedded, name: str) -> VChannel:
    """The actor of a vchannel that must exist."""
    vchannel = log.routes.get(name)
    if vchannel is None:
        if name not in log.directory.records:
            raise ChannelNotExistError(f"vchannel {name!r} was dropped: its transactions are over")
        vchannel = log.route(name)
    return vchannel


def _record_size(record: Record) -> int:
    return len(record.payload) + len(record.properties) + BODY_OVERHEAD


def _check_tick(name: str, tick: object) -> int:
    if not isinstance(tick, int) or isinstance(tick, bool):
        raise TypeError(f"{name} must be a time tick (int), not {tick!r}")
    if not 0 <= tick < 1 << 64:
        raise InvalidArgumentError(
            f"{name}={tick} is out of range: ticks are 0 to 2**64 - 1, from allocate_time_tick()"
        )
    return tick


def _check_barrier(barrier: object) -> int:
    return _check_tick("barrier_time_tick", barrier)


_INSERT: Final = int(MessageType.INSERT)
_accessers: Final[weakref.WeakSet[WALAccesser]] = weakref.WeakSet()


def _after_fork() -> None:
    for accesser in _accessers:
        accesser._forked = True
        accesser._loop = None


os.register_at_fork(after_in_child=_after_fork)
