"""WALReader: a batch read, planned in the driver and executed in tasks. By default it reads a snapshot of the whole log at one tick."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from wal.spark.edges import at_edge, at_start, check_named, start_of, warn_of_unknown
from wal.spark.frame_source import FrameLogs, LogMoment
from wal.spark.offsets import LogPosition
from wal.spark.options import SourceOptions
from wal.spark.partition import WALPartition
from wal.spark.planning import Piece, share_out
from wal.spark.row_reader import arrow_schema, check_schema, read_partition
from wal.spark.snapshot import take_snapshot
from wal.spark.sources import opened, source_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["PARTITION_BYTES", "WALReader", "partitions_default", "share"]

PARTITION_BYTES: Final = 8 << 20
"""A task reads at least this many bytes: starting it takes about as long as reading them."""


class WALReader(DataSourceReader):
    """Plans and reads a batch. Spark creates it in several processes and pickles it to tasks, so it holds the options and nothing open."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = check_schema(schema)
        self._source = source_of(options.location)

    def partitions(self) -> list[InputPartition]:
        """Plans the read of the log as it is now."""
        options = self._options
        logs = opened(self._source)
        names = list(logs.pchannels())
        check_named(options.starting, names, "startingOffsets")
        check_named(options.ending, names, "endingOffsets", complete=True)
        warn_of_unknown(options, logs.vchannels())
        ends = self._ends(logs)
        moments = {name: logs.moment(name) for name in ends}
        pieces = []
        for name, moment in moments.items():
            start = start_of(
                moment, at_start(logs, moment, options).log_position, fail_on_data_loss=options.fail_on_data_loss
            )
            pieces.append(Piece(name, start, ends[name]))
        return [*share(logs, self._template(logs, moments), pieces, options.partitions_max)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, WALPartition)
        return read_partition(partition, arrow_schema(self._schema), self._columns)

    def _ends(self, logs: FrameLogs) -> dict[str, LogPosition]:
        options = self._options
        if isinstance(options.ending, str):
            return dict(take_snapshot(logs, time_tick=options.ending_tick, timeout_s=options.tick_timeout_s).ends)
        return {name: at_edge(logs.moment(name), options.ending).log_position for name in logs.pchannels()}

    def _template(self, logs: FrameLogs, moments: dict[str, LogMoment]) -> WALPartition:
        options = self._options
        known = logs.vchannels()
        named = options.channels.names or ()
        return WALPartition(
            self._source,
            options.channels,
            origins={name: moment.origin for name, moment in moments.items()},
            incarnations={name: incarnation for name in named if (incarnation := known.current(name)) is not None},
            types=options.types,
            fail_on_data_loss=options.fail_on_data_loss,
        )


def share(
    logs: FrameLogs, template: WALPartition, pieces: list[Piece], partitions_max: int | None
) -> list[WALPartition]:
    """Divides these pieces among partitions like the template; returns at least one."""
    ranges = []
    for piece in pieces:
        if piece.start < piece.end:
            stop = piece.end[0] + (1 if piece.end[1] else 0)
            ranges.append((piece, logs.weights(piece.pchannel, piece.start[0], stop, template.choice)))
    shares = share_out(ranges, partitions_max=partitions_max or partitions_default(), bytes_min=PARTITION_BYTES)
    return [template.with_pieces(tuple(some)) for some in shares or [[]]]


def partitions_default() -> int:
    """Returns how many tasks a read has without maxPartitions: the cores of this process, at least 2."""
    return max(2, len(os.sched_getaffinity(0)))
