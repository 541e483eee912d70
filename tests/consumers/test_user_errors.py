"""Any exception, cancellation or result of a handler or a key function is an attempt, or ends the consumer with an error that names it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.consumers.test_consume import append, payloads
from tests.probes import read_all
from wal import Delivery, Message, PayloadType, Reject, Retry, WALAccesser, open_wal
from wal.consumers import handlers
from wal.errors import HandlerFailedError, InvalidArgumentError, InvalidTransactionStateError


class Panic(BaseException):
    """The exception of some libraries for a failed assertion."""


class Mute(Exception):
    """An exception whose `str` raises, such as an SDK's error whose text is a missing key of an answer."""

    def __str__(self) -> str:
        return str(self.args[0]["message"])

    __repr__ = __str__


class BareRetry(Retry):
    def __init__(self) -> None: ...


class BareReject(Reject):
    def __init__(self) -> None: ...


def raising(make: Callable[[], BaseException]) -> Callable[[], NoReturn]:
    def fail() -> NoReturn:
        raise make()

    return fail


async def cancel_own_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def cancel_own_task_and_return() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def leave_cancelled_scope_open() -> None:
    scope = anyio.CancelScope()
    scope.__enter__()
    scope.cancel()
    await asyncio.sleep(0.01)


async def await_failed_future() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_exception, GeneratorExit())
    await future


async def cancelled_scope() -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await anyio.sleep_forever()


FAILS = {
    "Exception": raising(lambda: ValueError("no")),
    "Panic": raising(lambda: Panic("no")),
    "Mute": raising(lambda: Mute({})),
    "GeneratorExit": raising(GeneratorExit),
    "StopIteration": raising(StopIteration),
    "StopAsyncIteration": raising(StopAsyncIteration),
    "CancelledError": raising(asyncio.CancelledError),
    "Retry": raising(lambda: Retry(0)),
    "BareRetry": raising(BareRetry),
    "far Retry": raising(lambda: Retry(1e300)),
    "BareReject": raising(BareReject),
    "own task": cancel_own_task,
    "open scope": leave_cancelled_scope_open,
    "future": await_failed_future,
}
HANDLES = {"nothing": lambda: None, "own task, late": cancel_own_task_and_return, "scope": cancelled_scope}
REJECTS = {"Reject": raising(lambda: Reject("no"))}
ENDS = {"SystemExit": raising(lambda: SystemExit(3)), "KeyboardInterrupt": raising(KeyboardInterrupt)}
ALL: dict[str, Callable[[], Any]] = {**FAILS, **HANDLES, **REJECTS, **ENDS}


