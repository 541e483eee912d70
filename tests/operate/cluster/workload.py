"""A workload over a log, and the check of its messages.

Writers append numbered messages with and without keys, and in transactions, and record acknowledgements and unknown outcomes. Readers
follow their vchannels from the beginning. With a location, clients also begin in the middle of the workload: each opens the log and makes
every kind of call once, on a vchannel of its own. At the end every acknowledged message is in the log, in the order of each writer, keyed
messages once, transactions whole, and no rejected message. Every reader has read the same messages, in the same order.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec

from tests.processes import eventually
from wal import AppendResult, BroadcastMessage, Message, WALAccesser, open_wal
from wal.errors import WALError

VCHANNELS: Final = 6
PAUSE_S: Final = 0.02
"""The pause between two appends of a writer: failures are a matter of moments, not of throughput."""


class Written(msgspec.Struct):
    acknowledged: dict[str, list[tuple[bytes, int]]] = {}
    """By vchannel: the payloads with their ticks, in the order in which they were sent."""
    unknown: set[bytes] = set()
    refused: list[tuple[bytes, str]] = []
    errors: list[str] = []
    """The errors of all kinds that callers got."""
    pauses: list[float] = []
    """The duration of each append."""
    txns: list[tuple[bytes, ...]] = []
    begun: int = 0
    """The number of clients that began in the middle and got all their answers."""
    failed_begins: list[str] = []
    """The errors of the other such clients, except unknown outcomes."""


class Workload:
    """Writers and readers of `log`; `stop` ends them, `judge` checks their messages."""

    def __init__(self, log: WALAccesser, *, location: Callable[[], str] | None = None) -> None:
        self.written = Written()
        self.read: dict[str, list[tuple[bytes, int]]] = {}
        self._log = log
        self._location = location
        self._begins = 0
        """The number of clients that began in the middle; clients below `_judged_from` are not checked."""
        self._judged_from = 0
        self.is_restored: bool = False
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._readers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        for number in range(VCHANNELS):
            name = f"v{number}"
            self.written.acknowledged[name] = []
            self.read[name] = []
            self._tasks.append(loop.create_task(self._write(name, keyed=number % 2 == 0)))
            self._readers.append(loop.create_task(self._follow(name)))
        self._tasks.append(loop.create_task(self._write_txns()))
        if self._location is not None:
            self._tasks.append(loop.create_task(self._begin_anew(self._location)))

    @property
    def count(self) -> int:
        return sum(map(len, self.written.acknowledged.values()))

    async def progress(self, messages: int = 10) -> float:
        """Waits until `messages` more messages were acknowledged on every vchannel; returns the elapsed time."""
        began, before = time.monotonic(), {name: len(each) for name, each in self.written.acknowledged.items()}
        await eventually(lambda: all(len(self.written.acknowledged[name]) >= count + messages for name, count in before.items()))
        return time.monotonic() - began

    def went_back(self) -> None:
        """Adapts to an older copy of the metadata: a vchannel that a client created just before does not exist any more."""
        self.is_restored = True
        self._judged_from = self._begins + 1
        self.written.failed_begins.clear()

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def judge(self, *, long_outage: bool = False) -> None:
        """Raises AssertionError unless all guarantees hold. In a long outage a client also gives up calls with a key."""
        written = self.written
        assert long_outage or not written.refused, written.refused[:5]
        assert not written.failed_begins, written.failed_begins[:5]
        for name, acknowledged in written.acknowledged.items():
            last = acknowledged[-1][0]
            await eventually(lambda name=name, last=last: any(payload == last for payload, _ in self.read[name]))  # type: ignore[misc]
        if written.txns:
            newest = written.txns[-1][-1]
            await eventually(lambda: any(payload == newest for payload, _ in self.read["v1"]))
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        for name, acknowledged in written.acknowledged.items():
            read = [(payload, tick) for payload, tick in self.read[name] if not payload.startswith(b"txn")]
            ticks = [tick for _, tick in self.read[name]]
            assert ticks == sorted(ticks), f"{name}: ticks do not ascend"
            payloads = [payload for payload, _ in read]
            assert len(payloads) == len(set(payloads)), f"{name}: {[each for each, count in Counter(payloads).items() if count > 1][:5]}"
            known = dict(read)
            for payload, tick in acknowledged:
                assert known.get(payload) == tick, f"{name}: {payload!r} was acknowledged at {tick}, and read at {known.get(payload)}"
            allowed = {payload for payload, _ in acknowledged} | written.unknown
            assert set(payloads) <= allowed, f"{name}: {list(set(payloads) - allowed)[:5]} were never acknowledged"
            order = [payload for payload, _ in read if payload not in written.unknown]
            assert order == [payload for payload, _ in acknowledged], f"{name}: the order of one writer was not kept"
        seen = {payload for payload, _ in self.read["v1"]}
        for bodies in written.txns:
            assert seen.issuperset(bodies), f"transaction {bodies[0]!r} is not whole"
        for payload in () if long_outage else written.unknown:
            assert not payload.startswith(b"keyed"), f"{payload!r} has a key, and an unknown outcome"

    async def _write(self, name: str, *, keyed: bool) -> None:
        number, written = 0, self.written
        while not self._stopping:
            payload = b"%s %s %d" % (b"keyed" if keyed else b"plain", name.encode(), number)
            number += 1
            began = time.monotonic()
            try:
                result = await self._log.raw_append(Message(name, payload), idempotency_key=payload.decode() if keyed else None)
            except WALError as error:
                written.errors.append(f"{payload!r}: {error!r}")
                if error.outcome_unknown:
                    written.unknown.add(payload)
                else:
                    written.refused.append((payload, repr(error)))
            else:
                assert isinstance(result, AppendResult)
                written.acknowledged[name].append((payload, result.time_tick))
            written.pauses.append(time.monotonic() - began)
            await asyncio.sleep(PAUSE_S)

    async def _write_txns(self) -> None:
        number = 0
        while not self._stopping:
            bodies = tuple(b"txn %d %d" % (number, at) for at in range(3))
            number += 1
            try:
                async with self._log.txn("v1") as txn:
                    for body in bodies:
                        await txn.append(Message("v1", body))
                self.written.txns.append(bodies)
            except WALError as error:
                self.written.errors.append(f"{bodies[0]!r}: {error!r}")
            await asyncio.sleep(2 * PAUSE_S)

    async def _begin_anew(self, location: Callable[[], str]) -> None:
        while not self._stopping:
            self._begins += 1
            began, number = time.monotonic(), self._begins
            try:
                async with open_wal(location()) as log:
                    await _call_each(log, number)
                self.written.begun += 1
            except (WALError, AssertionError) as error:
                if number >= self._judged_from and not (isinstance(error, WALError) and error.outcome_unknown):
                    where = traceback.extract_tb(error.__traceback__)[-1]
                    self.written.failed_begins.append(f"client {number}, {time.monotonic() - began:.1f} s: {error!r} {where}")
            await asyncio.sleep(0.2)

    async def _follow(self, name: str) -> None:
        async with self._log.read(name) as scanner:
            async for message in scanner:
                for body in message.bodies():
                    self.read[name].append((body.payload, message.time_tick))


async def _call_each(log: WALAccesser, number: int) -> None:
    """Makes each kind of call once, on a new vchannel."""
    name = f"begun{number}"
    async with log.read("v0") as scanner:
        await anext(scanner)
    result = await log.raw_append(Message(name, b"1"), idempotency_key="1")
    assert isinstance(result, AppendResult)
    assert await log.latest_tick(name) >= result.time_tick
    async with log.txn(name) as txn:
        await txn.append(Message(name, b"2"))
    async with log.read(name, cursor=name, follow=False) as scanner:
        assert [body.payload async for message in scanner for body in message.bodies()] == [b"1", b"2"]
        await scanner.save()
    assert name in [info.name for info in await log.cursors()]
    await log.delete_cursor(name)
    sent = BroadcastMessage(vchannels=[f"begun{number}", "begun"], payload=b"3", needs_ack=False)
    assert set((await log.broadcast().append(sent)).append_results) == {name, "begun"}
    await log.broadcast().tasks()
    await log.drop_vchannel(name)
