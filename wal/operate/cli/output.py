"""The output of commands: rows as tables or as JSON, one object a line; and the common flags of commands that open a log.

A table has every field that the JSON has: sizes and times in a readable form, None as "-". Text of users, such as the names of vchannels,
never reaches a terminal with control characters. With `rich` (the extra `cli`) headings are bold on a terminal; nothing else depends on it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wal.errors import InvalidArgumentError, LockedError
from wal.location import Location, parse_location
from wal.operate.cli.commands import EXIT_STATUS
from wal.operate.inspect.rows import Row, as_json, printable
from wal.runtime.threads import in_thread
from wal.settings import Settings, seconds_from_text, setting_from_text
from wal.timestamp.checks import whole_number

if TYPE_CHECKING:
    from wal.api.accesser import WALAccesser
    from wal.operate.inspect.outside import OutsideDetails

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_NOTE_S: Final = 1.0
_COLUMN_MIN: Final = 12
"""The minimum width of a column of texts."""
LOCATION: Final = "where the log is: a directory, pulsar://…, wal://HOST[:PORT], or etcd://HOST/ROOT of a cluster"


def add_log(parser: argparse.ArgumentParser, description: str, *, json: bool = True, location: str = "LOCATION") -> None:
    """Adds the location of the log, and the flags for its opening."""
    parser.description, parser.epilog = description, EXIT_STATUS
    parser.add_argument("location", metavar=location, help=LOCATION)
    add_settings(parser, json=json)


def add_settings(parser: argparse.ArgumentParser, *, json: bool = True) -> None:
    """Adds the flags for settings, and `--json`."""
    parser.add_argument("--config", metavar="FILE", help="a TOML file with settings")
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="a setting of the log; may be repeated")
    if json:
        parser.add_argument("--json", action="store_true", help="one JSON object a line, with the same content")


def whole(least: int, most: int = 1_000_000_000) -> Callable[[str], int]:
    """Returns the type of a flag that takes a whole number in these bounds."""

    def parsed(text: str) -> int:
        try:
            return whole_number("", text, least, most)
        except InvalidArgumentError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def seconds(least: float = 0.0) -> Callable[[str], float]:
    """Returns the type of a flag that takes a time, with or without a unit, of at least `least` seconds."""

    def parsed(text: str) -> float:
        try:
            return seconds_from_text("", text, least)
        except InvalidArgumentError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def settings_of(arguments: argparse.Namespace) -> tuple[Settings, dict[str, str]]:
    """Returns the settings of this command line, and the source of each that is not a default."""
    from wal.api.factory import with_absolute_paths

    overrides = {name: setting_from_text(f"--set {name}", name, value) for name, value in pairs("--set", arguments.set).items()}
    before = Settings.load()
    in_file = Settings.load(arguments.config)
    settings = in_file.replace(**overrides)
    sources: dict[str, str] = {}
    for name in Settings.__struct_fields__:
        if name in overrides:
            sources[name] = "flag"
        elif getattr(before, name) != getattr(Settings(), name):
            sources[name] = "environment"
        elif getattr(in_file, name) != getattr(before, name):
            sources[name] = "file"
    return with_absolute_paths(settings), sources


@contextlib.asynccontextmanager
async def opened(arguments: argparse.Namespace, *, write: bool = False, create: bool = False) -> AsyncIterator[WALAccesser]:
    """Opens the log for reading; with `write` for its writing calls. A log that another process writes then raises LockedError.

    With `create` too, a missing log is created.
    """
    from wal.api.opening import open_wal

    location, (settings, _) = parse_location(arguments.location), settings_of(arguments)
    read_only = not write and location.servers is None
    if write:
        await in_thread(check_free, location, settings, create=create)
    if read_only or location.servers is not None:
        opening = open_wal(arguments.location, settings=settings, read_only=not write)
    else:
        if location.path is not None and not create:
            await in_thread(check_present, location.path)
        opening = open_wal(arguments.location, settings=settings, create=create)
    async with opening as log:
        yield log


def check_free(location: Location, settings: Settings, *, create: bool = False) -> None:
    """Raises LockedError if a process writes the log here, so that this one must not; `create`: the log may be missing.

    The servers of a log accept writes from any client.
    """
    if location.servers is not None:
        return
    if location.path is not None:
        from wal.operate.inspect.outside import writer_of

        writer = writer_of(location.path)
        if writer.state == "open":
            raise LockedError(
                f"the journal {location.path} is open for writing in process {writer.pid or 'that cannot be seen from here'}: change it "
                "there, or through its status service, or stop that process first",
                pid=writer.pid,
            )
        return
    from wal.api.factory import make_source
    from wal.read.read_only_core import ReadOnlyCore

    core = ReadOnlyCore(make_source(location, settings, wait_s=0.0))
    try:
        if create and core.source.absence(0.0) is not None:
            return
        core.open()  # a source can check for writers only of logs that it has opened
        if core.source.has_writer():
            raise LockedError(f"another process writes the log at {location}: change it there, or stop that process first", pid=None)
    finally:
        core.close()


@contextlib.contextmanager
def details_of(arguments: argparse.Namespace) -> Iterator[OutsideDetails]:
    """Opens the view of the log from another process, as `OutsideDetails`."""
    from wal.api.factory import make_source
    from wal.operate.inspect.outside import OutsideDetails

    location, (settings, _) = parse_location(arguments.location), settings_of(arguments)
    details = OutsideDetails(make_source(location, settings, wait_s=0.0, follow=False), location.path)
    try:
        details.open()
        yield details
    finally:
        details.close()


def show(rows: Iterable[Row], arguments: argparse.Namespace, kind: type[Row] | None = None) -> None:
    """Prints the rows: as JSON, one a line, or as a table for each kind of row. A table of `kind` is printed even without rows."""
    if arguments.json:
        for row in rows:
            sys.stdout.write(as_json(row).decode() + "\n")
        return
    rows = list(rows)
    sys.stdout.write(tables(rows) if rows or kind is None else _heading(kind))


def tell(row: Row, text: str, arguments: argparse.Namespace) -> None:
    """Prints one row at once: as JSON, or as this text for people."""
    sys.stdout.write((as_json(row).decode() if arguments.json else printable(text)) + "\n")
    sys.stdout.flush()


def pairs(flag: str, texts: Iterable[str]) -> dict[str, str]:
    """Returns the names and values of a repeatable flag NAME=VALUE."""
    values: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise InvalidArgumentError(f"{flag} {text!r} gives no value: write {flag} NAME=VALUE")
        values[name] = value
    return values


def no_cursor(name: str, remedy: str = "") -> InvalidArgumentError:
    """Returns the error for a missing cursor."""
    return InvalidArgumentError(f"no cursor {name}: `wal cursors` lists the cursors{remedy}")


def check_vchannels(names: Iterable[str], existing: Container[str]) -> None:
    """Raises InvalidArgumentError for a missing vchannel."""
    if missing := [name for name in names if name not in existing]:
        raise InvalidArgumentError(f"no vchannel {missing[0]!r}: `wal ls` lists the vchannels")


def tables(rows: Sequence[Row]) -> str:
    """Returns the rows as text: a table for each kind of row, in the order of their first rows, and one for the members of rows."""
    kinds: dict[type[Row], list[Row]] = {}
    for row in rows:
        kinds.setdefault(type(row), []).append(row)
        for below in getattr(row, "members", ()):
            kinds.setdefault(type(below), []).append(below)
    return "\n".join(_fields(own) if kind.__struct_config__.tag == "log" else _table(own) for kind, own in kinds.items())


def confirmed(arguments: argparse.Namespace, question: str) -> bool:
    """Returns whether the operator agrees: with --yes, or by an answer on a terminal. Raises InvalidArgumentError without a terminal."""
    if arguments.yes:
        return True
    if not sys.stdin.isatty():
        raise InvalidArgumentError(
            f"{question} The command has no terminal for the answer: confirm with --yes, or look first with --dry-run"
        )
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[tuple[asyncio.Event, list[int]]]:
    """Yields an event that SIGTERM and SIGINT set on this loop, and the list of received signals. Only the main thread receives signals."""
    stopped, numbers_received = asyncio.Event(), list[int]()

    def stop(number: int) -> None:
        numbers_received.append(number)
        stopped.set()

    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    for number in numbers:
        loop.add_signal_handler(number, stop, number)
    try:
        yield stopped, numbers_received
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def note(text: str) -> None:
    """Prints a line for people on the standard error."""
    sys.stderr.write(f"{printable(text)}\n")


def add_progress(parser: argparse.ArgumentParser) -> None:
    """Adds the flag that prints progress also into a file or a pipe."""
    parser.add_argument("--progress", action="store_true", help="prints the progress every second, as it does on a terminal")


@contextlib.contextmanager
def progress_noted(text: Callable[[], str], *, shown: bool = True) -> Iterator[None]:
    """Prints this text on the standard error once a second during the block, if `shown`, and whenever it has changed."""
    ended = threading.Event()

    def print_texts() -> None:
        before = ""
        while not ended.wait(_NOTE_S):
            if (now := text()) and now != before:
                note(now)
                before = now

    if not shown:
        yield
        return
    noting = threading.Thread(target=print_texts, daemon=True)
    noting.start()
    try:
        yield
    finally:
        ended.set()
        noting.join()


def shows_progress(arguments: argparse.Namespace) -> bool:
    """Returns whether a command prints its progress: on a terminal, or with --progress."""
    return bool(arguments.progress) or sys.stderr.isatty()


def size_text(count: float) -> str:
    """Returns a number of bytes in a unit of three digits."""
    for unit in _UNITS:
        if count < 1024 or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError(count)


def time_text(seconds: float) -> str:
    """Returns a duration, in the largest unit that it fills."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.3g} s"


