"""A journal that was restored from a copy and marked so: what both histories have stays valid, what was lost is refused for good."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.api.opening.test_went_back import append
from wal import DeliverPolicy, Message, MessageID, ProducerKey, ReadPosition, Settings, StartAfter, StartFrom, WALAccesser, bridge, open_wal
from wal.channels.map_keeper import VChannelMapKeeper
from wal.errors import ConflictError, CorruptionError, InvalidArgumentError, LogWentBackError, WALError
from wal.location import parse_location
from wal.message import AppendResult, Lineage, Restore
from wal.node.local import restored
from wal.node.local.restored import mark_restored
from wal.operate.cli.main import main
from wal.storage.journal.lineage_file import LINEAGE_NAME, load_lineage

OLD, LOST, NEW = 20, 10, 40


async def mark(place: Path) -> dict[str, Lineage]:
    return await mark_restored(parse_location(place), Settings())


class Copied:
    """A log with copies. `results` are the results of its messages, `lost` the results that a restore has lost."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.results: list[AppendResult] = []
        self.lost: list[AppendResult] = []

    async def write(self, count: int) -> None:
        async with open_wal(self.place, segment_bytes=1 << 20) as log:
            self.results += await append(log, count)

    async def lose(self, count: int, *, cursor: str = "above") -> None:
        """Writes messages that are not in the copy, which is put in place and marked then."""
        copied = self.place.with_name("copy")
        await asyncio.to_thread(shutil.copytree, self.place, copied)
        async with open_wal(self.place) as log:
            self.lost += await append(log, count)
        async with open_wal(self.place, read_only=True) as log, log.read("orders", cursor=cursor, follow=False) as scanner:
            async for _ in scanner:
                pass
            await scanner.save()
        (copied / "cursors").mkdir(exist_ok=True)
        for path in await asyncio.to_thread(lambda: list((self.place / "cursors").iterdir())):
            if not (copied / "cursors" / path.name).exists():
                await asyncio.to_thread(shutil.copy, path, copied / "cursors")
        await asyncio.to_thread(shutil.rmtree, self.place)
        await asyncio.to_thread(copied.rename, self.place)


