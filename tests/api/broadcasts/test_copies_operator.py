"""The log as its broadcaster sees it: a copy is in the log at most once, and stays known as long as it may be requested."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any

import pytest

from broadcaster import AppendOperator, Content
from tests.locations import open_wal
from tests.probes import close_all, local, payloads, read_all, start
from tests.storage.journal.faults import FaultyDisk
from wal import BroadcastHeader, Message, WALAccesser
from wal.errors import ChannelNotExistError, ClosedError, NoSpaceError, StorageError, UnknownError, WouldBlockError
from wal.message import AppendResult, CopyOutcomes, encode_properties
from wal.node.copies_operator import CopiesOperator
from wal.node.local.log import LocalLog
from wal.storage.journal.backend import JournalBackend
from wal.storage.kv import KVBase, KVBatch

pytestmark = pytest.mark.inside

NAMES = ["a", "b", "c"]
CONTENT = Content(b"payload", 12, encode_properties({"by": "admin"}))


class Bench:
    """Yields a log with an operator in addition to its broadcaster's."""

    def __init__(self, log: WALAccesser) -> None:
        self.log = log
        self.inside: LocalLog = local(log)
        self.operator: AppendOperator = CopiesOperator(self.inside.node)

    async def header(self, names: Sequence[str] = NAMES) -> BroadcastHeader:
        await self.operator.places(names)
        return BroadcastHeader(self.operator.allocate_id(), tuple(names))

    async def append(self, header: BroadcastHeader, names: Sequence[str] = NAMES) -> CopyOutcomes:
        return await self.operator.append_copies("p0", names, CONTENT, header)

    async def count(self, name: str) -> int:
        return len(await read_all(self.log, name))


@pytest.fixture
async def bench(location: str) -> AsyncIterator[Bench]:
    async with open_wal(location) as log:
        yield Bench(log)


def results(outcomes: CopyOutcomes) -> list[AppendResult]:
    found = [outcome for outcome in outcomes if isinstance(outcome, AppendResult)]
    assert len(found) == len(outcomes)
    return found


async def test_repeated_call_returns_the_copies_that_exist(bench: Bench) -> None:
    header = await bench.header()
    some = results(await bench.append(header, ["a", "c"]))
    everywhere = results(await bench.append(header))
    assert [everywhere[0], everywhere[2]] == some
    assert results(await bench.append(header)) == everywhere
    for name, result in zip(NAMES, everywhere, strict=True):
        (message,) = await read_all(bench.log, name)
        assert (message.message_id, message.time_tick, message.broadcast) == (result.message_id, result.time_tick, header)
    (found,) = await bench.operator.copies()
    assert (found.header, set(found.vchannels), found.aborted) == (header, set(NAMES), ())
    assert await bench.operator.content("p0", header.broadcast_id) == CONTENT


async def test_later_call_shares_running_copies(bench: Bench) -> None:
    header = await bench.header()
    first, second = start(bench.append(header)), start(bench.append(header, ["b", "a"]))
    one, other = results(await first), results(await second)
    assert other == [one[1], one[0]]
    assert [await bench.count(name) for name in NAMES] == [1, 1, 1]


async def test_log_and_memory_agree_after_a_cancelled_call(bench: Bench) -> None:
    for turns in range(6):
        header = await bench.header()
        before = await bench.count("a")
        call = start(bench.append(header))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        results(await bench.append(header))
        assert await bench.count("a") == before + 1, turns
    assert bench.inside.node.in_flight.size == 0


@pytest.mark.not_on("wal", "has a call of the client and one of the writer's own broadcaster in one turn, and the client's comes later")
async def test_copies_keep_the_order_of_the_calls(bench: Bench) -> None:
    header = await bench.header()
    calls: list[asyncio.Future[Any]] = [bench.log.append_nowait(Message("a", b"before"))]
    calls.append(start(bench.append(header)))
    await asyncio.sleep(0)
    calls.append(bench.log.append_nowait(Message("a", b"after")))
    await asyncio.gather(*calls)
    assert await payloads(bench.log, "a") == [b"before", b"payload", b"after"]


async def test_outcome_of_a_dropped_vchannel_is_an_error(bench: Bench) -> None:
    header = await bench.header()
    await bench.log.drop_vchannel("b")
    first, error, third = await bench.append(header)
    assert isinstance(error, ChannelNotExistError)
    assert isinstance(first, AppendResult)
    assert isinstance(third, AppendResult)
    await bench.log.create_vchannel("b")
    again = results(await bench.append(header))
    assert (again[0], again[2]) == (first, third)
    assert await bench.count("b") == 1
    gone = await bench.header(["d"])
    await bench.log.drop_vchannel("d")
    (error,) = await bench.append(gone, ["d"])
    assert isinstance(error, ChannelNotExistError)


