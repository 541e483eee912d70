"""A broker that stands still (SIGSTOP): connections stay open and nothing answers, so that what is on its way may or may not get into
the log."""

from __future__ import annotations

import asyncio

import pytest

from tests.backends.frames import INCARNATION, FrameMaker, append, read_all
from tests.pulsar.conftest import new_namespace, own
from tests.servers.pulsar import PulsarServer
from wal.backends import PChannelLog
from wal.backends.pulsar import PulsarBackend, connection, writer
from wal.errors import StorageError
from wal.kv import MemoryKV


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gives a frame up after a second."""
    monkeypatch.setattr(connection, "SEND_TIMEOUT_MS", 1_000)
    monkeypatch.setattr(connection, "OPERATION_TIMEOUT_S", 2)


async def sequences(log: PChannelLog) -> list[tuple[int, int, int]]:
    return [(frame.position, frame.view.header.term, frame.view.header.sequence) for frame in await read_all(log)]


async def test_what_it_did_not_answer_is_looked_up_and_sent_again_only_if_it_is_not_there(
    pulsar_process: PulsarServer, impatient: None, soak: int
) -> None:
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
                # Longer than the client waits for an answer: it reports timeouts, and the writer takes the log up again.
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


async def test_after_too_long_an_outage_the_outcome_is_unknown(
    pulsar_process: PulsarServer, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "OUTAGE_S", 1.0)
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
        assert unknown == [True] * 8 + [False] * 4, "what was never sent is certainly not written"
        with pytest.raises(StorageError) as later:
            await append(log, maker.data(("v", b"later")))
        assert not later.value.outcome_unknown
        await log.close()
        log = await backend.open("p", incarnation=INCARNATION, term=2)
        found = await sequences(log)
        assert found[0] == (acked, 1, 0)
        assert [number for _, _, number in found] == list(range(len(found)))
        assert len(found) <= 9, "what was said not to be written is not in the log"
        await append(log, FrameMaker(2).term_start(1, found[-1][2]))
        await log.close()
    finally:
        await backend.close()
