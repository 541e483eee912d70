"""Consumers whose process is killed: the stages of a pipeline write each output once, attempts are bounded, and bystanders are never
condemned.

The default run has 20 rounds of the pipeline, half of them over the network, and 10 of the four workers; a soak has 400 and 100.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SOAK
from tests.processes import Line, Other
from tests.serve.servers import serving
from tests.servers.process import free_ports
from wal import Delivery, ImmutableMessage, Retry, WALAccesser, open_wal
from wal.serve.access import Access

STAGES = ("in", "cleaned", "billed", "out")
KEYS = 5
ROUND = 30
"""The inputs of a round."""
ATTEMPTS = 4
LEASE_MS = 100
"""The time for which a killed client keeps its cursors."""
KILLER = 11
SLOW_S = 0.02


def key_of(message: ImmutableMessage) -> bytes:
    return message.payload.split(b":")[0]


def payload(number: int) -> bytes:
    return b"%d:%d" % (number % KEYS, number)


# -- the pipeline


async def pipeline(line: Line, location: str, first: int) -> None:
    """Runs three stages over new inputs and the remaining ones, and prints a word at each point where its parent may kill it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wal.client.cursor_home.LEASE_MS", LEASE_MS)
        patch.setattr("wal.client.cursor_home.POLL_S", LEASE_MS / 5000)
        async with open_wal(location) as log:
            consumers = [log.consume(STAGES[stage], passing(line, stage), cursor=f"stage{stage}", **kind(stage)) for stage in range(3)]
            for consumer in consumers:
                await consumer.__aenter__()
            for number in range(first, first + ROUND):
                await log.append("in", payload(number), idempotency_key=f"input {number}")
            for consumer in consumers:
                await consumer.caught_up()
            for consumer in consumers:
                await consumer.close()
        line.tell("over")


def kind(stage: int) -> dict[str, Any]:
    if stage == 1:
        return {"concurrency": 4, "order": "key", "key": key_of}
    return {"batch": 7} if stage == 2 else {}


