"""`wal backup` and `wal restore`: copies of a journal, made while it is in use. Their help needs no extra."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Callable, Coroutine, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from wal.errors import InvalidArgumentError
from wal.message import MessageID
from wal.operate.cli.commands import EXIT_FINDING, EXIT_STATUS
from wal.operate.cli.output import add_progress, progress_noted, seconds, shows_progress, size_text, tell, whole
from wal.operate.inspect.points import parse_point, tick_of
from wal.operate.inspect.rows import Row, row_of
from wal.timestamp import to_datetime

if TYPE_CHECKING:
    from wal.operate.backup import Manifest

_BACKUP: Final = f"""\
  wal backup DIRECTORY --to TARGET [--follow]   makes a backup of the journal
  wal backup status TARGET                      lists the backups
  wal backup verify TARGET [--full]             reads all of them
  wal backup forget TARGET --keep N             removes all but the newest N
  wal backup upgrade TARGET                     makes old backups readable in place

TARGET is a directory, or s3://BUCKET/PATH or gs://BUCKET/PATH (extra backup).
A process may have the journal open for writing. A backup copies only what
is new, and one that was interrupted goes on where it stopped. What is damaged
in the log is named, and copied as it is; the status is 1 then.

{EXIT_STATUS}"""


_RESTORE: Final = """\
Makes the journal in DIRECTORY, which is missing or empty, of a backup, and marks
it as restored (see wal mark-restored)."""


class BackupRow(Row, frozen=True, kw_only=True, tag="backup"):
    """A new, listed or restored backup: its number, the tick up to which it is complete, with its time, and its size."""

    backup: int
    tick: int
    time: datetime
    bytes: int


class BackupProgressRow(Row, frozen=True, kw_only=True, tag="backup_progress"):
    """A running backup: the number of stored objects, their size, and the name of the last one; how much of the new part of the log they
    have, of about how many bytes.
    """

    objects: int
    stored_bytes: int
    bytes_done: int
    bytes_total: int
    name: str


class BackupDamageRow(Row, frozen=True, kw_only=True, tag="backup_damage"):
    """A part of the log that was damaged when this backup copied it."""

    backup: int
    file: str
    offset: int
    problem: str


class BackupFindingRow(Row, frozen=True, kw_only=True, tag="backup_finding"):
    """A finding of a verification of the backups."""

    problem: str


class ForgottenRow(Row, frozen=True, kw_only=True, tag="forgotten"):
    """A backup that was removed."""

    backup: int


def fill_backup(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal backup`."""
    parser.description = _BACKUP
    parser.add_argument("words", nargs="+", metavar="WORD", help="the directory; or status, verify, forget or upgrade, and the target")
    parser.add_argument("--to", metavar="TARGET", help="where the backup is put")
    parser.add_argument("--follow", action="store_true", help="makes another backup every --interval, until it is interrupted")
    parser.add_argument("--interval", metavar="SECONDS", type=seconds(0.01), default=1.0, help="how often --follow makes one (default 1)")
    parser.add_argument("--keep", metavar="N", type=whole(1), help="how many backups `forget` and --follow keep")
    parser.add_argument("--full", action="store_true", help="lets `verify` restore the newest one as well, to a temporary place")
    add_progress(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(run=_run_backup)


def fill_restore(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal restore`."""
    parser.description, parser.epilog = _RESTORE, EXIT_STATUS
    parser.add_argument("target", metavar="TARGET", help="where the backups are")
    parser.add_argument("location", metavar="DIRECTORY", help="the directory of the journal")
    parser.add_argument("--to", metavar="TICK|TIME", help="the log as it was at this tick, time (2026-11-25T12:00:00+00:00) or 10m ago")
    parser.add_argument("--if-absent", action="store_true", help="does nothing if there is a journal already")
    add_progress(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(run=_run_restore)


def _run_backup(arguments: argparse.Namespace) -> int:
    first, *rest = arguments.words
    calls: dict[str, Callable[[str, argparse.Namespace], Coroutine[Any, Any, int]]] = {
        "status": _status,
        "verify": _verify,
        "forget": _forget,
    }
    if (call := calls.get(first)) is not None or first == "upgrade":
        if len(rest) != 1 or arguments.to is not None:
            arguments.parser.error(f"wal backup {first} takes one TARGET")
        if first == "forget" and arguments.keep is None:
            arguments.parser.error("wal backup forget needs --keep N")
        if call is None:
            with _stored_noted(arguments) as progress:
                return asyncio.run(_upgrade(rest[0], arguments, progress))
        return asyncio.run(call(rest[0], arguments))
    if rest or arguments.to is None:
        arguments.parser.error("wal backup takes one DIRECTORY, and --to TARGET")
    with _stored_noted(arguments) as progress:
        return asyncio.run(_backup(first, arguments, progress))


async def _backup(location: str, arguments: argparse.Namespace, progress: Callable[[dict[str, Any]], None]) -> int:
    from wal.operate.backup import backup, follow

    if not arguments.follow:
        manifest = await backup(location, arguments.to, progress=progress)
        _show(manifest, arguments)
        return EXIT_FINDING if manifest.damage else 0
    damage: tuple[Any, ...] = ()
    async for manifest in follow(location, arguments.to, interval_s=arguments.interval, keep=arguments.keep, progress=progress):
        _show(manifest, arguments, damaged=manifest.damage != damage)
        damage = manifest.damage
    return 0


@contextlib.contextmanager
def _stored_noted(arguments: argparse.Namespace) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yields a function that takes the progress of a backup: it prints rows, and once a second a line for a terminal."""
    text = ""

    def progress(so_far: dict[str, Any]) -> None:
        nonlocal text
        row = BackupProgressRow(**so_far)
        text = f"{size_text(row.stored_bytes)} stored, in {row.objects} objects"
        if row.bytes_total:
            text += f", {size_text(row.bytes_done)} of {size_text(row.bytes_total)} of the log"
        if arguments.json:
            tell(row, "", arguments)

    with progress_noted(lambda: text, shown=shows_progress(arguments)):
        yield progress


async def _status(target: str, arguments: argparse.Namespace) -> int:
    from wal.operate.backup import backups

    for manifest in await backups(target):
        _show(manifest, arguments, damaged=False)
    return 0


async def _verify(target: str, arguments: argparse.Namespace) -> int:
    from wal.operate.backup import verify, verify_whole

    findings = await (verify_whole if arguments.full else verify)(target)
    for finding in findings:
        tell(BackupFindingRow(problem=finding), finding, arguments)
    if not findings and not arguments.json:
        sys.stdout.write("every backup is whole\n")
    return EXIT_FINDING if findings else 0


async def _forget(target: str, arguments: argparse.Namespace) -> int:
    from wal.operate.backup import forget

    for number in await forget(target, keep=arguments.keep):
        tell(ForgottenRow(backup=number), f"backup {number} is forgotten", arguments)
    return 0


async def _upgrade(target: str, arguments: argparse.Namespace, progress: Callable[[dict[str, Any]], None]) -> int:
    from wal.operate.backup import upgrade

    manifest = await upgrade(target, progress=progress)
    if manifest is not None:
        _show(manifest, arguments)
    elif not arguments.json:
        sys.stdout.write("the newest backup has the present version already: nothing was done\n")
    return 0


def _run_restore(arguments: argparse.Namespace) -> int:
    text = ""

    def progress(done: int, total: int) -> None:
        nonlocal text
        text = f"{size_text(done)} of {size_text(total)} restored"

    with progress_noted(lambda: text, shown=shows_progress(arguments)):
        return asyncio.run(_restore(arguments, progress))


async def _restore(arguments: argparse.Namespace, progress: Callable[[int, int], None]) -> int:
    from wal.operate.backup import restore

    point = None if arguments.to is None else parse_point("--to", arguments.to)
    if isinstance(point, MessageID):
        raise InvalidArgumentError(f"--to {point} is an id: give a tick, or a time such as 2026-11-25T12:00:00+00:00")
    up_to = None if point is None else tick_of(point)
    manifest = await restore(arguments.target, arguments.location, up_to=up_to, if_absent=arguments.if_absent, progress=progress)
    if manifest is not None:
        _show(manifest, arguments)
    elif not arguments.json:
        sys.stdout.write(f"{arguments.location} holds a journal already: nothing was done\n")
    return 0


def _show(manifest: Manifest, arguments: argparse.Namespace, *, damaged: bool = True) -> None:
    """Prints a backup and, if `damaged`, the damage in the log when it was copied."""
    size = sum(chunk.size for chunk in manifest.chunks())
    row = BackupRow(backup=manifest.number, tick=manifest.tick, time=to_datetime(manifest.tick), bytes=size)
    tell(row, f"backup {row.backup}: up to tick {row.tick} ({row.time:%Y-%m-%d %H:%M:%S} UTC), {size} bytes", arguments)
    for part in manifest.damage if damaged else ():
        tell(row_of(BackupDamageRow, part, backup=manifest.number), f"the log is damaged, {part}", arguments)
