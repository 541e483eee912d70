"""The error that ends a scanner with a handler is logged at ERROR, and raised when its block is left."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.locations import open_wal
from tests.probes import start
from wal import BroadcastMessage, ImmutableMessage, Message, WALAccesser, bridge
from wal.errors import CorruptionError

pytestmark = pytest.mark.one_location("a scanner runs its handler alike on every log")


class HandlingError(Exception):
    """The error that the handlers raise here."""


def fails(message: ImmutableMessage) -> None:
    raise HandlingError("cannot handle this")


@pytest.fixture
async def ended(log: WALAccesser) -> WALAccesser:
    """Yields a log whose scanners with a handler get a message at once."""
    await log.raw_append(Message("orders", b"one"))
    return log


def errors(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.ERROR]


async def until_ended(log: WALAccesser) -> None:
    """Waits until no scanner reads any more, without querying a scanner."""
    while any(pchannel.readers for pchannel in log.statistics().pchannels):
        await asyncio.sleep(0)


async def test_handler_error_is_logged_with_its_message(ended: WALAccesser, caplog: pytest.LogCaptureFixture) -> None:
    async with ended.read("orders", follow=False) as scanner:
        failing = await anext(scanner)
    scanner = ended.read("orders", cursor="billing", handler=fails)
    await scanner.__aenter__()
    await scanner.done()
    (record,) = errors(caplog)
    assert record.name == "wal.scanner"
    for part in ("'orders'", "'billing'", str(failing.message_id), "cannot handle this"):
        assert part in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is HandlingError
    assert "in fails" in caplog.text, "the traceback leads to the line of the handler"


async def test_leaving_the_block_raises_it(ended: WALAccesser) -> None:
    with pytest.raises(HandlingError):
        async with ended.read("orders", handler=fails):
            await until_ended(ended)


@pytest.mark.parametrize("asked", ["done", "error", "wait_for"])
async def test_leaving_the_block_after_the_error_is_quiet(ended: WALAccesser, asked: str) -> None:
    async with ended.read("orders", handler=fails) as scanner:
        if asked == "done":
            await scanner.done()
        elif asked == "error":
            while scanner.error is None:
                await asyncio.sleep(0)
        else:
            with pytest.raises(HandlingError):
                await scanner.wait_for((1 << 64) - 1)


async def test_error_read_too_early_is_raised_later(ended: WALAccesser) -> None:
    with pytest.raises(HandlingError):
        async with ended.read("orders", handler=fails) as scanner:
            assert scanner.error is None
            done = start(scanner.done())
            done.cancel()
            await asyncio.wait([done])
            await until_ended(ended)


async def test_error_of_the_block_itself_wins(ended: WALAccesser) -> None:
    with pytest.raises(ZeroDivisionError):
        async with ended.read("orders", handler=fails):
            await until_ended(ended)
            raise ZeroDivisionError


async def test_handler_that_raises_while_its_block_is_left(ended: WALAccesser, caplog: pytest.LogCaptureFixture) -> None:
    at_work, go_on = asyncio.Event(), asyncio.Event()

    async def handle(message: ImmutableMessage) -> None:
        at_work.set()
        await go_on.wait()
        fails(message)

    async def read() -> None:
        async with ended.read("orders", handler=handle):
            await at_work.wait()

    reading = start(read())
    await at_work.wait()
    await until_ended(ended)
    go_on.set()
    with pytest.raises(HandlingError):
        await reading
    assert len(errors(caplog)) == 1


async def test_handler_that_raises_when_it_is_closed(ended: WALAccesser, caplog: pytest.LogCaptureFixture) -> None:
    class Handler:
        def handle(self, message: ImmutableMessage) -> None:
            pass

        def close(self) -> None:
            raise HandlingError("cannot close")

    with pytest.raises(HandlingError):
        async with ended.read("orders", handler=Handler()):
            pass
    (record,) = errors(caplog)
    assert "cannot close" in record.getMessage()


async def test_handler_that_awaits_a_cancelled_future(ended: WALAccesser, caplog: pytest.LogCaptureFixture) -> None:
    async def handle(message: ImmutableMessage) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    scanner = ended.read("orders", handler=handle)
    await scanner.__aenter__()
    await scanner.done()
    assert isinstance(scanner.error, asyncio.CancelledError)
    assert len(errors(caplog)) == 1


def raising(error: BaseException) -> Callable[[object], None]:
    def fail(_: object) -> None:
        raise error

    return fail


async def test_whatever_a_handler_raises_ends_its_scanner(ended: WALAccesser, caplog: pytest.LogCaptureFixture) -> None:
    async def cancel_own_task(_: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    class MuteError(Exception):
        """It cannot be shown."""

        def __str__(self) -> str:
            raise KeyError("message")

        __repr__ = __str__

    async def generator(message: ImmutableMessage) -> AsyncIterator[None]:
        yield

    class Closing:
        def __init__(self, error: BaseException) -> None:
            self.close = lambda: raising(error)(None)

        def handle(self, message: ImmutableMessage) -> None: ...

    raised = [
        MuteError(),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        StopIteration(),
        StopAsyncIteration(),
        asyncio.CancelledError(),
    ]
    handlers: list[tuple[Any, type[BaseException]]] = [(raising(error), type(error)) for error in raised]
    handlers += [(Closing(error), type(error)) for error in raised if not isinstance(error, GeneratorExit)]
    handlers += [(cancel_own_task, asyncio.CancelledError), (lambda message: (message for _ in "a"), TypeError)]
    for handler, kind in handlers:
        caplog.clear()
        async with asyncio.timeout(30), ended.read("orders", follow=False, handler=handler) as scanner:
            await scanner.done()
            assert type(scanner.error) is kind
        assert len(errors(caplog)) == 1
    await ended.raw_append(Message("orders", b"two"))  # the log continues
    with pytest.raises(TypeError, match="generator function"):
        ended.read("orders", handler=generator)


async def test_reader_that_acknowledges(log: WALAccesser) -> None:
    await log.broadcast().append(BroadcastMessage(vchannels=["orders"], payload=b"all"))
    with pytest.raises(HandlingError):
        async with log.read("orders", handler=fails, auto_ack=True):
            await until_ended(log)


async def test_transaction_is_named_by_its_own_id(log: WALAccesser, caplog: pytest.LogCaptureFixture) -> None:
    async with log.txn("orders") as txn:
        await txn.append(b"one")
    assert txn.result is not None
    scanner = log.read(["orders", "stock"], handler=fails)
    await scanner.__aenter__()
    await scanner.done()
    (record,) = errors(caplog)
    for part in ("'orders', 'stock'", str(txn.result.message_id), "no cursor"):
        assert part in record.getMessage()


async def test_closed_log_is_not_a_handler_error(location: str, caplog: pytest.LogCaptureFixture) -> None:
    log = await open_wal(location)
    async with log.read("orders", handler=lambda _: None):
        await log.close()
    assert errors(caplog) == []


async def test_dropped_vchannel_is_not_a_handler_error(log: WALAccesser, caplog: pytest.LogCaptureFixture) -> None:
    await log.create_vchannel("orders")
    async with log.read("orders", handler=lambda _: None):
        await log.drop_vchannel("orders")
    assert errors(caplog) == []


async def test_damage_under_a_handler_is_told_as_well(data: str, caplog: pytest.LogCaptureFixture) -> None:
    async with open_wal(data) as log:
        await log.append_bulk([Message("orders", bytes([65 + number]) * 20_000) for number in range(10)])
    (segment,) = Path(data).glob("pchannels/*/*.wal")
    written = segment.read_bytes()
    at = written.index(b"C" * 100)
    segment.write_bytes(written[:at] + b"!" + written[at + 1 :])
    async with open_wal(data, read_only=True) as log:
        with pytest.raises(CorruptionError):
            async with log.read("orders", handler=lambda _: None):
                await until_ended(log)
        (record,) = errors(caplog)
        assert record.name == "wal.scanner"
        assert re.search(r"'orders'.*damaged", record.getMessage())


def test_blocking_twin(data: str, caplog: pytest.LogCaptureFixture) -> None:
    class Later:
        def __init__(self, _: object) -> None: ...

        def __await__(self) -> Iterator[None]:
            yield

    with bridge.blocking(data) as log:
        log.raw_append(Message("orders", b"one"))
        with pytest.raises(HandlingError), log.read("orders", handler=fails):
            while any(pchannel.readers for pchannel in log.statistics().pchannels):
                pass
        with log.read("orders", handler=fails) as scanner:
            scanner.done()
        for handler, kind in (
            (lambda _: next(iter(())), RuntimeError),
            (raising(GeneratorExit()), RuntimeError),
            (raising(SystemExit(3)), SystemExit),
            (Later, TypeError),
        ):
            with log.read("orders", handler=handler) as scanner:
                scanner.done()
                assert type(scanner.error) is kind
        with pytest.raises(ZeroDivisionError), log.read("orders", handler=fails):
            raise ZeroDivisionError
        log.raw_append(Message("orders", b"two"))  # the log continues
    assert {record.name for record in errors(caplog)} == {"wal.scanner"}
