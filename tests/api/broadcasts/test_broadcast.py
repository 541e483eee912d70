"""Broadcasts through the accesser: `log.broadcast()` on each backend, over one and over several pchannels."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import wal
from actors import VirtualClock
from tests.locations import open_virtual, open_wal
from tests.probes import broadcasts, local, payloads, read_all, start, turns
from tests.storage.journal.faults import FaultyDisk
from wal import errors
from wal.storage.journal.backend import JournalBackend
from wal.storage.kv import KVBase, KVBatch

pytestmark = [pytest.mark.everywhere, pytest.mark.on_pulsar]

ORDERS = wal.ResourceKey("collection", "orders")
NAMES = [f"orders-{number}" for number in range(12)]


def schema(vchannels: Sequence[str] = NAMES, payload: bytes = b"add column", **changes: Any) -> wal.BroadcastMessage:
    return wal.BroadcastMessage(vchannels=vchannels, payload=payload, resource_keys=(ORDERS,), **changes)


async def copies_of(log: wal.WALAccesser, name: str, broadcast_id: int) -> list[wal.ImmutableMessage]:
    found = await read_all(log, name)
    return [message for message in found if message.broadcast and message.broadcast.broadcast_id == broadcast_id]


@pytest.fixture(params=[1, 4], ids=["one pchannel", "four pchannels"])
async def wide(request: pytest.FixtureRequest, location: str) -> Any:
    async with open_wal(location, pchannels=request.param) as log:
        yield log


# -- appends and reads


@pytest.mark.not_on("cluster", "ticks are unique in a pchannel, not over several nodes")
async def test_each_vchannel_gets_its_copy_once(wide: wal.WALAccesser) -> None:
    before = await wide.raw_append(wal.Message(NAMES[3], b"before"))
    message = schema(properties={"by": "admin"}, message_type=wal.MessageType.SCHEMA_CHANGE)
    result = await wide.broadcast().append(message)
    after = await wide.raw_append(wal.Message(NAMES[3], b"after"))
    assert set(result.append_results) == set(NAMES)
    header = wal.BroadcastHeader(result.broadcast_id, tuple(NAMES), (ORDERS,), True)
    for name in NAMES:
        (copy,) = await copies_of(wide, name, result.broadcast_id)
        own = result.append_results[name]
        assert (copy.message_id, copy.time_tick, copy.last_confirmed) == (own.message_id, own.time_tick, own.last_confirmed)
        assert (copy.vchannel, copy.payload, copy.properties) == (name, b"add column", {"by": "admin"})
        assert copy.message_type is wal.MessageType.SCHEMA_CHANGE
        assert copy.broadcast == header
        assert result.broadcast_id < copy.time_tick
    assert len({own.message_id for own in result.append_results.values()}) == len(NAMES)
    assert len({own.time_tick for own in result.append_results.values()}) == len(NAMES)
    assert before.time_tick < result.append_results[NAMES[3]].time_tick < after.time_tick
    assert await payloads(wide, NAMES[3]) == [b"before", b"add column", b"after"]


async def test_followers_and_filters_see_copies_as_messages(wide: wal.WALAccesser) -> None:
    async with wide.read(NAMES[0], filters=wal.MessageTypes(wal.MessageType.SCHEMA_CHANGE)) as scanner:
        following = start(anext(scanner))
        await turns()
        await wide.raw_append(wal.Message(NAMES[0], b"plain"))
        result = await wide.broadcast().append(schema(message_type=wal.MessageType.SCHEMA_CHANGE))
        assert (await following).message_id == result.append_results[NAMES[0]].message_id
        position = scanner.position
    again = await read_all(wide, NAMES[0], resume=position)
    assert again == []


async def test_thousand_vchannels_share_one_payload(location: str) -> None:
    names = [f"vchannel-{number:04d}" for number in range(1024)]
    async with open_wal(location) as log:
        before = log.statistics().pchannels[0].bytes
        result = await log.broadcast().append(schema(names, payload=bytes(1024)))
        assert log.statistics().pchannels[0].bytes - before <= 64 * 1024
        assert list(result.append_results) == names
        ids = [own.message_id for own in result.append_results.values()]
        assert ids == sorted(ids)
        for name in (names[0], names[511], names[-1]):
            (copy,) = await copies_of(log, name, result.broadcast_id)
            assert copy.payload == bytes(1024)
            assert copy.message_id == result.append_results[name].message_id


@pytest.mark.one_location("the broadcaster is the same on every log")
async def test_sixteen_thousand_vchannels_are_one_broadcast(location: str) -> None:
    names = [f"{number:05d}" for number in range(16_384)]
    async with open_wal(location) as log:
        result = await log.broadcast().append(schema(names, needs_ack=False))
        assert len(result.append_results) == len(names)
        (copy,) = await copies_of(log, names[-1], result.broadcast_id)
        assert copy.broadcast is not None
        assert copy.broadcast.vchannels == tuple(names)
        with pytest.raises(errors.InvalidArgumentError, match="exceeds broadcast_vchannels_max=16384"):
            await log.broadcast().append(schema([*names, "one more"]))


async def test_exclusive_broadcast_fails_the_transactions_on_its_vchannels(location: str) -> None:
    async with open_wal(location) as log:
        hit, spared = await log.txn("a"), await log.txn("b")
        await hit.append(b"body")
        await spared.append(b"body")
        await log.broadcast().append(schema(["a", "c"], message_type=wal.MessageType.SCHEMA_CHANGE))
        with pytest.raises(errors.TransactionExpiredError, match="SCHEMA_CHANGE"):
            await hit.commit()
        await spared.commit()
        plain = await log.txn("a")
        await log.broadcast().append(wal.BroadcastMessage(vchannels=["a", "c"], payload=b"note"))
        await plain.commit()
        assert await payloads(log, "a") == [b"add column", b"note"]


async def test_files_are_read_with_their_copies(data: str) -> None:
    async with open_wal(data, pchannels=2) as log:
        result = await log.broadcast().append(schema())
        async with open_wal(data, read_only=True) as read_only:
            (copy,) = await copies_of(read_only, NAMES[5], result.broadcast_id)
            assert copy.message_id == result.append_results[NAMES[5]].message_id

    def in_a_thread() -> list[wal.ImmutableMessage]:
        with wal.bridge.iterate(data, NAMES[6], follow=False) as messages:
            return list(messages)

    (copy,) = await asyncio.to_thread(in_a_thread)
    assert copy.broadcast is not None
    assert (copy.message_id, copy.broadcast.vchannels) == (result.append_results[NAMES[6]].message_id, tuple(NAMES))


# -- keys, acks, tasks


async def test_keys_are_held_until_every_vchannel_acked(wide: wal.WALAccesser) -> None:
    broadcast = wide.broadcast()
    first = await broadcast.append(schema())
    with pytest.raises(errors.ResourceAcquiredError) as refused:
        await broadcast.append(schema())
    assert (refused.value.holder, refused.value.keys) == (first.broadcast_id, (ORDERS,))
    waiting = start(broadcast.append(schema(payload=b"second"), wait=True))
    once = start(broadcast.block_until_resource_key_ack_once(ORDERS))
    everywhere = start(broadcast.block_until_resource_key_ack_all(ORDERS))
    await turns()
    assert not once.done()
    await broadcast.ack(first.broadcast_id, NAMES[0])
    await once
    (task,) = [task for task in await broadcast.tasks() if task.broadcast_id == first.broadcast_id]
    assert (task.state, task.missing_appends, task.resource_keys) == (wal.BroadcastState.WAIT_ACK, (), (ORDERS,))
    assert task.missing_acks == tuple(NAMES[1:])
    assert task.last_error is None
    for name in NAMES[1:]:
        assert not waiting.done()
        assert not everywhere.done()
        (copy,) = await copies_of(wide, name, first.broadcast_id)
        await broadcast.ack(copy)
        await broadcast.ack(copy)
    await everywhere
    second = await waiting
    assert await payloads(wide, NAMES[2]) == [b"add column", b"second"]
    assert [task.broadcast_id for task in await broadcast.tasks()] == [second.broadcast_id]
    await broadcast.ack(first.broadcast_id, "nobody")  # it is finished
    await broadcast.ack(12345, "nobody")  # it never existed
    with pytest.raises(errors.InvalidArgumentError, match="'nobody' is not in broadcast"):
        await broadcast.ack(second.broadcast_id, "nobody")


async def test_broadcast_without_acks_ends_with_its_copies(wide: wal.WALAccesser) -> None:
    broadcast = wide.broadcast()
    for number in range(3):
        await broadcast.append(schema(payload=b"%d" % number, needs_ack=False))
        assert await broadcast.tasks() == []
    await broadcast.block_until_resource_key_ack_all(ORDERS)
    assert await payloads(wide, NAMES[7]) == [b"0", b"1", b"2"]


async def test_abort_tells_every_vchannel_that_has_its_copy(wide: wal.WALAccesser) -> None:
    broadcast = wide.broadcast()
    first = await broadcast.append(schema())
    await broadcast.ack(first.broadcast_id, NAMES[0])
    await broadcast.abort(first.broadcast_id, "never mind")
    assert await broadcast.tasks() == []
    for name in NAMES:
        copy, told = await copies_of(wide, name, first.broadcast_id)
        assert told.message_type is wal.MessageType.ABORT_BROADCAST
        assert (told.payload, told.broadcast) == (b"never mind", copy.broadcast)
    await broadcast.append(schema())
    await broadcast.abort(first.broadcast_id, "again")
    with pytest.raises(errors.InvalidArgumentError):
        await broadcast.abort(first.broadcast_id - 1, "unknown")


async def dropped_before_its_copy(log: wal.WALAccesser, monkeypatch: pytest.MonkeyPatch) -> int:
    """Returns the id of a broadcast to a and b, on two pchannels, whose b was dropped while its intent was being saved."""
    await log.create_vchannel("a", pchannel="p0")
    await log.create_vchannel("b", pchannel="p1")
    kv = type(local(log).coordinator.kv)
    began, dropped, commit = asyncio.Event(), asyncio.Event(), kv._commit

    async def slow(kv: KVBase, batch: KVBatch) -> str | None:
        if any("task/" in key for key in batch.saves):
            began.set()
            await dropped.wait()
        return await commit(kv, batch)

    with monkeypatch.context() as patched:
        patched.setattr(kv, "_commit", slow)
        call = start(log.broadcast().append(schema(["a", "b"])))
        await began.wait()
        await log.drop_vchannel("b")
        dropped.set()
        with pytest.raises(errors.UnrecoverableError, match="is stuck"):
            await call
    (task,) = await log.broadcast().tasks()
    assert (task.state, task.missing_appends, task.missing_acks) == (wal.BroadcastState.STUCK, ("b",), ("a", "b"))
    assert "'b'" in str(task.last_error)
    assert await payloads(log, "a") == [b"add column"]
    return task.broadcast_id


@pytest.mark.inside
async def test_stuck_broadcast_is_listed_and_can_be_aborted(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_wal(location, pchannels=2) as log:
        broadcast_id = await dropped_before_its_copy(log, monkeypatch)
        with pytest.raises(errors.ResourceAcquiredError):
            await log.broadcast().append(schema(["a"]))
        await log.broadcast().abort(broadcast_id, "b is gone")
        await log.create_vchannel("b")
        assert (await read_all(log, "a"))[-1].message_type is wal.MessageType.ABORT_BROADCAST
        assert await read_all(log, "b") == []
        await log.broadcast().append(schema(["a"]))


async def test_stuck_broadcast_continues_with_a_recreated_vchannel(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    log = await open_virtual("memory:", clock, pchannels=2)
    broadcast_id = await dropped_before_its_copy(log, monkeypatch)
    await log.create_vchannel("b", pchannel="p1")
    while (await log.broadcast().tasks())[0].missing_appends:
        await clock.run(1.0)
    assert await payloads(log, "b") == [b"add column"]
    for name in "ab":
        await log.broadcast().ack(broadcast_id, name)
    assert await log.broadcast().tasks() == []
    await log.close()


@pytest.mark.inside
@pytest.mark.parametrize("recreated_on", ["p0", "p1", None], ids=["on its pchannel", "on another", "not at all"])
async def test_waiting_call_finds_current_vchannels(location: str, recreated_on: str | None) -> None:
    async with open_wal(location, pchannels=2) as log:
        for name in "ab":
            await log.create_vchannel(name, pchannel="p0")
        first = await log.broadcast().append(schema(["a"]))
        second = start(log.broadcast().append(schema(["a", "b"], payload=b"second"), wait=True))
        while not broadcasts(log).waiting:
            await turns()
        await log.drop_vchannel("b")
        if recreated_on is not None:
            await log.create_vchannel("b", pchannel=recreated_on)
        await log.broadcast().ack(first.broadcast_id, "a")
        assert list((await second).append_results) == ["a", "b"]
        assert [await payloads(log, name) for name in "ab"] == [[b"add column", b"second"], [b"second"]]


@pytest.mark.inside
async def test_call_without_its_keys_leaves_nothing(location: str) -> None:
    async with open_wal(location, create_vchannels=False) as log:
        for name in "ab":
            await log.create_vchannel(name)
        first = await log.broadcast().append(schema(["a"]))
        second = start(log.broadcast().append(schema(["a", "b"]), wait=True))
        while not broadcasts(log).waiting:
            await turns()
        await log.drop_vchannel("b")
        await log.broadcast().ack(first.broadcast_id, "a")
        with pytest.raises(errors.ChannelNotExistError, match="'b' does not exist"):
            await second
        assert await log.broadcast().tasks() == []
        await log.broadcast().append(schema(["a"]))
        assert broadcasts(log).bytes_held == 0


@pytest.mark.inside
async def test_refused_broadcast_creates_no_vchannels(location: str) -> None:
    async with open_wal(location) as log:
        first = await log.broadcast().append(schema(["a"]))
        with pytest.raises(errors.ResourceAcquiredError) as refused:
            await log.broadcast().append(schema(["a", "new"]))
        assert refused.value.holder == first.broadcast_id
        gone = start(log.broadcast().append(schema(["a", "newer"]), wait=True))
        while not broadcasts(log).waiting:
            await turns()
        gone.cancel()
        await asyncio.wait((gone,))
        await turns()
        assert [info.name for info in await log.vchannels()] == ["a"]


async def test_results_come_in_the_order_of_the_message(wide: wal.WALAccesser) -> None:
    names = [NAMES[at] for at in (7, 2, 11, 0, 5, 9)]
    result = await wide.broadcast().append(schema([*names, NAMES[7]]))
    assert type(result.append_results) is dict
    assert list(result.append_results) == names
    assert result == pickle.loads(pickle.dumps(result))


# -- vchannels that are dropped before their ack


async def test_dropping_a_vchannel_is_its_ack(wide: wal.WALAccesser) -> None:
    broadcast = wide.broadcast()
    result = await broadcast.append(schema(NAMES[:3]))
    await wide.drop_vchannel(NAMES[1])
    async with asyncio.timeout(60):
        await broadcast.block_until_resource_key_ack_once(ORDERS)
    (task,) = await broadcast.tasks()
    assert (task.state, task.missing_acks, task.last_error) == (wal.BroadcastState.WAIT_ACK, (NAMES[0], NAMES[2]), None)
    await broadcast.ack(result.broadcast_id, NAMES[0])
    await wide.drop_vchannel(NAMES[2])
    async with asyncio.timeout(60):
        await broadcast.block_until_resource_key_ack_all(ORDERS)
    assert await broadcast.tasks() == []


@pytest.mark.parametrize("pchannels", [1, 4])
async def test_drop_before_a_crash_counts_as_ack(data: str, pchannels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_wal(data, pchannels=pchannels) as log:
        await log.broadcast().append(schema(NAMES[:3]))
        monkeypatch.setattr(local(log).coordinator.vchannels, "on_dropped", lambda name: None)  # the broadcaster never hears
        await log.drop_vchannel(NAMES[1])
        await log.create_vchannel(NAMES[1])
    async with open_wal(data) as log:
        (task,) = await log.broadcast().tasks()
        assert task.missing_acks == (NAMES[0], NAMES[2])


async def test_recreated_vchannel_needs_no_ack(location: str) -> None:
    async with open_wal(location) as log:
        first = await log.broadcast().append(schema(["a", "b"]))
        await log.drop_vchannel("b")
        await log.raw_append(wal.Message("b", b"recreated"))
        assert await payloads(log, "b") == [b"recreated"]
        (task,) = await log.broadcast().tasks()
        assert task.missing_acks == ("a",)
        await log.broadcast().abort(first.broadcast_id, "b was dropped")
        assert await payloads(log, "a") == [b"add column", b"b was dropped"]
        assert await payloads(log, "b") == [b"recreated"]


# -- bounds, and calls that are refused before anything is done


async def test_undeliverable_message_is_refused_at_once(location: str) -> None:
    async with open_wal(location, message_bytes_max=10_000, create_vchannels=False) as log:
        broadcast = log.broadcast()
        await log.create_vchannel("there")
        with pytest.raises(errors.ChannelNotExistError, match="'gone' does not exist"):
            await broadcast.append(schema(["there", "gone"]))
        with pytest.raises(errors.InvalidArgumentError, match="message_bytes_max=10000"):
            await broadcast.append(schema(["there"], payload=bytes(10_001)))
        with pytest.raises(errors.InvalidArgumentError, match="message_bytes_max=10000"):
            await broadcast.check(schema(["there"], payload=bytes(10_001)))
        await broadcast.check(schema(["there"], payload=bytes(5_000)))
        with pytest.raises(TypeError):
            await broadcast.append(wal.Message("there", b""))  # type: ignore[arg-type]
        await broadcast.append(schema(["there"]))
        assert await payloads(log, "there") == [b"add column"]


def test_key_is_text_that_can_be_stored() -> None:
    with pytest.raises(errors.InvalidArgumentError, match="without lone surrogates"):
        wal.ResourceKey("collection", "\ud800")


async def test_failed_disk_is_a_storage_error(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk()
    made = JournalBackend.__init__
    with monkeypatch.context() as patched:
        patched.setattr(JournalBackend, "__init__", lambda self, *args, **more: made(self, *args, disk=disk, **more))
        log = await open_wal(data)
    await log.raw_append(wal.Message("a", b"before"))
    disk.fail_sync = True
    with pytest.raises(errors.StorageError, match="may or may not be in the log") as refused:
        await log.broadcast().append(schema(["a"]))
    assert refused.value.outcome_unknown
    await log.close()
    async with open_wal(data) as log:
        tasks = await log.broadcast().tasks()
        assert [task.missing_appends for task in tasks] in ([], [()])
        assert await payloads(log, "a") == [b"before", *(b"add column" for _ in tasks)]


async def test_names_that_fit_no_frame(location: str) -> None:
    names = [f"{number:05d}" + "ü" * 125 for number in range(16_384)]
    async with open_wal(location, pchannels=2) as log:
        with pytest.raises(errors.InvalidArgumentError, match="split it into several"):
            await log.broadcast().append(schema(names, payload=bytes(1 << 20)))
        assert await log.vchannels() == []


async def test_invalid_names_create_no_vchannel(location: str) -> None:
    async with open_wal(location, vchannels_max=3) as log:
        with pytest.raises(errors.InvalidArgumentError, match="control characters"):
            await log.broadcast().append(schema(["a", "b\n"]))
        with pytest.raises(errors.InvalidArgumentError, match="vchannels_max=3"):
            await log.broadcast().append(schema(["a", "b", "c", "d"]))
        assert await log.vchannels() == []
        await log.broadcast().append(schema(["a", "b", "c"]))


async def test_settings_have_their_effect(location: str) -> None:
    async with open_wal(location, broadcast_tasks_max=2, broadcast_vchannels_max=3) as log:
        with pytest.raises(errors.InvalidArgumentError, match="broadcast_vchannels_max=3"):
            await log.broadcast().append(schema(["a", "b", "c", "d"]))
        for name in "ab":
            await log.broadcast().append(wal.BroadcastMessage(vchannels=[name], payload=b""))
        with pytest.raises(errors.WouldBlockError):
            await log.broadcast().append(wal.BroadcastMessage(vchannels=["c"], payload=b""))
    with pytest.raises(errors.InvalidArgumentError, match="broadcast_vchannels_max=300000"):
        await open_wal("memory:", broadcast_vchannels_max=300_000)


async def test_read_only_log_broadcasts_nothing(data: str) -> None:
    async with open_wal(data) as log:
        await log.broadcast().append(schema())
    async with open_wal(data, read_only=True) as log:
        with pytest.raises(errors.InvalidArgumentError, match="read_only"):
            log.broadcast()
        with pytest.raises(errors.InvalidArgumentError, match="read_only"):
            log.read(NAMES[0], auto_ack=True)
    with pytest.raises(errors.InvalidArgumentError, match="auto_ack"):
        wal.bridge.iterate(data, NAMES[0], auto_ack=True)


async def test_calls_after_the_close_raise_closed_error(location: str) -> None:
    log = await open_wal(location)
    broadcast = log.broadcast()
    await broadcast.append(schema())
    waiting = start(broadcast.append(schema(), wait=True))
    await turns()
    await log.close()
    with pytest.raises(errors.ClosedError):
        await waiting
    for call in (broadcast.append(schema()), broadcast.ack(1, "a"), broadcast.tasks(), broadcast.abort(1, "")):
        with pytest.raises(errors.ClosedError):
            await call
    with pytest.raises(errors.ClosedError):
        broadcast.statistics()


# -- across restarts


async def test_keys_and_acks_survive_a_close(data: str) -> None:
    async with open_wal(data, pchannels=3) as log:
        first = await log.broadcast().append(schema())
        for name in NAMES[:5]:
            await log.broadcast().ack(first.broadcast_id, name)
    for _ in range(2):
        async with open_wal(data) as log:
            (task,) = await log.broadcast().tasks()
            assert (task.broadcast_id, task.state) == (first.broadcast_id, wal.BroadcastState.WAIT_ACK)
            assert task.missing_acks == tuple(NAMES[5:])
            with pytest.raises(errors.ResourceAcquiredError):
                await log.broadcast().append(schema())
    async with open_wal(data) as log:
        for name in NAMES[5:]:
            await log.broadcast().ack(first.broadcast_id, name)
    async with open_wal(data) as log:
        assert await log.broadcast().tasks() == []
        second = await log.broadcast().append(schema(payload=b"second"))
        assert second.broadcast_id > first.broadcast_id
        for name in NAMES:
            assert await payloads(log, name) == [b"add column", b"second"]


async def test_opening_recovers_broadcasts_before_the_first_use(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    async with open_wal(data, pchannels=2) as log:
        await log.broadcast().append(schema())
    async with open_wal(data) as log:
        assert local(log).broadcasts.statistics().tasks == 1


async def test_wide_broadcast_writes_few_bytes(data: str) -> None:
    """The broadcast writes at most 64 KiB to the log and 512 KiB to the metadata, though every ack is awaited separately."""
    names = [f"vchannel-{number:04d}" for number in range(1024)]
    async with open_wal(data) as log:
        for name in names:
            await log.create_vchannel(name)
        written = 0
        kv = local(log).coordinator.kv
        commit = kv._commit

        async def counted(batch: KVBatch) -> str | None:
            nonlocal written
            written += sum(len(key) + len(value) for key, value in batch.saves.items() if "broadcasts/" in key)
            written += sum(len(key) for key in batch.removals if "broadcasts/" in key)
            return await commit(batch)

        kv._commit = counted  # type: ignore[method-assign]
        before = log.statistics().pchannels[0].bytes
        result = await log.broadcast().append(schema(names, payload=bytes(1024)))
        for name in names:
            await log.broadcast().ack(result.broadcast_id, name)
        assert await log.broadcast().tasks() == []
        assert log.statistics().pchannels[0].bytes - before <= 64 * 1024
        assert 1024 < written <= 512 * 1024
