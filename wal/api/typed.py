"""TypedLog: one vchannel of a log whose payloads are values of a type, and TypedTxn, a transaction of them.

They own nothing but a `PayloadType`: the log appends, and a TypedScanner reads (`typed_scanner.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

from wal.api.txn import Txn, TxnOpening
from wal.api.typed_scanner import TypedScanner
from wal.channels.vchannels import check_vchannel
from wal.errors import InvalidArgumentError
from wal.message import AppendResult, ForgottenResult, ImmutableMessage, Message, MessageID, ScheduledResult
from wal.message.payloads import VERSION_PROPERTY, PayloadType
from wal.read.options import DeliverFilter, DeliverPolicy, ReadPosition
from wal.read.scanner import Scanner
from wal.requests.appends import UNCHECKED, Unchecked
from wal.runtime.async_only import AsyncOnly
from wal.runtime.user_code import shown
from wal.write.idempotency.keys import ProducerKey

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Unpack

    from wal.consumers.consumer import Consumer
    from wal.consumers.delivery import Delivery
    from wal.consumers.options import ConsumeOptions
    from wal.message import TxnContext

T = TypeVar("T")
R_co = TypeVar("R_co", bound=AppendResult | ForgottenResult, covariant=True)


class LogCalls(Protocol):
    """The calls of a log that are used here, with the parameters and results that `WALAccesser` documents."""

    def raw_append(self, *arguments: Any, **options: Any) -> Awaitable[AppendResult | ForgottenResult]: ...
    def append(self, *arguments: Any, **options: Any) -> Awaitable[ScheduledResult]: ...
    def append_nowait(self, *arguments: Any, **options: Any) -> asyncio.Future[AppendResult | ForgottenResult]: ...
    def append_bulk(self, *arguments: Any, **options: Any) -> Awaitable[list[AppendResult]]: ...
    def append_txn(self, *arguments: Any, **options: Any) -> Awaitable[AppendResult | ForgottenResult]: ...
    def txn(self, *arguments: Any, **options: Any) -> Any: ...
    def last(self, *arguments: Any, **options: Any) -> Awaitable[MessageID | None]: ...
    def read(self, *arguments: Any, **options: Any) -> Scanner: ...
    def consume(self, *arguments: Any, **options: Any) -> Consumer: ...


class TypedLog(Generic[T]):
    """One vchannel with values of one type. Get one from `log.typed`. `type` is the PayloadType, `vchannel` the name.

    A call has the options of the call of the same name of the log, and takes or returns values. A value of another type is a TypeError.
    """

    def __init__(self, log: LogCalls, vchannel: str, kind: PayloadType[T]) -> None:
        self._log = log
        self.vchannel: str = check_vchannel(vchannel)
        self.type: PayloadType[T] = kind

    # -- writing

    @overload
    async def append(
        self,
        value: T,
        *,
        properties: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        deliver_at: None = None,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> AppendResult: ...

    @overload
    async def append(
        self,
        value: T,
        *,
        properties: Mapping[str, str] | None = None,
        idempotency_key: ProducerKey,
        deliver_at: None = None,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> AppendResult | ForgottenResult: ...

    @overload
    async def append(
        self, value: T, *, properties: Mapping[str, str] | None = None, idempotency_key: str | None = None, deliver_at: datetime
    ) -> ScheduledResult: ...

    async def append(
        self,
        value: T,
        *,
        properties: Mapping[str, str] | None = None,
        idempotency_key: str | ProducerKey | None = None,
        deliver_at: datetime | None = None,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> AppendResult | ForgottenResult | ScheduledResult:
        """Appends a value; it is durable when the call returns. See `log.append`."""
        message = self.message(value, properties=properties)
        if deliver_at is None:
            return await self._log.raw_append(message, idempotency_key=idempotency_key, expected_last=expected_last)
        return await self._log.append(
            self.vchannel,
            message.payload,
            properties=message.properties,
            idempotency_key=idempotency_key,
            deliver_at=deliver_at,
            expected_last=expected_last,
        )

    @overload
    def append_nowait(
        self,
        value: T,
        *,
        properties: Mapping[str, str] | None = None,
        barrier_time_tick: int = 0,
        idempotency_key: str | None = None,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> asyncio.Future[AppendResult]: ...

    @overload
    def append_nowait(
        self,
        value: T,
        *,
        properties: Mapping[str, str] | None = None,
        barrier_time_tick: int = 0,
        idempotency_key: ProducerKey,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> asyncio.Future[AppendResult | ForgottenResult]: ...

    def append_nowait(
        self,
        value: T,
        *,
        properties: Mapping[str, str] | None = None,
        barrier_time_tick: int = 0,
        idempotency_key: str | ProducerKey | None = None,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> asyncio.Future[Any]:
        """Appends a value without waiting, and returns a future of the result. See `log.append_nowait`."""
        return self._log.append_nowait(
            self.message(value, properties=properties),
            barrier_time_tick=barrier_time_tick,
            idempotency_key=idempotency_key,
            expected_last=expected_last,
        )

    async def append_bulk(self, values: Iterable[T], *, properties: Mapping[str, str] | None = None) -> list[AppendResult]:
        """Appends any number of values in order, without a transaction; each has these properties. See `log.append_bulk`.

        The messages in `.remaining` of a BulkAppendError go to `log.append_bulk`.
        """
        return await self._log.append_bulk(self._messages(values, properties))

    @overload
    async def append_txn(
        self,
        values: Iterable[T],
        *,
        properties: Mapping[str, str] | None = None,
        barrier_time_tick: int = 0,
        idempotency_key: str | None = None,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> AppendResult: ...

    @overload
    async def append_txn(
        self,
        values: Iterable[T],
        *,
        properties: Mapping[str, str] | None = None,
        barrier_time_tick: int = 0,
        idempotency_key: ProducerKey,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> AppendResult | ForgottenResult: ...

    async def append_txn(
        self,
        values: Iterable[T],
        *,
        properties: Mapping[str, str] | None = None,
        barrier_time_tick: int = 0,
        idempotency_key: str | ProducerKey | None = None,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> AppendResult | ForgottenResult:
        """Appends values as a whole transaction; each has these properties. See `log.append_txn`."""
        return await self._log.append_txn(
            self.vchannel,
            self._messages(values, properties),
            barrier_time_tick=barrier_time_tick,
            idempotency_key=idempotency_key,
            expected_last=expected_last,
        )

    @overload
    def txn(
        self, *, keepalive: float = 0.0, idempotency_key: str | None = None, expected_last: MessageID | Unchecked | None = UNCHECKED
    ) -> TypedTxnOpening[T, AppendResult]: ...

    @overload
    def txn(
        self, *, keepalive: float = 0.0, idempotency_key: ProducerKey, expected_last: MessageID | Unchecked | None = UNCHECKED
    ) -> TypedTxnOpening[T, AppendResult | ForgottenResult]: ...

    def txn(
        self,
        *,
        keepalive: float = 0.0,
        idempotency_key: str | ProducerKey | None = None,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> TypedTxnOpening[T, Any]:
        """Opens a transaction on the vchannel: await it, or use `async with`. See `log.txn`.

        For a transaction over several vchannels use `log.txn(vchannels=[…])` and `await txn.append(orders.message(order))`.
        """
        opening = self._log.txn(self.vchannel, keepalive=keepalive, idempotency_key=idempotency_key, expected_last=expected_last)
        return TypedTxnOpening(opening, self)

    async def last(self) -> MessageID | None:
        """Returns the id of the last event, for `expected_last`; None if the vchannel never had one. See `log.last`."""
        return await self._log.last(self.vchannel)

    def message(self, value: T, *, properties: Mapping[str, str] | None = None) -> Message:
        """Returns the message that `append` appends for this value, for calls of the log that take messages."""
        payload, own = self.type.encode(value)
        if properties and VERSION_PROPERTY in properties:
            raise InvalidArgumentError(f"the property {VERSION_PROPERTY!r} has the version of the type: name yours otherwise")
        return Message(self.vchannel, payload, properties={**(properties or {}), **own})

    def _messages(self, values: Iterable[T], properties: Mapping[str, str] | None) -> list[Message]:
        if not isinstance(values, Iterable) or isinstance(values, bytes | str):
            raise TypeError(f"values must be an iterable of {self.type}, not {type(values).__name__}: pass a list")
        return [self.message(value, properties=properties) for value in values]

    # -- reading

    def read(
        self,
        *,
        deliver_policy: DeliverPolicy | None = None,
        filters: DeliverFilter | Iterable[DeliverFilter] = (),
        handler: Callable[[T], object] | None = None,
        follow: bool = True,
        until_time_tick: int | None = None,
        resume: ReadPosition | None = None,
        cursor: str | None = None,
        auto_ack: bool = False,
    ) -> TypedScanner[T]:
        """Returns a scanner of the values, in the order of the log, those of transactions one by one. See `log.read`.

        A `handler`, sync or async, gets each value; an undecodable payload ends the scanner with a PayloadError.
        """
        scanner = self._log.read(
            self.vchannel,
            deliver_policy=deliver_policy,
            filters=filters,
            handler=None if handler is None else self._on_values(handler),
            follow=follow,
            until_time_tick=until_time_tick,
            resume=resume,
            cursor=cursor,
            auto_ack=auto_ack,
        )
        return TypedScanner(scanner, self.type)

    def _on_values(self, handler: Callable[[T], object]) -> Callable[[ImmutableMessage], Awaitable[None]]:
        """Returns a handler of messages that calls this handler for each value."""
        if not callable(handler):
            raise TypeError(f"handler must be a callable that takes a value, not {shown(handler)}")
        decode = self.type.decode

        async def on_message(message: ImmutableMessage) -> None:
            for body in message.bodies():
                returned = handler(decode(body))
                if isinstance(returned, Awaitable):
                    await returned

        return on_message

    @overload
    def consume(
        self, handler: Callable[[Delivery[T]], Any], *, cursor: str, batch: None = None, **options: Unpack[ConsumeOptions]
    ) -> Consumer: ...

    @overload
    def consume(
        self, handler: Callable[[list[Delivery[T]]], Any], *, cursor: str, batch: int, **options: Unpack[ConsumeOptions]
    ) -> Consumer: ...

    def consume(
        self, handler: Callable[[Any], Any], *, cursor: str, batch: int | None = None, **options: Unpack[ConsumeOptions]
    ) -> Consumer:
        """Returns a consumer whose deliveries have the values. An undecodable payload becomes a dead letter. See `log.consume`."""
        return self._log.consume(self.vchannel, handler, cursor=cursor, batch=batch, type=self.type, **options)

    def __repr__(self) -> str:
        return f"TypedLog({self.vchannel!r}, {self.type!r})"


class TypedTxn(Generic[T, R_co]):
    """An open transaction of values, from `TypedLog.txn`. `txn` is the transaction below; see `Txn` for the calls and their errors."""

    def __init__(self, txn: Txn[R_co], typed: TypedLog[T]) -> None:
        self.txn: Txn[R_co] = txn
        self._typed = typed

    async def append(self, value: T, *, properties: Mapping[str, str] | None = None, barrier_time_tick: int = 0) -> None:
        """Adds a value and renews the keepalive."""
        await self.txn.append(self._typed.message(value, properties=properties), barrier_time_tick=barrier_time_tick)

    async def append_many(self, values: Iterable[T], *, properties: Mapping[str, str] | None = None, barrier_time_tick: int = 0) -> None:
        """Adds values in order, all or none of them, and renews the keepalive."""
        await self.txn.append_many(self._typed._messages(values, properties), barrier_time_tick=barrier_time_tick)

    def save(
        self, read: Scanner | TypedScanner[Any] | ReadPosition, cursor: str | None = None, *, vchannels: str | Sequence[str] | None = None
    ) -> None:
        """Has the commit save a cursor: it moves if and only if the transaction is written."""
        self.txn.save(read, cursor, vchannels=vchannels)

    async def commit(self) -> R_co:
        """Makes the whole transaction durable as one event, and returns its result."""
        return await self.txn.commit()

    async def rollback(self) -> None:
        """Forgets the transaction. An expired transaction raises nothing."""
        await self.txn.rollback()

    @property
    def result(self) -> R_co:
        """The result of the commit."""
        return self.txn.result

    @property
    def context(self) -> TxnContext:
        """Its id and keepalive."""
        return self.txn.context

    def __repr__(self) -> str:
        return f"TypedTxn({self.txn!r}, {self._typed.type!r})"


class TypedTxnOpening(AsyncOnly, Generic[T, R_co]):
    """The result of `TypedLog.txn`: await it to get a `TypedTxn`, or use it in `async with`, which commits at the end or rolls back."""

    _with_form = "'async with orders.txn(…) as txn', or 'txn = await orders.txn(…)'"

    def __init__(self, opening: TxnOpening[R_co], typed: TypedLog[T]) -> None:
        self._opening = opening
        self._typed = typed

    def __await__(self) -> Generator[Any, None, TypedTxn[T, R_co]]:
        txn = yield from self._opening.__await__()
        return TypedTxn(txn, self._typed)

    async def __aenter__(self) -> TypedTxn[T, R_co]:
        return TypedTxn(await self._opening.__aenter__(), self._typed)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        await self._opening.__aexit__(kind, error, traceback)
