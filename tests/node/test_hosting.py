"""Hosting opens and closes single pchannels, in the order of (term, available), while the others continue."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from wal import AppendResult, Message
from wal.channels.pchannels import CheckpointRecord, PChannelMeta, load_checkpoint, save_checkpoint
from wal.channels.vchannels import place
from wal.errors import ChannelNotExistError, ClosedError, UnmatchedChannelTermError
from wal.location import parse_location
from wal.node.local.log import LocalLog
from wal.read.options import All, EventFilter, ReadOptions
from wal.read.scanner import Scanner
from wal.requests.appends import WriteOptions
from wal.requests.pchannels import LastEvent, Truncate
from wal.requests.vchannels import CreateVChannel, ListVChannels
from wal.settings import Settings


def name_on(pchannel: str) -> str:
    return next(name for name in map("v{}".format, range(100)) if place(name, ["p0", "p1"]) == pchannel)


MOVED, STAYING = name_on("p0"), name_on("p1")


@contextlib.asynccontextmanager
async def opened(location: str = "memory:") -> AsyncIterator[LocalLog]:
    log = LocalLog(parse_location(location), Settings(pchannels=2))
    await log.open()
    try:
        yield log
    finally:
        await log.close()


async def append(log: LocalLog, vchannel: str, payload: bytes) -> int:
    """Appends a message, and returns its tick."""
    future: asyncio.Future[AppendResult] | None = log.appends.append(Message(vchannel, payload))
    assert future is not None
    return (await future).time_tick


async def append_keyed(log: LocalLog, number: int) -> int:
    """Appends the message of this number once, by its key, and returns its tick."""
    future = log.appends.append(Message(MOVED, b"%d" % number), WriteOptions(key=f"key-{number}"))
    assert future is not None
    tick: int = (await future).time_tick
    return tick


async def payloads(log: LocalLog, vchannel: str) -> list[bytes]:
    async with Scanner(ReadOptions((vchannel,), All(), EventFilter.of(()), follow=False), attach=log.attach) as scanner:
        return [message.payload async for message in scanner]


def term(log: LocalLog, pchannel: str = "p0") -> int:
    return log.coordinator.pchannels[pchannel].term


async def reopened(log: LocalLog) -> PChannelMeta:
    meta = await log.coordinator.raise_term("p0")
    await log.node.hosting.open(meta)
    return meta


@pytest.fixture(params=["memory", "journal"])
def location(request: pytest.FixtureRequest, tmp_path: object) -> str:
    return "memory:" if request.param == "memory" else str(tmp_path)


async def test_pchannel_is_closed_and_opened_by_itself(location: str) -> None:
    async with opened(location) as log:
        hosting = log.node.hosting
        written = [await append(log, MOVED, b"one"), await append(log, STAYING, b"one")]
        closing = await hosting.close_one("p0", term(log))
        assert closing > max(written)
        assert list(log.node.pchannels) == ["p1"]
        with pytest.raises(ChannelNotExistError, match="p0"):
            await append(log, MOVED, b"lost")
        await append(log, STAYING, b"two")
        await reopened(log)
        assert await append(log, MOVED, b"two") > closing
        assert await payloads(log, MOVED) == await payloads(log, STAYING) == [b"one", b"two"]


async def test_accepted_appends_are_written_before_the_end() -> None:
    async with opened() as log:
        await append(log, MOVED, b"0")
        futures = [log.appends.append(Message(MOVED, b"%d" % number)) for number in range(1, 100)]
        closing = asyncio.ensure_future(log.node.hosting.close_one("p0", term(log)))
        outcomes = await asyncio.gather(*(future for future in futures if future), return_exceptions=True)
        await closing
        refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert {type(error) for error in refused} <= {ClosedError}
        await reopened(log)
        assert await payloads(log, MOVED) == [b"%d" % number for number in range(100 - len(refused))]


async def test_reader_ends_when_its_pchannel_leaves() -> None:
    async with opened() as log:
        await append(log, MOVED, b"one")
        async with Scanner(ReadOptions((MOVED,), All(), EventFilter.of(())), attach=log.attach) as scanner:
            messages = aiter(scanner)
            assert (await anext(messages)).payload == b"one"
            waiting = asyncio.ensure_future(anext(messages))
            await log.node.hosting.close_one("p0", term(log))
            with pytest.raises(ClosedError, match="p0 is not on this node any more"):
                await waiting


async def test_next_owner_of_a_moved_pchannel_replays_nothing(location: str) -> None:
    async with opened(location) as log:
        written = [await append_keyed(log, number) for number in range(50)]
        closed = term(log)
        meta = await log.coordinator.raise_term("p0")  # before the pchannel is taken away, as in a cluster
        await log.node.hosting.close_one("p0", closed)
        _, replayed = await log.node.hosting.open(meta)
        assert replayed == 0
        assert [await append_keyed(log, number) for number in range(50)] == written
        assert await payloads(log, MOVED) == [b"%d" % number for number in range(50)]


async def test_closing_node_spares_another_writers_checkpoint(location: str) -> None:
    async with opened(location) as log:
        await append(log, MOVED, b"one")
        closed = term(log)
        meta = await log.coordinator.raise_term("p0")
        loaded = await load_checkpoint(log.coordinator.kv, "p0")
        assert loaded is not None
        other = CheckpointRecord(meta.term, loaded.position, loaded.state)
        await save_checkpoint(log.coordinator.kv, meta, other)
        await log.node.hosting.close_one("p0", closed)
        assert await load_checkpoint(log.coordinator.kv, "p0") == other


async def test_late_checkpoint_of_an_earlier_owner_is_whole(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node was evicted: its closing checkpoint replaces the one from which the next owner recovers at the moment."""
    async with opened(location) as log:
        hosting = log.node.hosting
        written = [await append_keyed(log, number) for number in range(10)]
        await reopened(log)
        before = await load_checkpoint(log.coordinator.kv, "p0")
        written += [await append_keyed(log, number) for number in range(10, 20)]
        closed, meta = term(log), await log.coordinator.raise_term("p0")
        await hosting.close_one("p0", closed)
        handed_over = await load_checkpoint(log.coordinator.kv, "p0")
        assert handed_over is not None
        assert handed_over != before

        async def load_before(*_: object) -> CheckpointRecord | None:
            return before

        with monkeypatch.context() as earlier:
            earlier.setattr("wal.node.hosting.load_checkpoint", load_before)
            _, replayed = await hosting.open(meta)
        assert replayed == 10
        written += [await append_keyed(log, number) for number in range(20, 30)]
        await reopened(log)  # which hands nothing over: the record has changed since its beginning
        assert await load_checkpoint(log.coordinator.kv, "p0") == handed_over
        assert [await append_keyed(log, number) for number in range(30)] == written
        assert await payloads(log, MOVED) == [b"%d" % number for number in range(30)]


