"""Appender: how messages and transactions get from a call to the inbox of their vchannel.

Owns the checks of what is written (a wrong message is refused before anything is sent), the room that it takes in flight, and the
operations that the vchannel actors are told. `append` is the hot path of the product.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from actors import ActorError, InboxFullError
from wal.accesser.lifecycle import Lifecycle
from wal.channels import check_vchannel
from wal.errors import (
    BulkAppendError,
    ChannelNotExistError,
    ClosedError,
    InvalidArgumentError,
    WALError,
    WouldBlockError,
)
from wal.frame import Record
from wal.message import (
    AppendResult,
    ForgottenResult,
    Message,
    MessageType,
    TxnContext,
    encode_properties,
    type_properties,
)
from wal.pchannel import (
    BODY_OVERHEAD,
    Append,
    Atomic,
    Begin,
    Bulk,
    Commit,
    ForgetProducer,
    Key,
    KeyedAppend,
    KeyedCommit,
    OrderedAppend,
    ProducerKey,
    Rollback,
    VChannel,
    check_key,
    key_ext,
)
from wal.ticks import check_tick

if TYPE_CHECKING:
    from wal.engine.local.log import LocalLog

__all__ = ["Appender"]

BULK_BYTES: Final = 1024 * 1024
"""`append_bulk` hands over about so much at a time, …"""
BULK_RECORDS: Final = 1024
"""… in pieces of at most so many messages."""
BODIES_A_TURN: Final = 256
"""After so many bodies a transaction lets others have a turn of the loop: about half a millisecond."""


class Appender:
    """What the accesser's writing calls do, on an open log."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    async def append_waiting(self, log: LocalLog, message: Message, barrier: int) -> AppendResult:
        """Appends a message when there is room for it."""
        size = _record_size(_record(log, message))
        await log.in_flight.take(size)
        try:
            future = self.append(log, message, barrier, taken=True)
        except BaseException:
            log.in_flight.release(size)
            raise
        assert future is not None
        return await future

    def append(
        self, log: LocalLog, message: Message, barrier: int, *, taken: bool = False
    ) -> asyncio.Future[AppendResult] | None:
        """Tells the vchannel of a message to append it; None when there is no room in flight (`taken`: the caller has it).

        The hot path of the whole product: no coroutine, no container, one future and one operation a message.
        """
        if message.__class__ is not Message and not isinstance(message, Message):
            raise TypeError(f"an append takes a Message, not {type(message).__name__}: Message(vchannel, payload)")
        payload = message.payload
        properties = encode_properties(message.properties) if message.properties else b""
        size = len(payload) + len(properties)
        if size > log.message_bytes_max:
            _check_size(log, message)
        size += BODY_OVERHEAD
        in_flight = log.in_flight
        if not taken:
            total = in_flight.size
            if in_flight.queued or (total + size > in_flight.bytes_max and total):
                return None
        future = log.create_future()
        if message.message_type is _INSERT_TYPE and barrier is _NO_BARRIER:
            append = Append(payload, _INSERT, 0, properties, b"", future, size)
        else:
            append = _special(message, barrier, properties, future, size)
        # Last, since it may make the vchannel: a message that is refused leaves nothing behind.
        vchannel = log.routes.get(message.vchannel) or log.route(message.vchannel)
        try:
            vchannel.tell(vchannel, append)
        except ActorError as error:
            raise _refusal(vchannel, error) from error
        if not taken:
            in_flight.size += size
        return future

    async def append_keyed_waiting(
        self, log: LocalLog, message: Message, barrier: int, key: Key
    ) -> AppendResult | ForgottenResult:
        """Appends a message with an idempotency key when there is room for it."""
        size = _record_size(_record(log, message)) + len(key_ext(check_key(key)))
        await log.in_flight.take(size)
        try:
            future = self.append_keyed(log, message, barrier, key, taken=True)
        except BaseException:
            log.in_flight.release(size)
            raise
        assert future is not None
        return await future

    def append_keyed(
        self, log: LocalLog, message: Message, barrier: int, key: Key, *, taken: bool = False
    ) -> asyncio.Future[AppendResult | ForgottenResult] | None:
        """`append` for a message with an idempotency key."""
        record = _record(log, message)
        _check_clients(message)
        _check_key(log, key)
        ext = key_ext(key)
        size = _record_size(record) + len(ext)
        exclusive = type_properties(record.message_type).exclusive
        barrier = _barrier(barrier)
        if not taken and not log.in_flight.has_room(size):
            return None
        future: asyncio.Future[AppendResult | ForgottenResult] = log.create_future()
        vchannel = log.routes.get(message.vchannel) or log.route(message.vchannel)
        _tell(
            vchannel,
            KeyedAppend(
                record.payload, record.message_type, 0, record.properties, ext, future, size, barrier, exclusive, key
            ),
        )
        if not taken:
            log.in_flight.size += size
        return future

    async def groups(self, log: LocalLog, messages: Sequence[Message], barrier: int) -> list[AppendResult | WALError]:
        """Each message's outcome; those of one vchannel, if two or more, share a transaction's."""
        groups: dict[str, list[int]] = {}
        for at, message in enumerate(messages):
            _record(log, message)
            _check_clients(message)
            if message.vchannel not in groups:
                check_vchannel(message.vchannel)
            groups.setdefault(message.vchannel, []).append(at)
        calls = [self._group(log, [messages[at] for at in group], barrier) for group in groups.values()]
        outcomes = [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)
        responses: list[AppendResult | WALError | None] = [None] * len(messages)
        for group, outcome in zip(groups.values(), outcomes, strict=True):
            for at in group:
                responses[at] = outcome
        return [response for response in responses if response is not None]

    async def bulk(self, log: LocalLog, messages: Iterable[Message]) -> list[AppendResult]:
        """All messages in order; the error of the first that fails carries the results before it."""
        pieces = _pieces(log, messages)
        futures: list[asyncio.Future[Any]] = []
        failure: BaseException | None = None
        for vchannel, operation, future in pieces:
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
            futures.append(future)
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
        if isinstance(failure, WALError):
            raise BulkAppendError.of(failure, results)
        if failure is not None:
            raise failure
        return results

    async def txn_append(self, txn_id: int, message: Message, barrier_time_tick: int) -> None:
        """A body of an open transaction. It waits for nothing but, now and then, for a turn of the loop."""
        lifecycle = self._lifecycle
        log = lifecycle.log
        if log is None or get_ident() != lifecycle.thread or not log.is_running():
            log = await lifecycle.ready()
        size = message.estimate_size()
        if size > log.message_bytes_max:
            _check_size(log, message)
        kind = _INSERT
        if message.message_type is not _INSERT_TYPE:
            kind = int(message.message_type)
            if not type_properties(kind).dml:
                raise InvalidArgumentError(
                    f"a {message.message_type.name} message cannot stand in a transaction, only INSERT and DELETE can: append it by "
                    "itself"
                )
        properties = encode_properties(message.properties) if message.properties else b""
        barrier = 0 if barrier_time_tick is _NO_BARRIER else _barrier(barrier_time_tick)
        vchannel = log.routes.get(message.vchannel) or _live(log, message.vchannel)
        bodies = vchannel.add_body(txn_id, Record(message.payload, kind, 0, properties), counted=size, barrier=barrier)
        if bodies % BODIES_A_TURN == 0:
            await asyncio.sleep(0)

    async def txn_commit(self, vchannel: str, txn_id: int) -> AppendResult:
        """The end of an open transaction: its result, durable when it returns. After a WouldBlockError it is still open."""
        log = await self._lifecycle.ready()
        actor = _live(log, vchannel)
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        _tell(actor, Commit(txn_id, future))
        return await future

    async def txn_commit_keyed(self, vchannel: str, key: Key, txn_id: int) -> AppendResult | ForgottenResult:
        """`txn_commit` of a transaction with an idempotency key."""
        log = await self._lifecycle.ready()
        actor = _live(log, vchannel)
        future: asyncio.Future[AppendResult | ForgottenResult] = asyncio.get_running_loop().create_future()
        _tell(actor, KeyedCommit(txn_id, future, key))
        return await future

    async def txn_rollback(self, txn_id: int, vchannel: str) -> None:
        """Forgets an open transaction."""
        log = await self._lifecycle.ready()
        try:
            actor = _live(log, vchannel)
        except ChannelNotExistError:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        _tell(actor, Rollback(txn_id, future))
        await future

    def txn_forgotten(self, txn_id: int, vchannel: str) -> bool:
        """Rolls back a transaction that nobody holds any more; False when it is over. A collector calls this, from any thread."""
        log, loop = self._lifecycle.log, self._lifecycle.loop
        if log is None or loop is None:
            return False
        route = log.routes.get(vchannel)
        if route is None or txn_id not in route.pchannel.table:
            return False
        try:
            loop.call_soon_threadsafe(_roll_back, log, txn_id, vchannel)
        except RuntimeError:  # the loop has ended, and the transaction ends with the log
            return False
        return True

    async def txn_begin(self, names: tuple[str, ...], keepalive: float, key: Key | None) -> TxnContext:
        """Opens a transaction on vchannels of one pchannel."""
        log = await self._lifecycle.ready()
        key_bytes = 0
        if key is not None:
            _check_key(log, key)
            key_bytes = len(key_ext(key))
        routes = [log.route(name) for name in names]
        pchannel = routes[0].pchannel
        if any(route.pchannel is not pchannel for route in routes):
            places = ", ".join(f"{route.channel!r} on {route.pchannel.channel}" for route in routes)
            raise InvalidArgumentError(
                f"a transaction is one frame and cannot span pchannels ({places}): make the vchannels on one pchannel with "
                "create_vchannel(name, pchannel=…), or use the broadcaster, log.broadcast(), which writes to all of them"
            )
        future: asyncio.Future[TxnContext] = asyncio.get_running_loop().create_future()
        _tell(routes[0], Begin(names, keepalive, future, key_bytes))
        return await future

    async def forget_producer(self, name: str) -> None:
        """Forgets a producer on every pchannel that knows it; InvalidArgumentError when none does."""
        log = await self._lifecycle.ready()
        scopes = [scope for pchannel in log.pchannels.values() if (scope := pchannel.keyed.table.scope_of(name))]
        gave_up = [pchannel.keyed.table.forget_gaps(name) for pchannel in log.pchannels.values()]
        if not scopes and not any(gave_up):
            raise InvalidArgumentError(f"producer {name!r} is not known: log.producers() lists those that are")
        futures: list[asyncio.Future[None]] = []
        for scope in scopes:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            _tell(_live(log, scope[0][0]), ForgetProducer(name, future))
            futures.append(future)
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _group(self, log: LocalLog, messages: list[Message], barrier: int) -> AppendResult | WALError:
        """The messages of one vchannel: one as it is, more as a transaction."""
        try:
            if len(messages) == 1:
                future = self.append(log, messages[0], barrier)
                return await (future or self.append_waiting(log, messages[0], barrier))
            for message in messages:
                if not type_properties(message.message_type).dml:
                    raise InvalidArgumentError(
                        f"a {message.message_type.name} message cannot stand in a transaction with the {len(messages) - 1} other "
                        f"messages for vchannel {message.vchannel!r}: append it by itself"
                    )
            records = [_record(log, message) for message in messages]
            counted = sum(message.estimate_size() + BODY_OVERHEAD for message in messages)
            size = sum(map(_record_size, records))
            vchannel = log.route(messages[0].vchannel)
            await log.in_flight.take(size)
            done: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
            try:
                _tell(vchannel, Atomic(records, counted, size, barrier, done))
            except WALError:
                log.in_flight.release(size)
                raise
            return await done
        except WALError as error:
            return error


