"""The setting `compression` on every kind of log, for every kind of reader, and without the package."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.locations import open_wal
from tests.probes import payloads
from wal import BroadcastMessage, Message, bridge
from wal.errors import FormatError
from wal.frame import Compressor, Tables, compressed
from wal.write.pipeline import COMPRESSED_HERE_BYTES_MAX

pytestmark = pytest.mark.on_pulsar
NAMES = tuple(f"orders-{number}" for number in range(5))


def body(number: int) -> bytes:
    return b'{"order": %d, "state": "created", "customer": "somebody"}' % number * 20


async def fill(log: Any, first: int, count: int = 200) -> None:
    await asyncio.gather(*(log.raw_append(Message(NAMES[number % 5], body(number))) for number in range(first, first + count)))
    async with log.txn(NAMES[0]) as txn:
        for number in range(first, first + 20):
            await txn.append(body(number))
    await log.broadcast().append(BroadcastMessage(vchannels=list(NAMES), payload=body(first), needs_ack=False))


async def read(log: Any) -> dict[str, list[bytes]]:
    return {name: await payloads(log, name) for name in NAMES}


@pytest.mark.on_pulsar
async def test_setting_is_saved_with_the_log(location: str) -> None:
    async with open_wal(location, compression="zstd") as log:
        await fill(log, 0)
        before = await read(log)
        assert sum(map(len, before.values())) == 200 + 5 * 20 // 5 + 5
        assert before[NAMES[1]][:2] == [body(1), body(6)]
    if location == "memory:":
        return
    async with open_wal(location) as log:
        assert await read(log) == before
        await fill(log, 1000)
        both = await read(log)
    async with open_wal(location, compression="none") as log:
        await fill(log, 2000)
    async with open_wal(location) as log:
        assert {name: found[: len(both[name])] for name, found in (await read(log)).items()} == both


@pytest.mark.parametrize("dropped", [False, True])
async def test_large_bodies_are_compressed_off_the_loop(data_dir: Path, monkeypatch: pytest.MonkeyPatch, dropped: bool) -> None:
    packing = threading.Event()
    goes_on = threading.Event()
    on_loop: list[int] = []
    loop_thread = threading.get_ident()

    def watched(tables: Tables, compressor: Compressor) -> Tables:
        if threading.get_ident() == loop_thread:
            on_loop.append(tables.body_len)
        else:
            packing.set()
            assert goes_on.wait(60)
        return compressed(tables, compressor)

    monkeypatch.setattr("wal.write.pipeline.compressed", watched)
    async with open_wal(f"journal:{data_dir}", compression="zstd", pchannels=1) as log:
        await log.raw_append(Message("others", body(1)))
        large = asyncio.ensure_future(log.raw_append(Message("orders", (body(7) * 1000)[: COMPRESSED_HERE_BYTES_MAX + 1])))
        assert await asyncio.to_thread(packing.wait, 60)
        following = [asyncio.ensure_future(log.raw_append(Message("others", body(number)))) for number in range(2, 5)]
        dropping = asyncio.ensure_future(log.drop_vchannel("others")) if dropped else None
        await asyncio.sleep(0)
        assert not large.done()
        goes_on.set()
        results = [await large, *[await each for each in following]]
        assert [result.time_tick for result in results] == sorted(result.time_tick for result in results)
        if dropping is not None:
            await dropping
        assert await payloads(log, "others") == ([] if dropped else [body(number) for number in range(1, 5)])
        assert [len(payload) for payload in await payloads(log, "orders")] == [COMPRESSED_HERE_BYTES_MAX + 1]
    assert max(on_loop) <= COMPRESSED_HERE_BYTES_MAX


async def test_frames_are_smaller_until_it_is_taken_back(tmp_path: Path) -> None:
    def bytes_of(log: Any) -> int:
        return int(log.statistics().pchannels[0].bytes)

    sizes = []
    for compression in ("zstd", None, "none", None):
        async with open_wal(tmp_path / "data", compression=compression) as log:
            await fill(log, 0)
            sizes.append(bytes_of(log))
    assert max(sizes[:2]) < min(sizes[2:]) / 4


async def test_readers_of_other_processes_read_it(tmp_path: Path) -> None:
    def iterated(data: Path) -> dict[str, list[bytes]]:
        found: dict[str, list[bytes]] = {name: [] for name in NAMES}
        with bridge.iterate(data, NAMES, follow=False) as messages:
            for message in messages:
                for one in message.bodies():
                    found[one.vchannel].append(one.payload)
        return found

    async with open_wal(tmp_path / "data", compression="zstd") as log:
        await fill(log, 0)
        expected = await read(log)
        async with open_wal(tmp_path / "data", read_only=True) as reader:
            assert await read(reader) == expected
    assert await asyncio.to_thread(iterated, tmp_path / "data") == expected
    for name in NAMES:
        assert await asyncio.to_thread(rows, tmp_path / "data", name) == expected[name]


def rows(data: Path, name: str) -> list[bytes]:
    batches = list(bridge.record_batches(data, name, follow=False))
    return [payload for batch in batches for payload in batch.column("payload").to_pylist()]


async def test_spark_reads_it(tmp_path: Path) -> None:
    async with open_wal(tmp_path / "data", compression="zstd") as log:
        await fill(log, 0)
        expected = await read(log)
    from tests.spark.queries import batch

    rows = await asyncio.to_thread(batch, tmp_path / "data")
    assert sorted(row["payload"] for row in rows) == sorted(payload for found in expected.values() for payload in found)


async def test_without_the_package_the_error_names_the_extra(tmp_path: Path) -> None:
    async def saved_by_a_newer_version(data: Path) -> None:
        from wal.channels.pchannels import save_compression
        from wal.storage.kv import SqliteKV

        kv = await SqliteKV.open(data / "meta.sqlite3")
        await save_compression(kv, "lz9")
        await kv.close()
        async with open_wal(data):
            pass

    async with open_wal(tmp_path / "data", compression="zstd") as log:
        await fill(log, 0)
    program = """
import asyncio, sys
sys.modules["backports.zstd"] = sys.modules["compression.zstd"] = None
from wal import Message, bridge, open_wal
from wal.errors import FormatError
from wal.frame import Compressor, Tables, compressed
from wal.write.pipeline import COMPRESSED_HERE_BYTES_MAX
async def main():
    for settings in ({}, {"compression": "none"}, {"compression": "zstd"}):
        try:
            async with open_wal(sys.argv[1], **settings) as log:
                print("open", settings)
        except (FormatError, ImportError) as error:
            print(type(error).__name__, error)
try:
    with bridge.iterate(sys.argv[1], "orders-0", follow=False) as messages:
        next(messages)
except FormatError as error:
    print("reader", error)
asyncio.run(main())
"""
    command = [sys.executable, "-c", program, str(tmp_path / "data")]
    child = await asyncio.to_thread(lambda: subprocess.run(command, capture_output=True, text=True, timeout=60, check=False))
    reader, saved, off, asked = child.stdout.splitlines()
    assert reader.startswith("reader the frame is compressed: compression needs the package")
    assert saved.startswith("FormatError the log is written with compressed frames")
    assert off == "open {'compression': 'none'}"
    assert asked.startswith("ImportError compression needs")
    assert all("[zstd]'" in line for line in (reader, saved, asked))
    with pytest.raises(FormatError, match="upgrade"):
        await saved_by_a_newer_version(tmp_path / "data")
