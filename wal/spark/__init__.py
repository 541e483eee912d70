"""Spark on the log: reading it as tables and streams, and writing it. Needs the extra `spark`.

Files:

* Pure: options, channel_choice, offsets, planning (how far a trigger goes, which task reads what); what Spark calls:
  data_source, batch_reader, stream_reader; the driver: starting, snapshot, data_loss, columns
* A task: partitions (what goes to it), row_reader, row_selection; the seam: frame_source, sources (which one), opened
  (in this process); journal_frames; pulsar_frames, looked_at, pulsar_metadata; version, local_session, lag_report
"""

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
