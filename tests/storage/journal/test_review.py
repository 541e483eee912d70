"""Refusals that cross frames already submitted, and a control page of a newer version."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import google_crc32c
import pytest

from tests.storage.frames import FrameMaker, append, read_all
from tests.storage.journal.faults import FaultyDisk
from tests.storage.journal.journals import folder, journal
from wal.errors import FormatError, NoSpaceError
from wal.frame import EncodedFrame


async def test_refusals_that_cross_leave_no_gap(tmp_path: Path) -> None:
    """The sender reuses a refused number while the refusal of the frame after it is still on its way.

    A (large) and B are refused; when the sender learns of A it submits C with A's number, and when it learns of B it submits D with B's. C
    is too large again. D would fit, but it was submitted before its sender could know of C.
    """
    disk = FaultyDisk()
    maker = FrameMaker(1)
    async with journal(tmp_path, segment=64 << 10, disk=disk) as log:
        await append(log, maker.data(("v", bytes(40_000))))
        while log._preparer._preparing:
            await asyncio.sleep(0.001)
        for spare in list(log._preparer._spares):
            log._preparer._spares.remove(spare)
        disk.room = 0
        outcomes: dict[str, object] = {}
        settled = asyncio.Event()

        def hand_over(name: str, frame: EncodedFrame, then: list[tuple[str, int, int]]) -> None:
            def done(position: int, error: BaseException | None) -> None:
                outcomes[name] = error or position
                for following, sequence, size in then:
                    maker.sequence = sequence
                    hand_over(following, maker.data(("v", bytes(size))), [])
                if len(outcomes) == 4:
                    settled.set()

            log.append(frame, done)

        large, small = maker.data(("v", bytes(40_000))), maker.data(("v", b"small"))
        hand_over("A", large, [("C", 1, 40_000)])
        hand_over("B", small, [("D", 2, 5)])
        await settled.wait()
        assert {name: type(outcome) for name, outcome in outcomes.items()} == dict.fromkeys("ABCD", NoSpaceError)
        disk.room = None
        maker.sequence = 1
        await append(log, maker.data(("v", b"goes on")))
        assert [frame.view.header.sequence for frame in await read_all(log)] == [0, 1]


async def test_newer_page_fails_appends_but_not_the_writer(tmp_path: Path) -> None:
    """A newer version of the package took over the log: every waiting append fails."""
    maker = FrameMaker(1)
    async with journal(tmp_path) as log:
        await append(log, maker.data(("v", b"1")))
        control = folder(tmp_path) / "control"
        page = control.read_bytes()
        slot = struct.pack("<4sIQQQQQIIQQ", b"WALC", 2, 1 << 32, *[0] * 8)
        slot += struct.pack("<I", google_crc32c.value(slot))
        for at in (0, 512):
            page = page[:at] + slot + page[at + len(slot) :]
        with control.open("r+b") as file:
            file.write(page)
        log.promise(1 << 40, 1 << 41)
        with pytest.raises(FormatError):
            async with asyncio.timeout(60):
                await append(log, maker.data(("v", b"2")))
