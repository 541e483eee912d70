"""`read_only=True` through the public API: vchannels and pchannels that are created and dropped, and locations without a log."""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import wal
from tests.probes import payloads, read_all, start
from tests.processes import eventually
from wal import ImmutableMessage, Latest, Message, WALAccesser, bridge, open_wal
from wal.channels.vchannels import place
from wal.errors import ChannelNotExistError, ClosedError, CorruptionError, FormatError, InvalidArgumentError, WALError
from wal.storage.base import LogSnapshot
from wal.storage.journal.read_only_journal import ReadOnlyJournalLog

PCHANNELS = ["p0", "p1", "p2", "p3"]


async def test_vchannel_on_another_pchannel_is_followed(data: str) -> None:
    """Readers of a new incarnation get all of it, even messages from before they knew of it, and nothing of the earlier incarnation."""

    def other_pchannel(name: str) -> str:
        """Returns a pchannel that this vchannel is not assigned to by its name."""
        return next(pchannel for pchannel in PCHANNELS if pchannel != place(name, PCHANNELS))

    async with open_wal(data, pchannels=4) as writer, open_wal(data, read_only=True) as reader:
        await writer.create_vchannel("moved", pchannel=other_pchannel("moved"))
        await writer.append_bulk([Message("moved", b"of its earlier incarnation"), Message("other", b"x")])
        await writer.drop_vchannel("moved")

        async def gone() -> bool:
            return [info.name for info in await reader.vchannels()] == ["other"]

        await eventually(gone)
        async with reader.read("moved") as everything, reader.read("moved", deliver_policy=Latest()) as latest:
            both = start(take(everything, 3)), start(take(latest, 3))
            await asyncio.sleep(0)
            await writer.create_vchannel("moved", pchannel=other_pchannel("moved"))
            await writer.append_bulk([Message("moved", b"%d" % number) for number in range(3)])
            async with asyncio.timeout(60):
                for taken in both:
                    assert await taken == [b"0", b"1", b"2"]


async def take(scanner: wal.Scanner, count: int) -> list[bytes]:
    return [(await anext(scanner)).payload for _ in range(count)]


async def test_vchannel_that_is_dropped_ends_its_readers(data: str) -> None:
    """A drop ends readers that knew the vchannel from a map or from the log, but no readers of its next incarnation."""
    async with open_wal(data) as writer, open_wal(data, read_only=True) as reader:
        async with reader.read("early") as early:
            taking = start(take(early, 1))
            await writer.raw_append(Message("early", b"1"))
            assert await taking == [b"1"]
            async with reader.read(["early", "late"]) as both:
                await writer.drop_vchannel("early")
                await writer.raw_append(Message("early", b"of its next incarnation"))
                for scanner in (early, both):
                    async with asyncio.timeout(60):
                        with pytest.raises(ChannelNotExistError, match="'early' was dropped"):
                            async for message in scanner:
                                assert message.payload == b"1"
        async with reader.read("early") as again, asyncio.timeout(60):
            assert await take(again, 1) == [b"of its next incarnation"]


async def test_pchannels_that_are_added_are_found(data: str) -> None:
    async with open_wal(data) as writer:
        await writer.raw_append(Message("old", b"1"))
    async with open_wal(data, read_only=True) as reader:
        names = [f"new {number}" for number in range(8)]
        assert {place(name, PCHANNELS) for name in names} > {"p0"}
        scanners = [reader.read(name) for name in names]
        taking = [start(take(scanner, 1)) for scanner in scanners]
        async with open_wal(data, pchannels=4) as writer:
            await writer.append_bulk([Message(name, name.encode()) for name in names])
            async with asyncio.timeout(60):
                assert [(await taken)[0].decode() for taken in taking] == names
        assert len(reader.statistics().pchannels) == 4
        for scanner in scanners:
            await scanner.close()


async def test_directory_without_a_journal_stays_unchanged(data: str) -> None:
    for times in range(2):
        with pytest.raises(FormatError, match="holds no journal"):
            async with open_wal(data, read_only=True):
                pass
        if times == 0:
            Path(data).mkdir()
    assert list(Path(data).iterdir()) == []
    (Path(data) / "FORMAT").write_text("wal-journal 1\n")
    with pytest.raises(FormatError, match="never opened for writing"):
        await open_wal(data, read_only=True)


