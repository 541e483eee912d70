"""Spans of appends, commits, broadcasts and handlers, linked by the property that messages carry."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.docs.snippets import ROOT
from tests.locations import open_wal
from tests.probes import read_all
from tests.processes import run_python
from wal import BroadcastMessage, Delivery, ImmutableMessage, Message
from wal.errors import InvalidArgumentError
from wal.tracing import ATTRIBUTES, TRACEPARENT, TracedLog, handling, traced


class Spans:
    """A provider that keeps its spans."""

    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))

    def all(self) -> Sequence[ReadableSpan]:
        return self._kept.get_finished_spans()

    def named(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.all() if span.name == name]
        return span


@pytest.fixture
def spans() -> Spans:
    return Spans()


def attribute(span: ReadableSpan, what: str) -> Any:
    return (span.attributes or {}).get(ATTRIBUTES[what])


async def test_handler_is_in_the_trace_of_the_append(location: str, spans: Spans) -> None:
    async with open_wal(location) as plain:
        log = traced(plain, tracer_provider=spans.provider)
        result = await log.raw_append(Message("orders", b"x", properties={"user": "7"}))
        handled: list[ImmutableMessage] = []
        async with log.read("orders", handler=handled.append, follow=False) as scanner:
            await scanner.done()
    append, handle = spans.named("append orders"), spans.named("handle orders")
    assert handled[0].properties["user"] == "7"
    assert append.kind is SpanKind.PRODUCER
    assert handle.kind is SpanKind.CONSUMER
    assert handle.context.trace_id == append.context.trace_id
    assert [link.context.span_id for link in handle.links] == [append.context.span_id]
    assert attribute(append, "message_id") == attribute(handle, "message_id") == str(result.message_id)
    assert attribute(append, "vchannel") == "orders"
    assert attribute(append, "bytes") == 1


@pytest.mark.parametrize("sync", [False, True])
async def test_outputs_of_consumers_continue_the_trace(spans: Spans, sync: bool) -> None:
    def put_out(delivery: Delivery) -> None:
        delivery.append("bills", delivery.value)

    async def put_out_later(delivery: Delivery) -> None:
        put_out(delivery)

    async with open_wal("memory:") as plain:
        log = traced(plain, tracer_provider=spans.provider)
        await log.append("orders", b"x")
        async with log.consume("orders", put_out if sync else put_out_later, cursor="billing") as consumer:
            await consumer.caught_up()
        async with plain.read("bills", follow=False) as scanner:
            bill = (await anext(scanner)).bodies()[0]
    append, handle = spans.named("append orders"), spans.named("handle orders")
    assert handle.context.trace_id == append.context.trace_id
    assert f"{handle.context.span_id:016x}" in bill.properties[TRACEPARENT]


async def test_transactions_carry_their_context(location: str, spans: Spans) -> None:
    async with open_wal(location) as plain:
        log = traced(plain, tracer_provider=spans.provider)
        async with log.txn("orders") as txn:
            await txn.append(b"1")
            await txn.append_many([Message("orders", b"2"), b"3"])
        await log.append_txn("stock", [b"4", b"5"])
        with pytest.raises(RuntimeError, match="no"):
            async with log.txn("orders") as txn:
                await txn.append(b"never")
                raise RuntimeError("no")
        (message,) = await read_all(plain, "stock")
    commit = spans.named("commit orders")
    assert attribute(commit, "count") == 3
    assert attribute(spans.named("commit stock"), "count") == 2
    assert all(TRACEPARENT in body.properties for body in message.bodies())
    with handling(message, tracer_provider=spans.provider):
        pass
    assert spans.named("handle stock").context.trace_id == spans.named("commit stock").context.trace_id


async def test_several_messages_share_a_span(location: str, spans: Spans) -> None:
    async with open_wal(location) as plain:
        log = traced(plain, tracer_provider=spans.provider)
        await log.append_bulk(Message("bulk", b"%d" % number) for number in range(3))
        await log.append_bulk(Message("bulk", b"3"), Message("other", b"4"))
        responses = await log.append_messages(Message("pair", b"5"), Message("pair", b"6"))
        future = log.append_nowait(Message("later", b"7"))
        assert [span.name for span in spans.all()] == ["append bulk", "append", "append pair"]
        result = await future
        messages = [message for name in ("bulk", "other", "pair", "later") for message in await read_all(plain, name)]
    assert attribute(spans.named("append bulk"), "count") == 3
    assert attribute(spans.named("append"), "count") == 2
    assert attribute(spans.named("append pair"), "count") == 2
    assert responses.first_error is None
    assert attribute(spans.named("append later"), "message_id") == str(result.message_id)
    carried = {body.properties[TRACEPARENT].split("-")[2] for message in messages for body in message.bodies()}
    assert carried == {f"{span.context.span_id:016x}" for span in spans.all()}


async def test_errors_of_several_messages_are_marked(spans: Spans) -> None:
    async with open_wal("memory:", message_bytes_max=100) as plain:
        log = traced(plain, tracer_provider=spans.provider)
        with pytest.raises(InvalidArgumentError):
            await log.append_bulk([Message("orders", b"x" * 1000)])
        with pytest.raises(InvalidArgumentError):
            log.append_nowait(Message("orders", b"x" * 1000))
        with pytest.raises(TypeError):
            await log.append_bulk(["no message"])  # type: ignore[list-item]
    assert [attribute(span, "error") for span in spans.all()] == ["InvalidArgumentError", "InvalidArgumentError", "TypeError"]
    assert all(span.status.status_code is StatusCode.ERROR for span in spans.all())


async def test_broadcast_links_all_its_copies(location: str, spans: Spans) -> None:
    async with open_wal(location) as plain:
        log = traced(plain, tracer_provider=spans.provider)
        await log.broadcast().append(BroadcastMessage(vchannels=["a", "b"], payload=b"x", needs_ack=False))
        for name in ("a", "b"):
            (copy,) = await read_all(plain, name)
            with handling(copy, tracer_provider=spans.provider):
                pass
    sent = spans.named("broadcast")
    for name in ("a", "b"):
        assert spans.named(f"handle {name}").context.trace_id == sent.context.trace_id


async def test_errors_are_marked_without_their_text(spans: Spans) -> None:
    secret = "what nobody else may see"
    async with open_wal("memory:", message_bytes_max=100) as plain:
        log = traced(plain, tracer_provider=spans.provider)
        with pytest.raises(InvalidArgumentError):
            await log.append("orders", secret.encode() * 100)
        await log.append("orders", secret.encode())

        def fail(_message: ImmutableMessage) -> None:
            raise ValueError(secret)

        scanner = log.read("orders", handler=fail, follow=False)
        async with scanner:
            await scanner.done()
            assert isinstance(scanner.error, ValueError)
    for span in spans.all():
        assert secret not in span.to_json()
    failed = [span for span in spans.all() if span.status.status_code is StatusCode.ERROR]
    assert sorted(str(attribute(span, "error")) for span in failed) == ["InvalidArgumentError", "ValueError"]


async def test_context_of_a_caller_is_kept(spans: Spans) -> None:
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with open_wal("memory:") as plain:
        log = traced(plain, tracer_provider=spans.provider)
        await log.raw_append(Message("orders", b"x", properties={TRACEPARENT: given}))
        await log.append("orders", b"y", properties={TRACEPARENT: "nonsense"})
        first, second = await read_all(plain, "orders")
        assert first.properties[TRACEPARENT] == given
        with handling(first, tracer_provider=spans.provider) as span:
            assert f"{span.get_span_context().trace_id:032x}" == given.split("-")[1]
        with handling(second, tracer_provider=spans.provider) as span:
            assert span.get_span_context().is_valid
    assert isinstance(log, TracedLog)


async def test_another_process_continues_the_trace(data_dir: Path, spans: Spans) -> None:
    child = """\
        import asyncio, json, sys
        from opentelemetry.sdk.trace import TracerProvider
        from wal import open_wal
        from wal.tracing import handling

        async def main():
            async with open_wal(sys.argv[1], read_only=True) as log, log.read("orders", follow=False) as scanner:
                async for message in scanner:
                    with handling(message, tracer_provider=TracerProvider()) as span:
                        print(json.dumps(f"{span.get_span_context().trace_id:032x}"))

        asyncio.run(main())
    """

    async with open_wal(f"journal:{data_dir}") as plain:
        await traced(plain, tracer_provider=spans.provider).append("orders", b"x")
        ended = await asyncio.to_thread(run_python, "-c", child, data_dir)
    assert json.loads(ended.out) == f"{spans.named('append orders').context.trace_id:032x}"


def test_page_lists_every_attribute() -> None:
    page = (ROOT / "docs" / "howto" / "tracing.md").read_text()
    listed = page.partition("| attribute |")[2]
    assert re.findall(r"^\| `([\w.]+)` \|", listed, re.MULTILINE) == list(ATTRIBUTES.values())
