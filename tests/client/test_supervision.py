"""What a client lives by: outages longer than any deadline, and defects in each of its tasks."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.outages.proxy import Proxy
from tests.rpc.server import until
from tests.serve.servers import Serving, child
from wal import Message, WALAccesser, bridge, open_wal
from wal.api.append_options import append_all
from wal.client import producer
from wal.client.directory import ShownVChannels
from wal.client.log import RemoteLog
from wal.client.nodes import Nodes
from wal.client.remote_pchannel import RemotePChannel
from wal.client.supervision import DEFECTS_MAX
from wal.errors import UnknownError, UnknownOutcomeError, WALError
from wal.network import Endpoints
from wal.requests.vchannels import CreateVChannel


def engine(log: WALAccesser) -> RemoteLog:
    remote = log._lifecycle.engine
    assert isinstance(remote, RemoteLog)
    return remote


@pytest.fixture
async def proxy(served: Serving) -> AsyncIterator[Proxy]:
    async with Proxy(int(served.address.rpartition(":")[2])) as one:
        yield one


# -- outages


async def test_callers_share_reasons(served: Serving) -> None:
    """Callers that ask in the same turn as an answer arrives begin the next question; the others still get their answer."""
    async with open_wal(f"wal://{served.address}") as log:
        endpoints: Endpoints = engine(log)._connection._endpoints

        async def ask(pauses: int) -> None:
            for _ in range(20):
                assert await endpoints.why() == [f"{served.address} is connected"]
                for _ in range(pauses):
                    await asyncio.sleep(0)

        await asyncio.gather(*(ask(pauses) for pauses in (0, 0, 1, 2, 3)))


@pytest.mark.parametrize("outage", ["frozen", "cut"])
async def test_client_outlives_long_outage(
    outage: str, data_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Readers, producers, the watch of vchannels and the assignments continue, after all of them have passed their deadlines. Whenever they
    get the reason for the missing server, another call of this client asks in the same turn of the loop.
    """
    # The deadline of a call in these tests, 10 s otherwise: an outage is longer than several of them.
    TIMEOUT_S = 0.2
    names = ("orders", "returns", "bills", "stock")
    questions: list[asyncio.Future[list[str]]] = []
    ask_all = Endpoints._ask_all

    async with (
        child(data_dir, "--pchannels", "4") as server,
        Proxy(int(server.address.rpartition(":")[2])) as proxy,
        open_wal(f"wal://{server.address}") as direct,
    ):

        async def asked(endpoints: Endpoints) -> list[str]:
            reasons = await ask_all(endpoints)
            if endpoints.addresses == (proxy.address,):  # and not a client that an earlier test left in its thread
                questions.append(asyncio.ensure_future(endpoints.why()))
            return reasons

        monkeypatch.setattr(Endpoints, "_ask_all", asked)
        async with open_wal(f"wal://{proxy.address}") as log:
            for number, name in enumerate(names):
                await log.create_vchannel(name, pchannel=f"p{number}")
                await log.raw_append(Message(name, b"before"))
            scanners = [log.read(name) for name in names]
            for scanner in scanners:
                assert (await anext(scanner)).payload == b"before"
            follows = [asyncio.ensure_future(anext(scanner)) for scanner in scanners]
            connection = engine(log)._connection
            usual_s, connection.timeout_s = connection.timeout_s, TIMEOUT_S
            if outage == "frozen":
                server.process.send_signal(signal.SIGSTOP)
                proxy.cut()
            else:
                proxy.refusing = True
                proxy.cut()
            keyed = [log.append_nowait(Message(name, b"after"), idempotency_key=name) for name in names]
            await until(lambda: len(questions) >= (3 if outage == "frozen" else 8))
            monkeypatch.setattr(Endpoints, "_ask_all", ask_all)
            proxy.refusing = False
            server.process.send_signal(signal.SIGCONT)
            connection.timeout_s = usual_s
            async with asyncio.timeout(60):
                await asyncio.gather(*keyed)
                assert [message.payload for message in await asyncio.gather(*follows)] == [b"after"] * len(names)
                await direct.create_vchannel("later")
                while "later" not in engine(log).vchannels.records:
                    await asyncio.sleep(0.01)
            nodes = engine(log)._nodes
            await until(lambda: nodes._stream is not None)
            assert engine(log).supervision.failure is None
            await asyncio.gather(*questions)
            for scanner in scanners:
                await scanner.close()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


# -- defects


class Defect(Exception):
    """An exception that no code expects."""


