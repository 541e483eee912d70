"""A flipped bit in any file of a log: `wal verify` detects it, or reading everything returns the written messages."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from wal import Delivery, Message, bridge, open_wal
from wal.channels.directory import NEXT_KEY, PREFIX
from wal.errors import CorruptionError, FormatError
from wal.operate.cli.check import damage_in
from wal.operate.cli.main import main
from wal.storage.files import FORMAT_NAME, MAP_NAME, META_NAME
from wal.storage.journal.verify import VerifyProgress
from wal.storage.kv import RecordsBeside

WRITTEN = {"orders": [b"%d" % number for number in range(20)], "done": [b"handled"]}


async def write(directory: Path) -> None:
    async with open_wal(directory, segment_bytes=1 << 20) as log:
        await asyncio.gather(*(log.append("orders", payload, idempotency_key=payload.decode()) for payload in WRITTEN["orders"]))
        await log.create_vchannel("dropped")
        await log.drop_vchannel("dropped")
        async with log.read("orders", cursor="billing", follow=False) as scanner:
            await anext(scanner)
            async with log.txn(vchannel="done") as txn:
                await txn.append(Message("done", b"handled"))
                txn.save(scanner)

        async def handle(delivery: Delivery) -> None:
            assert delivery.message.payload in WRITTEN["orders"]

        async with log.consume("orders", handle, cursor="mailer") as consumer:
            await consumer.caught_up()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sound") / "data"
    asyncio.run(write(directory))
    return directory


@pytest.fixture
def data(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "data")
    return tmp_path / "data"


def contents(directory: Path) -> dict[str, list[bytes]]:
    """Returns the payloads of each vchannel."""
    with bridge.blocking(directory, read_only=True) as log:
        names = [info.name for info in log.vchannels()]
        return {name: [body.payload for message in log.read(name, follow=False) for body in message.bodies()] for name in names}


def test_flipped_bit_is_found_or_harmless(data: Path, soak: int) -> None:
    # Every byte of a smaller file is flipped, and …
    small_bytes = 100
    # … of a larger one about this many, and as many that are not zero.
    spread = 16

    def offsets(file: Path, soak: int = 1) -> list[int]:
        """Returns the bytes of a file that are flipped."""
        size = file.stat().st_size
        if size <= small_bytes:
            return list(range(size))
        used = [at for at, byte in enumerate(file.read_bytes()) if byte]
        return sorted({*range(0, size, max(1, size // spread // soak)), *used[:: max(1, len(used) // spread // soak)]})

    def flip(file: Path, offset: int) -> None:
        """Flips a bit of this byte; a second call restores it."""
        with file.open("r+b") as opened:
            opened.seek(offset)
            (byte,) = opened.read(1)
            opened.seek(offset)
            opened.write(bytes([byte ^ 1 << offset % 8]))

    @contextlib.contextmanager
    def flipped(file: Path, offset: int) -> Iterator[None]:
        """Flips a bit of this byte for the time of the block."""
        flip(file, offset)
        yield
        flip(file, offset)

    file_of_metadata = data / META_NAME
    before, metadata = contents(data), RecordsBeside(file_of_metadata).load()
    assert before == WRITTEN
    assert list(damage_in(data, VerifyProgress())) == []
    silent: dict[Path, list[int]] = {}
    for file in sorted(path for path in data.rglob("*") if path.is_file()):
        kv = None if file == file_of_metadata else "elsewhere"  # the metadata are read only for the flips in them
        for offset in offsets(file, soak):
            with flipped(file, offset):
                if not list(damage_in(data, VerifyProgress(), kv=kv)):
                    silent.setdefault(file, []).append(offset)
    for file, harmless in silent.items():
        for offset in harmless[:: max(1, len(harmless) // 3)]:
            with flipped(file, offset):
                assert contents(data) == before, f"{file} at {offset}"
                assert RecordsBeside(file_of_metadata).load() == metadata, f"{file} at {offset}"
    meaningless = {"LOCK", META_NAME, f"{META_NAME}-reserve", "checkpoint.reserve"}
    assert {file.name for file in silent if file.suffix not in (".wal", ".spare", ".zeros")} <= meaningless


def verified(data: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    """Returns the damage that `wal verify` finds, and checks its exit status."""
    status = main(["verify", str(data), "--json"])
    rows = [row for row in map(json.loads, capsys.readouterr().out.splitlines()) if row["row"] == "damage"]
    assert status == (1 if rows else 0)
    return rows


def test_healthy_log_has_no_damage(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The log may also have the mark of cursors that move with transactions, which is among the keys of the pchannels."""
    assert "pchannels/format" in RecordsBeside(data / META_NAME).load()
    assert verified(data, capsys) == []
    assert main(["repair", str(data), "--dry-run"]) == 0
    assert main(["copy", str(data), str(tmp_path / "copy")]) == 0
    assert contents(tmp_path / "copy") == WRITTEN
    with bridge.blocking(tmp_path / "copy"):
        pass
    capsys.readouterr()
    assert verified(tmp_path / "copy", capsys) == []


