"""The cursor of a query, without a JVM: it holds the log at the end of the finished batches, for a few vchannels of each pchannel."""

from __future__ import annotations

import asyncio
import logging
import pickle
import shutil
from pathlib import Path

import pytest

from tests.spark.offsets_of_logs import end_of, place_behind, vchannels_of
from tests.spark.queries import StreamQuery
from wal import Matching, Message, MessageID, WALAccesser, open_wal
from wal.errors import InvalidArgumentError, TruncatedError
from wal.spark import foreach_batch
from wal.spark.foreach.query_cursor import VCHANNELS_MAX, QueryCursor
from wal.spark.frame_source import LogSource
from wal.spark.offsets import StreamOffset
from wal.spark.options import ChannelChoice


async def save(directory: Path, *ends: StreamOffset, pattern: str | None = None, name: str = "delays") -> None:
    """Saves as a query does: outside of any event loop, perhaps in another process."""

    def save_there() -> None:
        cursor = pickle.dumps(QueryCursor(LogSource(str(directory)), name, ChannelChoice(pattern=pattern)))
        pickle.loads(cursor).save(ends)

    await asyncio.to_thread(save_there)


async def end(directory: Path) -> StreamOffset:
    return await asyncio.to_thread(end_of, directory)


async def after(message_id: MessageID | None, directory: Path) -> StreamOffset:
    return await asyncio.to_thread(place_behind, message_id, directory)


async def append(log: WALAccesser, directory: Path, vchannel: str, count: int = 1) -> list[MessageID]:
    results = await log.append_bulk(Message(vchannel, b"%d" % number) for number in range(count))
    await shown(log, directory)
    return [result.message_id for result in results]


async def shown(log: WALAccesser, directory: Path) -> None:
    """Waits until readers of the files have the present vchannels; their copy may lag."""
    there = {info.name: info.incarnation for info in await log.vchannels()}
    while await asyncio.to_thread(vchannels_of, directory) != there:
        await asyncio.sleep(0.01)


async def rest(directory: Path, vchannel: str, name: str = "delays") -> list[bytes]:
    async with open_wal(directory, read_only=True) as log, log.read(vchannel, cursor=name, follow=False) as scanner:
        return [message.payload async for message in scanner]


async def test_reader_of_the_name_continues_after_the_batch(data_dir: Path) -> None:
    async with open_wal(data_dir) as log:
        await append(log, data_dir, "quiet")
        ids = await append(log, data_dir, "busy", 10)
        for count in (0, 3, 10):
            place = await end(data_dir) if count == 10 else await after(ids[count - 1] if count else None, data_dir)
            await save(data_dir, place)
            assert await rest(data_dir, "busy") == [b"%d" % number for number in range(count, 10)]
        assert await rest(data_dir, "quiet") == []
        for info in await log.cursors():
            assert (info.name, info.lag_bytes, info.stale) == ("delays", 0, False)
            assert info.position is not None
            assert info.position.message_id == ids[-1]
        assert [info.vchannels for info in await log.cursors()] == [("busy",), ("quiet",)]


async def test_saved_cursor_holds_the_log(data_dir: Path) -> None:
    async with open_wal(data_dir) as log:
        ids = [*await append(log, data_dir, "busy"), *await append(log, data_dir, "busy")]
        await save(data_dir, await after(ids[0], data_dir))
        with pytest.raises(InvalidArgumentError, match="'delays' of 'busy'"):
            await log.truncate(up_to=ids[1])
        await log.truncate(up_to=ids[0])
        await save(data_dir, await end(data_dir))
        await log.truncate(up_to=ids[1])


