"""`bridge.iterate`: a plain iterator over the log, without a loop."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from blockbuster import BlockBuster

from tests.api.blocking.bridging import WAIT_TIMEOUT_S, append_what_is_told, no_thread_is_left, numbers, until, until_there, write
from tests.probes import facts
from tests.processes import Other
from wal import Latest, Message, MessageID, MessageType, MessageTypes, ReadPosition, StartAfter, TimeTickGT, bridge
from wal.errors import FormatError, InvalidArgumentError, TruncatedError

__all__ = ["no_thread_is_left"]


def test_everything(data: str) -> None:
    write(data)
    with bridge.iterate(data, "orders", follow=False) as messages:
        assert numbers(messages) == list(range(100))
    with bridge.iterate(f"journal:{data}", "nothing", follow=False) as messages:
        assert list(messages) == []


def test_iteration_equals_a_scanner(data: str) -> None:
    write(data)
    with bridge.blocking(data) as log, log.read("orders", follow=False) as scanner:
        everything = list(scanner)
    middle = everything[4]
    ways: list[dict[str, Any]] = [
        {},
        {"deliver_policy": StartAfter(middle.message_id)},
        {"deliver_policy": Latest()},
        {"resume": ReadPosition(middle.message_id, middle.time_tick)},
        {"filters": [TimeTickGT(middle.time_tick), MessageTypes(MessageType.INSERT)]},
        {"until_time_tick": middle.time_tick},
        {"include_time_ticks": False},
    ]
    with bridge.blocking(data, read_only=True) as log:
        for vchannel in ("orders", ["payments", "orders"]):
            for options in ways:
                with log.read(vchannel, follow=False, **options) as scanner:
                    expected = [facts(message) for message in scanner]
                with bridge.iterate(data, vchannel, follow=False, **options) as messages:
                    assert [facts(message) for message in messages] == expected, options


def test_beside_a_writer(data: str) -> None:
    write(data)
    writer = Other(append_what_is_told, data)
    with bridge.iterate(data, "orders", timeout_s=WAIT_TIMEOUT_S) as messages:
        for _ in range(99):
            next(messages)
        for number in range(20):
            writer.tell(b"%d" % number)
            message = next(messages)
            assert message.payload == b"%d" % number
            assert str(message.message_id) == writer.hear_now()
    writer.kill_now()


def test_timeout_ends_nothing(data: str) -> None:
    write(data)
    writer = Other(append_what_is_told, data)
    with bridge.iterate(data, "orders", deliver_policy=Latest(), timeout_s=0.05) as messages:
        for number in range(3):
            begun = time.monotonic()
            with pytest.raises(TimeoutError):
                next(messages)
            assert 0.04 < time.monotonic() - begun < 5
            writer.tell(b"%d" % number)
            writer.hear_now()
            assert until_there(messages) == b"%d" % number
    writer.kill_now()


def test_no_timeout_while_there_is_something(data: str) -> None:
    write(data)
    with bridge.iterate(data, "orders", timeout_s=0.0) as messages:
        seen = [int(body.payload) for _ in range(99) for body in next(messages).bodies()]
        assert seen == list(range(100))
        with pytest.raises(TimeoutError):
            next(messages)


def test_closed_from_another_thread(data: str) -> None:
    write(data)
    with bridge.iterate(data, "orders") as messages:
        for _ in range(99):
            next(messages)
        seen: list[Any] = []
        reader = threading.Thread(target=lambda: seen.append(list(messages)))
        reader.start()
        until(reader.is_alive)
        messages.close()
        reader.join(WAIT_TIMEOUT_S)
        assert not reader.is_alive()
        assert seen == [[]], "a clean end, as with a scanner"
        messages.close()


def test_iteration_resumes(data: str) -> None:
    write(data)
    with bridge.iterate(data, "orders", follow=False) as messages:
        assert messages.position is None
        for _ in range(6):
            next(messages)
        position = messages.position
    with bridge.iterate(data, "orders", follow=False, resume=ReadPosition.parse(str(position))) as messages:
        assert numbers(messages) == list(range(7, 100))


def test_cursors(data: str) -> None:
    write(data)
    for first in (0, 3):
        with bridge.iterate(data, "orders", cursor="spark", follow=False) as messages:
            assert [int(next(messages).payload) for _ in range(2)] == [first, first + 1]
            messages.save()
            next(messages)
        with bridge.blocking(data, read_only=True) as log:
            (info,) = log.cursors()
            assert info.name == "spark"
        if first == 0:
            with bridge.iterate(data, "orders", cursor="spark", follow=False) as messages:
                next(messages)
                messages.save()
    with bridge.iterate(data, "orders", follow=False) as messages, pytest.raises(InvalidArgumentError):
        messages.save()
    options: dict[str, Any] = {"cursor": "spark", "resume": info.position}
    with pytest.raises(InvalidArgumentError, match="resume"), bridge.iterate(data, "orders", **options):
        pass


def test_errors(data: str, tmp_path: Any) -> None:
    with pytest.raises(FormatError), bridge.iterate(str(tmp_path / "none"), "orders") as messages:
        next(messages)
    write(data)
    with pytest.raises(InvalidArgumentError), bridge.iterate("memory:", "orders"):
        pass
    with pytest.raises(TypeError), bridge.iterate(data, 7):  # type: ignore[arg-type]
        pass
    for wrong in ("1", b"1"):
        with pytest.raises(TypeError), bridge.iterate(data, "orders", timeout_s=wrong):  # type: ignore[arg-type]
            pass
    for timeout_s in (-1.0, float("nan")):
        with pytest.raises(InvalidArgumentError), bridge.iterate(data, "orders", timeout_s=timeout_s):
            pass
    with bridge.blocking(data) as log, log.read("orders", follow=False) as scanner:
        ids = [message.message_id for message in scanner]
        log.truncate(up_to=ids[50])
    with pytest.raises(TruncatedError) as caught, bridge.iterate(data, "orders", deliver_policy=StartAfter(ids[3])) as messages:
        next(messages)
    assert caught.value.earliest == ids[51]


def test_inside_a_running_loop(data: str, blockbuster: BlockBuster) -> None:
    """The iteration blocks the loop, but works."""
    write(data)
    blockbuster.deactivate()

    async def main() -> list[int]:
        with bridge.iterate(data, "orders", follow=False) as messages:
            return numbers(messages)

    assert asyncio.run(main()) == list(range(100))


def test_many_threads_each_with_its_own(data: str) -> None:
    write(data, 2000)

    def read(_: int) -> list[int]:
        with bridge.iterate(data, "orders", follow=False) as messages:
            return numbers(messages)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, range(16))) == [list(range(2000))] * 16


def test_killed_writer_and_the_next(data: str) -> None:
    write(data, 10)
    with bridge.iterate(data, "orders", deliver_policy=Latest(), timeout_s=WAIT_TIMEOUT_S) as messages:
        for number in range(3):
            writer = Other(append_what_is_told, data)
            writer.tell(b"%d" % number)
            assert next(messages).payload == b"%d" % number
            writer.kill_now()


def test_overtaken_iteration_gets_earliest_event(data: str) -> None:
    """All messages that the iteration knew of are gone when it continues."""
    with bridge.blocking(data, segment_bytes=1 << 20) as log:

        def append(first: int) -> list[MessageID]:
            some = [Message("orders", b"%05d" % number + bytes(30_000)) for number in range(first, first + 300)]
            return [result.message_id for result in log.append_bulk(some)]

        append(0)
        with bridge.iterate(data, "orders") as messages:
            assert next(messages).payload[:5] == b"00000"
            for first in range(300, 3000, 300):
                ids = append(first)
                log.truncate(up_to=ids[250])
            seen = [0]
            with pytest.raises(TruncatedError) as caught:
                seen += [int(message.payload[:5]) for message in messages]
            assert seen == list(range(len(seen)))
            assert caught.value.earliest == ids[251]
