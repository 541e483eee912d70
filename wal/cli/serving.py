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

from wal.engine.local.log import LocalLog
from wal.location import Location
from wal.node.access import Access
from wal.node.node import Node
from wal.rpc.serving import check_free
from wal.settings import Settings

__all__ = ["serve"]

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_log: Final = logging.getLogger("wal.node")


async def serve(location: Location, settings: Settings, access_now: Callable[[], Access]) -> int:
    """Opens the log and serves it until a signal; returns the exit code. `access_now` reads how clients reach the server.

    Raises the error of the options, of a file of TLS, of the port, of the opening, or of the closing.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stopped.set)
    try:
        access = await asyncio.to_thread(access_now)
        if access.tls is not None:
            await access.tls.server_credentials()
        await check_free(access.listen)
        log = LocalLog(location, settings)
        await log.open()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(log.close)
            node = await Node.start(log, access)
            stack.push_async_callback(node.close)
            sys.stdout.write(f"listening on {node.address}\n")
            sys.stdout.flush()
            _log.info("the log at %s is served at %s", location, node.address)
            await stopped.wait()
            _log.info("stopping: what is under way is finished")
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
    return 0
