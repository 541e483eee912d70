"""The work of `wal standalone`: the log is opened and served until a signal.

The process is the log's only writer, its coordinator and its only node. Everything that can be wrong without the log is looked at first,
so that no file is created in vain: what clients have to show, the files of TLS, the packages, the port.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Callable
from typing import Final

from wal.errors import WALError
from wal.local.log import LocalLog
from wal.local.server import LogServer
from wal.location import Location
from wal.node.access import Access
from wal.node.process import raise_limit
from wal.rpc.serving import check_free
from wal.settings import Settings

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
EXIT_FAILED: Final = 3
"""The exit code of a server whose storage has failed while it served: started again, it recovers the log."""
_log: Final = logging.getLogger("wal.node")


async def serve(location: Location, settings: Settings, access_now: Callable[[], Access]) -> int:
    """Opens the log and serves it until a signal, or until its storage fails; returns the exit code.

    `access_now` reads how clients reach the server. SIGHUP has it read again: the tokens and the files of TLS may be others then.
    Raises the error of the options, of a file of TLS, of the port, of the opening, or of the closing.
    """
    raise_limit()
    stopped, renewal = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    failure: WALError | None = None
    for number in SIGNALS:
        loop.add_signal_handler(number, stopped.set)
    loop.add_signal_handler(signal.SIGHUP, renewal.set)
    try:
        access = await asyncio.to_thread(access_now)
        if access.tls is not None:
            await access.tls.server_configuration()
        await check_free(access.listen)
        log = LocalLog(location, settings)
        await log.open()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(log.close)
            node = await LogServer.start(log, access)
            stack.push_async_callback(node.close)
            sys.stdout.write(f"listening on {node.address}\n")
            sys.stdout.flush()
            _log.info("the log at %s is served at %s", location, node.address)
            renewing = loop.create_task(_renew(node, access_now, renewal), name="renewals of tokens and certificates")
            stack.callback(renewing.cancel)
            if (failure := await _end_of(node, stopped)) is None:
                _log.info("stopping: what is under way is finished")
            else:
                _log.error("the log cannot be written any more, and the server ends: start it again (%s)", failure)
    except WALError:
        if failure is None:  # otherwise the closing fails for the same reason
            raise
    finally:
        for number in (*SIGNALS, signal.SIGHUP):
            loop.remove_signal_handler(number)
    return 0 if failure is None else EXIT_FAILED


async def _renew(node: LogServer, access_now: Callable[[], Access], requested: asyncio.Event) -> None:
    """Reads the tokens and the files of TLS again, each time that this is requested."""
    while await requested.wait():
        requested.clear()
        try:
            await node.renew(await asyncio.to_thread(access_now))
        except Exception as error:
            defect = None if isinstance(error, WALError) else error
            _log.error("the tokens and the files of TLS stay as they are: %s", error, exc_info=defect)
        else:
            _log.info("the tokens and the files of TLS were read again")


async def _end_of(node: LogServer, stopped: asyncio.Event) -> WALError | None:
    """Returns None after a signal, or the reason why the log cannot be written any more."""
    waiter = asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait((waiter, node.failure), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()
    return node.failure.result() if node.failure.done() else None
