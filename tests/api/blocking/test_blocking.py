"""Blocking calls: every call of the accesser, from many threads, and every way in which a log and a read end."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import pickle
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests import twins
from tests.api.blocking.logs import Writer, numbers
from tests.api.blocking.signals import signal_in_wait, waits
from tests.processes import run_python
from wal import (
    AppendOption,
    Consumer,
    Delivery,
    ImmutableMessage,
    Latest,
    LogBroadcast,
    Message,
    MessageID,
    Reject,
    Scanner,
    Schedule,
    StartAfter,
    Txn,
    WALAccesser,
    bridge,
)
from wal.api.blocking import BlockingSchedule
from wal.errors import (
    BulkAppendError,
    ClosedError,
    HandlerFailedError,
    InvalidArgumentError,
    InvalidTransactionStateError,
    StorageError,
    WALError,
)
from wal.runtime import loop_thread
from wal.storage.journal.loop_path import LOOP_BYTES_MAX

WAIT_TIMEOUT_S = 60.0


@pytest.fixture(params=["memory:", "journal"])
def location(request: pytest.FixtureRequest, data: str) -> str:
    return "memory:" if request.param == "memory:" else data


@pytest.mark.parametrize(
    ("one", "twin"),
    [
        (WALAccesser, bridge.BlockingWAL),
        (Txn, bridge.BlockingTxn),
        (LogBroadcast, bridge.BlockingBroadcast),
        (Scanner, bridge.BlockingScanner),
        (Consumer, bridge.BlockingConsumer),
        (Schedule, BlockingSchedule),
    ],
)
def test_every_public_call_has_its_twin(one: type, twin: type) -> None:
    def public(one: type) -> dict[str, list[str]]:
        """Returns the public names of a class, with the parameters of its methods."""
        return {
            name: [str(each.replace(annotation=inspect.Parameter.empty)) for each in inspect.signature(member).parameters.values()]
            if callable(member)
            else []
            for name, member in inspect.getmembers(one)
            if not name.startswith("_")
        }

    expected = public(one)
    for name in twins.LEFT_OUT:
        expected.pop(name, None)
    found = public(twin)
    assert set(found) - set(expected) <= {"context", "result"}, "fields of a Txn"
    for name, parameters in expected.items():
        if name not in ("context", "result"):
            assert found[name] == parameters, name


def test_consumer_and_its_dead_letters(location: str) -> None:
    broken = {b"2"}
    handled: list[bytes] = []

    def handle(delivery: Delivery) -> None:
        if delivery.value in broken:
            raise Reject("no such job")
        log.raw_append(Message("done", delivery.value))  # a handler may use the log
        handled.append(delivery.value)

    with bridge.blocking(location) as log:
        log.append_bulk(Message("jobs", b"%d" % number) for number in range(4))
        with log.consume("jobs", handle, cursor="worker", dead_letter="dead") as consumer:
            consumer.caught_up()
            assert handled == [b"0", b"1", b"3"]
            consumer.pause()
            assert [(one.cursor, one.state, one.dead_lettered) for one in log.consumers()] == [("worker", "paused", 1)]
            consumer.resume()
            broken.clear()
            assert log.redrive("dead") == 1
            consumer.caught_up()
            assert handled[3:] == [b"2"]
            log.seek("worker", to=StartAfter(ids(log, "jobs")[0]))
            consumer.caught_up()
            consumer.close()
            assert consumer.statistics().state == "ended"
        assert handled[4:] == [b"1", b"2", b"3", b"2"]


def ids(log: bridge.BlockingWAL, vchannel: str) -> list[MessageID]:
    with log.read(vchannel, follow=False) as scanner:
        return [message.message_id for message in scanner]


def test_writing(location: str) -> None:
    with bridge.blocking(location) as log:
        first = log.raw_append(Message("orders", b"0"))
        futures = [log.append_nowait(Message("orders", b"%d" % number)) for number in range(1, 5)]
        assert all(isinstance(future, Future) for future in futures)
        ids = [future.result(WAIT_TIMEOUT_S).message_id for future in futures]
        assert ids == sorted(ids)
        assert futures[0].cancel() is False
        assert log.append_messages(Message("orders", b"5"), Message("payments", b"0")).first_error is None
        option = AppendOption(barrier_time_tick=log.allocate_time_tick())
        assert log.append_messages_with_option(option, Message("orders", b"6")).max_time_tick > option.barrier_time_tick
        assert len(log.append_bulk(Message("orders", b"%d" % number) for number in (7, 8))) == 2
        with log.read("orders", follow=False) as scanner, log.txn("payments") as saving:
            next(scanner)
            saving.save(scanner, "billing")
            saving.append(b"billed")
        with log.read("orders", cursor="billing", follow=False) as scanner:
            assert next(scanner).payload == b"1"
        with log.txn("orders") as txn:
            txn.append(b"9")
            txn.append(Message("orders", b"10"))
        assert txn.result is not None
        assert txn.ended
        with pytest.raises(InvalidTransactionStateError):
            txn.commit()
        with pytest.raises(KeyError), log.txn("orders") as txn:
            txn.append(b"never")
            raise KeyError
        assert txn.ended
        with pytest.raises(InvalidTransactionStateError, match="no result"):
            _ = txn.result
        by_hand = log.txn(vchannels=["orders"])
        by_hand.append(b"11")
        assert by_hand.commit().time_tick > first.time_tick
        rolled_back = log.txn("orders")
        rolled_back.rollback()
        with log.txn("orders") as txn:
            txn.append_many(b"%d" % number for number in (12, 13))
        whole = log.append_txn("orders", (b"%d" % number for number in (14, 15)), idempotency_key="k")
        assert log.append_txn("orders", [b"never"], idempotency_key="k").time_tick == whole.time_tick
        with pytest.raises(TypeError, match="pass a list"):
            log.append_txn("orders", "text")  # type: ignore[arg-type]
        with log.read("orders", follow=False) as scanner:
            assert numbers(scanner) == list(range(16))
        with pytest.raises(TypeError):
            log.append_nowait(b"no message")  # type: ignore[call-overload]


def test_scanner_is_driven_by_threads(location: str) -> None:
    """Each message is delivered once; position, wait_for and statistics count exactly the delivered messages."""
    with bridge.blocking(location) as log:
        log.append_bulk([Message("orders", b"%d" % number) for number in range(3000)])
        for number in range(3000, 3100):
            log.raw_append(Message("orders", b"%d" % number))
        with log.read("orders", follow=False) as scanner, ThreadPoolExecutor(4) as pool:
            parts = list(pool.map(lambda _: numbers(scanner), range(4)))
            assert sorted(number for part in parts for number in part) == list(range(3100))
            assert scanner.error is None
            assert scanner.statistics().messages == 3100
            scanner.done()
        with log.read("orders", follow=False) as scanner:
            pages = list(scanner.batches(size_max=7))
            assert max(map(len, pages)) <= 7
            assert [message.payload for page in pages for message in page] == [b"%d" % number for number in range(3100)]


def test_position_is_exact_at_every_message(location: str) -> None:
    def numbers_until_closed(log: bridge.BlockingWAL) -> tuple[list[int], list[int]]:
        """Takes three messages and closes the scanner with more fetched; returns the messages that a reader gets from its position on."""
        with log.read("orders") as scanner:
            taken = numbers([next(scanner) for _ in range(3)])
            scanner.close()
            assert list(scanner) == []
            position = scanner.position
        with log.read("orders", resume=position) as following:
            return taken, numbers([next(following)])

    with bridge.blocking(location) as log:
        log.append_bulk([Message("orders", b"%d" % number) for number in range(40)])
        with log.read("orders", follow=False) as scanner:
            for number in range(40):
                assert numbers([next(scanner)]) == [number]
                position = scanner.position
                with log.read("orders", follow=False, resume=position) as rest:
                    assert numbers(rest) == list(range(number + 1, 40))
        assert scanner.position is not None
        assert numbers_until_closed(log) == ([0, 1, 2], [3])


def test_threads_read_their_writes(location: str) -> None:
    with bridge.blocking(location) as log, log.read("orders") as scanner, ThreadPoolExecutor(1) as pool:
        seen: list[int] = []

        def read() -> None:
            for message in scanner:
                seen.append(int(message.payload))

        reading = pool.submit(read)
        for number in range(20):
            log.raw_append(Message("orders", b"%d" % number))
            tick = log.get_latest_mvcc_timestamp_if_local("orders")
            scanner.wait_for(tick)
            # A message counts as delivered before the reader handles it.
            until(lambda: len(seen) == number + 1)  # noqa: B023
        scanner.close()
        reading.result(WAIT_TIMEOUT_S)
        assert seen == list(range(20))


def until(condition: Any) -> None:
    end = time.monotonic() + WAIT_TIMEOUT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_handler_in_a_thread_may_use_the_log(location: str) -> None:
    with bridge.blocking(location) as log:
        handled: list[int] = []

        def handle(message: ImmutableMessage) -> None:
            log.raw_append(Message("copies", message.payload))
            handled.append(threading.get_ident())

        with log.read("orders", handler=handle) as scanner:
            for number in range(5):
                result = log.raw_append(Message("orders", b"%d" % number))
            scanner.wait_for(result.time_tick)
            until(lambda: len(handled) == 5)
        with log.read("copies", follow=False) as copies:
            assert numbers(copies) == list(range(5))

        class Object:
            closed = False

            def handle(self, message: ImmutableMessage) -> None:
                raise KeyError(message.payload)

            def close(self) -> None:
                self.closed = True

        handler = Object()
        with log.read("orders", handler=handler) as scanner:
            scanner.done()
            assert isinstance(scanner.error, KeyError)
        assert handler.closed

        async def wrong(message: ImmutableMessage) -> None:
            pass

        with pytest.raises(TypeError, match="plain function"):
            log.read("orders", handler=wrong)


def test_sixteen_threads_append_at_once(location: str) -> None:
    with bridge.blocking(location) as log, ThreadPoolExecutor(16) as pool:

        def work(worker: int) -> list[int]:
            for number in range(20):
                log.raw_append(Message(f"v{worker}", b"%d" % number))
            with log.read(f"v{worker}", follow=False) as scanner:
                return numbers(scanner)

        assert list(pool.map(work, range(16))) == [list(range(20))] * 16


@pytest.mark.parametrize("ends", ["scanner", "log", "left"])
def test_reader_that_waits_is_ended_by_a_close(location: str, ends: str) -> None:
    outcome: list[Any] = []
    with ThreadPoolExecutor(1) as pool:
        with bridge.blocking(location) as log:
            scanner = log.read("orders")
            scanner.__enter__()

            def read() -> None:
                threads.append(threading.get_ident())
                try:
                    outcome.append(list(scanner))
                except WALError as error:
                    outcome.append(error)

            threads: list[int] = []
            reading = pool.submit(read)
            until(lambda: threads and waits(threads[0]))
            if ends == "scanner":
                scanner.close()
            elif ends == "log":
                log.close()
                log.close()
        reading.result(WAIT_TIMEOUT_S)
    assert outcome == [[]] if ends == "scanner" else isinstance(outcome[0], ClosedError)
    if ends != "scanner":
        assert isinstance(scanner.error, ClosedError)
        with pytest.raises(ClosedError):
            next(scanner)
        scanner.close()
        scanner.done()
    assert scanner.position is None
    with pytest.raises(ClosedError):
        log.raw_append(Message("orders", b"1"))


def test_many_threads_close_a_log_during_calls(location: str) -> None:
    """Every append is durable or raises ClosedError, and every close returns once the log is closed."""
    log = bridge.blocking(location).__enter__()
    outcomes: list[str] = []

    def write() -> None:
        while True:
            try:
                log.raw_append(Message("orders", b"1"))
                outcomes.append("durable")
            except ClosedError:
                return

    with ThreadPoolExecutor(8) as pool:
        writers = [pool.submit(write) for _ in range(4)]
        until(lambda: len(outcomes) > 20)
        closers = [pool.submit(log.close) for _ in range(4)]
        for each in (*writers, *closers):
            each.result(WAIT_TIMEOUT_S)
    if location != "memory:":
        with bridge.blocking(location) as log, log.read("orders", follow=False) as scanner:
            assert len(list(scanner)) >= len(outcomes)


def test_exception_in_the_block_keeps_the_appends_taken(data: str) -> None:
    with pytest.raises(KeyboardInterrupt), bridge.blocking(data) as log:
        futures = [log.append_nowait(Message("orders", b"%d" % number)) for number in range(50)]
        raise KeyboardInterrupt
    assert all(future.result(0) for future in futures)
    with bridge.blocking(data) as log, log.read("orders", follow=False) as scanner:
        assert numbers(scanner) == list(range(50))


def test_interrupt_in_next_loses_no_message(location: str) -> None:
    with bridge.blocking(location) as log, log.read("orders") as scanner:
        for number in range(10):
            with pytest.raises(KeyboardInterrupt), signal_in_wait():
                next(scanner)
            log.raw_append(Message("orders", b"%d" % number))
            assert numbers([next(scanner)]) == [number]


def test_interrupted_close_can_be_called_again(data: str) -> None:
    log = bridge.blocking(data).__enter__()
    thread = log._thread
    closing = thread.closing
    assert closing is not None
    interrupted = False

    async def slow() -> None:
        import asyncio

        while not interrupted:
            await asyncio.sleep(0.001)
        await closing()

    thread.closing = slow
    with pytest.raises(KeyboardInterrupt), signal_in_wait():
        log.close()
    log.raw_append(Message("orders", b"1"))
    interrupted = True
    log.close()


@pytest.mark.linux
def test_log_whose_disk_failed_can_be_closed(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with bridge.blocking(data, write_path="thread") as log:  # the write path that calls fdatasync
        log.raw_append(Message("orders", b"1"))
        monkeypatch.setattr(os, "fdatasync", fail)
        with pytest.raises(StorageError) as caught:
            log.raw_append(Message("orders", b"2".rjust(LOOP_BYTES_MAX)))  # small frames need no fdatasync
        assert caught.value.outcome_unknown
        with pytest.raises(StorageError):
            log.append_nowait(Message("orders", b"3")).result(WAIT_TIMEOUT_S)
        monkeypatch.undo()
    with bridge.blocking(data) as log, log.read("orders", follow=False) as scanner:
        assert numbers(scanner)[0] == 1


def test_opening_that_fails_leaves_no_thread(data: str) -> None:
    with Writer(data) as writer:
        with pytest.raises(WALError), bridge.blocking(data):
            pass
        with bridge.blocking(data, read_only=True) as log:
            for call in (
                lambda: log.raw_append(Message("orders", b"1")),
                lambda: log.consume("orders", print, cursor="worker"),
                lambda: log.read("orders", auto_ack=True),
                lambda: log.broadcast(),
            ):
                with pytest.raises(InvalidArgumentError, match="read_only"):
                    call()
            writer.append(1, 2)
            with log.read("orders", follow=False) as scanner:
                assert numbers(scanner) == [1, 2]
        writer.close()


def test_forked_child_is_told_to_open_its_own(location: str) -> None:
    with bridge.blocking(location) as log:
        scanner = log.read("orders")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            said = []
            for call in (lambda: log.raw_append(Message("orders", b"1")), lambda: next(scanner)):
                try:
                    call()
                except InvalidArgumentError as error:
                    said.append("forked" in str(error))
            log.close()  # nothing needs a stop
            os.write(writing, repr(said).encode())
            os._exit(0)
        os.close(writing)
        assert os.read(reading, 100) == b"[True, True]"
        os.close(reading)
        os.waitpid(child, 0)
        assert log.raw_append(Message("orders", b"1")).message_id is not None


def test_call_from_its_own_loop_is_refused(location: str) -> None:
    with bridge.blocking(location) as log:

        async def inside() -> None:
            log.raw_append(Message("orders", b"1"))

        with pytest.raises(InvalidArgumentError, match="loop"):
            log._thread.call(inside)


def test_loop_outlives_a_wish_to_exit(location: str, caplog: pytest.LogCaptureFixture) -> None:
    """A handler that asks for the end of the process, by an exception or in a callback, or stops the loop."""

    async def exiting(delivery: Delivery) -> None:
        sys.exit(3)

    async def exits() -> None:
        sys.exit(3)

    async def handle(delivery: Delivery) -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(sys.exit, 3)
        background.append(loop.create_task(exits()))
        loop.call_soon(loop.stop)

    background: list[Any] = []
    with bridge.blocking(location) as log:
        log.append("jobs", b"1")
        with log.consume("jobs", handle, cursor="c") as consumer:
            consumer.caught_up()
        for handler in (lambda delivery: sys.exit(3), exiting):
            with pytest.raises(HandlerFailedError, match=r"at message .*: SystemExit: 3; nothing was skipped"):
                log.consume("jobs", handler, cursor="d").run()
        with pytest.raises(SystemExit), log.read("jobs", handler=lambda message: sys.exit(3)):
            while any(pchannel.readers for pchannel in log.statistics().pchannels):
                pass
        with pytest.raises(SystemExit):
            log._thread.call(exits)
        assert log.append("jobs", b"2").message_id is not None
    assert "the log goes on" in caplog.text
    if location != "memory:":
        with bridge.blocking(location) as log, log.read("jobs", follow=False) as scanner:
            assert [message.payload for message in scanner] == [b"1", b"2"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_loop_that_ended_is_a_closed_log(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls under way and later ones are refused, and `close` releases the log."""
    breaking = threading.Event()

    async def serve(self: loop_thread._Running, started: Future[None]) -> None:
        self.ends = asyncio.Event()
        started.set_result(None)
        while not breaking.is_set():
            await asyncio.sleep(0.001)
        raise MemoryError("no room for the loop")

    with monkeypatch.context() as patch:
        patch.setattr(loop_thread._Running, "_serve", serve)
        log = bridge.blocking(data).open()
    log.append("jobs", b"1")
    scanner = log.read("jobs", deliver_policy=Latest())
    scanner.__enter__()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(next, scanner)
        breaking.set()
        with pytest.raises(ClosedError):  # a running call, or a late one
            reading.result()
    log._thread._running.thread.join()
    with pytest.raises(ClosedError, match="has ended under it"):
        log.append("jobs", b"2")
    scanner.close()
    log.close()
    log.close()
    with bridge.blocking(data) as log, log.read("jobs", follow=False) as scanner:
        assert [message.payload for message in scanner] == [b"1"]


