"""Cursors of patterns in a copy: they continue exactly there, whatever the number of pchannels."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import pytest

from tests.processes import eventually
from tests.serve.servers import serving
from wal import Consumer, Delivery, Matching, Retry, WALAccesser, open_wal
from wal.errors import InvalidArgumentError
from wal.operate.copying import copy
from wal.operate.copying.cutting import moved_position
from wal.operate.copying.source import CopySource
from wal.read.options import TickPosition

ACCOUNTS = Matching("account-*")
COUNT = 15
OTHER_NUMBERS = pytest.mark.parametrize("pchannels", [None, 1, 2, 5])


async def spread(log: WALAccesser, first: int, past: int) -> None:
    """Appends numbers to seven vchannels, which lie on all pchannels, and as many messages that do not match."""
    for number in range(first, past):
        await log.append(f"account-{number % 7}", b"%d" % number)
        await log.append(f"other-{number % 7}", b"other")


async def taken(log: WALAccesser, cursor: str, count: int | None = None) -> list[int]:
    """Reads `count` numbers, or all, and saves the cursor."""
    numbers: list[int] = []
    async with log.read(ACCOUNTS, cursor=cursor, follow=False) as scanner:
        while len(numbers) != count and (message := await anext(scanner, None)) is not None:
            numbers.append(int(message.payload))
        await scanner.save()
    return numbers


@OTHER_NUMBERS
async def test_each_position_goes_on_exactly(tmp_path: Path, pchannels: int | None) -> None:
    """The source is truncated, so one cursor has passed messages that the copy does not have."""
    source, target = tmp_path / "source", tmp_path / "target"
    async with open_wal(source, pchannels=3) as log:
        await spread(log, 0, 4)
        for info in await log.vchannels():
            if (newest := await log.last(info.name)) is not None:
                await log.truncate(up_to=newest)
        await spread(log, 4, COUNT)
        left = await taken(log, "all")
        for count in range(0, len(left), 3):
            assert await taken(log, f"c{count}", count) == left[:count]
    result = await copy(str(source), str(target), pchannels=pchannels)
    assert result is not None
    assert (result.pchannels, result.cursors) == (pchannels or 3, (len(left) + 2) // 3 + 1)
    async with open_wal(target) as log:
        assert {info.pattern for info in await log.cursors()} == {"account-*"}
        assert await taken(log, "c0", 2) == left[:2]
    async with open_wal(target) as log:
        assert await taken(log, "c0") == left[2:]
        await spread(log, COUNT, COUNT + 3)
        for count in range(3, len(left), 3):
            assert await taken(log, f"c{count}") == [*left[count:], *range(COUNT, COUNT + 3)]
        assert await taken(log, "all") == [*range(COUNT, COUNT + 3)]


async def test_cursor_of_a_served_log_goes_on(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    async with open_wal(source, pchannels=3) as log:
        await spread(log, 0, COUNT)
        await taken(log, "sums", 9)
    async with serving(source) as served:
        await copy(f"wal://{served.address}", str(target), pchannels=2)
    async with open_wal(target) as log:
        assert await taken(log, "sums") == [*range(9, COUNT)]


@pytest.mark.parametrize("shared", [False, True])
@OTHER_NUMBERS
async def test_consumer_goes_on_with_what_is_unfinished(tmp_path: Path, pchannels: int | None, *, shared: bool) -> None:
    """At the copy even numbers are finished, odd ones are with handlers, and 5 waits for its next attempt."""
    source, target = tmp_path / "source", tmp_path / "target"
    handled: list[int] = []
    is_copied = False

    async def handle(delivery: Delivery) -> None:
        number = int(delivery.value)
        if number == 5:
            raise Retry(delay_s=3600)
        if not is_copied and number % 2:
            await asyncio.Event().wait()
        handled.append(number)
        delivery.append("sum", delivery.value)

    def consume(log: WALAccesser) -> Consumer:
        return log.consume(ACCOUNTS, handle, cursor="jobs", order="none", concurrency=COUNT, shared=shared)

    async with open_wal(source, pchannels=3) as log:
        await spread(log, 0, COUNT)
        async with consume(log) as consumer:
            await eventually(lambda: consumer.statistics().handled == (COUNT + 1) // 2)
            await consumer.close(drain_s=0)
    is_copied = True
    await copy(str(source), str(target), pchannels=pchannels)
    async with open_wal(target) as log:
        await spread(log, COUNT, COUNT + 2)
        async with consume(log) as consumer:
            await eventually(lambda: consumer.statistics().handled == COUNT + 1 - (COUNT + 1) // 2)
            await eventually(lambda: "account-5" in consumer.statistics().held_by)
        async with log.read("sum", follow=False) as scanner:
            sums = [int(body.payload) async for _, body in scanner.bodies()]
    assert sorted(handled) == sorted(sums) == [*range(5), *range(6, COUNT + 2)]


async def test_unfinished_messages_with_one_tick_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes of a cluster may use the same tick, and the order of such messages is by pchannel."""

    async def handle(_: Delivery) -> None:
        raise Retry(delay_s=3600)

    async with open_wal(tmp_path / "source", pchannels=3) as log:
        await spread(log, 0, 2)
        async with log.consume(ACCOUNTS, handle, cursor="jobs") as consumer:
            await eventually(lambda: consumer.statistics().failed == 2)
    vchannels_at = CopySource.vchannels_at

    def with_another(source: CopySource, ticks: Iterable[int], pattern: Matching) -> dict[int, dict[str, str]]:
        return {tick: dict.fromkeys(("p0", "p1", "p2"), "account-9") | own for tick, own in vchannels_at(source, ticks, pattern).items()}

    monkeypatch.setattr(CopySource, "vchannels_at", with_another)
    with pytest.raises(InvalidArgumentError, match=r"of cursor 'jobs' of .* with as many pchannels as it has, or once this consumer"):
        await copy(str(tmp_path / "source"), str(tmp_path / "target"), pchannels=2)
    assert await copy(str(tmp_path / "source"), str(tmp_path / "same")) is not None


async def test_position_of_transactions_is_not_spread(tmp_path: Path) -> None:
    async with open_wal(tmp_path / "source", pchannels=2) as log:
        await spread(log, 0, 3)
        async with log.read(ACCOUNTS, cursor="sums", follow=False) as scanner:
            await anext(scanner)
            async with log.txn("sum") as txn:
                await txn.append(b"0")
                txn.save(scanner)
    with pytest.raises(InvalidArgumentError, match=r"cursor 'sums' of .* moves with transactions.* or fewer, or delete"):
        await copy(str(tmp_path / "source"), str(tmp_path / "more"), pchannels=3)
    await copy(str(tmp_path / "source"), str(tmp_path / "fewer"), pchannels=1)
    async with open_wal(tmp_path / "fewer") as log:
        assert await taken(log, "sums") == [1, 2]


def test_unread_message_of_a_tick_stays_unread() -> None:
    """The best position covers no message that was not handed over, and the next one would."""
    names = ["p0", "p1", "p10"]
    for routes in product(["", *names], repeat=3):
        events = {source: target for source, target in zip(names, routes, strict=True) if target}
        for last in names:
            moved = moved_position(TickPosition.at(7, last), events, names)
            unread = [target for source, target in events.items() if source > last]
            positions = [(6, names[-1]), *[(7, name) for name in names]]
            best = max(at for at in positions if not unread or at < (7, min(unread)))
            assert (moved.time_tick, moved.pchannel) == best
