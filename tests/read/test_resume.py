"""A read that resumes at any position delivers exactly the rest, for random logs and random readers."""

from __future__ import annotations

import asyncio
import tempfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wal
from tests.locations import SOAK, open_wal
from tests.probes import facts, read_all

pytestmark = [pytest.mark.on_pulsar, pytest.mark.on_archive]


@pytest.mark.parametrize("backend", ["memory", "journal"])
def test_every_position_gives_exactly_the_rest(backend: str) -> None:
    NAMES = ["a", "b", "c"]
    kinds = [wal.MessageType.INSERT, wal.MessageType.DELETE, wal.MessageType.IMPORT]
    plain = st.tuples(st.just("plain"), st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(kinds)), min_size=1, max_size=5))
    TXN = st.tuples(st.just("txn"), st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(kinds[:2])), max_size=4))
    barrier: Any = st.tuples(st.just("wait"), st.just([]))
    logs = st.lists(st.one_of(plain, TXN, barrier), min_size=1, max_size=10)
    readers = st.fixed_dictionaries(
        {
            "vchannel": st.sampled_from(["a", "b", "z", ["a", "b"], ["c", "z"]]),
            "types": st.none() | st.sampled_from(kinds),
            "size_max": st.none() | st.integers(1, 3),
            "include_time_ticks": st.booleans(),
        }
    )

    async def write(log: wal.WALAccesser, steps: list[tuple[str, list[tuple[str, wal.MessageType]]]]) -> None:
        """Appends in these steps; `wait` ends a frame: appends before it are durable before those after it begin."""
        pending: list[Any] = []
        number = 0
        for form, some in steps:
            if form == "plain":
                for name, kind in some:
                    number += 1
                    pending.append(log.append_nowait(wal.Message(name, b"%d" % number, message_type=kind)))
            elif form == "txn":
                names = list(dict.fromkeys(name for name, _ in some)) or ["a"]
                txn = await log.txn(vchannels=names)
                for name, kind in some:
                    number += 1
                    await txn.append(wal.Message(name, b"%d" % number, message_type=kind))
                pending.append(asyncio.ensure_future(txn.commit()))
                await asyncio.sleep(0)
            else:
                await asyncio.gather(*pending)
                pending = []
        await asyncio.gather(*pending)

    async def positions(log: wal.WALAccesser, reader: dict[str, Any], end: int) -> list[tuple[wal.ReadPosition | None, int]]:
        """Returns every position that a reader reports, with the number of messages delivered before it."""
        found: list[tuple[wal.ReadPosition | None, int]] = []
        count = 0
        options = {"filters": filters(reader), "until_time_tick": end, "include_time_ticks": reader["include_time_ticks"]}
        async with log.read(reader["vchannel"], **options) as scanner:
            found.append((scanner.position, 0))
            if reader["size_max"] is None:
                async for message in scanner:
                    count += not isinstance(message, wal.TimeTickMessage)
                    found.append((scanner.position, count))
            else:
                async for page in scanner.batches(reader["size_max"]):
                    assert 1 <= len(page) <= reader["size_max"]
                    count += sum(not isinstance(message, wal.TimeTickMessage) for message in page)
                    found.append((scanner.position, count))
            found.append((scanner.position, count))
        return found

    def filters(reader: dict[str, Any]) -> list[Any]:
        return [wal.TimeTickGT(0), *([wal.MessageTypes(reader["types"])] if reader["types"] else [])]

    async def check(log: wal.WALAccesser, reader: dict[str, Any], end: int) -> list[tuple[wal.ReadPosition, list[Any]]]:
        vchannel = reader["vchannel"]
        whole = list(map(facts, await read_all(log, vchannel, filters=filters(reader))))
        expectations: list[tuple[wal.ReadPosition, list[Any]]] = []
        passed = 0
        for position, count in await positions(log, reader, end):
            assert position is None or position.time_tick >= passed, "a position went back"
            if position is None:
                assert count == 0
                continue
            passed = position.time_tick
            position = wal.ReadPosition.parse(str(position))
            rest = list(map(facts, await read_all(log, vchannel, filters=filters(reader), resume=position)))
            assert rest == whole[count:], (str(position), count)
            assert all(tick <= position.time_tick for _, tick, *_ in whole[:count])
            assert all(tick > position.time_tick for _, tick, *_ in whole[count:])
            expectations.append((position, rest))
        return expectations

    @settings(max_examples=1000 if SOAK else 30 if backend == "memory" else 6)
    @given(logs, readers)
    def run(steps: list[tuple[str, list[tuple[str, wal.MessageType]]]], reader: dict[str, Any]) -> None:
        async def main(location: str) -> None:
            async with open_wal(location) as log:
                await write(log, steps)
                end = await log.allocate_time_tick()
                expectations = await check(log, reader, end)
            if backend == "memory":
                return
            async with open_wal(location) as log:
                for position, rest in expectations:
                    again = await read_all(log, reader["vchannel"], filters=filters(reader), resume=position)
                    assert list(map(facts, again)) == rest, "after reopening"

        if backend == "memory":
            asyncio.run(main("memory:"))
        else:
            with tempfile.TemporaryDirectory() as data:
                asyncio.run(main(f"journal:{data}/log"))

    run()


