"""Channels: vchannels with a generated name and an owner, created and destroyed several at once, with every kind of metadata."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.locations import open_wal
from tests.probes import local, payloads, start, turns
from wal import ChannelDescription, Message, OwnerDescription, Scanner, WALAccesser
from wal.channels.channels import CHANNELS_MAX
from wal.channels.owners import ADDRESS_BYTES_MAX, DESCRIPTION_BYTES_MAX, ROLE_BYTES_MAX
from wal.errors import ChannelNotExistError, InvalidArgumentError, UnavailableError, UnknownOutcomeError, WALError, WouldBlockError
from wal.storage.kv import KVBase

OWNER = OwnerDescription("ingest", "10.0.0.7:9000", "orders of the shop\nand its \0 returns, ünïcode \U0001f600")
OTHER = OwnerDescription("billing")

Open = Callable[..., AbstractAsyncContextManager[WALAccesser]]


@pytest.fixture(params=["memory", "sqlite", "etcd"])
def metadata(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def is_durable(metadata: str) -> bool:
    return metadata != "memory"


@pytest.fixture
def opened(request: pytest.FixtureRequest, metadata: str, tmp_path: Path) -> Open:
    """Returns what opens the log of this test, with this metadata."""
    settings: dict[str, Any] = {"pchannels": 4}
    if metadata == "etcd":
        address = request.getfixturevalue("etcd_address")
        settings["kv"] = f"etcd://{address}/wal-test-{secrets.token_hex(6)}"
    location = "memory:" if metadata == "memory" else str(tmp_path / "data")
    return lambda **more: open_wal(location, **settings, **more)


def described(names: list[str], owner: OwnerDescription) -> list[ChannelDescription]:
    return [ChannelDescription(name, owner) for name in names]


async def test_create_describe_destroy(opened: Open, is_durable: bool) -> None:
    async with opened() as log:
        assert await log.describe_channels() == []
        first = await log.create_channels(OWNER, 3)
        second = await log.create_channels(OTHER)
        assert len({*first, *second}) == 4
        assert await log.describe_channels() == [*described(first, OWNER), *described(second, OTHER)]
        assert await log.describe_channels(reversed(first)) == described(first[::-1], OWNER)
        assert await log.describe_channels([]) == []
        infos = {info.name: info for info in await log.vchannels()}
        assert [infos[name].owner for name in (*first, *second)] == [OWNER] * 3 + [OTHER]
        await log.create_vchannel("mine")
        await log.raw_append(Message(first[0], b"1"))
        assert await payloads(log, first[0]) == [b"1"]
        await log.destroy_channels([first[1], second[0]])
        assert await log.describe_channels() == described([first[0], first[2]], OWNER)
        assert {info.name for info in await log.vchannels()} == {first[0], first[2], "mine"}
        await log.destroy_channels([])
        third = await log.create_channels(OTHER, 2)
        assert not {*first, *second} & {*third}
    if is_durable:
        async with opened() as log:
            expected = [*described([first[0], first[2]], OWNER), *described(third, OTHER)]
            assert await log.describe_channels() == expected
            assert await payloads(log, first[0]) == [b"1"]
            names = {*first, *second, *third, *await log.create_channels(OTHER, 2)}
            assert len(names) == 8, "no name is given twice, also after a reopening"


async def test_as_many_as_one_call_takes(opened: Open, is_durable: bool) -> None:
    largest = OwnerDescription("\1" * ROLE_BYTES_MAX, "\1" * ADDRESS_BYTES_MAX, "\1" * DESCRIPTION_BYTES_MAX)
    async with opened() as log:
        names = await log.create_channels(largest, CHANNELS_MAX)
        assert len(set(names)) == CHANNELS_MAX
        assert {info.pchannel for info in await log.vchannels()} == {"p0", "p1", "p2", "p3"}
        assert len(await log.describe_channels(names)) == CHANNELS_MAX
    if is_durable:
        async with opened() as log:
            assert await log.describe_channels() == described(names, largest)
            await asyncio.gather(*(log.raw_append(Message(name, b"x")) for name in names))
            await log.destroy_channels(names)
        async with opened() as log:
            assert await log.vchannels() == []


async def test_unknown_name_destroys_nothing(log4: WALAccesser) -> None:
    names = await log4.create_channels(OWNER, 2)
    await log4.create_vchannel("mine")
    gone = (await log4.create_channels(OWNER))[0]
    await log4.destroy_channels([gone])
    for wrong, text in ((gone, "does not exist"), ("never", "does not exist"), ("mine", "drop_vchannel")):
        for call in (log4.destroy_channels, log4.describe_channels):
            with pytest.raises(ChannelNotExistError, match=f"'{wrong}'.*{text}"):
                await call([names[0], wrong, names[1]])
    assert await log4.describe_channels() == described(names, OWNER)
    await log4.raw_append(Message(names[0], b"1"))
    assert len(await log4.vchannels()) == 3


async def test_dropped_channel_has_no_owner_any_more(opened: Open, is_durable: bool) -> None:
    async with opened() as log:
        first, second = await log.create_channels(OWNER, 2)
        await log.drop_vchannel(first)
        assert await log.describe_channels() == described([second], OWNER)
        await log.raw_append(Message(first, b"new"))  # recreates it, as a vchannel of its own
        with pytest.raises(ChannelNotExistError, match="without an owner"):
            await log.describe_channels([first])
    if is_durable:
        async with opened() as log:
            assert await log.describe_channels() == described([second], OWNER)
            assert await payloads(log, first) == [b"new"]


async def test_destroying_ends_readers_transactions_and_cursors(log4: WALAccesser) -> None:
    async def to_the_end(scanner: Scanner) -> None:
        """Reads until the scanner ends; what was appended before that may still be delivered."""
        while True:
            await anext(scanner)

    name, other = await log4.create_channels(OWNER, 2)
    await log4.raw_append(Message(name, b"1"))
    txn = await log4.txn(name)
    await txn.append(b"2")
    async with log4.read(name, cursor="c") as saver:
        await anext(saver)
        await saver.save()
    assert [info.vchannels for info in await log4.cursors()] == [(name,)]
    scanner = log4.read(name)
    await scanner.__aenter__()
    await anext(scanner)
    reading = start(to_the_end(scanner))
    await turns()
    before = [log4.append_nowait(Message(name, b"before")) for _ in range(3)]
    await log4.destroy_channels([name, other])
    for call in (reading, txn.append(b"3"), txn.commit()):
        with pytest.raises(ChannelNotExistError):
            await call
    assert isinstance(scanner.error, ChannelNotExistError)
    await scanner.close()
    assert {type(outcome) for outcome in await asyncio.gather(*before)} == {type(before[0].result())}
    assert await log4.cursors() == []
    assert await payloads(log4, name) == []


async def test_names_that_are_taken_are_skipped(log4: WALAccesser) -> None:
    for number in range(1, 30, 2):
        await log4.raw_append(Message(f"channel-{number}", b"mine"))
    names = await log4.create_channels(OWNER, 40)
    assert len(set(names)) == 40
    assert await log4.describe_channels() == described(names, OWNER)
    for number in range(1, 30, 2):
        assert f"channel-{number}" not in names
        assert await payloads(log4, f"channel-{number}") == [b"mine"]


@pytest.mark.one_location("wal.api refuses the call before any log has it")
async def test_wrong_counts(log: WALAccesser, subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, type[Exception], str]] = [
        (0, InvalidArgumentError, "count=0 is not between 1 and 60"),
        (-1, InvalidArgumentError, "count=-1"),
        (61, InvalidArgumentError, "count=61.*several calls"),
        (True, TypeError, "int, not True"),
        (2.0, TypeError, "int, not 2.0"),
        ("3", TypeError, "int, not '3'"),
        (None, TypeError, "int, not None"),
    ]
    for count, error, text in cases:
        with subtests.test(repr(count)):
            with pytest.raises(error, match=text):
                await log.create_channels(OWNER, count)
            assert await log.vchannels() == []


def test_wrong_owners(subtests: pytest.Subtests) -> None:
    cases: list[tuple[tuple[Any, ...], type[Exception], str]] = [
        (("",), InvalidArgumentError, "role is empty: name"),
        (("r" * 256,), InvalidArgumentError, "role is 256 bytes long.*at most 255: shorten"),
        (("r", "ü" * 128), InvalidArgumentError, "address is 256 bytes long.*at most 255"),
        (("r", "a", "d" * 1025), InvalidArgumentError, "description_text is 1025 bytes long.*at most 1024"),
        (("r\ud800",), InvalidArgumentError, "role has '.ud800' at character 1.*surrogates"),
        (("r", "a", "\udfff"), InvalidArgumentError, "description_text.*surrogates"),
        ((5,), TypeError, "role must be a str, not int"),
        (("r", None), TypeError, "address must be a str, not NoneType"),
        (("r", "a", b"d"), TypeError, "description_text must be a str, not bytes"),
    ]
    for texts, error, text in cases:
        with subtests.test(repr(texts)), pytest.raises(error, match=text):
            OwnerDescription(*texts)


@pytest.mark.one_location("wal.api refuses the call before any log has it")
async def test_wrong_arguments(log: WALAccesser) -> None:
    for owner in (None, "ingest", {"role": "ingest"}, OwnerDescription):
        with pytest.raises(TypeError, match="OwnerDescription"):
            await log.create_channels(owner)  # type: ignore[arg-type]
    name = (await log.create_channels(OWNER))[0]
    for call in (log.destroy_channels, log.describe_channels):
        for wrong in (name, b"x", 5, object()):
            with pytest.raises(TypeError, match="list of names"):
                await call(wrong)  # type: ignore[arg-type]
        for odd in ([name, 5], [None]):
            with pytest.raises(TypeError, match="named by a str"):
                await call(odd)  # type: ignore[arg-type]
        for bad in ("", "a\0", "x" * 256, "\ud800"):
            with pytest.raises(InvalidArgumentError):
                await call([name, bad])
        with pytest.raises(InvalidArgumentError, match=f"'{name}' more than once"):
            await call([name, "x", name])
    with pytest.raises(TypeError, match="list of names"):
        await log.destroy_channels(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"61 channels.*at most 60"):
        await log.destroy_channels(map(str, range(61)))
    assert await log.describe_channels() == described([name], OWNER)


async def test_as_many_as_the_setting_says(location: str) -> None:
    async with open_wal(location, vchannels_max=5) as log:
        await log.create_vchannel("mine")
        with pytest.raises(InvalidArgumentError, match="5 channels would be 1 more than vchannels_max=5"):
            await log.create_channels(OWNER, 5)
        assert await log.describe_channels() == []
        names = await log.create_channels(OWNER, 4)
        await log.destroy_channels(names[:2])
        await log.create_channels(OWNER, 2)


async def test_many_callers_at_once(opened: Open, is_durable: bool) -> None:
    async with opened() as log:
        calls = [log.create_channels(OwnerDescription(f"r{number}"), number) for number in range(1, 21)]
        made = await asyncio.gather(*calls)
        assert len(set(itertools.chain(*made))) == 210
        for number, names in enumerate(made, 1):
            assert {one.owner.role for one in await log.describe_channels(names)} == {f"r{number}"}
        taken = made[9]
        outcomes = await asyncio.gather(*(log.destroy_channels([taken[at], taken[at + 1]]) for at in range(9)), return_exceptions=True)
        kinds = [type(outcome) for outcome in outcomes]
        assert kinds == [type(None), ChannelNotExistError] * 4 + [type(None)], "of two that overlap one destroys both"
        with pytest.raises(ChannelNotExistError):
            await log.describe_channels([taken[0]])
        left = await log.describe_channels()
        assert len(left) == 200
    if is_durable:
        async with opened() as log:
            assert await log.describe_channels() == left


async def test_destroy_beside_drop_and_appends(opened: Open, is_durable: bool) -> None:
    """An append that follows a destroy in the order of the calls belongs to a new vchannel, and every outcome is a result or an error."""
    async with opened() as log:
        for _ in range(10):
            names = await log.create_channels(OWNER, 3)
            before = [log.append_nowait(Message(name, b"before")) for name in names]
            destroying = start(log.destroy_channels(names))
            dropping = start(log.drop_vchannel(names[0]))
            await turns(1)
            after = [log.append_nowait(Message(name, b"after")) for name in names]
            outcomes = await asyncio.gather(*before, *after, destroying, dropping, return_exceptions=True)
            assert not any(isinstance(one, Exception) and not isinstance(one, WALError) for one in outcomes)
            assert not any(isinstance(one, WALError) for one in outcomes[:7]), outcomes
            assert await log.describe_channels() == []
            for name in names[1:]:
                assert await payloads(log, name) == [b"after"]
        left = {info.name for info in await log.vchannels()}
    if is_durable:
        async with opened() as log:
            assert await log.describe_channels() == []
            assert {info.name for info in await log.vchannels()} == left


class Faults:
    """Makes the metadata fail the next multi-operations: `lost` does them and loses the answer, otherwise they are not done."""

    def __init__(self, kv: KVBase, monkeypatch: pytest.MonkeyPatch) -> None:
        self.errors: list[WALError] = []
        self.lost = False
        real = kv.multi_save_and_remove

        async def multi_save_and_remove(*arguments: Any) -> None:
            error = self.errors.pop(0) if self.errors else None
            if error is None or self.lost:
                await real(*arguments)
            if error is not None:
                raise error

        monkeypatch.setattr(kv, "multi_save_and_remove", multi_save_and_remove)


async def test_metadata_that_fail_leave_nothing_half_done(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_wal(data, pchannels=4) as log:
        faults = Faults(local(log).coordinator.kv, monkeypatch)
        there = await log.create_channels(OWNER, 5)
        faults.errors = [UnavailableError("the metadata do not answer")]
        with pytest.raises(UnavailableError):
            await log.create_channels(OWNER, 5)
        assert await log.describe_channels() == described(there, OWNER)
        assert len(await log.vchannels()) == 5
        faults.errors = [UnavailableError("the metadata do not answer")]
        with pytest.raises(UnavailableError):
            await log.destroy_channels(there)
        assert await log.describe_channels() == described(there, OWNER)
        await log.destroy_channels(there)
        assert await log.describe_channels() == []
        again = await log.create_channels(OTHER, 5)
        faults.errors = [UnavailableError("the metadata do not answer")]
        with pytest.raises(UnavailableError):
            await log.destroy_channels(again)
    async with open_wal(data) as log:
        assert await log.describe_channels() == described(again, OTHER), "all or none"
        assert len(await log.vchannels()) == 5


@pytest.mark.parametrize("lost", [True, False])
async def test_unknown_outcome_leaves_all_or_none(data: str, monkeypatch: pytest.MonkeyPatch, *, lost: bool) -> None:
    async with open_wal(data, pchannels=4) as log:
        faults = Faults(local(log).coordinator.kv, monkeypatch)
        faults.lost = lost
        faults.errors = [UnknownOutcomeError("the answer was lost")]
        with pytest.raises(UnknownOutcomeError):
            await log.create_channels(OWNER, 5)
        names = await log.create_channels(OWNER, 3)
        assert await log.describe_channels() == described(names, OWNER)
        faults.errors = [UnknownOutcomeError("the answer was lost")]
        with pytest.raises(UnknownOutcomeError):
            await log.destroy_channels(names[:2])
        await log.destroy_channels(names[:2])
    async with open_wal(data) as log:
        assert await log.describe_channels() == described(names[2:], OWNER)
        assert len(await log.vchannels()) == 1, "channels whose names no caller got are removed"


async def test_cancelled_caller_leaves_all_or_none(opened: Open) -> None:
    async with opened() as log:
        for waited in range(6):
            creating = start(log.create_channels(OWNER, 4))
            await turns(waited)
            creating.cancel()
            await asyncio.wait([creating])
        names = [one.channel_name for one in await log.describe_channels()]
        await log.create_channels(OTHER)  # saved after them
        found = [one.channel_name for one in await log.describe_channels() if one.owner == OWNER]
        assert len(found) % 4 == 0
        assert set(names) <= set(found)
        for waited in range(6):
            four, found = found[:4], found[4:]
            if not four:
                break
            destroying = start(log.destroy_channels(four))
            await turns(waited)
            destroying.cancel()
            await asyncio.wait([destroying])
            await log.create_channels(OTHER)
            left = {one.channel_name for one in await log.describe_channels()}
            assert left.isdisjoint(four) or left >= set(four)


async def test_read_only(data: str) -> None:
    async with open_wal(data, pchannels=4) as writer:
        names = await writer.create_channels(OWNER, 8)
        async with open_wal(data, read_only=True) as reader:
            assert await reader.describe_channels() == described(names, OWNER)
            late = await writer.create_channels(OTHER, 2)
            assert await reader.describe_channels(late) == described(late, OTHER), "the maps show them when the call returns"
            assert await reader.vchannels() == await writer.vchannels()
            await writer.destroy_channels(names)
            assert await reader.describe_channels() == described(late, OTHER)
            with pytest.raises(ChannelNotExistError):
                await reader.describe_channels(names)
            for call in (reader.create_channels(OWNER), reader.destroy_channels(late)):
                with pytest.raises(InvalidArgumentError, match="read_only=True"):
                    await call
    async with open_wal(data, read_only=True) as reader:
        assert await reader.describe_channels() == described(late, OTHER)


@pytest.mark.inside
@pytest.mark.not_on("wal", "looks for the error of a full inbox, but the inbox is the writer's: it delays what a client sent")
@pytest.mark.parametrize("call", ["destroy_channels", "drop_vchannel"])
async def test_full_inbox_delays_a_channels_end(log: WALAccesser, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is being removed already: the actor has to end too."""
    names = await log.create_channels(OWNER, 3 if call == "destroy_channels" else 1)
    group = next(iter(local(log).node.pchannels.values())).actor_group
    monkeypatch.setattr(group, "_inbox_max", 2)
    appends = [log.append_nowait(Message(names[0], b"%d" % number)) for number in range(2)]
    with pytest.raises(WouldBlockError):
        log.append_nowait(Message(names[0], b"one too many"))
    await (log.destroy_channels(names) if call == "destroy_channels" else log.drop_vchannel(names[0]))
    assert all([(await append).message_id for append in appends])
    assert await log.vchannels() == []
    for name in names:
        assert await payloads(log, name) == []
