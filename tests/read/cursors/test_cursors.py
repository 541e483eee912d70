"""Cursors: any reader continues from a saved cursor, a cursor pins the events after it, and beyond its bounds it becomes stale."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.locations import open_wal
from tests.probes import made_on, turns
from tests.processes import eventually
from tests.read.readers import numbered, rest, take, the_cursor
from wal import All, CursorInfo, Latest, Message, MessageType, MessageTypes, ReadPosition, StartAfter, WALAccesser, timestamp
from wal.errors import ChannelNotExistError, CorruptionError, InvalidArgumentError, TruncatedError, WALError

pytestmark = pytest.mark.everywhere


async def test_reader_goes_on_behind_what_it_saved(log: WALAccesser) -> None:
    await numbered(log, 10)
    assert await take(log, 3, cursor="billing") == [0, 1, 2]
    assert await rest(log, cursor="billing") == [3, 4, 5, 6, 7, 8, 9], "it goes on where it was saved"
    assert await rest(log, cursor="billing") == [3, 4, 5, 6, 7, 8, 9], "reading without saving moves nothing"
    assert await take(log, 4, cursor="billing") == [3, 4, 5, 6]
    assert await take(log, 3, cursor="billing") == [7, 8, 9]
    assert await rest(log, cursor="billing") == []
    await numbered(log, 1, first=10)
    assert await rest(log, cursor="billing") == [10]
    assert await rest(log) == list(range(11)), "others read everything"
    assert await rest(log, cursor="audit") == list(range(11)), "cursors know nothing of each other"


async def test_without_a_saved_position_the_policy_decides(log: WALAccesser) -> None:
    results = await numbered(log, 5)
    after = StartAfter(results[2].message_id)
    assert await rest(log, cursor="new", deliver_policy=Latest()) == []
    assert await rest(log, cursor="new", deliver_policy=after) == [3, 4]
    assert await rest(log, cursor="new", deliver_policy=All()) == [0, 1, 2, 3, 4]
    assert await log.cursors() == [], "a cursor begins with its first save"
    assert await take(log, 1, cursor="new", deliver_policy=after) == [3]
    for policy in (All(), Latest(), after):
        assert await rest(log, cursor="new", deliver_policy=policy) == [4], "what was saved wins"


async def test_save_covers_pages_handed_over(log: WALAccesser) -> None:
    await numbered(log, 100)
    async with log.read("orders", cursor="pages") as scanner:
        pages = scanner.batches(size_max=7)
        assert [int(message.payload) for message in await anext(pages)] == list(range(7))
        await scanner.save()
        await anext(pages)
        position = scanner.position
        assert (await the_cursor(log, "pages")).position != position
        await scanner.save()
        assert (await the_cursor(log, "pages")).position == position
    assert (await rest(log, cursor="pages"))[0] == 14


async def test_earlier_position_of_the_scanner_can_be_saved(log: WALAccesser) -> None:
    await numbered(log, 6)
    await log.append_txn("orders", [b"6", b"7"])
    await numbered(log, 2, first=8)
    positions: list[ReadPosition] = []
    async with log.read("orders", cursor="billing", follow=False) as scanner:
        async for _ in scanner:
            assert scanner.position is not None
            positions.append(scanner.position)
        for read, position in enumerate(positions):
            await scanner.save(position)
            assert await rest(log, cursor="billing") == list(range(10))[read + (1 if read < 6 else 2) :]
        await scanner.save(positions[2])
        assert await rest(log, cursor="billing") == [3, 4, 5, 6, 7, 8, 9], "the last save counts"
        assert (await the_cursor(log, "billing")).position == positions[2]


async def test_position_of_another_log_is_not_saved(log: WALAccesser) -> None:
    await numbered(log, 5)
    async with log.read("orders", cursor="billing") as scanner:
        await anext(scanner)
        assert scanner.position is not None
        message_id = scanner.position.message_id
        replaced = msgspec.structs.replace
        beyond = replaced(message_id, position=message_id.position + (1 << 40))
        for wrong in (replaced(message_id, incarnation=message_id.incarnation + 1), beyond):
            with pytest.raises(InvalidArgumentError, match="in another log, or above the durable end"):
                await scanner.save(ReadPosition(wrong, 0))
        with pytest.raises(TypeError, match="must be a ReadPosition, not str"):
            await scanner.save(str(scanner.position))  # type: ignore[arg-type]
        assert await log.cursors() == []


async def test_handler_can_save(log: WALAccesser) -> None:
    await numbered(log, 6)
    seen: list[int] = []

    async def handle(message: object) -> None:
        seen.append(int(message.payload))  # type: ignore[attr-defined]
        if len(seen) == 3:
            await scanner.save()

    scanner = log.read("orders", cursor="handled", handler=handle, follow=False)
    async with scanner:
        await scanner.done()
    assert seen == [0, 1, 2, 3, 4, 5]
    left = await rest(log, cursor="handled")
    assert left in ([2, 3, 4, 5], [3, 4, 5]), "saved in the middle of the third: neither after it nor before it"


async def test_cursor_belongs_to_its_vchannel_set(log4: WALAccesser) -> None:
    await made_on(log4, "p1", "a", "b", "c")
    for name in ("a", "b"):
        await numbered(log4, 3, name)
    await take(log4, 1, "a", cursor="mine")
    assert await rest(log4, "b", cursor="mine") == [0, 1, 2]
    assert await rest(log4, ["a", "b"], cursor="mine") == [0, 1, 2, 0, 1, 2]
    await take(log4, 4, ["a", "b"], cursor="mine")
    assert await rest(log4, ["b", "a"], cursor="mine") == [1, 2], "a set has no order"
    assert await rest(log4, ["a"], cursor="mine") == [1, 2], "a set of one is that one"
    assert await rest(log4, ["a", "b", "c"], cursor="mine") == [0, 1, 2, 0, 1, 2]
    infos = await log4.cursors()
    assert sorted((info.name, sorted(info.vchannels)) for info in infos) == [("mine", ["a"]), ("mine", ["a", "b"])]
    await log4.delete_cursor("mine", vchannels=["b", "a"])
    assert [sorted(info.vchannels) for info in await log4.cursors()] == [["a"]]
    await take(log4, 1, ["a", "b"], cursor="mine")
    await take(log4, 1, "a", cursor="other")
    await log4.delete_cursor("mine")
    assert [info.name for info in await log4.cursors()] == ["other"], "without vchannels: all of that name, no other"


async def test_cursor_info_has_every_field(log: WALAccesser) -> None:
    await numbered(log, 10)
    async with log.read("orders", cursor="billing") as scanner:
        for _ in range(4):
            await anext(scanner)
        await scanner.save()
        saved = scanner.position
    info = await the_cursor(log, "billing")
    assert isinstance(info, CursorInfo)
    assert info.position == saved
    assert isinstance(info.position, ReadPosition)
    assert list(info.vchannels) == ["orders"]
    assert not info.stale
    await log.append_bulk([Message("orders", bytes(1 << 19)) for _ in range(4)])
    lagging = await the_cursor(log, "billing")
    assert 1 << 21 <= lagging.lag_bytes < 3 << 20
    with pytest.raises((AttributeError, TypeError)):
        lagging.stale = True  # type: ignore[misc]


async def test_cursor_passes_messages_of_other_vchannels(log: WALAccesser) -> None:
    """A vchannel is quiet and another one busy: the cursor of the quiet one's reader does not hold the log."""
    await numbered(log, 1, "quiet")
    async with log.read("quiet", cursor="slow") as scanner:
        assert int((await anext(scanner)).payload) == 0
        waiting = asyncio.ensure_future(anext(scanner))
        results = await log.append_bulk([Message("busy", bytes(1 << 18)) for _ in range(20)])
        await scanner.wait_for(results[-1].time_tick)
        await scanner.save()
        waiting.cancel()
    info = await the_cursor(log, "slow")
    assert info.lag_bytes < 1 << 18
    await log.truncate(up_to=results[-1].message_id)
    await numbered(log, 1, "quiet", first=1)
    assert await rest(log, "quiet", cursor="slow") == [1]


