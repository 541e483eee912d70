"""Handlers: the callables or objects that receive the messages of a scanner which runs by itself, and the actor that runs it.

A scanner without a handler is driven by its consumer's own task; with one it owns a task, which is this actor's. No caller awaits that
task, so the actor also reports errors: the error that ends it is logged with its traceback, and raised where the scanner's block is left
unless a caller got it before.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Any, Final, Protocol, runtime_checkable

from actors import Actor
from wal.errors import ChannelNotExistError, ClosedError
from wal.message import ImmutableMessage, MessageID
from wal.pchannel.read_loop import ReadLoop
from wal.reading import named

__all__ = ["Handler", "HandlerActor", "MessageHandler", "check_handler"]

_log: Final = logging.getLogger("wal.scanner")


@runtime_checkable
class MessageHandler(Protocol):
    """A handler as an object: `handle` is called for each message (sync or async), `close` once when the scanner ends."""

    def handle(self, message: ImmutableMessage) -> Awaitable[None] | None: ...

    def close(self) -> Awaitable[None] | None: ...


Handler = Callable[[ImmutableMessage], Any] | MessageHandler


class HandlerActor(Actor):
    """Hands the messages of a scanner, which `loop` reads, to its handler."""

    def __init__(self, messages: AsyncIterable[ImmutableMessage], loop: ReadLoop, handler: Handler) -> None:
        self._messages = messages
        self._loop = loop
        self._handler = handler
        self._task: asyncio.Task[object] | None = None
        self._handling: MessageID | None = None
        self.untold: BaseException | None = None
        """The error that ended the scanner, until a caller gets it."""

    @property
    def inside(self) -> bool:
        """Whether the caller is the handler itself."""
        return self._task is not None and asyncio.current_task() is self._task

    async def receive(self, batch: list[Any]) -> None:
        """Runs until the scanner ends, then closes the handler; its only message starts it."""
        self._task = task = asyncio.current_task()
        assert task is not None
        loop, handler = self._loop, self._handler
        handle = handler.handle if isinstance(handler, MessageHandler) else handler
        try:
            async for message in self._messages:
                self._handling = message.message_id
                answer = handle(message)
                if inspect.isawaitable(answer):
                    await answer
                self._handling = None
        except asyncio.CancelledError as error:
            if task.cancelling():  # the scanner, or the whole log, is being closed
                loop.finish(loop.pchannel.tail.failure)
                raise
            self._ended_by(error)
        except BaseException as error:
            self._ended_by(error)
        finally:
            self.ref.stop_nowait()
            if isinstance(handler, MessageHandler):
                try:
                    answer = handler.close()
                    if inspect.isawaitable(answer):
                        await answer
                except Exception as error:
                    self._keep(error)
                    _log.error("the handler of %s failed when it was closed: %r", self._where(), error, exc_info=error)
            loop.completed()

    def raise_untold(self) -> None:
        """Raises the error that ended the scanner, unless a caller got it before."""
        error, self.untold = self.untold, None
        if error is not None:
            raise error

    def _ended_by(self, error: BaseException) -> None:
        if isinstance(error, ClosedError) and isinstance(self._loop.pchannel.tail.failure, ClosedError):
            self._loop.finish(error)  # the caller that closed the log knows
        elif self._handling is not None:
            self._keep(error)
            _log.error(
                "the handler of %s failed at message %s, and the scanner has ended: %r",
                self._where(),
                self._handling,
                error,
                exc_info=error,
            )
        elif isinstance(error, ChannelNotExistError):
            self._loop.finish(error)  # the caller that dropped the vchannel knows
        else:
            self._keep(error)
            _log.error("%s has ended, and its handler receives nothing more: %s", self._where(), error, exc_info=error)

    def _keep(self, error: BaseException) -> None:
        """Ends the scanner with this error, unless it ended with one before; even if it was being closed cleanly."""
        loop = self._loop
        loop.finish(error)
        if loop.error is None:
            loop.error = error
        if self.untold is None:
            self.untold = loop.error

    def _where(self) -> str:
        cursor = "no cursor" if self._loop.cursor is None else f"cursor {self._loop.cursor.key.name!r}"
        return f"the scanner of {named(self._loop.vchannels)} ({cursor})"


def check_handler(handler: object) -> None:
    """Raises a TypeError unless the handler is a callable or has `handle` and `close`."""
    if handler is not None and not isinstance(handler, MessageHandler) and not callable(handler):
        raise TypeError(f"handler must be a callable, or an object with handle and close, not {type(handler).__name__}")
