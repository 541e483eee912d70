"""The commands that print rows of a log: `info`, `ls`, `cursors`, `consumers`, `broadcasts`, `retention`, `settings`, `health` and `top`.

Each opens the log for reading, beside its writer, and prints the rows of `wal.operate.inspect`. These commands change nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import operator
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from wal.errors import InvalidArgumentError, LockedError, WALError, shortened
from wal.location import Location, parse_location
from wal.operate.cli.commands import EXIT_FINDING, EXIT_STATUS
from wal.operate.cli.output import LOCATION, add_log, add_settings, details_of, opened, seconds, settings_of, show, tables, whole
from wal.operate.cli.status_service import StatusService
from wal.operate.inspect import builders
from wal.operate.inspect.rows import (
    BroadcastRow,
    ConsumerRow,
    CursorRow,
    HealthRow,
    LatencyRow,
    PChannelRow,
    RetentionRow,
    Row,
    SettingRow,
    VChannelRow,
)
from wal.read.cursors.store import DamagedCursor
from wal.read.figures import PChannelStatistics, figures_of, page_fields
from wal.runtime.threads import in_thread
from wal.settings import seconds_from_text, setting_from_text
from wal.timestamp.checks import whole_number

if TYPE_CHECKING:
    from wal.api.accesser import WALAccesser
    from wal.operate.inspect.outside import OutsideDetails
    from wal.read.cursors.pinned import PinnedCursors

Rows = Callable[["WALAccesser", "OutsideDetails"], Awaitable[list[Row]]]
Counts = dict[str, list[int]]
"""For a pchannel, the counts of each of its `_LATENCIES`."""
_LATENCIES: Final = tuple(
    name for name, figure in figures_of(PChannelStatistics) if figure.kind == "histogram" and name in page_fields(PChannelStatistics)
)
"""The histograms of the status page: seconds of appends and of syncs."""
_FREE_BYTES_MIN = 256 << 20
_SETTINGS: Final = """\
Shows the settings, and where each comes from: those that an opening from here
has; with LOCATION those of the process that has that log open, if it serves a
status page, else also what the log itself has stored."""


def fill_info(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal info`."""
    add_log(parser, "Shows a log as a whole, and each of its pchannels.")
    parser.set_defaults(run=lambda arguments: _show(arguments, _log_rows(arguments)))


