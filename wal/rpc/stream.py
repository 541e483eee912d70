"""Stream: the client's side of a stream of requests and responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

from wal.errors import ClosedError, WALError
from wal.rpc.answer import explain_end, received

__all__ = ["Stream"]

Request = TypeVar("Request")
Response = TypeVar("Response")


class Stream(Generic[Request, Response]):
    """One stream. One task may write while another reads. `ended` is called with the status that ended it, and the error that it means."""

    def __init__(self, call: Any, what: str, ended: Callable[[grpc.aio.AioRpcError, WALError], None]) -> None:
        self._call = call
        self._what = what
        self._end = ended
        self._cancelled = False

    async def write(self, request: Request) -> None:
        """Sends a request; waits while the other side does not read. Raises the error with which the stream ended."""
        try:
            await self._call.write(request)
        except grpc.aio.AioRpcError as error:
            raise self._explained(error) from error
        except asyncio.InvalidStateError as error:  # the call has ended, or `finish` was called
            raise await self._ended() from error
        except asyncio.CancelledError:
            if not self._is_cancelled():
                raise
            raise self._closed() from None

    async def read(self) -> Response | None:
        """Returns the next response; None when the other side ended the stream well. Raises the error with which it ended."""
        try:
            response = await self._call.read()
            if response is grpc.aio.EOF:
                if await self._call.code() is not grpc.StatusCode.OK:
                    raise await self._ended()
                return None
        except grpc.aio.AioRpcError as error:
            raise self._explained(error) from error
        except asyncio.CancelledError:
            if not self._is_cancelled():
                raise
            raise self._closed() from None
        answer: Response = received(response, self._what, writing=False)
        return answer

    async def finish(self) -> None:
        """Says that no request follows."""
        await self._call.done_writing()

    def cancel(self) -> None:
        """Ends the stream at once."""
        self._cancelled = True
        self._call.cancel()

    def _is_cancelled(self) -> bool:
        """Returns whether it was this stream that was cancelled, and not the task that uses it: gRPC raises CancelledError for both."""
        task = asyncio.current_task()
        return self._cancelled and task is not None and not task.cancelling()

    async def _ended(self) -> WALError:
        """Returns the error with which the call ended."""
        code = await self._call.code()
        if code is grpc.StatusCode.OK or self._cancelled:
            return self._closed()
        metadata = await self._call.trailing_metadata()
        error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, await self._call.details())
        return self._explained(error)

    def _explained(self, error: grpc.aio.AioRpcError) -> WALError:
        self._end(error, explained := explain_end(error, self._what))
        return explained

    def _closed(self) -> ClosedError:
        return ClosedError(f"{self._what}: the stream has ended")
