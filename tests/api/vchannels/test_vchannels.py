"""Creating, dropping and listing vchannels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.locations import open_wal
from tests.probes import payloads, read_all, start, turns
from wal import Message, ReadPosition, StartFrom, VChannelInfo, WALAccesser
from wal.errors import ChannelExistError, ChannelNotExistError, InvalidArgumentError, StreamingCode, UnavailableError, WALError

pytestmark = [pytest.mark.everywhere, pytest.mark.on_pulsar]


async def test_make_list_drop(log4: WALAccesser) -> None:
    assert await log4.vchannels() == []
    info = await log4.create_vchannel("b", pchannel="p2")
    assert isinstance(info, VChannelInfo)
    assert (info.name, info.pchannel) == ("b", "p2")
    await log4.raw_append(Message("a", b"1"))
    listed = await log4.vchannels()
    assert [one.name for one in listed] == ["a", "b"]
    assert listed[1] == info
    assert len({one.incarnation for one in listed}) == 2
    assert log4.statistics().vchannels == 2
    await log4.drop_vchannel("b")
    assert [one.name for one in await log4.vchannels()] == ["a"]


async def test_duplicate_creation_and_missing_drop_are_errors(log: WALAccesser) -> None:
    await log.create_vchannel("a")
    await log.raw_append(Message("b", b"1"))
    for name in ("a", "b"):
        with pytest.raises(ChannelExistError, match=f"'{name}'") as exists:
            await log.create_vchannel(name)
        assert exists.value.code == StreamingCode.CHANNEL_EXIST
    with pytest.raises(ChannelNotExistError, match="'c'") as missing:
        await log.drop_vchannel("c")
    assert missing.value.code == StreamingCode.CHANNEL_NOT_EXIST


async def test_wrong_names_and_pchannels(log: WALAccesser) -> None:
    for wrong in ("", "a\0b", "x" * 256, "ü" * 128, "\ud800"):
        for call in (log.create_vchannel, log.drop_vchannel, log.get_latest_mvcc_timestamp_if_local):
            with pytest.raises(InvalidArgumentError):
                await call(wrong)
    odd: Any
    for odd in (None, 5, b"a"):
        for call in (log.create_vchannel, log.drop_vchannel, log.get_latest_mvcc_timestamp_if_local):
            with pytest.raises(TypeError):
                await call(odd)
    with pytest.raises(InvalidArgumentError, match="p0"):
        await log.create_vchannel("a", pchannel="p9")
    with pytest.raises(TypeError):
        await log.create_vchannel("a", pchannel=0)  # type: ignore[arg-type]
    for name in ("x" * 255, "ü" * 127, "a/b", "a:b", "a b", " "):
        await log.create_vchannel(name)
        await log.raw_append(Message(name, name.encode()))
        assert await payloads(log, name) == [name.encode()]


async def test_as_many_as_the_setting_says(location: str) -> None:
    async with open_wal(location, vchannels_max=2) as log:
        await log.raw_append(Message("a", b"1"))
        await log.create_vchannel("b")
        for call in (
            lambda: log.raw_append(Message("c", b"1")),
            lambda: log.append_bulk([Message("c", b"1")]),
            lambda: log.create_vchannel("c"),
            lambda: log.txn("c").__aenter__(),
        ):
            with pytest.raises(InvalidArgumentError, match="vchannels_max=2"):
                await call()
        await log.raw_append(Message("a", b"2"))
        await log.drop_vchannel("b")
        await log.raw_append(Message("c", b"1"))


async def test_many_vchannels_are_created_at_once(log4: WALAccesser) -> None:
    await asyncio.gather(*(log4.raw_append(Message(f"v{number}", b"%d" % number)) for number in range(300)))
    assert len(await log4.vchannels()) == 300
    outcomes: Sequence[object] = await asyncio.gather(*(log4.create_vchannel("same") for _ in range(10)), return_exceptions=True)
    assert sum(isinstance(outcome, VChannelInfo) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, ChannelExistError) for outcome in outcomes) == 9
    outcomes = await asyncio.gather(*(log4.drop_vchannel("same") for _ in range(10)), return_exceptions=True)
    assert sum(outcome is None for outcome in outcomes) == 1


async def test_dropping_ends_readers_and_transactions(log: WALAccesser) -> None:
    await log.raw_append(Message("a", b"1"))
    txn = await log.txn("a")
    await txn.append(b"2")
    scanner, both = log.read("a"), log.read(["a", "b"])
    for one in (scanner, both):
        await one.__aenter__()
        await anext(one)
    reading = start(anext(scanner))
    await turns()
    await log.drop_vchannel("a")
    for call in (reading, anext(both), txn.append(b"3"), txn.commit()):
        with pytest.raises(ChannelNotExistError):
            await call
    assert isinstance(scanner.error, ChannelNotExistError)
    assert isinstance(both.error, ChannelNotExistError)
    await scanner.close()
    await both.close()


async def test_new_one_shows_nothing_of_the_old(location: str) -> None:
    log = await open_wal(location)
    await log.append_bulk([Message("a", b"old")] * 5)
    old = (await log.vchannels())[0]
    old_id = (await read_all(log, "a"))[2].message_id
    async with log.read("a") as scanner:
        await anext(scanner)
        old_position = scanner.position
    assert old_position is not None
    await log.drop_vchannel("a")
    assert await read_all(log, "a") == []
    await log.raw_append(Message("a", b"new"))
    new = (await log.vchannels())[0]
    assert new.incarnation != old.incarnation
    for _ in range(2):
        assert await payloads(log, "a") == [b"new"]
        assert await payloads(log, "a", deliver_policy=StartFrom(old_id)) == [b"new"]
        assert await payloads(log, "a", resume=old_position) == [b"new"]
        assert await payloads(log, ["a", "b"]) == [b"new"]
        if location == "memory:":
            break
        await log.close()
        log = await open_wal(location)
        assert (await log.vchannels())[0] == new
    await log.close()


async def test_vchannel_is_dropped_and_recreated_many_times(location: str) -> None:
    log = await open_wal(location)
    incarnations = set()
    for life in range(6):
        await log.raw_append(Message("a", b"%d" % life))
        incarnations.add((await log.vchannels())[0].incarnation)
        assert await payloads(log, "a") == [b"%d" % life]
        await log.drop_vchannel("a")
        if life == 2 and location != "memory:":
            await log.close()
            log = await open_wal(location)
            assert await log.vchannels() == []
            assert await read_all(log, "a") == []
    assert len(incarnations) == 6
    await log.close()


async def test_reader_between_incarnations_reads_the_next(log: WALAccesser) -> None:
    await log.raw_append(Message("a", b"old"))
    await log.drop_vchannel("a")
    async with log.read("a") as scanner:
        await log.raw_append(Message("a", b"new"))
        assert (await anext(scanner)).payload == b"new"


async def test_appends_around_a_drop_have_one_incarnation(log: WALAccesser) -> None:
    """The appends and the drop take effect in the order of the calls; none is lost and none hangs."""
    for _ in range(10):
        await log.create_vchannel("a")
        before = [log.append_nowait(Message("a", b"before")) for _ in range(5)]
        dropping = start(log.drop_vchannel("a"))
        await turns(1)
        after = [log.append_nowait(Message("a", b"after")) for _ in range(5)]
        await dropping
        outcomes = await asyncio.gather(*before, *after, return_exceptions=True)
        assert not any(isinstance(outcome, Exception) and not isinstance(outcome, WALError) for outcome in outcomes)
        assert not any(isinstance(outcome, WALError) for outcome in outcomes[5:])
        assert await payloads(log, "a") == [b"after"] * 5
        await log.drop_vchannel("a")


async def test_positions_of_a_dropped_vchannel_are_still_places(log: WALAccesser) -> None:
    result = await log.raw_append(Message("a", b"1"))
    await log.raw_append(Message("b", b"2"))
    await log.drop_vchannel("a")
    assert await payloads(log, "b", resume=ReadPosition(result.message_id, result.time_tick)) == [b"2"]


async def test_drop_that_failed_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pchannel is on no node, or the metadata cannot be written: the vchannel exists until a drop succeeds."""

    def away(infos: object, ended: Callable[[WALError], None]) -> None:
        ended(UnavailableError("the pchannel is on no node"))

    async def unsaved(*_: object) -> None:
        raise UnavailableError("no metadata store answers")

    async with open_wal("memory:") as log:
        engine: Any = log._lifecycle.engine
        vchannels = engine.coordinator.vchannels
        for target, name, failing in ((vchannels.host, "end", away), (vchannels.directory._kv, "multi_save_and_remove", unsaved)):
            await log.append("a", b"1")
            with monkeypatch.context() as patch:
                patch.setattr(target, name, failing)
                for _ in range(2):
                    with pytest.raises(UnavailableError):
                        await log.drop_vchannel("a")
                    assert [info.name for info in await log.vchannels()] == ["a"]
            await log.append("a", b"2")
            await log.drop_vchannel("a")
            assert await log.vchannels() == []
