"""What the format "wal" is made of: readers here, writers by `wal.spark.sink`. `pyspark_wal` hands over to it.

The options are checked where a reader or writer is made, so that a mistake is seen before anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from wal.spark.batch_reader import WALReader
from wal.spark.columns import DDL
from wal.spark.options import SourceOptions
from wal.spark.version import require_pyspark

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["reader", "schema", "stream_reader", "stream_writer", "writer"]


def schema(options: Mapping[str, str]) -> str:
    """All columns, as DDL."""
    require_pyspark()
    return DDL


def reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """The reader of a batch; InvalidArgumentError for options or columns that it does not have."""
    require_pyspark()
    return WALReader(SourceOptions.of(options, streaming=False), schema)


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """The reader of a stream; InvalidArgumentError for options or columns that it does not have."""
    require_pyspark()
    from wal.spark.stream_reader import WALStreamReader

    return WALStreamReader(SourceOptions.of(options, streaming=True), schema)


def writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """The writer of a batch, see `wal.spark.sink`."""
    require_pyspark()
    from wal.spark.sink import batch_writer

    return batch_writer(options, schema, overwrite)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """The writer of a stream, see `wal.spark.sink`."""
    require_pyspark()
    from wal.spark.sink import stream_writer

    return stream_writer(options, schema, overwrite)
