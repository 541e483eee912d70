"""Rows of a task: turns the pieces of a partition into Arrow batches, in the task's own process; and the columns of a row.

Owns one `Progress` for each piece, the class that also drives scanners and the bridge, and cuts frames at the piece's last event. Each
event of a piece is read once and whole; an error is raised if one cannot be read. A task holds at most a page of frames and a batch of
rows. An early close, as by a LIMIT, releases everything.

A read may name some of the columns, in any order, each with its own type. Fewer columns mean fewer bytes sent to Spark; this is the only
projection that a Python source has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from wal.api.arrow import record_batch
from wal.api.row_pages import RowPages
from wal.errors import ClosedError, InvalidArgumentError, TruncatedError
from wal.message import ImmutableMessage, LogPosition
from wal.read.columns import RowColumns
from wal.read.frame_rows import FrameRows, in_parts
from wal.read.options import All, EventFilter, ReadOptions
from wal.read.progress import Need, Progress
from wal.spark.edges import start_of
from wal.spark.frame_source import FrameLogs, opened
from wal.spark.partition import RowSelection, WALPartition
from wal.spark.planning import EventRange, EventWeight
from wal.storage.base import FramePage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


BATCH_ROWS: Final = 16384
BATCH_BYTES: Final = 4 << 20
"""Larger batches take less processor time for each row, up to about 4 MB; small rows need 16,384 of them for that."""
_PAGE_BYTES: Final = 1 << 20
COLUMNS: Final = {
    "vchannel": "string",
    "message_id": "binary",
    "time_tick": "bigint",
    "message_type": "string",
    "txn_id": "bigint",
    "payload": "binary",
    "properties": "map<string,string>",
    "append_time": "timestamp",
}
DDL: Final = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
"""The default schema of a read, as DDL."""
NULLABLE: Final = "txn_id"


def read_partition(partition: WALPartition, schema: pa.Schema, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yields the rows of this partition: these columns, in batches of this Arrow schema, of at most BATCH_ROWS rows.

    Raises TruncatedError when some of them were truncated and the partition does not allow that; CorruptionError for damage.
    """
    logs = opened(partition.source)
    for piece in partition.pieces:
        for rows in _read_piece(logs, partition, piece, columns):
            yield from _batches(rows, schema)


def event_weights(logs: FrameLogs, partition: WALPartition, pchannel: str, start: LogPosition, end: int) -> list[EventWeight]:
    """Returns the weights of a partition's events in the first frame that has any, from `start` on, up to position `end`."""
    piece = EventRange(pchannel, start, (end, 0))
    progress = _begin(logs, partition, piece, start)
    while (need := progress.step(_Tail(end))) is not Need.OVER:
        if need is Need.PAGE:
            progress.take(_page(logs, piece, progress))
        elif progress.assemble():
            return [
                EventWeight(message._index, len(bodies), sum(len(body.payload) for body in bodies))
                for message in progress.messages
                if (bodies := message.bodies()) is not None
            ]
    return []


def _read_piece(logs: FrameLogs, partition: WALPartition, piece: EventRange, columns: Sequence[str]) -> Iterator[RowColumns]:
    """Yields the rows of one piece, which belong to one log, in batches."""
    rows = RowColumns(columns)
    start = piece.start
    while True:
        moment = logs.moment(piece.pchannel)
        if moment.origin.message_id(0) != partition.origins[piece.pchannel].message_id(0):
            raise ClosedError(f"the log of pchannel {piece.pchannel!r} was recreated since this was planned: read it with a new query")
        start = start_of(moment, start, fail_on_data_loss=partition.fail_on_data_loss)
        progress = _begin(logs, partition, piece, start)
        row_pages = RowPages(lambda request: logs.rows_page(piece.pchannel, request))
        try:
            while (need := progress.step(_Tail(_stop(piece)))) is not Need.OVER:
                if need is Need.FRAME:
                    for part in _take_frame(progress, piece):
                        if isinstance(part, FrameRows):
                            rows.add_frame(part)
                        else:
                            rows.add_messages([part])
                        if rows.rows >= BATCH_ROWS or rows.size >= BATCH_BYTES:
                            full, rows = rows, RowColumns(columns)
                            yield full
                    continue
                rows_max, bytes_max = BATCH_ROWS - rows.rows, BATCH_BYTES - rows.size
                # The last frame may hold events after the end of the piece.
                if not row_pages.take(progress, rows, rows_max=rows_max, bytes_max=bytes_max, end=piece.end[0]):
                    progress.take(_page(logs, piece, progress))
                elif rows.rows >= BATCH_ROWS or rows.size >= BATCH_BYTES:
                    full, rows = rows, RowColumns(columns)
                    yield full
            break
        except TruncatedError:
            start = progress.reached.position
            if start >= logs.moment(piece.pchannel).earliest:
                raise
    if rows.rows:
        yield rows