TASKS: Final[dict[str, tuple[type[Any], str]]] = {
    "assignments": (Nodes, "_take"),
    "vchannels": (ShownVChannels, "replace"),
    "follow": (RemotePChannel, "show_snapshot"),
}
"""A method that each task which follows a server calls when its stream begins."""


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, task: str, kind: type[BaseException], times: int) -> Iterator[Callable[[], bool]]:
    """Makes the task fail so often; yields whether it has done its work since."""
    owner, name = TASKS[task]
    work = getattr(owner, name)
    calls = 0

    def fail_first(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls <= times:
            raise kind("injected")
        return work(*args)

    monkeypatch.setattr(owner, name, fail_first)
    yield lambda: calls > times
    monkeypatch.setattr(owner, name, work)


@pytest.mark.parametrize("kind", [Defect, asyncio.CancelledError])
@pytest.mark.parametrize("task", TASKS)
async def test_following_task_starts_anew(
    task: str, kind: type[BaseException], proxy: Proxy, served: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_wal(f"wal://{proxy.address}") as log, log.read("orders") as scanner:
        await log.raw_append(Message("orders", b"1"))
        assert (await anext(scanner)).payload == b"1"
        with failing(monkeypatch, task, kind, 2) as works:
            proxy.cut()
            await until(works)
        assert len([record for record in caplog.records if "started anew" in record.message]) == 2
        assert all(record.exc_info for record in caplog.records if record.levelno >= logging.ERROR)
        await served.log.submit(CreateVChannel("later"))
        await until(lambda: "later" in engine(log).vchannels.records)
        await log.raw_append(Message("orders", b"2"))
        async with asyncio.timeout(60):
            assert (await anext(scanner)).payload == b"2"


async def assert_ended(log: WALAccesser, cause: type[BaseException]) -> None:
    """Asserts that calls of every kind raise the same error, whose cause is the defect."""
    calls = (
        lambda: log.raw_append(Message("orders", b"x")),
        lambda: log.raw_append(Message("unknown", b"x")),
        lambda: log.append_txn("orders", [b"x"]),
        lambda: log.vchannels(),
        lambda: log.cursors(),
        lambda: log.allocate_time_tick(),
        lambda: anext(log.read("orders")),
        lambda: log.broadcast().tasks(),
    )
    for call in calls:
        with pytest.raises(UnknownError, match="please report it") as caught:
            async with asyncio.timeout(60):
                await call()
        assert isinstance(caught.value.__cause__, cause)
    with pytest.raises(UnknownError, match="please report it"):
        log.append_nowait(Message("orders", b"x"))


@pytest.mark.parametrize("kind", [Defect, asyncio.CancelledError])
@pytest.mark.parametrize("task", TASKS)
async def test_lasting_defect_ends_client(
    task: str, kind: type[BaseException], proxy: Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_wal(f"wal://{proxy.address}") as log, log.read("orders") as scanner:
        await log.raw_append(Message("orders", b"1"))
        await anext(scanner)
        with failing(monkeypatch, task, kind, DEFECTS_MAX):
            proxy.cut()
            with pytest.raises(UnknownError, match="please report it") as caught:
                async with asyncio.timeout(60):
                    await anext(scanner)
            assert isinstance(caught.value.__cause__, kind)
            await assert_ended(log, kind)
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == DEFECTS_MAX


@pytest.mark.parametrize("kind", [Defect, asyncio.CancelledError])
async def test_producer_defect_ends_client(
    kind: type[BaseException], served: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was sent has an unknown outcome; nothing that waits is left without one."""

    def fail(_outcomes: object) -> Any:
        raise kind("injected")

    async with open_wal(f"wal://{served.address}") as log, log.read("orders") as scanner:
        await log.raw_append(Message("orders", b"1"))
        await anext(scanner)
        monkeypatch.setattr(producer, "outcomes_from_proto", fail)
        sent = [log.append_nowait(Message(name, b"2")) for name in ("orders", "orders", "elsewhere")]
        with pytest.raises(UnknownOutcomeError):
            await sent[0]
        for error in await asyncio.gather(*sent, return_exceptions=True):
            assert isinstance(error, WALError)
        with pytest.raises(UnknownError):
            async with asyncio.timeout(60):
                while True:
                    await anext(scanner)
        await assert_ended(log, kind)
        assert log.statistics().bytes_in_flight == 0
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1


async def test_write_defect_ends_client(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write of the tick that a reader waits for is a task of its own."""

    async def fail(*_: object) -> None:
        raise Defect("injected")

    monkeypatch.setattr("wal.rpc.connection.Stream.write_if_open", fail)
    async with open_wal(f"wal://{served.address}") as log, log.read("orders") as scanner:
        await log.raw_append(Message("orders", b"1"))
        await anext(scanner)
        reading = asyncio.ensure_future(anext(scanner))
        with pytest.raises(UnknownError, match="await a tick"):
            async with asyncio.timeout(60):
                await scanner.wait_for((await log.allocate_time_tick()) + (1 << 40))
        with pytest.raises(UnknownError):
            await reading
        await assert_ended(log, Defect)


class Iteration:
    """A blocking reader in threads: its calls block."""

    def __init__(self, location: str, vchannel: str = "orders") -> None:
        self._messages = bridge.iterate(location, vchannel)

    async def __aenter__(self) -> Iteration:
        await asyncio.to_thread(self._messages.__enter__)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._messages.close)

    async def next(self) -> bytes:
        async with asyncio.timeout(60):
            return (await asyncio.to_thread(next, self._messages)).payload


@pytest.mark.parametrize("task", TASKS)
async def test_blocking_client_ends(task: str, proxy: Proxy, served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    await append_all(served.log.appends, [Message("orders", b"1")])
    async with Iteration(f"wal://{proxy.address}") as messages:
        assert await messages.next() == b"1"
        with failing(monkeypatch, task, Defect, len(served.log.node.pchannels) * DEFECTS_MAX):
            proxy.cut()
            with pytest.raises(UnknownError, match="please report it"):
                await messages.next()


async def test_blocking_client_goes_on(proxy: Proxy, served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    await append_all(served.log.appends, [Message("orders", b"1")])
    async with Iteration(f"wal://{proxy.address}") as messages:
        assert await messages.next() == b"1"
        with failing(monkeypatch, "follow", Defect, 2) as works:
            proxy.cut()
            await until(works)
        await append_all(served.log.appends, [Message("orders", b"2")])
        assert await messages.next() == b"2"
