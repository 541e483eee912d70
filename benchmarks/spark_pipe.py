"""PipeSource: yields ready batches to Spark repeatedly: the upper bound for the speed of a Python source.

Owns a data source of the log's columns that decodes one batch of a journal in each of two tasks and then yields the same batch until it has
yielded its share of `rows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from wal.bridge import record_batches
from wal.spark.row_reader import DDL, arrow_schema

_BATCH_ROWS = 16384
_TASKS = 2


class PipeSource(DataSource):
    """Options: `path`, a journal with a vchannel `orders-0000`, and `rows`."""

    @classmethod
    def name(cls) -> str:
        return "wal_benchmark_pipe"

    def schema(self) -> str:
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self.options["path"], int(self.options["rows"]), schema)


class _Reader(DataSourceReader):
    def __init__(self, path: str, rows: int, schema: StructType) -> None:
        self._path, self._rows, self._schema = path, rows, schema

    def partitions(self) -> Sequence[InputPartition]:
        each = self._rows // _TASKS
        return [InputPartition(each)] * (_TASKS - 1) + [InputPartition(self._rows - each * (_TASKS - 1))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa

        with record_batches(self._path, "orders-0000", follow=False, rows_max=_BATCH_ROWS, bytes_max=4 << 20) as batches:
            ready = next(batches)
        batch = pa.RecordBatch.from_arrays(ready.columns, schema=arrow_schema(self._schema))
        remaining = partition.value
        while remaining > 0:
            yield batch.slice(0, remaining)
            remaining -= batch.num_rows
