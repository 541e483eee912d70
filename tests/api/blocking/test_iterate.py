"""Iteration over a journal while writers open it, close it and are killed, in threads and processes, with and without a timeout."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from tests.api.blocking.logs import Writer, numbers, write_mixture
from tests.api.blocking.signals import signal_in_wait
from tests.probes import facts
from wal import Latest, Message, MessageTypes, StartAfter, StartFrom, bridge
from wal.errors import ChannelNotExistError, ClosedError, FormatError, InvalidArgumentError, TruncatedError
from wal.storage.archive.archived_journal import ReadOnlyArchivedLog
from wal.storage.base import LogSnapshot

WAIT_TIMEOUT_S = 60.0


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_TIMEOUT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_iteration_gives_what_a_scanner_gives(data: str) -> None:
    """This holds from every position, and in the current incarnation of a vchannel."""
    write_mixture(data, Random(3), steps=80)
    for names in ("orders", "ü", ["ü", "orders", "payments"]):
        with bridge.blocking(data) as log, log.read(names, follow=False) as scanner:
            expected = [facts(message) for message in scanner]
        with bridge.iterate(data, names, follow=False) as messages:
            found, positions = [], []
            for message in messages:
                found.append(facts(message))
                positions.append(messages.position)
        assert found == expected
        for at in range(0, len(found), max(1, len(found) // 10)):
            with bridge.iterate(data, names, follow=False, resume=positions[at]) as messages:
                assert [facts(message) for message in messages] == expected[at + 1 :]


def test_iteration_follows_writers_that_are_killed(data: str) -> None:
    """After kill -9 the reader stops at the durable end, and continues when the next writer has opened the log."""
    count = 0
    with bridge.iterate(data_of(data), "orders", timeout_s=WAIT_TIMEOUT_S) as messages:
        for _ in range(3):
            with Writer(data) as writer:
                for _ in range(10):
                    writer.append(count, count + 1)
                    assert numbers([next(messages), next(messages)]) == [count, count + 1]
                    count += 2
                writer.kill()
        assert messages.position is not None


def data_of(data: str) -> str:
    """Creates an empty journal in the directory."""
    with bridge.blocking(data):
        pass
    return data


def test_writer_is_killed_under_a_fast_read(data: str) -> None:
    """Checks that the log holds the reader's messages in the same order, without a duplicate or a gap."""
    data_of(data)
    seen: list[int] = []
    with bridge.iterate(data, "orders", timeout_s=0.2) as messages:
        for life in range(3):
            with Writer(data) as writer:
                first = life * 10_000
                for start in range(first, first + 200, 20):
                    writer.append(*range(start, start + 20))
                    seen += numbers([next(messages) for _ in range(10)])
                writer.kill()
            while True:
                try:
                    seen += numbers([next(messages)])
                except TimeoutError:
                    break
    with bridge.iterate(data, "orders", follow=False) as again:
        assert numbers(again) == seen
    assert len(seen) == 600


def test_timeout_loses_no_message(data: str) -> None:
    with Writer(data) as writer, bridge.iterate(data, "orders", timeout_s=0.02) as messages:
        for number in range(5):
            begun = time.monotonic()
            with pytest.raises(TimeoutError):
                next(messages)
            assert time.monotonic() - begun >= 0.02
            writer.append(number)
            found: list[Any] = []
            while not found:
                try:
                    found = numbers([next(messages)])
                except TimeoutError:
                    pass
            assert found == [number]


def test_interrupt_while_waiting_loses_nothing(data: str) -> None:
    """The iteration can continue after Ctrl-C in `next()`."""
    with Writer(data) as writer, bridge.iterate(data, "orders", timeout_s=WAIT_TIMEOUT_S) as messages:
        for number in range(5):
            with pytest.raises(KeyboardInterrupt), signal_in_wait():
                next(messages)
            writer.append(number)
            assert numbers([next(messages)]) == [number]


def test_signal_handler_closes_its_own_iteration(data: str) -> None:
    data_of(data)
    messages = bridge.iterate(data, "orders")
    with signal_in_wait(messages.close):
        assert list(messages) == []


def test_another_thread_closes_an_iteration(data: str) -> None:
    with bridge.blocking(data) as log:
        log.append_bulk([Message("orders", b"%d" % number) for number in range(10)])
    messages = bridge.iterate(data, "orders")
    with ThreadPoolExecutor(1) as pool, messages:
        seen = pool.submit(lambda: numbers(messages))
        until(lambda: messages.position is not None)
        messages.close()
        assert seen.result(WAIT_TIMEOUT_S) == list(range(len(seen.result())))
    assert list(messages) == []
    messages.close()


