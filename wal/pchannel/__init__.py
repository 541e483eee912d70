"""The write path and the scanners of a pchannel: actors around pure tables.

Files:

* Write: operations, vchannel, submissions, pchannel, in_flight; transactions: txn_table; ticks: promised_tick
* Keys: idempotency (the table, pure), keyed_writes (who hears of it); checkpoint (when), checkpointer (how)
* Broadcasts: copies (the table), copies_state (its bytes), copy_writes (into the log), acking (a scanner that
  acknowledges); recovery (all that is remembered), pieces (its form)
* Read: readable (what a scanner needs of a pchannel, whoever writes it), tail, recent, scanner, handler; observed (a
  pchannel of another process)
* read_only: a pchannel that another process writes, as the scanners of this one see it
"""

from wal.pchannel.acking import AckingScanner
from wal.pchannel.checkpoint import Checkpoint, CheckpointRule
from wal.pchannel.checkpointer import Checkpointer
from wal.pchannel.copies import CopyTable, ListedBroadcast, names_of
from wal.pchannel.copy_writes import MixedCopies
from wal.pchannel.handler import Handler, MessageHandler, check_handler
from wal.pchannel.idempotency import IdempotencyTable, Key, ProducerInfo, ProducerKey, check_key, key_ext
from wal.pchannel.in_flight import InFlight
from wal.pchannel.operations import (
    Append,
    AppendCopies,
    Atomic,
    Begin,
    Bulk,
    Commit,
    CopyTargets,
    Drop,
    ForgetProducer,
    KeyedAppend,
    KeyedCommit,
    OrderedAppend,
    Rollback,
)
from wal.pchannel.pchannel import PChannel, PChannelStatistics
from wal.pchannel.read_only import ReadOnlyPChannel, ThreadedLog
from wal.pchannel.readable import ReadablePChannel
from wal.pchannel.recovery import RecoveryState, recover
from wal.pchannel.scanner import Scanner, ScannerStatistics
from wal.pchannel.txn_table import BODY_OVERHEAD, TxnLimits
from wal.pchannel.vchannel import VChannel

__all__ = [
    "BODY_OVERHEAD",
    "AckingScanner",
    "Append",
    "AppendCopies",
    "Atomic",
    "Begin",
    "Bulk",
    "Checkpoint",
    "CheckpointRule",
    "Checkpointer",
    "Commit",
    "CopyTable",
    "CopyTargets",
    "Drop",
    "ForgetProducer",
    "Handler",
    "IdempotencyTable",
    "InFlight",
    "Key",
    "KeyedAppend",
    "KeyedCommit",
    "ListedBroadcast",
    "MessageHandler",
    "MixedCopies",
    "OrderedAppend",
    "PChannel",
    "PChannelStatistics",
    "ProducerInfo",
    "ProducerKey",
    "ReadOnlyPChannel",
    "ReadablePChannel",
    "RecoveryState",
    "Rollback",
    "Scanner",
    "ScannerStatistics",
    "ThreadedLog",
    "TxnLimits",
    "VChannel",
    "check_handler",
    "check_key",
    "key_ext",
    "names_of",
    "recover",
]
