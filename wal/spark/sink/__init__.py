"""The sink: rows of Spark go into a log, each batch of a streaming query once.

`batch_writer` and `stream_writer` are what Spark is given. `pending`, `recover` and `discard` are for the operator of a log whose driver
was killed; they need no Spark session.

Files:

* options     the options of a write, checked
* writer      what Spark calls: tasks stage, the driver commits or aborts
* rows        the rows of a task, checked and made into columns
* chunking    which rows make one chunk
* staging     the staged file of a task
* manifest    what a write publishes, decided once
* folder      the sink's files, and what is durable in which order
* locks       the lock of the publishing process, and whether the log is free
* finishing   what a commit does, and what is left to do after a crash
* publishing  the chunks of a manifest go into the log, each once
"""

from wal.spark.sink.finishing import PendingWrite, discard, pending, recover
from wal.spark.sink.writer import batch_writer, stream_writer

__all__ = ["PendingWrite", "batch_writer", "discard", "pending", "recover", "stream_writer"]
