"""The sink: writes rows of Spark into a log, each batch of a streaming query once.

Spark gets `batch_writer` and `stream_writer`. `pending`, `recover` and `discard` are for the operator of a log whose driver was killed;
they need no Spark session.

Files:

* options     the options of a write, checked
* writer      the interface to Spark: tasks stage, the driver commits or aborts
* rows        the rows of a task, checked and turned into columns
* chunking    which rows make one chunk
* staging     the staged file of a task
* manifest    the content that a write publishes, decided once
* folder      the sink's files, and the order in which they become durable
* locks       the lock of the publishing process, and whether the log is free
* finishing   the steps of a commit, and the work left after a crash
* publishing  writes the chunks of a manifest into the log, each once
"""

from wal.spark.sink.finishing import PendingWrite, discard, pending, recover
from wal.spark.sink.writer import batch_writer, stream_writer

__all__ = ["PendingWrite", "batch_writer", "discard", "pending", "recover", "stream_writer"]
