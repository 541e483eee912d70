"""Damage raises an error: in a table, in the log of RocksDB, and where a record is missing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import rocksdict

from wal.errors import CorruptionError, FormatError, StorageError, WALError
from wal.streams.rocksmq import RocksMQ, RocksMQSettings
from wal.streams.rocksmq.keys import TurnWrites, data_prefix, record_key
from wal.streams.rocksmq.store import Store


async def fill(directory: Path, messages: int = 2_000) -> None:
    settings = RocksMQSettings(write_buffer_bytes=65_536)
    async with await RocksMQ.open(directory, settings=settings) as mq:
        await mq.create_channel("x")
        await mq.create_consumer_group("g", "x")
        for first in range(0, messages, 100):
            await mq.produce("x", [b"%0200d" % index for index in range(first, first + 100)])


async def consume_all(directory: Path) -> int:
    count = 0
    async with await RocksMQ.open(directory) as mq:
        while messages := await mq.consume("g", "x", 100):
            for message in messages:
                assert int(message.payload) == count
                count += 1
    return count


async def test_flipped_byte_in_a_table_is_an_error(directory: Path) -> None:
    await fill(directory)
    tables = sorted(directory.glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(tables[-1].read_bytes())
    at = data.index(b"%0200d" % 1_000) if b"%0200d" % 1_000 in data else len(data) // 2
    data[at + 50] ^= 1
    tables[-1].write_bytes(data)
    with pytest.raises(CorruptionError):
        await consume_all(directory)


async def test_flipped_byte_in_the_log_is_an_error(directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    async with await RocksMQ.open(directory) as mq:
        await mq.create_channel("x")
        await mq.create_consumer_group("g", "x")
        for index in range(200):
            await mq.produce("x", [b"%0200d" % index])
        copy.mkdir()
        for path in directory.iterdir():  # the state after a crash: nothing was flushed to tables
            if path.name != "LOCK":
                (copy / path.name).write_bytes(path.read_bytes())
    log = max(copy.glob("*.log"), key=lambda path: path.stat().st_size)
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    with pytest.raises(WALError) as raised:
        await consume_all(copy)
    assert isinstance(raised.value, CorruptionError | StorageError)


@pytest.mark.parametrize("missing", [1, 2, 50, 100])
async def test_missing_record_is_an_error(directory: Path, missing: int) -> None:
    def delete_record(directory: Path, message_id: int) -> None:
        store = Store.open(directory, RocksMQSettings())
        changes = TurnWrites()
        changes.delete(record_key(data_prefix("x"), message_id))
        store.write(changes)
        store.close()

    await fill(directory, 100)
    await asyncio.to_thread(delete_record, directory, missing)
    with pytest.raises(CorruptionError, match="missing") as raised:
        await consume_all(directory)
    await asyncio.to_thread(delete_record, directory, missing)  # the error and its traceback do not hold the database open
    assert raised.tb is not None


async def test_database_of_something_else_is_refused(directory: Path) -> None:
    other = rocksdict.Rdict(str(directory), rocksdict.Options(raw_mode=True))
    other[b"mine"] = b"1"
    other.close()
    with pytest.raises(FormatError, match="is not a RocksMQ"):
        await RocksMQ.open(directory)


async def test_database_with_other_options_fails_clearly(directory: Path) -> None:
    """The binding then rewrites one of its own files. The next opening may fail, but it never returns other messages."""
    await fill(directory, 100)
    rocksdict.Rdict(str(directory)).close()
    for _ in range(2):
        try:
            assert await consume_all(directory) == 100
            break
        except (FormatError, StorageError):
            continue
    else:
        pytest.fail("it does not open any more")
