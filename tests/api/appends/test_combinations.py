"""Everything at once, as services use it: keys, transactions, cursors, retention and other processes together."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest

from tests.locations import open_wal
from tests.probes import bodies, payloads, read_all
from tests.processes import Line, Other, eventually
from wal import AppendResult, ImmutableTxnMessage, Message, MessageType, ProducerKey, StartFrom, WALAccesser
from wal.errors import InvalidArgumentError, TransactionExpiredError, TruncatedError

ONE = pytest.param(1, marks=pytest.mark.soak("four pchannels show the same"))


@pytest.mark.parametrize("pchannels", [ONE, 4])
async def test_event_sourced_service(data: str, pchannels: int) -> None:
    def event(account: str, amount: int) -> bytes:
        return json.dumps({"account": account, "amount": amount}).encode()

    class Accounts:
        """An event-sourced service: it builds its state from the log, and its reads see its own writes."""

        def __init__(self, log: WALAccesser) -> None:
            self.log = log
            self.balances: dict[str, int] = {}
            self.seen = 0
            self.scanner = log.read("accounts", handler=self._apply, cursor=None)

        async def _apply(self, message: Any) -> None:
            for body in message.bodies():
                change = json.loads(body.payload)
                self.balances[change["account"]] = self.balances.get(change["account"], 0) + change["amount"]
                self.seen += 1

        async def transfer(self, number: int, source: str, target: str, amount: int) -> AppendResult:
            async with self.log.txn("accounts", idempotency_key=f"transfer {number}") as txn:
                await txn.append(event(source, -amount))
                await txn.append(event(target, amount))
            assert txn.result is not None
            return txn.result

        async def balance(self, account: str) -> int:
            await self.scanner.wait_for(await self.log.get_latest_mvcc_timestamp_if_local("accounts"))
            return self.balances.get(account, 0)

    async with open_wal(data, pchannels=pchannels) as log:
        accounts = Accounts(log)
        async with accounts.scanner:
            for number in range(50):
                await accounts.transfer(number, "a", "b", 1)
                assert await accounts.balance("b") == number + 1
            retried = await asyncio.gather(*(accounts.transfer(number, "a", "b", 1) for number in range(50)))
            assert all(result.duplicate for result in retried)
            assert await accounts.balance("a") == -50
    async with open_wal(data) as log:
        accounts = Accounts(log)
        async with accounts.scanner:
            assert await accounts.balance("b") == 50, "its state is made again from the log"
            assert (await accounts.transfer(49, "a", "b", 1)).duplicate
            assert not (await accounts.transfer(50, "a", "b", 1)).duplicate
            assert await accounts.balance("b") == 51
            assert accounts.seen == 102


@pytest.mark.parametrize("pchannels", [ONE, 4])
async def test_outbox(data: str, pchannels: int) -> None:
    """The service writes state and outbox in one transaction; a relay in another process forwards the outbox, and is killed at any
    moment."""

    async def relay_outbox(line: Line, data: str) -> None:
        async with open_wal(data, read_only=True) as log, log.read("outbox", cursor="relay") as scanner:
            async for message in scanner:
                for body in message.bodies():
                    line.tell(int(body.payload))
                await scanner.save()

    async with open_wal(data, pchannels=pchannels, segment_bytes=1 << 20, retention_bytes=1 << 20) as log:
        await log.create_vchannel("state", pchannel="p0")
        await log.create_vchannel("outbox", pchannel="p0")

        async def work(first: int, count: int) -> None:
            for number in range(first, first + count):
                async with log.txn(vchannels=["state", "outbox"], idempotency_key=ProducerKey("service", number)) as txn:
                    await txn.append(Message("state", bytes(20_000)))
                    await txn.append(Message("outbox", b"%d" % number))

        await work(0, 1)
        async with log.read("outbox", cursor="relay") as scanner:
            sent = [int(body.payload) for body in (await anext(scanner)).bodies()]
            await scanner.save()
        for round_number in range(2):
            relay = Other(relay_outbox, data)
            working = asyncio.ensure_future(work(round_number * 60 + 1, 60))
            while len(sent) < (round_number + 1) * 40:
                sent.append(await relay.hear())
            sent += await relay.kill_and_hear()  # it may have saved a position after its last report
            await working
        relay = Other(relay_outbox, data)
        while 120 not in sent:
            sent.append(await relay.hear())
        await relay.kill()
        assert sorted(set(sent)) == list(range(121)), "nothing is missed, whatever retention did"
        restarts = sum(later <= earlier for earlier, later in itertools.pairwise(sent))
        assert restarts <= 2, "it goes back only where it was killed"
        async with log.txn(vchannels=["outbox", "state"], idempotency_key=ProducerKey("service", 115)) as txn:
            await txn.append(Message("outbox", b"again"))
        assert txn.result is not None
        assert txn.result.duplicate


@pytest.mark.parametrize("pchannels", [ONE, 4])
async def test_all_in_one(data: str, pchannels: int) -> None:
    """A keyed transaction, a cursor that pins it, retention that waits, a retry after reopening, and a clean end."""
    bounds: dict[str, Any] = {"segment_bytes": 1 << 20, "retention_bytes": 2 << 20}
    async with open_wal(data, pchannels=pchannels, **bounds) as log:
        async with log.txn(vchannels=["orders"], idempotency_key="order 1") as txn:
            await txn.append(b"created")
            await txn.append(Message("orders", b"paid", properties={"by": "card"}))
        first = txn.result
        assert first is not None
        await log.raw_append(Message("orders", b"shipped"), idempotency_key=ProducerKey("shop", 1))
        async with log.read("orders", cursor="billing") as scanner:
            message = await anext(scanner)
            assert isinstance(message, ImmutableTxnMessage)
            await scanner.save()
        big = [Message("orders", bytes(1 << 18)) for _ in range(40)]
        results = await log.append_bulk(big)
        with pytest.raises(InvalidArgumentError, match="billing"):
            await log.truncate(up_to=results[-1].message_id)
    async with open_wal(data, **bounds) as log:
        async with log.txn("orders", idempotency_key="order 1") as txn:
            await txn.append(b"created again")
        assert txn.result is not None
        assert txn.result.duplicate
        assert txn.result.message_id == first.message_id
        again = await log.raw_append(Message("orders", b"x"), idempotency_key=ProducerKey("shop", 1))
        assert again.duplicate
        async with log.read("orders", cursor="billing", follow=False) as scanner:
            assert bodies([await anext(scanner)]) == [b"shipped"]
            assert len([message async for message in scanner]) == 40
            await scanner.save()
        await log.append_bulk(big[:4])

        async def dropped() -> bool:
            try:
                await read_all(log, "orders", deliver_policy=StartFrom(first.message_id))
            except TruncatedError as error:
                assert error.earliest is not None
                return True
            return False

        await eventually(dropped)
        assert len(await payloads(log, "orders", cursor="billing")) == 4
        async with log.txn("orders", idempotency_key="order 1") as txn:
            await txn.append(b"created again")
        assert txn.result is not None
        assert txn.result.duplicate, "the window outlives what it names"


async def test_exclusive_messages_and_keys(log: WALAccesser) -> None:
    """An append that a dropped collection failed was not written: its key is free."""
    txn = await log.txn("orders", idempotency_key="k")
    await txn.append(b"lost")
    exclusive = await log.raw_append(Message("orders", b"drop", message_type=MessageType.DROP_COLLECTION), idempotency_key="drop")
    with pytest.raises(TransactionExpiredError):
        await txn.commit()
    again = await log.raw_append(Message("orders", b"drop", message_type=MessageType.DROP_COLLECTION), idempotency_key="drop")
    assert again.duplicate
    assert again.message_id == exclusive.message_id
    assert not (await log.raw_append(Message("orders", b"1"), idempotency_key="k")).duplicate


async def test_duplicate_exclusive_message_fails_no_transaction(log: WALAccesser) -> None:
    message = Message("orders", b"drop", message_type=MessageType.DROP_COLLECTION)
    await log.raw_append(message, idempotency_key="drop")
    async with log.txn("orders") as txn:
        await txn.append(b"1")
        assert (await log.raw_append(message, idempotency_key="drop")).duplicate
        await txn.append(b"2")
    assert await payloads(log, "orders") == [b"drop", b"1", b"2"]


async def test_keys_with_barriers(log: WALAccesser) -> None:
    tick = await log.allocate_time_tick()
    first = await log.raw_append(Message("orders", b"1"), barrier_time_tick=tick, idempotency_key="k")
    assert first.time_tick > tick
    waits = log.append_nowait(Message("orders", b"2"), barrier_time_tick=first.time_tick + (30 << 18), idempotency_key="w")
    shares = await log.raw_append(Message("orders", b"3"), idempotency_key="w")
    result = await waits
    assert result.duplicate != shares.duplicate, "one of them was written"
    assert result.message_id == shares.message_id
    assert len(await payloads(log, "orders")) == 2


async def test_everything_in_one_process_at_once(data: str) -> None:
    """Writers use keys and retries, readers use cursors, and retention runs: each cursor's reads have no gap and no duplicate."""
    async with open_wal(data, pchannels=4, segment_bytes=1 << 20, retention_bytes=1 << 20) as log:
        names = [f"v{number}" for number in range(8)]
        count = 60

        async def write(name: str) -> None:
            for number in range(count):
                key: Any = f"{name} {number}" if number % 2 else ProducerKey(name, number)
                message = Message(name, b"%d" % number + b" " * 10_000)
                results = await asyncio.gather(*(log.raw_append(message, idempotency_key=key) for _ in range(2)))
                assert sum(not result.duplicate for result in results) == 1
                assert results[0].message_id == results[1].message_id

        async def read(name: str) -> list[int]:
            seen: list[int] = []
            while len(seen) < count:
                async with log.read(name, cursor="all") as scanner:
                    for _ in range(min(20, count - len(seen))):
                        seen.append(int((await anext(scanner)).payload))
                    await scanner.save()
            return seen

        for name in names:
            await log.raw_append(Message(name, b"begin"))
            async with log.read(name, cursor="all") as scanner:
                assert (await anext(scanner)).payload == b"begin"
                await scanner.save()
        readers = [asyncio.ensure_future(read(name)) for name in names]
        await asyncio.gather(*(write(name) for name in names))
        for seen in await asyncio.gather(*readers):
            assert seen == list(range(count))
        assert len(await log.cursors()) == 8
        assert len(await log.producers()) == 8