def _take_frame(progress: Progress, piece: EventRange) -> Iterable[FrameRows] | Iterable[ImmutableMessage]:
    """Takes the current frame; returns its rows, or its messages if they have to be selected one by one."""
    position, index = piece.end
    cut = index if index and progress.frame.position >= position else None
    if (rows := progress.rows(end=cut)) is not None:
        return in_parts(rows, bytes_max=BATCH_BYTES)
    progress.assemble()
    progress.hand_over(len(progress.messages))
    return [message for message in progress.messages if cut is None or message._index < cut]


def _page(logs: FrameLogs, piece: EventRange, progress: Progress) -> FramePage:
    """Returns the page of frames for the read of this piece."""
    return logs.page(piece.pchannel, progress.at, progress.page_end, progress.selection.names, _PAGE_BYTES)


def _begin(logs: FrameLogs, partition: WALPartition, piece: EventRange, start: LogPosition) -> Progress:
    """Returns a read of a piece from `start` on."""
    pchannel, stop = piece.pchannel, _stop(piece)
    logs.check_durable(pchannel, stop)
    names = logs.names(pchannel, start[0], stop, partition.choice)
    selection = RowSelection(pchannel, names, partition, logs.vchannels())
    progress = Progress(ReadOptions((), All(), EventFilter(types=partition.types), follow=False))
    progress.go_on(start, None)
    progress.begin(partition.origins[pchannel], selection, _Tail(stop), start)
    return progress


def _stop(piece: EventRange) -> int:
    """Returns the end of the frames of this piece: after the frame that contains the piece's end."""
    position, index = piece.end
    return position + 1 if index else position


def _batches(rows: RowColumns, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    batch = record_batch(rows)
    batch = pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    for first in range(0, batch.num_rows, BATCH_ROWS):
        yield batch.slice(first, BATCH_ROWS)


def check_schema(schema: StructType) -> tuple[str, ...]:
    """Returns the column names of this schema. Raises InvalidArgumentError, with the accepted ones, for any other column or type."""
    names: list[str] = []
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if COLUMNS.get(field.name) != kind:
            raise InvalidArgumentError(f"the format 'wal' has no column {field.name} {kind}: its columns are {DDL}")
        if field.name in names:
            raise InvalidArgumentError(f"the column {field.name} is given twice: name it once")
        if field.name == NULLABLE and not field.nullable:
            raise InvalidArgumentError(f"{NULLABLE} is null for messages outside transactions: it cannot be NOT NULL")
        names.append(field.name)
    if not names:
        raise InvalidArgumentError(f"the schema names no column: choose some of {DDL}")
    return tuple(names)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Returns the schema that Spark expects of the batches and compares field by field, including nullability."""
    from pyspark.sql.pandas.types import to_arrow_schema

    expected_schema: Any = to_arrow_schema(schema, timezone="UTC")
    return expected_schema


class _Tail(msgspec.Struct, frozen=True):
    """The tail of a log that ends at the end of the piece. See `TailView`."""

    durable_end: int
    promised_tick: int = (1 << 64) - 1
    newest: tuple[int, int] | None = None
    failure: BaseException | None = None
