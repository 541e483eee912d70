"""TypedLog: one vchannel of a log whose payloads are values of a type, and TypedScanner, which reads them.

They own nothing but a `PayloadType`: the log appends and reads. A value that cannot be decoded raises a PayloadError before its message
counts as handed over. So the position and a saved cursor stay before it, and the next step raises the same error: it is never skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Self, TypedDict, TypeVar, overload

from wal.channels.vchannels import check_vchannel
from wal.errors import InvalidArgumentError
from wal.message import AppendResult, ImmutableMessage, Message, ScheduledResult
from wal.message.payloads import VERSION_PROPERTY, PayloadType
from wal.read.options import DeliverFilter, DeliverPolicy, ReadPosition
from wal.read.scanner import Scanner

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Unpack

    from wal.consumers.consumer import Consumer

T = TypeVar("T")


class LogCalls(Protocol):
    """The calls of a log that are used here."""

    async def raw_append(self, message: Message, *, idempotency_key: str | None = None) -> AppendResult: ...

    async def append(
        self,
        vchannel: str,
        payload: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        deliver_at: datetime,
    ) -> ScheduledResult: ...

    def append_nowait(self, message: Message, *, idempotency_key: str | None = None) -> asyncio.Future[AppendResult]: ...

    def read(
        self,
        vchannel: str | Sequence[str],
        *,
        deliver_policy: DeliverPolicy | None = None,
        filters: DeliverFilter | Iterable[DeliverFilter] = (),
        follow: bool = True,
        until_time_tick: int | None = None,
        resume: ReadPosition | None = None,
        cursor: str | None = None,
    ) -> Scanner: ...

    def consume(
        self,
        vchannels: str | Sequence[str],
        handler: Callable[[Any], Any],
        *,
        cursor: str,
        type: PayloadType[Any] | None = None,
        **options: Unpack[ConsumeOptions],
    ) -> Consumer: ...


class ConsumeOptions(TypedDict, total=False):
    """The options of `WALAccesser.consume` that a typed log leaves as they are."""

    concurrency: int
    order: Literal["vchannel", "key", "none"]
    key: Callable[[ImmutableMessage], str | bytes] | None
    attempts: int
    backoff_s: tuple[float, float]
    on_failure: Literal["block", "park"]
    dead_letter: str | None
    batch: int | None
    timeout_s: float | None
    exclusive: Literal["wait", "error"]


class TypedLog(Generic[T]):
    """One vchannel with values of one type. Get one from `log.typed`. `type` is the PayloadType, `vchannel` the name."""

    def __init__(self, log: LogCalls, vchannel: str, kind: PayloadType[T]) -> None:
        self._log = log
        self.vchannel: str = check_vchannel(vchannel)
        self.type: PayloadType[T] = kind

    @overload
    async def append(
        self, value: T, *, properties: Mapping[str, str] | None = None, idempotency_key: str | None = None, deliver_at: None = None
    ) -> AppendResult: ...

    @overload
    async def append(
        self, value: T, *, properties: Mapping[str, str] | None = None, idempotency_key: str | None = None, deliver_at: datetime
    ) -> ScheduledResult: ...

    async def append(
        self,
        value: T,
        *,
        properties: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        deliver_at: datetime | None = None,
    ) -> AppendResult | ScheduledResult:
        """Appends a value; it is durable when the call returns. Raises TypeError for a value of another type, else as `log.append`."""
        message = self._message(value, properties)
        if deliver_at is None:
            return await self._log.raw_append(message, idempotency_key=idempotency_key)
        return await self._log.append(
            self.vchannel, message.payload, properties=message.properties, idempotency_key=idempotency_key, deliver_at=deliver_at
        )

    def append_nowait(
        self, value: T, *, properties: Mapping[str, str] | None = None, idempotency_key: str | None = None
    ) -> asyncio.Future[AppendResult]:
        """Appends a value without waiting, and returns a future of the result, as `log.append_nowait` does."""
        return self._log.append_nowait(self._message(value, properties), idempotency_key=idempotency_key)

    def read(
        self,
        *,
        deliver_policy: DeliverPolicy | None = None,
        filters: DeliverFilter | Iterable[DeliverFilter] = (),
        follow: bool = True,
        until_time_tick: int | None = None,
        resume: ReadPosition | None = None,
        cursor: str | None = None,
    ) -> TypedScanner[T]:
        """Returns a scanner of the values, in the order of the log, those of transactions one by one. The options are those of `read`."""
        scanner = self._log.read(
            self.vchannel,
            deliver_policy=deliver_policy,
            filters=filters,
            follow=follow,
            until_time_tick=until_time_tick,
            resume=resume,
            cursor=cursor,
        )
        return TypedScanner(scanner, self.type)

    def consume(self, handler: Callable[[Any], Any], *, cursor: str, **options: Unpack[ConsumeOptions]) -> Consumer:
        """Returns a consumer whose deliveries have the values; see `WALAccesser.consume`. A payload that holds none is a dead letter."""
        return self._log.consume(self.vchannel, handler, cursor=cursor, type=self.type, **options)

    def _message(self, value: T, properties: Mapping[str, str] | None) -> Message:
        payload, own = self.type.encode(value)
        if properties and VERSION_PROPERTY in properties:
            raise InvalidArgumentError(f"the property {VERSION_PROPERTY!r} has the version of the type: name yours otherwise")
        return Message(self.vchannel, payload, properties={**(properties or {}), **own})

    def __repr__(self) -> str:
        return f"TypedLog({self.vchannel!r}, {self.type!r})"


class TypedScanner(Generic[T]):
    """Values in the order of the log, each once: `async with`, then `async for value in scanner`, or `bodies()` for their messages too.

    A message counts as handed over with its last value, so `position` and `save` in the middle of a transaction are before it.
    """

    def __init__(self, scanner: Scanner, kind: PayloadType[T]) -> None:
        self._type = kind
        self._page: Sequence[ImmutableMessage] = ()
        self._at = 0
        """The next message of the page, …"""
        self._body = 0
        """… and its next body."""
        self.scanner: Scanner = scanner
        """The scanner below, for what concerns no values: `wait_for`, `done`, `error`, `statistics`."""

    async def __aenter__(self) -> Self:
        await self.scanner.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        await self.scanner.__aexit__(kind, error, traceback)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        value, _ = await self._next()
        return value

    async def bodies(self) -> AsyncIterator[tuple[T, ImmutableMessage]]:
        """Yields each value with its message: a plain one, or the body of a transaction."""
        while True:
            try:
                pair = await self._next()
            except StopAsyncIteration:
                return
            yield pair

    @property
    def position(self) -> ReadPosition | None:
        """The position after what was handed over; see `Scanner.position`."""
        return self.scanner.position

    async def save(self, position: ReadPosition | None = None) -> None:
        """Stores a position under the name of its cursor; see `Scanner.save`."""
        await self.scanner.save(position)

    async def close(self) -> None:
        """Ends the scanner cleanly. Idempotent."""
        await self.scanner.close()

    async def _next(self) -> tuple[T, ImmutableMessage]:
        while True:
            if self._at == len(self._page) or self.scanner._loop.ended:
                self._page, self._at = await self.scanner._page(), 0
                if not self._page:
                    raise StopAsyncIteration
            bodies = self._page[self._at].bodies()
            if self._body < len(bodies):
                body = bodies[self._body]
                value = self._type.decode(body)
                self._body += 1
                if self._body == len(bodies):
                    self._hand_over()
                return value, body
            self._hand_over()  # a transaction without bodies

    def _hand_over(self) -> None:
        self._at, self._body = self._at + 1, 0
        self.scanner._hand_over(1)
