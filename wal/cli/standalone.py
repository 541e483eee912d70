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
from wal.rpc.serving import check_free
from wal.settings import Settings

__all__ = ["add_command", "serve"]

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_log: Final = logging.getLogger("wal.node")
_DESCRIPTION: Final = """\
Serves a log to clients on the network, until SIGTERM or SIGINT. Then it
refuses new calls, finishes those under way, closes the log and exits.

When it is ready it prints `listening on HOST:PORT` on its standard output;
log lines go to the standard error. Clients open wal://HOST:PORT, or
wal+ssl://HOST:PORT if the server has a certificate. A log that was killed is
recovered at the next start."""
_EPILOG: Final = """\
A flag overrides a variable of the environment, and a variable overrides the
file. Secrets have no flag, because other users of the machine can see flags:
WAL_SERVER_TOKEN is a token that clients may show, and WAL_PULSAR_TOKEN is the
token for Pulsar.

exit status:
  0  a signal stopped it, and the log is closed
  1  it cannot open or write the log, or cannot listen at the address
  2  an argument, a variable or the file is wrong, or the extra is missing

examples:
  wal standalone data/
  wal standalone data/ --listen 127.0.0.1:0 --retention-s 604800
  WAL_SERVER_TOKEN=... wal standalone data/ --listen 0.0.0.0:8810 \\
      --advertise log.example:8810 --tls-certificate cert.pem --tls-key key.pem"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the command line."""
    parser = commands.add_parser(
        "standalone",
        help="serves a log to clients",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        usage="%(prog)s [OPTION]... LOCATION",
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
        await check_free(access.listen)  # first, so that no log is opened or created in vain
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
