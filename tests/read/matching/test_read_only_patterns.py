"""Reads with a pattern in a process that only reads, beside the writer, and after it was closed or killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import wal
from tests.locations import open_wal
from tests.probes import bodies, facts, payloads, read_all
from wal import Matching, Message, ReadPosition
from wal.errors import InvalidArgumentError, UnavailableError

ACCOUNTS = Matching("account-*")


async def spread(log: wal.WALAccesser, first: int, past: int) -> None:
    for number in range(first, past):
        await log.append(f"account-{number % 7}", b"%d" % number)


async def test_reader_beside_the_writer_sees_its_order(data: str) -> None:
    async with open_wal(data, pchannels=4) as log, open_wal(data, read_only=True) as beside:
        await spread(log, 0, 30)
        whole = list(map(facts, await read_all(log, ACCOUNTS)))
        assert list(map(facts, await read_all(beside, ACCOUNTS))) == whole
        async with beside.read(ACCOUNTS) as scanner:
            assert [int((await anext(scanner)).payload) for _ in range(30)] == list(range(30))
            await log.append("account-new", b"30")
            assert (await anext(scanner)).payload == b"30"


async def test_position_goes_on_in_the_other_process(data: str) -> None:
    async with open_wal(data, pchannels=4) as log, open_wal(data, read_only=True) as beside:
        await spread(log, 0, 20)
        async with beside.read(ACCOUNTS, follow=False) as scanner:
            for at in range(20):
                await anext(scanner)
                position = ReadPosition.parse(str(scanner.position))
                assert [int(each) for each in await payloads(log, ACCOUNTS, resume=position)] == list(range(at + 1, 20))


async def test_closed_log_is_read_to_its_end(data: str) -> None:
    async with open_wal(data, pchannels=4) as log:
        await spread(log, 0, 20)
        await log.drop_vchannel("account-3")
    async with open_wal(data, read_only=True) as beside:
        assert [int(each) for each in await payloads(beside, ACCOUNTS)] == [number for number in range(20) if number % 7 != 3]


async def test_drop_by_the_writer_leaves_the_read_going(data: str) -> None:
    async with open_wal(data) as log, open_wal(data, read_only=True) as beside:
        await log.append_bulk([Message(f"account-{number % 3}", b"%d" % number) for number in range(9)])
        async with beside.read(ACCOUNTS) as scanner:
            assert (await anext(scanner)).payload == b"0"
            await log.drop_vchannel("account-1")
            await beside.vchannels()  # what the writer has dropped is known here from now on
            await log.append("account-2", b"last")
            assert bodies([await anext(scanner) for _ in range(6)]) == [b"2", b"3", b"5", b"6", b"8", b"last"]


def work(report: Any, place: str) -> Any:
    async def run() -> None:
        async with open_wal(place, pchannels=2, time_tick_interval_s=3600.0) as log:
            for name, pchannel in (("account-a", "p0"), ("account-b", "p1")):
                await log.create_vchannel(name, pchannel=pchannel)
            await log.append("account-a", b"first")
            await log.append("account-b", b"second")
            report("appended")
            await log.append("account-a", b"killed")

    return run()


async def test_log_of_a_killed_writer_names_the_remedy(tmp_path: Path, wal_crash: Any) -> None:
    """Its pchannels end at different ticks, and what a recovery finds may lie between."""
    place = str(tmp_path / "data")
    assert wal_crash(work, place, at="append", number=3) == ["appended"]
    async with open_wal(place, read_only=True) as beside:
        with pytest.raises(UnavailableError, match=r"ends at tick .* was killed.*: open the log for writing once"):
            await read_all(beside, ACCOUNTS)
    async with open_wal(place):
        pass
    async with open_wal(place, read_only=True) as beside:
        assert (await payloads(beside, ACCOUNTS))[:2] == [b"first", b"second"]


async def test_cursor_is_used_and_not_saved(data: str) -> None:
    async with open_wal(data, pchannels=4) as log, open_wal(data, read_only=True) as beside:
        await spread(log, 0, 9)
        async with log.read(ACCOUNTS, cursor="sums") as scanner:
            for _ in range(4):
                await anext(scanner)
            await scanner.save()
        assert [(info.name, info.pattern) for info in await beside.cursors()] == [("sums", "account-*")]
        async with beside.read(ACCOUNTS, cursor="sums") as scanner:
            assert (await anext(scanner)).payload == b"4"
            with pytest.raises(InvalidArgumentError, match=r"saved by the process that writes the log.*: store `scanner.position`"):
                await scanner.save()
        assert [int(each) for each in await payloads(log, ACCOUNTS, cursor="sums")] == [4, 5, 6, 7, 8]