def test_close_ends_the_wait_for_a_server(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class AwayLog(ReadOnlyArchivedLog):
        """A log whose server becomes unreachable after a read: the next call waits until the log is closed."""

        refresh_waits = True
        asked = threading.Event()
        given_up = threading.Event()

        def refresh(self) -> LogSnapshot:
            self.asked.set()
            assert self.given_up.wait(WAIT_TIMEOUT_S)
            raise ClosedError("closed")

        def close(self) -> None:
            self.given_up.set()
            super().close()

    data_of(data)
    monkeypatch.setattr("wal.storage.archive.archived_journal.ReadOnlyArchivedLog", AwayLog)
    messages = bridge.iterate(data, "orders")
    with ThreadPoolExecutor(1) as pool:
        seen = pool.submit(lambda: list(messages))
        assert AwayLog.asked.wait(WAIT_TIMEOUT_S)
        began = time.monotonic()
        messages.close()
        assert seen.result(WAIT_TIMEOUT_S) == []
    assert time.monotonic() - began < WAIT_TIMEOUT_S / 2


def test_threads_share_an_iteration(data: str) -> None:
    """Each message goes to one thread."""
    with bridge.blocking(data) as log:
        log.append_bulk([Message("orders", b"%d" % number) for number in range(5000)])
        for number in range(5000, 5100):
            log.raw_append(Message("orders", b"%d" % number))
    with bridge.iterate(data, "orders", follow=False) as messages, ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda _: numbers(messages), range(4)))
    assert sorted(number for part in parts for number in part) == list(range(5100))
    assert all(part == sorted(part) for part in parts)


def test_iteration_continues_in_a_forked_child(data: str) -> None:
    """An iteration that began before the fork continues in both processes, independently."""
    with bridge.blocking(data) as log:
        log.append_bulk([Message("orders", b"%d" % number) for number in range(3000)])
    with bridge.iterate(data, "orders", follow=False) as messages:
        assert numbers([next(messages) for _ in range(10)]) == list(range(10))
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            right = numbers(messages) == list(range(10, 3000))
            os.write(writing, b"yes" if right else b"no")
            os._exit(0)
        os.close(writing)
        assert os.read(reading, 10) == b"yes"
        os.close(reading)
        os.waitpid(child, 0)
        assert numbers(messages) == list(range(10, 3000))


def test_vchannel_that_is_created_later_is_picked_up(data: str) -> None:
    """The vchannel is created on the pchannel to which its name maps, or on another one."""

    def numbers_or_timeout(messages: bridge.Iteration) -> list[int]:
        try:
            return numbers([next(messages)])
        except TimeoutError:
            return []

    with bridge.blocking(data, pchannels=4):
        pass
    with Writer(data) as writer:
        for pchannel in ("p0", "p1", "p2", "p3"):
            name = f"orders-{pchannel}"
            with bridge.iterate(data, name, timeout_s=0.02) as messages:
                with pytest.raises(TimeoutError):
                    next(messages)
                writer.tell(f"make {name} {pchannel}")
                writer.close()
                with bridge.blocking(data) as log:
                    log.raw_append(Message(name, b"1"))
                until(lambda: numbers_or_timeout(messages) == [1])
            writer = Writer(data)
            writer.__enter__()
        writer.kill()


def test_vchannel_that_is_dropped_ends_its_reader(data: str) -> None:
    with Writer(data) as writer:
        writer.append(1)
        with bridge.iterate(data, "orders", timeout_s=WAIT_TIMEOUT_S) as messages:
            assert numbers([next(messages)]) == [1]
            writer.tell("drop orders")
            writer.append(2)  # in a new incarnation
            for _ in range(2):
                with pytest.raises(ChannelNotExistError):
                    next(messages)
        writer.close()
    with bridge.iterate(data, "orders", follow=False) as messages:
        assert numbers(messages) == [2]


def test_vchannels_on_several_pchannels_are_refused(data: str) -> None:
    with bridge.blocking(data, pchannels=2) as log:
        log.create_vchannel("a", pchannel="p0")
        log.create_vchannel("b", pchannel="p1")
    with pytest.raises(InvalidArgumentError, match="p1"), bridge.iterate(data, ["a", "b"]):
        pass


