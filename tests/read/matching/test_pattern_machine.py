"""A read with a pattern against a model of a few lines, while vchannels come and go, and the log is opened again with more pchannels."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from typing import Any, Final

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import wal
from tests.conftest import SOAK
from wal import BroadcastMessage, Delivery, Matching, Message

PATTERN: Final = Matching("a-*")
names = st.sampled_from(["a-1", "a-2", "a-3", "a-4", "b-1", "b-2"])
Key = tuple[int, str]


class Family(RuleBasedStateMachine):
    """`events` has each event by its key, with its bodies: the name and the life of a vchannel, and the payload. `lives` are those now."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.place = tempfile.mkdtemp()
        self.pchannels = 2
        self.events: dict[Key, list[tuple[str, int, bytes]]] = {}
        self.lives: dict[str, int] = {}
        self.homes: dict[str, str] = {}
        self.count = 0
        self.at: Key = (0, "")
        self.saved: Key = (0, "")
        self.log: Any = None
        self.scanner: Any = None
        self.consumed: set[tuple[str, bytes]] = set()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(60):
                return await work

        return self.runner.run(bounded())

    def following(self) -> list[tuple[Key, list[bytes]]]:
        """What the reader has to get now: live bodies that match, in the order of the keys."""
        rest = []
        for key in sorted(key for key in self.events if key > self.at):
            bodies = [payload for name, life, payload in self.events[key] if name in PATTERN and self.lives.get(name) == life]
            if bodies:
                rest.append((key, bodies))
        return rest

    def note(self, result: Any, bodies: list[tuple[str, bytes]]) -> None:
        key = (result.time_tick, result.message_id.pchannel)
        assert key not in self.events
        self.events[key] = [(name, self.lives[name], payload) for name, payload in bodies]

    async def exist(self, *chosen: str) -> None:
        for name in chosen:
            if name not in self.lives:
                self.count += 1
                self.lives[name] = self.count
                self.homes[name] = (await self.log.create_vchannel(name, pchannel=f"p{self.count % self.pchannels}")).pchannel

    def payload(self) -> bytes:
        self.count += 1
        return b"%d" % self.count

    @initialize()
    def begin(self) -> None:
        self.run(self.opened())

    async def opened(self) -> None:
        self.log = await wal.open_wal(self.place, pchannels=self.pchannels)
        await self.reader()

    async def reader(self) -> None:
        """A new reader of the cursor, which continues where the cursor was saved."""
        self.scanner = self.log.read(PATTERN, cursor="family")
        await self.scanner.__aenter__()
        self.at = self.saved

    async def ended(self) -> None:
        await self.scanner.close()
        await self.log.close()

    @rule(chosen=st.lists(names, min_size=1, max_size=6))
    def append(self, chosen: list[str]) -> None:
        """Several messages, which share a frame on each pchannel."""

        async def work() -> None:
            await self.exist(*chosen)
            messages = [Message(name, self.payload()) for name in chosen]
            for message, result in zip(messages, await self.log.append_bulk(messages), strict=True):
                self.note(result, [(message.vchannel, message.payload)])

        self.run(work())

    @rule(chosen=st.lists(names, min_size=1, max_size=4))
    def transaction(self, chosen: list[str]) -> None:
        async def work() -> None:
            await self.exist(*chosen)
            together = [name for name in chosen if self.homes[name] == self.homes[chosen[0]]]
            bodies = [(name, self.payload()) for name in together]
            self.note(await self.log.append_txn(sorted(set(together)), [Message(*body) for body in bodies]), bodies)

        self.run(work())

    @rule(chosen=st.sets(names, min_size=1))
    def broadcast(self, chosen: set[str]) -> None:
        async def work() -> None:
            await self.exist(*sorted(chosen))
            payload = self.payload()
            message = BroadcastMessage(vchannels=sorted(chosen), payload=payload, needs_ack=False)
            for name, result in (await self.log.broadcast().append(message, wait=True)).append_results.items():
                self.note(result, [(name, payload)])

        self.run(work())

    @rule(name=names, count=st.integers(0, 2), at=st.integers(0, 4))
    def drop(self, name: str, count: int, at: int) -> None:
        """Drops, after a few reads, the vchannel of an event that the reader gets next, or has at hand already, and otherwise any."""
        self.read(count)
        if at < len(following := self.following()):
            name = next(each for each, life, _ in self.events[following[at][0]] if each in PATTERN and self.lives.get(each) == life)
        if name in self.lives:
            self.run(self.log.drop_vchannel(name))
            del self.lives[name]

    @rule(count=st.integers(1, 5))
    def read(self, count: int) -> None:
        async def work() -> None:
            for key, bodies in self.following()[:count]:
                message = await anext(self.scanner)
                assert (message.time_tick, message.message_id.pchannel) == key
                assert [body.payload for body in message.bodies()] == bodies
                self.at = key

        self.run(work())

    @rule()
    def save(self) -> None:
        self.run(self.scanner.save())
        self.saved = self.at

    @rule()
    def reader_crashes(self) -> None:
        async def work() -> None:
            await self.scanner.close()
            await self.reader()

        self.run(work())

    @rule(count=st.integers(0, 6), concurrency=st.integers(1, 3), failing=st.booleans())
    def consume(self, count: int, concurrency: int, failing: bool) -> None:
        """A consumer handles at most `count` messages (0: all that are left), each once, in the order of its vchannel."""

        async def work() -> None:
            handled: list[tuple[str, bytes]] = []
            is_full = asyncio.Event()

            async def handle(delivery: Delivery) -> None:
                if failing and delivery.attempt == 1:
                    raise ValueError("once")
                if count and len(handled) == count:
                    is_full.set()
                    await asyncio.Event().wait()
                handled.append((delivery.vchannel, delivery.value))

            async with self.log.consume(PATTERN, handle, cursor="worker", concurrency=concurrency, backoff_s=(0.0, 0.0)) as consumer:
                done = [asyncio.ensure_future(consumer.caught_up()), asyncio.ensure_future(is_full.wait())]
                await asyncio.wait(done, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.cancel()
                await consumer.close(drain_s=0.0)
            left = self.left()
            assert len(handled) == len(set(handled)) == (min(count, len(left)) if count else len(left))
            for name in {name for name, _ in handled}:
                own = [payload for each, payload in handled if each == name]
                assert own == [payload for each, payload in left if each == name][: len(own)]
            self.consumed.update(handled)

        self.run(work())

    def left(self) -> list[tuple[str, bytes]]:
        """The bodies of live vchannels that no consumer has handled, in their order."""
        bodies = [body for key in sorted(self.events) for body in self.events[key]]
        return [(name, payload) for name, life, payload in bodies if self.consumes(name, life) and (name, payload) not in self.consumed]

    def consumes(self, name: str, life: int) -> bool:
        return name in PATTERN and self.lives.get(name) == life

    @precondition(lambda self: self.pchannels < 4)
    @rule(more=st.integers(0, 1))
    def reopen(self, more: int) -> None:
        self.run(self.ended())
        self.pchannels += more
        self.run(self.opened())

    @rule()
    def whole(self) -> None:
        """A reader without a cursor gets the whole family, and from each position exactly the rest."""

        async def work() -> None:
            before, self.at = self.at, (0, "")
            expected = self.following()
            self.at = before
            async with self.log.read(PATTERN, follow=False) as scanner:
                messages = [(message, scanner.position) async for message in scanner]
            assert [
                ((message.time_tick, message.message_id.pchannel), [b.payload for b in message.bodies()]) for message, _ in messages
            ] == (expected)
            if messages:
                half = len(messages) // 2
                async with self.log.read(PATTERN, follow=False, resume=messages[half][1]) as scanner:
                    assert [message.message_id async for message in scanner] == [message.message_id for message, _ in messages[half + 1 :]]

        self.run(work())

    def teardown(self) -> None:
        if self.log is not None:
            self.run(self.ended())
        self.runner.close()
        shutil.rmtree(self.place)


@pytest.fixture(autouse=True)
def watchdog() -> None:
    """Each step of the machine has its own bound, so the bound of a whole test does not stop a soak of 200 machines."""


def test_family_reads_as_its_model() -> None:
    run_state_machine_as_test(Family, settings=settings(max_examples=200 if SOAK else 8, stateful_step_count=25, deadline=None))
