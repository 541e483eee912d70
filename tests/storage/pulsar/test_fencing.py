"""A new owner takes over a log while the old owner continues to write with its open producer; on a real Pulsar, under load from both."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pulsar
import pytest

from tests.storage.frames import INCARNATION, FrameMaker, append, read_all
from tests.storage.pulsar.conftest import admin, new_namespace, raw_client
from wal.errors import ChannelFencedError, StorageError, WALError
from wal.storage.base import PChannelLog, StoredFrame
from wal.storage.kv import MemoryKV
from wal.storage.pulsar import opening
from wal.storage.pulsar.address import PulsarAddress
from wal.storage.pulsar.backend import PulsarBackend
from wal.storage.pulsar.connection import PulsarConnection
from wal.storage.pulsar.topic import send_mark


async def test_log_is_taken_over_under_load(pulsar_server: PulsarAddress, soak: int) -> None:
    rounds = 5
    writers = 6

    class Owner:
        """The writers of one term, and their results."""

        def __init__(self, log: PChannelLog) -> None:
            self.log = log
            self.maker = FrameMaker(log.term)
            self.acked: dict[bytes, int] = {}
            self.errors: list[BaseException] = []
            self.enough = asyncio.Event()
            self.go_on = asyncio.Event()
            """Set when the next owner begins to take over, so that the writes during the test's read are bounded."""
            self._stop = False
            self._tasks: list[asyncio.Task[None]] = []

        async def begin(self) -> None:
            state = self.log.state
            await append(self.log, self.maker.term_start(state.last_term, max(state.last_sequence, 0)))
            self._tasks = [asyncio.create_task(self._write(number)) for number in range(writers)]

        async def stop(self) -> None:
            self._stop = True
            self.go_on.set()
            await self.done()

        async def done(self) -> None:
            await asyncio.gather(*self._tasks)

        async def _write(self, number: int) -> None:
            count = 0
            while not self._stop:
                if self.enough.is_set():
                    await self.go_on.wait()
                payload = b"%d/%d/%d" % (self.log.term, number, count)
                count += 1
                try:
                    self.acked[payload] = await append(self.log, self.maker.data(("v", payload)))
                except WALError as error:
                    self.errors.append(error)
                    return
                if len(self.acked) >= 40:
                    self.enough.set()

    def payloads(frames: list[StoredFrame]) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        for frame in frames:
            for run in frame.view.runs:
                for payload in frame.view.columns(run).payloads:
                    if b"/" in payload:
                        assert payload not in found, f"{payload!r} is in the log twice"
                        found[payload] = frame.position
        return found

    async def follow(log: PChannelLog, start: int, frames: list[StoredFrame], stopped: asyncio.Event) -> None:
        """Reads until it is stopped and has reached the end."""
        while True:
            last = stopped.is_set()
            end = log.durable_end
            while start < end:
                page = await log.read(start, names=None, bytes_max=1 << 18)
                frames += page.frames
                start = page.next_position
            if last:
                return
            await asyncio.sleep(0.001)

    address, kv = new_namespace(pulsar_server), MemoryKV()
    first = PulsarBackend(address, kv)
    await first.create("p", incarnation=INCARNATION)
    backends = [first]
    owner = Owner(await first.open("p", incarnation=INCARNATION, term=1))
    await owner.begin()
    acked: dict[bytes, int] = {}
    terms: dict[int, int] = {}
    try:
        for round_ in range(rounds * soak if soak == 1 else 20):
            await owner.enough.wait()
            old, before = owner, owner.log.durable_end
            early: list[StoredFrame] = []
            stopped = asyncio.Event()
            reading = asyncio.create_task(follow(old.log, 0, early, stopped))
            backend = PulsarBackend(address, kv)
            backends.append(backend)
            under_load = len(old.acked) + 20
            old.go_on.set()
            while len(old.acked) < under_load:
                await asyncio.sleep(0)
            owner = Owner(await backend.open("p", incarnation=INCARNATION, term=old.log.term + 1))
            terms[owner.log.term] = owner.log.state.end
            late: list[StoredFrame] = []
            following = asyncio.create_task(follow(owner.log, before, late, stopped))
            await owner.begin()
            await old.done()
            await owner.enough.wait()
            stopped.set()
            await asyncio.gather(reading, following)

            assert len(old.errors) == writers
            for error in old.errors:
                assert isinstance(error, ChannelFencedError | StorageError)
            with pytest.raises(ChannelFencedError):
                await append(old.log, old.maker.data(("v", b"late")))
            acked |= old.acked
            assert max(old.acked.values()) < owner.log.state.end, "no frame is acknowledged after the mark of the next owner"
            everything = await read_all(owner.log)
            found = payloads(everything)
            assert acked.items() <= found.items(), "every acknowledged frame lies where it was acknowledged"
            for frames in (everything, late, await read_all(owner.log, owner.log.state.end)):
                order = [(frame.view.header.term, frame.view.header.sequence) for frame in frames]
                assert order == sorted(set(order)), "no frame of an old term comes after one of a new term, and none twice"
            assert all(frame.view.header.term <= old.log.term and frame.position < owner.log.state.end for frame in early), (
                "a reader at the old owner sees no frame of the next"
            )
            by_position = {frame.position: frame.view.header for frame in everything}
            assert all(by_position[frame.position] == frame.view.header for frame in [*early, *late])
            print(f"round {round_}: {len(old.acked)} acknowledged, {[type(error).__name__ for error in old.errors][:2]}")
            await old.log.close()
        await owner.stop()
        assert not owner.errors
        await owner.log.close()
    finally:
        for backend in backends:
            await backend.close()
    assert len(terms) >= rounds


