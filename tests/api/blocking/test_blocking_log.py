"""`bridge.blocking`: the calls of the accesser for code without a loop, from any thread."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.api.blocking.bridging import WAIT_TIMEOUT_S, append_what_is_told, no_thread_is_left, numbers, write
from tests.processes import Line, Other
from wal import Message, ProducerKey, bridge
from wal.errors import ClosedError, InvalidArgumentError, LockedError, WALError

__all__ = ["no_thread_is_left"]


def test_calls(data: str) -> None:
    with bridge.blocking(data, pchannels=2) as log:
        result = log.raw_append(Message("orders", b"1"), idempotency_key="k")
        assert log.raw_append(Message("orders", b"1"), idempotency_key="k").duplicate
        future = log.append_nowait(Message("orders", b"2"))
        assert isinstance(future, Future)
        assert future.result(WAIT_TIMEOUT_S).time_tick > result.time_tick
        responses = log.append_messages(Message("orders", b"3"), Message("orders", b"4"))
        assert len(responses.unwrap()) == 2
        log.append_bulk([Message("orders", b"5")])
        with log.txn("orders") as txn:
            txn.append(b"6")
            inner = txn.commit()
        assert inner.message_id is not None
        with pytest.raises(KeyError), log.txn("orders") as txn:
            txn.append(b"never")
            raise KeyError
        assert log.allocate_time_tick() > result.time_tick
        with log.read("orders", follow=False) as scanner:
            assert numbers(scanner) == [1, 2, 3, 4, 5, 6]
        assert log.get_latest_mvcc_timestamp_if_local("orders") >= inner.time_tick
        assert log.create_vchannel("b", pchannel="p1").pchannel == "p1"
        assert sorted(info.name for info in log.vchannels()) == ["b", "orders"]
        log.drop_vchannel("b")
        log.raw_append(Message("orders", b"7"), idempotency_key=ProducerKey("p", 1))
        assert [info.name for info in log.producers()] == ["p"]
        log.forget_producer("p")
        with log.read("orders", cursor="c") as scanner:
            next(scanner)
            scanner.save()
        assert [info.name for info in log.cursors()] == ["c"]
        with pytest.raises(InvalidArgumentError, match="c"):
            log.truncate(up_to=inner.message_id)
        log.retention()
        log.delete_cursor("c")
        log.truncate(up_to=result.message_id)
        log.statistics()
        assert isinstance(log.wal_name, str)


def test_errors_come_through(data: str) -> None:
    with bridge.blocking(data) as log:
        with pytest.raises(TypeError):
            log.raw_append("orders")  # type: ignore[call-overload]
        with pytest.raises(InvalidArgumentError):
            log.raw_append(Message("orders", bytes(2 << 20)))
    with pytest.raises(ClosedError):
        log.raw_append(Message("orders", b"1"))
    with pytest.raises(InvalidArgumentError), bridge.blocking(data, pchannels=0):
        pass
    writer = Other(append_what_is_told, data)
    writer.tell(b"1")
    writer.hear_now()
    with pytest.raises(LockedError) as caught, bridge.blocking(data):
        pass
    assert caught.value.pid == writer.pid
    with bridge.blocking(data, read_only=True) as log, pytest.raises(InvalidArgumentError, match="read_only"):
        log.raw_append(Message("orders", b"1"))
    writer.kill_now()


def test_memory() -> None:
    with bridge.blocking("memory:") as log:
        log.raw_append(Message("orders", b"1"))
        with log.read("orders", follow=False) as scanner:
            assert numbers(scanner) == [1]


def test_from_many_threads(data: str) -> None:
    with bridge.blocking(data) as log, ThreadPoolExecutor(16) as pool:

        def work(worker: int) -> None:
            for number in range(50):
                if number % 10 == 9:
                    with log.txn(f"v{worker}") as txn:
                        txn.append(b"%d" % number)
                else:
                    log.raw_append(Message(f"v{worker}", b"%d" % number))

        list(pool.map(work, range(16)))
        for worker in range(16):
            with log.read(f"v{worker}", follow=False) as scanner:
                assert numbers(scanner) == list(range(50))


def test_follower_in_one_thread_a_writer_in_another(data: str) -> None:
    with bridge.blocking(data) as log:
        seen: list[int] = []

        def read() -> None:
            with log.read("orders") as scanner:
                for message in scanner:
                    seen.append(int(message.payload))
                    if len(seen) == 100:
                        return

        reader = threading.Thread(target=read)
        reader.start()
        for number in range(100):
            log.raw_append(Message("orders", b"%d" % number))
        reader.join(WAIT_TIMEOUT_S)
        assert seen == list(range(100))


@pytest.mark.parametrize("closes", ["scanner", "log"])
def test_waiting_reader_ends_when_another_thread_closes(data: str, closes: str) -> None:
    log = bridge.blocking(data)
    outcome: list[Any] = []
    with log as opened:
        opened.raw_append(Message("orders", b"1"))
        scanner = opened.read("orders")
        entered = threading.Event()

        def read() -> None:
            try:
                with scanner as messages:
                    for _ in messages:
                        entered.set()
                outcome.append("end")
            except WALError as error:
                outcome.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        assert entered.wait(WAIT_TIMEOUT_S)
        if closes == "scanner":
            scanner.close()
        else:
            opened.close()
        reader.join(WAIT_TIMEOUT_S)
        assert not reader.is_alive()
    if closes == "scanner":
        assert outcome == ["end"]
    else:
        assert isinstance(outcome[0], ClosedError)


def test_leaving_by_an_exception(data: str) -> None:
    with pytest.raises(KeyboardInterrupt), bridge.blocking(data) as log:
        log.raw_append(Message("orders", b"1"))
        raise KeyboardInterrupt
    with bridge.blocking(data) as log, log.read("orders", follow=False) as scanner:
        assert numbers(scanner) == [1]


def test_batch_at_a_time(data: str) -> None:
    write(data)
    with bridge.blocking(data) as log, log.read("orders", follow=False) as scanner:
        pages = list(scanner.batches(size_max=10))
    assert max(map(len, pages)) <= 10
    assert numbers([message for page in pages for message in page]) == list(range(100))


def test_ended_by_its_process(data: str) -> None:
    """A process that closes nothing still ends, and all acknowledged messages are in the log."""

    def forgetful(line: Line, data: str) -> None:
        log = bridge.blocking(data).__enter__()
        log.raw_append(Message("orders", b"1"))
        scanner = log.read("orders").__enter__()
        next(scanner)
        line.tell("written")

    other = Other(forgetful, data)
    assert other.hear_now() == "written"
    other._process.join(WAIT_TIMEOUT_S)
    assert other._process.exitcode == 0
    with bridge.blocking(data) as log, log.read("orders", follow=False) as scanner:
        assert numbers(scanner) == [1]
