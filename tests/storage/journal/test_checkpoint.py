"""Checkpoints on disk: after a crash between any two steps recovery has all it needs; damage is named; a full disk loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from tests.storage.frames import INCARNATION, FrameMaker, append, append_all, read_keyed
from tests.storage.journal.faults import FaultyDisk, MeetingDisk
from tests.storage.journal.journals import PCHANNEL, folder, journal, segments
from wal.errors import CorruptionError, NoSpaceError, StorageError, WALError
from wal.storage.base import PChannelLog
from wal.storage.journal.backend import JournalBackend
from wal.storage.journal.control import ControlPage
from wal.storage.journal.disk import Disk
from wal.storage.journal.log import JournalLog
from wal.testing.power import PowerCutDisk
from wal.write.checkpoint_ledger import Checkpoint, CheckpointRule
from wal.write.checkpointer import Checkpointer
from wal.write.copies import CopyTable
from wal.write.idempotency.table import IdempotencyTable
from wal.write.recovery import RecoveryState

SEGMENT = 16 << 10


def checkpoints(place: Path) -> list[str]:
    return sorted(path.name for path in folder(place).glob("checkpoint-*"))


@pytest.mark.one_loop
@pytest.mark.parametrize("power", [False, True])
async def test_crash_between_any_two_steps_loses_nothing(tmp_path: Path, power: bool, soak: int) -> None:
    # Somewhat more than the operations of a whole run: a crash after more of them never happens.
    OPERATIONS = 400

    class WriterRun:
        """One writer's work: keyed frames, checkpoints and truncations in turn. `recorded` is the state that the metadata would hold."""

        def __init__(self) -> None:
            self.recorded = Checkpoint(0)
            self.states: dict[int, bytes] = {}
            self.acked: list[int] = []
            self.earliest = 0

        async def live(self, log: PChannelLog, maker: FrameMaker) -> None:
            for number in range(12):
                for _ in range(3):
                    frame = maker.keyed(("v", b"%05d" % len(self.acked) + bytes(3_000)))
                    self.acked.append(await append(log, frame))
                if number % 2:  # above the checkpoint, whose recovery still needs the frames below
                    self.earliest = self.acked[-2]
                    await log.truncate(self.earliest, 0)
                position = self.acked[-1] + 1
                state = b"state of %d" % position * 100
                self.states[position] = state
                await log.save_state(position, [state[:7], state[7:]])
                self.recorded = Checkpoint(position, position)
                await log.release(position, state=position)

        async def check(self, log: PChannelLog) -> None:
            last = self.recorded
            assert log.checkpointed == last.position
            if last.state is not None:
                assert await log.load_state(last.state) == self.states[last.state]
            found = [frame.position for frame in await read_keyed(log, last.position)]
            acked = [position for position in self.acked if position >= last.position]
            assert found[: len(acked)] == acked
            assert len(found) <= len(acked) + 1, "at most one frame was under way"
            assert log.earliest[0] <= self.earliest

    @contextlib.asynccontextmanager
    async def journal_at(place: Path, checkpoint: int) -> AsyncIterator[JournalLog]:
        """Opens the remaining files, in a term above the others."""
        backend = JournalBackend(place, first_segment_bytes=SEGMENT, segment_bytes=SEGMENT)
        try:
            log = await backend.open(PCHANNEL, incarnation=INCARNATION, term=9, checkpoint=checkpoint)
            try:
                yield log
            finally:
                await log.close()
        finally:
            await backend.close()

    origin = tmp_path / "origin"
    backend = JournalBackend(origin, first_segment_bytes=SEGMENT, segment_bytes=SEGMENT)
    await backend.create(PCHANNEL, incarnation=INCARNATION)
    await backend.close()
    outcomes: list[bool] = []
    first, step = (random.randrange(25), 25) if soak == 1 else (0, 1)
    for operations in (*range(first, OPERATIONS, step), OPERATIONS, 100_000):
        here, left = tmp_path / f"{operations}", tmp_path / f"{operations}-left"
        shutil.copytree(origin, here)
        disk = PowerCutDisk(random.Random(operations), here, left)
        disk.go_on(operations, power=power)
        run = WriterRun()
        backend = JournalBackend(here, first_segment_bytes=SEGMENT, segment_bytes=SEGMENT, disk=disk)
        log: PChannelLog | None = None
        ended = True
        try:
            log = await backend.open(PCHANNEL, incarnation=INCARNATION, term=1, checkpoint=0)
            await run.live(log, FrameMaker(1))
        except StorageError:
            ended = False
        if log is not None:
            try:
                await log.close()
            except WALError:
                ended = False
        if power:
            disk.cut()
        await backend.close()
        outcomes.append(ended)
        async with journal_at(left if power else here, run.recorded.position) as log:
            await run.check(log)
            last = run.recorded
            await log.release(last.position, state=last.state)
            files = {path.name for path in folder(left if power else here).glob("checkpoint-*")}
            assert files == (set() if last.state is None else {f"checkpoint-{last.state:016x}"})
        shutil.rmtree(here)
        shutil.rmtree(left, ignore_errors=True)
    assert not outcomes[0]
    assert outcomes[-2:] == [True, True], "the crashes do not reach the end of a run: raise OPERATIONS"