Holder = tuple[PulsarBackend, PChannelLog, FrameMaker]


@contextlib.asynccontextmanager
async def taken_over(address: PulsarAddress) -> AsyncIterator[tuple[Holder, Holder]]:
    """Yields the backend, the log and the frames of an owner in term 1, and those of the owner in term 2 that took the log over."""
    kv = MemoryKV()
    one, other = PulsarBackend(address, kv), PulsarBackend(address, kv)
    try:
        await one.create("p", incarnation=INCARNATION)
        old, maker = await one.open("p", incarnation=INCARNATION, term=1), FrameMaker(1)
        await append(old, maker.term_start())
        new, next_maker = await other.open("p", incarnation=INCARNATION, term=2), FrameMaker(2)
        await append(new, next_maker.term_start(1, 0))
        yield (one, old, maker), (other, new, next_maker)
    finally:
        await one.close()
        await other.close()


async def test_idle_owner_that_lost_its_term_is_fenced(address: PulsarAddress) -> None:
    async with taken_over(address) as ((_, old, maker), (_, new, next_maker)):
        with pytest.raises(ChannelFencedError, match="owned by term 2"):
            await append(old, maker.data(("v", b"late")))
        with pytest.raises(ChannelFencedError):
            await old.release(old.durable_end, state=None)
        await append(new, next_maker.data(("v", b"x")))
        assert [frame.view.header.term for frame in await read_all(new)] == [1, 2, 2]
        await old.close()
        await new.close()


async def test_fence_holds_in_later_ledgers(address: PulsarAddress) -> None:
    """A fence of the segment that was open, and of none that begins later, was woodpecker#142. Nobody writes when the old owner tries."""
    async with taken_over(address) as ((one, old, maker), (other, new, next_maker)):
        await asyncio.gather(*(append(new, next_maker.data(("v", b"%d" % number))) for number in range(210)))
        assert len(new.extents()) > 2
        await new.close()
        admin(address, "PUT", f"{address.topic('p').replace('://', '/')}/unload")  # it is opened with another ledger
        with pytest.raises(ChannelFencedError):
            await append(old, maker.data(("v", b"late")))
        with pytest.raises(ChannelFencedError):
            await one.open("p", incarnation=INCARNATION, term=1)
        last = await other.open("p", incarnation=INCARNATION, term=3)
        assert [frame.view.header.term for frame in await read_all(last)] == [1] + 211 * [2]
        await last.close()


