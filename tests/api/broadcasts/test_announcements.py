"""The lines that a log writes when it has been opened and when it has been closed."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

import pytest

from tests.processes import Child
from tests.storage.journal.faults import FaultyDisk
from wal import Message, open_wal
from wal.errors import StorageError, WALError
from wal.storage.journal import layout
from wal.storage.journal.control import CONTROL_NAME, ControlView


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Returns the lines of the logger `wal` at INFO."""
    return [record.getMessage() for record in caplog.records if record.name == "wal" and record.levelno == logging.INFO]


def opening(line: str) -> tuple[str, str, int, int, int]:
    """Returns (before, term, torn bytes, events replayed, pchannels) from the line of an opening."""
    found = re.fullmatch(
        r"opened the log at \S+ in [\d.]+ ms: (.+), (terms? .+); torn bytes cut: (\d+); events replayed: (\d+); pchannels: (\d+)", line
    )
    assert found is not None, line
    before, term, torn, replayed, pchannels = found.groups()
    return before, term, int(torn), int(replayed), int(pchannels)


def closing(line: str) -> tuple[int, str]:
    """Returns (events appended, how) from the line of a closing."""
    found = re.fullmatch(r"closed the log at \S+ after [\d.]+ s, (.*); events appended: (\d+)", line)
    assert found is not None, line
    return int(found[2]), found[1]


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "wal")


async def test_new_log_and_one_that_was_closed(data: str, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        async with open_wal(data) as log:
            await log.raw_append(Message("orders", b"one"))
            await log.raw_append(Message("orders", b"two"))
    first, first_end, second, second_end = lines(caplog)
    assert opening(first) == ("new", "term 1", 0, 0, 1)
    assert opening(second) == ("recovered, closed cleanly before", "term 2", 0, 0, 1)
    assert closing(first_end) == closing(second_end) == (2, "cleanly")
    assert data in first
    assert data in first_end


async def test_log_whose_writer_was_killed(data: str, caplog: pytest.LogCaptureFixture) -> None:
    WRITER = """
        import asyncio, sys
        from wal import Message, open_wal

        async def main():
            log = await open_wal(sys.argv[1], pchannels=2)
            for number in range(7):
                await log.raw_append(Message(f"orders{number}", b"%d" % number), idempotency_key=f"key-{number}")
            print("acknowledged", flush=True)
            await asyncio.to_thread(sys.stdin.read)

        asyncio.run(main())
    """

    torn_bytes = 10_000

    async def killed(data: str) -> None:
        """A log of two pchannels whose writer was killed after seven events with keys were acknowledged."""
        async with Child("-c", WRITER, data) as writer:
            assert await writer.line() == "acknowledged"
            await writer.kill()

    def tear(folder: Path) -> int:
        """Writes the beginning of a frame after the last one, as a writer that is killed in the middle of it does. Returns its bytes."""
        control = ControlView(folder / CONTROL_NAME)
        durable = control.load().durable
        control.close()
        (segment,) = folder.glob("*.wal")
        with segment.open("r+b") as file:
            header = layout.SegmentHeader.unpack(file.read(layout.HEADER_PAGE_BYTES))
            file.seek(durable - header.base)
            file.write(layout.Envelope(torn_bytes, header.generation, durable).pack() + b"torn")
        return layout.slot_bytes(torn_bytes)

    await killed(data)
    torn = sum(tear(folder) for folder in Path(data).glob("pchannels/*"))
    async with open_wal(data):
        (line,) = lines(caplog)
        assert opening(line) == ("recovered, not closed cleanly before", "term 2", torn, 7, 2)
        assert torn >= 2 * torn_bytes


async def test_log_in_memory(caplog: pytest.LogCaptureFixture) -> None:
    async with open_wal("memory:", pchannels=3):
        (line,) = lines(caplog)
        assert opening(line) == ("new", "term 1", 0, 0, 3)


async def test_reading_alone_is_told_at_debug(data: str, caplog: pytest.LogCaptureFixture) -> None:
    async with open_wal(data):
        pass
    caplog.clear()
    async with open_wal(data, read_only=True):
        pass
    assert lines(caplog) == []
    caplog.set_level(logging.DEBUG, "wal")
    async with open_wal(data, read_only=True):
        pass
    assert [record.getMessage().partition(" in ")[0] for record in caplog.records if record.name == "wal.read_only"] == [
        f"opened the log at {data} for reading"
    ]


async def test_close_after_a_failed_write_says_why(data: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk()
    monkeypatch.setattr("wal.storage.journal.backend.Disk", lambda: disk)
    log = await open_wal(data)
    disk.fail_sync = True
    with pytest.raises(StorageError):
        await log.raw_append(Message("orders", b"one"))
    await log.close()
    events, how = closing(lines(caplog)[-1])
    assert events == 0
    assert re.match(r"not cleanly \(.*failed", how)


def test_log_whose_loop_has_ended(data: str, caplog: pytest.LogCaptureFixture) -> None:
    log = asyncio.run(open_wal(data).__aenter__())
    asyncio.run(log.close())
    assert closing(lines(caplog)[-1]) == (0, "not cleanly (its event loop had ended)")


async def test_failed_opening_announces_nothing(data: str, caplog: pytest.LogCaptureFixture) -> None:
    async with open_wal(data):
        caplog.clear()
        with pytest.raises(WALError):
            await open_wal(data)
        assert lines(caplog) == []
