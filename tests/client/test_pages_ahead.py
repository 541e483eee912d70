"""Pages that the server sends ahead of a reader: which call they come in, and what becomes of them when somebody stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.serve.servers import Serving, serving
from wal import Message, WALAccesser, bridge, open_wal
from wal.client import remote_log
from wal.client.remote_log import RemoteReadableLog
from wal.errors import TruncatedError
from wal.operate.processes.standalone import LogServer
from wal.serve.access import Access
from wal.serve.frame_calls import FrameCalls

MESSAGES = 160
PAYLOAD = bytes(256 * 1024)


class Calls:
    """The calls for frames that a server got, and the pages that it sent in each."""

    def __init__(self) -> None:
        self.pages: list[int] = []


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found, read = Calls(), FrameCalls._read

    async def counted(self: FrameCalls, request: Any, context: object) -> AsyncIterator[Any]:
        number = len(found.pages)
        found.pages.append(0)
        async for page in read(self, request, context):
            found.pages[number] += 1
            yield page

    monkeypatch.setattr(FrameCalls, "_read", counted)
    return found


@pytest.fixture
async def served(calls: Calls) -> AsyncIterator[Serving]:
    """A log of 40 MiB, 55 pages, in memory and in this process."""
    async with serving(pchannels=1) as one, open_wal(f"wal://{one.address}") as log:
        for first in range(0, MESSAGES, 20):
            await log.append_bulk([Message("orders", PAYLOAD, properties={"n": str(n)}) for n in range(first, first + 20)])
        yield one


async def numbers(scanner: Any) -> list[int]:
    return [int(message.properties["n"]) async for message in scanner]


def pages_ahead(log: WALAccesser) -> set[Any]:
    engine: Any = log._lifecycle.engine
    (pchannel,) = engine.pchannels.values()
    assert isinstance(pchannel.log, RemoteReadableLog)
    return pchannel.log._tasks


async def test_reader_that_goes_forward_makes_two_calls(served: Serving, calls: Calls) -> None:
    async with open_wal(f"wal://{served.address}") as log:
        async with log.read("orders", follow=False) as scanner:
            assert await numbers(scanner) == list(range(MESSAGES))
        assert len(calls.pages) == 2, "one for the first page, one for all others"
        assert calls.pages[0] == 1
        assert calls.pages[1] >= 15
        while pages_ahead(log):
            await asyncio.sleep(0)


async def test_reader_without_an_event_loop_makes_two_calls(served: Serving, calls: Calls) -> None:
    def read() -> list[int]:
        with bridge.iterate(f"wal://{served.address}", "orders", follow=False) as messages:
            return [int(message.properties["n"]) for message in messages]

    assert await asyncio.to_thread(read) == list(range(MESSAGES))
    assert len(calls.pages) == 2


async def test_slow_reader_is_not_sent_the_whole_log_and_holds_up_nobody(served: Serving, calls: Calls) -> None:
    async with (
        open_wal(f"wal://{served.address}") as log,
        log.read("orders", follow=False) as slow,
        log.read("orders", follow=False) as quick,
    ):
        read = [int((await anext(slow)).properties["n"]) for _ in range(30)]  # into the tenth page
        while len(calls.pages) < 2 or calls.pages[1] < 2:
            await asyncio.sleep(0)
        assert await numbers(quick) == list(range(MESSAGES))
        # Ten pages were read, three wait in the client, and some 8 MiB in gRPC's windows.
        assert calls.pages[1] < 30, f"of {calls.pages[3]}, and the rest waits until it is read"
        assert read + await numbers(slow) == list(range(MESSAGES))


async def test_cancelled_read_loses_no_page(served: Serving, calls: Calls) -> None:
    found: list[int] = []
    cancelled = 0
    async with open_wal(f"wal://{served.address}") as log, log.read("orders", follow=False) as scanner:
        ended = False
        while not ended:
            task = asyncio.ensure_future(scanner._page())
            for _ in range(len(found) % 7):
                await asyncio.sleep(0)
            if task.cancel():
                cancelled += 1
            try:
                page = await task
            except asyncio.CancelledError:
                page = await scanner._page()
            scanner._hand_over(len(page))
            found += [int(message.properties["n"]) for message in page]
            ended = not page
    assert found == list(range(MESSAGES))
    assert cancelled
    assert len(calls.pages) <= 4, "the pages that were under way were kept for the next read"


async def test_server_that_stops_while_pages_are_under_way(served: Serving, calls: Calls) -> None:
    async with open_wal(f"wal://{served.address}") as log, log.read("orders", follow=False) as scanner:
        read = [int((await anext(scanner)).properties["n"]) for _ in range(30)]
        while len(calls.pages) < 2 or calls.pages[1] < 3:
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await served.node.close(drain_s=60.0)
        again = await LogServer.start(served.log, Access(listen=served.address))
        try:
            assert read + await numbers(scanner) == list(range(MESSAGES))
        finally:
            await again.close(drain_s=1.0)


async def test_pages_that_were_truncated_meanwhile_are_refused(served: Serving) -> None:
    async with open_wal(f"wal://{served.address}") as log:
        async with log.read("orders", follow=False) as scanner:
            messages = [await anext(scanner) for _ in range(30)]
            last = [message async for message in log.read("orders", follow=False)][-1]
            await log.truncate(up_to=last.message_id)
            with pytest.raises(TruncatedError):
                while True:
                    messages.append(await anext(scanner))
        assert len(messages) < MESSAGES - 60


async def test_only_some_readers_get_pages_ahead(served: Serving, calls: Calls) -> None:
    """More readers than that read on all the same."""
    async with open_wal(f"wal://{served.address}") as log:
        scanners = [log.read("orders", follow=False) for _ in range(remote_log.READERS_MAX + 4)]
        read = []
        for steps, scanner in enumerate(scanners):
            await scanner.__aenter__()
            read.append([int((await anext(scanner)).properties["n"]) for _ in range(30 + 8 * steps)])
        while len(pages_ahead(log)) > remote_log.READERS_MAX:
            await asyncio.sleep(0)
        for before, scanner in zip(read, scanners, strict=True):
            assert before + await numbers(scanner) == list(range(MESSAGES))
            await scanner.close()


async def test_closing_the_log_ends_the_pages(served: Serving, calls: Calls) -> None:
    async with open_wal(f"wal://{served.address}") as log, log.read("orders", follow=False) as scanner:
        for _ in range(30):
            await anext(scanner)
        tasks = pages_ahead(log)
        assert tasks
    assert not tasks