async def test_log_in_memory_is_refused_at_the_call() -> None:
    with pytest.raises(InvalidArgumentError, match="memory"):
        open_wal("memory:", read_only=True)
    with pytest.raises(TypeError, match="read_only"):
        open_wal("memory:", read_only=1)  # type: ignore[arg-type]


async def test_shared_log_may_be_read_only(data: str) -> None:
    async with open_wal(data) as writer:
        await writer.raw_append(Message("orders", b"1"))
    wal.init(data, read_only=True)
    try:
        assert await payloads(wal.WAL(), "orders") == [b"1"]
        with pytest.raises(InvalidArgumentError, match="read_only"):
            await wal.WAL().raw_append(Message("orders", b"2"))
    finally:
        await wal.release()
    with pytest.raises(ClosedError):
        wal.WAL()


async def test_writing_is_refused_before_the_log_is_open(data: str) -> None:
    async with open_wal(data):
        pass
    wal.init(data, read_only=True)
    try:
        with pytest.raises(InvalidArgumentError, match="read_only"):
            wal.WAL().append_nowait(Message("orders", b"2"))
        with pytest.raises(InvalidArgumentError, match="read_only"):
            wal.WAL().txn("orders")
    finally:
        await wal.release()


async def test_unknown_vchannels_are_refused_without_creation(data: str) -> None:
    async with open_wal(data) as writer:
        await writer.raw_append(Message("orders", b"1"))
    async with open_wal(data, read_only=True, create_vchannels=False) as reader:
        assert await payloads(reader, "orders") == [b"1"]
        with pytest.raises(ChannelNotExistError, match="'unheard of'"):
            await read_all(reader, "unheard of")


async def test_journal_without_its_maps_can_be_read(data: str) -> None:
    """An earlier version wrote no maps; a damaged map is an error."""
    async with open_wal(data) as writer:
        await writer.append_bulk([Message("orders", b"1"), Message("other", b"2")])
    path = Path(data) / "pchannels" / "p0" / "vchannels"
    whole = path.read_bytes()
    path.unlink()
    forget_map(path.parent)
    async with open_wal(data, read_only=True) as reader:
        assert await payloads(reader, "orders") == [b"1"]
        assert await reader.vchannels() == []
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptionError, match="vchannels"):
        await open_wal(data, read_only=True)


async def test_map_damaged_during_a_read_is_survived(data: str, caplog: pytest.LogCaptureFixture) -> None:
    async with open_wal(data) as writer, open_wal(data, read_only=True) as reader:

        async def known() -> bool:
            return [info.name for info in await reader.vchannels()] == ["orders"]

        await writer.raw_append(Message("orders", b"1"))
        async with reader.read("orders") as scanner:
            assert await take(scanner, 1) == [b"1"]
            await eventually(known)  # until then the writer may still replace the file with a complete map
            with caplog.at_level(logging.WARNING, "wal.read_only"):
                (Path(data) / "pchannels" / "p0" / "vchannels").write_bytes(b"?")
                taking = start(take(scanner, 1))

                async def warned() -> bool:
                    return bool(caplog.records)

                await eventually(warned)
            await writer.raw_append(Message("orders", b"2"))
            assert await taking == [b"2"]
            with pytest.raises(CorruptionError):
                await read_all(reader, "orders")


async def test_closing_ends_readers_and_handlers(data: str) -> None:
    async with open_wal(data) as writer:
        await writer.raw_append(Message("orders", b"1"))
    seen: list[ImmutableMessage] = []
    async with open_wal(data, read_only=True) as reader:
        handled = reader.read("orders", handler=seen.append)
        await handled.__aenter__()
        followed = reader.read("orders")
        assert await take(followed, 1) == [b"1"]
        waiting = start(take(followed, 1))

        async def heard() -> bool:
            return bool(seen)

        await eventually(heard)
    with pytest.raises(ClosedError):
        await waiting
    await handled.done()
    assert isinstance(handled.error, ClosedError)
    with pytest.raises(ClosedError):
        await reader.vchannels()


