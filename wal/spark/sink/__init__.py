"""The sink: rows of Spark into a log, each batch of a streaming query once.

`batch_writer` and `stream_writer` are what the data source hands to Spark. `pending`, `recover` and `discard` are for whoever looks after
a journal whose driver was killed; they need no Spark session.

Files:

* Pure: chunking, manifest; a task: options, rows, staging; the driver: writer (what Spark calls), finishing (in which
  order), publishing; files: folder, durable, locks
"""

from wal.spark.sink.finishing import PendingWrite, discard, pending, recover
from wal.spark.sink.writer import batch_writer, stream_writer

__all__ = ["PendingWrite", "batch_writer", "discard", "pending", "recover", "stream_writer"]
