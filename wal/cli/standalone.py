"""`wal standalone LOCATION`: one process that serves a log to clients. It is the log's only writer, its coordinator and its only node."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from typing import Final

from wal.cli.options import access_from, add_options, settings_from
from wal.engine.factory import with_absolute_paths
from wal.engine.local.log import LocalLog
from wal.location import Location, parse_location
from wal.node.access import Access
from wal.node.node import Node
from wal.settings import Settings

__all__ = ["add_command", "serve"]

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_log: Final = logging.getLogger("wal.node")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the command line."""
    parser = commands.add_parser(
        "standalone",
        help="serves a log to clients",
        allow_abbrev=False,
        description="Serves a log to clients until SIGTERM or SIGINT; then it finishes what is under way and exits with 0. "
        "It prints `listening on HOST:PORT` when it is ready.",
    )
    parser.add_argument("location", metavar="LOCATION", help="where the log is: a directory, memory:, or pulsar://…")
    add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    location, settings, access = parse_location(arguments.location), settings_from(arguments), access_from(arguments)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve(location, with_absolute_paths(settings), access))
    return 0


async def serve(location: Location, settings: Settings, access: Access) -> None:
    """Opens the log and serves it until a signal. Raises the error of the opening, of the port, or of the closing."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stopped.set)
    try:
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


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """Returns uvloop's loop if it is installed (the extra `fast`)."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop
