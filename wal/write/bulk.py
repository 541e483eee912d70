"""Bulk: sends many messages in pieces, which every engine cuts in its own way, and collects their outcomes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from wal.errors import BulkAppendError, IgnoredOperationError, WALError
from wal.message import AppendResult, Message

Piece = tuple[asyncio.Future[Any], int]
"""The future of consecutive messages and their number. Its result is that of one message, or an iterable of the results of several."""


async def bulk_results(messages: Sequence[Message], sent: AsyncGenerator[Piece, None]) -> list[AppendResult]:
    """Sends the pieces one after the other, and returns the results of all messages, in order.

    `sent` sends the next piece and yields it. After the first failure no more pieces are sent; it raises a BulkAppendError with the
    outcomes of all messages. Its cause is the failure of the first message that is not known to be durable. If the caller is cancelled,
    the pieces that were sent are written all the same.
    """
    pieces: list[Piece] = []
    refusal: WALError | None = None
    settled = 0
    try:
        async with contextlib.aclosing(sent):
            async for piece in sent:
                pieces.append(piece)
                while settled < len(pieces) and (done := pieces[settled][0]).done() and done.exception() is None:
                    settled += 1
                if settled < len(pieces) and pieces[settled][0].done():
                    break
    except WALError as error:
        refusal = error
    except BaseException:
        for future, _ in pieces:
            if not future.cancel() and not future.cancelled():
                future.exception()  # retrieved, otherwise the loop reports it
        raise
    outcomes: list[AppendResult | WALError] = []
    settlements = await asyncio.gather(*(future for future, _ in pieces), return_exceptions=True)
    for settlement, (_, count) in zip(settlements, pieces, strict=True):
        if isinstance(settlement, WALError):
            outcomes += [settlement] * count
        elif isinstance(settlement, BaseException):
            raise settlement
        elif isinstance(settlement, AppendResult):
            outcomes.append(settlement)
        else:
            outcomes += settlement
    if refusal is not None:
        outcomes.append(refusal)
    results = [outcome for outcome in outcomes if not isinstance(outcome, WALError)]
    if len(results) == len(messages):
        return results
    cause = next(outcome for outcome in outcomes if isinstance(outcome, WALError))
    unsent = IgnoredOperationError(f"the message was not sent, because an earlier one of its bulk failed: {cause}")
    outcomes += [unsent] * (len(messages) - len(outcomes))
    raise BulkAppendError.of(cause, outcomes, messages)
