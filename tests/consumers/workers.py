"""Members of a shared cursor as processes that tests kill, and the check that each message was finished once.

Message 7 kills each member that handles it, so it ends as a dead letter; of ten messages one always fails, and another one fails once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.processes import Line, Other, eventually
from wal import Delivery, Matching, Message, WALAccesser, open_wal

KEYS = 4
ATTEMPTS = 4
KILLER = 7
"""The message that kills each member that handles it."""
LEASE_S = 0.5
MEMBERS = 3
ROUND = 12
"""The messages of a round."""


async def work(line: Line, location: str, outputs: Sequence[str], inputs: str) -> None:
    """Runs a member until it hears a word; prints the number and the attempt of each message that it begins."""

    async def handle(delivery: Delivery) -> None:
        number = int(delivery.value)
        line.tell((number, delivery.attempt))
        for name in outputs:
            delivery.append(name, delivery.value)
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
            Matching(inputs) if "*" in inputs else inputs,
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

    def __init__(self, location: str, outputs: Sequence[str] = ("out",), *, inputs: str = "in") -> None:
        """Each handled message of `inputs`, a vchannel or a pattern, has an output in each of these vchannels; the first one is on the
        pchannel of the cursor's home."""
        self.location = location
        self.inputs = inputs
        self.outputs = outputs
        self.begun: Counter[int] = Counter()
        self.attempts: set[int] = set()
        self.members: list[Other] = []

    def start(self) -> None:
        """Starts the members."""
        self.members += [self._start() for _ in range(MEMBERS)]

    def _start(self) -> Other:
        return Other(work, self.location, self.outputs, self.inputs)

    @property
    def pids(self) -> list[int]:
        """The processes of the members."""
        return [member.pid for member in self.members]

    def note(self, words: Sequence[Any]) -> None:
        for word in words:
            if isinstance(word, tuple):
                self.begun[word[0]] += 1
                self.attempts.add(word[1])

    async def replace(self, index: int) -> None:
        """Kills a member, and starts another one."""
        self.note(await self.members[index].kill_and_hear())
        self.members[index] = self._start()

    async def replace_dead(self) -> None:
        for index, member in enumerate(self.members):
            if not member._process.is_alive():
                await self.replace(index)

    async def stop(self, index: int) -> None:
        """Stops a member for longer than its lease, unless a message has killed it."""
        with contextlib.suppress(OSError):
            await self.members[index].stop()
            await asyncio.sleep(LEASE_S + 0.3)
            self.members[index].cont()

    async def progress(self, log: WALAccesser, least: int) -> None:
        """Waits until so many messages are finished. Members that died of a message are replaced."""

        async def is_finished() -> bool:
            await self.replace_dead()
            return await finished(log) >= least

        await eventually(is_finished)

    async def end(self) -> None:
        """Ends all members in order."""
        for member in self.members:
            member.tell("end")
            while (word := await member.hear()) != "closed":
                self.note([word])

    async def check(self, log: WALAccesser, count: int) -> None:
        """Checks that the messages 0 to `count` were finished once each, in the order of their keys."""
        letters = {int(letter.payload): letter.properties for letter in await bodies(log, "dead")}
        dead = {one for one in range(count) if one % 10 == 5} | {KILLER}
        assert sorted(letters) == sorted(dead)
        assert len(await bodies(log, "dead")) == len(letters)
        assert {each["dead_letter_attempts"] for each in letters.values()} == {str(ATTEMPTS)}
        assert letters[KILLER]["dead_letter_reason"].startswith("the process ended while this message alone was handled")
        for name in self.outputs:
            outputs = [int(body.payload) for body in await bodies(log, name)]
            assert sorted(outputs) == [one for one in range(count) if one not in dead]
            for key in range(KEYS):
                of_key = [one for one in outputs if one % KEYS == key]
                assert of_key == sorted(of_key)
        assert set(self.begun) == set(range(count))
        assert self.attempts <= set(range(1, ATTEMPTS + 1))
        (info,) = await log.cursors()
        assert info.pattern or info.lag_bytes == 0  # the outputs count for the lag of a pattern
        assert await log.peek("workers") == []


async def append_round(log: WALAccesser, number: int, names: Sequence[str] = ("in",)) -> int:
    """Appends the messages of a round to these vchannels in turn; returns a number of finished messages at which its fault may begin."""
    for one in range(number * ROUND, (number + 1) * ROUND):
        await log.raw_append(
            Message(names[one % len(names)], b"%d" % one, properties={"customer": str(one % KEYS)}), idempotency_key=f"in {one}"
        )
    return number * ROUND + random.randrange(1, ROUND)


async def bodies(log: WALAccesser, vchannel: str) -> list[Any]:
    async with log.read(vchannel, follow=False) as scanner:
        return [body async for _, body in scanner.bodies()]


async def finished(log: WALAccesser) -> int:
    """Returns the number of messages that have an output or a dead letter."""
    return len(await bodies(log, "out")) + len(await bodies(log, "dead"))
