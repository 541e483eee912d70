"""`read_only=True`: the reading half of the API while another process writes, without a writer, and after one was killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import wal
from tests.probes import facts, grouped, payloads, read_all
from tests.processes import eventually
from wal import errors


async def content(log: wal.WALAccesser) -> None:
    """Appends messages of every kind."""
    for name in ("orders", "payments"):
        await log.create_vchannel(name, pchannel="p0")
    for number in range(5):
        await log.raw_append(wal.Message("orders", b"%d" % number, properties={"n": str(number)}))
    await log.raw_append(wal.Message("orders", b"5", message_type=wal.MessageType.DELETE))
    async with log.txn("orders") as txn:
        await txn.append(b"6")
        await txn.append(b"7")
    async with log.txn(vchannels=["orders", "payments"]) as wide:
        await wide.append(wal.Message("orders", b"8"))
        await wide.append(wal.Message("payments", b"p8"))
    async with log.txn("orders"):
        pass
    await log.append_bulk([wal.Message("orders", b"%d" % number) for number in range(9, 400)])


async def test_reader_sees_what_the_writer_sees(data: str) -> None:
    async with wal.open_wal(data, pchannels=4) as writer:
        await content(writer)
        everything = await read_all(writer, "orders")
        middle = everything[6]
        position = wal.ReadPosition(middle.message_id, middle.time_tick)
        ways: list[dict[str, Any]] = [
            {},
            {"deliver_policy": wal.All()},
            {"deliver_policy": wal.Latest()},
            {"deliver_policy": wal.StartFrom(middle.message_id)},
            {"deliver_policy": wal.StartAfter(middle.message_id)},
            {"deliver_policy": wal.StartAfter(middle.bodies()[0].message_id)},
            {"resume": position},
            {"filters": [wal.TimeTickGT(middle.time_tick)]},
            {"filters": [wal.TimeTickGTE(middle.time_tick), wal.MessageTypes(wal.MessageType.DELETE, wal.MessageType.INSERT)]},
            {"filters": [wal.MessageTypes(wal.MessageType.DELETE)]},
            {"until_time_tick": middle.time_tick},
        ]
        async with wal.open_wal(data, read_only=True) as reader:

            async def knows_them_all() -> bool:
                return sorted(map(repr, await reader.vchannels())) == sorted(map(repr, await writer.vchannels()))

            await eventually(knows_them_all)
            for vchannel in ("orders", "payments", ["orders", "payments"]):
                for options in ways:
                    ours = [facts(message) for message in await read_all(writer, vchannel, **options)]
                    theirs = [facts(message) for message in await read_all(reader, vchannel, **options)]
                    assert theirs == ours, (vchannel, options)
            assert await read_all(reader, "unheard of") == []
            assert reader.wal_name == writer.wal_name
            reader.statistics()


async def test_log_is_read_without_a_writer(data: str) -> None:
    async with wal.open_wal(data) as writer:
        await content(writer)
        before = [facts(message) for message in await read_all(writer, "orders")]
    files = {path: path.stat().st_mtime_ns for path in Path(data).rglob("*") if path.is_file()}
    async with wal.open_wal(data, read_only=True) as one, wal.open_wal(data, read_only=True) as two:
        for reader in (one, two):
            assert [facts(message) for message in await read_all(reader, "orders")] == before
    assert {path: path.stat().st_mtime_ns for path in Path(data).rglob("*") if path.is_file()} == files, "it writes nothing"


async def test_writing_half_is_refused(data: str) -> None:
    async with wal.open_wal(data) as writer:
        (result,) = await writer.append_bulk([wal.Message("orders", b"1")])
        async with wal.open_wal(data, read_only=True) as log:
            message = wal.Message("orders", b"2")

            async def transaction() -> None:
                async with log.txn("orders") as txn:
                    await txn.append(b"2")

            calls: list[Any] = [
                lambda: log.raw_append(message),
                lambda: log.append_nowait(message),
                lambda: log.append_messages(message, message),
                lambda: log.append_bulk([message]),
                transaction,
                lambda: log.txn(vchannels=["orders"]),
                lambda: log.allocate_time_tick(),
                lambda: log.create_vchannel("new"),
                lambda: log.drop_vchannel("orders"),
                lambda: log.truncate(up_to=result.message_id),
                lambda: log.forget_producer("p"),
            ]
            for number, call in enumerate(calls):
                with pytest.raises(errors.InvalidArgumentError, match="read_only") as caught:
                    await call()
                assert not isinstance(caught.value, errors.NotLocalError), number
            with pytest.raises(errors.NotLocalError) as not_local:
                await log.get_latest_mvcc_timestamp_if_local("orders")
            assert not_local.value.code == errors.StreamingCode.NOT_LOCAL
            assert await payloads(log, "orders") == [b"1"]
        assert await payloads(writer, "orders") == [b"1"]


async def test_readers_keep_no_writer_out(data: str) -> None:
    async with wal.open_wal(data) as log:
        await content(log)
    async with wal.open_wal(data, read_only=True) as reader, reader.read("orders", deliver_policy=wal.Latest()) as scanner:
        for number in range(3):
            async with wal.open_wal(data) as log:
                await log.raw_append(wal.Message("orders", b"of writer %d" % number))
            async with asyncio.timeout(60):
                assert (await anext(scanner)).payload == b"of writer %d" % number


async def test_read_ends_at_a_tick_of_the_writer(data: str) -> None:
    async with wal.open_wal(data, time_tick_interval_s=0.02) as writer:
        await content(writer)
        until = await writer.allocate_time_tick()
        async with wal.open_wal(data, read_only=True) as log, log.read("orders", until_time_tick=until) as scanner:
            async with asyncio.timeout(60):
                assert len([body async for message in scanner for body in message.bodies()]) == 400


async def test_vchannels_are_created_and_dropped_during_a_read(data: str) -> None:
    async with wal.open_wal(data) as writer, wal.open_wal(data, read_only=True) as log:
        async with log.read("later") as scanner:
            waiting = asyncio.ensure_future(anext(scanner))
            await writer.raw_append(wal.Message("later", b"1"))
            async with asyncio.timeout(60):
                assert (await waiting).payload == b"1"

            async def known() -> bool:
                return "later" in [info.name for info in await log.vchannels()]

            await eventually(known)
            await writer.drop_vchannel("later")
            with pytest.raises(errors.ChannelNotExistError):
                async with asyncio.timeout(60):
                    async for _ in scanner:
                        pass
        await writer.raw_append(wal.Message("later", b"2"))

        async def new_one() -> bool:
            return await payloads(log, "later") == [b"2"]

        await eventually(new_one)


async def test_reader_sees_truncation(data: str) -> None:
    async with wal.open_wal(data, segment_bytes=1 << 20) as writer, wal.open_wal(data, read_only=True) as log:
        results = await writer.append_bulk([wal.Message("orders", b"%03d" % n + bytes(50_000)) for n in range(100)])
        await writer.truncate(up_to=results[69].message_id)
        assert [int(payload[:3]) for payload in await payloads(log, "orders")] == list(range(70, 100))
        with pytest.raises(errors.TruncatedError) as caught:
            await read_all(log, "orders", deliver_policy=wal.StartFrom(results[3].message_id))
        assert caught.value.earliest == results[70].message_id
        last = await read_all(log, "orders", deliver_policy=wal.StartAfter(results[69].message_id))
        assert len(last) == 30


async def test_readers_save_and_delete_cursors(data: str) -> None:
    async with wal.open_wal(data) as writer:
        await content(writer)
    async with wal.open_wal(data, read_only=True) as log:
        async with log.read("orders", cursor="elsewhere") as scanner:
            await anext(scanner)
            await scanner.save()
            saved = scanner.position
        (info,) = await log.cursors()
        assert (info.name, list(info.vchannels), info.position, info.stale) == ("elsewhere", ["orders"], saved, False)
        assert (await payloads(log, "orders", cursor="elsewhere"))[0] == b"1"
        await log.delete_cursor("elsewhere")
        assert await log.cursors() == []


async def test_directory_without_a_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(errors.FormatError):
        async with wal.open_wal(str(tmp_path / "none"), read_only=True):
            pass
    assert list(tmp_path.iterdir()) == [], "it makes none"
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("not a log")
    for name in ("empty", "other"):
        with pytest.raises(errors.FormatError):
            async with wal.open_wal(str(tmp_path / name), read_only=True):
                pass
    assert list((tmp_path / "empty").iterdir()) == []
    with pytest.raises(errors.InvalidArgumentError):
        async with wal.open_wal("memory:", read_only=True):
            pass
    for wrong in (1, "yes", None):
        with pytest.raises(TypeError):
            await wal.open_wal(str(tmp_path / "none"), read_only=wrong)  # type: ignore[arg-type]


async def test_closing_the_log_ends_its_readers(data: str) -> None:
    async with wal.open_wal(data) as writer:
        await content(writer)
        log = await wal.open_wal(data, read_only=True)
        scanner = log.read("payments")
        async with scanner:
            assert grouped([await anext(scanner)]) == [[b"p8"]]
            waiting = asyncio.ensure_future(anext(scanner))
            await log.close()
            with pytest.raises(errors.ClosedError):
                await waiting
        await log.close()
        with pytest.raises(errors.ClosedError):
            await read_all(log, "orders")
        with pytest.raises(errors.WALError):
            await log.vchannels()
        assert len(await payloads(writer, "orders")) == 400, "the writer is not disturbed"


async def test_reader_gets_a_wide_transaction_whole(data: str) -> None:
    async with wal.open_wal(data) as writer, wal.open_wal(data, read_only=True) as log:
        await content(writer)
        wide = [
            message
            for message in await read_all(log, ["orders", "payments"])
            if isinstance(message, wal.ImmutableTxnMessage) and len(message.vchannels) == 2
        ]
        assert grouped(wide) == [[b"8", b"p8"]]
