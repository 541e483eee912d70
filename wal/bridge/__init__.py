"""The bridge: the log for code that has no event loop."""

from wal.bridge.blocking import BlockingWAL, blocking
from wal.bridge.blocking_scanner import BlockingScanner
from wal.bridge.blocking_txn import BlockingTxn

__all__ = ["BlockingScanner", "BlockingTxn", "BlockingWAL", "blocking"]
