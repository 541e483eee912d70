"""The bridge: the log for code that has no event loop.

`iterate` and `record_batches` read a journal straight from its files, in any process; `blocking` opens a log and gives the accesser's
calls as blocking methods. Importing it imports what reads a journal's files; what a log needs is imported when one is opened.

Files:

* Files: iteration, record_batches, arrow, arrow_properties, over file_read, file_journal, file_cursor, file_events;
  loop: blocking, blocking_txn, blocking_scanner, blocking_broadcast, loop_thread
"""

from wal.bridge.blocking import BlockingOpening, BlockingWAL, blocking
from wal.bridge.blocking_broadcast import BlockingBroadcast
from wal.bridge.blocking_scanner import BlockingMessageHandler, BlockingScanner
from wal.bridge.blocking_txn import BlockingTxn
from wal.bridge.iteration import Iteration, iterate
from wal.bridge.record_batches import RecordBatches, record_batches

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
