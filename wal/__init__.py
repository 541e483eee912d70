"""The write-ahead log that asyncio services embed.

    async with open_wal("data/") as log:
        result = await log.append("orders", b"created")

Every public name can be imported from here; errors are in `wal.errors`, time ticks in `wal.timestamp`. Importing this package imports
none of them: a name is imported from its module when it is first used.
"""

import importlib
import typing

from wal._version import __version__
from wal.runtime.installation import check_siblings

check_siblings()
del check_siblings

if typing.TYPE_CHECKING:
    from broadcaster.message import BroadcastAppendResult, BroadcastMessage, BroadcastState, BroadcastTask
    from wal import bridge as bridge
    from wal import errors as errors
    from wal import timestamp as timestamp
    from wal.api.accesser import Log, WALAccesser
    from wal.api.append_options import AppendOption, AppendResponses
    from wal.api.broadcast import LogBroadcast
    from wal.api.opening import WAL, init, open_wal, release
    from wal.api.scheduled import Schedule
    from wal.api.txn import Txn
    from wal.api.typed import TypedLog, TypedTxn
    from wal.api.typed_scanner import TypedScanner
    from wal.channels.channels import ChannelDescription
    from wal.channels.owners import OwnerDescription
    from wal.channels.vchannels import VChannelInfo
    from wal.consumers.consumer import Consumer, ConsumerInfo
    from wal.consumers.delivery import Delivery, Reject, Retry
    from wal.engine import InboxStatistics, LogStatistics
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
        ScheduledMessage,
        ScheduledResult,
        TimeTickMessage,
        TxnContext,
    )
    from wal.message.matching import Matching
    from wal.message.payloads import PayloadType
    from wal.read.assembly import MessagePage
    from wal.read.cursors.cursor import CursorInfo
    from wal.read.figures import Histogram, PChannelStatistics
    from wal.read.options import (
        All,
        DeliverFilter,
        DeliverPolicy,
        Last,
        Latest,
        MessageTypes,
        ReadPosition,
        StartAfter,
        StartAt,
        StartFrom,
        TimeTickGT,
        TimeTickGTE,
    )
    from wal.read.scanner import MessageHandler, Scanner, ScannerStatistics
    from wal.requests.pchannels import PChannelRetention, RetentionHolder
    from wal.requests.work import CursorMember
    from wal.runtime.secret import Secret
    from wal.settings import Settings, SettingsOverrides
    from wal.streams import flowgraph as flowgraph
    from wal.streams import msgstream as msgstream
    from wal.streams import params as params
    from wal.streams import watchdog as watchdog
    from wal.write.idempotency.keys import ProducerInfo, ProducerKey

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
    "Consumer",
    "ConsumerInfo",
    "CursorInfo",
    "CursorMember",
    "DeliverFilter",
    "DeliverPolicy",
    "Delivery",
    "ForgottenResult",
    "Histogram",
    "ImmutableMessage",
    "ImmutableTxnMessage",
    "InboxStatistics",
    "Last",
    "Latest",
    "Log",
    "LogBroadcast",
    "LogStatistics",
    "Matching",
    "Message",
    "MessageHandler",
    "MessageID",
    "MessagePage",
    "MessageType",
    "MessageTypes",
    "OwnerDescription",
    "PChannelRetention",
    "PChannelStatistics",
    "PayloadType",
    "ProducerInfo",
    "ProducerKey",
    "ReadPosition",
    "Reject",
    "ResourceKey",
    "RetentionHolder",
    "Retry",
    "Scanner",
    "ScannerStatistics",
    "Schedule",
    "ScheduledMessage",
    "ScheduledResult",
    "Secret",
    "Settings",
    "SettingsOverrides",
    "StartAfter",
    "StartAt",
    "StartFrom",
    "TimeTickGT",
    "TimeTickGTE",
    "TimeTickMessage",
    "Txn",
    "TxnContext",
    "TypedLog",
    "TypedScanner",
    "TypedTxn",
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
        "broadcaster.message": "BroadcastAppendResult BroadcastMessage BroadcastState BroadcastTask",
        "wal.api.accesser": "Log WALAccesser",
        "wal.api.append_options": "AppendOption AppendResponses",
        "wal.api.broadcast": "LogBroadcast",
        "wal.api.opening": "WAL init open_wal release",
        "wal.api.scheduled": "Schedule",
        "wal.api.txn": "Txn",
        "wal.api.typed": "TypedLog TypedTxn",
        "wal.api.typed_scanner": "TypedScanner",
        "wal.channels.channels": "ChannelDescription",
        "wal.channels.owners": "OwnerDescription",
        "wal.channels.vchannels": "VChannelInfo",
        "wal.consumers.consumer": "Consumer ConsumerInfo",
        "wal.consumers.delivery": "Delivery Reject Retry",
        "wal.engine": "InboxStatistics LogStatistics",
        "wal.message": "AppendResult BroadcastHeader ForgottenResult ImmutableMessage ImmutableTxnMessage Message MessageID "
        "MessageType ResourceKey ScheduledMessage ScheduledResult TimeTickMessage TxnContext",
        "wal.message.matching": "Matching",
        "wal.message.payloads": "PayloadType",
        "wal.read.cursors.cursor": "CursorInfo",
        "wal.read.options": "All DeliverFilter DeliverPolicy Last Latest MessageTypes ReadPosition StartAfter StartAt StartFrom TimeTickGT "
        "TimeTickGTE",
        "wal.read.figures": "Histogram PChannelStatistics",
        "wal.read.assembly": "MessagePage",
        "wal.read.scanner": "MessageHandler Scanner ScannerStatistics",
        "wal.requests.pchannels": "PChannelRetention RetentionHolder",
        "wal.requests.work": "CursorMember",
        "wal.runtime.secret": "Secret",
        "wal.settings": "Settings SettingsOverrides",
        "wal.write.idempotency.keys": "ProducerInfo ProducerKey",
    }.items()
    for name in names.split()
}
"""The module of each public name."""
_ROOMS: typing.Final = {
    name: f"{home}.{name}"
    for home, names in {"wal": "bridge errors timestamp", "wal.streams": "flowgraph msgstream params watchdog"}.items()
    for name in names.split()
}
"""The public modules that are attributes of the package too, with where they are."""

if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        """Imports and returns a public name at its first use (PEP 562)."""
        if name in _ROOMS:
            return importlib.import_module(_ROOMS[name])
        if name not in _HOMES:
            raise AttributeError(f"module 'wal' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_ROOMS})