async def test_positions_move_over_ranges_that_hold_nothing(log: wal.WALAccesser) -> None:
    await log.raw_append(wal.Message("mine", b"1"))
    results = await log.append_bulk([wal.Message("other", bytes(100)) for _ in range(3000)])
    async with log.read("mine", follow=False) as scanner:
        assert [message.payload async for message in scanner] == [b"1"]
        position = scanner.position
    assert position is not None
    assert position.message_id == results[-1].message_id
    assert position.time_tick >= results[-1].time_tick
    await log.truncate(up_to=results[-1].message_id)
    assert await read_all(log, "mine", resume=position) == [], "nothing was lost for this reader"
    await log.raw_append(wal.Message("mine", b"2"))
    assert [message.payload for message in await read_all(log, "mine", resume=position)] == [b"2"]


async def test_position_advances_at_the_tail_too(log: wal.WALAccesser) -> None:
    async with log.read("mine") as scanner:
        reading = asyncio.ensure_future(anext(scanner))
        result = await log.raw_append(wal.Message("other", b"1"))
        await scanner.wait_for(result.time_tick)
        assert scanner.position is not None
        assert scanner.position.message_id == result.message_id
        assert scanner.position.time_tick >= result.time_tick
    with pytest.raises(StopAsyncIteration):
        await reading


async def test_position_is_none_before_the_first_message(log: wal.WALAccesser) -> None:
    scanner = log.read("orders", follow=False)
    assert scanner.position is None
    async with scanner:
        assert scanner.position is None
    result = await log.raw_append(wal.Message("orders", b"1"))
    position = wal.ReadPosition(result.message_id, result.time_tick)
    async with log.read("orders", resume=position) as scanner:
        assert scanner.position == position


async def test_batches_can_be_asked_again_after_a_cancellation(log: wal.WALAccesser) -> None:
    await log.append_bulk([wal.Message("orders", b"%d" % number) for number in range(10)])
    found: list[wal.ImmutableMessage] = []
    async with log.read("orders") as scanner:

        async def collect() -> None:
            async for page in scanner.batches(size_max=3):
                found.extend(page)

        for last in (10, 20, 30):
            task = asyncio.ensure_future(collect())
            while len(found) < last:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await log.append_bulk([wal.Message("orders", b"%d" % number) for number in range(last, last + 10)])
        found.extend([await anext(scanner) for _ in range(10)])
    assert [int(message.payload) for message in found] == list(range(40))


async def test_interrupted_page_is_not_redelivered(log: wal.WALAccesser) -> None:
    await log.append_bulk([wal.Message("orders", b"%d" % number) for number in range(10)])
    async with log.read("orders", follow=False) as scanner:
        async for page in scanner.batches(4):
            first = page
            break
        second = await anext(scanner)
        rest = [message async for page in scanner.batches() for message in page]
    assert [int(message.payload) for message in [*first, second, *rest]] == list(range(10))


async def test_start_after_a_positions_id_resumes(log: wal.WALAccesser) -> None:
    await log.append_bulk([wal.Message("orders", b"%d" % number) for number in range(10)])
    async with log.read("orders", deliver_policy=wal.All()) as scanner:
        for _ in range(4):
            await anext(scanner)
        position = scanner.position
    assert position is not None
    after = await read_all(log, "orders", deliver_policy=wal.StartAfter(position.message_id))
    assert [int(message.payload) for message in after] == [4, 5, 6, 7, 8, 9]