def _cell(name: str, value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, tuple) and value and isinstance(value[0], Row):
        return str(len(value))
    if isinstance(value, tuple):
        return printable(",".join(map(str, value))) or "-"
    if isinstance(value, int | float) and "bytes" in name:
        return f"{size_text(value)}{'/s' if name.endswith('_per_s') else ''}"
    if isinstance(value, int | float) and name.endswith("_per_s"):
        return f"{value:.1f}"
    if isinstance(value, int | float) and name.endswith("_s"):
        return time_text(value)
    return printable(str(value))


def _fields(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        names = type(row).__struct_fields__
        width = max(map(len, names))
        for name in names:
            first, *rest = _wrapped(_cell(name, getattr(row, name)), max(_room() - width - 2, _COLUMN_MIN))
            lines += [f"{name.replace('_', ' '):{width}}  {first}", *(f"{'':{width}}  {line}" for line in rest)]
    return "\n".join(lines) + "\n"


def _heading(kind: type[Row]) -> str:
    """Returns the heading of a table without rows."""
    return "\n".join(map(_bold, _wrapped("  ".join(name.upper() for name in kind.__struct_fields__), _room()))) + "\n"


def _table(rows: Sequence[Row]) -> str:
    """Returns rows of one kind below a heading. If the table is wider than the terminal, long cells wrap, or each field gets its own
    line.
    """
    names = type(rows[0]).__struct_fields__
    heads = [name.upper() for name in names]
    cells = [[_cell(name, getattr(row, name)) for name in names] for row in rows]
    values = list(zip(*[[getattr(row, name) for name in names] for row in rows], strict=True))
    right = [
        all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in column) for column in values
    ]
    widths = [max(len(cell) for cell in column) for column in zip(heads, *cells, strict=True)]
    least = [
        width if is_number else min(width, max(len(head), _COLUMN_MIN)) for head, width, is_number in zip(heads, widths, right, strict=True)
    ]
    room = _room() - 2 * (len(names) - 1)
    if sum(least) > room:
        return "\n".join(_fields([row]) for row in rows)
    while sum(widths) > room:
        widest = max(range(len(widths)), key=lambda at: widths[at] if widths[at] > least[at] else 0)
        widths[widest] -= 1
    lines = []
    for row in (heads, *cells):
        parts = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
        texts = [
            "  ".join(
                cell.rjust(width) if is_number else cell.ljust(width) for cell, width, is_number in zip(line, widths, right, strict=True)
            )
            for line in itertools.zip_longest(*parts, fillvalue="")
        ]
        lines += [_bold(text.rstrip()) if row is heads else text.rstrip() for text in texts]
    return "\n".join(lines) + "\n"