async def test_filtered_reader_moves_too(log: WALAccesser) -> None:
    await log.raw_append(Message("orders", b"0", message_type=MessageType.DELETE))
    results = await numbered(log, 50, first=1)
    async with log.read("orders", cursor="deletes", filters=[MessageTypes(MessageType.DELETE)], follow=False) as scanner:
        assert [message.payload async for message in scanner] == [b"0"]
        await scanner.save()
    await log.truncate(up_to=results[-1].message_id)
    assert await rest(log, cursor="deletes") == []


async def test_resume_and_cursor_exclude_each_other(log: WALAccesser) -> None:
    (result,) = await numbered(log, 1)
    position = ReadPosition(result.message_id, result.time_tick)
    with pytest.raises(InvalidArgumentError, match="resume"):
        log.read("orders", resume=position, cursor="billing")


async def test_save_needs_a_cursor(log: WALAccesser) -> None:
    await numbered(log, 1)
    async with log.read("orders") as scanner:
        await anext(scanner)
        with pytest.raises(InvalidArgumentError, match="cursor"):
            await scanner.save()


async def test_save_before_anything_was_handed_over_loses_nothing(log: WALAccesser) -> None:
    await numbered(log, 3)
    async with log.read("orders", cursor="early") as scanner:
        await scanner.save()
    assert await rest(log, cursor="early") == [0, 1, 2]