def test_iteration_that_truncation_overtakes(data: str) -> None:
    """The iteration yields the messages that were already read, then a TruncatedError names the beginning of the log."""
    with bridge.blocking(data, segment_bytes=1 << 20) as log:
        results = log.append_bulk([Message("orders", bytes(100_000)) for _ in range(160)])
        with bridge.iterate(data, "orders") as messages:
            next(messages)
            log.truncate(up_to=results[-2].message_id)
            with pytest.raises(TruncatedError) as caught:
                list(messages)
            assert caught.value.earliest == results[-1].message_id
            assert messages.position is not None
        with bridge.iterate(data, "orders", follow=False) as messages:
            assert [message.message_id for message in messages] == [results[-1].message_id]


def test_body_ids_stand_for_their_transactions(data: str) -> None:
    with bridge.blocking(data) as log:
        with log.txn("orders") as txn:
            for number in range(3):
                txn.append(b"%d" % number)
        log.raw_append(Message("orders", b"3"))
        with log.read("orders", follow=False) as scanner:
            first, second = scanner
        with bridge.iterate(data, "orders", follow=False, deliver_policy=StartFrom(first.bodies()[1].message_id)) as messages:
            assert numbers(messages) == [0, 1, 2, 3]
        log.truncate(up_to=first.message_id)
        with bridge.iterate(data, "orders", follow=False, deliver_policy=StartAfter(first.bodies()[1].message_id)) as messages:
            assert numbers(messages) == [3]
        for lost in (StartFrom(first.bodies()[1].message_id), StartFrom(first.message_id)):
            with pytest.raises(TruncatedError) as caught, bridge.iterate(data, "orders", deliver_policy=lost):
                pass
            assert caught.value.earliest == second.message_id


def test_saved_cursor_continues_in_another_process(data: str) -> None:
    with bridge.blocking(data) as log:
        log.append_bulk([Message("orders", b"%d" % number) for number in range(10)])
    with bridge.iterate(data, "orders", follow=False, cursor="billing") as messages:
        assert numbers(messages) == list(range(10))
        messages.save()
    with pytest.raises(ClosedError):
        messages.save()
    with Writer(data) as writer:
        writer.append(10, 11)
        with bridge.iterate(data, "orders", follow=False, cursor="billing") as messages:
            assert numbers(messages) == [10, 11]
        writer.close()
    with bridge.blocking(data) as log, log.read("orders", follow=False, cursor="billing") as scanner:
        assert numbers(scanner) == [10, 11]


def test_other_thread_saves_during_a_wait(data: str) -> None:
    with Writer(data) as writer, bridge.iterate(data, "orders", cursor="c") as messages, ThreadPoolExecutor(1) as pool:
        writer.append(1)
        assert numbers([next(messages)]) == [1]
        waiting = pool.submit(next, messages)
        messages.save()
        assert messages.position is not None
        writer.append(2)
        assert numbers([waiting.result(WAIT_TIMEOUT_S)]) == [2]
        writer.close()


def test_locations_and_options_that_are_refused(data: str, tmp_path: Any) -> None:
    for location in (tmp_path / "none", tmp_path):
        with pytest.raises(FormatError), bridge.iterate(location, "orders"):
            pass
    with pytest.raises(InvalidArgumentError, match="memory"):
        bridge.iterate("memory:", "orders")
    with pytest.raises(InvalidArgumentError, match="pulsar"):
        bridge.iterate("pulsar://host", "orders")
    with pytest.raises(InvalidArgumentError):
        bridge.iterate(data, [])
    with pytest.raises(TypeError):
        bridge.iterate(data, "orders", filters=[MessageTypes])  # type: ignore[list-item]
    assert not os.path.exists(data)


def test_latest_begins_where_the_read_is_entered(data: str) -> None:
    with Writer(data) as writer:
        writer.append(1)
        with bridge.iterate(data, "orders", deliver_policy=Latest(), timeout_s=WAIT_TIMEOUT_S) as messages:
            writer.append(2)
            assert numbers([next(messages)]) == [2]
        writer.close()


def test_iteration_blocks_a_running_loop_but_works(data: str, blockbuster: Any) -> None:
    import asyncio

    data_of(data)
    blockbuster.deactivate()

    async def main() -> list[int]:
        with bridge.iterate(data, "orders", follow=False) as messages:
            return numbers(messages)

    assert asyncio.run(main()) == []