@pytest.mark.not_on("wal", "has a call of the client and one of the writer's own broadcaster in one turn, and the client's comes later")
async def test_dropped_vchannel_takes_no_copy_alone(bench: Bench) -> None:
    header = await bench.header()
    await bench.append(header, ["a"])
    drop = start(bench.log.drop_vchannel("b"))
    call = start(bench.append(header))
    await drop
    first, error, third = await call
    assert isinstance(first, AppendResult)
    assert isinstance(third, AppendResult)
    assert isinstance(error, ChannelNotExistError)


async def test_aborts_are_appended_once_beside_copies(bench: Bench) -> None:
    header = await bench.header()
    await bench.append(header, ["a", "b"])
    await bench.log.drop_vchannel("b")
    await bench.log.create_vchannel("b")
    aborts: Any = await bench.operator.append_aborts("p0", NAMES, header, "no")
    assert isinstance(aborts[0], AppendResult)
    assert [type(outcome) for outcome in aborts[1:]] == [ChannelNotExistError] * 2
    assert await bench.operator.append_aborts("p0", ["a"], header, "no") == [aborts[0]]  # type: ignore[comparison-overlap]
    assert await payloads(bench.log, "a") == [b"payload", b"no"]
    (found,) = await bench.operator.copies()
    assert (found.vchannels, found.aborted) == (("a", "b"), ("a",))


async def test_forgotten_broadcasts_follow_a_durable_checkpoint(bench: Bench) -> None:
    heard: list[tuple[str, set[int]]] = []

    def forgotten(name: str, ids: Collection[int]) -> None:
        heard.append((name, set(ids)))

    bench.operator.on_forgotten(forgotten)
    headers = [await bench.header() for _ in range(3)]
    for header in headers:
        await bench.append(header)
    checkpointer = bench.inside.node.pchannels["p0"].checkpointer
    assert checkpointer is not None

    async def checkpoint() -> None:
        bench.operator.request_checkpoint()
        await checkpointer.make_room()

    bench.operator.request_checkpoint()
    assert checkpointer._running is None, "there is nothing to be forgotten"
    bench.operator.forget(headers[0].broadcast_id, ["p0"])
    await checkpoint()
    assert heard == [("p0", {headers[0].broadcast_id})]
    for header in headers[1:]:
        bench.operator.forget(header.broadcast_id, ["p0"])
    await checkpoint()
    assert heard[1:] == [("p0", {header.broadcast_id for header in headers[1:]})]
    assert await bench.operator.copies() == []


