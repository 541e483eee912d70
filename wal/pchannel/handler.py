"""Handlers: what a scanner that runs by itself hands its messages to, and the actor that runs it.

A scanner without a handler is driven by its consumer's own task; with one it owns a task, and this is it. Nobody awaits that task, so it
owns the telling as well: what ends it is logged with its traceback, and raised to whoever leaves the scanner's block without having heard.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from actors import Actor
from wal.errors import ChannelNotExistError, ClosedError
from wal.message import ImmutableMessage, MessageID
from wal.reading import named

if TYPE_CHECKING:
    from wal.pchannel.scanner import Scanner

__all__ = ["Handler", "HandlerActor", "MessageHandler", "check_handler"]

_log: Final = logging.getLogger("wal.scanner")


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
        self._handling: MessageID | None = None
        self.unheard: BaseException | None = None
        """What ended the scanner, until somebody is told."""

    @property
    def inside(self) -> bool:
        """Whether the caller is the handler itself."""
        return self._task is not None and asyncio.current_task() is self._task

    async def receive(self, batch: list[Any]) -> None:
        """Its only message: run until the scanner ends, then close the handler, once."""
        self._task = task = asyncio.current_task()
        assert task is not None
        scanner, handler = self._scanner, self._handler
        handle = handler.handle if isinstance(handler, MessageHandler) else handler
        try:
            async for message in scanner:
                self._handling = message.message_id
                answer = handle(message)
                if inspect.isawaitable(answer):
                    await answer
                self._handling = None
        except asyncio.CancelledError as error:
            if task.cancelling():  # by whoever closes the scanner, or the whole log
                scanner._finish(scanner._pchannel.tail.failure)
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
            scanner._completed()

    def raise_unheard(self) -> None:
        """Raises what ended the scanner, unless somebody was told."""
        error, self.unheard = self.unheard, None
        if error is not None:
            raise error

    def _ended_by(self, error: BaseException) -> None:
        scanner = self._scanner
        over = scanner._pchannel.tail.failure
        if isinstance(error, ClosedError) and isinstance(over, ClosedError):
            scanner._finish(error)  # whoever closed the log knows
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
            scanner._finish(error)  # whoever dropped the vchannel knows
        else:
            self._keep(error)
            _log.error("%s has ended, and its handler gets nothing more: %s", self._where(), error, exc_info=error)

    def _keep(self, error: BaseException) -> None:
        """The scanner has ended with this error, unless with one before; also when it was just being closed."""
        scanner = self._scanner
        scanner._finish(error)
        if scanner._error is None:
            scanner._error = error
        if self.unheard is None:
            self.unheard = scanner._error

    def _where(self) -> str:
        scanner = self._scanner
        cursor = "no cursor" if scanner._cursor is None else f"cursor {scanner._cursor.key.name!r}"
        return f"the scanner of {named(scanner.vchannels)} ({cursor})"


def check_handler(handler: object) -> None:
    """TypeError unless it is a callable or has `handle` and `close`."""
    if handler is not None and not isinstance(handler, MessageHandler) and not callable(handler):
        raise TypeError(f"handler must be a callable, or an object with handle and close, not {type(handler).__name__}")
