"""Spark on a log: reads the log as tables and streams, and writes rows into it. Needs the extra `spark`.

The driver plans: a batch is a snapshot, one moment of all pchannels; a stream reads from offset to offset, as JSON in its checkpoint. Tasks
open the log themselves, by a recipe (`frame_source.py`) that is the same for every kind of log, and turn frames into Arrow batches.
`foreach` runs a handler for each batch of a stream, and `sink` writes rows, each batch of a query once.
"""

from wal.spark.edges import ArchiveLagWarning, DataLossWarning, SnapshotWarning
from wal.spark.foreach import Batch, ForeachBatch, decoded, foreach_batch
from wal.spark.lag_report import PChannelLag, QueryLag, lag, lag_listener
from wal.spark.local_session import session, why_no_session
from wal.spark.offsets import PChannelOffset, StreamOffset

__all__ = [
    "ArchiveLagWarning",
    "Batch",
    "DataLossWarning",
    "ForeachBatch",
    "PChannelLag",
    "PChannelOffset",
    "QueryLag",
    "SnapshotWarning",
    "StreamOffset",
    "decoded",
    "foreach_batch",
    "lag",
    "lag_listener",
    "session",
    "why_no_session",
]