@settings(max_examples=60)
@given(
    names=st.lists(st.sampled_from([name for name in ALL if name not in ENDS] * 4 + list(ENDS)), min_size=1, max_size=5),
    concurrency=st.integers(1, 3),
    order=st.sampled_from(["vchannel", "key", "none"]),
    batch=st.sampled_from([None, None, 2]),
    is_async=st.booleans(),
    dead_letter=st.sampled_from([True, True, False]),
)
def test_handler_errors_are_attempts_or_end(names: list[str], **mode: Any) -> None:
    ATTEMPTS = 2
    wait_s = 30.0

    class Trial:
        """One consumer whose handler follows the instruction in each message's payload."""

        def __init__(self, names: list[str], *, concurrency: int, order: Any, batch: int | None, is_async: bool, dead_letter: bool) -> None:
            self.names = names
            self.calls: Counter[int] = Counter()
            self.handled: set[int] = set()
            self.concurrency, self.order, self.batch, self.is_async, self.dead_letter = concurrency, order, batch, is_async, dead_letter
            self.meeting = threading.Barrier(concurrency)
            self.arrived = asyncio.Event()
            self.arrivals = 0

        def one(self, number: int) -> Any:
            self.calls[number] += 1
            return ALL[self.names[number]]()

        async def meet(self) -> None:
            self.arrivals += 1
            if self.arrivals == self.concurrency:
                self.arrived.set()
            await self.arrived.wait()

        async def handle(self, given: Delivery | list[Delivery]) -> None:
            numbers = [int(delivery.value) for delivery in (given if isinstance(given, list) else [given])]
            for number in numbers:
                if number >= len(self.names):
                    await self.meet()
                elif (outcome := self.one(number)) is not None:
                    await outcome
            self.handled.update(numbers)

        def handle_in_thread(self, given: Delivery | list[Delivery]) -> Any:
            """Does in the thread what needs no task, and returns the rest as a coroutine."""
            numbers = [int(delivery.value) for delivery in (given if isinstance(given, list) else [given])]
            for number in numbers:
                if number >= len(self.names):
                    self.meeting.wait(wait_s)
                elif (outcome := self.one(number)) is not None:
                    return self.finish(outcome, numbers)
            self.handled.update(numbers)
            return None

        async def finish(self, outcome: Any, numbers: list[int]) -> None:
            await outcome
            self.handled.update(numbers)

        async def run(self) -> None:
            options: dict[str, Any] = {"dead_letter": "dead"} if self.dead_letter else {}
            if self.order == "key":
                options["key"] = lambda message: message.payload
            if self.concurrency == 1 or self.order != "vchannel":
                options["concurrency"] = self.concurrency
            handler = self.handle if self.is_async else self.handle_in_thread
            async with open_wal("memory:") as log:
                await append(log, [str(number) for number in range(len(self.names))])
                consumer = log.consume(
                    "jobs", handler, cursor="c", order=self.order, batch=self.batch, attempts=ATTEMPTS, backoff_s=(0, 0), **options
                )
                error: HandlerFailedError | None = None
                async with asyncio.timeout(wait_s):
                    try:
                        async with consumer:
                            await consumer.caught_up()
                            if self.batch is None and self.order != "vchannel":  # none of its tasks is lost
                                await append(log, [str(len(self.names) + number) for number in range(self.concurrency)])
                                await consumer.caught_up()
                    except HandlerFailedError as ended:
                        error = ended
                letters = {int(payload) for payload in await payloads(log, "dead")} if self.dead_letter else set()
                self.check(error, letters)
                assert log.consumers() == []

        def check(self, error: HandlerFailedError | None, letters: set[int]) -> None:
            # A batch that fails releases the later messages of its first message's lane, which uses up no attempt.
            assert max(self.calls.values()) <= ATTEMPTS * (1 if self.batch is None else len(self.names))
            kinds = set(self.names)
            if error is not None:
                assert error.message is not None
                assert str(error.message.message_id) in str(error)
                assert error.__cause__ is not None
                assert kinds & set(ENDS) or not self.dead_letter
                return
            assert not kinds & set(ENDS)
            assert self.dead_letter or not kinds & {*FAILS, *REJECTS}
            everything = set(range(len(self.names)))
            assert everything <= self.handled | letters
            if self.batch is None:
                assert letters == {number for number in everything if self.names[number] in FAILS or self.names[number] in REJECTS}
                attempts = {number: ATTEMPTS if self.names[number] in FAILS else 1 for number in everything}
                assert {number: self.calls[number] for number in everything} == attempts

    async def trial() -> None:
        await Trial(names, **mode).run()

    asyncio.run(trial())


async def test_key_errors_end_the_consumer(log: WALAccesser) -> None:
    """The error names the message, and a key is a plain text or plain bytes, whatever its class does."""

    class Loud(str):
        """A text that cannot be hashed, compared or shown."""

        __slots__ = ()

        def _refuse(self, *_: object) -> NoReturn:
            raise RuntimeError("not this way")

        __hash__ = __eq__ = __repr__ = __str__ = _refuse

    async def handle(delivery: Delivery) -> None: ...

    def cancel(_: object) -> Any:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "key"

    await append(log, "a")
    for make in (Panic, GeneratorExit, StopIteration, asyncio.CancelledError, lambda: SystemExit(3), lambda: Mute({})):
        with pytest.raises(InvalidArgumentError, match=r"the key function of consumer 'c' failed at message .* nothing was skipped"):
            await log.consume("jobs", handle, cursor="c", order="key", key=lambda _, make=make: raising(make)()).run()  # type: ignore[call-overload]
    for wrong in (5, Mute({}), None):
        with pytest.raises(InvalidArgumentError, match="return a str or bytes for every message"):
            await log.consume("jobs", handle, cursor="c", order="key", key=lambda _, wrong=wrong: wrong).run()  # type: ignore[call-overload]
    async with log.consume("jobs", handle, cursor="cancelled", order="key", key=cancel) as consumer:
        with pytest.raises(Exception, match="reader of consumer cancelled was cancelled"):
            while True:
                await append(log, "b")
                await consumer.caught_up()
    async with log.consume("jobs", handle, cursor="loud", order="key", key=lambda _: Loud("key")) as consumer:
        await consumer.caught_up()


