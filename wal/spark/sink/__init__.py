"""The sink: writes rows of Spark into a log, each batch of a streaming query once.

Tasks turn their rows into chunks and stage them in files. The driver writes a manifest, which decides the content of the write, takes the
lock of the log, and publishes chunk after chunk with producer keys. A killed driver leaves a `PendingWrite`: `pending`, `recover` and
`discard` are for the operator of the log, and need no Spark session.
"""

from wal.spark.sink.finishing import PendingWrite, discard, pending, recover
from wal.spark.sink.writer import batch_writer, stream_writer

__all__ = ["PendingWrite", "batch_writer", "discard", "pending", "recover", "stream_writer"]
