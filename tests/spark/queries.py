"""Plays Spark's part around a reader, without a JVM: planning, pickling to tasks, micro-batches with a checkpoint, and restarts."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType, TimestampType

from pyspark_wal import DefaultSource
from tests.probes import row_of
from wal.bridge import iterate
from wal.message import MessageID
from wal.spark import row_reader
from wal.spark.partition import WALPartition
from wal.spark.row_reader import COLUMNS

Row = dict[str, Any]
Where = str | Path | Mapping[str, str]
"""A journal's directory, or the options that name a log."""
TYPES = {
    "string": StringType(),
    "binary": BinaryType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
}


def schema(*names: str) -> StructType:
    """Returns a schema of these columns, all by default."""
    return StructType([StructField(name, TYPES[COLUMNS[name]]) for name in names or COLUMNS])


def source(data: Where, **options: object) -> DefaultSource:
    where = data if isinstance(data, Mapping) else {"path": str(data)}
    return DefaultSource(CaseInsensitiveDict({**where, **{name: str(value) for name, value in options.items()}}))


def plan(data: Where, **options: object) -> tuple[Any, list[WALPartition]]:
    """Returns a batch reader as tasks get it, and its partitions."""
    reader = source(data, **options).reader(schema())
    partitions = reader.partitions()
    return pickle.loads(pickle.dumps(reader)), pickle.loads(pickle.dumps(partitions))


def batch(data: Where, **options: object) -> list[Row]:
    """Returns the rows of a batch read."""
    reader, partitions = plan(data, **options)
    return read_all(reader, partitions)


def read_all(reader: Any, partitions: Sequence[InputPartition], columns: StructType | None = None) -> list[Row]:
    """Returns the rows of the tasks, in the order of the partitions, and checks that each batch is as Spark requires it."""
    wanted = to_arrow_schema(columns or schema(), timezone="UTC")
    rows: list[Row] = []
    for partition in partitions:
        for found in reader.read(partition):
            assert isinstance(found, pa.RecordBatch)
            assert wanted.equals(found.schema)
            assert 0 < found.num_rows <= row_reader.BATCH_ROWS
            found.validate(full=True)
            rows += found.to_pylist()
    return rows


def expected(data: str | Path, *names: str) -> list[Row]:
    """Returns the rows of these vchannels from the messages of an iteration, vchannel by vchannel."""
    rows = []
    for name in names:
        with iterate(data, name, follow=False) as messages:
            rows += [row_of(body) for message in messages for body in message.bodies()]
    return rows


def place_of(row: Row) -> tuple[str, int, int]:
    found = MessageID.from_bytes(row["message_id"])
    return found.pchannel, found.position, found.index


class StreamQuery:
    """A streaming query with its checkpoint, which it keeps as text."""

    def __init__(self, data: Where, **options: object) -> None:
        self.data, self.options = data, options
        self.logged: list[str] = []
        """The offset log: the end of each batch."""
        self.committed = 0
        """The number of finished batches."""
        self.start()

    def start(self, *, available_now: bool = False) -> None:
        """Begins the query, or continues it after its process was lost."""
        reader: Any = source(self.data, **self.options).streamReader(schema())
        self.reader = reader
        if available_now:
            self.reader.prepareForTriggerAvailableNow()
        self.limit = self.reader.getDefaultReadLimit()
        self.at: str | None = None

    def plan(self) -> str | None:
        """Returns the end of the next batch, or None, as Spark constructs it."""
        if self.committed < len(self.logged):
            return self.logged[self.committed]  # it had begun, and runs again
        start = self.begin()
        end = json.dumps(self.reader.latestOffset(json.loads(start), self.limit))
        self.report = self.reader.reportLatestOffset()
        if end == start:
            return None
        self.logged.append(end)
        if self.committed:
            self.reader.commit(json.loads(self.logged[self.committed - 1]))
        return end

    def begin(self) -> str:
        if self.committed:
            return self.logged[self.committed - 1]
        return json.dumps(self.reader.initialOffset())

    def read(self, end: str) -> list[Row]:
        """Returns the rows of the batch up to this end."""
        reader = pickle.loads(pickle.dumps(self.reader))
        partitions = self.reader.partitions(json.loads(self.begin()), json.loads(end))
        return read_all(reader, pickle.loads(pickle.dumps(partitions)))

    def step(self) -> list[Row] | None:
        """Runs one batch and returns its rows; None without a batch."""
        end = self.plan()
        if end is None:
            return None
        rows = self.read(end)
        self.committed += 1
        return rows

    def run(self) -> list[list[Row]]:
        """Runs all batches, and returns their rows."""
        batches = []
        while (rows := self.step()) is not None:
            batches.append(rows)
        return batches