async def test_transaction_is_passed_whole(log: WALAccesser) -> None:
    async with log.txn("orders") as txn:
        for number in range(3):
            await txn.append(b"%d" % number)
    await numbered(log, 2, first=3)
    assert await take(log, 1, cursor="billing") == [0, 1, 2]
    assert await rest(log, cursor="billing") == [3, 4]


async def test_cursor_survives_reopening(data: str) -> None:
    async with open_wal(data) as log:
        await numbered(log, 5)
        await take(log, 2, cursor="billing")
        before = await the_cursor(log, "billing")
    async with open_wal(data) as log:
        assert (await the_cursor(log, "billing")).position == before.position
        assert await rest(log, cursor="billing") == [2, 3, 4]
        await log.delete_cursor("billing")
    async with open_wal(data) as log:
        assert await log.cursors() == []
        assert await rest(log, cursor="billing") == [0, 1, 2, 3, 4]


async def test_dropped_vchannel_takes_its_cursors_along(log: WALAccesser) -> None:
    await numbered(log, 5)
    await numbered(log, 5, "other")
    await take(log, 3, cursor="billing")
    await take(log, 3, ["orders", "other"], cursor="both")
    await take(log, 3, "other", cursor="billing")
    async with log.read("orders", cursor="billing") as scanner:
        await log.drop_vchannel("orders")
        with pytest.raises(ChannelNotExistError):
            async for _ in scanner:
                pass
    left = [(info.name, list(info.vchannels)) for info in await log.cursors()]
    assert ("billing", ["orders"]) not in left
    assert ("billing", ["other"]) in left
    await numbered(log, 2, first=10)
    assert await rest(log, cursor="billing") == [10, 11], "the new one shows nothing of the old"
    assert await rest(log, "other", cursor="billing") == [3, 4]


async def test_save_after_the_drop_creates_no_cursor(log: WALAccesser) -> None:
    await numbered(log, 5)
    async with log.read("orders", cursor="billing") as scanner:
        await anext(scanner)
        await log.drop_vchannel("orders")
        with pytest.raises(WALError):
            await scanner.save()
    await numbered(log, 3, first=20)
    assert await rest(log, cursor="billing") == [20, 21, 22]


@pytest.mark.parametrize("bound", [{"cursor_lag_bytes_max": 1 << 20}, {"cursor_age_max_s": 0.2}])
async def test_cursor_over_its_limit_turns_stale(location: str, bound: dict[str, Any]) -> None:
    async with open_wal(location, segment_bytes=1 << 20, **bound) as log:
        first = await numbered(log, 10)
        await take(log, 2, cursor="lazy")
        if "cursor_lag_bytes_max" in bound:
            assert not (await the_cursor(log, "lazy")).stale
        big = await log.append_bulk([Message("orders", b"7" + b" " * (1 << 18)) for _ in range(16)])

        async def stale() -> bool:
            return (await the_cursor(log, "lazy")).stale

        await eventually(stale)
        for _ in range(2):
            with pytest.raises(TruncatedError, match="lazy"):
                await rest(log, cursor="lazy")
        await log.truncate(up_to=first[-1].message_id)
        await log.delete_cursor("lazy")
        assert await rest(log, cursor="lazy") == [7] * 16
        await log.truncate(up_to=big[-1].message_id)
        assert await rest(log, cursor="lazy") == []


async def test_stale_one_stays_stale_over_reopening(data: str) -> None:
    async with open_wal(data, cursor_lag_bytes_max=1 << 20) as log:
        await numbered(log, 10)
        await take(log, 2, cursor="lazy")
        await log.append_bulk([Message("orders", b"7" + b" " * (1 << 18)) for _ in range(16)])
    async with open_wal(data, cursor_lag_bytes_max=1 << 20) as log:
        assert (await the_cursor(log, "lazy")).stale
        with pytest.raises(TruncatedError):
            await rest(log, cursor="lazy")


async def test_reader_within_its_bound_is_left_alone(location: str) -> None:
    async with open_wal(location, cursor_lag_bytes_max=1 << 20) as log:
        async with log.read("orders", cursor="keen") as scanner:
            for number in range(30):
                await log.raw_append(Message("orders", b"%02d" % number + bytes(1 << 17)))
                assert (await anext(scanner)).payload[:2] == b"%02d" % number
                await scanner.save()
        assert not (await the_cursor(log, "keen")).stale
        assert await rest(log, cursor="keen") == []


