"""Cursors of other processes: a cursor saved in one process is valid and pins the log in the other, in both directions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.probes import payloads
from tests.processes import Line, Other
from tests.read.readers import numbered, rest, take, the_cursor
from wal import Matching, Message, open_wal
from wal.errors import InvalidArgumentError, TruncatedError

SUBJECTS = pytest.mark.parametrize("subject", ["orders", Matching("order*")], ids=["names", "pattern"])


@SUBJECTS
async def test_killed_save_leaves_the_old_or_the_new(data: str, subject: str | Matching) -> None:
    async with open_wal(data) as log:
        await numbered(log, 100)
        for _ in range(5):
            saver = Other(save_for_ever, data, subject)
            told = await saver.hear()
            await saver.kill()
            assert [info.name for info in await log.cursors()] == ["billing"]
            left = await rest(log, subject, cursor="billing")
            assert left == list(range(100))[-len(left) :]
            assert len(left) <= 100 - told
            await log.delete_cursor("billing")


async def save_for_ever(line: Line, data: str, subject: str | Matching) -> None:
    async with open_wal(data, read_only=True) as log, log.read(subject, cursor="billing") as scanner:
        for number in range(1, 100):
            await anext(scanner)
            await scanner.save()
            if number == 3:
                line.tell(number)
        while True:
            await scanner.save()


async def read_some(line: Line, data: str, count: int, cursor: str, subject: str | Matching = "orders") -> None:
    async with open_wal(data, read_only=True) as log, log.read(subject, cursor=cursor) as scanner:
        seen = [int((await anext(scanner)).payload) for _ in range(count)]
        await scanner.save()
        line.tell((seen, str(scanner.position)))


@SUBJECTS
async def test_another_process_saves_and_goes_on(data: str, subject: str | Matching) -> None:
    async with open_wal(data) as log:
        await numbered(log, 10)
        for expected in ([0, 1, 2], [3, 4, 5], [6, 7, 8]):
            other = Other(read_some, data, 3, "elsewhere", subject)
            seen, position = await other.hear()
            await other.end()
            assert seen == expected
            assert str((await the_cursor(log, "elsewhere")).position) == position
        assert await rest(log, subject, cursor="elsewhere") == [9]
        assert await take(log, 1, subject, cursor="elsewhere") == [9]
        await numbered(log, 2, first=10)
        other = Other(read_some, data, 2, "elsewhere", subject)
        assert (await other.hear())[0] == [10, 11], "and what this process saved holds there"
        await other.end()


@SUBJECTS
async def test_two_processes_save_the_same_cursor(data: str, subject: str | Matching) -> None:
    async def save_each(line: Line, data: str, first: int, subject: str | Matching) -> None:
        async with open_wal(data, read_only=True) as log, log.read(subject, follow=False, cursor="shared") as scanner:
            said = []
            async for _ in scanner:
                await scanner.save()
                said.append(str(scanner.position))
            line.tell(said[first:])

    async with open_wal(data) as log:
        await numbered(log, 40)
        others = [Other(save_each, data, first, subject) for first in (0, 1)]
        told = [set(await other.hear()) for other in others]
        for other in others:
            await other.end()
        info = await the_cursor(log, "shared")
        assert str(info.position) in told[0] | told[1]
        assert not list(Path(data, "cursors").rglob("*tmp*")), "nothing half done is left"


@SUBJECTS
async def test_cursor_of_another_process_pins_the_log(data: str, subject: str | Matching) -> None:
    async with open_wal(data) as log:
        results = await numbered(log, 10)
        other = Other(read_some, data, 3, "elsewhere", subject)
        await other.hear()
        await other.end()
        with pytest.raises(InvalidArgumentError, match="elsewhere"):
            await log.truncate(up_to=results[3].message_id)
        assert await rest(log) == list(range(10)), "refused whole"
        await log.truncate(up_to=results[2].message_id)
        assert await rest(log, subject, cursor="elsewhere") == list(range(3, 10))
        deleter = Other(delete_cursor, data, "elsewhere")
        await deleter.hear()
        await deleter.end()
        await log.truncate(up_to=results[8].message_id)
        assert await rest(log) == [9]


async def delete_cursor(line: Line, data: str, name: str) -> None:
    async with open_wal(data, read_only=True) as log:
        await log.delete_cursor(name)
        line.tell(len(await log.cursors()))


@SUBJECTS
async def test_stale_cursor_is_stale_in_other_processes(data: str, subject: str | Matching) -> None:
    async def read_stale(line: Line, data: str, cursor: str, subject: str | Matching) -> None:
        async with open_wal(data, read_only=True) as log:
            try:
                await rest(log, subject, cursor=cursor)
            except TruncatedError:
                line.tell("stale")
            else:
                line.tell("read")

    async with open_wal(data, cursor_lag_bytes_max=1 << 20) as log:
        await numbered(log, 10)
        other = Other(read_some, data, 3, "lazy", subject)
        await other.hear()
        await other.end()
        await log.append_bulk([Message("orders", bytes(1 << 18)) for _ in range(16)])
        assert (await the_cursor(log, "lazy")).stale
        reader = Other(read_stale, data, "lazy", subject)
        assert await reader.hear() == "stale"
        await reader.end()
        await log.delete_cursor("lazy")
        other = Other(read_some, data, 3, "lazy", subject)
        assert (await other.hear())[0] == [0, 1, 2]
        await other.end()


async def test_cursor_deleted_by_another_process_under_its_reader(data: str) -> None:
    async with open_wal(data) as log:
        await numbered(log, 10)
        async with log.read("orders", cursor="billing") as scanner:
            await anext(scanner)
            await scanner.save()
            deleter = Other(delete_cursor, data, "billing")
            assert await deleter.hear() == 0
            await deleter.end()
            assert await log.cursors() == []
            assert int((await anext(scanner)).payload) == 1
            await scanner.save()
        assert await rest(log, cursor="billing") == list(range(2, 10))


async def test_stopped_saver_holds_no_writer_up(data: str) -> None:
    """A process is stopped in the middle of its saves, perhaps while it holds their lock: appends, the close and the next opening still
    work."""
    log = await open_wal(data, segment_bytes=1 << 20, retention_bytes=1 << 20)
    await numbered(log, 100)
    saver = Other(save_for_ever, data, "orders")
    await saver.hear()
    await saver.stop()
    async with asyncio.timeout(60):
        await log.append_bulk([Message("other", bytes(1 << 18)) for _ in range(12)])
        for _ in range(20):
            await log.raw_append(Message("other", b"1"))
    async with asyncio.timeout(60):
        await log.close()
        async with open_wal(data) as log:
            assert (await payloads(log, "other"))[-20:] == [b"1"] * 20
    saver.cont()
    await saver.kill()
    async with open_wal(data) as log:
        left = await rest(log, cursor="billing")
        assert left == list(range(100 - len(left), 100))
        await log.delete_cursor("billing")
