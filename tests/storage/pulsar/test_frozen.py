"""A frozen broker (SIGSTOP): connections stay open but it does not answer, so that frames in flight may or may not be written to the
log."""

from __future__ import annotations

import asyncio

import pytest

from tests.servers.pulsar import PulsarServer
from tests.storage.frames import INCARNATION, FrameMaker, append, read_all
from tests.storage.pulsar.conftest import new_namespace, own
from wal.errors import StorageError
from wal.storage.base import PChannelLog
from wal.storage.kv import MemoryKV
from wal.storage.pulsar import connection
from wal.storage.pulsar.backend import PulsarBackend
from wal.storage.pulsar.repair import Outage


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gives up a frame after a second."""
    monkeypatch.setattr(connection, "SEND_TIMEOUT_MS", 1_000)
    monkeypatch.setattr(connection, "OPERATION_TIMEOUT_S", 2)


async def sequences(log: PChannelLog) -> list[tuple[int, int, int]]:
    return [(frame.position, frame.view.header.term, frame.view.header.sequence) for frame in await read_all(log)]


async def test_unanswered_frames_are_looked_up_before_resending(pulsar_process: PulsarServer, impatient: None, soak: int) -> None:
    address, kv = new_namespace(own(pulsar_process)), MemoryKV()
    backend = PulsarBackend(address, kv)
    try:
        await backend.create("p", incarnation=INCARNATION)
        log = await backend.open("p", incarnation=INCARNATION, term=1)
        maker = FrameMaker(1)
        positions: list[int] = []
        for _ in range(soak):
            futures = [append(log, maker.data(("v", b"before"))) for _ in range(20)]
            await futures[3]
            await asyncio.to_thread(pulsar_process.stop)
            try:
                futures += [append(log, maker.data(("v", b"during"))) for _ in range(20)]
                # Longer than the client waits for an answer: it reports timeouts, and the writer reopens the log.
                await asyncio.wait(futures, timeout=3)
                assert not all(future.done() for future in futures)
            finally:
                await asyncio.to_thread(pulsar_process.cont)
            futures += [append(log, maker.data(("v", b"after"))) for _ in range(20)]
            positions += await asyncio.gather(*futures)
        assert await sequences(log) == [(position, 1, number) for number, position in enumerate(positions)]
        await log.close()
        log = await backend.open("p", incarnation=INCARNATION, term=2)
        assert await sequences(log) == [(position, 1, number) for number, position in enumerate(positions)]
        await log.close()
    finally:
        await backend.close()


async def test_long_outage_has_an_unknown_outcome(pulsar_process: PulsarServer, impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Outage, "limit_s", 1.0)
    address, kv = new_namespace(own(pulsar_process)), MemoryKV()
    backend = PulsarBackend(address, kv)
    try:
        await backend.create("p", incarnation=INCARNATION)
        log = await backend.open("p", incarnation=INCARNATION, term=1)
        maker = FrameMaker(1)
        acked = await append(log, maker.data(("v", b"before")))
        await asyncio.to_thread(pulsar_process.stop)
        try:
            futures = [append(log, maker.data(("v", b"%d" % number))) for number in range(12)]
            await asyncio.wait(futures)
        finally:
            await asyncio.to_thread(pulsar_process.cont)
        errors = [future.exception() for future in futures]
        unknown = [isinstance(error, StorageError) and error.outcome_unknown for error in errors]
        assert all(isinstance(error, StorageError) for error in errors)
        assert unknown == [True] * 8 + [False] * 4, "frames that were never sent are certainly not written"
        with pytest.raises(StorageError) as later:
            await append(log, maker.data(("v", b"later")))
        assert not later.value.outcome_unknown
        await log.close()
        log = await backend.open("p", incarnation=INCARNATION, term=2)
        found = await sequences(log)
        assert found[0] == (acked, 1, 0)
        assert [number for _, _, number in found] == list(range(len(found)))
        assert len(found) <= 9, "frames that are said not to be written are not in the log"
        await append(log, FrameMaker(2).term_start(1, found[-1][2]))
        await log.close()
    finally:
        await backend.close()
