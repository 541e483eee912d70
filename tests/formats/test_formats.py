"""A log of each format is read, continued and kept, and one of a newer format is refused. They are never recreated: see `write_log`."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from tests.archives import extract
from tests.probes import payloads
from wal import Message, ProducerKey, bridge, open_wal
from wal.errors import FormatError
from wal.operate.cli.check import damage_in
from wal.storage.files import META_NAME
from wal.storage.journal.verify import VerifyProgress

FOLDER = Path(__file__).parent
RELEASED = sorted(FOLDER.glob("*.tar.xz"))


@pytest.fixture(params=RELEASED, ids=[path.name for path in RELEASED])
def released(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A log as the release or the format wrote it: frames with and without compression, keys, a transaction, broadcasts, cursors."""
    extract(request.param, tmp_path)
    return tmp_path / "data"


@pytest.mark.parametrize("killed", [False, True])
def test_first_writer_raises_the_format(released: Path, killed: bool) -> None:
    """`killed`: an earlier one was, after its first step. The second step is one transaction of the metadata."""

    def content(directory: Path) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}

    before = content(released)
    with bridge.blocking(released, read_only=True) as log:
        assert [message.payload for message in log.read("stock", follow=False)] == [b"taken", b"to all"] * 2
    assert content(released) == before, "a reader changes nothing"
    assert list(damage_in(released, VerifyProgress())) == []
    if killed:
        (released / "FORMAT").write_bytes(b"wal-journal 3\n")
    with bridge.blocking(released) as log:
        log.append("orders", b"new")
    assert (released / "FORMAT").read_bytes() == b"wal-journal 3\n"
    with contextlib.closing(sqlite3.connect(released / META_NAME)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (3,)
        assert connection.execute("SELECT count(*) FROM kv WHERE value NOT LIKE 'crc32c:%'").fetchone() == (0,)
    assert list(damage_in(released, VerifyProgress())) == []


async def test_log_of_each_release_is_read_and_goes_on(released: Path) -> None:
    def expected() -> list[bytes]:
        one = [b'{"order": %d, "state": "created"}' % number * 20 for number in range(30)]
        return [*one, b"paid", b"shipped", b"to all"] * 2

    async with open_wal(released, read_only=True) as log:
        assert await payloads(log, "orders") == expected()
    async with open_wal(released, idempotency_window_s=1e9) as log:  # the keys are as old as the release
        assert (await log.raw_append(Message("orders", b"again"), idempotency_key="zstd-7")).duplicate
        assert (await log.raw_append(Message("stock", b"again"), idempotency_key=ProducerKey("till", 2))).duplicate
        async with log.read("orders", cursor="billing", follow=False) as scanner:
            assert (await anext(scanner)).properties == {"n": "2"}
        await log.raw_append(Message("orders", b"new"))
        assert await payloads(log, "orders") == [*expected(), b"new"]
        assert await payloads(log, "stock") == [b"taken", b"to all"] * 2


async def test_log_of_a_newer_format_is_refused(released: Path) -> None:
    (released / "FORMAT").write_text("wal-journal 4\n")
    for read_only in (False, True):
        with pytest.raises(FormatError, match=r"version 4.*upgrade to open it"):
            async with open_wal(released, read_only=read_only):
                pass
