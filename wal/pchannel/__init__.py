"""The write path and the scanners of a pchannel: actors around pure tables."""

from wal.pchannel.handler import Handler, MessageHandler, check_handler
from wal.pchannel.in_flight import InFlight
from wal.pchannel.operations import (
    Append,
    AppendResult,
    Atomic,
    Begin,
    Body,
    Bulk,
    Commit,
    Drop,
    OrderedAppend,
    Rollback,
)
from wal.pchannel.pchannel import PChannel, PChannelStatistics
from wal.pchannel.scanner import Scanner, ScannerStatistics
from wal.pchannel.txn_table import BODY_OVERHEAD, TxnLimits
from wal.pchannel.vchannel import VChannel

__all__ = [
    "BODY_OVERHEAD",
    "Append",
    "AppendResult",
    "Atomic",
    "Begin",
    "Body",
    "Bulk",
    "Commit",
    "Drop",
    "Handler",
    "InFlight",
    "MessageHandler",
    "OrderedAppend",
    "PChannel",
    "PChannelStatistics",
    "Rollback",
    "Scanner",
    "ScannerStatistics",
    "TxnLimits",
    "VChannel",
    "check_handler",
]
