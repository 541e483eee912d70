"""A client that loads a log over the network until a command to stop: `python -m tests.outages.client '<json of a Load>'`.

It prints the number of its finished calls from time to time. At `stop` its writers end, and it prints WRITTEN; its readers end when they
have read END on every vchannel, and it prints its Report. An error that a caller must not see ends it with a traceback.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
import uvloop

from tests.crash.child import Reporter, commands
from tests.outages.report import Call, Load, Outcome, Report, Session, payload
from wal import BroadcastMessage, ImmutableMessage, Message, ProducerKey, ResourceKey, WALAccesser, open_wal
from wal.errors import ResourceAcquiredError, TransactionExpiredError, UnknownOutcomeError

END: Final = b"end"
WRITTEN: Final = "written"
WRITERS: Final = 6
TOLD_EVERY: Final = 20


class Client:
    """One client. Its calls are numbered in the order in which they are made."""

    def __init__(self, log: WALAccesser, load: Load, tell: Callable[[Any], Awaitable[None]]) -> None:
        self.log = log
        self.load = load
        self.tell = tell
        self.report = Report([], [[] for _ in load.sides], [])
        self.stopping = asyncio.Event()
        self.numbers = 0

    async def run(self, stop: Awaitable[object]) -> None:
        sides = range(len(self.load.sides))
        readers = [*map(self.scan, sides), *map(self.resume, sides)]
        if self.load.client == 0:
            readers += map(self.acknowledge, self.load.sides)
        async with asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(reader)
            async with asyncio.TaskGroup() as writers:
                for number in range(WRITERS):
                    writers.create_task(self.write(self.chance(number), number))
                writers.create_task(self.broadcast(self.chance("broadcasts")))
                await stop
                self.stopping.set()
            await self.tell(WRITTEN)

    def chance(self, what: object) -> random.Random:
        return random.Random(f"{self.load.seed} {self.load.client} {what}")

    # -- writers

    async def write(self, rng: random.Random, writer: int) -> None:
        calls: list[Callable[[random.Random, str | ProducerKey | None], Awaitable[None]]] = [
            self.append, self.append, self.append_txn, self.txn,
        ]  # fmt: skip
        sequence = 0
        while not self.stopping.is_set():
            kind = rng.randrange(4)
            key: str | ProducerKey | None = None
            if kind == 0:
                await self.series(rng)
                continue
            if kind == 1:
                key = f"{self.load.client}-{writer}-{sequence}"
            elif kind == 2:
                key = ProducerKey(f"{self.load.client}-{writer}", sequence)
            sequence += 1
            await rng.choice(calls)(rng, key)

    async def append(self, rng: random.Random, key: str | ProducerKey | None) -> None:
        name = rng.choice(rng.choice(self.load.sides))
        (message,), number = self.messages(rng, [name], 1)
        await self.called(number, [name], 1, self.log.raw_append(message, idempotency_key=key), keyed=key is not None)

    async def series(self, rng: random.Random) -> None:
        """Appends some messages without waiting in between, which keep their order."""
        name = rng.choice(rng.choice(self.load.sides))
        futures = []
        for _ in range(rng.randint(2, 30)):
            (message,), number = self.messages(rng, [name], 1)
            futures.append((number, self.log.append_nowait(message)))
        for number, future in futures:
            await self.called(number, [name], 1, future)

    async def append_txn(self, rng: random.Random, key: str | ProducerKey | None) -> None:
        side = rng.choice(self.load.sides)
        names = rng.sample(side, rng.randint(1, len(side)))
        messages, number = self.messages(rng, names, rng.randint(2, 6))
        call = self.log.append_txn(names, messages, idempotency_key=key)
        await self.called(number, names, len(messages), call, keyed=key is not None, transaction=True)

    async def txn(self, rng: random.Random, key: str | ProducerKey | None) -> None:
        side = rng.choice(self.load.sides)
        names = rng.sample(side, rng.randint(1, len(side)))
        txn = await self.log.txn(vchannels=names, idempotency_key=key)
        if rng.random() < 0.1:
            await txn.append(Message(names[0], b"this is rolled back"))
            await txn.rollback()
            return
        early = rng.random() < 0.5
        if not early:
            await asyncio.sleep(rng.random() * 0.05)  # it is open for a while: the server may be gone meanwhile
        messages, number = self.messages(rng, names, rng.randint(2, 6))
        try:
            if early:
                await txn.append(messages[0])
                await asyncio.sleep(rng.random() * 0.05)
            await txn.append_many(messages[early:])
        except TransactionExpiredError:
            await self.record(Call(number, names, len(messages), True, False, False, Outcome.NOTHING, []))
            return
        commit = txn.commit()
        await self.called(number, names, len(messages), commit, keyed=key is not None, transaction=True, ordered=not early)

    async def broadcast(self, rng: random.Random) -> None:
        names = [name for side in self.load.sides for name in side]
        while not self.stopping.is_set():
            (message,), number = self.messages(rng, names[:1], 1)
            chosen = rng.sample(names, rng.randint(1, len(names)))
            key = ResourceKey("collection", str(rng.randrange(3)), shared=rng.random() < 0.3)
            copies = BroadcastMessage(vchannels=chosen, payload=message.payload, resource_keys=[key])
            ids, why = [], ""
            try:
                result = await self.log.broadcast().append(copies, wait=rng.random() < 0.7)
            except ResourceAcquiredError as error:
                outcome, why = Outcome.NOTHING, str(error)
            except UnknownOutcomeError as error:
                outcome, why = Outcome.UNKNOWN, str(error)
            else:
                outcome = Outcome.DONE
                ids = [str(one.message_id) for one in result.append_results.values()]
            await self.record(Call(number, chosen, 1, False, True, False, outcome, ids, why))

    def messages(self, rng: random.Random, names: list[str], count: int) -> tuple[list[Message], int]:
        """Returns the messages of the next call, and its number."""
        self.numbers += 1
        number, client = self.numbers, self.load.client
        return [
            Message(rng.choice(names), payload(client, number, index, count, rng.randbytes(rng.randrange(300)))) for index in range(count)
        ], number

    async def called(
        self,
        number: int,
        names: list[str],
        count: int,
        call: Awaitable[Any],
        *,
        keyed: bool = False,
        transaction: bool = False,
        ordered: bool = True,
    ) -> None:
        ids, why = [], ""
        try:
            result = await call
        except UnknownOutcomeError as error:
            if keyed:
                raise
            outcome, why = Outcome.UNKNOWN, str(error)
        except TransactionExpiredError as error:
            outcome, why = Outcome.NOTHING, str(error)
        else:
            outcome = Outcome.DONE
            ids = [] if result.message_id is None else [str(result.message_id)]
        await self.record(Call(number, names, count, transaction, False, ordered, outcome, ids, why))

    async def record(self, call: Call) -> None:
        self.report.calls.append(call)
        if len(self.report.calls) % TOLD_EVERY == 0:
            await self.tell(len(self.report.calls))

    # -- readers

    async def scan(self, number: int) -> None:
        """Reads a side from the first to the last message."""
        ids, ends = self.report.scanned[number], 0
        async with self.log.read(self.load.sides[number]) as scanner:
            async for message in scanner:
                ids.append(str(message.message_id))
                ends += is_end(message)
                if ends == len(self.load.sides[number]):
                    return

    async def resume(self, number: int) -> None:
        """Reads a side in short sessions, which continue where a save of an earlier one was."""
        rng = self.chance(f"cursor {number}")
        side, ends = self.load.sides[number], 0
        while True:
            session = Session(number, [], 0)
            self.report.sessions.append(session)
            seen = ends
            async with self.log.read(side, cursor=f"cursor-{self.load.client}") as scanner:
                most = rng.randint(1, 1000)
                async for message in scanner:
                    session.ids.append(str(message.message_id))
                    seen += is_end(message)
                    if rng.random() < 0.02 or seen == len(side):
                        await scanner.save()
                        session.saved, ends = len(session.ids), seen
                        if seen == len(side):
                            return
                    if len(session.ids) >= most:
                        break

    async def acknowledge(self, side: list[str]) -> None:
        """Acknowledges all copies of broadcasts."""
        ends = 0
        async with self.log.read(side) as scanner:
            async for message in scanner:
                if message.broadcast is not None:
                    await self.log.broadcast().ack(message)
                ends += is_end(message)
                if ends == len(side):
                    return


def is_end(message: ImmutableMessage) -> bool:
    """Returns whether this is the last message of a vchannel, which is never in a transaction."""
    return [body.payload for body in message.bodies()] == [END]


def show_tasks() -> None:
    """Prints what waits for what, for a client that hangs."""
    for task in asyncio.all_tasks():
        lines, waiting = [], task.get_coro()
        while (frame := getattr(waiting, "cr_frame", None)) is not None:
            lines.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
            waiting = waiting.cr_await  # type: ignore[union-attr]
        print(" > ".join(lines), file=sys.stderr)


async def run(load: Load) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, show_tasks)
    reporter, orders = await Reporter.open(), await commands()
    tell: Callable[[Any], Awaitable[None]] = reporter.tell
    async with open_wal(load.address) as log:
        client = Client(log, load, tell)
        await client.run(orders.readline())
    await tell(client.report)
    await reporter.flush()


def main() -> None:
    load = msgspec.json.decode(sys.argv[1], type=Load)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if load.uvloop else asyncio.new_event_loop) as runner:
        runner.run(run(load))


if __name__ == "__main__":
    main()