@pytest.fixture
async def copied(data_dir: Path) -> Copied:
    one = Copied(data_dir / "log")
    await one.write(OLD)
    async with open_wal(one.place) as log, log.read("orders", cursor="below", follow=False) as scanner:
        for _ in range(OLD // 2):
            await anext(scanner)
        await scanner.save()
    await one.lose(LOST)
    return one


async def payloads(log: WALAccesser, **options: object) -> list[list[bytes]]:
    async with log.read("orders", follow=False, **options) as scanner:  # type: ignore[arg-type]
        return [[body.payload for body in message.bodies()] async for message in scanner]


async def test_last_events_outlive_it(copied: Copied) -> None:
    (lineage,) = (await mark(copied.place)).values()
    last, lost = copied.results[OLD - 1].message_id, copied.lost[-1].message_id
    async with open_wal(copied.place, read_only=True) as log:
        found = await log.last("orders")
        assert found == lineage.current(last)
    async with open_wal(copied.place) as log:
        assert await log.last("orders") == found
        with pytest.raises(LogWentBackError):
            await log.raw_append(Message("orders", b"refused"), expected_last=lost)
        for expected in (copied.results[0].message_id, None):
            with pytest.raises(ConflictError) as caught:
                await log.raw_append(Message("orders", b"refused"), expected_last=expected)
            assert caught.value.last == found
        accepted = await log.raw_append(Message("orders", b"accepted"), expected_last=last)
        assert await log.last("orders") == accepted.message_id
        with pytest.raises(ConflictError):
            await log.raw_append(Message("orders", b"refused"), expected_last=last)
        assert len(await payloads(log)) == OLD + 1


@pytest.mark.parametrize("new", [0, NEW])
@pytest.mark.parametrize("read_only", [False, True])
async def test_common_ids_stay_valid(copied: Copied, new: int, read_only: bool) -> None:
    (lineage,) = (await mark(copied.place)).values()
    await copied.write(new)
    kept, lost = copied.results[:OLD], copied.lost
    async with open_wal(copied.place, read_only=read_only) as log:
        everything = await payloads(log)
        assert len(everything) == OLD + new
        for number in (0, OLD // 2, OLD - 1):
            message_id, tick = kept[number].message_id, kept[number].time_tick
            assert message_id.incarnation == lineage.restores[0].parent
            assert await payloads(log, deliver_policy=StartFrom(message_id)) == everything[number:]
            assert await payloads(log, deliver_policy=StartAfter(message_id)) == everything[number + 1 :]
            assert await payloads(log, resume=ReadPosition(message_id, tick)) == everything[number + 1 :]
        assert await payloads(log, cursor="below") == everything[OLD // 2 :]
        policies: list[Callable[[MessageID], DeliverPolicy]] = [StartFrom, StartAfter]
        for result in lost:
            options: Any
            for options in (
                *({"deliver_policy": policy(result.message_id)} for policy in policies),
                {"resume": ReadPosition(result.message_id, result.time_tick)},
                {"resume": ReadPosition(result.message_id, 0)},
            ):
                with pytest.raises(LogWentBackError) as raised:
                    await payloads(log, **options)
                common = raised.value.last_common
                assert common is not None
                assert (common.position, common.index) == (kept[-1].message_id.position, kept[-1].message_id.index)
                assert await payloads(log, deliver_policy=StartAfter(common)) == everything[OLD:]
        with pytest.raises(LogWentBackError):
            await payloads(log, cursor="above")
        never = MessageID("p0", 77, kept[0].message_id.position, 0)
        with pytest.raises(InvalidArgumentError, match="another incarnation"):
            await payloads(log, deliver_policy=StartAfter(never))


async def test_ids_have_one_order(copied: Copied) -> None:
    await mark(copied.place)
    await copied.write(NEW)
    kept, new, lost = ([result.message_id for result in results] for results in (copied.results[:OLD], copied.results[OLD:], copied.lost))
    async with open_wal(copied.place):
        assert sorted([*new, *kept]) == [*kept, *new]
        assert kept[-1] < new[0]
        assert new[0] > kept[-1]
        with pytest.raises(InvalidArgumentError, match="have no order"):
            _ = lost[0] < new[-1]


async def test_iteration_accepts_what_is_common(copied: Copied) -> None:
    await mark(copied.place)
    await copied.write(NEW)
    kept, lost = copied.results[OLD - 1], copied.lost[0]

    def iterate() -> None:
        position = ReadPosition(kept.message_id, kept.time_tick)
        with bridge.iterate(copied.place, "orders", resume=position, follow=False) as messages:
            assert len(list(messages)) == NEW
        with bridge.iterate(copied.place, "orders", cursor="below", follow=False) as messages:
            assert len(list(messages)) == OLD // 2 + NEW
            messages.save()
        for options in ({"deliver_policy": StartFrom(lost.message_id)}, {"cursor": "above"}):
            with pytest.raises(LogWentBackError), bridge.iterate(copied.place, "orders", follow=False, **options) as messages:
                pass

    await asyncio.to_thread(iterate)


async def test_calls_take_common_ids(copied: Copied) -> None:
    await mark(copied.place)
    async with open_wal(copied.place) as log:
        with pytest.raises(LogWentBackError):
            await log.truncate(up_to=copied.lost[0].message_id)
        infos = {info.name: info for info in await log.cursors()}
        assert set(infos) == {"above", "below"}
        await log.delete_cursor("above")
        async with log.read("orders", cursor="below") as scanner:
            await scanner.save(ReadPosition(copied.results[15].message_id, copied.results[15].time_tick))
        await log.truncate(up_to=copied.results[5].message_id)
        assert len(await payloads(log)) == OLD - 6


async def test_keys_outlive_it(data_dir: Path) -> None:
    """Of several pchannels with several segments, which keep the incarnation in which they were begun."""
    place = data_dir / "log"
    names = ("orders", "bills", "stock")

    async def write(log: WALAccesser, *numbers: int) -> list[bool]:
        results = [
            await log.raw_append(Message(name, bytes(300_000)), idempotency_key=key)
            for name in names
            for number in numbers
            for key in (f"k{number}", ProducerKey("p", number))
        ]
        return [result.duplicate for result in results]

    async with open_wal(place, pchannels=3, segment_bytes=1 << 20) as log:
        for number, name in enumerate(names):
            await log.create_vchannel(name, pchannel=f"p{number}")
        assert not any(await write(log, 1, 2, 3, 4))
    lineages: dict[str, Lineage] = {}
    for restores in (1, 2, 3):
        lineages = await mark(place)
        assert set(lineages) == {"p0", "p1", "p2"}
        assert {len(lineage.restores) for lineage in lineages.values()} == {restores}
        async with open_wal(place, segment_bytes=1 << 20) as log:
            assert all(await write(log, 1, 2, 3, 3 + restores))
            assert not any(await write(log, 4 + restores))
        async with open_wal(place, read_only=True) as log:
            for name in names:
                async with log.read(name, follow=False) as scanner:
                    assert len([message async for message in scanner]) == 2 * (4 + restores)
    assert len({lineage.incarnation for lineage in lineages.values()}) == 3


async def test_restores_chain(copied: Copied) -> None:
    """An id is refused if any restore since has lost its event, even if the log has grown past it twice."""
    await mark(copied.place)
    await copied.write(NEW)
    first, lost = copied.results[:], copied.lost[:]
    copied.lost.clear()
    await copied.lose(5, cursor="above again")
    await mark(copied.place)
    await copied.write(NEW)
    async with open_wal(copied.place) as log:
        everything = await payloads(log)
        assert len(everything) == OLD + 2 * NEW
        for number in (0, OLD - 1, OLD, OLD + NEW - 1):
            assert await payloads(log, deliver_policy=StartFrom(first[number].message_id)) == everything[number:]
        for result in (*lost, *copied.lost):
            with pytest.raises(LogWentBackError) as raised:
                await payloads(log, deliver_policy=StartFrom(result.message_id))
            last = first[OLD - 1] if result in lost else first[-1]
            assert raised.value.last_common is not None
            assert raised.value.last_common.position == last.message_id.position


@pytest.mark.parametrize("step", ["save_lineage", "renew_incarnations", "LocalLog"])
async def test_interruption_loses_nothing(copied: Copied, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends before each of its steps that changes something; then it is run again, or the log is opened."""

    class InterruptedCommand(Exception):
        pass

    def interrupt(*_: object, **__: object) -> None:
        raise InterruptedCommand

    with monkeypatch.context() as patched:
        target = restored.JournalBackend if step == "save_lineage" else restored  # type: ignore[attr-defined]
        patched.setattr(target, step, interrupt)
        with pytest.raises(InterruptedCommand):
            await mark(copied.place)
    async with open_wal(copied.place, read_only=True) as log:
        assert len(await payloads(log)) == OLD
    if step != "LocalLog":
        await mark(copied.place)
    async with open_wal(copied.place) as log:
        everything = await payloads(log)
        assert len(everything) == OLD
        with pytest.raises(LogWentBackError):
            await payloads(log, deliver_policy=StartFrom(copied.lost[0].message_id))
        assert await payloads(log, deliver_policy=StartFrom(copied.results[3].message_id)) == everything[3:]
    parent = copied.results[0].message_id.incarnation
    async with open_wal(copied.place) as log:
        (result,) = await append(log, 1)
    lineage = await asyncio.to_thread(load_lineage, copied.place / "pchannels" / "p0", result.message_id.incarnation)
    assert [restore.parent for restore in lineage.restores] == [parent]


async def test_opening_that_ends_early(copied: Copied, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first opening after the mark ends after the control pages, and before the maps: the parent's maps are those of the copy."""

    class InterruptedOpening(Exception):
        pass

    async def interrupt(*_: object, **__: object) -> bool:
        raise InterruptedOpening

    with monkeypatch.context() as patched:
        patched.setattr(VChannelMapKeeper, "start", interrupt)
        with pytest.raises(InterruptedOpening):
            await mark(copied.place)
    async with open_wal(copied.place, read_only=True) as log:
        assert len(await payloads(log)) == OLD


async def test_damaged_lineage_is_an_error(copied: Copied) -> None:
    await mark(copied.place)
    path = copied.place / "pchannels" / "p0" / LINEAGE_NAME
    good = path.read_bytes()
    for at in range(0, len(good), 5):
        path.write_bytes(good[:at] + bytes((good[at] ^ 1,)) + good[at + 1 :])
        for read_only in (False, True):
            with pytest.raises(CorruptionError) as raised:
                await open_wal(copied.place, read_only=read_only)
            assert raised.value.path == str(path)
    path.write_bytes(good[:-3])
    with pytest.raises(CorruptionError):
        await open_wal(copied.place)
    path.unlink()
    with pytest.raises(CorruptionError, match="it is of incarnation"):
        await open_wal(copied.place)
    path.write_bytes(good)
    async with open_wal(copied.place) as log:
        assert len(await payloads(log)) == OLD


def test_command_marks_a_copy(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = data_dir / "log"
    with bridge.blocking(place, pchannels=2) as log:
        log.raw_append(Message("orders", b"1"))
        assert main(["mark-restored", str(place)]) == 1
        assert "LockedError" in capsys.readouterr().err
    assert main(["mark-restored", str(place)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["p0", "p1"]
    assert sum("nothing is common" in line for line in lines) == 1
    assert main(["mark-restored", str(data_dir / "nothing")]) == 1
    assert main(["mark-restored", "memory:"]) == 2
    with bridge.blocking(place) as log, log.read("orders", follow=False) as messages:
        assert [message.payload for message in messages] == [b"1"]


def test_lineage_takes_the_lowest_fork() -> None:
    lineage = Lineage(4, (Restore(1, 100), Restore(2, 50, (40, 0)), Restore(3, 200)))
    assert [lineage.covers(1, 49), lineage.covers(1, 50), lineage.covers(2, 50), lineage.covers(3, 199)] == [
        True, False, False, True,
    ]  # fmt: skip
    assert lineage.covers(4, 1 << 60)
    assert not lineage.covers(5, 0)
    assert lineage.since(4) is lineage.since(5) is None
    with pytest.raises(LogWentBackError) as raised:
        lineage.current(MessageID("p0", 1, 60, 0))
    assert raised.value.last_common == MessageID("p0", 4, 40, 0)
    assert lineage.current(MessageID("p0", 3, 60, 0)) == MessageID("p0", 4, 60, 0)
    assert issubclass(LogWentBackError, WALError)
