"""A directory that was replaced by an older copy of itself: positions and cursors of lost messages are refused, also in other processes."""

from __future__ import annotations

import asyncio
import copy
import pickle
import shutil
from pathlib import Path

import pytest

from wal import Message, ReadPosition, WALAccesser, bridge, open_wal
from wal.errors import LogWentBackError, StreamingCode
from wal.message import AppendResult, MessageID

OLD, LOST = 20, 40
EVENTS = (0, 1, 2 * LOST)
"""How many messages the restored log gets: none, fewer or more than were lost."""


async def append(log: WALAccesser, count: int) -> list[AppendResult]:
    """Appends, every third time, a transaction: events of several indices."""
    results = []
    for number in range(count):
        if number % 3:
            results.append(await log.raw_append(Message("orders", b"x" * number)))
        else:
            results.append(await log.append_txn("orders", [b"y", b"z" * number]))
    return results


class Copied:
    """A log with messages that its copy lacks; `results` are those of all."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.results: list[AppendResult] = []

    async def write(self) -> None:
        async with open_wal(self.place) as log:
            self.results = await append(log, OLD)
        copied = self.place.with_name("copy")
        await asyncio.to_thread(shutil.copytree, self.place, copied)
        async with open_wal(self.place) as log:
            self.results += await append(log, LOST)
        async with open_wal(self.place, read_only=True) as log, log.read("orders", cursor="c", follow=False) as scanner:
            async for _ in scanner:
                pass
            await scanner.save()
        # The saved cursor outlives the restore, as a cursor in another store does.
        await asyncio.to_thread(shutil.copytree, self.place / "cursors", copied / "cursors", dirs_exist_ok=True)
        await asyncio.to_thread(shutil.rmtree, self.place)
        await asyncio.to_thread(copied.rename, self.place)

    @property
    def last_common(self) -> MessageID:
        return self.results[OLD - 1].message_id

    def positions(self) -> list[ReadPosition]:
        return [ReadPosition(result.message_id, result.time_tick) for result in self.results]


@pytest.fixture
async def copied(data_dir: Path) -> Copied:
    one = Copied(data_dir / "log")
    await one.write()
    return one


@pytest.mark.parametrize("new", EVENTS)
@pytest.mark.parametrize("read_only", [False, True])
async def test_position_above_fork_is_refused(copied: Copied, new: int, read_only: bool) -> None:
    positions = copied.positions()
    async with open_wal(copied.place) as log:
        await append(log, new)
    async with open_wal(copied.place, read_only=read_only) as log:
        for position in (*positions[OLD : OLD + 3], positions[OLD + LOST // 2], positions[-1]):
            with pytest.raises(LogWentBackError) as raised:
                async with log.read("orders", resume=position):
                    pass
            assert raised.value.last_common == copied.last_common
        for number in (0, OLD // 2, OLD - 1):
            async with log.read("orders", resume=positions[number], follow=False) as scanner:
                assert len([message async for message in scanner]) == OLD - number - 1 + new


@pytest.mark.parametrize("new", EVENTS)
@pytest.mark.parametrize("read_only", [False, True])
async def test_cursor_above_fork_is_refused(copied: Copied, new: int, read_only: bool) -> None:
    async with open_wal(copied.place) as log:
        await append(log, new)
    async with open_wal(copied.place, read_only=read_only) as log:
        with pytest.raises(LogWentBackError) as raised:
            async with log.read("orders", cursor="c"):
                pass
        assert raised.value.last_common == copied.last_common
        assert len(await log.cursors()) == 1


@pytest.mark.parametrize("new", EVENTS)
async def test_iteration_is_refused(copied: Copied, new: int) -> None:
    async with open_wal(copied.place) as log:
        await append(log, new)

    def iterate() -> None:
        for start in ({"resume": copied.positions()[-1]}, {"cursor": "c"}):
            with pytest.raises(LogWentBackError) as raised, bridge.iterate(copied.place, "orders", **start) as messages:
                next(messages)
            assert raised.value.last_common == copied.last_common

    await asyncio.to_thread(iterate)


async def test_nothing_is_common(data_dir: Path) -> None:
    """The copy was made before the first event."""
    place = data_dir / "log"
    async with open_wal(place):
        pass
    await asyncio.to_thread(shutil.copytree, place, place.with_name("copy"))
    async with open_wal(place) as log:
        (result,) = await append(log, 1)
    await asyncio.to_thread(shutil.rmtree, place)
    await asyncio.to_thread(place.with_name("copy").rename, place)
    async with open_wal(place) as log:
        await append(log, 5)
        with pytest.raises(LogWentBackError, match="Nothing of it is known to be the same") as raised:
            async with log.read("orders", resume=ReadPosition(result.message_id, result.time_tick)):
                pass
        assert raised.value.last_common is None


def test_error_keeps_its_id() -> None:
    error = LogWentBackError("gone", last_common=MessageID("p0", 1, 2, 3))
    for same in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (str(same), same.last_common) == ("gone", MessageID("p0", 1, 2, 3))
        assert (same.code, same.retryable, same.outcome_unknown) == (StreamingCode.LOG_WENT_BACK, False, False)
