"""Spark on a log: it reads the log as tables and streams, and writes rows into it. Needs the extra `spark`.

Files:

* location       where a log is, as the options name it
* options        the options of a read, checked; which vchannels it reads
* offsets        how far a query has read, as JSON in its checkpoint
* planning       how much a trigger takes, and which task reads what; the weights of frames
* batch_reader   a batch read, planned in the driver
* stream_reader  a stream of micro-batches, planned in the driver
* edges          where a read begins and ends in each pchannel, and which events it lost to truncation
* snapshot       the log positions at which all pchannels show the same moment
* partition      the data sent to a task, and which runs of a frame the task shows
* row_reader     the work of a task: frames become Arrow batches; the columns of a row
* frame_source   the seam between the readers and the storage of a log
* sources        which source the options name, and which sources this process has open
* journal_frames, pulsar_frames, server_frames  the sources: a journal's files, Pulsar's topics, a log on the network
* viewed_vchannels  the known vchannels, as a reader last saw them
* local_session  a Spark session on this host, and its requirements
* lag_report     how far a query lags behind its log
* foreach/       a handler for the batches of a stream
* sink/          rows into a log
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
