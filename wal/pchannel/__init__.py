"""The write path and the scanners of a pchannel: actors around pure tables."""

from wal.pchannel.acking import AckingScanner
from wal.pchannel.checkpoint import Checkpoint, CheckpointRule
from wal.pchannel.checkpointer import Checkpointer
from wal.pchannel.copies import CopyTable, ListedBroadcast, names_of
from wal.pchannel.handler import Handler, MessageHandler, check_handler
from wal.pchannel.idempotency import IdempotencyTable
from wal.pchannel.in_flight import InFlight
from wal.pchannel.keys import Key, ProducerInfo, ProducerKey, check_key, key_ext
from wal.pchannel.observed import ObservedPChannel
from wal.pchannel.operations import (
    Append,
    AppendCopies,
    AppendResult,
    Atomic,
    Begin,
    Bulk,
    Commit,
    CopyTargets,
    Drop,
    ForgetProducer,
    ForgottenResult,
    KeyedAppend,
    KeyedCommit,
    OrderedAppend,
    Rollback,
)
from wal.pchannel.pchannel import PChannel, PChannelStatistics
from wal.pchannel.readable import ReadablePChannel
from wal.pchannel.recovery_state import RecoveryState
from wal.pchannel.replay import recover
from wal.pchannel.scanner import Scanner, ScannerStatistics
from wal.pchannel.txn_table import BODY_OVERHEAD, TxnLimits
from wal.pchannel.vchannel import VChannel

__all__ = [
    "BODY_OVERHEAD",
    "AckingScanner",
    "Append",
    "AppendCopies",
    "AppendResult",
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
    "ForgottenResult",
    "Handler",
    "IdempotencyTable",
    "InFlight",
    "Key",
    "KeyedAppend",
    "KeyedCommit",
    "ListedBroadcast",
    "MessageHandler",
    "ObservedPChannel",
    "OrderedAppend",
    "PChannel",
    "PChannelStatistics",
    "ProducerInfo",
    "ProducerKey",
    "ReadablePChannel",
    "RecoveryState",
    "Rollback",
    "Scanner",
    "ScannerStatistics",
    "TxnLimits",
    "VChannel",
    "check_handler",
    "check_key",
    "key_ext",
    "names_of",
    "recover",
]
