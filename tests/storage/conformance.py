"""The guarantees of every backend (wal.storage.base), as one suite: a backend joins by inheriting it and naming its factory.

The cases are those of Milvus' `walimplstest` framework (three pchannels, terms 1 to 3, concurrent appends with two readers that
agree, reads from the middle, truncation, reopening), and the laws that `PChannelLog` states beyond them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.storage.frames import INCARNATION, FrameMaker, append, append_all, content, content_of, pages, read_all, read_keyed
from wal.errors import ChannelFencedError, ClosedError, CorruptionError, FormatError, InvalidArgumentError, TruncatedError
from wal.frame import EncodedFrame, RunKind
from wal.storage.base import FRAME_BYTES_MAX, LogBackend, LogState, PChannelLog
from wal.write.copies import CopyTable
from wal.write.idempotency.table import IdempotencyTable
from wal.write.recovery import RecoveryState, replay

PCHANNELS = ("p-0", "p-1", "p-2")


class BackendConformance:
    """The suite: a subclass defines `make`, and every test below runs against its backend."""

    def make(self, place: Path) -> LogBackend:
        """Returns a backend on `place`; a later backend on the same `place` finds the frames written there."""
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def opened(
        self, place: Path, term: int = 1, pchannel: str = "p-0", *, checkpoint: int | None = None
    ) -> AsyncIterator[PChannelLog]:
        """Yields a log opened by its own backend, and closes both; creates the log first when the term is 1."""
        backend = self.make(place)
        try:
            if term == 1:
                await backend.create(pchannel, incarnation=INCARNATION)
            log = await backend.open(pchannel, incarnation=INCARNATION, term=term, checkpoint=checkpoint)
            try:
                yield log
            finally:
                await log.close()
        finally:
            await backend.close()

    async def test_three_pchannels_three_terms_two_readers(self, tmp_path: Path) -> None:
        backend = self.make(tmp_path)
        try:
            await asyncio.gather(*[self._three_terms(backend, pchannel) for pchannel in PCHANNELS])
        finally:
            await backend.close()
            await backend.close()

    async def _three_terms(self, backend: LogBackend, pchannel: str) -> None:
        await backend.create(pchannel, incarnation=INCARNATION)
        written: list[tuple[int, EncodedFrame]] = []
        last = (0, -1)
        for term in (1, 2, 3):
            log = await backend.open(pchannel, incarnation=INCARNATION, term=term)
            assert (log.pchannel, log.incarnation, log.term) == (pchannel, INCARNATION, term)
            assert (log.state.last_term, log.state.last_sequence) == last
            assert log.state.clean
            assert log.state.end == log.durable_end
            if written:
                assert log.state.end > written[-1][0]
                assert log.state.promised_tick >= written[-1][1].header.promised_tick
                assert log.state.newest == self._newest(written)
            maker = FrameMaker(term)
            readers = [asyncio.create_task(self._until_tick(log, term)) for _ in range(2)]
            count = 0

            async def writer(log: PChannelLog, maker: FrameMaker, number: int, written: list[tuple[int, EncodedFrame]]) -> None:
                for i in range(12):
                    frame = maker.data((f"v-{number}", b"%d/%d/%d" % (maker.term, number, i)), ("v-all", b"x" * 64), properties=b"const")
                    written.append((await append(log, frame), frame))

            await asyncio.gather(*[writer(log, maker, number, written) for number in range(5)])
            count += 60
            tick = maker.time_tick()
            written.append((await append(log, tick), tick))
            assert len(written) == (count + 1) * term
            written.sort(key=lambda pair: pair[0])
            expected = [(position, content_of(frame)) for position, frame in written]
            for read in await asyncio.gather(*readers):
                assert read == expected
            last = (term, tick.header.sequence)
            await self._read_variants(log, expected)
            await log.close()
            await log.close()

    @staticmethod
    def _newest(written: list[tuple[int, EncodedFrame]]) -> tuple[int, int] | None:
        events = [(position, frame.header.indices - 1) for position, frame in written if frame.header.indices]
        return max(events, default=None)

    async def _until_tick(self, log: PChannelLog, term: int) -> list[tuple[int, tuple[object, ...]]]:
        """Follows the log until the TimeTick frame of this term, and returns what it read."""
        found: list[tuple[int, tuple[object, ...]]] = []
        start = 0
        while True:
            page = await log.read(start, names=None, bytes_max=2_000)
            for frame in page.frames:
                found.append((frame.position, content(frame.view)))
                if frame.view.header.term == term and not frame.view.header.indices:
                    return found
            start = page.next_position
            await asyncio.sleep(0)

    async def _read_variants(self, log: PChannelLog, expected: list[tuple[int, tuple[object, ...]]]) -> None:
        positions = [position for position, _ in expected]
        assert all(a < b for a, b in itertools.pairwise(positions))
        middle = len(expected) // 2
        inclusive = await read_all(log, positions[middle])
        assert [(f.position, content(f.view)) for f in inclusive] == expected[middle:]
        exclusive = await read_all(log, positions[middle] + 1, bytes_max=1)
        assert [(f.position, content(f.view)) for f in exclusive] == expected[middle + 1 :]
        nothing = await log.read(log.durable_end, names=None, bytes_max=1 << 20)
        assert nothing.frames == []
        assert nothing.next_position == log.durable_end
        assert (nothing.last_event, nothing.promised_tick) == (None, 0)

    async def test_empty_log(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as log:
            state = log.state
            assert state == LogState(state.end, 0, -1, 0, (0, 0), clean=True)
            assert log.durable_end == state.end
            assert log.earliest == (0, 0)
            page = await log.read(0, names=None, bytes_max=1 << 20)
            assert (page.frames, page.last_event, page.promised_tick) == ([], None, 0)
            assert page.next_position >= log.durable_end

    async def test_frames_of_every_kind_come_back(self, tmp_path: Path) -> None:
        maker = FrameMaker(1)
        frames = [
            maker.term_start(),
            maker.data(("a", b"")),
            maker.data(("a", b"1"), ("b", b"2"), ("a", b"3")),
            maker.broadcast([f"v-{i}" for i in range(40)], b"shared" * 100),
            maker.pchannel_wide(b"for all"),
            maker.time_tick(),
            maker.data(*[(f"v-{i % 7}", bytes([i]) * 5_000) for i in range(100)]),
        ]
        async with self.opened(tmp_path) as log:
            positions = await append_all(log, frames)
            for bytes_max in (1, 600_000, 1 << 30):
                found = await read_all(log, bytes_max=bytes_max)
                assert [frame.position for frame in found] == positions
                assert [content(frame.view) for frame in found] == [content_of(frame) for frame in frames]
                assert all(a.next_position <= b.position for a, b in itertools.pairwise(found))
                assert found[-1].next_position <= log.durable_end
                for frame in found:
                    frame.view.check_body()

    async def test_pages_tile_the_log(self, tmp_path: Path) -> None:
        """Whatever the page size, the extents of pages join up, and each page names its newest event and its largest promised tick."""
        maker = FrameMaker(1)
        frames = [maker.time_tick() if i % 5 == 4 else maker.data(*[(f"v-{i % 3}", b"x" * 300)] * (i % 4 + 1)) for i in range(60)]
        async with self.opened(tmp_path) as log:
            positions = await append_all(log, frames)
            by_position = dict(zip(positions, frames, strict=True))
            for names in (None, frozenset({"v-1"}), frozenset({"nobody"})):
                for bytes_max in (1, 3_000, 1 << 20):
                    start = 0
                    for page in await pages(log, names=names, bytes_max=bytes_max):
                        extent = [p for p in positions if start <= p < page.next_position]
                        events = [p for p in extent if by_position[p].header.indices]
                        last = (events[-1], by_position[events[-1]].header.indices - 1) if events else None
                        assert page.last_event == last
                        assert page.promised_tick == max((by_position[p].header.promised_tick for p in extent), default=0)
                        assert all(start <= frame.position < page.next_position for frame in page.frames)
                        start = page.next_position
                    assert start == log.durable_end
            for start in range(0, log.durable_end, max(1, log.durable_end // 97)):
                page = await log.read(start, names=None, bytes_max=1)
                following = [p for p in positions if p >= start]
                assert [frame.position for frame in page.frames] == following[: len(page.frames)]
                assert bool(page.frames) == bool(following)

    async def test_read_with_an_end_stops_below_it(self, tmp_path: Path) -> None:
        maker = FrameMaker(1)
        frames = [maker.time_tick() if i % 5 == 4 else maker.data(*[(f"v-{i % 3}", b"x" * 300)] * (i % 4 + 1)) for i in range(30)]
        async with self.opened(tmp_path) as log:
            positions = await append_all(log, frames)
            by_position = dict(zip(positions, frames, strict=True))
            ends = [positions[0], positions[0] + 1, *positions[7:25:4], positions[12] + 1, log.durable_end + 5]
            for names, end in itertools.product((None, frozenset({"v-1"}), frozenset[str]()), ends):
                start, found = 0, list[int]()
                while start < min(end, log.durable_end):
                    page = await log.read(start, names=names, bytes_max=1_500, end=end)
                    extent = [p for p in positions if start <= p < min(end, page.next_position)]
                    events = [p for p in extent if by_position[p].header.indices]
                    assert page.last_event == ((events[-1], by_position[events[-1]].header.indices - 1) if events else None)
                    assert page.promised_tick == max((by_position[p].header.promised_tick for p in extent), default=0)
                    assert page.next_position > start
                    found += [frame.position for frame in page.frames]
                    start = page.next_position
                below = [p for p in positions if p < end]
                shown = [p for p in below if names is None or any(name in names for name, _ in by_position[p].vchannels)]
                assert found == shown

    async def test_stored_bytes_of_a_frame_can_be_read(self, tmp_path: Path) -> None:
        """The head, and any whole blocks of the body that the read wanted, are the bytes that were appended."""
        maker = FrameMaker(1)
        frame = maker.data(*[(f"v-{i % 7}", bytes([i]) * 5_000) for i in range(100)])
        head, body = frame.buffers[0], b"".join(frame.buffers[1:])
        async with self.opened(tmp_path) as log:
            await append_all(log, [frame])
            for names in (None, frozenset({"v-2"}), frozenset({"v-1", "v-2", "v-3"})):
                (found,) = await read_all(log, names=names)
                assert found.view.head == head
                ends = (0, *found.view.runs.block_ends)
                runs = list(found.view.runs) if names is None else found.view.runs.find(names)
                wanted = [
                    (start, end)
                    for start, end in itertools.pairwise(ends)
                    if any(run.body_start < end and start < run.body_end for run in runs)
                ]
                assert [found.view.stored(*block) for block in wanted] == [body[start:end] for start, end in wanted]
                start, stop = wanted[0][0], wanted[-1][1]
                assert found.view.stored(start, stop) == body[start:stop]

    async def test_names_filter_is_the_brute_force_filter(self, tmp_path: Path) -> None:
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        rng = random.Random(seed)
        names = [f"v-{i}" for i in range(12)]
        maker = FrameMaker(1)
        frames = []
        for _ in range(200):
            kind = rng.random()
            if kind < 0.05:
                frames.append(maker.pchannel_wide(b"all"))
            elif kind < 0.1:
                frames.append(maker.time_tick())
            elif kind < 0.2:
                frames.append(maker.broadcast(rng.sample(names, 3), rng.randbytes(rng.randrange(2_000))))
            else:
                frames.append(maker.data(*[(rng.choice(names), rng.randbytes(rng.randrange(4_000))) for _ in range(rng.randrange(1, 9))]))
        async with self.opened(tmp_path) as log:
            positions = await append_all(log, frames)
            for size in (0, 1, 2, 5, 12):
                wanted = frozenset(rng.sample(names, size))
                expected = [
                    (position, content_of(frame, wanted))
                    for position, frame in zip(positions, frames, strict=True)
                    if frame.pchannel_wide or wanted & {name for name, _ in frame.vchannels}
                ]
                for bytes_max in (1, 20_000, 1 << 20):
                    found = await read_all(log, names=wanted, bytes_max=bytes_max)
                    assert [frame.position for frame in found] == [position for position, _ in expected]
                    assert [content(frame.view, wanted) for frame in found] == [whole for _, whole in expected]

    async def test_view_gives_the_wanted_runs_without_waiting(self, tmp_path: Path) -> None:
        maker = FrameMaker(1)
        frames = [maker.data(*[(f"v-{i}", bytes([i]) * 40_000) for i in range(32)]) for _ in range(3)]
        async with self.opened(tmp_path) as log:
            await append_all(log, frames)
            found = await read_all(log, names=frozenset({"v-7"}))
            assert len(found) == 3
            for frame in found:
                (run,) = [run for run in frame.view.runs if run.name == "v-7"]
                assert run.kind == RunKind.VCHANNEL
                assert frame.view.columns(run).payloads == [b"\x07" * 40_000]

    async def test_handle_is_fenced_while_it_writes(self, tmp_path: Path) -> None:
        backend = self.make(tmp_path)
        await backend.create("p-0", incarnation=INCARNATION)
        old = await backend.open("p-0", incarnation=INCARNATION, term=1)
        old_maker = FrameMaker(1)
        acked: list[int] = []
        refused: list[BaseException] = []
        enough = asyncio.Event()

        async def writer(number: int) -> None:
            i = 0
            while True:
                frame = old_maker.data((f"v-{number}", b"%d" % i))
                i += 1
                try:
                    acked.append(await append(old, frame))
                except ChannelFencedError as error:
                    refused.append(error)
                    return
                if len(acked) > 40:
                    enough.set()

        writers = [asyncio.create_task(writer(number)) for number in range(4)]
        await enough.wait()
        new = await backend.open("p-0", incarnation=INCARNATION, term=2)
        new_maker = FrameMaker(2)
        first = await append(new, new_maker.term_start(1, new.state.last_sequence))
        await asyncio.gather(*writers)
        with pytest.raises(ChannelFencedError):
            await append(old, old_maker.data(("v", b"late")))
        with pytest.raises(ChannelFencedError):
            await old.truncate(old.durable_end, 0)
        with pytest.raises(ChannelFencedError):
            await old.save_state(acked[-1], [b"late"])
        with pytest.raises(ChannelFencedError):
            await old.release(acked[-1], state=None)
        await append(new, new_maker.data(("v", b"on time")))
        assert len(refused) == 4
        found = await read_all(new)
        positions = {frame.position for frame in found}
        assert positions >= set(acked), "an acknowledged frame is lost"
        assert all(frame.view.header.term == 1 for frame in found if frame.position < first)
        assert all(frame.view.header.term == 2 for frame in found if frame.position >= first)
        assert all(position < first for position in acked)
        await old.close()
        await append(new, new_maker.data(("v", b"after the old one closed")))
        assert len(await read_all(new)) == len(found) + 1
        await new.close()
        await backend.close()

    async def test_term_that_is_not_higher_is_refused(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as log:
            await append(log, FrameMaker(1).data(("v", b"1")))
        backend = self.make(tmp_path)
        log = await backend.open("p-0", incarnation=INCARNATION, term=5)
        for term in (5, 4, 1):
            with pytest.raises(ChannelFencedError) as refused:
                await backend.open("p-0", incarnation=INCARNATION, term=term)
            assert refused.value.term == 5
        await append(log, FrameMaker(5).data(("v", b"2")))
        await log.close()
        with pytest.raises(ChannelFencedError):
            await backend.open("p-0", incarnation=INCARNATION, term=5)
        await backend.close()

    async def test_create_and_open_refuse_a_wrong_log(self, tmp_path: Path) -> None:
        backend = self.make(tmp_path)
        with pytest.raises(CorruptionError):
            await backend.open("p-0", incarnation=INCARNATION, term=1)
        await backend.create("p-0", incarnation=1)
        await backend.create("p-0", incarnation=INCARNATION)
        with pytest.raises(CorruptionError):
            await backend.open("p-0", incarnation=1, term=1)
        log = await backend.open("p-0", incarnation=INCARNATION, term=1)
        await append(log, FrameMaker(1).data(("v", b"1")))
        await log.close()
        with pytest.raises(FormatError):
            await backend.create("p-0", incarnation=INCARNATION)
        await backend.close()

    async def test_last_events_outlive_truncation(self, tmp_path: Path) -> None:
        maker = FrameMaker(1)
        frames = [
            maker.data(("quiet", b"1"), ("loud", b"2"), ("quiet", b"3")),
            maker.broadcast(["loud", "copied"], b"4"),
            maker.time_tick(),
            maker.data(("loud", b"5")),
            maker.pchannel_wide(b"6"),
        ]
        quiet, loud, copied = ("quiet", 1), ("loud", 1), ("copied", 1)
        async with self.opened(tmp_path) as log:
            positions = await append_all(log, frames)
            events = {quiet: (positions[0], 2), loud: (positions[3], 0), copied: (positions[1], 1)}
            assert await log.last_events(0) == events
            assert await log.last_events(positions[1]) == {loud: events[loud], copied: events[copied]}
            assert await log.last_events(positions[3]) == {loud: events[loud]}
            assert await log.last_events(log.durable_end) == {}
            await log.truncate(positions[3], 0)
            # What was truncated may still be there, or not.
            kept = await log.last_events(log.extents()[0].start)
            assert {loud: events[loud]}.items() <= kept.items() <= events.items()
        async with self.opened(tmp_path, 2) as log:
            assert await log.last_events(log.extents()[0].start) == kept

    async def test_recovery_finds_last_events_after_keyed_frames(self, tmp_path: Path) -> None:
        maker = FrameMaker(1)
        frames = [maker.keyed((f"v-{i % 3}", b"%d" % i)) if i % 2 else maker.data((f"w-{i % 5}", b"1"), ("w", b"2")) for i in range(20)]
        async with self.opened(tmp_path, checkpoint=0) as log:
            positions = await append_all(log, frames)
            keyed_bytes = log.keyed_bytes
        async with self.opened(tmp_path, 2, checkpoint=0) as log:
            for start in (0, positions[7]):
                events = await log.last_events(start)
                for bytes_max in (1, 1 << 20):
                    found = await read_keyed(log, start, bytes_max=bytes_max)
                    assert [frame.position for frame in found] == [position for position in positions[1::2] if position >= start]
                    assert await log.last_events(start) == events
            keys = IdempotencyTable(window_count=None, window_s=60.0, producers_max=1)
            assert await replay(log, RecoveryState(keys, CopyTable()), 0) == (10, keyed_bytes)

    async def test_truncation_is_exact(self, tmp_path: Path) -> None:
        maker = FrameMaker(1)
        frames = [maker.data(*[("v", b"x" * 500)] * 4) for _ in range(40)]
        async with self.opened(tmp_path) as log:
            positions = await append_all(log, frames)
            await log.truncate(positions[10], 2)
            assert log.earliest == (positions[10], 2)
            with pytest.raises(TruncatedError) as caught:
                await log.read(positions[10] - 1, names=None, bytes_max=1 << 20)
            assert (caught.value.earliest.position, caught.value.earliest.index) == (positions[10], 2)  # type: ignore[attr-defined]
            found = await read_all(log, positions[10])
            assert [frame.position for frame in found] == positions[10:]
            await log.truncate(positions[10], 3)
            await log.truncate(positions[3], 0)
            await log.truncate(positions[10], 1)
            assert log.earliest == (positions[10], 3), "going backwards changes nothing, also for whoever opens the log next"
            with pytest.raises(InvalidArgumentError):
                await log.truncate(log.durable_end + 1, 0)
        async with self.opened(tmp_path, 2) as log:
            assert log.earliest == log.state.earliest == (positions[10], 3)
            with pytest.raises(TruncatedError):
                await log.read(0, names=None, bytes_max=1 << 20)
            assert [frame.position for frame in await read_all(log, positions[10])] == positions[10:]
            end = log.durable_end
            await log.truncate(end, 0)
            assert log.earliest == (end, 0)
            with pytest.raises(TruncatedError) as caught:
                await log.read(positions[-1], names=None, bytes_max=1 << 20)
            assert caught.value.earliest is None, "nothing is left"
            (position,) = await append_all(log, [FrameMaker(2).data(("v", b"next"))])
            assert position >= end
            assert [frame.position for frame in await read_all(log, end)] == [position]
        async with self.opened(tmp_path, 3) as log:
            assert log.earliest == (end, 0)
            assert [frame.position for frame in await read_all(log, end)] == [position]

    async def test_space_is_given_back_in_extents(self, tmp_path: Path) -> None:
        maker = FrameMaker(1)
        frames = [maker.time_tick() if i % 3 == 2 else maker.data(("v", bytes(60_000))) for i in range(400)]
        events: list[tuple[int, int]] = []
        sealed: list[int] = []
        async with self.opened(tmp_path) as log:
            (only,) = log.extents()
            assert (only.end, only.sealed) == (log.durable_end, False)
            log.sealed = lambda: sealed.append(len(log.extents()))
            positions = await append_all(log, frames)
            events = [
                (position, frame.header.indices - 1) for position, frame in zip(positions, frames, strict=True) if frame.header.indices
            ]
            extents = log.extents()
            assert len(extents) > 2
            async with asyncio.timeout(60):
                while not sealed or sealed[-1] < len(extents):  # the thread reports its work on the loop
                    await asyncio.sleep(0)
            assert [extent.sealed for extent in extents] == [True] * (len(extents) - 1) + [False]
            assert extents[0].start <= positions[0]
            assert extents[-1].end == log.durable_end

            def last_tick(end: int) -> int:
                return max(
                    frame.header.first_tick
                    for position, frame in zip(positions, frames, strict=True)
                    if position < end and frame.header.indices
                )

            def next_tick(start: int) -> int:
                return min(
                    frame.header.first_tick
                    for position, frame in zip(positions, frames, strict=True)
                    if position >= start and frame.header.indices
                )

            assert all(one.end == other.start for one, other in itertools.pairwise(extents)), "without gaps"
            for extent in extents[:-1]:
                ticks = [
                    frame.header.promised_tick
                    for position, frame in zip(positions, frames, strict=True)
                    if extent.start <= position < extent.end
                ]
                assert extent.newest_tick >= max(ticks, default=0), "one may be too small for any frame"
            assert log.last_truncated is None
            first = extents[1].end
            await log.truncate(first, 0)
            assert log.extents() == extents[2:]
            assert log.last_truncated == max(event for event in events if event < (first, 0))
            assert [frame.position for frame in await read_all(log, first)] == [at for at in positions if at >= first]
            assert last_tick(first) <= (log.truncated_tick or 0) < next_tick(first)
        async with self.opened(tmp_path, 2) as log:
            assert log.extents()[:-1] == extents[2:-1]
            assert last_tick(first) <= (log.truncated_tick or 0) < next_tick(first)
            assert log.last_truncated == max(event for event in events if event < (first, 0))
            await log.truncate(extents[-1].start, 0)
            (last,) = log.extents()
            assert (last.start, last.sealed) == (extents[-1].start, False)
            assert log.last_truncated == max(event for event in events if event < (last.start, 0))
            assert last_tick(last.start) <= (log.truncated_tick or 0) < next_tick(last.start)
            await log.truncate(positions[-1] + 1, 0)
            assert log.extents()[-1].end == log.durable_end, "the one that is not sealed never goes"

    async def test_extents_that_only_the_checkpoint_holds_are_listed(self, tmp_path: Path) -> None:
        maker = FrameMaker(1)
        async with self.opened(tmp_path, checkpoint=0) as log:
            await append_all(log, [maker.data(("v", bytes(60_000))) for _ in range(200)])
            extents = log.extents()
            end = extents[-1].start
            await log.truncate(end, 0)
            assert log.extents() == extents
            await log.release(end, state=None)
            assert log.extents() == extents[-1:]

    async def test_checkpoints(self, tmp_path: Path) -> None:
        blob = bytes(range(256)) * 5_000
        pieces = [blob[at : at + 777] for at in range(0, len(blob), 777)]
        async with self.opened(tmp_path) as log:
            assert log.checkpointed is None
            (first, second) = await append_all(log, [FrameMaker(1).data(("v", b"1")) for _ in range(2)])
            with pytest.raises(CorruptionError):
                await log.load_state(first)
            await log.save_state(first, [b"one"])
            await log.save_state(first, [b"one,", b"", b" again"])
            assert await log.load_state(first) == b"one, again"
            await log.save_state(second, pieces)
            assert await log.load_state(second) == blob
            assert await log.load_state(first) == b"one, again", "it may still be the one that counts"
            await log.release(second, state=second)
            assert log.checkpointed == second
            assert await log.load_state(second) == blob
            with pytest.raises(CorruptionError):
                await log.load_state(first)
            await log.release(first, state=first)
            assert log.checkpointed == second, "going backwards changes nothing"
            assert await log.load_state(second) == blob
        async with self.opened(tmp_path, 2, checkpoint=second) as log:
            assert log.checkpointed == second
            assert await log.load_state(second) == blob
            end = log.durable_end
            await log.save_state(end, [])
            await log.release(end, state=end)
            assert await log.load_state(end) == b""
            with pytest.raises(CorruptionError):
                await log.load_state(second)
            await log.release(end, state=None)
            with pytest.raises(CorruptionError):
                await log.load_state(end)
            assert log.checkpointed == end

    async def test_keyed_frames_are_found_among_the_others(self, tmp_path: Path) -> None:
        rng = random.Random(7)
        maker = FrameMaker(1)
        frames = [
            maker.keyed(*[(f"v-{rng.randrange(4)}", b"key %d %d" % (i, k)) for k in range(rng.randint(1, 3))])
            if rng.random() < 0.2
            else maker.data(("v", bytes(rng.randint(1, 3_000))))
            for i in range(200)
        ]
        async with self.opened(tmp_path, checkpoint=0) as log:
            positions = await append_all(log, frames)
        expected = [(position, content_of(frame)) for position, frame in zip(positions, frames, strict=True) if frame.header.compatible]
        for term in (2, 3):
            async with self.opened(tmp_path, term, checkpoint=0) as log:
                for start in (0, positions[50] + 1, positions[150], log.durable_end):
                    for bytes_max in (1, 1_000, 1 << 20):
                        found = await read_keyed(log, start, bytes_max=bytes_max)
                        assert [(frame.position, content(frame.view)) for frame in found] == [pair for pair in expected if pair[0] >= start]
                page = await log.read_keyed(positions[3], bytes_max=1 << 30)
                events = [(position, frame.header.indices - 1) for position, frame in zip(positions, frames, strict=True)]
                assert page.last_event == events[-1]
                assert page.next_position == log.durable_end

    async def test_frames_that_recovery_needs_are_held(self, tmp_path: Path) -> None:
        maker = FrameMaker(1)
        frames = [maker.keyed(("v", b"%04d" % i + b"x" * 60_000)) for i in range(200)]
        async with self.opened(tmp_path, checkpoint=0) as log:
            positions = await append_all(log, frames)
            assert log.held_bytes == 0
            await log.truncate(positions[150], 0)
            assert log.held_bytes > 0
            with pytest.raises(TruncatedError):
                await log.read(positions[149], names=None, bytes_max=1)
            assert [frame.position for frame in await read_keyed(log, 0)] == positions
        async with self.opened(tmp_path, 2, checkpoint=0) as log:
            assert log.earliest == (positions[150], 0)
            with pytest.raises(TruncatedError):
                await log.read(positions[149], names=None, bytes_max=1)
            assert [frame.position for frame in await read_keyed(log, 0)] == positions
            await log.release(positions[100] + 1, state=None)
            assert [frame.position for frame in await read_keyed(log, positions[100] + 1)] == positions[101:]
            held = log.held_bytes
        async with self.opened(tmp_path, 3, checkpoint=positions[100] + 1) as log:
            assert log.held_bytes == held
            assert [frame.position for frame in await read_keyed(log, positions[100] + 1)] == positions[101:]
            await log.release(log.durable_end, state=None)
            assert log.held_bytes == 0
            assert [frame.position for frame in await read_all(log, positions[150])] == positions[150:]
        async with self.opened(tmp_path, 4, checkpoint=positions[-1] + 1) as log:
            assert [frame.position for frame in await read_all(log, positions[150])] == positions[150:]
            end = log.durable_end
        with pytest.raises(CorruptionError):
            async with self.opened(tmp_path, 5, checkpoint=0):
                pass
        with pytest.raises(CorruptionError):
            async with self.opened(tmp_path, 6, checkpoint=end + 1):
                pass

    async def test_close_drains_and_then_refuses(self, tmp_path: Path) -> None:
        maker = FrameMaker(1)
        async with self.opened(tmp_path) as log:
            order: list[int] = []
            futures = []
            for i in range(50):
                future = append(log, maker.data(("v", b"x" * 2_000)))
                future.add_done_callback(lambda _, i=i: order.append(i))  # type: ignore[misc]
                futures.append(future)
            closing = asyncio.ensure_future(log.close())
            positions = await asyncio.gather(*futures)
            await closing
            assert order == list(range(50))
            assert sorted(positions) == list(positions)
            late = append(log, maker.data(("v", b"late")))
            with pytest.raises(ClosedError):
                await late
            for call in (
                log.read(0, names=None, bytes_max=1),
                log.truncate(positions[1], 0),
                log.read_keyed(0, bytes_max=1),
                log.save_state(positions[1], []),
                log.load_state(positions[1]),
                log.release(positions[1], state=None),
            ):
                with pytest.raises(ClosedError):
                    await call
            log.promise(1 << 60, 1 << 60)
            await log.close()
        async with self.opened(tmp_path, 2) as log:
            assert log.state.clean
            assert log.state.promised_tick < 1 << 60
            assert [frame.position for frame in await read_all(log)] == positions

    async def test_cancelled_read_harms_nothing(self, tmp_path: Path) -> None:
        maker = FrameMaker(1)
        frames = [maker.data(("v", b"x" * 10_000)) for _ in range(50)]
        async with self.opened(tmp_path) as log:
            positions = await append_all(log, frames)
            for turns in range(6):
                reading = asyncio.ensure_future(log.read(0, names=None, bytes_max=1 << 30))
                for _ in range(turns):
                    await asyncio.sleep(0)
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
                assert [frame.position for frame in await read_all(log)] == positions
            reading = asyncio.ensure_future(log.read(0, names=None, bytes_max=1 << 30))
            await asyncio.sleep(0)
            reading.cancel()
            (late,) = await append_all(log, [maker.data(("v", b"x"))])
            assert [frame.position for frame in await read_all(log)] == [*positions, late]

    async def test_promises_outlive_the_writer(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as log:
            await append(log, FrameMaker(1).data(("v", b"1")))
            high = 1 << 50
            log.promise(high, high + 100)
            log.promise(high - 5, high + 100)
        async with self.opened(tmp_path, 2) as log:
            assert log.state.clean
            assert log.state.promised_tick == high

    async def test_large_frames(self, tmp_path: Path) -> None:
        backend = self.make(tmp_path)
        limit = backend.frame_bytes_limit
        await backend.close()
        assert limit >= FRAME_BYTES_MAX
        maker = FrameMaker(1)
        sizes = [FRAME_BYTES_MAX - 200, 100, min(limit - 200, 9 << 20), 100]
        frames = [maker.data(("v", b"x" * size)) for size in sizes]
        async with self.opened(tmp_path) as log:
            positions = await append_all(log, frames)
            small = frames[1]  # a separate frame would leave a gap in the sequence
            over = EncodedFrame(small.header, small.buffers, limit + 1, small.vchannels, small.pchannel_wide)
            with pytest.raises(InvalidArgumentError, match=str(limit)):
                await append(log, over)
            positions += await append_all(log, [maker.data(("v", b"after"))])
            found = await read_all(log)
            assert [frame.position for frame in found] == positions
            assert [content(frame.view) for frame in found[:4]] == [content_of(frame) for frame in frames]
        async with self.opened(tmp_path, 2) as log:
            assert [frame.position for frame in await read_all(log)] == positions

    async def test_opening_again_and_again(self, tmp_path: Path) -> None:
        positions: list[int] = []
        newest = None
        for term in range(1, 9):
            async with self.opened(tmp_path, term) as log:
                assert [frame.position for frame in await read_all(log)] == positions
                assert log.state.last_term == (term - 1 if positions else 0)
                assert log.state.newest == newest
                if term % 3 != 2:
                    maker = FrameMaker(term)
                    positions += await append_all(log, [maker.data(("v", b"x" * (term * 400))) for _ in range(term)])
                    newest = (positions[-1], 0)
                else:
                    positions += await append_all(log, [FrameMaker(term).time_tick()])
        assert positions == sorted(set(positions))
