"""`wal standalone LOCATION`: its flags, its help, and the start of its event loop. Its help needs no extra; `serving` does the work."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from wal.api.factory import with_absolute_paths
from wal.location import Location, parse_location
from wal.operate.cli.options import access_from, add_options, settings_from

if TYPE_CHECKING:
    from wal.engine import ReadableEngine
    from wal.node.local.log import LocalLog
    from wal.operate.processes.standalone import ServedLog
    from wal.serve.access import Access

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
  2  an argument, a variable or a file is wrong, or a package is missing
  3  the storage failed while it was serving: start it again
  128 and the number of the signal (143, 130)  one came before it served

examples:
  wal standalone data/
  wal standalone data/ --listen 127.0.0.1:0 --retention-s 604800
  WAL_SERVER_TOKEN=... wal standalone data/ --listen 0.0.0.0:8810 \\
      --advertise log.example:8810 --tls-certificate cert.pem --tls-key key.pem"""


def fill(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the command."""
    parser.description, parser.epilog, parser.usage = _DESCRIPTION, _EPILOG, "%(prog)s [OPTION]... LOCATION"
    parser.add_argument("location", metavar="LOCATION", help="where the log is: a directory, memory:, or pulsar://…")
    add_options(parser, page=True)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit code. Raises ImportError without the extra."""
    from wal.operate.cli.serving import serve
    from wal.operate.processes.standalone import ServedLog

    location, settings = parse_location(arguments.location), with_absolute_paths(settings_from(arguments))
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        opened = partial(ServedLog.open, location, settings)
        return runner.run(serve(opened, lambda: access_from(arguments), f"the log at {location}", page=partial(_page, location)))


@contextlib.asynccontextmanager
async def _page(location: Location, served: ServedLog, access: Access) -> AsyncIterator[str]:
    """Serves the status page of the log that this process has open; yields its URL.

    Its token is the server's first token with all rights. Raises ImportError without the extra.
    """
    from wal.api.accesser import WALAccesser
    from wal.api.opening import LogOpening
    from wal.requests.rights import ALL_RIGHTS

    async def engine() -> ReadableEngine:
        return cast("ReadableEngine", _OpenLog(served.log))

    token = next((token.secret for token in access.tokens if token.rights == ALL_RIGHTS), None)
    host, _, port = access.status.rpartition(":")
    opening = LogOpening(lambda: WALAccesser(str(location), engine))
    async with opening as log, log.serve_status(host.strip("[]"), int(port), token=token) as page:
        yield page.address


class _OpenLog:
    """The engine of an open log, which another owner closes."""

    def __init__(self, log: LocalLog) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def open(self) -> None:
        """Does nothing."""

    async def close(self) -> None:
        """Does nothing."""

    def abandon(self) -> None:
        """Does nothing."""


def loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """Returns uvloop's loop if it is installed (the extra `fast`)."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop
