"""Traces of a log's calls by OpenTelemetry (the extra `otel`): `traced(log)`, and `handling(message)` for handlers of one's own.

How it works. `traced` returns an object with the calls of the log, of which appends, commits, broadcasts and handlers get a span; the log
itself is unchanged, so it costs nothing without traces. A message that is appended in a span carries the span's context in its property
`traceparent`, as W3C writes it; properties whose keys begin with `_` belong to the log. The handling of the message, in whichever process,
gets a span in the same trace, with a link to the append.

Guarantees: a span has names, sizes, counts and ids, and never a payload, a property, or the text of an error. TimeTicks are not traced.

What can go wrong: an invalid `traceparent` is ignored; the handler's span then begins a trace of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final

import msgspec

from wal.message import ImmutableMessage, ImmutableTxnMessage, Message
from wal.runtime.installation import Needed

with Needed("traces need", "otel"):
    from opentelemetry import context, trace
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

__all__ = ["ATTRIBUTES", "TRACEPARENT", "TracedLog", "handling", "traced"]

TRACEPARENT: Final = "traceparent"
"""The property that carries the context of the span in which a message was appended."""
ATTRIBUTES: Final[Mapping[str, str]] = {
    "system": "messaging.system",
    "operation": "messaging.operation.name",
    "type": "messaging.operation.type",
    "vchannel": "messaging.destination.name",
    "message_id": "messaging.message.id",
    "bytes": "messaging.message.body.size",
    "count": "messaging.batch.message_count",
    "error": "error.type",
    "duplicate": "wal.duplicate",
    "time_tick": "wal.time_tick",
    "broadcast_id": "wal.broadcast.id",
}
"""The attributes of spans by their content. Those of messaging are names of OpenTelemetry's semantic conventions."""
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_SEND, _PROCESS = "send", "process"
_CONTEXT_BYTES: Final = 72
"""The bytes of the property `traceparent`."""


def traced(log: Any, *, tracer_provider: TracerProvider | None = None) -> TracedLog:
    """Returns the log with traced calls. Without a provider it takes the global one of OpenTelemetry."""
    return TracedLog(log, trace.get_tracer("wal", tracer_provider=tracer_provider))


@contextlib.contextmanager
def handling(message: ImmutableMessage, *, tracer_provider: TracerProvider | None = None) -> Iterator[Span]:
    """A span around the handling of a message, in the trace of its append."""
    with _handling(trace.get_tracer("wal", tracer_provider=tracer_provider), message) as span:
        yield span


class TracedLog:
    """An open log whose appends, commits, broadcasts and handlers get spans; every other call is the log's own."""

    def __init__(self, log: Any, tracer: Tracer) -> None:
        self._log = log
        self._tracer = tracer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def raw_append(self, message: Message, **options: Any) -> Any:
        """Appends a message, as the log does."""
        with _span(self._tracer, "append", message.vchannel, size=len(message.payload)) as span:
            return _noted(span, await self._log.raw_append(_carrying(message), **options))

    async def append(self, vchannel: str, payload: bytes, *, properties: Mapping[str, str] | None = None, **options: Any) -> Any:
        """Appends a payload, as the log does."""
        with _span(self._tracer, "append", vchannel, size=len(payload)) as span:
            return _noted(span, await self._log.append(vchannel, payload, properties=_injected(properties or {}), **options))

    def append_nowait(self, message: Message, **options: Any) -> asyncio.Future[Any]:
        """Appends a message without waiting, as the log does; the span ends when the future is done."""
        span = self._tracer.start_span(
            f"append {message.vchannel}",
            kind=SpanKind.PRODUCER,
            attributes=_attributes("append", message.vchannel, size=len(message.payload)),
        )
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                future: asyncio.Future[Any] = self._log.append_nowait(_carrying(message), **options)
        except BaseException as error:
            _failed(span, error)
            span.end()
            raise
        future.add_done_callback(partial(_end, span))
        return future

    async def append_bulk(self, messages: Iterable[Message] | Message, *more: Message) -> Any:
        """Appends messages in order, as the log does, in one span."""
        if isinstance(messages, Message):
            messages, more = (messages, *more), ()
        several = list(messages)
        with _span(self._tracer, "append", _common(several), count=len(several)):
            return await self._log.append_bulk([_carried(message) for message in several], *more)

    async def append_messages(self, *messages: Message, **options: Any) -> Any:
        """Appends messages, as the log does, in one span, which names the first error among the responses."""
        with _span(self._tracer, "append", _common(messages), count=len(messages)) as span:
            responses = await self._log.append_messages(*map(_carried, messages), **options)
            if responses.first_error is not None:
                _failed(span, responses.first_error)
            return responses

    async def append_messages_with_option(self, option: Any, *messages: Message) -> Any:
        """Appends messages, as `append_messages` does."""
        with _span(self._tracer, "append", _common(messages), count=len(messages)) as span:
            responses = await self._log.append_messages_with_option(option, *map(_carried, messages))
            if responses.first_error is not None:
                _failed(span, responses.first_error)
            return responses

    async def append_txn(
        self, vchannels: str | Sequence[str], messages: Iterable[Message | bytes] | Message | bytes, *more: Message | bytes, **options: Any
    ) -> Any:
        """Appends a whole transaction, as the log does."""
        bodies = [messages, *more] if isinstance(messages, Message | bytes) else [*messages, *more]
        with _span(self._tracer, "commit", _named(vchannels), count=len(bodies)) as span:
            carrying = [_body(body, vchannels) for body in bodies]
            return _noted(span, await self._log.append_txn(vchannels, carrying, **options))

    def txn(self, vchannel: str | None = None, **options: Any) -> TracedTxn:
        """Begins a transaction, as the log does; its commit gets the span."""
        names = options.get("vchannels") if vchannel is None else vchannel
        opening = self._log.txn(vchannel, **options) if vchannel is not None else self._log.txn(**options)
        return TracedTxn(opening, names or "", self._tracer)

    def broadcast(self) -> TracedBroadcast:
        """Returns the calls of the broadcaster."""
        return TracedBroadcast(self._log.broadcast(), self._tracer)

    def read(self, vchannel: str | Sequence[str], *, handler: Any = None, **options: Any) -> Any:
        """Returns a scanner, as the log does. Each call of a handler gets a span."""
        if handler is not None:
            handler = _TracedHandler(handler, self._tracer) if hasattr(handler, "handle") else _traced_call(handler, self._tracer)
        return self._log.read(vchannel, handler=handler, **options)

    def consume(self, vchannels: str | Sequence[str], handler: Callable[[Any], Any], **options: Any) -> Any:
        """Returns a consumer, as the log does. Each attempt gets a span in the trace of its message, and outputs carry its context; a batch
        has one span, in the trace of its first message."""
        tracer = self._tracer

        async def attempt(given: Any) -> Any:
            with _attempt(tracer, given):
                return await handler(given)

        def attempt_in_thread(given: Any) -> Any:
            with _attempt(tracer, given):
                return handler(given)

        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004
        return self._log.consume(vchannels, attempt if is_async else attempt_in_thread, **options)


