"""The lifespan of an ASGI application that has a log and consumers: for Starlette, FastAPI and other frameworks that take one.

Owns the log and the tasks of the consumers, from the start of the application to its end. The order is that of nested blocks: the log opens
first and closes last; consumers start before the first request, and are drained after the last one. The module imports no framework.

A consumer that an error ends would leave an application that looks healthy and handles nothing. So its error stops the server by SIGTERM,
as a supervisor does it, and the lifespan raises the error at its end; the supervisor starts the service again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Unpack

from wal.api.opening import open_wal
from wal.settings import Settings, SettingsOverrides

if TYPE_CHECKING:
    from wal.api.accesser import WALAccesser
    from wal.consumers.consumer import Consumer

__all__ = ["lifespan"]


def lifespan(
    location: str | os.PathLike[str],
    consumers: Callable[[WALAccesser], Consumer | Iterable[Consumer]] = lambda log: (),
    *,
    stop_on_error: bool = True,
    settings: Settings | None = None,
    **overrides: Unpack[SettingsOverrides],
) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """Returns the lifespan of an application, as in `FastAPI(lifespan=lifespan("data/", consumers))`.

    While the application runs, `app.state.log` is the open log, and the consumers run that `consumers(log)` returned: one, or several. At
    the end they are drained, then the log is closed. An error that ends a consumer stops the server by SIGTERM to this process, and the
    lifespan raises the error at its end; several errors are an ExceptionGroup. With `stop_on_error=False` the application continues without
    that consumer, which stays in `app.state.log.consumers()` with its error. The other arguments are those of `open_wal`; wrong ones raise
    here.
    """
    opening = open_wal(location, settings=settings, **overrides)

    @contextlib.asynccontextmanager
    async def application(app: Any) -> AsyncIterator[None]:
        async with opening.again() as log:
            app.state.log = log
            returned = consumers(log)
            running = _RunningConsumers(returned if isinstance(returned, Iterable) else (returned,), stops=stop_on_error)
            try:
                yield
            finally:
                errors = await running.close()
        if errors and stop_on_error:
            raise errors[0] if len(errors) == 1 else BaseExceptionGroup("consumers have ended with errors", errors)

    return application


class _RunningConsumers:
    """The consumers of one application, each with the task that runs it."""

    def __init__(self, consumers: Iterable[Consumer], *, stops: bool) -> None:
        self._stops = stops
        self._closing = False
        self._tasks = {consumer: asyncio.ensure_future(consumer.run()) for consumer in consumers}
        for task in self._tasks.values():
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[None]) -> None:
        if self._stops and not self._closing and not task.cancelled() and task.exception() is not None:
            os.kill(os.getpid(), signal.SIGTERM)

    async def close(self) -> list[BaseException]:
        """Drains the consumers, and returns the errors that ended some of them."""
        self._closing = True
        await asyncio.gather(*(consumer.close() for consumer in self._tasks))
        outcomes = await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        return [outcome for outcome in outcomes if outcome is not None]
