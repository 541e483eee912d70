"""WALReader: a batch read, planned once in the driver and read in tasks. By default a snapshot of the whole log at one tick."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from wal.spark.edges import at_edge, at_start, check_named, start_of, warn_of_unknown
from wal.spark.frame_source import FrameLogs, LogMoment
from wal.spark.offsets import Place
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
"""A task reads at least so much: starting one takes about as long as reading it."""


class WALReader(DataSourceReader):
    """Made in several processes and pickled to the tasks: it holds what was asked for, and nothing open."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = check_schema(schema)
        self._source = source_of(options.location)

    def partitions(self) -> list[InputPartition]:
        """Plans the read: each call sees the log as it is then."""
        options = self._options
        logs = opened(self._source)
        names = list(logs.pchannels())
        check_named(options.starting, names, "startingOffsets")
        check_named(options.ending, names, "endingOffsets", complete=True)
        warn_of_unknown(options, logs.lives())
        ends = self._ends(logs)
        moments = {name: logs.moment(name) for name in ends}
        pieces = []
        for name, moment in moments.items():
            start = start_of(moment, at_start(logs, moment, options).place, fail_on_data_loss=options.fail_on_data_loss)
            pieces.append(Piece(name, start, ends[name]))
        return [*share(logs, self._template(logs, moments), pieces, options.partitions_max)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, WALPartition)
        return read_partition(partition, arrow_schema(self._schema), self._columns)

    def _ends(self, logs: FrameLogs) -> dict[str, Place]:
        options = self._options
        if isinstance(options.ending, str):
            return dict(take_snapshot(logs, time_tick=options.ending_tick, timeout_s=options.tick_timeout_s).ends)
        return {name: at_edge(logs.moment(name), options.ending).place for name in logs.pchannels()}

    def _template(self, logs: FrameLogs, moments: dict[str, LogMoment]) -> WALPartition:
        options = self._options
        lives = logs.lives()
        named = options.channels.names or ()
        return WALPartition(
            self._source,
            options.channels,
            origins={name: moment.origin for name, moment in moments.items()},
            lives={name: life for name in named if (life := lives.current(name)) is not None},
            types=options.types,
            fail_on_data_loss=options.fail_on_data_loss,
        )


def share(
    logs: FrameLogs, template: WALPartition, pieces: list[Piece], partitions_max: int | None
) -> list[WALPartition]:
    """These pieces as partitions like this one, at least one of them."""
    ranges = []
    for piece in pieces:
        if piece.start < piece.end:
            stop = piece.end[0] + (1 if piece.end[1] else 0)
            ranges.append((piece, logs.weights(piece.pchannel, piece.start[0], stop, template.choice)))
    shares = share_out(ranges, partitions_max=partitions_max or partitions_default(), bytes_min=PARTITION_BYTES)
    return [template.with_pieces(tuple(some)) for some in shares or [[]]]


def partitions_default() -> int:
    """How many tasks a read has without maxPartitions: this process's cores, 2 at least. Spark does not tell a source what it has."""
    return max(2, len(os.sched_getaffinity(0)))
