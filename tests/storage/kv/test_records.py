"""The checksums of records: a flipped bit is damage or changes nothing, and a file without checksums gets them as a whole."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from wal.errors import CorruptionError, FormatError, KeyNotExistError, StorageError, WALError
from wal.storage.kv import SqliteKV
from wal.storage.kv.records import sealed, unsealed
from wal.storage.kv.sqlite_records import FORMAT_VERSION, open_records, read_records

CONTENT = {
    "pchannels/p0": '{"name":"p0","incarnation":12345,"term":3}',
    **{f"vchannels/v{number}": f'{{"pchannel":"p0","incarnation":{number},"begin":[12345,4096]}}' for number in range(90)},
    "timestamp/limit": "1700000000000 7",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv.sqlite3"


async def saved(path: Path) -> None:
    async with await SqliteKV.open(path) as kv:
        await kv.multi_save({**CONTENT, "gone": "1"})
        await kv.remove("gone")


async def opened(path: Path) -> None:
    await (await SqliteKV.open(path)).close()


def made(path: Path, *, version: int = FORMAT_VERSION) -> bytes:
    """Creates a file with CONTENT, of version 1 as that version created it, and returns its bytes."""
    asyncio.run(saved(path))
    if version == 1:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.executemany("UPDATE kv SET value = ? WHERE key = ?", [(value, key) for key, value in CONTENT.items()])
            connection.execute("PRAGMA user_version = 1")
    return path.read_bytes()


def test_flipped_bit_in_the_file_is_found(path: Path) -> None:
    def flips(data: bytes) -> Iterator[bytes]:
        """Yields copies with one flipped bit each: of every byte of the file's header, and of a spread of all others."""
        for at in [*range(100), *range(100, len(data), 19)]:
            yield data[:at] + bytes([data[at] ^ 1 << (at // 19 % 8)]) + data[at + 1 :]

    def content(data: bytes) -> dict[str, str]:
        """Returns the records of a file with these bytes."""
        with contextlib.closing(sqlite3.connect(":memory:")) as connection:
            # Only a file can be in the mode that the header names at 18.
            connection.deserialize(data[:18] + b"\1\1" + data[20:])
            return open_records(connection, "kv").everything()

    data = made(path)
    errors = harmless = 0
    for flipped in flips(data):
        try:
            records = content(flipped)
        except (WALError, sqlite3.DatabaseError, UnicodeDecodeError) as error:
            assert not isinstance(error, FormatError)
            errors += 1
        else:
            assert records == CONTENT
            harmless += 1
    assert errors > 300
    assert harmless > 100, "free space of the pages"


@pytest.mark.parametrize("at", [3, 19, 21, 30, 63, 71, 4_080])
def test_damaged_file_is_a_corruption_error(path: Path, at: int) -> None:
    data = made(path)
    path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
    with pytest.raises(CorruptionError, match="restore") as caught:
        asyncio.run(opened(path))
    assert caught.value.path == str(path)
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    with pytest.raises(CorruptionError, match=str(path)):
        read_records(copy, path)


def test_flipped_bit_of_a_record_is_an_error() -> None:
    key, stored = b"vchannels/orders", sealed("vchannels/orders", '{"pchannel":"p0","incarnation":1}').encode()
    for bare in (False, True):
        assert unsealed(key, stored, "kv", bare=bare) == '{"pchannel":"p0","incarnation":1}'
        for part in (key, stored):
            for bit in range(8 * len(part)):
                flipped = bytearray(part)
                flipped[bit // 8] ^= 1 << bit % 8
                damaged = (bytes(flipped), stored) if part is key else (key, bytes(flipped))
                with pytest.raises(CorruptionError, match=r"record .* restore") as caught:
                    unsealed(*damaged, "kv", bare=bare)
                assert caught.value.path == "kv"
    with pytest.raises(CorruptionError):
        unsealed(key, b"{}", "kv")
    assert unsealed(key, b"{}", "kv", bare=True) == "{}"


async def read(path: Path) -> None:
    async with await SqliteKV.open(path) as kv:
        assert dict(zip(*await kv.load_with_prefix(""), strict=True)) == CONTENT
        assert await kv.load("pchannels/p0") == CONTENT["pchannels/p0"]


def test_old_file_gets_all_checksums_or_none(path: Path) -> None:
    async def upgraded_in_vain(path: Path) -> None:
        async with await SqliteKV.open(path) as kv:
            outcomes = await asyncio.gather(kv.upgrade(), kv.save("a", "1"), return_exceptions=True)
            assert isinstance(outcomes[0], StorageError)
            assert outcomes[1] is None

    async def upgraded(path: Path) -> None:
        async with await SqliteKV.open(path) as kv:
            assert await kv.compare_and_swap("a", "1", "2")
            await kv.upgrade()
            await kv.upgrade()
            assert await kv.compare_and_swap("a", "2", "3")
            assert not await kv.compare_and_swap("a", "2", "4")
            await kv.remove("a")
            with pytest.raises(KeyNotExistError):
                await kv.load("a")

    before = made(path, version=1)
    asyncio.run(read(path))
    assert path.read_bytes() == before, "an opening that saves nothing changes nothing"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TRIGGER t BEFORE UPDATE ON kv WHEN OLD.key = 'vchannels/v5' BEGIN SELECT RAISE(ABORT, 'stop'); END")
    asyncio.run(upgraded_in_vain(path))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT value FROM kv WHERE key = 'a'").fetchone() == ("1",)
        connection.execute("DROP TRIGGER t")
    asyncio.run(upgraded(path))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (FORMAT_VERSION,), "earlier versions refuse it"
        assert {key: unsealed(key.encode(), value.encode(), "kv") for key, value in connection.execute("SELECT * FROM kv")} == CONTENT


def test_record_that_is_no_text_is_damage(path: Path) -> None:
    made(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE kv SET key = CAST(key AS BLOB) WHERE key = 'pchannels/p0'")
    with pytest.raises(CorruptionError, match="is not text"):
        asyncio.run(opened(path))


def test_flipped_bit_in_the_log_hides_no_sync(path: Path) -> None:
    async def killed(path: Path, copy: Path) -> None:
        """Saves one transaction after the other, and copies the files as a killed process would leave them."""
        async with await SqliteKV.open(path) as kv:
            for number in range(TRANSACTIONS):
                await kv.multi_save({"first": str(number), f"k{number}": "x" * 3_000})
            await asyncio.to_thread(shutil.copyfile, path, copy)
            await asyncio.to_thread(shutil.copyfile, f"{path}-wal", f"{copy}-wal")

    TRANSACTIONS = 5
    # The bytes with the transaction that creates the file; before it the file has no KV.
    first_bytes = 10_000

    def transactions(copy: Path) -> int:
        """Returns the number of transactions in the file, all of them whole. Sqlite changes the files that it reads."""
        read = copy.with_name("read")
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{copy}{suffix}", f"{read}{suffix}")
        records = read_records(read, copy)
        count = int(records["first"]) + 1 if records else 0
        assert records.keys() - {"first"} == {f"k{number}" for number in range(count)}
        return count

    copy = path.with_name("copy")
    asyncio.run(killed(path, copy))
    ahead = path.with_name("copy-wal")
    whole, database = ahead.read_bytes(), copy.read_bytes()
    assert transactions(copy) == TRANSACTIONS
    found = 0
    for at in range(0, len(whole), len(whole) // 60):
        flipped = whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]
        ahead.write_bytes(flipped)
        try:
            assert transactions(copy) >= TRANSACTIONS - 1, f"the byte at {at}"
        except CorruptionError:
            found += 1
            if found in (1, 20):
                with pytest.raises(CorruptionError, match=r"write-ahead file.*restore"):
                    asyncio.run(opened(copy))
                assert (ahead.read_bytes(), copy.read_bytes()) == (flipped, database), "nothing was changed"
    assert found > 30
    for length in range(0, len(whole), len(whole) // 20):  # as a power cut leaves it
        ahead.write_bytes(whole[:length])
        if length > first_bytes:
            assert 0 <= transactions(copy) <= TRANSACTIONS
