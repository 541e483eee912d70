"""Saves that are sent again: of transactions whose key was seen before, and commits of consumers that were written before."""

from __future__ import annotations

import asyncio

import pytest

from tests.probes import local, start, turns
from tests.processes import eventually
from tests.read.cursors.test_moving import KEY, filled, home_of, left, output, reading
from tests.write.idempotency.test_write_path import Gate
from wal import All, Log, Txn
from wal.errors import InvalidRequestSeqError, NoSpaceError
from wal.message import AppendResult
from wal.write.cursor_table import CursorChange
from wal.write.cursor_writes import CursorOperation


async def test_save_moves_forward_only(log: Log) -> None:
    await filled(log)
    async with reading(log) as scanner:
        for number in (0, 1):
            await anext(scanner)
            async with log.txn("out", idempotency_key="once") as txn:
                await txn.append(b"out %d" % number)
                txn.save(scanner)
            assert txn.result.duplicate is bool(number)
    assert await output(log) == [b"out 0"]
    assert await left(log) == [b"2", b"3", b"4", b"5"]
    async with log.read("in", deliver_policy=All(), follow=False) as scanner:
        await anext(scanner)
        async with log.txn("out", idempotency_key="once") as txn:
            txn.save(scanner, "stage")
    assert await left(log) == [b"2", b"3", b"4", b"5"]


async def test_saves_in_flight_keep_their_order(log: Log) -> None:
    """Transactions that were written before, several in flight: the save of each follows the one before it."""
    await filled(log)
    async with reading(log) as scanner:
        messages = [await anext(scanner) for _ in range(6)]
    for message in messages[:4]:
        await log.append_txn("out", [message.payload], idempotency_key=message.payload.decode())
    async with reading(log) as scanner:
        txns = []
        async for message in scanner:
            txns.append(await log.txn("out", idempotency_key=message.payload.decode()))
            await txns[-1].append(message.payload)
            txns[-1].save(scanner)
        results = await asyncio.gather(*[txn.commit() for txn in txns])
    assert [result.duplicate for result in results] == [True] * 4 + [False] * 2
    assert (await output(log), await left(log)) == ([b"%d" % number for number in range(6)], [])


async def begun(log: Log, *plans: tuple[str, int], barrier_time_tick: int = 0) -> list[Txn[AppendResult]]:
    """Begins transactions of one message, each with this key, and saving a cursor after this number of messages, 0 for none.

    The first one waits for the barrier.
    """
    txns, read = [], 0
    async with reading(log) as scanner:
        for idempotency_key, saved in plans:
            txns.append(await log.txn("out", idempotency_key=idempotency_key))
            await txns[-1].append(idempotency_key.encode(), barrier_time_tick=0 if len(txns) > 1 else barrier_time_tick)
            while read < saved:
                await anext(scanner)
                read += 1
            if saved:
                txns[-1].save(scanner)
    return txns


async def test_save_follows_first_in_flight(log: Log) -> None:
    await filled(log)
    results = await asyncio.gather(*[txn.commit() for txn in await begun(log, ("0", 0), ("0", 1), ("1", 2))])
    assert [result.duplicate for result in results] == [False, True, False]
    assert (await output(log), await left(log)) == ([b"0", b"1"], [b"2", b"3", b"4", b"5"])


@pytest.mark.inside
async def test_save_fails_with_first_in_flight(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another save waits for the same one."""
    await filled(log)
    await home_of(log)
    txns = await begun(log, ("0", 0), ("0", 1), ("1", 2))
    gate = Gate(log, monkeypatch)
    commits = [start(txn.commit()) for txn in txns]
    waiting = local(log).node.pchannels["p0"].cursors._waiting
    await eventually(lambda: len(waiting.get(KEY, ())) == 2)
    gate.refuse()
    outcomes = await asyncio.gather(*commits, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [NoSpaceError, NoSpaceError, InvalidRequestSeqError]
    assert (await output(log), len(await left(log))) == ([], 6)


async def test_waiting_first_commit_waits_for_no_save(log: Log) -> None:
    """Its own save comes after that of the transaction that shares its key."""
    await filled(log)
    barrier = await log.latest_tick("in") + (50 << 18)
    txns = await begun(log, ("0", 1), ("0", 1), barrier_time_tick=barrier)
    results = await asyncio.gather(*[txn.commit() for txn in txns])
    assert [result.duplicate for result in results] == [False, True]
    assert (await output(log), len(await left(log))) == ([b"0"], 5)


@pytest.mark.inside
async def test_written_commit_outlives_a_later_failure(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer over the network sends both again, while they are in flight."""
    await filled(log)
    home = await home_of(log)
    claim = await home.claim()
    cursors = local(log).node.pchannels[home.pchannel].cursors
    gate = Gate(log, monkeypatch, home.pchannel)
    futures: list[asyncio.Future[object]] = []
    for number in (1, 2, 1, 2):
        futures.append(asyncio.get_running_loop().create_future())
        cursors.tell(CursorOperation(KEY, futures[-1], CursorChange(KEY, None, claim.fence, number, b"%d" % number)))
        await turns()
    gate.open_one()
    await futures[0]
    await turns()
    gate.refuse()
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes[1:]] == [NoSpaceError, type(None), InvalidRequestSeqError]
    await home.release(claim.fence)
    assert (await home.claim()).state == b"1"
