"""`wal dump LOCATION --frames`: the stored frames of a log, each with its header and its content, for the diagnosis of a log.

It reads the heads of frames beside the writer, and no body. `docs/reference/frame-format.md` explains the fields.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Final

from wal.errors import InvalidArgumentError
from wal.message import MessageID
from wal.operate.cli.output import add_log, details_of, show, whole
from wal.operate.inspect.points import Point, parse_point, tick_of
from wal.operate.inspect.rows import Row, row_of
from wal.timestamp.timestamp import to_datetime

if TYPE_CHECKING:
    from wal.storage.base import StoredFrame
    from wal.storage.read_only import ReadOnlyPChannelLog

_TABLE: Final = 200
"""The number of rows in one printed table: a dump of a whole log is printed while it is read."""


class FrameRow(Row, frozen=True, kw_only=True, tag="frame"):
    """One frame: its position in the log, its header, and its vchannels. `holds` lists the records that recovery reads: keys, broadcasts,
    cursors.
    """

    pchannel: str
    position: int
    bytes: int
    term: int
    sequence: int
    first_tick: int
    promised_tick: int
    time: datetime
    events: int
    records: int
    codec: str
    holds: tuple[str, ...]
    vchannels: tuple[str, ...]


def fill_dump(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal dump`."""
    add_log(parser, "Prints the frames of a log as they are stored: position, size, term, sequence, ticks, and the vchannels in each.")
    parser.add_argument("--frames", action="store_true", required=True, help="prints a row for each frame")
    parser.add_argument("--pchannel", metavar="NAME", help="of this pchannel only, such as p0")
    parser.add_argument("--since", metavar="POINT", help="from a time ago (10m), a time, a tick or an id on")
    parser.add_argument("-n", "--lines", metavar="N", type=whole(0), help="at most N frames of each pchannel")
    parser.set_defaults(run=_dump)


def _dump(arguments: argparse.Namespace) -> int:
    since = None if arguments.since is None else parse_point("--since", arguments.since)
    with details_of(arguments) as details:
        logs = details.core.logs
        if arguments.pchannel not in (None, *logs):
            raise InvalidArgumentError(f"no pchannel {arguments.pchannel!r}: the log has {', '.join(logs)}")
        for name, log in logs.items():
            if arguments.pchannel in (None, name):
                rows = islice((_row(name, frame) for frame in _frames(log, since)), arguments.lines)
                while batch := list(islice(rows, _TABLE)):
                    show(batch, arguments)
    return 0


def _frames(log: ReadOnlyPChannelLog, since: Point | None) -> Iterator[StoredFrame]:
    snapshot = log.reach()
    start = snapshot.earliest
    if isinstance(since, MessageID):
        if since.pchannel != log.pchannel:
            return
        start = max(start, (since.position, since.index))
    elif since is not None:
        start = max(start, log.position_after(tick_of(since) - 1, start[0], snapshot.durable_end))
    yield from log.frames(start[0], snapshot.durable_end)


def _row(pchannel: str, frame: StoredFrame) -> FrameRow:
    from wal.frame import BROADCAST, CURSORS, KEYED

    header = frame.view.header
    flags = {"keys": KEYED, "broadcasts": BROADCAST, "cursors": CURSORS}
    return row_of(
        FrameRow,
        header,
        pchannel=pchannel,
        position=frame.position,
        bytes=header.frame_bytes,
        time=to_datetime(header.first_tick),
        events=header.indices,
        codec="zstd" if header.codec else "none",
        holds=tuple(name for name, flag in flags.items() if header.compatible & flag),
        vchannels=tuple(dict.fromkeys(run.name for run in frame.view.runs if run.name)),
    )
