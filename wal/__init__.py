"""The write-ahead log that asyncio services embed.

    async with open_wal("data/") as log:
        result = await log.raw_append(Message("orders", b"created"))

Every public name can be imported from here; errors are in `wal.errors`, time ticks in `wal.timestamp`. Importing this package imports
none of them: a name is imported from its module when it is first used.
"""

import importlib
import typing

from wal._version import __version__
from wal.installation import check_siblings

check_siblings()
del check_siblings

if typing.TYPE_CHECKING:
    from broadcaster.message import BroadcastAppendResult, BroadcastMessage, BroadcastTask
    from broadcaster.state import BroadcastState
    from wal import bridge, errors, timestamp  # noqa: F401
    from wal.accesser import LogStatistics, WALAccesser
    from wal.accesser.broadcast import LogBroadcast
    from wal.accesser.opening import WAL, init, open_wal, release
    from wal.accesser.responses import AppendOption, AppendResponses
    from wal.accesser.txn import Txn
    from wal.channels import ChannelDescription, OwnerDescription, VChannelInfo
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
    "ChannelDescription",
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
    "OwnerDescription",
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
    name: home
    for home, names in {
        "wal.accesser": "LogStatistics WALAccesser",
        "broadcaster.message": "BroadcastAppendResult BroadcastMessage BroadcastTask",
        "broadcaster.state": "BroadcastState",
        "wal.accesser.broadcast": "LogBroadcast",
        "wal.channels": "ChannelDescription OwnerDescription VChannelInfo",
        "wal.cursors": "CursorInfo",
        "wal.message": "AppendResult BroadcastHeader ForgottenResult ImmutableMessage ImmutableTxnMessage Message MessageID "
        "MessageType ResourceKey TimeTickMessage TxnContext",
        "wal.accesser.opening": "WAL init open_wal release",
        "wal.pchannel": "MessageHandler PChannelStatistics ProducerInfo ProducerKey Scanner ScannerStatistics",
        "wal.reading": "All DeliverFilter DeliverPolicy Latest MessageTypes ReadPosition StartAfter StartFrom TimeTickGT TimeTickGTE",
        "wal.accesser.responses": "AppendOption AppendResponses",
        "wal.retention": "PChannelRetention RetentionHolder",
        "wal.secret": "Secret",
        "wal.settings": "Settings SettingsOverrides",
        "wal.accesser.txn": "Txn",
    }.items()
    for name in names.split()
}
"""The module of each public name."""
_ROOMS: typing.Final = ("bridge", "errors", "timestamp")
"""The public modules, which are attributes of the package too."""

if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        """Imports and returns a public name at its first use (PEP 562)."""
        if name in _ROOMS:
            return importlib.import_module(f"wal.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'wal' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_ROOMS})
