"""Requests: the requests of a stream, of which none is handed out any more once the node is stopping.

What comes then is read and forgotten until the client ends its stream: in gRPC for Python a client that is writing when its stream ends
gets an internal error, and not what it has not read yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc.aio

__all__ = ["Requests"]


class Requests:
    """The requests that `context` receives. One task calls `next`. `on_change` is called when `begin_no_more` may have become true."""

    def __init__(self, context: Any, on_change: Callable[[], None]) -> None:
        self.stopped: bool = False
        """Whether the node is stopping."""
        self._read = context.read
        self._waits = False
        self._on_change = on_change

    @property
    def begin_no_more(self) -> bool:
        """Whether no request is executed, and none will be handed out to be."""
        return self.stopped and self._waits

    async def next(self) -> Any:
        """Returns the next request, or EOF; once the node is stopping only the one with which the client ends the stream."""
        self._waits = True
        if self.stopped:
            self._on_change()
        request = await self._read()
        while self.stopped and request is not grpc.aio.EOF and not request.HasField("close"):
            request = await self._read()
        self._waits = self.stopped
        return request

    def stop(self) -> None:
        """Says that the node is stopping."""
        self.stopped = True
        self._on_change()