async def test_segments_go_after_truncation_and_checkpoint(tmp_path: Path) -> None:
    async with journal(tmp_path, segment=SEGMENT) as log:
        assert log.checkpointed is None
        await log.release(0, state=None)
        positions = await append_all(log, [FrameMaker(1).keyed(("v", b"%d" % i + bytes(3_000))) for i in range(40)])
        before = segments(tmp_path)
        indices = len(list(folder(tmp_path).glob("*.idx")))
        assert len(before) > 8
        await log.truncate(positions[30], 0)
        assert segments(tmp_path) == before, "recovery begins at 0"
        assert log.held_bytes > 0
        await log.release(positions[10], state=None)
        kept = segments(tmp_path)
        assert 0 < len(before) - len(kept) < len(before) - 8
        await log.release(positions[-1] + 1, state=None)
        left = segments(tmp_path)
        assert len(left) < len(kept)
        assert log.held_bytes == 0
        assert int(left[0].stem, 16) <= positions[30] < int(left[1].stem, 16)
        assert len(list(folder(tmp_path).glob("*.idx"))) < indices
        assert log.statistics().recycled > 0


async def test_missing_or_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    terms = iter(range(2, 1_000))

    def next_term() -> int:
        return next(terms)

    rng = random.Random(3)
    async with journal(tmp_path) as log:
        await log.save_state(4_096, [b"one", b"two"])
    path = folder(tmp_path) / checkpoints(tmp_path)[0]
    whole = path.read_bytes()
    for _ in range(60):
        damaged = bytearray(whole)
        if rng.random() < 0.5:
            damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        else:
            del damaged[rng.randrange(len(whole)) :]
        path.write_bytes(bytes(damaged))
        async with journal(tmp_path, next_term()) as log:
            with pytest.raises(CorruptionError) as caught:
                await log.load_state(4_096)
            assert caught.value.path == str(path)
            assert str(path) in str(caught.value)
    path.unlink()
    async with journal(tmp_path, next_term()) as log:
        with pytest.raises(CorruptionError) as caught:
            await log.load_state(4_096)
        assert caught.value.path == str(path)
    path.write_bytes(whole)
    async with journal(tmp_path, next_term()) as log:
        assert await log.load_state(4_096) == b"onetwo"