async def test_copy_without_room_is_a_retryable_error(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk()
    made = JournalBackend.__init__
    monkeypatch.setattr(JournalBackend, "__init__", lambda self, *args, **more: made(self, *args, disk=disk, **more))
    async with open_wal(data, segment_bytes=1 << 20) as log:
        bench = Bench(log)
        header = await bench.header()
        disk.room = 0
        with pytest.raises(NoSpaceError) as refused:
            for _ in range(100):
                await log.raw_append(Message("a", bytes(1 << 18)))
        assert refused.value.retryable
        before = await bench.count("a")
        with pytest.raises(NoSpaceError):
            await bench.operator.append_copies("p0", NAMES, Content(bytes(1 << 19), 2), header)
        disk.room = None
        results(await bench.append(header))
        assert await bench.count("a") == before + 1


async def test_failed_write_leaves_no_copy(data: str) -> None:
    async with open_wal(data) as log:
        bench = Bench(log)
        header = await bench.header()
        bench.inside.node.pchannels["p0"].fail(StorageError("the disk failed"))
        with pytest.raises(StorageError) as refused:
            await bench.append(header)
        assert not refused.value.outcome_unknown
        assert bench.inside.node.in_flight.size == 0


async def test_operator_takes_no_copies_after_the_close(location: str) -> None:
    log = await open_wal(location)
    bench = Bench(log)
    header = await bench.header()
    await close_all(log)
    with pytest.raises(ClosedError):
        await bench.append(header)


async def test_vchannels_are_durable_before_their_places_are_answered(data: str) -> None:
    async with open_wal(data, pchannels=3) as log:
        bench = Bench(log)
        places = await bench.operator.places(["a", "b", "c", "d"])
        assert sorted(name for names in places.values() for name in names) == ["a", "b", "c", "d"]
        assert set(bench.inside.coordinator.vchannels.directory.saved) == {"a", "b", "c", "d"}
        assert bench.inside.coordinator.vchannels.saving == {}


async def test_positions_belong_to_the_recreated_vchannel(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_wal(location, pchannels=2) as log:
        bench = Bench(log)
        await log.create_vchannel("moved", pchannel="p0")
        kv = type(bench.inside.coordinator.kv)
        saved, commit = asyncio.Event(), kv._commit

        async def slow(kv: KVBase, batch: KVBatch) -> str | None:
            if any(key.endswith("/new") for key in batch.saves):
                await saved.wait()
            return await commit(kv, batch)

        monkeypatch.setattr(kv, "_commit", slow)
        places = start(bench.operator.places(["moved", "new"]))
        while "new" not in bench.inside.coordinator.vchannels.saving:
            await asyncio.sleep(0)
        dropped = start(log.drop_vchannel("moved"))
        while "moved" in bench.inside.coordinator.vchannels.records:
            await asyncio.sleep(0)
        made = start(log.create_vchannel("moved", pchannel="p1"))
        while "moved" not in bench.inside.coordinator.vchannels.records:
            await asyncio.sleep(0)
        saved.set()
        await asyncio.gather(dropped, made)
        assert "moved" in (await places)["p1"]
        assert "moved" in (await bench.operator.places(["moved", "new"]))["p1"], "what is remembered holds"


async def test_full_inbox_is_a_retryable_error(bench: Bench) -> None:
    header = await bench.header()
    group = bench.inside.node.pchannels["p0"].actor_group
    group._inbox_max = 0
    with pytest.raises(WouldBlockError):
        await bench.append(header)
    assert bench.inside.node.in_flight.size == 0
    group._inbox_max = 1 << 20
    results(await bench.append(header))


class Defect(Exception):
    """The exception that the test injects into the code as its defect."""


async def test_defect_fails_waiting_calls_at_once(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_wal(location) as log:
        bench = Bench(log)
        copies, in_flight = bench.inside.node.pchannels["p0"].copies, bench.inside.node.in_flight
        one, other = await bench.header(), await bench.header()
        judge = copies._judge

        def broken(operation: Any) -> Any:
            if operation.header == other:
                raise Defect
            return judge(operation)

        monkeypatch.setattr(copies, "_judge", broken)
        # In one turn: a call that enters a frame, a call that waits for that frame, a call that hits the defect, and a later one.
        under_way, waiting = start(bench.append(one)), start(bench.append(one))
        struck, later = start(bench.append(other)), start(bench.append(one, ["a"]))
        for call in (struck, later, waiting):
            with pytest.raises(UnknownError, match=r"takes no copies of broadcasts any more.*Defect") as refused:
                await call
            assert isinstance(refused.value.__cause__, Defect)
        results(await under_way)
        assert in_flight.size == 0
        with pytest.raises(UnknownError, match="takes no copies"):
            await bench.append(one)
        assert in_flight.size == 0
        await log.raw_append(Message("a", b"plain"))
        assert await payloads(log, "a") == [b"payload", b"plain"]


async def test_defect_leaves_no_waiting_call(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_wal(location) as log:
        bench = Bench(log)
        copies = bench.inside.node.pchannels["p0"].copies
        header = await bench.header()
        first, second, third = start(bench.append(header)), start(bench.append(header)), start(bench.append(header))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        def broken(operation: Any) -> Any:
            raise Defect

        monkeypatch.setattr(copies, "_judge", broken)
        results(await first)
        for call in (second, third):
            with pytest.raises(UnknownError, match="Defect"):
                await call
        assert bench.inside.node.in_flight.size == 0


async def test_defect_fails_calls_that_wait_for_ticks(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_wal(location) as log:
        bench = Bench(log)
        pchannel = bench.inside.node.pchannels["p0"]
        header, other = await bench.header(), await bench.header()
        await bench.append(header, ["a"])
        pchannel.ticks.held.append((pchannel.copies, None))  # an operation waits for ticks, so those after it do
        held = start(bench.append(other))
        while len(pchannel.ticks.held) < 2:
            await asyncio.sleep(0)
        pchannel.ticks.held.pop(0)

        def broken(operation: Any) -> Any:
            raise Defect

        monkeypatch.setattr(pchannel.copies, "released", broken)
        waiting, pchannel.ticks.held = pchannel.ticks.held, []
        struck = start(bench.append(header))
        await asyncio.sleep(0)
        pchannel.ticks.held = waiting
        monkeypatch.setattr(pchannel.copies, "receive", broken)
        for call in (struck, held):
            with pytest.raises(UnknownError, match="Defect"):
                await call
        assert not pchannel.ticks.held
        assert bench.inside.node.in_flight.size == 0
