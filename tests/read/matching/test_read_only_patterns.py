"""Reads with a pattern in a process that only reads, beside the writer, and after it was closed or killed."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import pytest

import wal
from tests.locations import open_wal
from tests.probes import bodies, facts, local, payloads, read_all
from tests.processes import Line, Other
from wal import Matching, Message, ReadPosition
from wal.errors import InvalidArgumentError, NotLocalError, TruncatedError, UnavailableError
from wal.operate.copying import copy

ACCOUNTS = Matching("account-*")


async def spread(log: wal.WALAccesser, first: int, past: int) -> list[wal.AppendResult]:
    return [await log.append(f"account-{number % 7}", b"%d" % number) for number in range(first, past)]


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


# -- cursors that the reading process saves


async def take(log: wal.WALAccesser, count: int, cursor: str = "sums") -> list[int]:
    """Reads numbers, saves the cursor, and returns them."""
    async with log.read(ACCOUNTS, cursor=cursor) as scanner:
        numbers = [int((await anext(scanner)).payload) for _ in range(count)]
        await scanner.save()
        (info,) = [info for info in await log.cursors() if info.name == cursor]
        assert (info.pattern, info.position) == ("account-*", scanner.position)
    return numbers


async def test_saved_position_continues_everywhere(data: str) -> None:
    """Processes that read and the writer use one cursor in turn, and so do those after the log was opened again."""
    async with open_wal(data, pchannels=4) as log, open_wal(data, read_only=True) as beside:
        await spread(log, 0, 28)
        async with open_wal(data, read_only=True) as third:
            for first in range(0, 24, 6):
                assert await take(beside, 1) == [first]
                assert await take(log, 2) == [first + 1, first + 2]
                assert await take(third, 3) == [first + 3, first + 4, first + 5]
        assert await take(beside, 1) == [24]
    async with open_wal(data, read_only=True) as beside:  # without a writer
        assert await take(beside, 1) == [25]
        assert await take(beside, 1) == [26]
    async with open_wal(data) as log:
        assert await take(log, 1) == [27]
        assert await payloads(log, ACCOUNTS, cursor="sums") == []


async def test_saved_position_holds_back_every_pchannel(data: str) -> None:
    async with open_wal(data, pchannels=4) as log, open_wal(data, read_only=True) as beside:
        results = await spread(log, 0, 30)
        assert await take(beside, 10) == list(range(10))
        for result in {result.message_id.pchannel: result for result in results}.values():
            with pytest.raises(InvalidArgumentError, match=r"still needed by cursor 'sums' of .*Matching\('account-\*'\)"):
                await log.truncate(up_to=result.message_id)
        for result in results[:10]:
            await log.truncate(up_to=result.message_id)
        assert await take(beside, 10) == list(range(10, 20))
        assert await take(log, 10) == list(range(20, 30))
        for result in results:
            await log.truncate(up_to=result.message_id)


async def test_reader_sees_how_little_a_cursor_holds(data: str) -> None:
    async with open_wal(data, pchannels=2) as log:
        await log.append_bulk(Message(f"account-{number % 7}", bytes(10_000)) for number in range(30))
        last = await log.append("account-0", b"last")
        async with log.read(ACCOUNTS, cursor="sums") as scanner:
            for _ in range(30):
                await anext(scanner)
            await scanner.save()
    async with open_wal(data, read_only=True) as beside:
        (cursor,) = await beside.cursors()
        assert 0 < cursor.lag_bytes == cursor.held_bytes < 20_000
        holders = [holder for report in await beside.retention() for holder in report.holders]
        assert last.message_id.position in [holder.position for holder in holders]


@pytest.mark.parametrize("saved_by", ["reader", "writer"])
async def test_idle_cursor_survives_retention(data: str, saved_by: str) -> None:
    """Everything was read up to the last event of a segment, and ticks were promised after it, before the next segment began."""
    size = 1 << 20
    async with (
        open_wal(data, segment_bytes=size, retention_bytes=size, time_tick_interval_s=0.01) as log,
        open_wal(data, read_only=True) as beside,
    ):
        await spread(log, 0, 5)
        async with (beside if saved_by == "reader" else log).read(ACCOUNTS, cursor="sums") as scanner:
            for _ in range(5):
                await anext(scanner)
            await scanner.save()
            position = scanner.position
        assert position is not None
        async with beside.read("other", include_time_ticks=True) as scanner:
            while (await anext(scanner)).time_tick <= position.time_tick:
                pass
        for _ in range(4):
            await log.append("other", bytes(size - 2000))
        retention = local(log).node.retention
        await retention.turn()
        for opened in (log, beside):
            assert await payloads(opened, ACCOUNTS, cursor="sums") == []
        await spread(log, 5, 6)
        assert await take(beside, 1) == [5]
        await log.cursors()
        await retention.turn()
        (report,) = await log.retention()
        assert report.earliest is not None
        assert report.earliest.position > size, "the cursor holds back nothing any more"


async def test_earlier_position_is_saved(data: str) -> None:
    async with open_wal(data, pchannels=4) as log, open_wal(data, read_only=True) as beside:
        await spread(log, 0, 10)
        async with beside.read(ACCOUNTS, cursor="sums") as scanner:
            await scanner.save()
            assert (await payloads(log, ACCOUNTS, cursor="sums"))[:1] == [b"0"]
            positions = [scanner.position for _ in range(6) if await anext(scanner)]
            for at in (5, 2):
                position = positions[at]
                assert position is not None
                await scanner.save(ReadPosition.parse(str(position)))
                for opened in (log, beside):
                    assert [int(each) for each in await payloads(opened, ACCOUNTS, cursor="sums")] == list(range(at + 1, 10))


async def test_saved_position_past_a_truncation_is_refused(data: str) -> None:
    async with open_wal(data, pchannels=4) as log, open_wal(data, read_only=True) as beside:
        results = await spread(log, 0, 20)
        async with beside.read(ACCOUNTS, cursor="sums") as scanner:
            await anext(scanner)
            await log.truncate(up_to=results[15].message_id)
            with pytest.raises(TruncatedError, match=r"cannot be saved at .*: a pchannel was truncated"):
                await scanner.save()
        assert await beside.cursors() == await log.cursors() == []
        assert not list(Path(data, "cursors").glob("*"))
        gone = results[15].message_id.pchannel
        kept = [number for number, result in enumerate(results) if result.message_id.pchannel != gone or number > 15]
        assert await take(beside, 3) == kept[:3]  # events that were truncated before a read do not fail it
        assert await take(log, len(kept) - 3) == kept[3:]


async def test_name_belongs_to_a_pattern_or_to_names(data: str) -> None:
    refusal = r"cursor 'sums' is saved for {0}, and this is a read of {1}"
    pattern, other, name = r"Matching\('account-\*'\)", r"Matching\('a\*'\)", "'account-1'"
    async with open_wal(data, pchannels=4) as log, open_wal(data, read_only=True) as beside:
        await spread(log, 0, 9)
        for saving, using in ((beside, log), (log, beside), (beside, beside)):
            for first, second, saved, read in (
                (ACCOUNTS, "account-1", pattern, name),
                ("account-1", ACCOUNTS, name, pattern),
                (ACCOUNTS, Matching("a*"), pattern, other),
            ):
                async with using.read(second, cursor="sums") as begun, saving.read(first, cursor="sums") as scanner:
                    await anext(begun)
                    await anext(scanner)
                    await scanner.save()
                    if using is beside or saving is log:  # the writer finds a pin when it is asked for cursors
                        with pytest.raises(InvalidArgumentError, match=refusal.format(saved, read)):
                            await begun.save()
                with pytest.raises(InvalidArgumentError, match=refusal.format(saved, read)):
                    await payloads(using, second, cursor="sums")
                await using.delete_cursor("sums")
                assert await log.cursors() == await beside.cursors() == []


async def test_copy_of_the_log_has_the_saved_position(tmp_path: Path) -> None:
    async with open_wal(tmp_path / "data", pchannels=3) as log:
        await spread(log, 0, 9)
    async with open_wal(tmp_path / "data", read_only=True) as beside:
        assert await take(beside, 4) == [0, 1, 2, 3]
    await copy(str(tmp_path / "data"), str(tmp_path / "copy"))
    async with open_wal(tmp_path / "copy") as log:
        assert await take(log, 5) == [4, 5, 6, 7, 8]


async def test_deleted_cursor_begins_again(data: str) -> None:
    async with open_wal(data, pchannels=4) as log, open_wal(data, read_only=True) as beside:
        await spread(log, 0, 9)
        for saving, deleting in ((log, beside), (beside, beside), (beside, log)):
            assert await take(saving, 3) == [0, 1, 2]
            await deleting.delete_cursor("sums")
            assert await beside.cursors() == await log.cursors() == []
            for opened in (beside, log):
                assert (await payloads(opened, ACCOUNTS, cursor="sums"))[:1] == [b"0"]
    async with open_wal(data) as log:
        assert await log.cursors() == []


async def test_cursor_of_a_consumer_is_not_saved(data: str) -> None:
    async with open_wal(data, pchannels=4) as log, open_wal(data, read_only=True) as beside:
        await spread(log, 0, 9)
        async with beside.read(ACCOUNTS, cursor="sums") as scanner:
            await anext(scanner)
            await scanner.save()
            handled: list[bytes] = []
            async with log.consume(ACCOUNTS, lambda delivery: handled.append(delivery.message.payload), cursor="sums") as consumer:
                await consumer.caught_up()
            assert handled == [b"%d" % number for number in range(1, 9)]
            with pytest.raises(NotLocalError, match="moves with transactions"):
                await scanner.save()
        assert await payloads(beside, ACCOUNTS, cursor="sums") == []


# -- processes that are killed


async def append_on(line: Line, data: str, first: int) -> None:
    """Appends numbers, reports each, and truncates what no cursor needs, except the newest."""
    async with open_wal(data, pchannels=2, time_tick_interval_s=0.01) as log:
        left: list[wal.AppendResult] = []
        for number in itertools.count(first):
            left.append(await log.append(f"account-{number % 7}", b"%d" % number))
            line.tell(number)
            with contextlib.suppress(InvalidArgumentError):
                for result in left[:-1]:
                    await log.truncate(up_to=result.message_id)
                    left.remove(result)


async def save_on(line: Line, data: str) -> None:
    """Reads on from the cursor, saves it after each number, and reports that."""
    async with open_wal(data, read_only=True) as beside, beside.read(ACCOUNTS, cursor="sums") as scanner:
        async for message in scanner:
            await scanner.save()
            line.tell(int(message.payload))


@pytest.mark.parametrize("first_killed", ["writer", "reader"])
async def test_killed_processes_lose_no_saved_position(data: str, first_killed: str, soak: int) -> None:
    """The writer truncates whatever it may, and is killed, and so is the process that saves: the cursor continues after its last save."""
    async with open_wal(data, pchannels=2), open_wal(data, read_only=True) as beside, beside.read(ACCOUNTS, cursor="sums") as scanner:
        await scanner.save()
    appended = saved = -1
    for saves in (3, 8, 5) * soak:
        writer, reader = Other(append_on, data, appended + 1), Other(save_on, data)
        for _ in range(saves):
            saved = await reader.hear()
        killed = {}
        for each in (writer, reader) if first_killed == "writer" else (reader, writer):
            killed[each] = await each.kill_and_hear()
        appended, saved = max([appended, *killed[writer]]), max([saved, *killed[reader]])
        async with open_wal(data) as log:
            newest = int((await payloads(log, ACCOUNTS))[-1])
            numbers = [int(each) for each in await payloads(log, ACCOUNTS, cursor="sums")]
        assert newest in (appended, appended + 1), "the last append may not have been reported"
        assert numbers in [list(range(first, newest + 1)) for first in (saved + 1, saved + 2)], "nor the last save"
        appended = newest
