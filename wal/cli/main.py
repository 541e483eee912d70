"""The entry point: reads the command line, and turns errors into a line on standard error and an exit code."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import Final

from wal._version import __version__
from wal.cli import cluster, restored, standalone
from wal.errors import InvalidArgumentError, WALError
from wal.installation import install_hint

_EXIT_ERROR: Final = 1
_EXIT_USAGE: Final = 2
"""As argparse exits for a wrong flag."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code: 0, 1 for an error of the log, 2 for a wrong argument, or one of the command's own."""
    parser = argparse.ArgumentParser(prog="wal", description="The write-ahead log of wal-runtime.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    standalone.add_command(commands)
    cluster.add_commands(commands)
    restored.add_command(commands)
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        parsed.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        code: int = parsed.run(parsed)
    except InvalidArgumentError as error:
        sys.stderr.write(f"wal: {error}\n")
        return _EXIT_USAGE
    except WALError as error:
        sys.stderr.write(f"wal: {type(error).__name__}: {error}\n")
        return _EXIT_ERROR
    except ImportError as error:
        is_plain = isinstance(error, ModuleNotFoundError)  # a room of ours raises an ImportError with the remedy
        said = f"{error.name} is not installed: {install_hint('cluster')}" if is_plain else str(error)
        sys.stderr.write(f"wal: {said}\n")
        return _EXIT_USAGE
    return code
