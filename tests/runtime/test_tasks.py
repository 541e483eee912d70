"""`unless`: an awaitable ends with its result, with its error, or with the event that is set before."""

from __future__ import annotations

import asyncio

import pytest

from wal.runtime.tasks import unless


async def test_event_ends_the_wait() -> None:
    event = asyncio.Event()
    assert await unless(event, asyncio.sleep(0, "result")) == "result"
    work = asyncio.ensure_future(asyncio.Event().wait())
    waiting = asyncio.ensure_future(unless(event, work))
    await asyncio.sleep(0)
    event.set()
    assert await waiting is None
    assert work.cancelled()


async def test_cancellation_of_the_work_is_no_event() -> None:
    """Otherwise a consumer whose read was cancelled would end as if it had been closed."""
    work = asyncio.ensure_future(asyncio.Event().wait())
    waiting = asyncio.ensure_future(unless(asyncio.Event(), work))
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
