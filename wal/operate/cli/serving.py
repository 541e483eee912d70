"""The work of a command that serves: it opens a process and serves until a signal, or until the process fails.

Everything that can be checked without opening anything is checked first, so that no file is created in vain: the credentials of clients,
the files of TLS, the packages, the port.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol

from wal.errors import InvalidArgumentError, WALError
from wal.operate.cli.commands import EXIT_SIGNALLED
from wal.operate.cli.output import stopped_by_signals
from wal.rpc.serving import check_free
from wal.runtime.installation import Needed
from wal.runtime.threads import in_thread
from wal.serve.access import Access
from wal.serve.process import raise_limit
from wal.serve.server import Server

if TYPE_CHECKING:
    from wal.operate.metrics.snapshot import SnapshotSource

EXIT_FAILED: Final = 3
"""The exit code of a server that has failed and recovers at its next start."""
_log: Final = logging.getLogger("wal.node")


class Served(Protocol):
    """A process that serves."""

    @property
    def server(self) -> Server: ...

    async def failed(self) -> WALError:
        """Returns the reason once the process can no longer serve."""

    def measured(self) -> SnapshotSource:
        """Returns the source of its metrics."""

    async def close(self) -> None:
        """Finishes running work, and releases everything."""


Page = Callable[[Any, Access], AbstractAsyncContextManager[str]]
"""Serves the status page of a process; the context yields its address."""


async def serve(
    opened: Callable[[Access], Awaitable[Served]], access_now: Callable[[], Access], what: str, *, page: Page | None = None
) -> int:
    """Opens `what` and serves it until a signal, or until it fails; returns the exit code. A signal during the opening takes effect after
    it.

    `access_now` reads the access options of the server. SIGHUP calls it again, for new tokens and files of TLS. Raises the error of the
    options, of a file of TLS, of the port, of the opening, or of the closing.
    """
    raise_limit()
    loop, renewal = asyncio.get_running_loop(), asyncio.Event()
    failure: WALError | None = None
    handlers = contextlib.ExitStack()
    stopped, signals = handlers.enter_context(stopped_by_signals())
    loop.add_signal_handler(signal.SIGHUP, renewal.set)
    handlers.callback(loop.remove_signal_handler, signal.SIGHUP)
    try:
        access = await in_thread(access_now)
        if access.tls is not None:
            await access.tls.server_configuration()
        if access.status and page is None:
            raise InvalidArgumentError(
                "a status page is served by `wal standalone` only: take status out of [server] and WAL_SERVER_STATUS"
            )
        await check_free(access.listen)
        process = await opened(access)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(process.close)
            server = process.server
            if access.metrics:
                with Needed("metrics need", "metrics"):
                    from wal.operate.metrics.collector import MetricsEndpoint
                endpoint = await stack.enter_async_context(MetricsEndpoint(access.metrics, process.measured()))
                _log.info("metrics are served at %s", endpoint.address)
            if access.status and page is not None:
                _log.info("the status page is served at %s", await stack.enter_async_context(page(process, access)))
            if signals:
                _log.info("a signal came before %s was served: it is closed again", what)
                return EXIT_SIGNALLED + signals[0]
            sys.stdout.write(f"listening on {server.address}\n")
            sys.stdout.flush()
            _log.info("%s is served at %s", what, server.address)
            renewing = loop.create_task(_renew(server, access_now, renewal), name="renewals of tokens and certificates")
            stack.callback(renewing.cancel)
            if (failure := await _end_of(process, stopped)) is None:
                _log.info("stopping: what is under way is finished")
            else:
                _log.error("this process cannot serve any more, and ends: start it again (%s)", failure)
    except WALError:
        if failure is None:  # otherwise the closing fails for the same reason
            raise
    finally:
        handlers.close()
    return 0 if failure is None else EXIT_FAILED


async def _renew(server: Server, access_now: Callable[[], Access], requested: asyncio.Event) -> None:
    """Reads the tokens and the files of TLS again at each request."""
    while await requested.wait():
        requested.clear()
        try:
            await server.renew(await in_thread(access_now))
        except Exception as error:
            defect = None if isinstance(error, WALError) else error
            _log.error("the tokens and the files of TLS stay as they are: %s", error, exc_info=defect)
        else:
            _log.info("the tokens and the files of TLS were read again")


async def _end_of(process: Served, stopped: asyncio.Event) -> WALError | None:
    """Returns None after a signal, or the reason why the process can no longer serve."""
    waiter, failing = asyncio.ensure_future(stopped.wait()), asyncio.ensure_future(process.failed())
    try:
        await asyncio.wait((waiter, failing), return_when=asyncio.FIRST_COMPLETED)
        return failing.result() if failing.done() else None
    finally:
        waiter.cancel()
        failing.cancel()