async def test_cursor_never_goes_back(data_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with open_wal(data_dir) as log:
        ids = await append(log, data_dir, "busy", 3)
        for last in (1, 1):
            with caplog.at_level(logging.WARNING, "wal.spark"):
                await save(data_dir, await after(ids[last], data_dir))
            assert caplog.records == []
            assert await rest(data_dir, "busy") == [b"2"]
        with caplog.at_level(logging.WARNING, "wal.spark"):
            await save(data_dir, await after(ids[0], data_dir))
        assert await rest(data_dir, "busy") == [b"2"]
        assert "is ahead of this query" in caplog.text


async def test_slower_one_of_two_sources_counts(data_dir: Path) -> None:
    async with open_wal(data_dir) as log:
        ids = await append(log, data_dir, "busy", 3)
        await save(data_dir, await end(data_dir), await after(ids[0], data_dir))
    assert await rest(data_dir, "busy") == [b"1", b"2"]


async def test_cursors_are_saved_for_selected_vchannels(data_dir: Path) -> None:
    async with open_wal(data_dir, pchannels=2) as log:
        for name in ("a1", "a2", "b1", "b2"):
            await append(log, data_dir, name)
        here = await end(data_dir)
        await save(data_dir, here, pattern="a.", name="matched")
        lives = {info.name: info.incarnation for info in await log.vchannels() if info.name != "b2"}
        await save(data_dir, StreamOffset(here.pchannels, lives), name="named")
        await save(data_dir, here, name="all")
        got: dict[str, set[tuple[str, ...]]] = {}
        for info in await log.cursors():
            got.setdefault(info.name, set()).add(info.vchannels)
    assert got == {"matched": {("a1",), ("a2",)}, "named": {("a1",), ("a2",), ("b1",)}, "all": {("a1",), ("a2",), ("b1",), ("b2",)}}


async def test_family_goes_on_beside_the_writer(data_dir: Path) -> None:
    family = Matching("account-*")
    cursor = QueryCursor(LogSource(str(data_dir)), "sums", ChannelChoice(family=family))
    rows: list[int] = []

    def step() -> None:
        """Runs the first batches of a new query, which begins at the cursor."""
        query = StreamQuery(data_dir, vchannels="account-*", startingOffsets="earliest", startingCursor="sums")
        for _ in range(2):
            rows.extend(int(row["payload"]) for row in query.step() or ())
            cursor.save([StreamOffset.parse(query.logged[-1])])

    async with open_wal(data_dir, pchannels=3) as log:
        for turn in range(3):
            for number in range(7 * turn, 7 * turn + 7):
                await log.append(f"account-{number}", b"%d" % number)
                await log.append("other", b"other")
            await asyncio.to_thread(step)
            assert sorted(rows) == list(range(7 * turn + 7))
        assert [(info.pattern, info.vchannels) for info in await log.cursors()] == [("account-*", ())]
        async with log.read(family, cursor="sums", follow=False) as scanner:
            assert [message async for message in scanner] == []


async def test_cursors_of_few_vchannels_hold_the_log(data_dir: Path) -> None:
    async with open_wal(data_dir) as log:
        names = [f"v{number:03}" for number in range(3 * VCHANNELS_MAX)]
        for name in names[VCHANNELS_MAX:]:
            await append(log, data_dir, name)
        await save(data_dir, await end(data_dir))
        first = {info.vchannels[0] for info in await log.cursors()}
        assert first == set(names[VCHANNELS_MAX : 2 * VCHANNELS_MAX])
        for name in names[:VCHANNELS_MAX]:
            await append(log, data_dir, name)
        dropped = names[VCHANNELS_MAX]
        await log.drop_vchannel(dropped)
        await shown(log, data_dir)
        await save(data_dir, await end(data_dir))
        assert {info.vchannels[0] for info in await log.cursors()} == {*first, names[0]} - {dropped}
        assert {info.lag_bytes for info in await log.cursors()} == {0}


async def test_dropped_vchannel_removes_its_own_cursor(data_dir: Path) -> None:
    async with open_wal(data_dir) as log:
        ids = [*await append(log, data_dir, "kept"), *await append(log, data_dir, "gone"), *await append(log, data_dir, "kept")]
        await save(data_dir, await after(ids[0], data_dir))
        await log.drop_vchannel("gone")
        with pytest.raises(InvalidArgumentError, match="'delays' of 'kept'"):
            await log.truncate(up_to=ids[2])


async def test_recreated_vchannel_gets_a_new_cursor(data_dir: Path) -> None:
    async with open_wal(data_dir) as log:
        await append(log, data_dir, "busy")
        await save(data_dir, await end(data_dir))
        await log.drop_vchannel("busy")
        ids = await append(log, data_dir, "busy", 2)
        await save(data_dir, await after(ids[0], data_dir))
    assert await rest(data_dir, "busy") == [b"1"]


async def test_save_after_a_truncation_that_the_source_skipped(data_dir: Path) -> None:
    async with open_wal(data_dir) as log:
        ids = [*await append(log, data_dir, "busy"), *await append(log, data_dir, "busy")]
        before = await after(None, data_dir)
        await log.truncate(up_to=ids[0])
        await save(data_dir, before)
    assert await rest(data_dir, "busy") == [b"0"]


async def test_stale_cursor_raises_until_deleted(data_dir: Path) -> None:
    async with open_wal(data_dir) as log:
        ids = await append(log, data_dir, "busy", 2)
        await save(data_dir, await after(ids[0], data_dir))
    async with open_wal(data_dir, cursor_lag_bytes_max=0) as log:
        assert [info.stale for info in await log.cursors()] == [True]
        with pytest.raises(TruncatedError, match="stale"):
            await save(data_dir, await end(data_dir))
        await log.delete_cursor("delays")
        await save(data_dir, await end(data_dir))


async def test_another_journal_is_refused(data_dir: Path, tmp_path: Path) -> None:
    async with open_wal(data_dir) as log:
        await append(log, data_dir, "busy")
    other = tmp_path / "other"
    async with open_wal(other) as log:
        ids = await append(log, other, "busy", 3)
    with pytest.raises(InvalidArgumentError, match="reads no pchannel"):
        await save(other, await end(data_dir))
    await save(other, await end(data_dir), await end(other))
    await asyncio.to_thread(shutil.rmtree, data_dir)
    async with open_wal(other) as log:
        (info,) = await log.cursors()
        assert info.position is not None
        assert info.position.message_id >= ids[-1]


def test_wrong_location_or_name_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="names no directory"):
        foreach_batch(print, cursor="delays", path="memory:")
    with pytest.raises(InvalidArgumentError, match="begins with '_'"):
        foreach_batch(print, cursor="_delays", path="data/")