class TracedTxn:
    """A transaction: await it, or use it in `async with`, as that of the log."""

    def __init__(self, opening: Any, vchannels: str | Sequence[str], tracer: Tracer) -> None:
        self._opening = opening
        self._vchannels = vchannels
        self._tracer = tracer
        self._txn: Any = None
        self._count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)

    def __await__(self) -> Generator[Any, None, TracedTxn]:
        return self._begin().__await__()

    async def _begin(self) -> TracedTxn:
        self._txn = await self._opening
        return self

    async def __aenter__(self) -> TracedTxn:
        return await self._begin()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._txn.ended:
            return
        if kind is None:
            await self.commit()
        else:
            await self._txn.rollback()

    async def append(self, message: Message | bytes, **options: Any) -> None:
        """Adds a message, which carries the context of the current span."""
        await self._txn.append(_body(message, self._vchannels), **options)
        self._count += 1

    async def append_many(self, messages: Iterable[Message | bytes], **options: Any) -> None:
        """Adds messages, which carry the context of the current span."""
        bodies = [_body(message, self._vchannels) for message in messages]
        await self._txn.append_many(bodies, **options)
        self._count += len(bodies)

    async def commit(self) -> Any:
        """Commits the transaction in a span."""
        with _span(self._tracer, "commit", _named(self._vchannels), count=self._count) as span:
            return _noted(span, await self._txn.commit())


class TracedBroadcast:
    """The broadcaster of a log, whose appends get spans."""

    def __init__(self, broadcast: Any, tracer: Tracer) -> None:
        self._broadcast = broadcast
        self._tracer = tracer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broadcast, name)

    async def append(self, message: Any, **options: Any) -> Any:
        """Broadcasts a message, whose copies carry the context of the span."""
        with _span(self._tracer, "broadcast", "", size=len(message.payload), count=len(message.vchannels)) as span:
            carrying = msgspec.structs.replace(message, properties=_injected(message.properties))
            result = await self._broadcast.append(carrying, **options)
            span.set_attribute(ATTRIBUTES["broadcast_id"], str(result.broadcast_id))
            return result


class _TracedHandler:
    """A handler object whose `handle` gets spans."""

    def __init__(self, handler: Any, tracer: Tracer) -> None:
        self.handle = _traced_call(handler.handle, tracer)
        self._handler = handler

    def close(self) -> Any:
        return self._handler.close()


def _traced_call(call: Callable[[Any], Any], tracer: Tracer) -> Callable[[Any], Awaitable[None]]:
    async def handle(message: Any) -> None:
        with _handling(tracer, message):
            outcome = call(message)
            if inspect.isawaitable(outcome):
                await outcome

    return handle


