"""Draining: the end of a node. New calls are refused, streams are asked to end, and calls under way are waited for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import grpc
import grpc.aio

from wal.errors import ClosedError, WALError
from wal.rpc.codes import abort
from wal.rpc.serving import Behavior, wrapped

_ANSWERED_TO_THE_END: Final = (
    "/grpc.health.v1.Health/",
    "/milvus.proto.streaming.StreamingCoordStateService/",
    "/milvus.proto.streaming.StreamingNodeStateService/",
)
"""The services that say that the node is stopping."""


class Draining(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpcio has no types
    """An interceptor that counts the calls under way. Streams call `on_begin` to be told when they have to end."""

    def __init__(self) -> None:
        self.begun: bool = False
        """Whether the node is stopping."""
        self._callbacks: dict[Callable[[], object], None] = {}
        self.calls: int = 0
        """How many calls are under way."""
        self._idle = asyncio.Event()
        self._idle.set()

    def on_begin(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Calls `callback` when the node begins to stop, at once if it has begun; the returned function takes that back."""
        if self.begun:
            callback()
        self._callbacks[callback] = None
        return lambda: self._callbacks.pop(callback, None)

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """A block that ends with ClosedError when the node begins to stop, in the middle of a wait."""
        task = asyncio.current_task()
        assert task is not None
        forget = self.on_begin(task.cancel)
        try:
            yield
        except asyncio.CancelledError:
            if not self.begun or task.uncancel():  # it was cancelled by another one, perhaps as well
                raise
            raise self.error() from None
        finally:
            forget()

    def begin(self) -> None:
        """Refuses new calls from now on, and asks the streams to end. Idempotent."""
        if not self.begun:
            self.begun = True
            for callback in list(self._callbacks):
                callback()

    async def wait(self, timeout_s: float) -> bool:
        """Returns True when no call is under way, False after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    @staticmethod
    def error() -> WALError:
        """Returns the error of a call that ends because the node does."""
        return ClosedError("the server is being stopped: connect again, to it or to another one")

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        if handler_call_details.method.startswith(_ANSWERED_TO_THE_END):
            return await continuation(handler_call_details)
        if self.begun:
            return _REFUSED
        handler = await continuation(handler_call_details)
        return None if handler is None else wrapped(handler, self._counted)

    async def _counted(self, behavior: Behavior, request: Any, context: Any) -> Any:
        with self._under_way():
            return await behavior(request, context)

    @contextlib.contextmanager
    def _under_way(self) -> Iterator[None]:
        """A block that is a call under way."""
        self.calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.calls -= 1
            if not self.calls:
                self._idle.set()


async def _refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await abort(context, Draining.error())


_REFUSED: Final = grpc.stream_stream_rpc_method_handler(_refuse)
"""Serves every kind of call: it reads and sends no message."""