def fill_ls(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal ls`."""
    add_log(parser, "Lists the vchannels. The messages are counted, which reads the head of every frame; --fast leaves that out.")
    parser.add_argument("--fast", action="store_true", help="does not count messages and bytes")

    async def rows(log: WALAccesser, details: OutsideDetails, *, fast: bool) -> list[Row]:
        return [*await builders.vchannel_rows(log, None if fast else details)]

    parser.set_defaults(run=lambda arguments: _show(arguments, lambda log, details: rows(log, details, fast=arguments.fast), VChannelRow))


def fill_cursors(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal cursors`."""
    add_log(
        parser,
        "Shows the cursors, how far their readers lag, and when each moved last. Over a limit, and for a damaged one, it ends with 1.",
    )
    parser.add_argument("--max-lag", metavar="LAG", help="the most messages (1000), bytes (64MiB) or time (30s) that a cursor may lag")
    parser.set_defaults(run=_cursors)


def fill_consumers(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal consumers`."""
    add_log(
        parser,
        "Shows the consumers of the process that writes a journal, through its status service, or the shared consumers of a served log.",
    )
    parser.set_defaults(run=_consumers)


def fill_broadcasts(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal broadcasts`."""
    add_log(parser, "Shows the unfinished broadcasts, and the vchannels whose copy or acknowledgement is missing.")
    parser.set_defaults(run=_broadcasts)


def fill_retention(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal retention`."""
    add_log(parser, "Shows what each pchannel holds, and who holds how much of it.")

    async def rows(log: WALAccesser, details: OutsideDetails) -> list[Row]:
        return [*await builders.retention_rows(log)]

    parser.set_defaults(run=lambda arguments: _show(arguments, rows, RetentionRow))


def fill_settings(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal settings`."""
    parser.description, parser.epilog = _SETTINGS, EXIT_STATUS
    parser.add_argument("location", metavar="LOCATION", nargs="?", help=LOCATION)
    add_settings(parser)
    parser.set_defaults(run=_settings)


def fill_health(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal health`."""
    add_log(parser, "Checks that a log can be read, whether its writer is alive, and that its disk has room. Ends with 1 if not.")
    parser.add_argument("--writer", action="store_true", help="a log that no process has open for writing is a finding too")
    parser.set_defaults(run=_health)


def fill_top(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal top`."""
    add_log(parser, "Shows the log, its pchannels, cursors and latencies again and again, until it is interrupted.")
    parser.add_argument("--interval", metavar="TIME", type=seconds(0.01), default=2.0, help="the time between two looks (default 2s)")
    parser.add_argument("-n", "--count", metavar="N", type=whole(1), help="ends after N tables")
    parser.set_defaults(run=_top)


def _show(arguments: argparse.Namespace, rows: Rows, kind: type[Row] | None = None) -> int:
    show(_rows(arguments, rows), arguments, kind)
    return 0


def _rows(arguments: argparse.Namespace, rows: Rows) -> list[Row]:
    async def collected() -> list[Row]:
        async with opened(arguments) as log:
            return await rows(log, details)

    with details_of(arguments) as details:
        return asyncio.run(collected())


def _log_rows(arguments: argparse.Namespace) -> Rows:
    location = str(parse_location(arguments.location))

    async def rows(log: WALAccesser, details: OutsideDetails) -> list[Row]:
        return [*await builders.log_rows(log, location, details)]

    return rows


async def _cursor_rows(log: WALAccesser, details: OutsideDetails) -> list[Row]:
    return [*await builders.cursor_rows(log, details)]


def _cursors(arguments: argparse.Namespace) -> int:
    field, limit = _limit(arguments.max_lag)
    damaged: list[DamagedCursor] = []

    async def shown(log: WALAccesser, details: OutsideDetails) -> list[Row]:
        if parse_location(arguments.location).servers is None:  # the log warns of each
            saved = await in_thread(cast("PinnedCursors", details.core.source.cursors).load_all)
            damaged.extend(cursor for cursor in saved if isinstance(cursor, DamagedCursor))
        return await _cursor_rows(log, details)

    rows = _rows(arguments, shown)
    show(rows, arguments, CursorRow)
    if damaged:
        return EXIT_FINDING
    if not field:
        return 0
    over = [row for row in rows if getattr(row, "stale") or (getattr(row, field) or 0) > limit]  # noqa: B009 - rows of one kind
    return EXIT_FINDING if over else 0


def _limit(text: str | None) -> tuple[str, float]:
    """Returns the field of a cursor's row that a limit is for, and the limit."""
    if text is None:
        return "", 0.0
    if text.isascii() and text.isdigit():
        return "lag_messages", whole_number("--max-lag", text, 0, 1 << 53)
    with contextlib.suppress(InvalidArgumentError):
        return "lag_bytes", setting_from_text("--max-lag", "retention_bytes", text)
    with contextlib.suppress(InvalidArgumentError):
        return "lag_s", seconds_from_text("--max-lag", text)
    raise InvalidArgumentError(f"--max-lag {shortened(text)} is not a number of messages (1000), a size (64MiB) or a time (30s)")


def _broadcasts(arguments: argparse.Namespace) -> int:
    show(asyncio.run(unfinished_broadcasts(arguments)), arguments, BroadcastRow)
    return 0


async def unfinished_broadcasts(arguments: argparse.Namespace) -> list[BroadcastRow]:
    """Returns the unfinished broadcasts, from the files or from the server."""
    location = parse_location(arguments.location)
    if location.servers is not None:
        async with opened(arguments, write=True) as log:
            return builders.broadcast_rows(await log.broadcast().tasks())
    from wal.operate.inspect.broadcasts import broadcasts_of

    def rows() -> list[BroadcastRow]:
        with details_of(arguments) as details:
            return broadcasts_of(details.core, location.path, settings_of(arguments)[0])

    return await in_thread(rows)


def _health(arguments: argparse.Namespace) -> int:
    location = parse_location(arguments.location)
    rows = builders.health_rows(_rows(arguments, _log_rows(arguments)))
    try:
        rows += builders.health_rows(_consumer_rows(arguments) or ())
        rows += _archive_health(arguments)
    except WALError as error:  # without the service's token
        rows.append(HealthRow(check="consumers", ok=True, detail=f"not known: {error}"))
    if arguments.writer:
        rows = [HealthRow(check=row.check, ok=row.ok and "has the log open for" in row.detail, detail=row.detail) if row.check == "writer"
                else row for row in rows]  # fmt: skip
    if location.path is not None:
        from wal.operate.cli.check import segments_row
        from wal.storage.files import free_bytes

        free = free_bytes(location.path)
        room = free is None or free >= _FREE_BYTES_MIN
        rows.append(segments_row(location.path))
        rows.append(HealthRow(check="disk", ok=room, detail=f"{free} bytes are free, of at least {_FREE_BYTES_MIN} that it should have"))
    show(rows, arguments)
    return 0 if all(row.ok for row in rows) else EXIT_FINDING


def _settings(arguments: argparse.Namespace) -> int:
    settings, sources = settings_of(arguments)
    if arguments.location is None:
        show(builders.setting_rows(settings, sources), arguments)
        return 0
    if (service := StatusService.of(parse_location(arguments.location), settings)) is not None:
        answer = service.get("/api/settings?limit=500")
        fields = [{name: row[name] for name in SettingRow.__struct_fields__} for row in answer["rows"]]
        show([SettingRow(**row) for row in fields], arguments)
        return 0
    with details_of(arguments) as details:  # the log has these two of its settings stored
        count, compression = len(details.core.logs), details.compression()
    settings, sources = settings.replace(pchannels=count), {**sources, "pchannels": "log"}
    if compression is not None:
        settings, sources["compression"] = settings.replace(compression="zstd" if compression == "zstd" else "none"), "log"
    show(builders.setting_rows(settings, sources), arguments)
    return 0


def _consumer_rows(arguments: argparse.Namespace) -> list[Row] | None:
    """Returns the consumers of the process that writes a journal, or that share cursors of a log on the network; None if the process
    serves no status page, or the log is neither.
    """
    location, (settings, _) = parse_location(arguments.location), settings_of(arguments)
    if location.servers is not None:

        async def shared() -> list[Row]:
            async with opened(arguments) as log:
                return [*builders.consumer_rows(await log.shared_consumers())]

        return asyncio.run(shared())
    if location.path is None or (service := StatusService.of(location, settings)) is None:
        return None
    return [msgspec.convert(row, ConsumerRow) for row in service.get("/api/consumers?limit=500")["rows"]]


def _archive_health(arguments: argparse.Namespace) -> list[HealthRow]:
    """Returns the health of the archive of a journal whose writer archives it and serves a status page."""
    location, (settings, _) = parse_location(arguments.location), settings_of(arguments)
    if location.path is None or (service := StatusService.of(location, settings)) is None:
        return []
    rows = [msgspec.convert(row, HealthRow) for row in service.get("/api/health?limit=500")["rows"]]
    return [row for row in rows if row.check == "archive"]


def _consumers(arguments: argparse.Namespace) -> int:
    from wal.operate.inspect.outside import writer_of

    location = parse_location(arguments.location)
    if location.path is None and location.servers is None:
        raise InvalidArgumentError(
            f"the consumers of {location} are visible only in the processes that run them: look at their status pages or metrics, and "
            "at `wal cursors` for the saved positions"
        )
    if (consumers := _consumer_rows(arguments)) is not None:
        pass
    elif location.path is not None and (writer := writer_of(location.path)).state == "open":
        raise LockedError(
            f"the journal {location.path} is open in process {writer.pid or 'that cannot be seen from here'}, where its consumers "
            "run: serve its status page there (log.serve_status), or look at `wal cursors`",
            pid=writer.pid,
        )
    else:
        with details_of(arguments):  # there is a log
            pass
    show(consumers or (), arguments, ConsumerRow)
    return 0


def _top(arguments: argparse.Namespace) -> int:
    location = parse_location(arguments.location)
    before: dict[str, Counts] = {}
    count = 0
    while arguments.count is None or count < arguments.count:
        if count:
            time.sleep(arguments.interval)
        rows = [*_rows(arguments, _log_rows(arguments)), *_rows(arguments, _cursor_rows)]
        rows += _latencies(arguments, location, rows, before)
        if not arguments.json and sys.stdout.isatty():
            sys.stdout.write("\x1b[H\x1b[2J")
        if arguments.json:
            show(rows, arguments)
        else:
            sys.stdout.write(tables(rows) + "\n")
        sys.stdout.flush()
        count += 1
    return 0


def _latencies(arguments: argparse.Namespace, location: Location, rows: list[Row], before: dict[str, Counts]) -> list[Row]:
    """Returns the latencies of each pchannel since the previous table, whose counts are in `before`, from the writer's status service."""
    live: dict[str, Any] = {}
    with contextlib.suppress(WALError):  # no service, or no answer: unknown
        if (service := StatusService.of(location, settings_of(arguments)[0])) is not None:
            live = {each["name"]: each for each in service.get("/api/live")["pchannels"]}
    latencies: list[Row] = []
    for name in (row.pchannel for row in rows if isinstance(row, PChannelRow)):
        figures: dict[str, Any] = {}
        if (now := live.get(name)) is not None:
            counts = {each: now[each]["counts"] for each in _LATENCIES}
            old = before.get(name, {})
            if any(any(map(operator.lt, counts[each], old[each])) for each in old):  # it was opened again
                old = {}
            before[name] = counts
            for each, new in counts.items():
                since = list(map(operator.sub, new, old[each])) if old else new
                for at, share in (("p50", 0.5), ("p99", 0.99)):
                    figures[f"{each.removesuffix('_s')}_{at}_s"] = builders.quantile(now[each]["bounds"], since, share)
                figures["frames"] = sum(since)
        latencies.append(LatencyRow(pchannel=name, **figures))
    return latencies
