"""Whatever fails when a log is opened or closed, it leaves nothing open, and loses no append that it accepted."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.faults import SavingGate
from tests.locations import open_wal
from tests.probes import close_all, local, payloads, start, turns
from wal import Message, WALAccesser
from wal.errors import ClosedError, CorruptionError
from wal.storage.journal.backend import JournalBackend
from wal.storage.journal.log import JournalLog

pytestmark = pytest.mark.inside


async def test_opening_that_fails_releases_every_pchannel(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pchannel of four is damaged: the others, which open after the damage is found, are closed again."""
    real = JournalBackend.open

    async def slowly(self: JournalBackend, pchannel: str, *, incarnation: int, term: int, checkpoint: int | None = None) -> JournalLog:
        try:
            return await real(self, pchannel, incarnation=incarnation, term=term, checkpoint=checkpoint)
        finally:
            await turns(0 if pchannel == "p0" else 2000)

    monkeypatch.setattr(JournalBackend, "open", slowly)
    async with open_wal(data, pchannels=4) as log:
        await log.raw_append(Message("orders", b"0"))
    directory = Path(data) / "pchannels" / "p0"
    (segment,) = directory.glob("*.wal")
    intact = segment.read_bytes()
    segment.unlink()
    before = set(threading.enumerate())
    for _ in range(3):
        with pytest.raises(CorruptionError):
            async with open_wal(data):
                pass
        assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("wal-")]
    segment.write_bytes(intact)
    async with open_wal(data) as log:
        assert await payloads(log, "orders") == [b"0"]


async def test_close_releases_everything_when_the_kv_breaks(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    log = await open_wal(location)
    await log.raw_append(Message("orders", b"0"))
    gate = SavingGate(local(log), monkeypatch)
    gate.failure = RuntimeError("an error of a KV client that is no WALError")
    gate.open.set()
    await asyncio.gather(close_all(log), return_exceptions=True)
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("wal-")]
    if location != "memory:":
        async with open_wal(location) as again:
            assert await payloads(again, "orders") == [b"0"]


async def test_close_while_a_vchannel_is_being_created(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append that is accepted while the record is being saved is written before the log is closed."""
    opened = local(log)
    gate = asyncio.Event()
    real = opened.coordinator.kv.multi_save_and_remove

    async def save(*arguments: Any) -> None:
        await gate.wait()
        await real(*arguments)

    monkeypatch.setattr(opened.coordinator.kv, "multi_save_and_remove", save)
    made = start(log.create_vchannel("explicit"))
    implied = log.append_nowait(Message("orders", b"1"))
    closing = start(log.close())
    await turns()
    assert not closing.done()
    gate.set()
    await closing
    assert (await made).name == "explicit"
    assert (await implied).time_tick
    with pytest.raises(ClosedError):
        await log.raw_append(Message("orders", b"2"))