async def test_checkpoint_under_way_is_no_checkpoint(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with journal(tmp_path, disk=disk) as log:
        await log.save_state(1, [b"one"])
        disk.room = 1_000
        with pytest.raises(NoSpaceError):
            await log.save_state(2, [b"x" * 700, b"y" * 700])
        assert checkpoints(tmp_path) == [f"checkpoint-{1:016x}"], "nothing is left of it"
        assert await log.load_state(1) == b"one"
        disk.room = None
        await log.save_state(2, [b"two"])
        assert await log.load_state(2) == b"two"
    (folder(tmp_path) / f"checkpoint-{3:016x}.1.tmp").write_bytes(b"half")
    async with journal(tmp_path, 2):
        assert checkpoints(tmp_path) == [f"checkpoint-{1:016x}", f"checkpoint-{2:016x}"]


async def test_large_checkpoints_are_synced_in_parts(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with journal(tmp_path, disk=disk) as log:
        pieces = [bytes([number]) * 70_000 for number in range(100)]
        await log.save_state(5, pieces)
        assert await log.load_state(5) == b"".join(pieces)
    assert sum(count for name, count in disk.syncs.items() if name.startswith("checkpoint-")) >= 7


async def test_failed_checkpoint_is_retried_and_fails_no_append(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def new_table() -> IdempotencyTable:
        return IdempotencyTable(window_count=1_000, window_s=1e9, producers_max=100)

    now_s = 0.0
    saved: list[Checkpoint] = []
    refuse_record = False
    disk = FaultyDisk()

    async def save(checkpoint: Checkpoint) -> None:
        if refuse_record:
            raise StorageError("the metadata cannot be written")
        saved.append(checkpoint)

    async with journal(tmp_path, segment=1 << 20, disk=disk) as log:
        await log.release(0, state=None)
        table, maker = new_table(), FrameMaker(1)
        end = 0
        checkpointer = Checkpointer(
            log,
            RecoveryState(table, CopyTable()),
            last=Checkpoint(0),
            end=lambda: end,
            save=save,
            monotonic=lambda: now_s,
            rule=CheckpointRule(keyed_events=2),
        )

        async def add(number: int) -> None:
            nonlocal end
            position = await append(log, maker.keyed(("v", b"%d" % number)))
            (frame,) = (await log.read(position, names=None, bytes_max=1)).frames
            table.replay(position, frame.view)
            end = position + 1

        disk.room = 10  # this also holds for the reserve of a checkpoint
        await add(1)
        await checkpointer.make_room()
        assert saved == [], "one event is not enough"
        await add(2)
        with caplog.at_level(logging.WARNING, "wal.checkpoint"):
            await checkpointer.make_room()
        assert saved == []
        assert "no room" in caplog.text
        assert table.changes == 2
        disk.room = None
        await checkpointer.make_room()
        assert saved == [], "not before its time"
        await add(3)
        now_s += 1.0
        refuse_record = True
        await checkpointer.make_room()
        assert saved == []
        orphans = checkpoints(tmp_path)
        assert len(orphans) == 1
        assert table.changes == 3
        refuse_record = False
        now_s += 2.0
        await add(4)
        await checkpointer.make_room()
        assert saved == [Checkpoint(end, end)] == [checkpointer.ledger.last]
        assert checkpoints(tmp_path) == [f"checkpoint-{end:016x}"], "what no record names goes"
        assert table.changes == 0
        await checkpointer.make_room()
        await checkpointer.close()
        assert len(saved) == 1, "nothing happened since"
        restored = new_table()
        restored.restore(await log.load_state(end))
        assert b"".join(restored.snapshot()) == b"".join(table.snapshot())


async def test_fenced_writer_neither_stores_nor_drops(tmp_path: Path) -> None:
    def raise_term(control: Path) -> None:
        page = ControlPage(Disk(), control)
        with page.locked():
            record = page.load()
            assert record is not None
            page.store(msgspec.structs.replace(record, term=7))
        page.close()

    async with journal(tmp_path, segment=SEGMENT) as old:
        await old.release(0, state=None)
        positions = await append_all(old, [FrameMaker(1).keyed(("v", b"%d" % i + bytes(3_000))) for i in range(20)])
        await old.save_state(positions[3], [b"first"])
        await old.release(positions[3], state=positions[3])
        await old.truncate(positions[10], 0)
        held = segments(tmp_path)
        raise_term(folder(tmp_path) / "control")
        with pytest.raises(WALError, match="term"):
            await old.save_state(positions[12], [b"late"])
        with pytest.raises(WALError, match="term"):
            await old.release(positions[12], state=None)
        assert segments(tmp_path) == held
        assert checkpoints(tmp_path) == [f"checkpoint-{positions[3]:016x}"]
        assert old.checkpointed == positions[3]


async def test_checkpoint_without_room_uses_the_reserve(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with journal(tmp_path, segment=1 << 20, disk=disk) as log:
        position = await append(log, FrameMaker(1).data(("v", b"1"))) + 1
        log.keep_room(10_000)
        reserve = folder(tmp_path) / "checkpoint.reserve"
        async with asyncio.timeout(60):
            while not reserve.exists() or reserve.stat().st_size < 10_000:
                await asyncio.sleep(0)
        disk.room = 0
        with pytest.raises(NoSpaceError):
            await log.save_state(position, [b"x" * 20_000])
        await log.save_state(position, [b"a" * 4_000, b"b" * 3_000])
        assert await log.load_state(position) == b"a" * 4_000 + b"b" * 3_000
        assert not reserve.exists()
        with pytest.raises(NoSpaceError):
            await log.save_state(position, [b"again"])
        disk.room = None
        log.keep_room(100)
        async with asyncio.timeout(60):
            while not reserve.exists() or reserve.stat().st_size < 7_100:
                await asyncio.sleep(0)
    async with journal(tmp_path, 2) as log:
        assert reserve.exists(), "the next opening may need it"
        assert await log.load_state(position) == b"a" * 4_000 + b"b" * 3_000


async def test_reserve_is_not_filled_during_a_checkpoint(tmp_path: Path) -> None:
    """A save may rename the reserve: a thread that had it open would then make the checkpoint longer."""
    disk = MeetingDisk()
    reserve = folder(tmp_path) / "checkpoint.reserve"
    async with journal(tmp_path, segment=1 << 20, disk=disk) as log:
        position = await append(log, FrameMaker(1).data(("v", b"1"))) + 1
        async with asyncio.timeout(60):
            for size in (1_000, 2_000, 3_000):
                saving = asyncio.ensure_future(log.save_state(position, [b"a" * size]))
                log.keep_room(10 * size)
                await saving
                while not reserve.exists() or reserve.stat().st_size < 10 * size:
                    await asyncio.sleep(0)
                assert await log.load_state(position) == b"a" * size
    assert not disk.met
