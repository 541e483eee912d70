"""A defect in the preparer's thread reaches the appends: nothing waits for ever, and the log still closes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.storage.frames import FrameMaker, append, read_all
from tests.storage.journal.faults import BrokenDisk
from tests.storage.journal.journals import journal
from wal.errors import StorageError


@pytest.mark.parametrize(("suffix", "segment", "vchannels"), [(".zeros", 64 << 10, 1), (".idx", 1 << 20, 2048), (".tmp", 64 << 10, 1)])
@pytest.mark.parametrize("defect", [RuntimeError("a defect"), MemoryError("no memory")], ids=["defect", "memory"])
async def test_defect_in_the_preparers_thread_ends_the_writing(
    tmp_path: Path, suffix: str, segment: int, vchannels: int, defect: Exception
) -> None:
    """The three cases are the next segment while it is filled, a part of an index, and the index of a full segment.

    A part of an index is due after a number of runs, or after a thousand frames, whose syncs take longer the more others use the disk.
    """
    wait_s = 60.0
    disk = BrokenDisk(suffix)
    appends = [(f"v{number}", bytes(20)) for number in range(vchannels)]
    maker = FrameMaker(1)
    acknowledged: list[int] = []
    async with asyncio.timeout(wait_s), journal(tmp_path, segment=segment, disk=disk) as log:
        acknowledged.append(await append(log, maker.data(("v", b"first"))))
        disk.error = defect
        with pytest.raises(StorageError) as caught:
            while True:
                acknowledged.append(await append(log, maker.data(*appends)))
        assert disk.raised.is_set()
        assert caught.value.__cause__ is defect
        assert not caught.value.outcome_unknown
        with pytest.raises(StorageError) as again:
            await append(log, maker.data(("v", b"later")))
        assert str(defect) in str(again.value)
        assert [frame.position for frame in await read_all(log)] == acknowledged
    async with journal(tmp_path, 2) as log:
        assert [frame.position for frame in await read_all(log)] == acknowledged
        await append(log, FrameMaker(2).data(("v", b"goes on")))
