"""The module that makes `spark.read.format("wal")` work: Spark discovers a top-level module `pyspark_…` with a `DefaultSource`.

Every session imports it when it searches for Python data sources, and an error here would break the lookup of all of them. So it imports
only pyspark, and the rest when the format is used. The options are checked where a reader or writer is created, so that a mistake raises
before anything runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """The format "wal": batch and stream reads, and writes. `wal.spark` does the work."""

    @classmethod
    def name(cls) -> str:
        return "wal"

    def schema(self) -> str:
        from wal.spark.local_session import require_pyspark

        require_pyspark()
        from wal.spark.row_reader import DDL

        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        from wal.spark.local_session import require_pyspark

        require_pyspark()
        from wal.spark.batch_reader import batch_reader
        from wal.spark.options import SourceOptions

        return batch_reader(SourceOptions.of(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from wal.spark.local_session import require_pyspark

        require_pyspark()
        from wal.spark.options import SourceOptions
        from wal.spark.stream_reader import WALStreamReader

        return WALStreamReader(SourceOptions.of(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from wal.spark.local_session import require_pyspark

        require_pyspark()
        from wal.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from wal.spark.local_session import require_pyspark

        require_pyspark()
        from wal.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)
