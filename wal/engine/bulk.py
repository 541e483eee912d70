"""Bulk: sends the pieces of an `append_bulk` and collects their results. Every engine cuts its own pieces."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from wal.errors import BulkAppendError, WALError
from wal.message import AppendResult

__all__ = ["bulk_results"]


async def bulk_results(sent: AsyncGenerator[asyncio.Future[Any], None]) -> list[AppendResult]:
    """Sends the pieces one after the other, and returns the results of all messages, in order.

    `sent` sends the next piece and yields its future, whose result is that of one message or an iterable of several. After the first
    failure no more pieces are sent; it is raised as a BulkAppendError, with the results of the messages that are durable. If the caller
    is cancelled, the pieces that were sent are written all the same.
    """
    futures: list[asyncio.Future[Any]] = []
    failure: BaseException | None = None
    settled = 0
    try:
        async with contextlib.aclosing(sent):
            async for future in sent:
                futures.append(future)
                while settled < len(futures) and futures[settled].done() and futures[settled].exception() is None:
                    settled += 1
                if settled < len(futures) and futures[settled].done():
                    break
    except WALError as error:
        failure = error
    except BaseException:
        for future in futures:
            if not future.cancel() and not future.cancelled():
                future.exception()  # retrieved, otherwise the loop reports it
        raise
    results: list[AppendResult] = []
    for outcome in await asyncio.gather(*futures, return_exceptions=True):
        if isinstance(outcome, BaseException):
            failure = failure or outcome
        elif isinstance(outcome, AppendResult):
            results.append(outcome)
        else:
            results += outcome
    if isinstance(failure, WALError):
        raise BulkAppendError.of(failure, results)
    if failure is not None:
        raise failure
    return results