async def test_codec_errors_are_attempts(log: WALAccesser) -> None:
    async def handle(delivery: Delivery) -> None: ...

    await append(log, "a")
    options: dict[str, Any] = {"attempts": 2, "backoff_s": (0, 0)}
    ends = {}
    for name, make in {"mute": lambda: Mute({}), "panic": Panic, "cancelled": asyncio.CancelledError, "own": lambda: Reject("no")}.items():
        kind = PayloadType(bytes, codec=(bytes, lambda _, make=make: raising(make)()))  # type: ignore[misc]
        async with log.consume("jobs", handle, cursor=name, type=kind, **options, dead_letter=f"{name}-dead") as consumer:
            await consumer.caught_up()
        ends[name] = (await payloads(log, f"{name}-dead"), consumer.statistics().failed)
    # An undecodable payload is a dead letter at once.
    assert ends == {"mute": (["a"], 0), "panic": (["a"], 2), "cancelled": (["a"], 2), "own": (["a"], 0)}


async def test_consumer_closes_under_a_stubborn_coroutine(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that ignores its cancellation keeps its message and the cursor, and `close` returns."""
    monkeypatch.setattr(handlers, "CANCEL_S", 0.02)
    began, going, handled = asyncio.Event(), asyncio.Event(), []

    async def handle(delivery: Delivery) -> None:
        began.set()
        while not going.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await going.wait()
        handled.append((delivery.value, delivery.attempt))

    await append(log, "ab")
    async with log.consume("jobs", handle, cursor="c") as consumer:
        await began.wait()
        await consumer.close(drain_s=0.02)
        assert consumer.statistics().state == "ended"
    following = log.consume("jobs", handle, cursor="c")
    async with following:
        assert following.statistics().state == "waiting"
        assert handled == []
        going.set()
        await following.caught_up()
    assert handled == [(b"a", 1), (b"b", 1)]


async def test_handler_ends_its_own_consumer(log: WALAccesser) -> None:
    """A handler cannot wait for its own message, so `close` begins the end and does not wait."""

    async def handle(delivery: Delivery) -> None:
        with pytest.raises(InvalidArgumentError, match="cannot wait until its own message is finished"):
            await consumer.caught_up()
        await consumer.close()

    await append(log, "ab")
    consumer = log.consume("jobs", handle, cursor="c")
    await consumer.run()
    assert consumer.statistics().handled == 1


@pytest.mark.parametrize("mode", [{}, {"batch": 4}, {"timeout_s": 60.0}, {"concurrency": 2, "order": "none"}], ids=str)
async def test_delivery_takes_nothing_after_its_handler(log: WALAccesser, mode: dict[str, Any]) -> None:
    """The first mode handles healthy messages one after the other in one turn of the loop."""
    kept: list[Delivery] = []

    async def handle(given: Any) -> None:
        for delivery in kept:
            with pytest.raises(InvalidTransactionStateError, match="has ended"):
                delivery.append("out", b"late")
            with pytest.raises(InvalidTransactionStateError, match="has ended"):
                delivery.extend(1)
        kept.extend(given if isinstance(given, list) else [given])

    await append(log, [str(number) for number in range(20)])
    async with log.consume("jobs", handle, cursor="c", **mode) as consumer:
        await consumer.caught_up()
        assert consumer.statistics().failed == 0
        assert kept[0].fence == consumer.statistics().fence
    assert len(kept) == 20
    assert await payloads(log, "out") == []


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("concurrency", [1, 4])
async def test_returned_error_is_a_raised_one(threaded: bool, concurrency: int) -> None:
    answers = {b"0": None, b"1": Reject("not for us"), b"2": ValueError("broken")}

    async def handle(delivery: Delivery) -> object:
        return answers[delivery.value]

    def handle_in_thread(delivery: Delivery) -> object:
        return answers[delivery.value]

    async with open_wal("memory:") as log:
        await log.append_bulk([Message("jobs", payload) for payload in answers])
        options: dict[str, Any] = {"cursor": "worker", "attempts": 1, "dead_letter": "dead", "order": "none", "concurrency": concurrency}
        async with log.consume("jobs", handle_in_thread if threaded else handle, **options) as consumer:
            await consumer.caught_up()
        letters = await read_all(log, "dead")
    reasons = {body.payload: body.properties["dead_letter_reason"] for letter in letters for body in letter.bodies()}
    assert reasons == {b"1": "not for us", b"2": "ValueError: broken"}