@pytest.mark.linux
@pytest.mark.parametrize("way", ["daemon", "thread", "raise"])
def test_exit_of_the_interpreter_closes_open_logs(data: str, way: str) -> None:
    EXIT = """
        import sys, threading
        from wal import Message, bridge
        log = bridge.blocking(sys.argv[1]).__enter__()
        futures = [log.append_nowait(Message("orders", b"%d" % number)) for number in range(100)]
        scanner = log.read("orders").__enter__()
        next(scanner)
        def read():
            try:
                list(scanner)
            except BaseException as error:
                print(type(error).__name__, flush=True)
        threading.Thread(target=read, daemon=sys.argv[2] == "daemon").start()
        if sys.argv[2] == "raise":
            raise SystemExit(3)
    """

    ended = run_python("-c", EXIT, data, way, code=3 if way == "raise" else 0)
    assert ended.err == ""
    if way != "daemon":
        assert ended.out == "ClosedError\n"
    with bridge.blocking(data) as log, log.read("orders", follow=False) as scanner:
        assert numbers(scanner) == list(range(100))


def test_bulk_error_names_remaining_messages(location: str) -> None:
    messages = [Message(("here", "there")[number % 2], b"%04d" % number + bytes(20_000)) for number in range(400)]
    with bridge.blocking(location, pchannels=2, in_flight_bytes_max=100_000) as log, ThreadPoolExecutor(1) as pool:
        log.create_vchannel("here", pchannel="p0")
        log.create_vchannel("there", pchannel="p1")
        # For two seconds this one takes nearly all of the room, so that the drop comes while the others wait.
        holder = log.append_nowait(Message("there", bytes(90_000)), barrier_time_tick=log.allocate_time_tick() + (2000 << 18))
        bulk = pool.submit(log.append_bulk, iter(messages))
        while not log.statistics().appends_waiting:
            assert not bulk.done()
        log.drop_vchannel("here")
        with pytest.raises(BulkAppendError) as caught:
            bulk.result(WAIT_TIMEOUT_S)
        arrived = pickle.loads(pickle.dumps(caught.value))
        failed = [number for number, outcome in enumerate(arrived.outcomes) if isinstance(outcome, WALError)]
        assert [message.payload for message in arrived.remaining] == [messages[number].payload for number in failed]
        log.append_bulk(arrived.remaining)
        assert holder.result(WAIT_TIMEOUT_S) is not None
        with log.read("there", follow=False) as scanner:
            there = [message.payload for message in scanner]
        assert [payload for payload in there if len(payload) < 90_000] == [message.payload for message in messages[1::2]]


def test_handlers_that_wait_for_each_other_all_run(data: str) -> None:
    count = 33  # more than a loop's default executor has threads
    meeting = threading.Barrier(count)
    with bridge.blocking(data) as log, contextlib.ExitStack() as scanners:
        log.append("orders", b"1")
        reads = [
            scanners.enter_context(log.read("orders", follow=False, handler=lambda _: meeting.wait(WAIT_TIMEOUT_S))) for _ in range(count)
        ]
        for read in reads:
            read.done()
            assert read.error is None
