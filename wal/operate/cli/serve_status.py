"""`wal serve LOCATION`: the status page of a log with another writer, or without one, until SIGTERM or SIGINT.

The log is opened for reading only, so it is neither locked nor changed; a cursor can be set or removed with the token. The process that
writes a log can serve a page of its own with more details: `log.serve_status(…)`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import Final

from wal.errors import InvalidArgumentError, shortened
from wal.operate.cli.commands import EXIT_SIGNALLED, EXIT_STATUS
from wal.operate.cli.output import add_log, opened, stopped_by_signals
from wal.timestamp.checks import whole_number

LISTEN: Final = "127.0.0.1:8811"


def fill(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal serve`."""
    add_log(parser, "Serves the status page of a log, which is opened for reading, until SIGTERM or SIGINT.", json=False)
    parser.add_argument("--listen", metavar="HOST:PORT", default=LISTEN, help=f"where to listen; port 0 is a free one (default {LISTEN})")
    parser.epilog = (
        "Beyond loopback a token is required, and for actions always: WAL_SERVER_TOKEN. It has no flag, because other users of the machine "
        f"can see flags.\n\n{EXIT_STATUS}"
    )
    parser.set_defaults(run=lambda arguments: asyncio.run(_serve(arguments)))


async def _serve(arguments: argparse.Namespace) -> int:
    host, colon, port = arguments.listen.rpartition(":")
    if not colon or not host:
        raise InvalidArgumentError(f"--listen {shortened(arguments.listen)} is not an address: write HOST:PORT, for example {LISTEN}")
    port_number = whole_number(f"--listen HOST:PORT, for example {LISTEN}: port", port, 0, 65_535)
    token = os.environ.get("WAL_SERVER_TOKEN") or None
    with stopped_by_signals() as (stopped, signals):
        async with opened(arguments) as log, log.serve_status(host.strip("[]"), port_number, token=token) as page:
            if signals:
                return EXIT_SIGNALLED + signals[0]
            sys.stdout.write(f"listening on {page.address}\n")
            sys.stdout.flush()
            await stopped.wait()
    return 0