async def test_late_calls_are_refused() -> None:
    async with opened() as log:
        hosting, first = log.node.hosting, log.coordinator.pchannels["p0"]
        with pytest.raises(UnmatchedChannelTermError) as refused:
            await hosting.open(first)  # it is open in this term
        assert refused.value.term == first.term
        await hosting.close_one("p0", first.term)
        assert await hosting.close_one("p0", first.term) == 0
        with pytest.raises(UnmatchedChannelTermError, match="closed here in term"):
            await hosting.open(first)
        second = await reopened(log)
        with pytest.raises(UnmatchedChannelTermError, match="opened here in term"):
            await hosting.close_one("p0", first.term)
        assert log.node.pchannels["p0"].log.term == second.term


async def test_opening_waits_for_the_closing_before_it() -> None:
    async with opened() as log:
        hosting, first = log.node.hosting, log.coordinator.pchannels["p0"]
        await append(log, MOVED, b"one")
        second = await log.coordinator.raise_term("p0")
        third = await log.coordinator.raise_term("p0")
        outcomes = await asyncio.gather(
            hosting.close_one("p0", first.term), hosting.open(second), hosting.open(third), return_exceptions=True
        )
        assert isinstance(outcomes[1], UnmatchedChannelTermError), "the one of term 3 was made before it had its turn"
        assert log.node.pchannels["p0"].log.term == third.term
        await append(log, MOVED, b"two")
        assert await payloads(log, MOVED) == [b"one", b"two"]


async def test_higher_term_replaces_the_lower_one() -> None:
    async with opened() as log:
        await append(log, MOVED, b"one")
        before = log.node.pchannels["p0"]
        await reopened(log)
        assert log.node.pchannels["p0"] is not before
        await append(log, MOVED, b"two")
        assert await payloads(log, MOVED) == [b"one", b"two"]


async def test_vchannel_of_a_missing_pchannel_is_not_created(location: str) -> None:
    async with opened(location) as log:
        await log.node.hosting.close_one("p0", term(log))
        with pytest.raises(ChannelNotExistError, match="p0"):
            await append(log, MOVED, b"nowhere")
        with pytest.raises(ChannelNotExistError, match="p0"):
            await log.submit(CreateVChannel("new", "p0"))
        assert await log.submit(ListVChannels()) == ()
        await reopened(log)
        await append(log, MOVED, b"one")
        assert [info.name for info in log.coordinator.vchannels.durable()] == [MOVED], "it was saved before its frame"
        assert await payloads(log, MOVED) == [b"one"]


async def test_retention_follows_a_pchannel_that_comes_back(tmp_path: Path) -> None:
    settings = Settings(pchannels=2, segment_bytes=1 << 20, retention_bytes=2 << 20)
    log = LocalLog(parse_location(str(tmp_path)), settings)
    await log.open()
    try:
        await log.node.hosting.close_one("p0", term(log))
        await reopened(log)
        back = log.node.pchannels["p0"].log
        assert back.earliest[0] < 1 << 20
        for _ in range(64):
            await append(log, MOVED, bytes(1 << 16))
        async with asyncio.timeout(30):
            while back.earliest[0] < 1 << 20:
                await asyncio.sleep(0.01)
    finally:
        await log.close()


async def test_truncation_under_way_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as log:
        for payload in (b"one", b"two"):
            await append(log, MOVED, payload)
        last, stored = await log.submit(LastEvent(MOVED)), log.node.pchannels["p0"].log
        assert last is not None
        truncate, begun, go_on = stored.truncate, asyncio.Event(), asyncio.Event()
        events: list[str] = []

        async def slow(position: int, index: int) -> None:
            begun.set()
            await go_on.wait()
            await truncate(position, index)
            events.append("truncated")

        monkeypatch.setattr(stored, "truncate", slow)
        truncating = asyncio.ensure_future(log.submit(Truncate(last)))
        await begun.wait()
        closing = asyncio.ensure_future(log.node.hosting.close_one("p0", term(log)))
        closing.add_done_callback(lambda _: events.append("closed"))
        while "p0" in log.node.pchannels:
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(truncating, closing)
        assert events == ["truncated", "closed"]


async def test_failed_opening_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as log:
        await append(log, MOVED, b"one")
        await log.node.hosting.close_one("p0", term(log))
        with monkeypatch.context() as patched:

            async def defect(self: object) -> None:
                raise RuntimeError("it could not start")

            patched.setattr("wal.write.pchannel.PChannel.start", defect)
            with pytest.raises(RuntimeError):
                await reopened(log)
        assert list(log.node.pchannels) == ["p1"]
        await reopened(log)
        assert await payloads(log, MOVED) == [b"one"]
