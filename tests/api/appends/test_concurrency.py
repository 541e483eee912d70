"""Ten writers and twenty readers at once, twenty writers in a soak: all readers agree, and see exactly the acknowledged messages."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.locations import SOAK, open_wal
from tests.probes import facts, made_on
from wal import AppendResult, ImmutableMessage, Message, MessageType, Scanner, StartAfter, WALAccesser


@pytest.mark.parametrize("pchannels", [pytest.param(1, marks=pytest.mark.soak("four pchannels show the same")), 4])
async def test_writers_and_readers_agree(location: str, pchannels: int, soak: int) -> None:
    writers = 20 if SOAK else 10
    READERS = 20
    NAMES = ("a", "b", "c", "d")

    async def write(log: WALAccesser, number: int, acknowledged: dict[bytes, AppendResult], rounds: int) -> None:
        chance = random.Random(number)
        for step in range(rounds):
            key = b"%d-%d" % (number, step)
            name = chance.choice(NAMES)
            how = chance.randrange(5)
            if how == 0:
                acknowledged[key] = await log.raw_append(Message(name, key))
            elif how == 1:
                acknowledged[key] = await log.append_nowait(Message(name, key, message_type=MessageType.IMPORT))
            elif how == 2:
                async with log.txn(vchannels=chance.sample(["a", "b"], 2)) as txn:
                    await txn.append(Message("a", key))
                    await txn.append(Message("b", key))
                assert txn.result is not None
                acknowledged[key] = txn.result
            elif how == 3:
                responses = await log.append_messages(Message(name, key), Message(name, key))
                acknowledged[key] = responses.unwrap()[0]
            else:
                (acknowledged[key],) = await log.append_bulk([Message(name, key)])

    async def read(log: WALAccesser, number: int, names: list[str], until: asyncio.Future[int]) -> list[ImmutableMessage]:
        """Reads by iteration, by pages, by a handler, or with a resume every few messages."""
        found: list[ImmutableMessage] = []

        async def ends(scanner: Scanner) -> None:
            await scanner.wait_for(await asyncio.shield(until))
            await scanner.close()

        kind = number % 4
        handler = found.append if kind == 2 else None
        if kind == 3:
            position = None
            while not (until.done() and position is not None and position.time_tick >= until.result()):
                end = until.result() if until.done() else await log.allocate_time_tick()
                async with log.read(names, resume=position, until_time_tick=end) as scanner:
                    count = 0
                    async for message in scanner:
                        found.append(message)
                        count += 1
                        if count == 7 + number:
                            break
                    position = scanner.position or position
                await asyncio.sleep(0)
            return found
        async with log.read(names, handler=handler) as scanner:
            ending = asyncio.ensure_future(ends(scanner))
            if kind == 0:
                async for message in scanner:
                    found.append(message)
            elif kind == 1:
                async for page in scanner.batches(1 + number):
                    found += page
            await scanner.done()
            await ending
        assert scanner.error is None
        return found

    async with open_wal(location, pchannels=pchannels) as log:
        await made_on(log, "p0", "a", "b")
        acknowledged: dict[bytes, AppendResult] = {}
        until: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        choices = [["a"], ["b"], ["a", "b"], ["c"], ["d"]]
        readers = [asyncio.ensure_future(read(log, number, choices[number // 4], until)) for number in range(READERS)]
        await asyncio.gather(*(write(log, number, acknowledged, 12 * soak) for number in range(writers)))
        until.set_result(await log.allocate_time_tick())
        found = await asyncio.gather(*readers)
        for group in range(5):
            some = [list(map(facts, one)) for one in found[4 * group : 4 * group + 4]]
            assert some[0] == some[1] == some[2] == some[3], "four kinds of readers disagree"
            ticks = [message.time_tick for message in found[4 * group]]
            assert ticks == sorted(set(ticks))
            for message in found[4 * group]:
                result = acknowledged[message.bodies()[0].payload]
                assert (message.message_id, message.time_tick) == (result.message_id, result.time_tick)
        seen = {body.payload for one in found for message in one for body in message.bodies()}
        assert seen == set(acknowledged), "what was acknowledged is what is read"
        assert log.statistics().bytes_in_flight == 0


async def test_reader_resumes_at_every_message(log: WALAccesser) -> None:
    async def writer() -> None:
        for number in range(80):
            await log.raw_append(Message("orders", b"%d" % number))

    writing = asyncio.ensure_future(writer())
    seen: list[int] = []
    policy = None
    while len(seen) < 80:
        async with log.read("orders", deliver_policy=policy) as scanner:
            message = await anext(scanner)
            seen.append(int(message.payload))
            policy = StartAfter(message.message_id)
    await writing
    assert seen == list(range(80))
