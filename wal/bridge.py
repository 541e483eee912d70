"""The bridge: the log for code that has no event loop.

`iterate` and `record_batches` read a log in the caller's thread, also while another process writes it; `blocking` opens a log and gives the
accesser's calls as blocking methods. Importing this room imports nothing that only an open log needs.

Files:

* blocking_read        BlockingRead: the base of iterations and record batches: a read in the caller's thread
* iteration            iterate, Iteration: messages as a plain iterator
* record_batches       record_batches, RecordBatches: whole frames as Arrow batches
* arrow                rows as Arrow record batches
* arrow_properties     the column of properties, built from their stored bytes
* blocking             blocking, BlockingWAL: the accesser's calls as blocking methods
* blocking_scanner     BlockingScanner: a scanner as a plain iterator
* blocking_writes      BlockingTxn, BlockingBroadcast: transactions and broadcasts
"""

from wal.api.blocking import BlockingBroadcast, BlockingOpening, BlockingTxn, BlockingWAL, blocking
from wal.api.blocking_scanner import BlockingMessageHandler, BlockingScanner
from wal.api.iteration import Iteration, iterate
from wal.api.record_batches import RecordBatches, record_batches

__all__ = [
    "BlockingBroadcast",
    "BlockingMessageHandler",
    "BlockingOpening",
    "BlockingScanner",
    "BlockingTxn",
    "BlockingWAL",
    "Iteration",
    "RecordBatches",
    "blocking",
    "iterate",
    "record_batches",
]
