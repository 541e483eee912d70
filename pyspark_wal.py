"""What Spark finds by itself: a top-level module `pyspark_…` with a `DefaultSource` makes `spark.read.format("wal")` work.

Every session imports it when it looks for Python data sources, and an error here would break the look-up of all of them: so it imports
pyspark alone, and the rest when the format is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """The format "wal": batch and stream reads, and writes. What it does stands in `wal.spark.data_source`."""

    @classmethod
    def name(cls) -> str:
        return "wal"

    def schema(self) -> str:
        from wal.spark import data_source

        return data_source.schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from wal.spark import data_source

        return data_source.reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from wal.spark import data_source

        return data_source.stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from wal.spark import data_source

        return data_source.writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from wal.spark import data_source

        return data_source.stream_writer(self.options, schema, overwrite)
