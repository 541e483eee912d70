"""Ways to read a part of a log in Spark: what a filter, fewer columns and the size of Arrow batches cost or gain.

    python -m benchmarks.spark_ways [rounds, default 7] [payload bytes, default 1024]

A log of 200 MB of payloads has eight vchannels, which share all frames. The ways take turns, in reversed order every round, into Spark's
`noop` sink; the first round is not counted. For each way this prints the median seconds, the median processor time of all processes, and
the median of its ratios to the whole batch of the same round, by the clock and by processor time.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from pyspark.sql.datasource import CaseInsensitiveDict, DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.cell import Row
from benchmarks.process_tree import tree_cpu_s
from benchmarks.spark import SETTINGS, TRIGGER_ROWS, to_noop, write_log
from benchmarks.stores import vchannel_name
from pyspark_wal import DefaultSource
from wal.spark import local_session, row_reader

LOG_BYTES: Final = 200 << 20
VCHANNELS: Final = 8
WHOLE: Final = "batch of all rows"
_DEFAULTS: Final = (7, 1024)


class SizedSource(DataSource):
    """The format "wal" with Arrow batches of another size: the options `batch_rows` and `batch_bytes`."""

    @classmethod
    def name(cls) -> str:
        return "wal_benchmark_sized"

    def schema(self) -> str:
        return row_reader.DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        options = dict(self.options)
        sizes = int(options.pop("batch_rows")), int(options.pop("batch_bytes"))
        return _SizedReader(DefaultSource(CaseInsensitiveDict(options)).reader(schema), *sizes)


class _SizedReader(DataSourceReader):
    def __init__(self, reader: DataSourceReader, batch_rows: int, batch_bytes: int) -> None:
        self._reader = reader
        self._sizes = batch_rows, batch_bytes

    def partitions(self) -> Sequence[InputPartition]:
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        before = row_reader.BATCH_ROWS, row_reader.BATCH_BYTES
        row_reader.BATCH_ROWS, row_reader.BATCH_BYTES = self._sizes  # type: ignore[misc]
        try:
            yield from self._reader.read(partition)
        finally:  # the process goes on with other tasks
            row_reader.BATCH_ROWS, row_reader.BATCH_BYTES = before  # type: ignore[misc]


def ways(spark: Any, log: str) -> dict[str, Callable[[], None]]:
    """Returns each way as a call that reads."""
    one = vchannel_name(VCHANNELS // 2)

    def read(**options: object) -> Any:
        return spark.read.format("wal").options(**options)

    def sized(rows: int, size: int) -> Callable[[], None]:
        options = {"batch_rows": rows, "batch_bytes": size}
        return lambda: to_noop(spark.read.format("wal_benchmark_sized").options(**options).load(log))

    def stream(schema: str = row_reader.DDL) -> None:
        reader = spark.readStream.format("wal").schema(schema)
        with tempfile.TemporaryDirectory() as checkpoint:
            query = (
                reader.options(startingOffsets="earliest", maxMessagesPerTrigger=TRIGGER_ROWS)
                .load(log)
                .writeStream.format("noop")
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

    no_properties = ", ".join(f"{name} {kind}" for name, kind in row_reader.COLUMNS.items() if name != "properties")
    return {
        WHOLE: lambda: to_noop(read().load(log)),
        "one vchannel, filtered by Spark": lambda: to_noop(read().load(log).filter(f"vchannel = '{one}'")),
        "one vchannel, pushed filter": lambda: to_noop(read(pushFilters=True).load(log).filter(f"vchannel = '{one}'")),
        "one vchannel, option": lambda: to_noop(read(vchannels=one).load(log)),
        "batches of 4,096 rows, 1 MiB": sized(4096, 1 << 20),
        "batches of 65,536 rows, 16 MiB": sized(65536, 16 << 20),
        "without properties": lambda: to_noop(read().schema(no_properties).load(log)),
        "vchannel and tick alone": lambda: to_noop(read().schema("vchannel string, time_tick bigint").load(log)),
        "stream of all rows": stream,
        "stream of vchannel and tick alone": lambda: stream("vchannel string, time_tick bigint"),
    }


def main(rounds: int, payload_bytes: int) -> None:
    row = Row(
        workload="spark",
        engines=(),
        payload_bytes=payload_bytes,
        properties=4,
        vchannels=VCHANNELS,
        messages=LOG_BYTES // payload_bytes // 256 * 256,
    )
    spark = local_session.session("wal-benchmarks", settings=SETTINGS)
    try:
        spark.dataSource.register(SizedSource)
        with tempfile.TemporaryDirectory() as directory:
            log = str(Path(directory) / "log")
            asyncio.run(write_log(row, Path(log)))
            calls = ways(spark, log)
            seconds: dict[str, list[float]] = {name: [] for name in calls}
            cpu_s: dict[str, list[float]] = {name: [] for name in calls}
            for turn in range(rounds + 1):
                for name in list(calls) if turn % 2 else list(calls)[::-1]:
                    cpu_before, began = tree_cpu_s(), time.perf_counter()
                    calls[name]()
                    if turn:
                        seconds[name].append(time.perf_counter() - began)
                        cpu_s[name].append(tree_cpu_s() - cpu_before)
    finally:
        spark.stop()
    print(f"{row.messages:,} messages of {payload_bytes} B, {rounds} rounds          s   cpu s  /batch  cpu/batch")
    for name in calls:
        ratios = [median(mine / whole for mine, whole in zip(each[name], each[WHOLE], strict=True)) for each in (seconds, cpu_s)]
        print(f"{name:45} {median(seconds[name]):6.2f}  {median(cpu_s[name]):6.2f}  {ratios[0]:6.2f}  {ratios[1]:9.2f}")


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]]
    main(*numbers, *_DEFAULTS[len(numbers) :])
