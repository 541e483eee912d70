"""No file descriptor is left when the next segment begins: nothing is written, the append can be retried, and the log continues."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from tests.storage.frames import FrameMaker, append, append_all, content, content_of, read_all
from tests.storage.journal.faults import BrokenDisk
from tests.storage.journal.journals import journal, segments
from wal.errors import WouldBlockError
from wal.storage.journal.log import JournalLog


def no_descriptor(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("suffix", [".spare", ".wal"], ids=["opening the file", "opening the directory"])
async def test_append_without_a_descriptor_is_refused_alone(tmp_path: Path, number: int, suffix: str) -> None:
    async def spare_ready(place: Path) -> None:
        """Waits for the preparer, so that an append opens the next file."""
        while not [path for path in await asyncio.to_thread(lambda: list(place.rglob("*.spare"))) if path]:
            await asyncio.sleep(0)

    disk = BrokenDisk(suffix)
    maker = FrameMaker(1)
    frames = [maker.data(("v", b"first"))]
    async with journal(tmp_path, disk=disk) as log:
        await append(log, frames[0])
        await spare_ready(tmp_path)
        await fill_segment(log, maker, frames)
        disk.error = no_descriptor(number)
        sequence = maker.sequence
        pair = [append(log, maker.data(("v", bytes(9_000)))), append(log, maker.data(("v", b"handed over with it")))]
        for refused in await asyncio.gather(*pair, return_exceptions=True):
            assert isinstance(refused, WouldBlockError), refused
            assert refused.retryable
            assert not refused.outcome_unknown
            assert "ulimit -n" in str(refused)
        assert disk.raised.is_set()
        maker.sequence = sequence
        again = [maker.data(("v", b"again")), maker.data(("v", bytes(9_000)))]
        await append_all(log, again)
        assert len(segments(tmp_path)) == 2
        found = await read_all(log)
    async with journal(tmp_path, 2) as log:
        assert log.state.clean
        expected = [content_of(frame) for frame in (*frames, *again)]
        assert [content(frame.view) for frame in await read_all(log)] == expected
        assert [content(frame.view) for frame in found] == expected


async def fill_segment(log: JournalLog, maker: FrameMaker, frames: list) -> None:  # type: ignore[type-arg]
    """Appends until less than 9,000 bytes of the first segment are left."""
    while log.durable_end < (64 << 10) - 8_000:
        frames.append(maker.data(("v", bytes(1_000))))
        await append(log, frames[-1])


async def test_new_segment_without_a_descriptor_is_refused(tmp_path: Path) -> None:
    """The preparer fails first; the append that needs the segment tries again, and is itself refused."""
    maker = FrameMaker(1)
    disk = BrokenDisk("-1.zeros", no_descriptor(errno.EMFILE))
    async with journal(tmp_path, disk=disk) as log:
        frames = [maker.data(("v", b"first"))]
        await append(log, frames[0])
        await asyncio.to_thread(disk.raised.wait)
        await fill_segment(log, maker, frames)
        disk.suffix, disk.error = ".zeros", no_descriptor(errno.EMFILE)
        with pytest.raises(WouldBlockError, match="file descriptor"):
            await append(log, maker.data(("v", bytes(9_000))))
        maker.sequence -= 1
        await append(log, maker.data(("v", bytes(9_000))))
        assert len(await read_all(log)) == len(frames) + 1
