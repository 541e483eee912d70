"""The beginning of a vchannel is in its record: a read of everything fetches no earlier frame."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.locations import open_wal
from tests.probes import local, payloads
from tests.serve.servers import serving
from wal import Message
from wal.channels.directory import PREFIX
from wal.channels.vchannels import first_position
from wal.location import parse_location
from wal.message import Lineage, Restore
from wal.operate.processes.standalone import ServedLog
from wal.read.options import All, Last, ReadPosition, StartAfter, StartAt, StartFrom, TimeTickGT, TimeTickGTE
from wal.serve.access import Access
from wal.settings import Settings
from wal.storage.base import FramePage
from wal.storage.kv import SqliteKV


class Fetched:
    """Where the reads of a log began, and how many frames they brought."""

    def __init__(self, log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.starts: list[int] = []
        self.frames = 0
        kind = type(log)
        read = kind.read

        async def counted(backend_log: Any, start: int, **options: Any) -> FramePage:
            page: FramePage = await read(backend_log, start, **options)
            self.starts.append(start)
            self.frames += len(page.frames)
            return page

        monkeypatch.setattr(kind, "read", counted)


async def write(log: Any, names: Iterable[str]) -> None:
    for name in names:
        await log.raw_append(Message(name, b"x" * 2000))


@pytest.mark.parametrize("place", ["memory:", "journal:"])
async def test_new_vchannel_is_read_from_its_begin(place: str, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = f"{place}{data_dir}" if place == "journal:" else place
    async with open_wal(place, pchannels=1, segment_bytes=1 << 20) as log:
        pchannel = local(log).node.pchannels["p0"]
        await write(log, (f"v{number % 30}" for number in range(300)))
        end = pchannel.tail.durable_end
        await write(log, ["new"] * 3)
        await write(log, (f"v{number % 30}" for number in range(2_000)))  # out of the recent frames
        assert local(log).coordinator.vchannels.directory.begins["new"] == (pchannel.log.incarnation, end)
        fetched = Fetched(pchannel.log, monkeypatch)
        assert len(await payloads(log, "new")) == 3
        assert min(fetched.starts) == end
        assert fetched.frames <= 2 * 3
        async with log.read("new", deliver_policy=Last(2), follow=False) as scanner:
            assert len([message async for message in scanner]) == 2
        async with log.read(["new", "v1"], deliver_policy=All(), follow=False) as scanner:
            assert len([message async for message in scanner]) == 3 + 10 + 2_000 // 30 + 1
        await log.drop_vchannel("new")
        await write(log, ["new"])
        assert len(await payloads(log, "new")) == 1


async def test_journal_over_the_network_fetches_no_more(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(pchannels=1, segment_bytes=1 << 20)
    served = await ServedLog.open(parse_location(str(data_dir)), settings, Access(listen="127.0.0.1:0"))
    try:
        async with open_wal(f"wal://{served.server.address}") as log:
            await log.append_bulk(Message(f"v{number % 30}", b"x" * 2000) for number in range(2_000))
            await log.append_bulk([Message("new", b"1")] * 3)
            await log.append_bulk(Message(f"v{number % 30}", b"x" * 2000) for number in range(2_000))
            fetched = Fetched(served.log.node.pchannels["p0"].log, monkeypatch)
            assert len(await payloads(log, "new")) == 3
            assert fetched.frames <= 2 * 3
    finally:
        await served.close()


async def test_record_without_begin_starts_at_the_earliest_event(data_dir: Path) -> None:
    async with open_wal(f"journal:{data_dir}", pchannels=1) as log:
        await write(log, ["old", "new", "old"])
    kv = await SqliteKV.open(data_dir / "meta.sqlite3")
    await kv.save(PREFIX + "new", '{"pchannel":"p0","incarnation":2}')
    await kv.save(PREFIX + "old", '{"pchannel":"p0","incarnation":1,"begin":[1,999999999]}')
    await kv.close()
    async with open_wal(f"journal:{data_dir}") as log:
        assert local(log).coordinator.vchannels.directory.begins == {"old": (1, 999999999)}
        assert (len(await payloads(log, "new")), len(await payloads(log, "old"))) == (1, 2)


def test_begin_counts_within_the_log() -> None:
    lineage = Lineage(9, (Restore(7, 500, None),))

    def first(*begins: tuple[int, int] | None, end: int = 1_000) -> int:
        return first_position(begins, lineage, end)

    assert first((9, 600), (9, 550)) == 550
    assert first((9, 600), None) == 0
    assert first((9, 600), end=599) == 0
    assert first((7, 400)) == 400
    assert first((7, 600)) == 0, "a restore has lost where it begins, and its events may be below"
    assert first((8, 10)) == 0
    assert first(None) == first() == 0


@pytest.mark.parametrize("place", ["memory:", "journal:", "wal:", "read-only:"])
async def test_bound_of_ticks_moves_the_start(place: str, data_dir: Path) -> None:
    """A read whose filters let no early tick through fetches no earlier frame, whatever its other options are."""
    async with AsyncExitStack() as stack:
        if place == "wal:":
            node = await stack.enter_async_context(serving(pchannels=1))
            log = await stack.enter_async_context(open_wal(f"wal://{node.address}"))
        else:
            log = await stack.enter_async_context(open_wal(str(data_dir) if place != "memory:" else place, pchannels=1))
        results = [await log.raw_append(Message("v", b"%d" % number)) for number in range(200)]
        reader = await stack.enter_async_context(open_wal(data_dir, read_only=True)) if place == "read-only:" else log
        async with reader.read("v", cursor="old", deliver_policy=StartFrom(results[3].message_id)) as scanner:
            await anext(scanner)
            await scanner.save()
        tick = results[190].time_tick
        begins: dict[str, dict[str, Any]] = {
            "nothing": {},
            "an event": {"deliver_policy": StartFrom(results[5].message_id)},
            "after an event": {"deliver_policy": StartAfter(results[5].message_id)},
            "a moment": {"deliver_policy": StartAt(datetime(2000, 1, 1, tzinfo=UTC))},
            "a position": {"resume": ReadPosition(results[5].message_id, results[5].time_tick)},
            "a cursor": {"cursor": "old"},
            "a new cursor": {"cursor": "new"},
        }
        for bound, first in ((TimeTickGTE(tick), 190), (TimeTickGT(tick), 191), (TimeTickGT((1 << 64) - 1), 200)):
            for name, options in begins.items():
                async with reader.read("v", follow=False, filters=bound, **options) as scanner:
                    assert [int(message.payload) async for message in scanner] == list(range(first, 200)), name
                    assert scanner.statistics().frames <= 12, name
        for bound in (TimeTickGTE(tick), TimeTickGTE(1)):  # an event after the bound stays the beginning
            async with reader.read("v", follow=False, filters=bound, deliver_policy=StartFrom(results[195].message_id)) as scanner:
                assert [int(message.payload) async for message in scanner] == list(range(195, 200))
