"""Readers that want the same page at the same time: one of them asks the server, and what becomes of the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.serve.servers import Serving, serving
from wal import Latest, Message, WALAccesser
from wal.serve.frame_calls import FrameCalls


class Calls:
    """The calls for frames that a server got: where each began. A call waits while `gate` is closed."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found, read = Calls(), FrameCalls._read

    async def counted(self: FrameCalls, request: Any, context: object) -> AsyncIterator[Any]:
        found.starts.append(request.start.low)
        await found.gate.wait()
        async for page in read(self, request, context):
            yield page

    monkeypatch.setattr(FrameCalls, "_read", counted)
    return found


@pytest.fixture
async def served(calls: Calls) -> AsyncIterator[Serving]:
    async with serving(pchannels=1) as one:
        yield one


async def test_readers_at_the_tail_ask_once(log: WALAccesser, calls: Calls) -> None:
    readers = 20
    await log.create_vchannel("orders")
    scanners = [log.read("orders", deliver_policy=Latest()) for _ in range(readers)]
    for scanner in scanners:
        await scanner.__aenter__()
    calls.starts.clear()
    for number in range(10):
        waiting = [asyncio.ensure_future(anext(scanner)) for scanner in scanners]
        await asyncio.sleep(0)
        await log.raw_append(Message("orders", b"%d" % number))
        assert {message.payload for message in await asyncio.gather(*waiting)} == {b"%d" % number}
    assert len(calls.starts) >= 10
    assert len(calls.starts) == len(set(calls.starts)), "no page was asked for twice"
    for scanner in scanners:
        await scanner.close()


async def test_cancelled_reader_takes_no_page_from_the_others(log: WALAccesser, calls: Calls) -> None:
    for number in range(3):
        await log.raw_append(Message("orders", b"%d" % number))
    async with log.read("orders", follow=False) as first, log.read("orders", follow=False) as second:
        calls.starts.clear()
        calls.gate.clear()
        asked = asyncio.ensure_future(anext(first))
        shares = asyncio.ensure_future(anext(second))
        while not calls.starts:
            await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        calls.gate.set()
        assert (await shares).payload == b"0"
        assert [message.payload async for message in second] == [b"1", b"2"]
        assert [message.payload async for message in first] == [b"0", b"1", b"2"]
