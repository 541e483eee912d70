"""The results of a bulk append and its first failure, whichever engine sends the pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from types import MappingProxyType
from typing import Any, Final

import pytest

from wal.errors import BulkAppendError, IgnoredOperationError, NoSpaceError, StorageError
from wal.message import AppendResult, Message, MessageID
from wal.write.bulk import Piece, bulk_results

MESSAGES: Final = [Message("orders", b"%d" % number) for number in range(1, 1001)]


def result(number: int) -> AppendResult:
    message_id = MessageID("p0", 1, number, 0)
    return AppendResult(message_id, number, message_id)


class Sender:
    """Sends pieces whose futures the test resolves; before the piece `waits_at` it waits for room that never comes."""

    def __init__(
        self, count: int, *, waits_at: int | None = None, fails_at: int | None = None, sizes: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        """A piece has one message, or the number in `sizes`."""
        self.sent: list[asyncio.Future[Any]] = []
        self.waiting = asyncio.Event()
        self._count, self._waits_at, self._fails_at, self._sizes = count, waits_at, fails_at, sizes

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        for number in range(self._count):
            if number == self._waits_at:
                self.waiting.set()
                await asyncio.Event().wait()
            if number == self._fails_at:
                raise StorageError("no piece is taken any more")
            self.sent.append(asyncio.get_running_loop().create_future())
            yield self.sent[-1], self._sizes.get(number, 1)
            await asyncio.sleep(0)


async def test_results_are_in_order_whatever_their_pieces() -> None:
    sender = Sender(3, sizes={1: 2})
    bulk = asyncio.ensure_future(bulk_results(MESSAGES[:4], sender.pieces()))
    while len(sender.sent) < 3:
        await asyncio.sleep(0)
    for future, outcome in zip(sender.sent[::-1], (result(4), [result(2), result(3)], result(1)), strict=True):
        future.set_result(outcome)
    assert await bulk == [result(1), result(2), result(3), result(4)]


async def test_nothing_is_sent_after_the_first_failure() -> None:
    sender = Sender(1000)
    bulk = asyncio.ensure_future(bulk_results(MESSAGES, sender.pieces()))
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
    error = raised.value
    assert isinstance(error, BulkAppendError)
    assert error.results == (result(1),)
    assert error.outcomes[0::2][:2] == (result(1), result(3))
    assert [str(outcome) for outcome in error.outcomes[3:sent]] == ["still full"] * (sent - 3)
    assert len(error.outcomes) == 1000
    for outcome in error.outcomes[sent:]:
        assert isinstance(outcome, IgnoredOperationError)
        assert "was not sent, because an earlier one of its bulk failed: the disk is full" in str(outcome)
    assert error.remaining == (MESSAGES[1], *MESSAGES[3:])
    assert sent < 10


async def test_failed_piece_fails_its_messages() -> None:
    sender = Sender(3, sizes={0: 2, 1: 3})
    bulk = asyncio.ensure_future(bulk_results(MESSAGES[:6], sender.pieces()))
    while len(sender.sent) < 3:
        await asyncio.sleep(0)
    unknown = StorageError("the disk is gone", outcome_unknown=True)
    sender.sent[0].set_result([result(1), result(2)])
    sender.sent[1].set_exception(unknown)
    sender.sent[2].set_result(result(6))
    with pytest.raises(BulkAppendError) as raised:
        await bulk
    assert raised.value.results == (result(1), result(2))
    assert raised.value.outcomes == (result(1), result(2), unknown, unknown, unknown, result(6))
    assert raised.value.remaining == tuple(MESSAGES[2:5])
    assert raised.value.outcome_unknown


async def test_unknown_outcome_after_cause_counts() -> None:
    """The first failure is the cause; a later message may be in the log all the same."""
    sender = Sender(2)
    bulk = asyncio.ensure_future(bulk_results(MESSAGES[:2], sender.pieces()))
    while len(sender.sent) < 2:
        await asyncio.sleep(0)
    sender.sent[0].set_exception(NoSpaceError("the disk is full"))
    sender.sent[1].set_exception(StorageError("the disk is gone", outcome_unknown=True))
    with pytest.raises(NoSpaceError) as raised:
        await bulk
    assert raised.value.outcome_unknown
    assert raised.value.__cause__ is not None
    assert not raised.value.__cause__.outcome_unknown  # type: ignore[attr-defined]


async def test_unsendable_piece_waits_for_earlier_ones() -> None:
    sender = Sender(3, fails_at=2)
    bulk = asyncio.ensure_future(bulk_results(MESSAGES[:3], sender.pieces()))
    while len(sender.sent) < 2:
        await asyncio.sleep(0)
    sender.sent[0].set_result(result(1))
    sender.sent[1].set_result(result(2))
    with pytest.raises(StorageError) as raised:
        await bulk
    assert isinstance(raised.value, BulkAppendError)
    assert raised.value.results == (result(1), result(2))
    assert raised.value.outcomes[2] is raised.value.__cause__
    assert raised.value.remaining == (MESSAGES[2],)


@pytest.mark.parametrize("failed", ["before the cancellation", "after it"])
async def test_cancelled_caller_reports_no_lost_failure(failed: str) -> None:
    sender = Sender(3, waits_at=2)
    bulk = asyncio.ensure_future(bulk_results(MESSAGES[:3], sender.pieces()))
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
