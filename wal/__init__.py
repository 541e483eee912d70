"""The write-ahead log that asyncio services embed.

    async with open_wal("data/") as log:
        result = await log.raw_append(Message("orders", b"created"))

Everything public is handed on from here; errors are in `wal.errors`, time ticks in `wal.timestamp`.
"""

from wal._version import __version__
from wal.accesser import LogStatistics, WALAccesser
from wal.broadcast import BroadcastAppendResult, BroadcastMessage, BroadcastState, BroadcastTask, LogBroadcast
from wal.channels import VChannelInfo
from wal.cursors import CursorInfo
from wal.message import (
    BroadcastHeader,
    ImmutableMessage,
    ImmutableTxnMessage,
    Message,
    MessageID,
    MessageType,
    ResourceKey,
    TimeTickMessage,
    TxnContext,
)
from wal.opening import WAL, init, open_wal, release
from wal.pchannel import (
    AppendResult,
    ForgottenResult,
    MessageHandler,
    PChannelStatistics,
    ProducerInfo,
    ProducerKey,
    Scanner,
    ScannerStatistics,
)
from wal.reading import (
    All,
    DeliverFilter,
    DeliverPolicy,
    Latest,
    MessageTypes,
    ReadPosition,
    StartAfter,
    StartFrom,
    TimeTickGT,
    TimeTickGTE,
)
from wal.responses import AppendOption, AppendResponses
from wal.retention import PChannelRetention, RetentionHolder
from wal.secret import Secret
from wal.settings import Settings, SettingsOverrides
from wal.txn import Txn

__all__ = [
    "WAL",
    "All",
    "AppendOption",
    "AppendResponses",
    "AppendResult",
    "BroadcastAppendResult",
    "BroadcastHeader",
    "BroadcastMessage",
    "BroadcastState",
    "BroadcastTask",
    "CursorInfo",
    "DeliverFilter",
    "DeliverPolicy",
    "ForgottenResult",
    "ImmutableMessage",
    "ImmutableTxnMessage",
    "Latest",
    "LogBroadcast",
    "LogStatistics",
    "Message",
    "MessageHandler",
    "MessageID",
    "MessageType",
    "MessageTypes",
    "PChannelRetention",
    "PChannelStatistics",
    "ProducerInfo",
    "ProducerKey",
    "ReadPosition",
    "ResourceKey",
    "RetentionHolder",
    "Scanner",
    "ScannerStatistics",
    "Secret",
    "Settings",
    "SettingsOverrides",
    "StartAfter",
    "StartFrom",
    "TimeTickGT",
    "TimeTickGTE",
    "TimeTickMessage",
    "Txn",
    "TxnContext",
    "VChannelInfo",
    "WALAccesser",
    "__version__",
    "init",
    "open_wal",
    "release",
]