def _wrapped(text: str, width: int) -> list[str]:
    """Returns the lines of a text of at most this width, broken after spaces and commas where there are some."""
    if len(text) <= width:
        return [text]
    return textwrap.wrap(re.sub(r",(?=\S)", ", ", text), width) or [""]


def _room() -> int:
    """Returns the width of the terminal, or of COLUMNS; unlimited for a file or a pipe, whose readers expect a row a line."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return shutil.get_terminal_size().columns
    return sys.maxsize


def _bold(text: str) -> str:
    """Returns the text in bold if the output is a terminal and `rich` is installed."""
    if not sys.stdout.isatty():
        return text
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        return text
    console = Console()
    with console.capture() as capture:
        console.print(Text(text, style="bold"), end="", soft_wrap=True)
    return capture.get()


def directory_of(arguments: argparse.Namespace) -> Path:
    """Returns the directory of a journal. Raises InvalidArgumentError for another location."""
    location = parse_location(arguments.location)
    if location.path is None:
        raise InvalidArgumentError(f"{location} is not a directory: only the files of a journal can be checked and repaired")
    return location.path


def check_present(directory: Path) -> None:
    """Raises FormatError or StorageError unless there is a journal in the directory."""
    from wal.read.sources import ReadOnlyJournalSource

    if (absent := ReadOnlyJournalSource(directory).absence(0.0)) is not None:
        raise absent
