"""`iterate` and `record_batches` with a pattern: the order, positions and rows of the log's own read, at every location."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

import wal
from tests.probes import facts, read_all
from wal import Matching, Message, ReadPosition, open_wal
from wal.bridge import blocking, iterate, record_batches
from wal.errors import ClosedError, InvalidArgumentError
from wal.runtime.threads import in_thread

ACCOUNTS = Matching("account-*")


def write(data: str, first: int, past: int) -> None:
    with blocking(data, pchannels=3) as log:
        fill(log, first, past)


def fill(log: Any, first: int, past: int) -> None:
    for number in range(first, past):
        log.append(f"account-{number % 7}", b"%d" % number)
        log.append("other", b"no")
    with log.txn(f"account-{first % 7}") as txn:
        txn.append(b"%d" % past)
        txn.append(b"%d" % (past + 1))


def numbers(messages: Any) -> list[int]:
    return [int(body.payload) for message in messages for body in message.bodies()]


def rows(batches: Any) -> list[int]:
    return [int(payload) for batch in batches for payload in batch.column("payload").to_pylist()]


def test_every_position_goes_on_exactly(data: str) -> None:
    write(data, 0, 20)
    with iterate(data, ACCOUNTS, follow=False) as messages:
        positions = [(numbers([message])[-1], messages.position) for message in messages]
        end = messages.position
    assert [number for number, _ in positions] == [*range(20), 21]
    for number, position in positions[::5]:
        assert position is not None
        with iterate(data, ACCOUNTS, follow=False, resume=ReadPosition.parse(str(position))) as messages:
            assert numbers(messages) == list(range(number + 1, 22))
    assert end is not None
    assert messages.position is not None
    with record_batches(data, ACCOUNTS, follow=False, resume=end) as batches:
        assert list(batches) == []


async def test_order_is_that_of_the_log(data: str) -> None:
    async with open_wal(data, pchannels=3) as log:
        await log.append_bulk([Message(f"account-{number % 5}", b"%d" % number) for number in range(50)])
        whole = list(map(facts, await read_all(log, ACCOUNTS)))

        def read() -> list[Any]:
            with iterate(data, ACCOUNTS, follow=False) as messages:
                return list(map(facts, messages))

        assert await in_thread(read) == whole


@pytest.mark.parametrize("rows_max", [1, 5, 65_536])
def test_batches_have_the_rows_of_the_messages(data: str, rows_max: int) -> None:
    write(data, 0, 20)
    filters = [wal.MessageTypes(wal.MessageType.INSERT)]
    with record_batches(data, ACCOUNTS, follow=False, rows_max=rows_max, filters=iter(filters)) as batches:
        got = list(batches)
    assert rows(got) == list(range(22))
    assert all(batch.num_rows <= rows_max for batch in got)
    assert [name for batch in got for name in batch.column("vchannel").to_pylist()][:3] == ["account-0", "account-1", "account-2"]


def test_position_is_that_of_the_delivered_batches(data: str) -> None:
    write(data, 0, 20)
    with record_batches(data, ACCOUNTS, follow=False, rows_max=4) as batches:
        seen = rows([next(batches), next(batches)])
        position = batches.position
        rest = rows(batches)
    assert seen + rest == list(range(22))
    with record_batches(data, ACCOUNTS, follow=False, resume=position) as batches:
        assert rows(batches) == rest
    with record_batches(data, ACCOUNTS, follow=False, columns=["payload"]) as batches:
        assert batches.to_table().num_rows == 22


@pytest.mark.parametrize("timeout_s", [0.0, 0.01])
@pytest.mark.parametrize(("read", "numbers_of"), [(iterate, numbers), (record_batches, rows)])
def test_timeout_loses_nothing(data: str, timeout_s: float, read: Any, numbers_of: Any) -> None:
    def take_despite_timeouts(read: Any, count: int, numbers_of: Any) -> list[int]:
        """Returns at least so many numbers, however often the read times out."""
        seen: list[int] = []
        while len(seen) < count:
            with contextlib.suppress(TimeoutError):
                seen += numbers_of([next(read)])
        return seen

    with blocking(data, pchannels=3) as log, read(data, ACCOUNTS, timeout_s=timeout_s) as opened:
        fill(log, 0, 5)
        assert take_despite_timeouts(opened, 7, numbers_of) == list(range(7))
        with pytest.raises(TimeoutError, match="the read can continue"):
            next(opened)
        log.append("account-new", b"100")
        assert take_despite_timeouts(opened, 1, numbers_of) == [100]


def test_read_without_time_takes_what_is_there(data: str) -> None:
    write(data, 0, 40)
    with blocking(data) as log, iterate(data, ACCOUNTS, timeout_s=0.0) as messages:
        seen: list[int] = []
        with pytest.raises(TimeoutError):
            for message in messages:
                seen += numbers([message])
        assert seen == list(range(42))
        assert log.vchannels()


def test_close_from_another_thread_ends_a_wait(data: str) -> None:
    write(data, 0, 3)
    messages = iterate(data, ACCOUNTS)
    waiting = threading.Event()
    seen: list[int] = []

    def read() -> None:
        for message in messages:
            seen.extend(numbers([message]))
            if len(seen) == 5:
                waiting.set()

    reader = threading.Thread(target=read)
    reader.start()
    waiting.wait()
    messages.close()
    reader.join()
    assert seen == list(range(5))
    with pytest.raises(ClosedError, match="closed"):
        with_cursor = iterate(data, ACCOUNTS, cursor="sums")
        with_cursor.close()
        with_cursor.save()
    assert repr(messages) == "FamilyIteration(Matching('account-*'), ended)"


def test_cursor_goes_on_where_it_was_saved(data: str) -> None:
    write(data, 0, 5)
    with blocking(data) as log, log.read(ACCOUNTS, cursor="sums") as scanner:
        assert numbers([next(scanner) for _ in range(3)]) == [0, 1, 2]
        scanner.save()
    with iterate(data, ACCOUNTS, cursor="sums") as messages:
        assert numbers([next(messages) for _ in range(2)]) == [3, 4]
        messages.save()
    with iterate(data, ACCOUNTS, cursor="sums", follow=False) as messages:
        assert numbers(messages) == [5, 6]
    with iterate(data, ACCOUNTS) as messages, pytest.raises(InvalidArgumentError, match="this read has none"):
        messages.save()


def test_bodies_come_one_by_one(data: str) -> None:
    write(data, 0, 3)
    with iterate(data, ACCOUNTS, follow=False) as messages:
        assert [int(body.payload) for _, body in messages.bodies()] == list(range(5))


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"deliver_policy": wal.Last(3)}, InvalidArgumentError, "cannot be read with"),
        ({"auto_ack": True}, InvalidArgumentError, "does not write"),
        ({"resume": ReadPosition.parse("12@p0"), "cursor": "sums"}, InvalidArgumentError, "both set the position"),
        ({"timeout_s": -1}, InvalidArgumentError, "out of range"),
        ({"follow": 1}, TypeError, "must be a bool"),
    ],
)
def test_wrong_options_are_refused_at_the_call(data: str, options: dict[str, Any], error: type[Exception], why: str) -> None:
    write(data, 0, 1)
    with pytest.raises(error, match=why):
        iterate(data, ACCOUNTS, **options)
