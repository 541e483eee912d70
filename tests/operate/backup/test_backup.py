"""Backups of a log in use: a restore returns the log at the tick of the backup, whichever process is killed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
import pytest

from actors.clock import SystemClock
from tests.processes import Child, eventually, run_python
from tests.small_disk import fill as fill_disk
from tests.small_disk import mounted
from wal import All, BroadcastMessage, Message, ReadPosition, WALAccesser, open_wal
from wal.errors import CorruptionError, FormatError, InvalidArgumentError, LockedError, LogWentBackError, NoSpaceError
from wal.location import parse_location
from wal.node.archiving.rounds import CHUNK_BYTES
from wal.node.local.log import LocalLog
from wal.operate.backup import Manifest, backup, backups, follow, forget, restore, verify, verify_whole
from wal.operate.backup.restore import _PARTS, _PRIVATE_FILES
from wal.operate.cli import output, tail
from wal.operate.cli.main import main
from wal.settings import Settings
from wal.storage.archive.manifest import INDEX, OBJECTS, PREFIX, manifest_name
from wal.storage.archive.objects import ObjectIndex
from wal.storage.archive.store import BackupStore, DirectoryStore, ObjectExistsError, ObjectStore, open_store

NAMES = tuple(f"v{number}" for number in range(7))
Rows = list[tuple[int, bytes]]


async def fill(log: WALAccesser) -> None:
    await asyncio.gather(*(log.raw_append(Message(name, b"%d" % number * 50)) for number, name in enumerate(NAMES * 3)))


async def content(place: Path) -> dict[str, Rows]:
    async with open_wal(place, read_only=True) as log:
        found: dict[str, Rows] = {}
        for name in NAMES:
            async with log.read(name, follow=False) as scanner:
                found[name] = [(message.time_tick, message.payload) async for message in scanner]
        return found


async def check_restored(data: Path, target: Path | str, place: Path, *, up_to: int | None = None) -> Manifest:
    """Restores a backup, and compares it with the log up to its tick."""
    manifest = await restore(str(target), str(place), up_to=up_to)
    assert manifest is not None
    expected = {name: [row for row in rows if row[0] <= manifest.tick] for name, rows in (await content(data)).items()}
    assert await content(place) == expected
    assert sum(map(len, expected.values())) > 0
    return manifest


async def test_restored_log_is_the_log_at_the_tick(tmp_path: Path, soak: int) -> None:
    """Writer and backup are killed in turn; a finished backup is right, and the next one continues."""
    data, target = tmp_path / "data", tmp_path / "target"
    for turn in range(2 * soak):
        async with Child("-m", "tests.operate.backup.writer", data) as writer:
            assert await writer.line() == "writing"
            async with Child("-m", "wal", "backup", data, "--to", target, "--json") as killed:
                await killed.line()  # it has stored an object
                await killed.kill()
            await backup(str(data), str(target))
            await writer.kill()
        await check_restored(data, target, tmp_path / f"restored-{turn}")
    assert await verify(str(target)) == []
    made = await backups(str(target))
    assert len(made) >= 2 * soak
    await check_restored(data, target, tmp_path / "first", up_to=made[0].tick)
    full = {chunk.name for chunk in made[0].chunks() if chunk.end - chunk.start == CHUNK_BYTES}
    assert full <= {chunk.name for chunk in made[1].chunks()}, "what did not change is not copied again"


async def test_cursors_and_positions_know_the_fork(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    async with open_wal(data) as log:
        for number in range(3):
            await log.raw_append(Message("v0", b"%d" % number))
        async with log.read("v0", cursor="before", follow=False) as scanner:
            assert (await anext(scanner)).payload == b"0"
            await scanner.save()
        before = scanner.position
        await backup(str(data), str(target))
        lost = await log.raw_append(Message("v0", b"lost"))
        assert lost.message_id is not None
        assert lost.time_tick is not None
    await restore(str(target), str(tmp_path / "restored"))
    async with open_wal(tmp_path / "restored") as log:
        await log.raw_append(Message("v0", b"new"))
        async with log.read("v0", cursor="before", follow=False) as scanner:
            assert [message.payload async for message in scanner] == [b"1", b"2", b"new"]
        async with log.read("v0", resume=before, follow=False) as scanner:
            assert [message.payload async for message in scanner] == [b"1", b"2", b"new"]
        with pytest.raises(LogWentBackError):
            async with log.read("v0", resume=ReadPosition(lost.message_id, lost.time_tick)):
                pass
        made = await backup(str(tmp_path / "restored"), str(target))
    assert made.number == 2, "a restored log goes on with the backups that it came from"


async def test_moving_cursor_is_where_the_output_is(tmp_path: Path) -> None:
    data = tmp_path / "data"

    async def move(log: WALAccesser, count: int, number: int) -> None:
        async with log.read("v0", cursor=f"stage {number}", deliver_policy=All()) as scanner:
            for _ in range(count):
                message = await anext(scanner)
                async with log.txn(f"out {number}") as txn:
                    await txn.append(message.payload)
                    txn.save(scanner)

    async with open_wal(data) as log:
        for number in range(6):
            await log.raw_append(Message("v0", b"%d" % number))
        await move(log, 2, 0)
        await backup(str(data), str(tmp_path / "target"))
        await move(log, 2, 0)
        await move(log, 2, 1)
    await restore(str(tmp_path / "target"), str(tmp_path / "restored"))
    async with open_wal(tmp_path / "restored") as log:
        for number, left in ((0, 4), (1, 6)):
            await move(log, left, number)
            async with log.read(f"out {number}", deliver_policy=All(), follow=False) as scanner:
                assert [int(body.payload) async for _, body in scanner.bodies()] == list(range(6))
        await log.append("v0", b"6")
        await move(log, 1, 0)
    await backup(str(tmp_path / "restored"), str(tmp_path / "target"))


async def rows_of(log: WALAccesser, name: str) -> Rows:
    async with log.read(name, follow=False) as scanner:
        return [(message.time_tick, body.payload) async for message, body in scanner.bodies()]


async def test_restore_between_backups_equals_the_log_then(tmp_path: Path, soak: int) -> None:
    """The tick is that of any event, also inside a frame: messages, transactions, keys, cursors, vchannels and broadcasts are those up to
    it.
    """

    async def keyed_tick(log: WALAccesser, number: int, at: int) -> int:
        """Returns the tick of a message that was appended with a key."""
        result = await log.raw_append(Message(f"v{at % 2}", b"again"), idempotency_key=f"key {number} {at}")
        assert result.duplicate
        assert result.time_tick is not None
        return result.time_tick

    async def verify_files(place: Path) -> int:
        return await asyncio.to_thread(main, ["verify", str(place), "--json"])

    data, target = tmp_path / "data", tmp_path / "target"
    async with open_wal(data, pchannels=2) as log:
        first, second = [await log.create_vchannel(f"v{number}", pchannel=f"p{number}") for number in range(2)]
        await log.raw_append(Message("v0", b"0"))
        async with log.read("v0", cursor="reader", follow=False) as scanner:
            await anext(scanner)
            await scanner.save()
        made = [await backup_after(log, data, target)]
        for number in range(3):
            messages = [Message(f"v{at % 2}", b"%d %d" % (number, at)) for at in range(6)]
            keyed = [log.append_nowait(message, idempotency_key=f"key {number} {at}") for at, message in enumerate(messages)]
            txns = [log.append_txn(f"v{at}", [b"body %d %d" % (number, body) for body in range(3)]) for at in range(2)]
            wide = log.broadcast().append(BroadcastMessage(vchannels=["v0", "v1"], payload=b"all %d" % number, needs_ack=False), wait=True)
            await asyncio.gather(*keyed, *txns, wide)
        async with log.read("v0", cursor="reader", follow=False) as scanner:
            assert len([message async for message in scanner]) > 10
            await scanner.save()
        saved_by = await log.allocate_time_tick()
        await log.create_vchannel("late")
        made.append(await backup_after(log, data, target))
        await log.raw_append(Message("v1", b"after"))
        expected = {info.name: await rows_of(log, info.name) for info in (first, second)}
        keys = {f"key {number} {at}": await keyed_tick(log, number, at) for number in range(3) for at in range(6)}
    ticks = sorted({tick for rows in expected.values() for tick, _ in rows if made[0].tick < tick <= made[1].tick})
    assert len(ticks) > 20
    idle = min(max(tick for tick, _ in rows if tick <= made[1].tick) for rows in expected.values())
    between = sorted({*ticks, *(tick - 1 for tick in ticks)} - {made[0].tick})
    for turn, tick in enumerate([*(between if soak > 1 else between[:: len(between) // 6]), saved_by]):
        place = tmp_path / f"restored {turn}"
        restored = await restore(str(target), str(place), up_to=tick)
        assert restored is not None
        assert restored.tick == tick
        async with open_wal(place) as log:
            assert tick >= idle or "late" not in {info.name for info in await log.vchannels()}
            async with log.read("v0", cursor="reader", follow=False) as scanner:
                unread = [message.time_tick async for message in scanner if message.time_tick <= tick]
            passed = [] if tick >= saved_by else sorted({row[0] for row in expected["v0"][1:] if row[0] <= tick})
            assert unread == passed, "it is where it was at the tick"
            while await log.broadcast().tasks():  # a broadcast that had begun is being completed
                await asyncio.sleep(0.01)
            for name, rows in expected.items():
                ours = await rows_of(log, name)
                count = len([row for row in rows if row[0] <= tick])
                assert ours[:count] == rows[:count]
                assert all(b"all" in payload for _, payload in ours[count:]), "only what completes a broadcast that had begun"
            copies = [[payload for _, payload in await rows_of(log, name) if b"all" in payload] for name in expected]
            assert sorted(copies[0]) == sorted(copies[1])
            for key, written in keys.items():
                result = await log.raw_append(Message(f"v{int(key[-1]) % 2}", b"again"), idempotency_key=key)
                assert result.duplicate == (written <= tick), key
        assert await verify_files(place) == 0


async def backup_after(log: WALAccesser, data: Path, target: Path) -> Manifest:
    """Makes a backup of all written messages: an idle pchannel promises its ticks later."""
    written = await log.allocate_time_tick()
    while (manifest := await backup(str(data), str(target))).tick < written:
        await asyncio.sleep(0.01)
    return manifest


async def test_restored_broadcast_has_all_copies(tmp_path: Path) -> None:
    """The backup runs right after a broadcast: the promised tick of another pchannel may be below its copies there."""
    data, target = tmp_path / "data", tmp_path / "target"
    async with open_wal(data, pchannels=2) as log:
        names = [(await log.create_vchannel(f"v{number}", pchannel=f"p{number}")).name for number in range(2)]
        for number in range(4):
            await log.broadcast().append(BroadcastMessage(vchannels=names, payload=b"%d" % number, needs_ack=False), wait=True)
            await backup(str(data), str(target))
    for manifest in await backups(str(target)):
        place = tmp_path / f"restored {manifest.number}"
        await restore(str(target), str(place), up_to=manifest.tick)
        async with open_wal(place) as log:
            while await log.broadcast().tasks():
                await asyncio.sleep(0.01)
            copies = [[payload for _, payload in await rows_of(log, name)] for name in names]
            assert copies[0] == copies[1]


@pytest.mark.parametrize("ahead", [False, True], ids=["", "ticks ahead"])
@pytest.mark.parametrize("with_base", [False, True], ids=["", "base"])
async def test_broadcasts_between_backups_are_those_at_the_tick(tmp_path: Path, ahead: bool, with_base: bool) -> None:
    """A cut broadcast gets all its copies, also where ticks are an hour ahead of the clock, because it was set back. A broadcast that was
    acknowledged after the tick waits for the acknowledgement again. But while ticks are ahead its end cannot be compared with them, and it
    stays ended.
    """

    class ClockAhead(SystemClock):
        """The clock of a machine that is an hour ahead."""

        wall = staticmethod(lambda: time.time() + 3600)

    async def tasks_are(log: WALAccesser, expected: list[int]) -> bool:
        return [task.broadcast_id for task in await log.broadcast().tasks()] == expected

    data, target = tmp_path / "data", tmp_path / "target"
    if ahead:
        earlier = LocalLog(parse_location(str(data)), Settings().replace(pchannels=2), clock=ClockAhead())
        await earlier.open()
        await earlier.close()
    async with open_wal(data, pchannels=2) as log:
        names = [(await log.create_vchannel(f"v{number}", pchannel=f"p{number}")).name for number in range(2)]
        if with_base:
            await backup(str(data), str(target))
        acked, waiting = [await log.broadcast().append(BroadcastMessage(vchannels=names, payload=b"ack")) for _ in range(2)]
        for name in names:
            await log.broadcast().ack(acked.broadcast_id, name)
        await asyncio.sleep(0.002)  # the mark of an end has its millisecond
        cut = await log.broadcast().append(BroadcastMessage(vchannels=names, payload=b"cut", needs_ack=False), wait=True)
        tick = min(result.time_tick for result in cut.append_results.values() if result.time_tick is not None)
        await asyncio.sleep(0.002)
        for name in names:
            await log.broadcast().ack(waiting.broadcast_id, name)
        assert await log.broadcast().tasks() == []
        await backup_after(log, data, tmp_path / "others")
        await backup(str(data), str(target))
    restored = await restore(str(target), str(tmp_path / "restored"), up_to=tick)
    assert restored is not None
    assert restored.tick == tick
    async with open_wal(tmp_path / "restored") as log:
        expected = [] if ahead else [waiting.broadcast_id]
        await eventually(lambda: tasks_are(log, expected))
        copies = [[payload for _, payload in await rows_of(log, name)] for name in names]
    assert copies == [[b"ack", b"ack", b"cut"]] * 2


async def test_restore_keeps_a_moving_cursor_with_its_output(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    async with open_wal(data) as log:
        results = await log.append_bulk([Message("v0", b"%d" % number) for number in range(8)])
        await backup(str(data), str(target))
        ticks = []
        async with log.read("v0", cursor="stage") as scanner:
            for _ in range(6):
                message = await anext(scanner)
                async with log.txn("out") as txn:
                    await txn.append(message.payload)
                    txn.save(scanner)
                assert txn.result is not None
                assert txn.result.time_tick is not None
                ticks.append(txn.result.time_tick)
        await backup(str(data), str(target))
    for turn, tick in enumerate((ticks[0] - 1, ticks[0], ticks[3], ticks[3] - 1)):
        place = tmp_path / f"restored {turn}"
        await restore(str(target), str(place), up_to=tick)
        async with open_wal(place) as log:
            done = [int(payload) for _, payload in await rows_of(log, "out")]
            assert len(done) == len([one for one in ticks if one <= tick])
            async with log.read("v0", cursor="stage", follow=False) as scanner:
                assert done + [int(message.payload) async for message in scanner] == list(range(8))
    # Below the first backup, the log exists from its beginning on.
    assert results[2].time_tick is not None
    restored = await restore(str(target), str(tmp_path / "early"), up_to=results[2].time_tick)
    assert restored is not None
    assert restored.tick == results[2].time_tick
    async with open_wal(tmp_path / "early") as log:
        assert [int(payload) for _, payload in await rows_of(log, "v0")] == [0, 1, 2]


async def test_follow_copies_what_is_new(tmp_path: Path) -> None:
    async with open_wal(tmp_path / "data") as log:
        await fill(log)
        at = 0
        async for manifest in follow(str(tmp_path / "data"), str(tmp_path / "target"), interval_s=0.01):
            at += 1
            assert manifest.number == at
            result = await log.raw_append(Message("v0", b"%d" % at))
            if at == 4:
                break
        assert result.time_tick is not None
        assert manifest.tick < result.time_tick
        newest = await backup(str(tmp_path / "data"), str(tmp_path / "target"))
        assert newest.tick >= result.time_tick
    assert await forget(str(tmp_path / "target"), keep=2) == [1, 2, 3]
    assert await verify_whole(str(tmp_path / "target")) == []
    assert await verify(str(tmp_path / "target")) == []
    await check_restored(tmp_path / "data", tmp_path / "target", tmp_path / "restored")


async def test_segment_in_many_backups_has_few_chunks(tmp_path: Path) -> None:
    data, target, at = str(tmp_path / "data"), str(tmp_path / "target"), 0
    async with open_wal(data) as log:
        async for _ in follow(data, target, interval_s=0, keep=2):
            await fill(log)
            at += 1
            if at == 40:
                break
    made = await backups(target)
    assert [manifest.number for manifest in made] == [38, 39, 40]
    (segment,) = made[-1].pchannels["p0"].segments
    assert 1 < len(segment.chunks) < 10
    assert await verify_whole(target) == []
    needed = {name for manifest in made for name in manifest.names()}
    assert {f"{OBJECTS}{path.name}" for path in (tmp_path / "target" / OBJECTS).iterdir()} == needed


@pytest.mark.parametrize("kind", ["directory", "obstore directory", "obstore memory"])
def test_store_creates_an_object_once(kind: str, tmp_path: Path) -> None:
    store: BackupStore
    if kind == "directory":
        store = open_store(tmp_path / "store")
    else:
        obstore = pytest.importorskip("obstore.store")
        there = obstore.MemoryStore() if kind == "obstore memory" else obstore.LocalStore(tmp_path / "store", mkdir=True)
        store = ObjectStore(there, kind)
    assert store.names(PREFIX) == {}
    store.create(f"{PREFIX}1", b"first")
    with pytest.raises(ObjectExistsError):
        store.create(f"{PREFIX}1", b"second")
    store.create(f"{OBJECTS}1", b"object")
    assert store.get(f"{PREFIX}1", 5) == b"first"
    with pytest.raises(CorruptionError, match="has 5 bytes"):
        store.get(f"{PREFIX}1", 4)
    assert list(store.names(PREFIX)) == [f"{PREFIX}1"]
    store.delete(f"{PREFIX}1")
    store.delete(f"{PREFIX}1")
    with pytest.raises(FileNotFoundError):
        store.get(f"{PREFIX}1", 5)


async def test_store_that_ignores_conditions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old S3 server overwrites an existing object although the request has `If-None-Match: *`."""
    pytest.importorskip("obstore")
    requests: list[tuple[str, str]] = []

    class Bucket(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            requests.append((self.command, self.headers.get("If-None-Match", "")))
            bodies = {"GET": b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>", "POST": b"<DeleteResult/>"}
            body = bodies.get(self.command, b"")
            self.send_response(200)
            self.send_header("ETag", '"1"')
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = answer

        def log_message(self, format: str, *args: object) -> None: ...

    async with open_wal(tmp_path / "data") as log:
        await fill(log)
    with ThreadingHTTPServer(("127.0.0.1", 0), Bucket) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        environment = {"ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "ALLOW_HTTP": "true", "SKIP_SIGNATURE": "true"}
        for name, value in (environment | {"REGION": "us-east-1"}).items():
            monkeypatch.setenv(f"AWS_{name}", value)
        try:
            with pytest.raises(InvalidArgumentError, match=r"s3://bucket/logs has put an object twice.*name a directory"):
                await backup(str(tmp_path / "data"), "s3://bucket/logs")
        finally:
            server.shutdown()
    assert [request for request in requests if request[0] != "GET"] == [("PUT", "*"), ("PUT", "*"), ("POST", "")]


def test_object_missing_from_a_listing_is_ignored(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.create(f"{PREFIX}1.json", b"")
    (tmp_path / PREFIX / "probe").symlink_to("missing")  # it is listed, and its times are unreadable, as those of a removed file
    assert list(store.names(PREFIX)) == [f"{PREFIX}1.json"]


async def test_two_writers_of_one_backup_exclude_each_other(tmp_path: Path) -> None:
    async with open_wal(tmp_path / "data") as log:
        await fill(log)
        results = await asyncio.gather(
            *(backup(str(tmp_path / "data"), str(tmp_path / "target")) for _ in range(8)), return_exceptions=True
        )
    made = [result.number for result in results if isinstance(result, Manifest)]
    assert made
    assert len(set(made)) == len(made)
    assert all(isinstance(result, Manifest | LockedError) for result in results), results
    assert [manifest.number for manifest in await backups(str(tmp_path / "target"))] == sorted(made)


async def test_damage_is_found_and_not_restored(tmp_path: Path) -> None:
    async with open_wal(tmp_path / "data") as log:
        await fill(log)
    target = tmp_path / "target"
    await backup(str(tmp_path / "data"), str(target))
    for path in sorted((target / OBJECTS).iterdir()):
        kept = path.read_bytes()
        path.write_bytes(kept[:-1] + bytes((kept[-1] ^ 1,)))
        (finding,) = await verify(str(target))
        assert path.name in finding
        if not path.name.startswith(INDEX):  # a restore reads no index
            with pytest.raises(CorruptionError):
                await restore(str(target), str(tmp_path / "restored"))
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["data", "target"]
        path.write_bytes(kept)


async def test_damage_of_the_log_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A backup reads each byte once. Later backups repeat the damage that it detected, until the log has dropped it."""
    data, target = tmp_path / "data", tmp_path / "target"
    command = ["backup", str(data), "--to", str(target)]
    async with open_wal(data) as log:
        await fill(log)
        first = await backup(str(data), str(target))
        before = {name: [row for row in rows if row[0] <= first.tick] for name, rows in (await content(data)).items()}
        await log.raw_append(Message("v0", b"to be damaged" * 100))
        await fill(log)
        path = data / "pchannels" / "p0" / f"{0:016x}.wal"
        offset = path.read_bytes().index(b"to be damaged")
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(b"damaged ")
        assert await asyncio.to_thread(main, command) == 1
        second = (await backups(str(target)))[-1]
        (part,) = second.damage
        assert part.file == f"pchannels/p0/{path.name}"
        assert 0 <= offset - part.offset < 4096, "the offset of the frame"
        assert f"{part.file} at offset {part.offset}: " in capsys.readouterr().out
        await fill(log)
        assert await asyncio.to_thread(main, [*command, "--json"]) == 1
        (row,) = [row for row in map(json.loads, capsys.readouterr().out.splitlines()) if row["row"] == "backup_damage"]
        assert row == {"version": 1, "row": "backup_damage", "backup": 3, **msgspec.to_builtins(part)}
    (finding,) = await verify(str(target))
    assert finding.startswith("backup 2: the log was damaged when it was copied, ")
    await restore(str(target), str(tmp_path / "restored"), up_to=first.tick)
    assert await content(tmp_path / "restored") == before


async def test_checkpoint_may_be_replaced_while_segments_are_copied(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    async with open_wal(data) as log:
        await log.raw_append(Message("v0", b"keyed"), idempotency_key="first")
        await fill(log)
    (checkpoint,) = (data / "pchannels" / "p0").glob("checkpoint-*[0-9a-f]")
    kept = checkpoint.read_bytes()

    def progress(so_far: dict[str, object]) -> None:
        if f"p0-{0:016x}-" in str(so_far["name"]):
            checkpoint.unlink(missing_ok=True)

    made = await backup(str(data), str(target), progress=progress)
    assert list(made.pchannels["p0"].files) == [checkpoint.name]
    assert not checkpoint.exists()
    checkpoint.write_bytes(kept)
    await check_restored(data, target, tmp_path / "restored")


async def test_incompressible_chunk_is_stored_uncompressed(tmp_path: Path) -> None:
    async with open_wal(tmp_path / "data") as log:
        await log.append_bulk([Message("v0", os.urandom(200_000)) for _ in range(5)])
        noise = await backup(str(tmp_path / "data"), str(tmp_path / "target"))
        await log.append_bulk([Message("v0", bytes(200_000)) for _ in range(25)])
        zeros = await backup(str(tmp_path / "data"), str(tmp_path / "target"))
    suffixes = [[chunk.name[-4:] for chunk in made.pchannels["p0"].segments[-1].chunks] for made in (noise, zeros)]
    assert ".zst" not in suffixes[0]
    assert suffixes[1][-1] == ".zst"
    assert await verify_whole(str(tmp_path / "target")) == []


async def test_damaged_manifest_blocks_no_other_backup(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    async with open_wal(data) as log:
        await fill(log)
        made = [await backup(str(data), str(target))]
        for _ in range(2):
            await log.raw_append(Message("v0", b"more"))
            made.append(await backup(str(data), str(target)))
    path = target / manifest_name(3)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CorruptionError, match=rf"restore up to 20.*\(tick {made[1].tick}\) for the one before"):
        await restore(str(target), str(tmp_path / "restored"))
    await check_restored(data, target, tmp_path / "restored", up_to=made[2].tick)
    assert await backups(str(target)) == made[:2]
    (finding,) = await verify(str(target))
    assert path.name in finding
    made[2] = await backup(str(data), str(target))
    assert made[2].number == 4
    assert path.name in caplog.text
    assert {chunk.name for chunk in made[1].chunks()} & {chunk.name for chunk in made[2].chunks()}, "it goes on with the one before"
    await check_restored(data, target, tmp_path / "whole")
    objects = sorted((target / OBJECTS).iterdir())
    assert await forget(str(target), keep=2) == [1]
    assert sorted((target / OBJECTS).iterdir()) == objects, "the damaged one may need them"
    assert await forget(str(target), keep=1) == [2]
    assert not path.exists()


async def test_bad_input_changes_nothing(tmp_path: Path) -> None:
    for name in ("data", "other"):
        async with open_wal(tmp_path / name) as log:
            await fill(log)
    target = tmp_path / "target"
    await backup(str(tmp_path / "data"), str(target))
    before = sorted(path.name for path in target.rglob("*"))
    with pytest.raises(InvalidArgumentError, match="another log"):
        await backup(str(tmp_path / "other"), str(target))
    with pytest.raises(InvalidArgumentError, match="is not a journal"):
        await backup("memory:", str(target))
    with pytest.raises(FormatError, match="holds no journal"):
        await backup(str(tmp_path / "nothing"), str(target))
    with pytest.raises(FormatError, match="not empty"):
        await restore(str(target), str(tmp_path / "other"))
    with pytest.raises(FormatError, match="holds no backup"):
        await restore(str(tmp_path / "nothing"), str(tmp_path / "new"))
    with pytest.raises(InvalidArgumentError, match=r"is above 1970-01-01T00:00:00\.000\+00:00 \(tick 1\): the oldest is of 20"):
        await restore(str(target), str(tmp_path / "new"), up_to=1)
    with pytest.raises(InvalidArgumentError, match="keep=0"):
        await forget(str(target), keep=0)
    assert await restore(str(target), str(tmp_path / "other"), if_absent=True) is None
    assert sorted(path.name for path in target.rglob("*")) == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["data", "other", "target"]


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, target, place = (str(tmp_path / name) for name in ("data", "target", "restored"))

    async def make() -> None:
        async with open_wal(data) as log:
            await fill(log)

    asyncio.run(make())
    assert main(["backup", data, "--to", target, "--json"]) == 0
    *progress, made = map(json.loads, capsys.readouterr().out.splitlines())
    assert (progress[0]["row"], progress[0]["objects"]) == ("backup_progress", 1)
    assert made["backup"] == 1
    assert main(["backup", "status", target]) == main(["backup", "verify", target]) == 0
    assert main(["restore", target, place, "--to", str(made["tick"])]) == 0
    assert main(["restore", target, place, "--if-absent"]) == 0
    assert main(["restore", target, place]) == 4
    capsys.readouterr()
    assert main(["restore", target, str(tmp_path / "early"), "--to", "2020-01-01"]) == 2
    assert (
        f"is above 2020-01-01T00:00:00.000+00:00 (tick {1577836800000 << 18}): the oldest is of {made['time'][:19]}"
        in capsys.readouterr().err
    )
    assert main(["restore", target, place, "--to", "soon"]) == 2
    assert main(["backup", "forget", target, "--keep", "1"]) == 0
    capsys.readouterr()
    object_ = next(iter((tmp_path / "target" / OBJECTS).iterdir()))
    object_.unlink()
    assert main(["backup", "verify", target]) == 1
    assert "it is missing" in capsys.readouterr().out
    assert main(["backup", "verify", target, "--json"]) == 1
    row = json.loads(capsys.readouterr().out)
    assert (row["version"], row["row"], "it is missing" in row["problem"]) == (1, "backup_finding", True)
    with pytest.raises(SystemExit, match="2"):
        main(["backup", data])


def test_progress_is_printed_for_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The store waits until the lines are there; a standard error other than a terminal stays empty."""
    data, target = str(tmp_path / "data"), str(tmp_path / "target")

    async def make() -> None:
        async with open_wal(data) as log:
            await fill(log)

    asyncio.run(make())
    lines: list[str] = []

    def wait_for(pattern: str) -> None:
        """Returns when the last line has this form: a line of less than the whole may come before."""
        end_s = time.monotonic() + 60.0
        while not (lines and re.fullmatch(pattern, lines[-1])):
            assert time.monotonic() < end_s, lines
            time.sleep(0.002)

    monkeypatch.setattr(output, "note", lines.append)
    monkeypatch.setattr(output, "_NOTE_S", 0.01)
    main(["backup", data, "--to", str(tmp_path / "quiet")])
    main(["restore", str(tmp_path / "quiet"), str(tmp_path / "quietly")])
    assert lines == []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with monkeypatch.context() as patch:
        create = DirectoryStore.create

        def created(store: DirectoryStore, name: str, content: bytes) -> None:
            if name.startswith(f"{PREFIX}0"):
                wait_for(r"[\d.]+ \w+ stored, in \d+ objects, ([\d.]+ [KM]iB) of \1 of the log")
            create(store, name, content)

        patch.setattr(DirectoryStore, "create", created)
        assert main(["backup", data, "--to", target]) == 0
    restoring = sys.modules["wal.operate.backup.restore"]
    write_control = restoring.write_control

    def control_written(*arguments: Any) -> None:
        wait_for(r"([\d.]+ (B|KiB|MiB)) of \1 restored")
        write_control(*arguments)

    monkeypatch.setattr(restoring, "write_control", control_written)
    assert main(["restore", target, str(tmp_path / "restored")]) == 0
    write_all, writes = tail._write_all, 0

    def written(*arguments: Any) -> None:
        nonlocal writes
        if writes:  # a batch is written
            wait_for(r"\d messages, \d+ B, up to \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00")
        writes += 1
        write_all(*arguments)

    monkeypatch.setattr(tail, "_write_all", written)
    monkeypatch.setattr(tail, "_BATCH", 1)
    assert main(["cat", data, NAMES[0], "--to-jsonl", str(tmp_path / "messages")]) == 0
    assert writes > 1
    assert capsys.readouterr().err == ""


def test_directory_needs_no_extra(tmp_path: Path) -> None:
    program = """
import asyncio, sys
sys.modules["obstore"] = sys.modules["backports.zstd"] = sys.modules["compression.zstd"] = None
from wal import Message, open_wal
from wal.operate.backup import backup, restore
async def main():
    async with open_wal("data") as log:
        await log.raw_append(Message("v0", b"0" * 1000))
        await backup("data", "target")
    print((await restore("target", "restored")).number)
    try:
        await backup("data", "s3://bucket/path")
    except ImportError as error:
        print(error)
asyncio.run(main())
"""
    child = run_python("-c", program, cwd=tmp_path, fresh=True)
    assert child.out.splitlines()[0] == "1", child.err
    assert "[backup]'" in child.out


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", size_mib=2) as disk:
        yield disk


async def test_full_disk_changes_nothing_and_a_retry_continues(tmp_path: Path, small_disk: Path) -> None:
    data, target = str(tmp_path / "data"), str(small_disk / "target")
    async with open_wal(data) as log:
        await fill(log)
        made = await backup(data, target)
        for _ in range(30):
            await log.raw_append(Message("v0", os.urandom(100_000)))
        with pytest.raises(NoSpaceError, match="cannot be written"):
            await backup(data, target)
        assert await backups(target) == [made]
        filler = await asyncio.to_thread(fill_disk, small_disk)
        with pytest.raises(NoSpaceError, match="cannot be written"):
            await restore(target, str(small_disk / "restored"))
        assert sorted(small_disk.iterdir()) == [filler, small_disk / "target"]
        await asyncio.to_thread(subprocess.run, ["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
        assert (await backup(data, target)).number == 2
    await check_restored(tmp_path / "data", small_disk / "target", tmp_path / "restored")


async def test_restore_fills_a_mount_point(tmp_path: Path, small_disk: Path) -> None:
    async with open_wal(tmp_path / "data") as log:
        await fill(log)
    await backup(str(tmp_path / "data"), str(tmp_path / "target"))
    await asyncio.to_thread(subprocess.run, ["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    await check_restored(tmp_path / "data", tmp_path / "target", small_disk)
    assert {path.name for path in small_disk.iterdir()} < _PARTS | {"FORMAT"}
    with pytest.raises(FormatError, match="not empty"):
        await restore(str(tmp_path / "target"), str(small_disk))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
async def test_restored_files_belong_to_the_place(tmp_path: Path) -> None:
    async with open_wal(tmp_path / "data") as log:
        await fill(log)
        async with log.read("v0", cursor="billing", follow=False) as scanner:
            await scanner.save()
    await backup(str(tmp_path / "data"), str(tmp_path / "target"))
    place = tmp_path / "place"
    place.mkdir(mode=0o750)
    os.chown(place, 1234, 2345)
    await restore(str(tmp_path / "target"), str(place))
    for path in (place, *place.rglob("*")):
        status = path.stat()
        private = path.name in _PRIVATE_FILES
        assert (status.st_uid, status.st_gid) == (1234, 2345), path
        assert stat.S_IMODE(status.st_mode) == (0o750 if path.is_dir() else 0o600 if private else 0o640), path


@pytest.mark.parametrize("exists", [False, True])
async def test_killed_restore_leaves_its_place_free(tmp_path: Path, exists: bool) -> None:
    async with open_wal(tmp_path / "data") as log:
        await fill(log)
    target, place = tmp_path / "target", tmp_path / "restored"
    await backup(str(tmp_path / "data"), str(target))
    program = """
import asyncio, itertools, os, signal, sys
from wal.operate.backup import restore
from wal.storage.archive import store
last, get, reads = int(sys.argv[3]), store.DirectoryStore.get, itertools.count(1)
def killed(self, name, bytes_max):
    if next(reads) == last:
        os.kill(os.getpid(), signal.SIGKILL)
    return get(self, name, bytes_max)
store.DirectoryStore.get = killed
asyncio.run(restore(sys.argv[1], sys.argv[2]))
"""
    if exists:
        place.mkdir()
    for reads in (1, 2, 3):
        await asyncio.to_thread(run_python, "-c", program, target, place, reads, code=-signal.SIGKILL)
        assert not (place / "FORMAT").exists()
    await check_restored(tmp_path / "data", target, place)
    assert [path.name for path in place.iterdir() if path.name.startswith(".")] == []


async def test_backup_killed_at_any_step_is_continued(tmp_path: Path) -> None:
    """Every write of a backup, of its objects, its manifest and its hint, is the last one of a process in turn."""
    async with open_wal(tmp_path / "data") as log:
        await fill(log)
        async with log.read("v0", cursor="billing", follow=False) as scanner:
            await scanner.save()
    target = tmp_path / "target"
    program = """
import asyncio, ctypes, itertools, os, signal, sys
from wal.operate.backup import backup
from wal.storage.archive import store
write, writes = store.DirectoryStore._write, itertools.count(1)
def killed(self, name, data, move):
    number = next(writes)  # several threads store objects at once
    if number == last - 1 and name:
        move = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # its temporary file is there
    write(self, name, data, move)
    if number == last:
        os.kill(os.getpid(), signal.SIGKILL)
store.DirectoryStore._write = killed
count = 0
for last in range(1, 100):
    if not (pid := os.fork()):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it dies with its parent
        asyncio.run(backup(sys.argv[1], sys.argv[2]))
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0:
        break
    count += 1
print(count)
"""
    ended = await asyncio.to_thread(run_python, "-c", program, tmp_path / "data", target)
    assert int(ended.out) >= 3
    made = await backups(str(target))
    assert [manifest.number for manifest in made] == list(range(1, len(made) + 1))
    assert await verify_whole(str(target)) == []
    await check_restored(tmp_path / "data", target, tmp_path / "restored")


async def test_index_that_is_lost_or_contradicts_is_named(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    async with open_wal(data) as log:
        await fill(log)
    made = await backup(str(data), str(target))
    name, copy = next(iter(made.pchannels.items()))
    segment = copy.segments[-1]
    chunk, store = segment.chunks[0], await asyncio.to_thread(open_store, target)
    assert chunk.index is not None
    assert chunk.index_name is not None
    path = target / chunk.index_name
    kept = path.read_bytes()
    path.unlink()
    (finding,) = await verify(str(target))
    assert finding.startswith(f"backup 1: {path} is damaged: it is missing")
    # An index without one of the vchannels, with the checksum that its manifest names.
    index = ObjectIndex.decode(kept, segment, chunk)
    del index.frames._names["v0"]
    index.frames.last = (1, 0)
    lying = index.encode(incarnation=chunk.index.incarnation, generation=segment.generation)
    changed = msgspec.structs.replace(chunk, index=msgspec.structs.replace(chunk.index, size=len(lying), crc=google_crc32c.value(lying)))
    copies = (*copy.segments[:-1], msgspec.structs.replace(segment, chunks=(changed, *segment.chunks[1:])))
    manifest = msgspec.structs.replace(made, pchannels={name: msgspec.structs.replace(copy, segments=copies)})
    (target / manifest_name(1)).write_bytes(manifest.encode())
    assert changed.index_name is not None
    await asyncio.to_thread(store.create, changed.index_name, lying)
    (finding,) = await verify(str(target))
    assert f"{changed.index_name} is damaged: it contradicts the object {chunk.name}" in finding
