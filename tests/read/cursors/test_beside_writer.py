"""A process beside the writer saves cursors in a KV: a truncation never passes a cursor, even if the writer did not hear of the save."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.read.cursors.samples import cursor
from wal.errors import TruncatedError, UnavailableError
from wal.read.cursors.cursor import Cursor
from wal.read.cursors.in_kv import CursorsBesideWriter, CursorsInKV
from wal.storage.kv import MemoryKV


class Log:
    """The earliest event of a log, according to its metadata."""

    def __init__(self) -> None:
        self.earliest = (0, 0)


async def stores() -> tuple[CursorsInKV, CursorsBesideWriter]:
    kv = MemoryKV()
    writer = CursorsInKV(kv)
    await writer.begin(["p0", "p1"])
    return writer, CursorsBesideWriter(kv)


def at(position: int) -> Cursor:
    return cursor(start=(position, 0), event=None)


def save(beside: CursorsBesideWriter, log: Log, saved: Cursor) -> bool:
    return beside.save(saved, earliest=lambda: log.earliest)


async def test_save_during_a_truncation_waits_and_sees_it() -> None:
    writer, beside = await stores()
    log, saved = Log(), at(50)
    await asyncio.to_thread(writer.acquire, 1.0)
    assert await asyncio.to_thread(writer.load_all) == []
    saving = asyncio.ensure_future(asyncio.to_thread(save, beside, log, saved))
    while not await asyncio.to_thread(writer.load_all):
        await asyncio.sleep(0)
    assert not saving.done()
    log.earliest = (100, 0)
    writer.release()
    with pytest.raises(TruncatedError, match="truncated up to 100:0 meanwhile"):
        await saving
    assert await asyncio.to_thread(writer.load_all) == []


async def test_save_that_the_truncation_leaves_room_for_is_kept() -> None:
    writer, beside = await stores()
    log = Log()
    assert await asyncio.to_thread(save, beside, log, at(50))
    await asyncio.to_thread(writer.acquire, 1.0)
    saving = asyncio.ensure_future(asyncio.to_thread(save, beside, log, at(120)))
    while await asyncio.to_thread(writer.load_all) != [at(120)]:
        await asyncio.sleep(0)
    log.earliest = (50, 0)
    writer.release()
    assert await saving


async def test_truncation_of_other_pchannels_delays_no_save() -> None:
    """Each node marks the pchannels that it has: one node's truncation is no concern of a cursor on another's."""
    kv = MemoryKV()
    here, elsewhere, beside = CursorsInKV(kv), CursorsInKV(kv), CursorsBesideWriter(kv)
    await here.begin(["p0"])
    await elsewhere.begin(["p1", "p2"])
    await asyncio.to_thread(elsewhere.acquire, 1.0)
    assert await asyncio.to_thread(save, beside, Log(), at(50))
    await elsewhere.begin(["p1", "p2", "p0"])  # a pchannel comes while it truncates
    assert await asyncio.to_thread(save, beside, Log(), at(60))
    elsewhere.release()
    await asyncio.to_thread(elsewhere.acquire, 1.0)
    saving = asyncio.ensure_future(asyncio.to_thread(save, beside, Log(), at(70)))
    while await asyncio.to_thread(beside.load_all) != [at(70)]:
        await asyncio.sleep(0)
    assert not saving.done()
    elsewhere.release()
    assert await saving


async def test_mark_of_the_first_release_is_respected() -> None:
    kv = MemoryKV()
    await kv.save("truncating", "a writer of version 0.1.0")
    saving = asyncio.ensure_future(asyncio.to_thread(save, CursorsBesideWriter(kv), Log(), at(50)))
    while not await asyncio.to_thread(CursorsBesideWriter(kv).load_all):
        await asyncio.sleep(0)
    assert not saving.done()
    await kv.save("truncating", "")
    assert await saving


async def test_next_writer_removes_the_mark_of_one_that_was_killed() -> None:
    kv = MemoryKV()
    killed = CursorsInKV(kv)
    await killed.begin(["p0"])
    await asyncio.to_thread(killed.acquire, 1.0)
    beside = CursorsBesideWriter(kv)
    saving = asyncio.ensure_future(asyncio.to_thread(save, beside, Log(), at(50)))
    while not await asyncio.to_thread(beside.load_all):
        await asyncio.sleep(0)
    assert not saving.done()
    await CursorsInKV(kv).begin(["p0"])
    assert await saving


@pytest.mark.parametrize("lost", ["compare_and_swap", "multi_save"])
async def test_mark_goes_although_the_metadata_cannot_be_reached_for_a_while(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The removal fails once, or the answer to the save of the mark is lost: other processes can soon save their cursors again."""
    kv = MemoryKV()
    writer, beside = CursorsInKV(kv), CursorsBesideWriter(kv)
    await writer.begin(["p0"])
    real = getattr(kv, lost)
    failures = 0

    async def unreachable(*arguments: Any) -> Any:
        nonlocal failures
        if lost == "multi_save":
            await real(*arguments)
        failures += 1
        monkeypatch.setattr(kv, lost, real)
        raise UnavailableError("the metadata cannot be reached")

    monkeypatch.setattr(kv, lost, unreachable)
    if lost == "multi_save":
        with pytest.raises(UnavailableError):
            await asyncio.to_thread(writer.acquire, 1.0)
    else:
        await asyncio.to_thread(writer.acquire, 1.0)
        writer.release()
    assert await asyncio.to_thread(save, beside, Log(), at(50))
    assert failures == 1
    await asyncio.to_thread(writer.acquire, 1.0)
    writer.release()


@pytest.mark.parametrize("rounds", [30])
async def test_every_cursor_is_saved_above_the_earliest_event_or_refused(rounds: int) -> None:
    """A writer repeatedly truncates up to the limit that the cursors set, while another process saves cursors at its own positions."""
    writer, beside = await stores()
    log = Log()
    stop = threading.Event()

    def truncate() -> None:
        while not stop.is_set():
            writer.acquire(10.0)
            pinned = [held.start for held in writer.load_all() if isinstance(held, Cursor)]
            log.earliest = max(log.earliest, min(pinned, default=(log.earliest[0] + 7, 0)))
            writer.release()

    truncating = asyncio.ensure_future(asyncio.to_thread(truncate))
    saved = refused = 0
    try:
        for number in range(rounds):
            one = at(log.earliest[0] + number % 4)
            try:
                await asyncio.to_thread(save, beside, log, one)
            except TruncatedError:
                refused += 1
                continue
            saved += 1
            assert log.earliest <= one.start
            await asyncio.to_thread(beside.delete_named, one.key.name, None)
    finally:
        stop.set()
        await truncating
    assert saved + refused == rounds