async def test_concurrent_saves_leave_one_of_them(log: WALAccesser) -> None:
    await numbered(log, 20)
    scanners = [log.read("orders", cursor="shared") for _ in range(8)]
    for count, scanner in enumerate(scanners, 1):
        for _ in range(count):
            await anext(scanner)
    await asyncio.gather(*(scanner.save() for scanner in scanners for _ in range(5)))
    positions = [scanner.position for scanner in scanners]
    assert (await the_cursor(log, "shared")).position in positions
    for scanner in scanners:
        await scanner.close()


async def test_save_recreates_a_deleted_cursor(log: WALAccesser) -> None:
    await numbered(log, 5)
    async with log.read("orders", cursor="billing") as scanner:
        await anext(scanner)
        await scanner.save()
        await log.delete_cursor("billing")
        assert await log.cursors() == []
        assert int((await anext(scanner)).payload) == 1, "its reader is not disturbed"
        await scanner.save()
    assert await rest(log, cursor="billing") == [2, 3, 4]


async def test_cancelled_save_leaves_the_old_or_the_new(log: WALAccesser) -> None:
    await numbered(log, 50)
    async with log.read("orders", cursor="billing") as scanner:
        await anext(scanner)
        await scanner.save()
        for turn_count in range(8):
            before = scanner.position
            await anext(scanner)
            saving = asyncio.ensure_future(scanner.save())
            await turns(turn_count)
            saving.cancel()
            await asyncio.gather(saving, return_exceptions=True)
            found = (await the_cursor(log, "billing")).position
            assert found in (before, scanner.position)
            await scanner.save()
            assert (await the_cursor(log, "billing")).position == scanner.position


async def test_damaged_file_is_loud(data: str) -> None:
    async with open_wal(data) as log:
        await numbered(log, 5)
        async with open_wal(data, read_only=True) as beside:
            await take(beside, 2, cursor="billing")
    (file,) = [path for path in Path(data, "cursors").rglob("*") if path.is_file()]
    content = file.read_bytes()
    for spoilt in (bytes([content[0] ^ 1]) + content[1:], content[:-1] + bytes([content[-1] ^ 1]), content[:-3], b""):
        file.write_bytes(spoilt)
        async with open_wal(data) as log:
            with pytest.raises(CorruptionError) as caught:
                await rest(log, cursor="billing")
            assert str(file.name) in str(caught.value)
    file.write_bytes(content)
    async with open_wal(data) as log:
        assert await rest(log, cursor="billing") == [2, 3, 4]


async def test_truncations_and_saves_do_not_deadlock(log: WALAccesser) -> None:
    """Twenty readers save all the time, while the log is truncated below them; both continue."""
    results = await numbered(log, 400)
    done = 0
    past = asyncio.Barrier(21)  # a reader that had read nothing yet would get the truncation's error instead

    async def keep_saving(number: int) -> None:
        nonlocal done
        async with log.read("orders", cursor=f"c{number}") as scanner:
            for _ in range(100):
                await anext(scanner)
            await past.wait()
            while done < 10:
                await scanner.save()

    savers = [asyncio.ensure_future(keep_saving(number)) for number in range(20)]
    await past.wait()
    for step in range(10):
        async with asyncio.timeout(60):
            await log.truncate(up_to=results[step].message_id)
        done += 1
    await asyncio.gather(*savers)
    assert (await rest(log))[0] == 10


async def test_lag_in_messages_and_seconds(log: WALAccesser) -> None:
    """Exact while the vchannel is alone in its frames; what others have in them is counted too, and so is the commit of a transaction."""
    for number in range(4):
        await log.append("orders", b"%d" % number)
        await log.append("stock", b"%d" % number)
    async with log.read("orders", cursor="billing", follow=False) as scanner:
        await anext(scanner)
        await scanner.save()
        info = await the_cursor(log, "billing")
        assert info.lag_messages == 3
        assert info.lag_s is not None
        assert info.saved_at is not None
        assert info.moved_at == info.saved_at
        second = await anext(scanner)
        age_s = datetime.now(UTC).timestamp() - timestamp.to_datetime(second.time_tick).timestamp()
        assert 0 <= info.lag_s <= age_s + 1
        await log.append_txn("orders", [b"4", b"5"])
        assert (await the_cursor(log, "billing")).lag_messages == 6
        async for _ in scanner:
            pass
        await scanner.save()
    assert (await the_cursor(log, "billing")).lag_messages == 3
    async with log.read("orders", cursor="billing", follow=False) as scanner:
        async for _ in scanner:
            pass
        await scanner.save()
    done = await the_cursor(log, "billing")
    assert (done.lag_bytes, done.lag_messages, done.lag_s) == (0, 0, 0.0)