async def test_many_read_only_openings_in_one_process(data: str) -> None:
    """The openings are independent: one is closed while the others continue."""
    async with open_wal(data) as writer:
        await writer.raw_append(Message("orders", b"1"))
        readers: list[WALAccesser] = [await open_wal(data, read_only=True) for _ in range(5)]
        for reader in readers:
            assert await payloads(reader, "orders") == [b"1"]
            await reader.close()
            await reader.close()
            with pytest.raises(WALError):
                await payloads(reader, "orders")
        assert await payloads(writer, "orders") == [b"1"]


async def test_read_has_everything_durable_despite_reused_answers(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log on a server answers `refresh` from its last answer for a while; a read that does not follow must not end there."""
    refresh, reach = ReadOnlyJournalLog.refresh, ReadOnlyJournalLog.reach
    answers: dict[int, LogSnapshot] = {}

    def reused(log: ReadOnlyJournalLog) -> LogSnapshot:
        if id(log) not in answers:
            answers[id(log)] = refresh(log)
        return answers[id(log)]

    def asked(log: ReadOnlyJournalLog) -> LogSnapshot:
        answers.pop(id(log), None)
        answers[id(log)] = reach(log)
        return answers[id(log)]

    monkeypatch.setattr(ReadOnlyJournalLog, "refresh_waits", True)
    monkeypatch.setattr(ReadOnlyJournalLog, "refresh", reused)
    monkeypatch.setattr(ReadOnlyJournalLog, "reach", asked)
    async with open_wal(data) as writer, open_wal(data, read_only=True) as reader:
        for count in (1, 2):
            await writer.raw_append(Message("orders", b"%d" % count))
            assert len(await payloads(reader, "orders")) == count


async def test_silent_pchannel_is_opened_again(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refresh = ReadOnlyJournalLog.refresh
    failing: list[ReadOnlyJournalLog] = []

    def recreated(log: ReadOnlyJournalLog) -> LogSnapshot:
        if log.pchannel == "p1" and not failing:
            failing.append(log)
        if log in failing:
            raise ClosedError("as if the pchannel had been recreated since it was opened")
        return refresh(log)

    await (await open_wal(data)).close()
    async with open_wal(data, read_only=True) as reader:
        async with open_wal(data, pchannels=2) as writer:
            await writer.create_vchannel("orders", pchannel="p1")
            await writer.raw_append(Message("orders", b"1"))
        monkeypatch.setattr(ReadOnlyJournalLog, "refresh", recreated)
        with pytest.raises(ClosedError, match="recreated"):
            await reader.vchannels()
        assert await payloads(reader, "orders") == [b"1"]


async def test_slow_attachment_delays_no_other(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may take long to return the end of a pchannel; readers of the others are attached meanwhile."""
    reach, answer = ReadOnlyJournalLog.reach, threading.Event()

    def held(log: ReadOnlyJournalLog) -> LogSnapshot:
        if log.pchannel == "p0":
            assert answer.wait(20)
        return reach(log)

    async with open_wal(data, pchannels=2) as writer:
        for name, pchannel in (("slow", "p0"), ("orders", "p1")):
            await writer.create_vchannel(name, pchannel=pchannel)
            await writer.raw_append(Message(name, b"1"))
        async with open_wal(data, read_only=True) as reader:
            monkeypatch.setattr(ReadOnlyJournalLog, "refresh_waits", True)
            monkeypatch.setattr(ReadOnlyJournalLog, "reach", held)
            waiting = start(payloads(reader, "slow"))
            try:
                assert await payloads(reader, "orders") == [b"1"]
                assert [info.name for info in await reader.vchannels()] == ["orders", "slow"]
                assert not waiting.done()
            finally:
                answer.set()
            assert await waiting == [b"1"]


async def test_log_whose_refresh_waits_is_asked_in_threads(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log on a server answers slowly: the event loop does not wait for it, and readers get the same messages."""
    asking: set[int] = set()
    refresh = ReadOnlyJournalLog.refresh

    def slow(log: ReadOnlyJournalLog) -> LogSnapshot:
        asking.add(threading.get_ident())
        return refresh(log)

    monkeypatch.setattr(ReadOnlyJournalLog, "refresh_waits", True)
    monkeypatch.setattr(ReadOnlyJournalLog, "refresh", slow)
    async with open_wal(data) as writer, open_wal(data, read_only=True) as reader, reader.read("orders", cursor="billing") as scanner:
        taking = start(take(scanner, 3))
        await asyncio.sleep(0)
        results = [await writer.raw_append(Message("orders", b"%d" % number)) for number in range(3)]
        assert await taking == [b"0", b"1", b"2"]
        await scanner.save()
        (info,) = await reader.cursors()
        assert info.lag_bytes == 0
        await writer.truncate(up_to=results[0].message_id)
        (report,) = await reader.retention()
        assert report.earliest == results[1].message_id
        assert await payloads(reader, "orders") == [b"1", b"2"]
        await writer.drop_vchannel("orders")
        with pytest.raises(ChannelNotExistError):
            await take(scanner, 1)
    assert asking
    assert threading.get_ident() not in asking


# -- damage beside the log


def lost(folder: Path, other: Path, name: str) -> None:
    (folder / name).unlink()


def foreign(folder: Path, other: Path, name: str) -> None:
    shutil.copyfile(other / name, folder / name)


@pytest.mark.parametrize("damage", [lost, foreign])
@pytest.mark.parametrize("name", ["control", "vchannels"])
async def test_lost_or_foreign_file_is_damage(data: str, tmp_path: Path, damage: Callable[[Path, Path, str], None], name: str) -> None:
    """Without it the vchannels of the pchannel would look empty. Opening the log for writing makes a lost file again."""
    for place_of_log in (data, str(tmp_path / "other")):
        async with open_wal(place_of_log, pchannels=2) as writer:
            await writer.create_vchannel("orders", pchannel="p1")
            await writer.create_vchannel("others", pchannel="p0")
            await writer.append_bulk([Message("orders", b"1"), Message("others", b"2")])
    folder, other = (Path(one) / "pchannels" / "p1" for one in (data, tmp_path / "other"))
    await asyncio.to_thread(damage, folder, other, name)
    with pytest.raises(CorruptionError) as caught:
        async with open_wal(data, read_only=True) as reader:
            await payloads(reader, "orders")
    assert str(folder) in str(caught.value)
    with pytest.raises(CorruptionError):
        await asyncio.to_thread(lambda: list(bridge.iterate(data, "orders", follow=False)))
    if damage is lost:
        async with open_wal(data):
            pass
        async with open_wal(data, read_only=True) as reader:
            assert await payloads(reader, "orders") == [b"1"]


async def test_page_and_map_lost_together(data: str) -> None:
    """The fence shows that the log was opened."""
    async with open_wal(data, pchannels=2) as writer:
        await writer.create_vchannel("orders", pchannel="p1")
        await writer.raw_append(Message("orders", b"1"))
    for name in ("control", "vchannels"):
        await asyncio.to_thread((Path(data) / "pchannels" / "p1" / name).unlink)
    with pytest.raises(CorruptionError, match="control is missing"):
        await open_wal(data, read_only=True)
    async with open_wal(data):
        pass
    async with open_wal(data, read_only=True) as reader:
        assert await payloads(reader, "orders") == [b"1"]


async def test_map_lost_below_a_reader(data: str) -> None:
    async with open_wal(data, pchannels=1) as writer:
        await writer.raw_append(Message("orders", b"1"))
    async with open_wal(data, read_only=True) as reader:
        assert await payloads(reader, "orders") == [b"1"]
        await asyncio.to_thread((Path(data) / "pchannels" / "p0" / "vchannels").unlink)
        with pytest.raises(CorruptionError, match="vchannels is damaged: it is missing"):
            await reader.vchannels()


async def test_log_without_a_note_of_its_map(data: str) -> None:
    """A log of an earlier version that was never opened since, or one whose creation was cut short; its next writer notes it."""
    async with open_wal(data, pchannels=1):
        pass
    folder = Path(data) / "pchannels" / "p0"
    await asyncio.to_thread(forget_map, folder)
    await asyncio.to_thread((folder / "vchannels").unlink)
    async with open_wal(data, read_only=True) as reader:
        assert await reader.vchannels() == []
    async with open_wal(data):
        pass
    await asyncio.to_thread((folder / "vchannels").unlink)
    with pytest.raises(CorruptionError):
        await open_wal(data, read_only=True)


def forget_map(folder: Path) -> None:
    """Takes the note of its map out of the control page of a pchannel."""
    with (folder / "control").open("r+b") as page:
        page.seek(1536)
        assert page.read(4) == b"WALV"
        page.seek(1536)
        page.write(bytes(4))
