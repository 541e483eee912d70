"""`wal mark-restored DIRECTORY`: records that a journal was restored from a copy. Its help needs no extra."""

from __future__ import annotations

import argparse
import asyncio
import sys

from wal.api.factory import with_absolute_paths
from wal.location import parse_location
from wal.operate.cli.output import check_present
from wal.settings import Settings

_DESCRIPTION = """\
Notes that the journal in DIRECTORY was restored from a copy. Run it once, after
the copy was put in place and before anything opens it for writing. Ids,
positions and cursors of what the copy has stay valid; those of what it lacks
are refused with LogWentBackError, for good. No process may have it open."""
_EPILOG = """\
exit status:
  0  it is noted
  1  it cannot be opened, or a process has it open
  2  the argument is wrong

example:
  cp -a backup/ data/ && wal mark-restored data/"""


def fill(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the command."""
    parser.description, parser.epilog, parser.usage = _DESCRIPTION, _EPILOG, "%(prog)s [OPTION]... DIRECTORY"
    parser.add_argument("location", metavar="DIRECTORY", help="the directory of the journal")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from wal.node.local.restored import mark_restored

    location, settings = parse_location(arguments.location), with_absolute_paths(Settings.load())
    if location.path is not None:
        check_present(location.path)
    for pchannel, lineage in asyncio.run(mark_restored(location, settings)).items():
        restore = lineage.restores[-1]
        newest = restore.newest
        common = "nothing is common" if newest is None else f"the last common event is at {newest[0]}:{newest[1]}"
        sys.stdout.write(f"{pchannel}: restored up to position {restore.fork}, {common}; it is incarnation {lineage.incarnation:x} now\n")
    return 0
