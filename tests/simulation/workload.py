"""Workload: the calls of a run's clients, recorded in a history: appends, keyed appends, transactions, broadcasts, reads and MVCC answers.

An append without a key is made once, whatever comes of it. An append with a key is repeated until it has a result, and so is a refused
call. A reader follows its vchannel from the beginning, saves a cursor now and then, and continues from a cursor or a position when its
scanner ends, or at random.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final

from tests.simulation.history import Follower, History, Kind, Operation, Outcome
from tests.simulation.world import World
from wal import BroadcastMessage, Message, MessageID, WALAccesser, timestamp
from wal.errors import WALError

VCHANNELS: Final = tuple(f"v{number}" for number in range(6))
_RETRY_S: Final = 0.2


class Workload:
    """The clients of one world. `start` them; `stop` lets them finish what they do."""

    def __init__(self, world: World, history: History, *, clients: int = 2, pause_s: float = 0.4, scheduled: bool = False) -> None:
        """`pause_s` is the longest pause between two appends of a client to a vchannel.

        With `scheduled` clients also append at later times.
        """
        self._scheduled = scheduled
        self.logs: dict[str, WALAccesser] = {}
        """The logs that the clients have opened, by the name of the client."""
        self._world = world
        self._history = history
        self._random = random.Random(world.loop.random.random())
        self._stopping = False
        self._pause_s = pause_s
        self.newest: dict[str, MessageID] = {}
        """The id of the newest message that was acknowledged, by vchannel."""
        self.paused: bool = False
        """Whether the clients begin nothing new by themselves."""
        self._names = tuple(f"client{number}" for number in range(clients))
        self._numbers: dict[str, int] = {}
        self._tasks: list[asyncio.Task[object]] = []
        self._ends: dict[str, bytes] = {}
        """The last message of each vchannel, which readers wait for."""

    @property
    def all_open(self) -> bool:
        """Whether every client has opened the log."""
        return len(self.logs) == len(self._names)

    def start(self) -> None:
        self._tasks = [self._world.client(name, self._client(name)) for name in self._names]

    def stop(self) -> None:
        """Lets the clients finish what they do, write one last message to each vchannel, and read up to it."""
        self._stopping = True

    async def wait(self) -> None:
        await asyncio.gather(*self._tasks)

    def _client(self, name: str) -> Callable[[WALAccesser], Awaitable[None]]:
        async def work(log: WALAccesser) -> None:
            self.logs[name] = log
            mine = VCHANNELS[self._names.index(name) :: len(self._names)]
            readers = [asyncio.ensure_future(self._follow(name, log, vchannel)) for vchannel in VCHANNELS]
            writers = [self._write(name, vchannel) for vchannel in VCHANNELS]
            schedulers = [self._schedule(name, vchannel) for vchannel in VCHANNELS if self._scheduled]
            await asyncio.gather(*writers, *schedulers, self._broadcast(name), self._ask(name), self._read_all(name))
            for vchannel in mine:
                # Before the append: a reader may see the message before the append returns, and no other follows.
                payload = self._ends[vchannel] = f"end of {vchannel}".encode()
                while (await self.append(name, vchannel, Kind.KEYED, payload)).outcome is not Outcome.DONE:
                    await asyncio.sleep(_RETRY_S)
            await asyncio.gather(*readers)

        return work

    # -- writing

    async def _write(self, client: str, vchannel: str) -> None:
        draw = self._random
        while not self._stopping:
            kind = draw.choices((Kind.APPEND, Kind.KEYED, Kind.TXN), (4, 3, 1))[0]
            operation = await self.append(client, vchannel, kind)
            while operation.outcome is not Outcome.DONE and kind is Kind.KEYED:
                await asyncio.sleep(_RETRY_S)  # the same key again: nothing is written twice
                operation = await self.append(client, vchannel, kind, operation.payloads[0])
            await self._rest(self._pause_s * draw.random() ** 2)

    async def append(self, client: str, vchannel: str, kind: Kind, payload: bytes | None = None, *, padding: bytes = b"") -> Operation:
        """Makes an append, keyed append or transaction, of a new payload, with this padding, unless one is given."""
        log, payload = self.logs[client], payload or self._payload(client, kind) + padding
        payloads = tuple(b"%s.%d" % (payload, number) for number in range(3)) if kind is Kind.TXN else (payload,)
        operation = self._begin(kind, client, (vchannel,), payloads)

        async def append() -> None:
            if kind is Kind.TXN:
                async with log.txn(vchannel) as txn:
                    for body in payloads:
                        await txn.append(Message(vchannel, body))
                operation.ticks = {vchannel: txn.result.time_tick}
            else:
                key = payload[:100].decode() if kind is Kind.KEYED else None
                result = await log.raw_append(Message(vchannel, payload), idempotency_key=key)
                operation.ticks, self.newest[vchannel] = {vchannel: result.time_tick}, result.message_id

        await self._noted(operation, append())
        if kind is Kind.KEYED and operation.outcome is Outcome.REFUSED:
            operation.outcome = Outcome.UNKNOWN  # an earlier attempt with the key may have been carried out
        return operation

    async def _schedule(self, client: str, vchannel: str) -> None:
        """Schedules one message after the other, and asks by its key until it is in the log."""
        draw = self._random
        while not self._stopping:
            payload, acknowledged = self._payload(client, Kind.SCHEDULED), False
            due = timestamp.to_datetime(timestamp.compose(int(self._world.loop.wall() * 1000) + draw.randrange(3000)))
            operation = await self._schedule_once(client, vchannel, payload, due)
            while not operation.ticks:
                acknowledged = acknowledged or operation.outcome is Outcome.DONE
                await asyncio.sleep(_RETRY_S)
                operation = await self._schedule_once(client, vchannel, payload, due, again=acknowledged)
            await self._rest(self._pause_s * draw.random())

    async def _schedule_once(self, client: str, vchannel: str, payload: bytes, due: datetime, *, again: bool = False) -> Operation:
        """Schedules a message, `again` if it was acknowledged before. Its ticks are known once it is in the log."""
        operation = self._begin(Kind.SCHEDULED, client, (vchannel,), (payload,))
        operation.due_tick = timestamp.from_datetime(due)

        async def append() -> None:
            result = await self.logs[client].append(vchannel, payload, idempotency_key=payload.decode(), deliver_at=due)
            if again and not result.duplicate:
                self._history.faults.append(f"{payload!r} had been scheduled on {vchannel}, and was lost: {operation}")
            if result.appended is not None:
                operation.ticks = {vchannel: result.appended.time_tick}

        await self._noted(operation, append())
        if operation.outcome is Outcome.REFUSED:
            operation.outcome = Outcome.UNKNOWN  # an earlier attempt with the key may have been carried out
        return operation

    async def _broadcast(self, client: str) -> None:
        draw = self._random
        while not self._stopping:
            await self.broadcast(client, tuple(sorted(draw.sample(VCHANNELS, 3))))
            await self._rest(5 * self._pause_s * draw.random())

    async def broadcast(self, client: str, vchannels: tuple[str, ...]) -> Operation:
        """Broadcasts a new payload."""
        payload = self._payload(client, Kind.BROADCAST)
        operation = self._begin(Kind.BROADCAST, client, vchannels, (payload,))

        async def append() -> None:
            message = BroadcastMessage(vchannels=vchannels, payload=payload, needs_ack=False)
            result = await self.logs[client].broadcast().append(message)
            operation.ticks = {name: each.time_tick for name, each in result.append_results.items()}

        await self._noted(operation, append())
        return operation

    # -- reading

    async def _ask(self, client: str) -> None:
        draw = self._random
        while not self._stopping:
            await self.ask(client, draw.choice(VCHANNELS))
            await self._rest(0.5 * self._pause_s * draw.random())

    async def ask(self, client: str, vchannel: str) -> Operation:
        """Asks for the moment up to which a vchannel is complete (MVCC)."""
        operation = self._begin(Kind.MVCC, client, (vchannel,), ())

        async def ask() -> None:
            operation.ticks = {vchannel: await self.logs[client].latest_tick(vchannel)}

        await self._noted(operation, ask())
        return operation

    async def _read_all(self, client: str) -> None:
        draw = self._random
        while not self._stopping:
            await self.read(client, draw.choice(VCHANNELS))
            await self._rest(5 * self._pause_s * draw.random())

    async def read(self, client: str, vchannel: str) -> Operation:
        """Reads a vchannel from its beginning to its end."""
        operation = self._begin(Kind.READ, client, (vchannel,), ())

        async def read() -> None:
            async with self.logs[client].read(vchannel, follow=False) as scanner:
                operation.payloads = tuple([body.payload async for message in scanner for body in message.bodies()])

        await self._noted(operation, read())
        return operation

    async def _follow(self, client: str, log: WALAccesser, vchannel: str) -> None:
        follower = Follower(client, vchannel)
        self._history.followers.append(follower)
        position, draw = None, self._random
        while not self._has_ended(follower):
            until = len(follower.seen) + draw.randrange(20, 80)
            by_cursor = draw.random() < 0.3 and position is not None
            try:
                if by_cursor:
                    async with log.read(vchannel, cursor=f"of-{client}") as scanner:
                        await scanner.save(position)
                options: dict[str, Any] = {"cursor": f"of-{client}"} if by_cursor else {"resume": position}
                async with log.read(vchannel, **options) as scanner:
                    async for message in scanner:
                        follower.seen += [(body.payload, message.time_tick) for body in message.bodies()]
                        position = scanner.position
                        if self._has_ended(follower) or (len(follower.seen) > until and not self._stopping):
                            break
            except WALError as error:
                self._world.say(f"the reader of {vchannel} goes on after {error!r}")
                await asyncio.sleep(_RETRY_S)
            follower.resumed += 1

    def _has_ended(self, follower: Follower) -> bool:
        end = self._ends.get(follower.vchannel)
        return end is not None and any(payload == end for payload, _ in follower.seen)

    async def _rest(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        while self.paused:
            await asyncio.sleep(_RETRY_S)

    # -- notes

    def _payload(self, client: str, kind: Kind) -> bytes:
        number = self._numbers[client] = self._numbers.get(client, 0) + 1
        return f"{client} {kind.name.lower()} {number}".encode()

    def _begin(self, kind: Kind, client: str, vchannels: tuple[str, ...], payloads: tuple[bytes, ...]) -> Operation:
        operation = Operation(kind, client, vchannels, payloads, self._world.loop.time())
        self._history.operations.append(operation)
        return operation

    async def _noted(self, operation: Operation, work: Awaitable[None]) -> None:
        try:
            await work
        except WALError as error:
            operation.outcome = Outcome.UNKNOWN if error.outcome_unknown else Outcome.REFUSED
            operation.error = repr(error)
        else:
            operation.outcome = Outcome.DONE
        operation.ended_s = self._world.loop.time()
        self._history.count(f"{operation.kind.value}: {operation.outcome.value}")
        self._world.say(str(operation))