@contextlib.contextmanager
def _handling(tracer: Tracer, message: Any) -> Iterator[Span]:
    bodies = message.bodies()
    carrier = bodies[0].properties if isinstance(message, ImmutableTxnMessage) and bodies else message.properties
    appended = _PROPAGATOR.extract(carrier, context.Context())
    of_append = trace.get_current_span(appended).get_span_context()
    links = [Link(of_append)] if of_append.is_valid else []
    with _span(tracer, "handle", message.vchannel, kind=SpanKind.CONSUMER, parent=appended if links else None, links=links) as span:
        span.set_attribute(ATTRIBUTES["message_id"], str(message.message_id))
        span.set_attribute(ATTRIBUTES["count"], len(bodies))
        yield span


@contextlib.contextmanager
def _attempt(tracer: Tracer, given: Any) -> Iterator[None]:
    """A span around an attempt of a consumer at a delivery, or at a list of them, whose outputs carry its context."""
    deliveries = given if isinstance(given, list) else [given]
    with _handling(tracer, deliveries[0].message) as span:
        span.set_attribute(ATTRIBUTES["count"], len(deliveries))
        yield
        for delivery in deliveries:
            if (outputs := delivery._outputs) is not None:
                outputs.messages[:] = map(_carrying, outputs.messages)
                outputs.size += _CONTEXT_BYTES * len(outputs.messages)


@contextlib.contextmanager
def _span(
    tracer: Tracer,
    operation: str,
    vchannel: str,
    *,
    kind: SpanKind = SpanKind.PRODUCER,
    parent: context.Context | None = None,
    links: Sequence[Link] = (),
    size: int | None = None,
    count: int | None = None,
) -> Iterator[Span]:
    attributes = _attributes(operation, vchannel, kind, size=size, count=count)
    with tracer.start_as_current_span(
        f"{operation} {vchannel}".strip(),
        context=parent,
        kind=kind,
        attributes=attributes,
        links=links,
        record_exception=False,  # the text of an error may show content of the log
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except BaseException as error:
            _failed(span, error)
            raise


def _attributes(
    operation: str, vchannel: str, kind: SpanKind = SpanKind.PRODUCER, *, size: int | None = None, count: int | None = None
) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        ATTRIBUTES["system"]: "wal",
        ATTRIBUTES["operation"]: operation,
        ATTRIBUTES["type"]: _PROCESS if kind is SpanKind.CONSUMER else _SEND,
    }
    for what, value in (("vchannel", vchannel or None), ("bytes", size), ("count", count)):
        if value is not None:
            attributes[ATTRIBUTES[what]] = value
    return attributes


def _failed(span: Span, error: BaseException) -> None:
    span.set_attribute(ATTRIBUTES["error"], type(error).__name__)
    span.set_status(Status(StatusCode.ERROR))


def _end(span: Span, future: asyncio.Future[Any]) -> None:
    """Ends the span of an append with the outcome of its future."""
    if future.cancelled():
        _failed(span, asyncio.CancelledError())
    elif (error := future.exception()) is not None:
        _failed(span, error)
    else:
        _noted(span, future.result())
    span.end()


def _common(messages: Iterable[Any]) -> str:
    """Returns the vchannel that all these messages have, or ""."""
    names = {message.vchannel for message in messages if isinstance(message, Message)}
    return names.pop() if len(names) == 1 else ""


def _noted(span: Span, result: Any) -> Any:
    """Sets the result of an append in its span, and returns it."""
    if result.message_id is not None:
        span.set_attribute(ATTRIBUTES["message_id"], str(result.message_id))
        span.set_attribute(ATTRIBUTES["time_tick"], str(result.time_tick))
    span.set_attribute(ATTRIBUTES["duplicate"], result.duplicate)
    return result


def _injected(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties with the context of the current span, unless they carry one."""
    carrier = dict(properties)
    if TRACEPARENT not in carrier:
        _PROPAGATOR.inject(carrier)
    return carrier


def _carrying(message: Message) -> Message:
    return msgspec.structs.replace(message, properties=_injected(message.properties))


def _carried(message: Any) -> Any:
    """Returns a message that carries the context; any other object is left to the log, which refuses it."""
    return _carrying(message) if isinstance(message, Message) else message


def _body(body: Message | bytes, vchannels: str | Sequence[str]) -> Message | bytes:
    """Returns a body that carries the context; `bytes` for several vchannels are left to the log, which refuses them."""
    if isinstance(body, Message):
        return _carrying(body)
    names = (vchannels,) if isinstance(vchannels, str) else tuple(vchannels)
    return _carrying(Message(names[0], body)) if isinstance(body, bytes) and len(names) == 1 else body


def _named(vchannels: str | Sequence[str]) -> str:
    """Returns the name of a transaction's vchannel, or "" if it has several."""
    if isinstance(vchannels, str):
        return vchannels
    return vchannels[0] if len(vchannels) == 1 else ""
