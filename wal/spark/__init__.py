"""Spark on the log: reading it as tables and streams, and writing it. Needs the extra `spark`."""

from wal.spark.foreach import Batch, ForeachBatch, decoded, foreach_batch
from wal.spark.lag_report import PChannelLag, QueryLag, lag, lag_listener
from wal.spark.local_session import session, why_no_session
from wal.spark.offsets import PChannelOffset, StreamOffset

__all__ = [
    "Batch",
    "ForeachBatch",
    "PChannelLag",
    "PChannelOffset",
    "QueryLag",
    "StreamOffset",
    "decoded",
    "foreach_batch",
    "lag",
    "lag_listener",
    "session",
    "why_no_session",
]