@pytest.mark.parametrize("restored_term", [2, 4])
async def test_term_below_the_log_is_refused(address: PulsarAddress, restored_term: int) -> None:
    """The metadata was restored from a copy of term 1, while the log went on to term 4: frames of a lower term would never be read."""
    kv, copy = MemoryKV(), MemoryKV()
    backends = [PulsarBackend(address, kv)]
    try:
        await backends[0].create("p", incarnation=INCARNATION)
        for term in (1, 2, 3, 4):
            log = await backends[0].open("p", incarnation=INCARNATION, term=term)
            await append(log, FrameMaker(term).term_start(log.state.last_term, max(log.state.last_sequence, 0)))
            await log.close()
            if term == 1:
                await copy.multi_save(dict(zip(*await kv.load_with_prefix(""), strict=True)))
        backends.append(restored := PulsarBackend(address, copy))
        with pytest.raises(ChannelFencedError, match="written in term 4") as refused:
            await restored.open("p", incarnation=INCARNATION, term=restored_term)
        assert refused.value.term == 4
        log = await restored.open("p", incarnation=INCARNATION, term=5)
        assert (log.state.last_term, log.state.last_sequence) == (4, 0)
        await append(log, FrameMaker(5).term_start(4, 0))
        assert [frame.view.header.term for frame in await read_all(log)] == [1, 2, 3, 4, 5]
        await log.close()
    finally:
        for backend in backends:
            await backend.close()


async def test_of_concurrent_claims_the_highest_term_wins(address: PulsarAddress) -> None:
    """The highest term owns the log in the end, in whatever order the fences come."""
    kv = MemoryKV()
    backends = [PulsarBackend(address, kv) for _ in range(4)]
    try:
        await backends[0].create("p", incarnation=INCARNATION)
        logs = await asyncio.gather(
            *(backend.open("p", incarnation=INCARNATION, term=term) for term, backend in enumerate(backends, 1)), return_exceptions=True
        )
        for log in logs[:-1]:
            assert isinstance(log, PChannelLog | ChannelFencedError)
        winner = logs[-1]
        assert isinstance(winner, PChannelLog)
        maker = FrameMaker(4)
        position = await append(winner, maker.data(("v", b"mine")))
        for log in logs[:-1]:
            if isinstance(log, PChannelLog):
                with pytest.raises(ChannelFencedError):
                    await append(log, FrameMaker(log.term).data(("v", b"late")))
        await append(winner, maker.data(("v", b"still mine")))
        assert (await read_all(winner))[0].position == position
        for log in logs:
            if isinstance(log, PChannelLog):
                await log.close()
    finally:
        for backend in backends:
            await backend.close()


@pytest.mark.parametrize("when", ["before the mark", "after the mark"])
async def test_late_fence_of_a_lower_term_is_answered(address: PulsarAddress, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """A writer of a lower term claims the log before the takeover and fences after it. The takeover has the higher term and succeeds."""
    backend = PulsarBackend(address, MemoryKV())
    client = raw_client(address)

    def fence() -> None:
        topic = address.topic("p")
        client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing).close()

    fenced = 0

    def once(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        nonlocal fenced
        found = call(*arguments, **keywords)
        if not fenced:
            fenced += 1
            fence()
        return found

    try:
        await backend.create("p", incarnation=INCARNATION)
        if when == "before the mark":
            make = PulsarConnection.producer
            monkeypatch.setattr(PulsarConnection, "producer", lambda self, topic, fencing: once(make, self, topic, fencing=fencing))
        else:
            monkeypatch.setattr(opening, "send_mark", partial(once, send_mark))
        log = await backend.open("p", incarnation=INCARNATION, term=2)
        assert fenced == 1
        maker = FrameMaker(2)
        positions = [await append(log, maker.data(("v", b"%d" % number))) for number in range(3)]
        assert [frame.position for frame in await read_all(log)] == positions
        await log.close()
    finally:
        await asyncio.to_thread(client.close)
        await backend.close()
