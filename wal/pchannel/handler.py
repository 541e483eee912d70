"""Handlers: what a scanner that runs by itself hands its messages to, and the actor that runs it.

A scanner without a handler is driven by its consumer's own task; with one it owns a task, and this is it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from actors import Actor
from wal.message import ImmutableMessage

if TYPE_CHECKING:
    from wal.pchannel.scanner import Scanner

__all__ = ["Handler", "HandlerActor", "MessageHandler", "check_handler"]


@runtime_checkable
class MessageHandler(Protocol):
    """A handler as an object: `handle` for each message (sync or async), `close` once when the scanner ends."""

    def handle(self, message: ImmutableMessage) -> Awaitable[None] | None: ...

    def close(self) -> Awaitable[None] | None: ...


Handler = Callable[[ImmutableMessage], Any] | MessageHandler


class HandlerActor(Actor):
    """Runs a scanner for its handler: the only scanner that owns a task."""

    def __init__(self, scanner: Scanner, handler: Handler) -> None:
        self._scanner = scanner
        self._handler = handler
        self._task: asyncio.Task[object] | None = None

    @property
    def inside(self) -> bool:
        """Whether the caller is the handler itself."""
        return self._task is not None and asyncio.current_task() is self._task

    async def receive(self, batch: list[Any]) -> None:
        """Its only message: run until the scanner ends, then close the handler, once."""
        self._task = asyncio.current_task()
        scanner, handler = self._scanner, self._handler
        handle = handler.handle if isinstance(handler, MessageHandler) else handler
        try:
            async for message in scanner:
                answer = handle(message)
                if inspect.isawaitable(answer):
                    await answer
        except asyncio.CancelledError:
            scanner._finish(scanner._pchannel.tail.failure)  # by whoever closes the scanner, or the whole log
            raise
        except BaseException as error:
            scanner._finish(error)
        finally:
            self.ref.stop_nowait()
            if isinstance(handler, MessageHandler):
                try:
                    answer = handler.close()
                    if inspect.isawaitable(answer):
                        await answer
                except Exception as error:
                    if scanner._error is None:
                        scanner._error = error
            scanner._completed()


def check_handler(handler: object) -> None:
    """TypeError unless it is a callable or has `handle` and `close`."""
    if handler is not None and not isinstance(handler, MessageHandler) and not callable(handler):
        raise TypeError(f"handler must be a callable, or an object with handle and close, not {type(handler).__name__}")
