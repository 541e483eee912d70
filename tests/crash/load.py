"""Load: the workers of a child use every call that writes to the log, and report each outcome.

Vchannels are on two sides, one per pchannel, so that transactions over several are possible on each; in every round a first append creates
one more. Operations are drawn from a generator seeded by (seed, round, worker).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from tests.crash.body import Body, Kind
from tests.crash.report import Absent, Acked, AckedEvent, Content, Delivered, Plan, Report, content
from wal import AppendResult, Latest, Message, MessageType, WALAccesser
from wal.errors import ClosedError, TransactionExpiredError

SIDES: Final = (("left-0", "left-1", "left-2"), ("right-0", "right-1", "right-2"))
"""The vchannels that every round uses; a side is on one pchannel."""

_EXCLUSIVE: Final = (MessageType.CREATE_PARTITION, MessageType.DROP_PARTITION, MessageType.MANUAL_FLUSH)

Tell = Callable[[Report], Awaitable[None]]


async def make_vchannels(log: WALAccesser) -> None:
    """Creates the missing vchannels of SIDES: a side on each of the first two pchannels."""
    there = {info.name for info in await log.vchannels()}
    pchannels = [pchannel.name for pchannel in log.statistics().pchannels]
    for side, pchannel in zip(SIDES, pchannels, strict=True):
        for name in side:
            if name not in there:
                await log.create_vchannel(name, pchannel=pchannel)


async def work(log: WALAccesser, plan: Plan, worker: int, tell: Tell) -> None:
    """Runs one worker: it performs operations and reports each outcome until the log is closed."""
    await _Worker(log, plan, worker, tell).run()


async def follow(log: WALAccesser, side: Sequence[str], tell: Tell) -> None:
    """Follows one side from its current end until the log is closed, and reports the messages that it gets."""
    async with log.read(side, deliver_policy=Latest()) as scanner:
        try:
            async for page in scanner.batches():
                events = [(str(message.message_id), message.time_tick) for message in page]
                await tell(Delivered(events, str(scanner.position)))
        except ClosedError:
            return


class _Worker:
    def __init__(self, log: WALAccesser, plan: Plan, worker: int, tell: Tell) -> None:
        self._log = log
        self._plan = plan
        self._worker = worker
        self._tell = tell
        self._op = 0
        self._rng = random.Random(f"{plan.seed} {plan.round} {worker}")
        self._vchannels = [name for side in SIDES for name in side] + [f"round-{plan.round}"]

    async def run(self) -> None:
        operations: dict[Callable[[], Awaitable[None]], int] = {
            self._append: 40,
            self._append_in_order: 10,
            self._commit_one: 15,
            self._commit_wide: 10,
            self._append_messages: 8,
            self._append_bulk: 7,
            self._roll_back: 7,
            self._append_exclusive: 3,
        }
        choices, weights = list(operations), list(operations.values())
        try:
            while True:
                self._op += 1
                await self._rng.choices(choices, weights)[0]()
        except ClosedError as error:
            # The log was closed: earlier operations have been answered, and this one was never sent.
            await self._tell(Absent(self._plan.round, self._worker, self._op, repr(error)))

    # -- operations

    async def _append(self) -> None:
        message = self._message(self._any(), Kind.PLAIN)
        await self._acked([(await self._log.raw_append(message), [message])])

    async def _append_exclusive(self) -> None:
        message = self._message(self._any(), Kind.PLAIN, message_type=self._rng.choice(_EXCLUSIVE))
        await self._acked([(await self._log.raw_append(message), [message])])

    async def _append_in_order(self) -> None:
        vchannel = self._any()
        count = self._rng.randint(2, 12)
        messages = [self._message(vchannel, Kind.SERIES, index, count) for index in range(count)]
        futures: list[asyncio.Future[AppendResult]] = []
        closed: ClosedError | None = None
        for message in messages:
            try:
                futures.append(self._log.append_nowait(message))
            except ClosedError as error:
                closed = error
                break
        results = [await future for future in futures]
        await self._acked([(result, [message]) for result, message in zip(results, messages, strict=False)])
        if closed is not None:
            self._op += 1
            raise closed

    async def _append_bulk(self) -> None:
        sides = [self._rng.choice(side) for side in SIDES]
        count = self._rng.randint(1, 60)
        lots = [[self._message(vchannel, Kind.SERIES, index, count) for index in range(count)] for vchannel in sides]
        messages = [message for lot in lots for message in lot]
        if self._rng.random() < 0.5:
            messages = [message for pair in zip(*lots, strict=True) for message in pair]
        try:
            results = await self._log.append_bulk(messages)
        except ClosedError as error:
            results = getattr(error, "results", [])  # empty when it was refused as a whole
            await self._acked([(result, [message]) for result, message in zip(results, messages, strict=False)])
            self._op += 1
            raise
        await self._acked([(result, [message]) for result, message in zip(results, messages, strict=True)])

    async def _append_messages(self) -> None:
        vchannels = [self._rng.choice(side) for side in SIDES]
        counts = [self._rng.randint(1, 4) for _ in vchannels]
        groups = []
        for vchannel, count in zip(vchannels, counts, strict=True):
            kind = Kind.TXN if count > 1 else Kind.PLAIN
            groups.append((self._op, [self._message(vchannel, kind, index, count) for index in range(count)]))
            self._op += 1
        try:
            responses = await self._log.append_messages(*(message for _, group in groups for message in group))
            outcomes = [responses[0], responses[counts[0]]]
        except ClosedError as error:
            outcomes = [error, error]
        closed: ClosedError | None = None
        for (op, group), outcome in sorted(zip(groups, outcomes, strict=True), key=lambda pair: getattr(pair[1], "time_tick", 0)):
            if isinstance(outcome, AppendResult):
                await self._acked([(outcome, group)], op=op)
            elif isinstance(outcome, ClosedError):
                await self._tell(Absent(self._plan.round, self._worker, op, repr(outcome)))
                closed = outcome
            else:
                raise outcome
        if closed is not None:
            raise closed

    async def _commit_one(self) -> None:
        await self._commit([self._any()])

    async def _commit_wide(self) -> None:
        side = self._rng.choice(SIDES)
        await self._commit(self._rng.sample(side, self._rng.randint(2, len(side))))

    async def _commit(self, vchannels: list[str]) -> None:
        count = self._rng.randint(0 if len(vchannels) == 1 else 2, 8)
        messages = [self._message(self._rng.choice(vchannels), Kind.TXN, index, count) for index in range(count)]
        try:
            async with self._log.txn(vchannels=vchannels) as txn:
                for message in messages:
                    await txn.append(message)
        except TransactionExpiredError as error:  # an exclusive message failed it
            await self._tell(Absent(self._plan.round, self._worker, self._op, repr(error)))
            return
        assert txn.result is not None
        await self._acked([(txn.result, messages)])

    async def _roll_back(self) -> None:
        vchannels = list(self._rng.choice(SIDES))
        txn = await self._log.txn(vchannels=vchannels)
        try:
            for index in range(self._rng.randint(0, 5)):
                await txn.append(self._message(self._rng.choice(vchannels), Kind.ROLLED_BACK, index, 5))
        except TransactionExpiredError:  # already expired: rolling it back raises nothing
            pass
        await txn.rollback()

    # -- shared helpers

    def _any(self) -> str:
        return self._rng.choice(self._vchannels)

    def _message(self, vchannel: str, kind: Kind, index: int = 0, count: int = 1, *, message_type: MessageType | None = None) -> Message:
        rng = self._rng
        body = Body(self._plan.round, self._worker, self._op, kind, index, count, vchannel)
        payload = body.payload(rng, int(self._plan.filler_bytes_max * rng.random() ** 3))
        properties = {"op": str(self._op), "straße": "💾" * rng.randint(0, 9)} if rng.random() < 0.3 else {}
        chosen = message_type or rng.choice((MessageType.INSERT, MessageType.DELETE))
        return Message(vchannel, payload, message_type=chosen, properties=properties)

    async def _acked(self, results: list[tuple[AppendResult, list[Message]]], *, op: int | None = None) -> None:
        """Reports events of the current operation (or of `op`) whose append has returned."""
        events = [
            AckedEvent(str(result.message_id), result.time_tick, [_content(message) for message in messages])
            for result, messages in results
        ]
        if events:
            await self._tell(Acked(self._plan.round, self._worker, self._op if op is None else op, events))


def _content(message: Message) -> Content:
    return content(message.vchannel, message.message_type, message.payload, message.properties)
