"""The results of a bulk append and its first failure, whichever engine sends the pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from wal.engine.bulk import bulk_results
from wal.errors import BulkAppendError, NoSpaceError, StorageError
from wal.message import AppendResult, MessageID


def result(number: int) -> AppendResult:
    message_id = MessageID("p0", 1, number, 0)
    return AppendResult(message_id, number, message_id)


class Sender:
    """Sends pieces whose futures the test resolves; before the piece `waits_at` it waits for room that never comes."""

    def __init__(self, count: int, *, waits_at: int | None = None, fails_at: int | None = None) -> None:
        self.sent: list[asyncio.Future[Any]] = []
        self.waiting = asyncio.Event()
        self._count, self._waits_at, self._fails_at = count, waits_at, fails_at

    async def pieces(self) -> AsyncGenerator[asyncio.Future[Any], None]:
        for number in range(self._count):
            if number == self._waits_at:
                self.waiting.set()
                await asyncio.Event().wait()
            if number == self._fails_at:
                raise StorageError("no piece is taken any more")
            self.sent.append(asyncio.get_running_loop().create_future())
            yield self.sent[-1]
            await asyncio.sleep(0)


async def test_results_are_in_order_whatever_their_pieces() -> None:
    sender = Sender(3)
    bulk = asyncio.ensure_future(bulk_results(sender.pieces()))
    while len(sender.sent) < 3:
        await asyncio.sleep(0)
    for future, outcome in zip(sender.sent[::-1], (result(4), [result(2), result(3)], result(1)), strict=True):
        future.set_result(outcome)
    assert await bulk == [result(1), result(2), result(3), result(4)]


async def test_nothing_is_sent_after_the_first_failure() -> None:
    sender = Sender(1000)
    bulk = asyncio.ensure_future(bulk_results(sender.pieces()))
    while len(sender.sent) < 3:
        await asyncio.sleep(0)
    sender.sent[0].set_result(result(1))
    sender.sent[1].set_exception(NoSpaceError("the disk is full"))
    sender.sent[2].set_result(result(3))
    for _ in range(10):
        await asyncio.sleep(0)
    sent = len(sender.sent)
    for future in sender.sent[3:]:
        future.set_exception(NoSpaceError("still full"))
    with pytest.raises(NoSpaceError, match="the disk is full") as raised:
        await bulk
    assert isinstance(raised.value, BulkAppendError)
    assert raised.value.results == (result(1), result(3))
    assert sent < 10


async def test_a_piece_that_cannot_be_sent_waits_for_those_before_it() -> None:
    sender = Sender(3, fails_at=2)
    bulk = asyncio.ensure_future(bulk_results(sender.pieces()))
    while len(sender.sent) < 2:
        await asyncio.sleep(0)
    sender.sent[0].set_result(result(1))
    sender.sent[1].set_result(result(2))
    with pytest.raises(StorageError) as raised:
        await bulk
    assert isinstance(raised.value, BulkAppendError)
    assert raised.value.results == (result(1), result(2))


@pytest.mark.parametrize("failed", ["before the cancellation", "after it"])
async def test_no_failure_is_reported_as_lost_when_the_caller_is_cancelled(failed: str) -> None:
    sender = Sender(3, waits_at=2)
    bulk = asyncio.ensure_future(bulk_results(sender.pieces()))
    await sender.waiting.wait()
    if failed == "before the cancellation":
        sender.sent[0].set_exception(NoSpaceError("the disk is full"))
    bulk.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bulk
    for future in sender.sent:
        if not future.done():
            future.set_exception(NoSpaceError("the disk is full"))
    assert [future._log_traceback for future in sender.sent] == [False, False]
