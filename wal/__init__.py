"""The write-ahead log that asyncio services embed.

    async with open_wal("data/") as log:
        result = await log.raw_append(Message("orders", b"created"))

Everything public is handed on from here; errors are in `wal.errors`, time ticks in `wal.timestamp`. Importing this package imports
none of it: each name is looked up where it lives when it is first asked for.
"""

import importlib
import typing

from wal._version import __version__
from wal.installation import check_siblings

check_siblings()
del check_siblings

if typing.TYPE_CHECKING:
    from wal import bridge, errors, timestamp  # noqa: F401
    from wal.accesser import LogStatistics, WALAccesser
    from wal.accesser.broadcast import (
        BroadcastAppendResult,
        BroadcastMessage,
        BroadcastState,
        BroadcastTask,
        LogBroadcast,
    )
    from wal.accesser.opening import WAL, init, open_wal, release
    from wal.accesser.responses import AppendOption, AppendResponses
    from wal.accesser.txn import Txn
    from wal.channels import VChannelInfo
    from wal.cursors import CursorInfo
    from wal.message import (
        AppendResult,
        BroadcastHeader,
        ForgottenResult,
        ImmutableMessage,
        ImmutableTxnMessage,
        Message,
        MessageID,
        MessageType,
        ResourceKey,
        TimeTickMessage,
        TxnContext,
    )
    from wal.pchannel import MessageHandler, PChannelStatistics, ProducerInfo, ProducerKey, Scanner, ScannerStatistics
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
    from wal.retention import PChannelRetention, RetentionHolder
    from wal.secret import Secret
    from wal.settings import Settings, SettingsOverrides

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

_HOMES: typing.Final = {
    "LogStatistics": "wal.accesser",
    "WALAccesser": "wal.accesser",
    "BroadcastAppendResult": "wal.accesser.broadcast",
    "BroadcastMessage": "wal.accesser.broadcast",
    "BroadcastState": "wal.accesser.broadcast",
    "BroadcastTask": "wal.accesser.broadcast",
    "LogBroadcast": "wal.accesser.broadcast",
    "VChannelInfo": "wal.channels",
    "CursorInfo": "wal.cursors",
    "AppendResult": "wal.message",
    "BroadcastHeader": "wal.message",
    "ForgottenResult": "wal.message",
    "ImmutableMessage": "wal.message",
    "ImmutableTxnMessage": "wal.message",
    "Message": "wal.message",
    "MessageID": "wal.message",
    "MessageType": "wal.message",
    "ResourceKey": "wal.message",
    "TimeTickMessage": "wal.message",
    "TxnContext": "wal.message",
    "WAL": "wal.accesser.opening",
    "init": "wal.accesser.opening",
    "open_wal": "wal.accesser.opening",
    "release": "wal.accesser.opening",
    "MessageHandler": "wal.pchannel",
    "PChannelStatistics": "wal.pchannel",
    "ProducerInfo": "wal.pchannel",
    "ProducerKey": "wal.pchannel",
    "Scanner": "wal.pchannel",
    "ScannerStatistics": "wal.pchannel",
    "All": "wal.reading",
    "DeliverFilter": "wal.reading",
    "DeliverPolicy": "wal.reading",
    "Latest": "wal.reading",
    "MessageTypes": "wal.reading",
    "ReadPosition": "wal.reading",
    "StartAfter": "wal.reading",
    "StartFrom": "wal.reading",
    "TimeTickGT": "wal.reading",
    "TimeTickGTE": "wal.reading",
    "AppendOption": "wal.accesser.responses",
    "AppendResponses": "wal.accesser.responses",
    "PChannelRetention": "wal.retention",
    "RetentionHolder": "wal.retention",
    "Secret": "wal.secret",
    "Settings": "wal.settings",
    "SettingsOverrides": "wal.settings",
    "Txn": "wal.accesser.txn",
}
"""The module that each public name lives in."""
_ROOMS: typing.Final = ("bridge", "errors", "timestamp")
"""What else of the package is public, and found as an attribute of it."""

if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        """The public name, imported now (PEP 562)."""
        if name in _ROOMS:
            return importlib.import_module(f"wal.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'wal' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_ROOMS})
