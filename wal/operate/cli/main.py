"""The entry point: reads the command line, and turns errors into a line on standard error and an exit status."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from wal._version import __version__
from wal.operate.cli.commands import COMMANDS, EXIT_ERROR, EXIT_FINDING, EXIT_UNREACHABLE, EXIT_USAGE, Command

_GROUPS: Final = {"look": "look at a log", "check": "check a log", "do": "change a log", "serve": "serve a log"}
_INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status, see `wal.operate.cli.commands`."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    parser = make_parser(next((word for word in words if not word.startswith("-")), None))
    parsed, unknown = parser.parse_known_args(words)
    if unknown:
        parsed.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    command: Command = parsed.command
    if not command.operates:
        import logging

        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    from wal.errors import InvalidArgumentError, LockedError, UnavailableError, UnknownOutcomeError, WALError

    try:
        code: int = parsed.run(parsed)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except KeyboardInterrupt:
        return _INTERRUPTED
    except InvalidArgumentError as error:
        return _failed(str(error), EXIT_USAGE)
    except WALError as error:
        unreachable = isinstance(error, LockedError | UnavailableError | UnknownOutcomeError)
        status = EXIT_UNREACHABLE if unreachable else EXIT_ERROR
        return _failed(f"{type(error).__name__}: {error}", status if command.operates else EXIT_FINDING)
    except ImportError as error:
        from wal.runtime.installation import install_hint, missing_package

        is_plain = isinstance(error, ModuleNotFoundError)  # our own ImportErrors contain the remedy
        return _failed(f"{missing_package(error)} is not installed: {install_hint('cluster')}" if is_plain else str(error), EXIT_USAGE)
    except OSError as error:
        if not command.operates:
            raise
        where = f"{error.filename}: " if error.filename else ""
        return _failed(f"{where}{error.strerror or error}", EXIT_ERROR)
    return code


def make_parser(named: str | None = None, *, whole: bool = False) -> argparse.ArgumentParser:
    """Returns the parser of the command line. Only the `named` command has its flags, or all commands have them with `whole`."""
    parser = _Parser(
        prog="wal", usage="wal [-h] [--version] COMMAND ...", description="The write-ahead log of wal-runtime.", formatter_class=_Help
    )
    parser.add_argument("--version", action="version", version=__version__)
    lines = ["commands:"]
    for group, title in _GROUPS.items():
        lines += [f"  {title}:", *(f"    {each.name:15}{each.help}" for each in COMMANDS if each.group == group)]
    parser.epilog = "\n".join([*lines, "", "`wal COMMAND --help` explains a command."])
    commands = parser.add_subparsers(required=True, metavar="COMMAND", prog="wal", help=argparse.SUPPRESS)
    for command in COMMANDS:
        own = commands.add_parser(command.name, allow_abbrev=False, formatter_class=_Help)
        own.set_defaults(command=command, parser=own)
        if whole or command.name == named:
            command.add_flags(own)
    return parser


class _Parser(argparse.ArgumentParser):
    """Suggests the nearest word for a wrong command, order or choice."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            from wal.errors import shortened

            words = [str(word) for word in action.choices]
            close = difflib.get_close_matches(str(value), words, n=1)
            meant = f", did you mean {close[0]!r}?" if close else ":"
            raise argparse.ArgumentError(action, f"no {shortened(str(value))}{meant} choose from {', '.join(words)}")


class _Help(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of descriptions and epilogs as they are."""


def _failed(text: str, status: int) -> int:
    sys.stderr.write(f"wal: {text}\n")
    return status