def test_damaged_metadata_are_never_a_shorter_log(sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def execute(data: Path, statement: str, *arguments: str) -> None:
        with contextlib.closing(sqlite3.connect(data / META_NAME, isolation_level=None)) as connection:
            assert connection.execute(statement, arguments).rowcount == 1

    def change_key(data: Path) -> None:
        execute(data, "UPDATE kv SET key = ? WHERE key = ?", PREFIX + "ordeps", PREFIX + "orders")

    def change_value(data: Path) -> None:
        execute(data, "UPDATE kv SET value = replace(value, ?, ?) WHERE key = 'pchannels/p0'", '"term":', '"germ":')

    def lose_record(data: Path) -> None:
        execute(data, "DELETE FROM kv WHERE key = ?", PREFIX + "orders")

    def lose_counter(data: Path) -> None:
        execute(data, "DELETE FROM kv WHERE key = ?", NEXT_KEY)

    def lose_checksums(data: Path) -> None:
        execute(data, "UPDATE kv SET value = ? WHERE key = ?", '{"pchannel":"p0","incarnation":1}', PREFIX + "orders")

    damages = {
        change_key: "record 'vchannels/ordeps'.*restore",
        change_value: "record 'pchannels/p0'.*restore",
        lose_record: "lack 1 vchannels .*'orders'.*restore",
        lose_counter: "older than the map.*restore|next incarnation is 1",
        lose_checksums: "record 'vchannels/orders'.*restore",
    }

    for damage, text in damages.items():
        data = tmp_path / damage.__name__
        shutil.copytree(sound, data)
        damage(data)
        rows = verified(data, capsys)
        assert {(row["kind"], row["path"]) for row in rows} == {("metadata", str(data / META_NAME))}, damage
        maps = {path: path.read_bytes() for path in data.glob(f"pchannels/*/{MAP_NAME}")}
        with pytest.raises(CorruptionError, match=text), bridge.blocking(data) as log:
            raise AssertionError(damage, [info.name for info in log.vchannels()])
        assert {path: path.read_bytes() for path in maps} == maps, "other processes still see its vchannels"
        assert contents(data) == WRITTEN


def test_lost_map_is_found_and_repaired(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = data / "pchannels" / "p0" / MAP_NAME
    path.unlink()
    (row,) = verified(data, capsys)
    assert (row["kind"], row["path"]) == ("map", str(path))
    assert main(["repair", str(data), "--yes"]) == 0
    capsys.readouterr()
    assert verified(data, capsys) == []


def test_damaged_format_is_no_newer_version(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = data / FORMAT_NAME
    for bit in range(8 * path.stat().st_size):
        text = bytearray(b"wal-journal 3\n")
        text[bit // 8] ^= 1 << bit % 8
        path.write_bytes(text)
        if bytes(text) in (b"wal-journal 1\n", b"wal-journal 2\n"):
            continue  # an earlier version, which the next writer raises
        with pytest.raises(CorruptionError, match="wal repair"), bridge.blocking(data, read_only=True):
            pass
    (row,) = verified(data, capsys)
    assert (row["kind"], row["path"]) == ("format", str(path))
    assert main(["repair", str(data), "--yes"]) == 0
    assert path.read_bytes() == b"wal-journal 3\n"
    assert contents(data) == WRITTEN
    path.write_bytes(b"wal-journal 4\n")
    with pytest.raises(FormatError, match=r"version 4.*upgrade"), bridge.blocking(data):
        pass
