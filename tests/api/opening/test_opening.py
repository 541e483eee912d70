"""Opening a location without a log: `create=False` creates none, and `wait_s` waits for the first writer."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

import wal
from tests.probes import payloads, start, turns
from tests.processes import Line, Other
from wal import Message, bridge, open_wal
from wal.errors import FormatError, InvalidArgumentError

LONG_S = 600.0
"""A time limit longer than any test may take."""


def made_by(line: Line, data: str) -> None:
    """Opens and writes the log as its first writer, in another process."""
    with bridge.blocking(data) as log:
        log.raw_append(Message("orders", b"first"))
        line.tell("made")
        line.hear_now()


def everything_in(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


# -- create=False


async def test_missing_log_is_not_created(tmp_path: Path) -> None:
    for location, options in (("none", {}), ("none/deeper", {}), ("none", {"kv": str(tmp_path / "kv")})):
        with pytest.raises(FormatError, match=r"holds no journal.*without create=False"):
            await open_wal(tmp_path / location, create=False, **options)  # type: ignore[arg-type]
        assert everything_in(tmp_path) == []
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match="holds no journal"):
        await open_wal(tmp_path / "empty", create=False)
    assert everything_in(tmp_path) == ["empty"]


async def test_half_created_log_stays_without_create(data: str) -> None:
    """A writer that was killed while it created the log leaves its FORMAT, and a folder."""
    (Path(data) / "pchannels" / "p0").mkdir(parents=True)
    (Path(data) / "FORMAT").write_text("wal-journal 1\n")
    before = everything_in(Path(data))
    with pytest.raises(FormatError, match="never opened for writing to the end"):
        await open_wal(data, create=False)
    assert everything_in(Path(data)) == before


async def test_existing_log_opens_without_create(data: str) -> None:
    async with open_wal(data) as log:
        await log.raw_append(Message("a", b"one"))
    async with open_wal(data, create=False) as log:
        await log.raw_append(Message("b", b"two"))
        assert await payloads(log, "a") == [b"one"]
    async with open_wal(data, create=False, read_only=True) as log:
        assert await payloads(log, "b") == [b"two"]
    wal.init(data, create=False)
    assert await payloads(wal.WAL(), "b") == [b"two"]
    await wal.release()


async def test_unknown_metadata_stay_without_create(data: str, tmp_path: Path) -> None:
    """A journal opened with the wrong location of its metadata would otherwise get new metadata."""
    async with open_wal(data, kv=str(tmp_path / "right")):
        pass
    before = everything_in(tmp_path)
    with pytest.raises(FormatError, match=f"{tmp_path}/wrong"):
        await open_wal(data, create=False, kv=str(tmp_path / "wrong"))
    assert everything_in(tmp_path) == before
    async with open_wal(tmp_path / "other", kv=str(tmp_path / "other.kv")):
        pass
    (tmp_path / "empty.kv").touch()  # an empty SQLite database
    with pytest.raises(FormatError, match="know of no log"):
        await open_wal(data, create=False, kv=str(tmp_path / "empty.kv"))


async def test_lost_metadata_need_a_restore(data: str) -> None:
    async with open_wal(data) as log:
        await log.append("a", b"one")
    (Path(data) / "meta.sqlite3").unlink()
    for create in (False, True, False):
        with pytest.raises(FormatError, match=r"they are lost, or elsewhere.*estore") as raised:
            await open_wal(data, create=create)
        assert "create=False" not in str(raised.value)
    async with open_wal(data, read_only=True) as log:
        assert await payloads(log, "a") == [b"one"]


async def test_pulsar_is_not_called_without_metadata(tmp_path: Path) -> None:
    """No server runs at this address: an opening that connected to it would raise another error."""
    location = "pulsar://127.0.0.1:1/tenant/namespace"
    with pytest.raises(FormatError, match=f"{tmp_path}/kv, the metadata of the log at {location}, is not there"):
        await open_wal(location, kv=str(tmp_path / "kv"), create=False)
    assert everything_in(tmp_path) == []
    (tmp_path / "kv").touch()
    with pytest.raises(FormatError, match="know of no log"):
        await open_wal(location, kv=str(tmp_path / "kv"), create=False)


async def test_without_create_memory_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="create=False"):
        open_wal("memory:", create=False)
    with pytest.raises(TypeError, match="create must be a bool, not 0"):
        open_wal("memory:", create=0)  # type: ignore[arg-type]


def test_without_create_a_blocking_caller_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="holds no journal"), bridge.blocking(tmp_path / "none", create=False):
        pass
    assert everything_in(tmp_path) == []


# -- wait_s


@pytest.mark.parametrize("before", ["nothing", "an empty directory", "half of a journal"])
async def test_reader_waits_for_the_first_writer(data: str, before: str) -> None:
    if before != "nothing":
        os.mkdir(data)
    if before == "half of a journal":
        (Path(data) / "FORMAT").write_text("wal-journal 1\n")
    opening = start(_opened(data, wait_s=LONG_S))
    await turns()
    assert not opening.done()
    async with Other(made_by, data) as writer:
        log = await opening
        async with log.read("orders") as scanner:
            assert (await anext(scanner)).payload == b"first"
        await log.close()
        assert await writer.hear() == "made"


async def test_wait_timeout_is_explained(data: str) -> None:
    began = time.monotonic()
    with pytest.raises(FormatError, match=rf"{data} holds no journal.*after waiting 0\.2 s"):
        await open_wal(data, read_only=True, wait_s=0.2)
    assert time.monotonic() - began >= 0.2
    assert not os.path.exists(data)


async def test_wait_in_vain_is_not_waited_out(tmp_path: Path) -> None:
    """A path at which no writer can create a journal is an error at once."""
    (tmp_path / "file").touch()
    with pytest.raises(FormatError, match="is a file"):
        await open_wal(tmp_path / "file", read_only=True, wait_s=LONG_S)
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "FORMAT").write_text("wal-journal 99\n")
    with pytest.raises(FormatError, match="99"):
        await open_wal(tmp_path / "newer", read_only=True, wait_s=LONG_S)


async def test_wait_can_be_cancelled_and_released(data: str) -> None:
    opening = start(_opened(data, wait_s=LONG_S))
    await turns()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    wal.init(data, read_only=True, wait_s=LONG_S)
    await turns()
    await wal.release()


async def test_wrong_waits_are_refused(data: str) -> None:
    with pytest.raises(InvalidArgumentError, match="wait_s=-1 is out of range"):
        open_wal(data, read_only=True, wait_s=-1)
    with pytest.raises(InvalidArgumentError, match="wait_s=nan is out of range"):
        open_wal(data, read_only=True, wait_s=float("nan"))
    with pytest.raises(TypeError, match="wait_s must be a number of seconds"):
        open_wal(data, read_only=True, wait_s="1")  # type: ignore[arg-type]


@pytest.mark.parametrize("call", ["iterate", "record_batches", "blocking"])
async def test_blocking_reader_waits_for_the_first_writer(data: str, call: str) -> None:
    reading = start(asyncio.to_thread(_first, call, data))
    async with Other(made_by, data) as writer:
        assert await reading == b"first"
        assert await writer.hear() == "made"


@pytest.mark.parametrize("call", ["iterate", "record_batches", "blocking"])
def test_blocking_wait_timeout_is_explained(data: str, call: str) -> None:
    with pytest.raises(FormatError, match=r"holds no journal.*after waiting 0\.1 s"):
        _first(call, data, wait_s=0.1)


def _first(call: str, data: str, *, wait_s: float = LONG_S) -> bytes:
    """Returns the first payload that this call of the bridge yields."""
    if call == "blocking":
        with bridge.blocking(data, read_only=True, wait_s=wait_s) as log, log.read("orders") as scanner:
            return next(scanner).payload
    if call == "iterate":
        with bridge.iterate(data, "orders", wait_s=wait_s) as messages:
            return next(messages).payload
    with bridge.record_batches(data, "orders", wait_s=wait_s) as batches:
        payload: bytes = next(batches).column("payload")[0].as_py()
        return payload


async def _opened(data: str, *, wait_s: float) -> wal.WALAccesser:
    return await open_wal(data, read_only=True, wait_s=wait_s)
