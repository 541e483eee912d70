"""The bridge: the log for code that has no event loop.

`iterate` and `record_batches` read a log in the caller's thread, also while another process writes it; `blocking` opens a log and gives
the accesser's calls as blocking methods. Importing this module imports nothing that only an open log needs.
"""

from wal.api.blocking import BlockingBroadcast, BlockingConsumer, BlockingScanner, BlockingTxn, BlockingWAL
from wal.api.blocking_opening import BlockingOpening, blocking
from wal.api.blocking_read import Iteration
from wal.api.blocking_reads import iterate, record_batches
from wal.api.blocking_scanner import BlockingMessageHandler
from wal.api.record_batches import RecordBatches

__all__ = [
    "BlockingBroadcast",
    "BlockingConsumer",
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
