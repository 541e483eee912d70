"""The writers that Spark drives: tasks stage, the driver's side commits or aborts.

Spark creates, pickles and calls the writers in several processes: one plans, each task runs in its own worker, and commit or abort in
another one. So a writer holds options only, and everything else is in files and commit messages. A streaming batch is identified by its
query id and batch id, which are in Spark's checkpoint, and a batch job by a random id from its plan.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from wal.errors import InvalidArgumentError
from wal.spark.sink.chunking import ChunkBounds
from wal.spark.sink.finishing import commit_write
from wal.spark.sink.locks import check_free
from wal.spark.sink.manifest import StagedFile, WriteKey
from wal.spark.sink.options import SinkOptions
from wal.spark.sink.rows import RowReader, check_columns
from wal.spark.sink.staging import StagingWriter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The result of a task: its staged file, or None if it had no rows."""

    key: WriteKey
    file: StagedFile | None


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Returns the writer of `df.write.format("wal")`.

    Wrong options or columns, another mode, and a log that another process has open for writing raise here.
    """
    chosen = _planned(options, schema, overwrite=overwrite)
    check_free(chosen)
    return BatchWriter(chosen, WriteKey(f"batch-{uuid.uuid4()}", 0))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """Returns the writer of `df.writeStream.format("wal")`. Wrong options or columns, or another mode, raise here.

    The first task checks whether another process has the log open: Spark calls this for commit and abort as well.
    """
    return StreamWriter(_planned(options, schema, overwrite=overwrite))


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch job: once all tasks have staged, chunks appear one after the other, each atomically."""

    def __init__(self, options: SinkOptions, key: WriteKey) -> None:
        self._options = options
        self._key = key

    def write(self, iterator: Iterator[Any]) -> Staged:
        """Stages the rows of a task."""
        return _stage(self._options, self._key, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publishes the staged files of the tasks."""
        files = _files(messages)
        if files:
            commit_write(self._options, self._key, files, stream=False)
        else:
            self._options.folder.drop_staged(self._key)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Removes the staged files of the tasks, unless a commit has decided to publish them."""
        folder = self._options.folder
        if self._key not in folder.decided():
            folder.drop_staged(self._key)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a streaming query: every batch once, whichever process is killed."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Staged:
        """Stages the rows of a task."""
        context = _task()
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        if query_id is None or batch_id is None:
            raise InvalidArgumentError(
                "this task does not say which streaming query and batch it belongs to: the sink needs micro-batches of Spark 4.2 or later"
            )
        check_free(self._options)
        return _stage(self._options, WriteKey(query_id, int(batch_id)), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Publishes the staged files of this batch, or the content that an earlier commit of the batch has decided."""
        keys = {message.key for message in messages if isinstance(message, Staged)}
        for key in keys:
            if key.batch_id != batchId:
                raise InvalidArgumentError(f"a task staged for batch {key.batch_id}, but batch {batchId} is committed")
        files = _files(messages)
        for key in keys:
            if files or key in self._options.folder.decided():
                commit_write(self._options, key, files, stream=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Removes the staged files of this batch, except files that a stored manifest names."""
        folder = self._options.folder
        for message in messages:
            if isinstance(message, Staged) and message.file is not None:
                manifest = folder.load(message.key)
                if manifest is None or message.file not in manifest.files:
                    folder.drop_staged(message.key, files=[message.file.name])


def _planned(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SinkOptions:
    chosen = SinkOptions.parse(options)
    if overwrite:
        raise InvalidArgumentError(
            'a log is only appended to: write with mode("append"), or stream with outputMode("append"); truncate() gives space back'
        )
    check_columns([(field.name, field.dataType.simpleString()) for field in schema.fields], vchannel=chosen.vchannel)
    return chosen


def _stage(options: SinkOptions, key: WriteKey, batches: Iterable[Any]) -> Staged:
    context = _task()
    bounds = ChunkBounds.of(options.settings)
    partition_id = context.partitionId()
    writer = StagingWriter(options.folder.staged(key), partition_id=partition_id, attempt=context.taskAttemptId(), bounds=bounds)
    reader = RowReader(bounds, vchannel=options.vchannel, partition_id=partition_id)
    return Staged(key, writer.stage(batches, reader))


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise InvalidArgumentError("rows are written by Spark's tasks: use df.write.format('wal') or writeStream")
    return context


def _files(messages: Sequence[WriterCommitMessage | None]) -> tuple[StagedFile, ...]:
    """Returns the staged files, by the number of their Spark partition."""
    files = [message.file for message in messages if isinstance(message, Staged) and message.file is not None]
    return tuple(sorted(files, key=lambda file: file.partition_id))