def _roll_back(log: LocalLog, txn_id: int, vchannel: str) -> None:
    """Forgets an open transaction, whose end nobody waits for."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.add_done_callback(asyncio.Future.exception)
    try:
        _tell(_live(log, vchannel), Rollback(txn_id, future))
    except WALError:
        pass  # the vchannel or the log is gone, and with it the transaction


def _special(
    message: Message, barrier: int, properties: bytes, future: asyncio.Future[AppendResult], size: int
) -> Append:
    """The operation for an append that is no plain INSERT."""
    _barrier(barrier)
    _check_clients(message)
    kind = int(message.message_type)
    exclusive = type_properties(kind).exclusive
    if not exclusive and not barrier:
        return Append(message.payload, kind, 0, properties, b"", future, size)
    return OrderedAppend(message.payload, kind, 0, properties, b"", future, size, barrier, exclusive)


def _pieces(log: LocalLog, messages: Iterable[Message]) -> list[tuple[VChannel, Bulk | Append, asyncio.Future[Any]]]:
    """Consecutive messages of one vchannel in pieces of bounded size; what is exclusive stands alone."""
    pieces: list[tuple[VChannel, Bulk | Append, asyncio.Future[Any]]] = []
    create_future = asyncio.get_running_loop().create_future
    checked = [(message, _record(log, message)) for message in messages]
    for message, _ in checked:
        _check_clients(message)
    for name in {message.vchannel for message, _ in checked}:
        check_vchannel(name)
    # Only now, since it may make vchannels: a message that is refused leaves nothing behind.
    for message, record in checked:
        vchannel = log.route(message.vchannel)
        size = _record_size(record)
        if type_properties(message.message_type).exclusive:
            future: asyncio.Future[Any] = create_future()
            pieces.append((vchannel, _special(message, 0, record.properties, future, size), future))
            continue
        if pieces:
            last, piece, _ = pieces[-1]
            if (
                last is vchannel
                and isinstance(piece, Bulk)
                and piece.size + size <= BULK_BYTES
                and len(piece.records) < BULK_RECORDS
            ):
                piece.records.append(record)
                piece.size += size
                continue
        future = create_future()
        pieces.append((vchannel, Bulk([record], size, future), future))
    return pieces


def _record(log: LocalLog, message: Message) -> Record:
    """The record of a message, checked for its type and size."""
    if not isinstance(message, Message):
        raise TypeError(f"an append takes a Message, not {type(message).__name__}: Message(vchannel, payload)")
    _check_size(log, message)
    properties = encode_properties(message.properties) if message.properties else b""
    return Record(message.payload, int(message.message_type), 0, properties)


def _check_key(log: LocalLog, key: Key) -> None:
    """The key can be taken: it is one, and it would be remembered."""
    check_key(key)
    settings = log.settings
    if not isinstance(key, ProducerKey) and not (settings.idempotency_window_count and settings.idempotency_window_s):
        raise InvalidArgumentError(
            f"idempotency_key={key!r} would be forgotten at once: idempotency_window_count={settings.idempotency_window_count}, "
            f"idempotency_window_s={settings.idempotency_window_s}: raise the setting that is 0, or use a ProducerKey"
        )


def _check_size(log: LocalLog, message: Message) -> None:
    size = message.estimate_size()
    if size > log.settings.message_bytes_max:
        raise InvalidArgumentError(
            f"a message of {size} bytes (payload and properties) for vchannel {message.vchannel!r} is over message_bytes_max="
            f"{log.settings.message_bytes_max}: split it, store the payload elsewhere and append a reference, or raise the setting"
        )


def _check_clients(message: Message) -> None:
    kind = type_properties(message.message_type)
    if kind.system or kind.broadcaster:  # not `appendable`: a property costs a call for each message
        writer = (
            "only the broadcaster writes one, when log.broadcast().abort(…) is called"
            if kind.broadcaster
            else "only the WAL itself writes one"
        )
        raise InvalidArgumentError(
            f"message_type {message.message_type.name} cannot be appended, since {writer}: append another type, such as INSERT"
        )


def _tell(vchannel: VChannel, operation: object) -> None:
    """Tells a vchannel an operation; why it takes none is a WALError."""
    try:
        vchannel.pchannel.actor_group.tell(vchannel, operation)
    except ActorError as error:
        raise _refusal(vchannel, error) from error


def _refusal(vchannel: VChannel, error: ActorError) -> WALError:
    """Why an actor takes nothing, in the words of the log."""
    if isinstance(error, InboxFullError):
        return WouldBlockError(f"{error}: wait for some of the results")
    if vchannel.closed is not None:
        return vchannel.closed()
    return ClosedError("the log was closed: open it again to go on")


def _live(log: LocalLog, name: str) -> VChannel:
    """The actor of a vchannel that must exist."""
    vchannel = log.routes.get(name)
    if vchannel is None:
        if name not in log.directory.records:
            raise ChannelNotExistError(f"vchannel {name!r} was dropped: its transactions are over")
        vchannel = log.route(name)
    return vchannel


def _record_size(record: Record) -> int:
    return len(record.payload) + len(record.properties) + BODY_OVERHEAD


def _barrier(barrier: object) -> int:
    return check_tick("barrier_time_tick", barrier)


_NO_BARRIER: Final = 0
"""The default, by identity: anything else, `False` and 0.0 too, is looked at."""
_INSERT_TYPE: Final = MessageType.INSERT
_INSERT: Final = int(_INSERT_TYPE)
