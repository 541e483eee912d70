"""Reads with a pattern while vchannels are dropped and recreated: a dropped one leaves silently."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import wal
from tests.locations import open_wal
from tests.probes import bodies, grouped, local, made_on, payloads, read_all, turns
from wal import Matching, Message
from wal.errors import StorageError

pytestmark = pytest.mark.everywhere

ACCOUNTS = Matching("account-*")


async def three(log: wal.WALAccesser) -> None:
    for number in range(9):
        await log.append(f"account-{number % 3}", b"%d" % number)


async def test_dropped_vchannel_is_not_read(log4: wal.WALAccesser) -> None:
    await three(log4)
    await log4.drop_vchannel("account-1")
    assert await payloads(log4, ACCOUNTS) == [b"0", b"2", b"3", b"5", b"6", b"8"]


async def test_dropped_vchannel_stays_unread_after_a_restart(data: str) -> None:
    async with open_wal(data, pchannels=4) as log:
        await three(log)
        await log.drop_vchannel("account-1")
    async with open_wal(data) as log:
        assert await payloads(log, ACCOUNTS) == [b"0", b"2", b"3", b"5", b"6", b"8"]
        await log.append("account-1", b"again")
        assert await payloads(log, ACCOUNTS) == [b"0", b"2", b"3", b"5", b"6", b"8", b"again"]


async def test_recreated_vchannel_shows_its_own_messages_alone(log: wal.WALAccesser) -> None:
    await log.append("account-1", b"old")
    await log.drop_vchannel("account-1")
    await log.append("account-1", b"new")
    assert await payloads(log, ACCOUNTS) == [b"new"]


async def test_drop_leaves_an_open_read_going(log4: wal.WALAccesser) -> None:
    await three(log4)
    async with log4.read(ACCOUNTS) as scanner:
        assert [(await anext(scanner)).payload for _ in range(4)] == [b"0", b"1", b"2", b"3"]
        await log4.drop_vchannel("account-1")
        await log4.append("account-0", b"next")
        assert [(await anext(scanner)).payload for _ in range(4)] == [b"5", b"6", b"8", b"next"]
        assert scanner.error is None


async def test_drop_takes_messages_of_the_frame_being_read(log: wal.WALAccesser) -> None:
    await log.append_bulk([Message(f"account-{number % 3}", b"%d" % number) for number in range(9)])
    async with log.read(ACCOUNTS, follow=False) as scanner:
        assert (await anext(scanner)).payload == b"0"
        await log.drop_vchannel("account-1")
        assert bodies([message async for message in scanner]) == [b"2", b"3", b"5", b"6", b"8"]


async def test_drop_takes_bodies_of_a_transaction_being_read(log: wal.WALAccesser) -> None:
    await made_on(log, "p0", "account-1", "account-2")
    await asyncio.gather(
        log.append("account-2", b"first"),
        log.append_txn(["account-1", "account-2"], [Message("account-1", b"gone"), Message("account-2", b"stays")]),
    )
    async with log.read(ACCOUNTS, follow=False) as scanner:
        assert (await anext(scanner)).payload == b"first"
        await log.drop_vchannel("account-1")
        assert grouped([message async for message in scanner]) == [[b"stays"]]


async def test_position_is_exact_after_a_drop(log4: wal.WALAccesser) -> None:
    await three(log4)
    async with log4.read(ACCOUNTS, follow=False) as scanner:
        for _ in range(4):
            await anext(scanner)
        await log4.drop_vchannel("account-1")
        assert (await anext(scanner)).payload == b"5"
        assert await payloads(log4, ACCOUNTS, resume=scanner.position) == [b"6", b"8"]


async def test_recreated_vchannel_joins_an_open_read(log4: wal.WALAccesser) -> None:
    await three(log4)
    async with log4.read(ACCOUNTS) as scanner:
        for _ in range(9):
            await anext(scanner)
        for round_ in range(3):
            await log4.drop_vchannel("account-1")
            await log4.create_vchannel("account-1", pchannel=f"p{round_}")
            await log4.append("account-1", b"%d" % round_)
            assert (await anext(scanner)).payload == b"%d" % round_


async def test_recreated_vchannel_keeps_its_own_messages(log: wal.WALAccesser) -> None:
    await log.append("account-1", b"old")
    async with log.read(ACCOUNTS) as scanner:
        dropping = asyncio.ensure_future(log.drop_vchannel("account-1"))
        await asyncio.sleep(0)
        await asyncio.gather(log.append("account-1", b"new"), log.append("account-2", b"other"), dropping)
        seen = [(await anext(scanner)).payload for _ in range(2)]
        assert sorted(seen) in ([b"new", b"other"], [b"new", b"old"])  # the old message may have come before the drop
        if b"old" in seen:
            assert (await anext(scanner)).payload == b"other"


async def test_channels_that_are_destroyed_leave(log4: wal.WALAccesser) -> None:
    names = await log4.create_channels(wal.OwnerDescription("test"), 4)
    for name in names:
        await log4.append(name, name.encode())
    async with log4.read(Matching("*")) as scanner:
        first = (await anext(scanner)).vchannel
        await log4.destroy_channels([name for name in names if name != first])
        await log4.append("account-0", b"after")
        assert (await anext(scanner)).payload == b"after"


@pytest.mark.inside
async def test_failed_drop_loses_nothing(log: wal.WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    await log.append_bulk([Message("account-1", b"%d" % number) for number in range(3)])
    directory = local(log).coordinator.vchannels.directory

    async def fail(*_: Any) -> StorageError:
        return StorageError("the metadata cannot be written")

    async with log.read(ACCOUNTS, follow=False) as scanner:
        assert (await anext(scanner)).payload == b"0"
        with monkeypatch.context() as patch:
            patch.setattr(directory, "_save", fail)
            with pytest.raises(StorageError, match="the metadata cannot be written"):
                await log.drop_vchannel("account-1")
            await turns()
        assert bodies([message async for message in scanner]) == [b"1", b"2"]
    assert bodies(await read_all(log, ACCOUNTS)) == [b"0", b"1", b"2"]
