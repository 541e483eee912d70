"""Members of a shared cursor that are killed, stopped past their lease, and lose their server: each message is finished once.

The default run has 12 rounds over three member processes of a served log; a soak has 300.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SOAK
from tests.processes import Line, Other, eventually
from tests.serve.servers import serving
from tests.servers.process import free_ports
from wal import Delivery, Message, WALAccesser, open_wal
from wal.serve.access import Access

KEYS = 4
ROUND = 12
"""The messages of a round."""
ROUNDS = 12
ATTEMPTS = 4
KILLER = 7
"""The message that kills each member that handles it."""
LEASE_S = 0.5
GRACE_S = 0.1
MEMBERS = 3


async def serve(line: Line, directory: Path, address: str) -> None:
    """Serves the log at this address until it is killed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wal.node.shared_members.GRACE_S", GRACE_S)
        async with serving(directory, access=Access(listen=address), pchannels=1):
            line.tell("ready")
            await line.hear()


async def work(line: Line, location: str) -> None:
    """Runs a member until it hears a word; prints the number and the attempt of each message that it begins."""

    async def handle(delivery: Delivery) -> None:
        number = int(delivery.value)
        line.tell((number, delivery.attempt))
        delivery.append("out", delivery.value)
        if number == KILLER:
            os.kill(os.getpid(), signal.SIGKILL)
        match number % 10:
            case 2:
                await asyncio.sleep(0.01)
            case 3 if delivery.attempt == 1:
                raise ConnectionError("once")
            case 5:
                raise ValueError("always")

    async with open_wal(location) as log:
        consumer = log.consume(
            "in",
            handle,
            cursor="workers",
            shared=True,
            lease_s=LEASE_S,
            concurrency=2,
            order="key",
            key="customer",
            attempts=ATTEMPTS,
            backoff_s=(0.001, 0.01),
            dead_letter="dead",
        )
        async with consumer:
            line.tell("begun")
            await line.hear()
        line.tell("closed")


class Workers:
    """The member processes, and the messages that they have begun."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.begun: Counter[int] = Counter()
        self.attempts: set[int] = set()
        self.members = [Other(work, location) for _ in range(MEMBERS)]

    def note(self, words: Sequence[Any]) -> None:
        for word in words:
            if isinstance(word, tuple):
                self.begun[word[0]] += 1
                self.attempts.add(word[1])

    async def replace(self, index: int) -> None:
        """Kills a member, and starts another one."""
        self.note(await self.members[index].kill_and_hear())
        self.members[index] = Other(work, self.location)

    async def replace_dead(self) -> None:
        for index, member in enumerate(self.members):
            if not member._process.is_alive():
                await self.replace(index)


@pytest.mark.parametrize("run", range(25 if SOAK else 1))
async def test_members_finish_each_message_once_over_kills(data_dir: Path, run: int) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    location = f"wal://{address}"
    server = Other(serve, data_dir, address)
    assert await server.hear() == "ready"
    workers = Workers(location)
    async with open_wal(location) as log:
        for number in range(ROUNDS):
            numbers = range(number * ROUND, (number + 1) * ROUND)
            for one in numbers:
                await log.raw_append(Message("in", b"%d" % one, properties={"customer": str(one % KEYS)}), idempotency_key=f"in {one}")
            await progress(log, workers, number * ROUND + random.randrange(1, ROUND))
            victim = random.randrange(MEMBERS)
            match random.choice(("member", "member", "stopped", "server", "both")):
                case "member":
                    await workers.replace(victim)
                case "stopped":
                    with contextlib.suppress(OSError):  # a message has killed it
                        await workers.members[victim].stop()
                        await asyncio.sleep(LEASE_S + 0.3)
                        workers.members[victim].cont()
                case "server":
                    await server.kill_and_hear()
                    server = Other(serve, data_dir, address)
                    assert await server.hear() == "ready"
                case "both":
                    await server.kill_and_hear()
                    await workers.replace(victim)
                    server = Other(serve, data_dir, address)
                    assert await server.hear() == "ready"

        await progress(log, workers, ROUNDS * ROUND)
        for member in workers.members:
            member.tell("end")
            while (word := await member.hear()) != "closed":
                workers.note([word])
        await check(log, workers)
    await server.kill_and_hear()


async def progress(log: WALAccesser, workers: Workers, least: int) -> None:
    """Waits until so many messages are finished. Members that died of a message are replaced."""

    async def is_finished() -> bool:
        await workers.replace_dead()
        return await finished(log) >= least

    await eventually(is_finished)


async def bodies(log: WALAccesser, vchannel: str) -> list[Any]:
    async with log.read(vchannel, follow=False) as scanner:
        return [body async for _, body in scanner.bodies()]


async def finished(log: WALAccesser) -> int:
    """Returns the number of messages that have an output or a dead letter."""
    return len(await bodies(log, "out")) + len(await bodies(log, "dead"))


async def check(log: WALAccesser, workers: Workers) -> None:
    count = ROUNDS * ROUND
    letters = {int(letter.payload): letter.properties for letter in await bodies(log, "dead")}
    dead = {one for one in range(count) if one % 10 == 5} | {KILLER}
    assert sorted(letters) == sorted(dead)
    assert len(await bodies(log, "dead")) == len(letters)
    assert {each["dead_letter_attempts"] for each in letters.values()} == {str(ATTEMPTS)}
    assert letters[KILLER]["dead_letter_reason"].startswith("the process ended while this message alone was handled")
    outputs = [int(body.payload) for body in await bodies(log, "out")]
    assert sorted(outputs) == [one for one in range(count) if one not in dead]
    for key in range(KEYS):
        of_key = [one for one in outputs if one % KEYS == key]
        assert of_key == sorted(of_key)
    assert set(workers.begun) == set(range(count))
    assert workers.attempts <= set(range(1, ATTEMPTS + 1))
    (info,) = await log.cursors()
    assert info.lag_bytes == 0
