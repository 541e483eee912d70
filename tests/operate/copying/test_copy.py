"""Copies of a log: the target has the source's content, also for a log in use, a killed copy and another number of pchannels."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.operate.cli.test_change import until_shown
from tests.processes import Child, eventually, run_python
from tests.small_disk import fill as fill_disk
from tests.small_disk import mounted
from wal import BroadcastMessage, Delivery, Message, ProducerKey, ResourceKey, Retry, WALAccesser, bridge, open_wal
from wal.errors import FormatError, InvalidArgumentError, NoSpaceError, StorageError, UnavailableError
from wal.operate.cli.main import main
from wal.operate.copying import CopyResult, copy
from wal.operate.copying import source as source_of_copies

NAMES = tuple(f"v{number}" for number in range(7))
PAIR = ("v1", "pair")
LATER = datetime(2100, 1, 1, tzinfo=UTC)
Content = dict[str, Any]


async def fill(log: WALAccesser, rounds: int = 5) -> None:
    """Appends with keys, in transactions and by broadcasts, and saves cursors."""
    for turn in range(rounds):
        appends = (log.raw_append(Message(name, b"%d" % turn * 50), idempotency_key=f"{name}-{turn}") for name in NAMES)
        await asyncio.gather(*appends)
        await log.raw_append(Message("v0", b"produced"), idempotency_key=ProducerKey("producer", turn))
        async with log.txn(vchannels=PAIR, idempotency_key=f"txn-{turn}") as txn:
            await txn.append(Message("v1", b"first"))
            await txn.append(Message("pair", b"second", properties={"turn": str(turn)}))
    await log.broadcast().append(BroadcastMessage(vchannels=NAMES, payload=b"all", resource_keys=[ResourceKey("table", "users")]))
    await log.append("v3", b"later", deliver_at=LATER, idempotency_key="later")
    for cursor, count in (("begun", 1), ("half", 6), ("all", 99)):
        async with log.read("v0", cursor=cursor, follow=False) as scanner:
            for _ in range(count):
                if await anext(scanner, None) is None:
                    break
            await scanner.save()


async def prepare(place: Path | str, **settings: Any) -> None:
    async with open_wal(place, **settings) as log:
        for name in NAMES:
            await log.create_vchannel(name)
        (pchannel,) = [info.pchannel for info in await log.vchannels() if info.name == "v1"]
        await log.create_vchannel("pair", pchannel=pchannel)
        await fill(log)


async def content(place: Path | str, **settings: Any) -> Content:
    """Returns the content that a copy keeps: events, ticks and headers by vchannel, cursors with their next reads, producers and
    broadcasts.
    """
    async with open_wal(place, read_only=True, **settings) as log:
        found: Content = {}
        for info in await log.vchannels():
            async with log.read(info.name, follow=False) as scanner:
                found[info.name] = [
                    (message.time_tick, message.message_type, message.broadcast, message.txn_context, bodies_of(message))
                    async for message in scanner
                ]
        for cursor in await log.cursors():
            async with log.read(cursor.vchannels, cursor=cursor.name, follow=False) as scanner:
                left = [message.time_tick async for message in scanner]
            found[f"cursor {cursor.name}"] = (cursor.position and cursor.position.time_tick, cursor.stale, left)
    return found


def bodies_of(message: Any) -> list[tuple[bytes, dict[str, str]]]:
    return [(body.payload, dict(body.properties)) for body in message.bodies()]


async def remembered(place: Path | str, **settings: Any) -> Content:
    """Returns the state that only the writer has, and appends with all keys again, which must write nothing."""
    async with open_wal(place, **settings) as log:
        for name in NAMES:
            result = await log.raw_append(Message(name, b"again"), idempotency_key=f"{name}-2")
            assert result.duplicate, name
        assert (await log.raw_append(Message("v0", b"again"), idempotency_key=ProducerKey("producer", 1))).duplicate
        async with log.txn(vchannels=PAIR, idempotency_key="txn-4") as txn:
            await txn.append(Message("v1", b"again"))
        assert txn.result is not None
        assert txn.result.duplicate
        tasks = [(task.broadcast_id, task.resource_keys, task.missing_appends, task.missing_acks) for task in await log.broadcast().tasks()]
        scheduled = [(message.key, message.deliver_at) for message in await log.scheduled("v3")]
        assert scheduled == [("later", LATER)]
        return {"producers": await log.producers(), "broadcasts": tasks, "scheduled": scheduled}


async def compare(source: Path | str, target: Path | str, of: dict[str, Any], to: dict[str, Any]) -> None:
    before = await content(source, **of)
    assert len(before["v0"]) == 11
    assert await content(target, **to) == before
    assert await remembered(target, **to) == await remembered(source, **of)


@pytest.mark.parametrize("pchannels", [None, 1, 5])
async def test_copied_log_is_the_log(tmp_path: Path, pchannels: int | None) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    await prepare(source, pchannels=3, compression="none" if pchannels is None else "zstd")
    result = await copy(str(source), str(target), pchannels=pchannels)
    assert isinstance(result, CopyResult)
    assert (result.pchannels, result.cursors, result.resumed) == (pchannels or 3, 3, False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]
    async with open_wal(target, read_only=True) as log:
        pchannels_of = {info.name: info.pchannel for info in await log.vchannels()}
    assert len(set(pchannels_of.values())) == (min(pchannels, 4) if pchannels else 3)
    assert pchannels_of["v1"] == pchannels_of["pair"]
    await compare(source, target, {}, {})


async def test_copy_over_pulsar_and_back(pulsar_address: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    location, settings = pulsar_address
    source, back = tmp_path / "source", tmp_path / "back"
    await prepare(source, pchannels=2)
    own = {name: value for name, value in settings.items() if name != "kv"}
    there = ["--from-kv", settings["kv"], "--set", f"pulsar_admin_url={own['pulsar_admin_url']}"]
    async with pulsar_token(own):
        for arguments in (
            [str(source), location, "--to-kv", settings["kv"], *there[2:], "--pchannels", "1"],
            [location, str(back), *there, "--pchannels", "2"],
        ):
            ended = await asyncio.to_thread(run_python, "-m", "wal", "copy", *arguments, "--json", fresh=True)
            assert json.loads(ended.out.splitlines()[-1])["cursors"] == 3
    before = await content(source)
    assert await content(location, **settings) == before
    await compare(source, back, {}, {})


@contextlib.asynccontextmanager
async def pulsar_token(settings: dict[str, Any]) -> Any:
    """Provides the token to other processes; it has no flag."""
    with pytest.MonkeyPatch.context() as patch:
        if settings.get("pulsar_token"):
            patch.setenv("WAL_PULSAR_TOKEN", settings["pulsar_token"])
        yield


@pytest.fixture
def pulsar_address(pulsar_host: str, pulsar_admin_host: str, pulsar_token: str, pulsar_namespace: str, etcd_address: str) -> Any:
    settings = {"pulsar_admin_url": f"http://{pulsar_admin_host}", "kv": f"etcd://{etcd_address}/{pulsar_namespace}"}
    return f"pulsar://{pulsar_host}/{pulsar_namespace}", settings | ({"pulsar_token": pulsar_token} if pulsar_token else {})


async def test_killed_copy_goes_on(tmp_path: Path, soak: int) -> None:
    """The writer runs and the copy is killed at any moment: the target is not a log before it is whole, and then it is the log."""
    source, target = tmp_path / "source", tmp_path / "target"
    async with Child("-m", "tests.operate.backup.writer", source, 3) as writer:
        assert await writer.line() == "writing"
        await until_shown(source, *NAMES[:3])  # a reader lists no vchannel that a killed writer had not shown
        for _ in range(soak):
            async with Child("-m", "wal", "copy", source, target, "--follow", "--json", "--pchannels", 3) as copier:
                assert json.loads(await copier.line())["row"] == "copy_progress"
                await copier.kill()
            assert not target.exists()
        following = asyncio.ensure_future(copy(str(source), str(target), follow=True))
        await writer.kill()
    result = await asyncio.wait_for(following, 60)
    assert result is not None
    assert result.resumed
    assert await content(target) == await content(source)


async def test_follow_cuts_over_when_the_writer_closes(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    async with open_wal(source) as log:
        await log.raw_append(Message("v0", b"first"))
        stop = asyncio.Event()
        seen: list[int] = []
        stopped = asyncio.ensure_future(
            copy(str(source), str(target), follow=True, stop=stop, progress=lambda row: seen.append(row.events))
        )
        await eventually(lambda: seen == [1])
        stop.set()
        assert await stopped is None
        assert not target.exists()
        following = asyncio.ensure_future(copy(str(source), str(target), follow=True))
        last = await log.raw_append(Message("v1", b"last"))
    result = await asyncio.wait_for(following, 60)
    assert result is not None
    assert result.resumed
    async with open_wal(target) as log:
        async with log.read("v1", follow=False) as scanner:
            assert (await anext(scanner)).time_tick == last.time_tick
        assert (await log.raw_append(Message("v1", b"new"))).time_tick > (last.time_tick or 0)


@pytest.mark.parametrize("promised", [True, False])
async def test_copy_in_use_has_earlier_acknowledged_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, promised: bool) -> None:
    """A pchannel beside it is idle: the copy waits for its promise, and fails if none comes."""
    if not promised:
        monkeypatch.setattr(source_of_copies, "PROMISE_S", 0.1)
    async with open_wal(tmp_path / "source", pchannels=2, time_tick_interval_s=1.0 if promised else 60.0) as log:
        await log.create_vchannel("busy", pchannel="p0")
        await log.create_vchannel("idle", pchannel="p1")
        for number in range(20):
            await log.append("busy", b"%d" % number)
        copying = copy(str(tmp_path / "source"), str(tmp_path / "target"))
        if not promised:
            with pytest.raises(UnavailableError, match="pchannel p1 of "):
                await copying
            return
        await copying
    async with open_wal(tmp_path / "target", read_only=True) as log, log.read("busy", follow=False) as scanner:
        assert [message.payload async for message in scanner] == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("pchannels", [None, 1, 5])
async def test_running_broadcasts_are_copied_whole_and_once(tmp_path: Path, pchannels: int | None) -> None:
    """Each broadcast that had ended when the copy began is in the target, and each of its broadcasts has one copy on every vchannel."""

    async def eventually_none_is_left(log: WALAccesser) -> None:
        async with asyncio.timeout(60):
            while await log.broadcast().tasks():
                await asyncio.sleep(0.01)

    ended: set[int] = set()

    async def write(log: WALAccesser) -> None:
        while True:
            result = await log.broadcast().append(BroadcastMessage(vchannels=NAMES, payload=b"x", needs_ack=False), wait=True)
            ended.add(result.broadcast_id)

    async with open_wal(tmp_path / "source", pchannels=3) as log:
        writing = [asyncio.create_task(write(log)) for _ in range(3)]
        await eventually(lambda: len(ended) >= 50)
        before = set(ended)
        await copy(str(tmp_path / "source"), str(tmp_path / "target"), pchannels=pchannels)
        for task in writing:
            task.cancel()
        await asyncio.gather(*writing, return_exceptions=True)
    copies: dict[int, list[str]] = {}
    async with open_wal(tmp_path / "target") as log:
        await eventually_none_is_left(log)
        for name in NAMES:
            async with log.read(name, follow=False) as scanner:
                async for message in scanner:
                    assert message.broadcast is not None
                    copies.setdefault(message.broadcast.broadcast_id, []).append(name)
    assert before <= copies.keys()
    assert [names for names in copies.values() if names != list(NAMES)] == []


async def test_truncated_keys_and_cursors_survive(tmp_path: Path) -> None:
    """The target has the state that only a checkpoint of the source has: producers whose messages are truncated, and keys."""
    source, target = tmp_path / "source", tmp_path / "target"
    async with open_wal(source) as log:
        for number in range(30):
            result = await log.raw_append(Message("v0", b"%d" % number), idempotency_key=ProducerKey("old", number))
            keyed = await log.raw_append(Message("v0", b"%d" % number), idempotency_key=f"key-{number}")
        assert keyed.message_id is not None
        await log.truncate(up_to=keyed.message_id)
        await log.raw_append(Message("v0", b"kept"))
    assert result.time_tick is not None
    await copy(str(source), str(target))
    async with open_wal(target) as log:
        assert (await log.raw_append(Message("v0", b"again"), idempotency_key=ProducerKey("old", 29))).duplicate
        assert (await log.raw_append(Message("v0", b"again"), idempotency_key="key-7")).duplicate
        assert not (await log.raw_append(Message("v0", b"new"), idempotency_key=ProducerKey("old", 30))).duplicate
        async with log.read("v0", follow=False) as scanner:
            assert [message.payload async for message in scanner] == [b"kept", b"new"]


@pytest.mark.parametrize("pchannels", [None, 1])
async def test_cursor_of_transactions_moves_on(tmp_path: Path, pchannels: int | None) -> None:
    """A cursor that is saved with transactions continues in the copy, in the log of its home there."""
    source, target = tmp_path / "source", tmp_path / "target"
    async with open_wal(source, pchannels=2) as log:
        home = (await log.create_vchannel("v1")).pchannel
        await log.create_vchannel("out", pchannel=home)
        for number in range(4):
            await log.append("in", b"%d" % number)
        await step(log)
        await step(log)
    await copy(str(source), str(target), pchannels=pchannels)
    async with open_wal(target) as log:
        await step(log)
        async with log.read("out", follow=False) as scanner:
            assert [body.payload async for _, body in scanner.bodies()] == [b"0", b"1", b"2"]
    with pytest.raises(InvalidArgumentError, match="or fewer"):
        await copy(str(source), str(tmp_path / "more"), pchannels=3)


async def test_consumer_goes_on_with_what_is_unfinished(tmp_path: Path) -> None:
    """Messages that a consumer has finished after an unfinished one are not handed out again by the copy."""
    source, target = tmp_path / "source", tmp_path / "target"
    failing = True
    handled: list[bytes] = []

    async def handle(delivery: Delivery) -> None:
        if delivery.value == b"1" and failing:
            raise Retry(delay_s=3600)
        handled.append(delivery.value)

    async with open_wal(source, pchannels=2) as log:
        for number in range(5):
            await log.append("in", b"%d" % number)
            await log.append("other", b"%d" % number)
        async with log.consume("in", handle, cursor="jobs", order="none") as consumer:
            await eventually(lambda: len(handled) == 4)
            await eventually(lambda: consumer.statistics().handled == 4)
    failing = False
    await copy(str(source), str(target), pchannels=1)
    async with open_wal(target) as log:
        (info,) = [info for info in await log.cursors() if info.name == "jobs"]
        await log.append("in", b"5")
        async with log.consume("in", handle, cursor="jobs", order="none"):
            await eventually(lambda: b"5" in handled)
    assert info.position is not None
    assert sorted(handled) == [b"0", b"2", b"3", b"4", b"5"], "the first one waits for its next attempt"


async def step(log: WALAccesser) -> None:
    """Passes the next message on, and saves the cursor with it."""
    async with log.read("in", cursor="stage", follow=False) as scanner:
        message = await anext(scanner)
        async with log.txn("out") as txn:
            await txn.append(message.payload)
            txn.save(scanner)


def test_wrong_places_change_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, taken = tmp_path / "source", tmp_path / "taken"
    for place in (source, taken):
        with bridge.blocking(place) as log:
            log.raw_append(Message("v0", b"kept"))
    before = sorted(os.walk(tmp_path))
    for arguments, status, text in (
        ([source, taken], 4, "is not empty: nothing was copied"),
        ([source, source], 2, "into itself"),
        ([tmp_path / "none", tmp_path / "new"], 4, "holds no journal"),
        ([source, "memory:"], 2, "nothing can be copied to"),
        (["wal://127.0.0.1:1", tmp_path / "new", "--follow"], 2, "a log on the network"),
        ([source, tmp_path / "new", "--pchannels", "1001"], 2, "is not a number of pchannels"),
    ):
        assert main(["copy", *map(str, arguments)]) == status
        assert text in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["copy", str(source), str(tmp_path / "new"), "--pchannels", "0"])
    assert sorted(os.walk(tmp_path)) == before


async def test_full_disk_ends_a_copy_that_goes_on(tmp_path: Path) -> None:
    source = tmp_path / "source"
    async with open_wal(source) as log:
        await log.append_bulk([Message("v0", b"x" * 500_000) for _ in range(50)])
    with mounted(tmp_path / "disk", size_mib=64) as disk:
        filler = fill_disk(disk)
        os.truncate(filler, filler.stat().st_size - (16 << 20))
        with pytest.raises((NoSpaceError, StorageError)):
            await copy(str(source), str(disk / "target"))
        assert not (disk / "target").exists()
        filler.unlink()
        result = await copy(str(source), str(disk / "target"))
        assert result is not None
        assert result.resumed
        assert await content(disk / "target") == await content(source)


async def test_part_of_another_log_is_refused(tmp_path: Path) -> None:
    first, second, target = tmp_path / "first", tmp_path / "second", tmp_path / "target"
    for place in (first, second):
        async with open_wal(place) as log:
            await log.raw_append(Message("v0", b"own"))
    stop = asyncio.Event()
    stop.set()
    assert await copy(str(first), str(target), stop=stop) is None
    with pytest.raises(FormatError, match="a part of another log"):
        await copy(str(second), str(target))
    with pytest.raises(FormatError, match="continue with as many"):
        await copy(str(first), str(target), pchannels=2)
    with pytest.raises(InvalidArgumentError):
        await copy(str(first), str(target), pchannels=True)
    result = await copy(str(first), str(target))
    assert result is not None
    assert result.resumed
