"""read_only=True and the bridge on Pulsar: a log is read while another process writes it, on a real Pulsar and etcd."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any

import pytest

from tests.probes import payloads, start
from tests.processes import Line, Other
from tests.storage.pulsar.conftest import location_of
from wal import Latest, Message, OwnerDescription, ReadPosition, Scanner, Settings, StartFrom, bridge, open_wal
from wal.channels.vchannels import place
from wal.errors import ChannelNotExistError, FormatError, InvalidArgumentError, NotLocalError, TruncatedError
from wal.read import pulsar_source
from wal.storage.pulsar.address import PulsarAddress

WAIT_S = 30.0


@pytest.fixture
def log_at(address: PulsarAddress, etcd_address: str) -> tuple[str, dict[str, Any]]:
    """A location without a log, and its settings."""
    location, settings = location_of(address, Path("kv"))
    return location, {**settings, "kv": f"etcd://{etcd_address}/wal-test-{secrets.token_hex(6)}"}


async def take(scanner: Scanner, count: int) -> list[bytes]:
    async with asyncio.timeout(WAIT_S):
        return [(await anext(scanner)).payload for _ in range(count)]


async def test_durable_messages_are_read_and_followed(log_at: tuple[str, dict[str, Any]]) -> None:
    location, settings = log_at
    async with open_wal(location, **settings) as writer:
        first = await writer.raw_append(Message("orders", b"0"))
        async with writer.txn("orders") as txn:
            await txn.append(b"1")
            await txn.append(b"2")
        async with open_wal(location, read_only=True, **settings) as reader:
            assert reader.wal_name == "pulsar"
            assert [info.name for info in await reader.vchannels()] == ["orders"]
            async with reader.read("orders", follow=False) as scanner:
                found = [body.payload async for message in scanner for body in message.bodies()]
                position = scanner.position
            assert found == [b"0", b"1", b"2"]
            assert first.message_id is not None
            async with reader.read("orders", deliver_policy=StartFrom(first.message_id), follow=False) as scanner:
                assert (await anext(scanner)).message_id == first.message_id
            async with (
                reader.read("orders", deliver_policy=Latest()) as latest,
                reader.read("orders", resume=ReadPosition.parse(str(position))) as resumed,
            ):
                for number in range(10):
                    result = await writer.raw_append(Message("orders", b"new %d" % number))
                    assert await take(latest, 1) == await take(resumed, 1) == [b"new %d" % number]
                    assert (await payloads(reader, "orders"))[-1] == b"new %d" % number, "an acknowledged message is seen"
                assert result.time_tick is not None
                async with asyncio.timeout(WAIT_S):
                    await latest.wait_for(result.time_tick)
            with pytest.raises(NotLocalError):
                await reader.get_latest_mvcc_timestamp_if_local("orders")
            with pytest.raises(InvalidArgumentError, match="read_only"):
                await reader.raw_append(Message("orders", b"x"))
        assert await payloads(writer, "orders") == await payloads(writer, "orders"), "the writer was not fenced"
        await writer.raw_append(Message("orders", b"last"))


async def test_reader_follows_a_recreated_vchannel(log_at: tuple[str, dict[str, Any]]) -> None:
    pchannels = ["p0", "p1", "p2", "p3"]
    location, settings = log_at
    elsewhere = next(pchannel for pchannel in pchannels if pchannel != place("moved", pchannels))
    async with open_wal(location, pchannels=4, **settings) as writer, open_wal(location, read_only=True, **settings) as reader:
        await writer.raw_append(Message("early", b"1"))
        async with reader.read("early") as early, reader.read("moved") as moved:
            assert await take(early, 1) == [b"1"]
            taking = start(take(moved, 1))
            await asyncio.sleep(0)
            await writer.drop_vchannel("early")
            await writer.create_vchannel("moved", pchannel=elsewhere)
            await writer.raw_append(Message("moved", b"here"))
            with pytest.raises(ChannelNotExistError, match="'early' was dropped"):
                await take(early, 1)
            assert await taking == [b"here"]
        await writer.raw_append(Message("early", b"of its next incarnation"))
        assert await payloads(reader, "early") == [b"of its next incarnation"]


async def test_truncation_and_cursors(log_at: tuple[str, dict[str, Any]]) -> None:
    location, settings = log_at
    async with open_wal(location, **settings) as writer, open_wal(location, read_only=True, **settings) as reader:
        ids = [(await writer.raw_append(Message("orders", b"%d" % number))).message_id for number in range(20)]
        async with reader.read("orders", cursor="billing") as scanner:
            assert await take(scanner, 5) == [b"%d" % number for number in range(5)]
            await scanner.save()
        assert ids[9] is not None
        with pytest.raises(InvalidArgumentError, match="billing"):
            await writer.truncate(up_to=ids[9])
        (cursor,) = await reader.cursors()
        assert (cursor.name, cursor.stale) == ("billing", False)
        async with reader.read("orders", cursor="billing", follow=False) as scanner:
            assert [message.payload async for message in scanner] == [b"%d" % number for number in range(5, 20)]
        await reader.delete_cursor("billing")
        async with reader.read("orders", cursor="late") as overtaken:
            assert await take(overtaken, 2) == [b"0", b"1"]
            await writer.truncate(up_to=ids[9])
            with pytest.raises(TruncatedError):
                await overtaken.save()
        assert await reader.cursors() == await writer.cursors() == []
        assert ids[3] is not None
        with pytest.raises(TruncatedError) as caught:
            async with reader.read("orders", deliver_policy=StartFrom(ids[3]), follow=False) as scanner:
                await anext(scanner)
        assert caught.value.earliest == ids[10]
        assert await payloads(reader, "orders") == [b"%d" % number for number in range(10, 20)]


async def test_readers_of_a_killed_writer_wait(log_at: tuple[str, dict[str, Any]]) -> None:
    async def write(line: Line, location: str, settings: dict[str, Any]) -> None:
        """Appends on request, and reports each acknowledgement, until it is killed."""
        async with open_wal(location, **settings) as log:
            line.tell("open")
            while (word := await line.hear()) is not None:
                await log.raw_append(Message("orders", word))
                line.tell(word)

    location, settings = log_at
    writer = Other(write, location, settings)
    opening = open_wal(location, read_only=True, wait_s=WAIT_S, **settings)
    async with opening as reader, reader.read("orders") as scanner:
        seen: list[bytes] = []
        for round_ in range(2):
            assert await writer.hear() == "open"
            for number in range(5):
                writer.tell(b"%d/%d" % (round_, number))
                await writer.hear()
            seen += await take(scanner, 5)
            await writer.kill()
            assert await payloads(reader, "orders") == seen
            if not round_:
                writer = Other(write, location, settings)
        assert seen == [b"%d/%d" % (round_, number) for round_ in range(2) for number in range(5)]


async def test_missing_log_and_private_metadata_are_refused(log_at: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    location, settings = log_at
    with pytest.raises(FormatError, match="knows of no log"):
        await open_wal(location, read_only=True, **settings)
    with pytest.raises(InvalidArgumentError, match="one process has for itself"):
        await open_wal(location, read_only=True, **{**settings, "kv": str(tmp_path / "kv")})
    with pytest.raises(InvalidArgumentError, match="give the setting kv"):
        await open_wal(location, read_only=True, **{**settings, "kv": None})


@pytest.mark.one_loop
def test_bridge_reads_without_an_event_loop(log_at: tuple[str, dict[str, Any]]) -> None:
    location, overrides = log_at
    settings = Settings().replace(**overrides)

    with bridge.blocking(location, settings=settings) as writer:
        for number in range(30):
            writer.raw_append(Message("orders", b"%d" % number))
        with bridge.iterate(location, "orders", settings=settings, cursor="c", timeout_s=WAIT_S) as messages:
            assert [next(messages).payload for _ in range(10)] == [b"%d" % number for number in range(10)]
            messages.save()
            rest = [next(messages).payload for _ in range(20)]
            assert rest == [b"%d" % number for number in range(10, 30)]
            writer.raw_append(Message("orders", b"new"))
            assert next(messages).payload == b"new"
        rows = [
            payload
            for batch in bridge.record_batches(location, "orders", settings=settings, cursor="c", follow=False)
            for payload in batch.column("payload").to_pylist()
        ]
        assert rows == [*rest, b"new"]
        assert [cursor.name for cursor in writer.cursors()] == ["c"]


async def test_channels_and_their_owners(log_at: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest state, even where a reader that looks again and again uses an answer of a slow etcd for long."""
    monkeypatch.setattr(pulsar_source, "_CHEAP_S", -1.0)
    monkeypatch.setattr(pulsar_source, "_COSTS", 1e9)
    location, settings = log_at
    async with open_wal(location, **settings) as writer:
        owner = OwnerDescription("ingest", "10.0.0.7:9000")
        names = await writer.create_channels(owner, 3)
        async with open_wal(location, read_only=True, **settings) as reader:
            assert await reader.describe_channels() == await writer.describe_channels()
            assert [one.owner for one in await reader.describe_channels(names)] == [owner] * 3
            assert await reader.vchannels() == await writer.vchannels()
            await writer.destroy_channels(names[1:])
            assert [info.name for info in await reader.vchannels()] == names[:1]
            assert [one.channel_name for one in await reader.describe_channels()] == names[:1]
    async with open_wal(location, **settings) as writer:
        assert [one.channel_name for one in await writer.describe_channels()] == names[:1]
