"""Plays Spark's part around a writer, without a JVM: planning, tasks, pickling in between; and reads the resulting log."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, MapType, StringType, StructField, StructType

from wal.bridge import blocking, iterate
from wal.settings import Settings
from wal.spark.sink import batch_writer, stream_writer
from wal.spark.sink.writer import BatchWriter, StreamWriter

QUERY = "5f6e0a5c-3b0b-4a63-9f6e-000000000001"
Task = Sequence[tuple[str, bytes]]
"""The rows of a task: vchannel and payload."""
_TYPES = {
    "vchannel": StringType(),
    "payload": BinaryType(),
    "message_type": StringType(),
    "properties": MapType(StringType(), StringType()),
}


def schema(*names: str, **types: Any) -> StructType:
    return StructType([StructField(name, {**_TYPES, **types}[name]) for name in (*names, *types)])


def planned(kind: type, options: Mapping[str, str], columns: StructType | None = None) -> Any:
    """Returns a writer as Spark has it: created where the write is planned, and pickled on its way to the task."""
    make = batch_writer if kind is BatchWriter else stream_writer
    return pickle.loads(pickle.dumps(make(options, columns or schema("vchannel", "payload"), False)))


def batch(rows: Task) -> pa.RecordBatch:
    return pa.record_batch(
        {"vchannel": pa.array([name for name, _ in rows], pa.string()), "payload": pa.array([payload for _, payload in rows], pa.binary())}
    )


@contextmanager
def task(partition_id: int = 0, attempt: int = 0, *, query_id: str | None = None, batch_id: int = 0) -> Iterator[None]:
    """Makes this process such a task inside the `with`."""
    before = TaskContext.get()
    context = TaskContext()  # makes it the task of this process, too
    context._partitionId = partition_id
    context._taskAttemptId = attempt
    properties = {"sql.streaming.queryId": query_id, "streaming.sql.batchId": str(batch_id)} if query_id else {}
    context._localProperties = properties
    try:
        yield
    finally:
        TaskContext._setTaskContext(before)


class Sink:
    """A streaming query, or (`query_id` None) batch jobs, that writes to one journal.

    With the option service.url or address it writes to a log on Pulsar or on the network, and `journal` is its staging directory.
    `columns` is the schema of the rows, a StructType.
    """

    def __init__(self, journal: Path, *, query_id: str | None = QUERY, columns: Any = None, **options: str) -> None:
        self.journal = journal
        self.query_id = query_id
        self._columns = columns
        self._options = {"staging" if options.keys() & {"service.url", "address"} else "path": str(journal), **options}

    def writer(self) -> Any:
        return planned(BatchWriter if self.query_id is None else StreamWriter, self._options, self._columns)

    def stage(self, writer: Any, tasks: Sequence[Task], *, batch_id: int = 0, attempt: int = 0) -> list[Any]:
        """Stages the rows of these tasks, in Arrow batches of 7, and returns the commit messages."""
        messages = []
        for partition_id, rows in enumerate(tasks):
            batches = (batch(rows[at : at + 7]) for at in range(0, len(rows), 7))
            messages.append(self.write(writer, batches, partition_id, attempt + partition_id, batch_id))
        return messages

    def write(self, writer: Any, batches: Iterator[pa.RecordBatch], partition_id: int, attempt: int, batch_id: int = 0) -> Any:
        with task(partition_id, attempt, query_id=self.query_id, batch_id=batch_id):
            return pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(writer)).write(batches)))

    def commit(self, writer: Any, messages: Sequence[Any], *, batch_id: int = 0) -> None:
        if self.query_id is None:
            writer.commit(messages)
        else:
            self.writer().commit(messages, batch_id)  # a fresh one each time, as Spark does

    def abort(self, writer: Any, messages: Sequence[Any], *, batch_id: int = 0) -> None:
        if self.query_id is None:
            writer.abort(messages)
        else:
            self.writer().abort(messages, batch_id)

    def run(self, tasks: Sequence[Task], *, batch_id: int = 0, attempt: int = 0) -> None:
        """Runs a whole batch."""
        writer = self.writer()
        self.commit(writer, self.stage(writer, tasks, batch_id=batch_id, attempt=attempt), batch_id=batch_id)


def rows_of(label: str, *, count: int = 40, tasks: int = 2, vchannels: int = 3) -> list[Task]:
    """Returns rows whose payloads contain their label, task and number."""
    return [[(f"v{number % vchannels}", f"{label}/{task}/{number:05}".encode()) for number in range(count)] for task in range(tasks)]


def of(*labels: str) -> dict[str, list[bytes]]:
    """Returns the payloads of each vchannel in `rows_of` these labels."""
    payloads: dict[str, list[bytes]] = {}
    for label in labels:
        for rows in rows_of(label):
            for name, payload in rows:
                payloads.setdefault(name, []).append(payload)
    return payloads


def held(journal: Path, vchannels: Sequence[str] = ("v0", "v1", "v2")) -> dict[str, list[list[bytes]]]:
    """Returns the events of each vchannel in order, each with its payloads; vchannels without events are left out."""
    found: dict[str, list[list[bytes]]] = {}
    for vchannel in vchannels:
        with iterate(journal, vchannel, follow=False) as messages:
            events = [[body.payload for body in message.bodies()] for message in messages]
        if events:
            found[vchannel] = events
    return found


def producers(journal: Path, settings: Settings | None = None) -> list[str]:
    """Returns the producers that the log remembers."""
    with blocking(journal, settings=settings) as log:
        return [info.name for info in log.producers()]


def files_below(journal: Path, *names: str) -> list[str]:
    """Returns the files in these directories of the sink's folder; by default in all but the lock and the marks."""
    folder = journal / "spark"
    places = [folder / name for name in names or ("staged", "manifests")]
    return sorted(str(path.relative_to(folder)) for place in places for path in place.rglob("*") if path.is_file())
