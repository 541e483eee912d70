"""`wal copy FROM TO`: a log into an empty place, between journals and Pulsar. Its help needs no extra."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING, Final

from wal.location import parse_location
from wal.operate.cli.check import lost_row
from wal.operate.cli.commands import EXIT_FINDING, EXIT_STATUS
from wal.operate.cli.output import add_settings, note, settings_of, show, size_text, stopped_by_signals, tell, whole
from wal.operate.inspect.rows import Row, row_of
from wal.settings import Settings

if TYPE_CHECKING:
    from wal.operate.copying import CopyProgress

_DESCRIPTION: Final = """\
Copies a log into an empty place: a directory, or a namespace on Pulsar. FROM
may be in use. Order, ticks, transactions, idempotency keys, producers,
broadcasts and cursors are those of FROM; ids are new ones.

With --follow it copies what FROM's writer appends, until that closes the log:
stop the service, wait until this command ends, and start the service on TO.

TO is no log before it is whole. A copy that was interrupted goes on when the
same command is run again; until then a journal's part is in TO.copying."""
_KV: Final = "the metadata of {}: a file, or etcd://HOST/ROOT (default: the setting kv for a log on Pulsar, the file in a directory)"


class CopiedRow(Row, frozen=True, kw_only=True, tag="copied"):
    """A copy that is whole up to `tick`, with the amounts that this command copied. With `resumed` an earlier command had begun it."""

    frames: int
    events: int
    bytes: int
    tick: int
    pchannels: int
    cursors: int
    resumed: bool


def fill_copy(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal copy`."""
    parser.description, parser.epilog = _DESCRIPTION, EXIT_STATUS
    parser.add_argument("source", metavar="FROM", help="the log: a directory, pulsar://…, wal://…, or etcd://HOST/ROOT of a cluster")
    parser.add_argument("location", metavar="TO", help="the place: a directory that is missing or empty, or pulsar://…")
    parser.add_argument("--pchannels", metavar="N", type=whole(1), help="how many pchannels TO gets (default: as many as FROM has)")
    parser.add_argument("--from-kv", metavar="KV", help=_KV.format("FROM"))
    parser.add_argument("--to-kv", metavar="KV", help=_KV.format("TO"))
    parser.add_argument(
        "--skip-damaged", action="store_true", help="copies the readable part of a damaged journal, lists the lost parts, and ends with 1"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="copies until FROM's writer has closed the log")
    add_settings(parser)
    parser.set_defaults(run=lambda arguments: asyncio.run(_copied(arguments)))


async def _copied(arguments: argparse.Namespace) -> int:
    from wal.operate.copying import copy

    settings, _ = settings_of(arguments)

    def progress(so_far: CopyProgress) -> None:
        if arguments.json:
            tell(so_far, "", arguments)
        else:
            moment = f"{so_far.time:%Y-%m-%d %H:%M:%S}"
            note(f"{so_far.events} events, {size_text(so_far.bytes)}, up to {moment}; {size_text(so_far.left_bytes)} left")

    with stopped_by_signals() as (stopped, _):
        result = await copy(
            arguments.source,
            arguments.location,
            settings=_with_kv(settings, arguments.location, arguments.to_kv),
            source_settings=_with_kv(settings, arguments.source, arguments.from_kv),
            pchannels=arguments.pchannels,
            follow=arguments.follow,
            skip_damaged=arguments.skip_damaged,
            stop=stopped,
            progress=progress,
        )
    if result is None:
        note("the copy is not whole yet: the same command goes on with it")
        return EXIT_FINDING
    lost = [lost_row(part) for part in result.lost]
    show([*lost, row_of(CopiedRow, result)], arguments)
    return EXIT_FINDING if lost else 0


def _with_kv(settings: Settings, location: str, kv: str | None) -> Settings:
    """Returns the settings of one of the two logs."""
    from wal.api.factory import with_absolute_paths

    if kv is None and parse_location(location).pulsar is not None:
        return settings
    return with_absolute_paths(settings.replace(kv=kv))
