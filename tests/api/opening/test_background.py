"""A defect in a background task reaches the calls that depend on it: none of them waits for ever, and the log closes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.probes import payloads
from wal import Message, open_wal
from wal.channels.directory import VChannelDirectory
from wal.errors import StorageError, UnknownError, WALError
from wal.write.checkpointer import Checkpointer

WAIT_S = 60.0


async def test_defect_in_the_saving_of_vchannels(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends to existing vchannels continue; appends that would create a vchannel are refused, at once and later."""
    async with asyncio.timeout(WAIT_S):
        async with open_wal(data_dir) as log:
            await log.raw_append(Message("there", b"1"))

            def broken(*_: object) -> None:
                raise RuntimeError("a defect")

            monkeypatch.setattr(VChannelDirectory, "_note_saved", broken)
            for name in ("made", "later"):
                with pytest.raises(StorageError, match="a defect"):
                    await log.create_vchannel(name)
                with pytest.raises(StorageError, match="a defect"):
                    await log.raw_append(Message(f"{name} by an append", b"x"))
            await log.raw_append(Message("there", b"2"))
        monkeypatch.undo()
        async with open_wal(data_dir) as log:
            assert await payloads(log, "there") == [b"1", b"2"]


async def test_defect_in_the_timer(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect ends the pchannel in which it occurs, and later calls raise an error with it as the cause."""
    async with asyncio.timeout(WAIT_S):
        log = await open_wal(data_dir, time_tick_interval_s=0.01)
        await log.raw_append(Message("orders", b"1"))

        def broken(*_: object) -> None:
            raise RuntimeError("a defect")

        monkeypatch.setattr(Checkpointer, "look", broken)
        with pytest.raises(UnknownError, match="a defect"):
            while True:
                await log.raw_append(Message("orders", b"2"))
        monkeypatch.undo()
        with pytest.raises(UnknownError, match="a defect"):
            await log.raw_append(Message("orders", b"3"))
        try:
            await log.close()
        except WALError as error:
            assert "a defect" in str(error)