def passing(line: Line, stage: int) -> Any:
    async def one(delivery: Delivery) -> None:
        line.tell(stage)
        if stage == 1:
            await asyncio.sleep(0)
        delivery.append(STAGES[stage + 1], delivery.value)

    async def batch(deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            await one(delivery)

    return batch if stage == 2 else one


@pytest.mark.parametrize("run", range(20 if SOAK else 1))
async def test_pipeline_puts_out_once_over_kills(data_dir: Path, run: int) -> None:
    rounds = 10
    for number in range(rounds):
        other = Other(pipeline, str(data_dir), number * ROUND)
        await heard(other, random.randrange(1, 3 * ROUND))
        await other.kill_and_hear()
    await run_to_end(str(data_dir), rounds)
    async with open_wal(data_dir) as log:
        await check_pipeline(log)


@pytest.mark.parametrize("run", range(20 if SOAK else 1))
async def test_pipeline_over_the_network_puts_out_once_over_kills(data_dir: Path, run: int) -> None:
    async def serve(line: Line, directory: Path, address: str) -> None:
        """Serves the log at this address until it is killed."""
        async with serving(directory, access=Access(listen=address), pchannels=1):
            line.tell("ready")
            await line.hear()

    rounds, address = 10, f"127.0.0.1:{free_ports(1)[0]}"
    location = f"wal://{address}"
    server = Other(serve, data_dir, address)
    assert await server.hear() == "ready"
    for number in range(rounds):
        client = Other(pipeline, location, number * ROUND)
        await heard(client, random.randrange(1, 3 * ROUND))
        victims = random.choice(("client", "server", "both"))
        if victims != "client":
            await server.kill_and_hear()
            server = Other(serve, data_dir, address)
            assert await server.hear() == "ready"
        if victims == "server":  # the consumers continue with the next one, and end or are killed later
            await heard(client, random.randrange(1, ROUND))
        await client.kill_and_hear()
    await run_to_end(location, rounds)
    async with open_wal(location) as log:
        await check_pipeline(log)
    await server.kill_and_hear()


async def heard(other: Other, words: int) -> None:
    """Waits until a pipeline has printed this many words, or has ended."""
    for _ in range(words):
        if await other.hear() == "over":
            return


async def run_to_end(location: str, rounds: int) -> None:
    """Runs the pipeline until it has ended, after this many rounds."""
    other = Other(pipeline, location, rounds * ROUND)
    while await other.hear() != "over":
        pass
    await other.end()


async def check_pipeline(log: WALAccesser) -> None:
    """Checks that each input has one output of each stage, in the order of its key, and that the cursors have passed them."""
    inputs = await bodies(log, "in")
    assert len(inputs) == len(set(inputs))
    for name in STAGES[1:]:
        outputs = await bodies(log, name)
        assert sorted(outputs) == sorted(inputs), name
        for key in range(KEYS):
            prefix = b"%d:" % key
            assert [one for one in outputs if one.startswith(prefix)] == [one for one in inputs if one.startswith(prefix)], name
    cursors = {info.name: info for info in await log.cursors()}
    assert sorted(cursors) == [f"stage{stage}" for stage in range(3)]
    for info in cursors.values():
        assert info.lag_bytes == 0, info
        assert await log.peek(info.name) == []


async def bodies(log: WALAccesser, vchannel: str) -> list[bytes]:
    async with log.read(vchannel, follow=False) as scanner:
        return [body.payload async for _, body in scanner.bodies()]


# -- four workers


async def workers(line: Line, directory: Path, count: int) -> None:
    """Runs four workers on messages that raise, hang, are slow, and kill the process; closes them after `count` handlers, if not 0."""
    begun = 0
    enough = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        nonlocal begun
        number = int(delivery.value.split(b":")[1])
        line.tell((number, delivery.attempt))
        begun += 1
        if begun == count:
            enough.set()
        delivery.append("out", delivery.value)
        if number == KILLER:
            os.kill(os.getpid(), signal.SIGKILL)
        match number % 10:
            case 2:
                await asyncio.sleep(SLOW_S)
            case 3 if delivery.attempt == 1:
                raise ConnectionError("once")
            case 5:
                raise ValueError("always")
            case 7 if delivery.attempt == 1:
                await asyncio.Event().wait()
            case 9 if delivery.attempt < 3:
                raise Retry(0.001)

    async with open_wal(directory, pchannels=1) as log:
        consumer = log.consume(
            "in",
            handle,
            cursor="workers",
            concurrency=4,
            order="key",
            key=key_of,
            attempts=ATTEMPTS,
            backoff_s=(0.001, 0.01),
            timeout_s=0.2,
            dead_letter="dead",
        )
        async with consumer:
            done = asyncio.ensure_future(consumer.caught_up())
            ending = asyncio.ensure_future(enough.wait())
            await asyncio.wait((done, ending), return_when=asyncio.FIRST_COMPLETED)
            if done.done():
                line.tell("over")
            ending.cancel()
            done.cancel()
            await consumer.close(drain_s=0.0)
        line.tell("closed")


@pytest.mark.parametrize("run", range(10 if SOAK else 1))
async def test_workers_bound_attempts_over_kills(data_dir: Path, run: int) -> None:
    rounds, count = 10, 40
    async with open_wal(data_dir, pchannels=1) as log:
        await log.append_txn("in", [payload(number) for number in range(count)])
    tried: Counter[int] = Counter()
    is_over, number = False, 0
    while not is_over:
        number += 1
        assert number <= rounds + 30, "it never ends"
        # Some rounds are killed after a number of handlers, some are closed, and the last ones run to their end unless a message kills
        # them.
        limit = random.randrange(1, 20) if number <= rounds // 2 else 0
        closes = number % 3 == 0
        other = Other(workers, data_dir, limit if closes else 0)
        heard: list[object] = []
        try:
            while True:
                word = await other.hear()
                heard.append(word)
                if word == "closed" or (limit and not closes and len(heard) >= limit):
                    break
        except (AssertionError, ConnectionResetError):
            pass  # a message has killed it
        heard += await other.kill_and_hear()
        is_over = "over" in heard
        for word in heard:
            if isinstance(word, tuple):
                tried[word[0]] += 1
                assert 1 <= word[1] <= ATTEMPTS
    async with open_wal(data_dir) as log:
        outputs = await bodies(log, "out")
        async with log.read("dead", follow=False) as scanner:
            letters = [body async for _, body in scanner.bodies()]
    dead = {one for one in range(count) if one % 10 == 5} | {KILLER}
    assert sorted(int(letter.payload.split(b":")[1]) for letter in letters) == sorted(dead)
    assert {letter.properties["dead_letter_attempts"] for letter in letters} == {str(ATTEMPTS)}
    killed = next(letter for letter in letters if letter.payload == payload(KILLER))
    assert killed.properties["dead_letter_reason"].startswith("the process ended while this message alone was handled")
    assert sorted(outputs) == sorted(payload(one) for one in range(count) if one not in dead)
    assert set(tried) == set(range(count))
    for key in range(KEYS):
        of_key = [int(one.split(b":")[1]) for one in outputs if one.startswith(b"%d:" % key)]
        assert of_key == sorted(of_key)


async def test_ends_in_the_middle_lose_nothing(log: WALAccesser, soak: int) -> None:
    rounds, count = 12 * soak, 150
    await log.append_txn("in", [payload(number) for number in range(count)])
    handled: Counter[bytes] = Counter()

    async def handle(delivery: Delivery) -> None:
        for _ in range(random.randrange(3)):
            await asyncio.sleep(random.choice((0, 0.001)))
        if random.random() < 0.05:
            raise ConnectionError("at times")
        handled[delivery.value] += 1
        delivery.append("out", delivery.value)

    for number in range(rounds + 1):
        consumer = log.consume(
            "in", handle, cursor="workers", concurrency=4, order="key", key=key_of, attempts=1000, backoff_s=(0.0, 0.001), exclusive="error"
        )
        running = asyncio.ensure_future(consumer.run())
        if number == rounds:
            await consumer.caught_up()
        else:
            for _ in range(random.randrange(30)):
                await asyncio.sleep(0)
        if number % 2:
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        else:
            await consumer.close(drain_s=random.choice((0.0, 0.001, 5.0)))
            await running
        outputs = await bodies(log, "out")
        assert len(outputs) == len(set(outputs))
        assert set(outputs) <= set(handled)
    assert sorted(outputs) == sorted(handled) == sorted(payload(number) for number in range(count))
    for key in range(KEYS):
        of_key = [int(one.split(b":")[1]) for one in outputs if one.startswith(b"%d:" % key)]
        assert of_key == sorted(of_key)
