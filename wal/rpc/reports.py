"""What a log reports of itself, as messages, and back: settings, statistics, retention, producers, the tail. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from broadcaster.message import BroadcasterStatistics
from wal.engine import PChannelRetention, RetentionHolder
from wal.message import Lineage, Origin
from wal.read.pchannel import PChannelStatistics
from wal.rpc.api import cluster_pb2 as proto
from wal.rpc.api import pchannel_calls_pb2 as calls
from wal.rpc.api import pchannel_pb2
from wal.rpc.positions import event_from_proto, event_to_proto, id_from_bytes, position_from_proto, position_to_proto
from wal.settings import Settings
from wal.storage.base import LogSnapshot
from wal.write.idempotency.keys import ProducerInfo

__all__ = [
    "LOG_SETTINGS",
    "broadcaster_from_proto",
    "broadcaster_to_proto",
    "producers_from_proto",
    "producers_to_proto",
    "retention_from_proto",
    "retention_to_proto",
    "settings_from_proto",
    "settings_to_proto",
    "statistics_from_proto",
    "statistics_to_proto",
    "tail_from_proto",
    "tail_to_proto",
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


LOG_SETTINGS: Final = tuple(
    name for name in proto.LogSettings.DESCRIPTOR.fields_by_name if name in Settings.__struct_fields__
)
"""The names of the settings that belong to a log and not to a process: a client takes them from its server."""
_NO_COUNT: Final = 1 << 32
"""The window's count for clients that do not know a window without one: large, so that they send plain keys."""


def settings_to_proto(settings: Settings) -> proto.LogSettings:
    """Returns the settings that concern a log, not the process that opened it, as protobuf."""
    values: dict[str, Any] = {name: getattr(settings, name) for name in LOG_SETTINGS}
    if settings.idempotency_window_count is None:
        values |= {"idempotency_window_count": _NO_COUNT, "idempotency_window_by_age": True}
    return proto.LogSettings(**values)


def settings_from_proto(given: proto.LogSettings) -> Settings:
    """Returns the settings of a log; those that concern a process have their defaults."""
    values: dict[str, Any] = {
        field.name: getattr(given, field.name) if not field.has_presence or given.HasField(field.name) else None
        for field in proto.LogSettings.DESCRIPTOR.fields
        if field.name in LOG_SETTINGS
    }
    if given.idempotency_window_by_age:
        values["idempotency_window_count"] = None
    return Settings(**values)


def tail_to_proto(snapshot: LogSnapshot) -> pchannel_pb2.TailState:
    """Returns the message of the end of a log at one moment."""
    return pchannel_pb2.TailState(
        durable_end=position_to_proto(snapshot.durable_end),
        promised_tick=snapshot.promised_tick,
        newest=event_to_proto(snapshot.newest),
        earliest=event_to_proto(snapshot.earliest),
        last_truncated=event_to_proto(snapshot.last_truncated),
    )


def tail_from_proto(
    tail: pchannel_pb2.TailState, origin: Origin, lineage: Lineage, *, term: int, closed: bool = False
) -> LogSnapshot:
    """Returns the end of this log at one moment."""
    return LogSnapshot(
        origin,
        lineage,
        term,
        position_from_proto(tail.durable_end),
        event_from_proto(tail.earliest),
        tail.promised_tick,
        closed,
        event_from_proto(tail.newest) if tail.HasField("newest") else None,
        event_from_proto(tail.last_truncated) if tail.HasField("last_truncated") else None,
    )


def statistics_to_proto(statistics: PChannelStatistics) -> calls.Statistics:
    """Returns the message of a pchannel's counts."""
    values: dict[str, Any] = msgspec.structs.asdict(statistics)
    return calls.Statistics(**{**values, "durable_end": position_to_proto(statistics.durable_end)})


def statistics_from_proto(statistics: calls.Statistics) -> PChannelStatistics:
    """Returns the counts of a pchannel."""
    values: dict[str, Any] = {name: getattr(statistics, name) for name in PChannelStatistics.__struct_fields__}
    return PChannelStatistics(**{**values, "durable_end": position_from_proto(statistics.durable_end)})


def broadcaster_to_proto(statistics: BroadcasterStatistics) -> proto.BroadcastStatistics:
    """Returns the message of a broadcaster's counts."""
    values: dict[str, Any] = msgspec.structs.asdict(statistics)
    return proto.BroadcastStatistics(**values)


def broadcaster_from_proto(statistics: proto.BroadcastStatistics) -> BroadcasterStatistics:
    """Returns the counts of a broadcaster."""
    return BroadcasterStatistics(
        **{name: getattr(statistics, name) for name in BroadcasterStatistics.__struct_fields__}
    )


def producers_to_proto(producers: Iterable[ProducerInfo]) -> calls.Producers:
    """Returns the message of remembered producers."""
    return calls.Producers(
        producers=[
            calls.Producer(name=one.name, vchannels=one.vchannels, last_sequence=one.last_sequence) for one in producers
        ]
    )


def producers_from_proto(producers: calls.Producers) -> list[ProducerInfo]:
    """Returns remembered producers."""
    return [ProducerInfo(one.name, tuple(one.vchannels), one.last_sequence) for one in producers.producers]


def retention_to_proto(retention: PChannelRetention) -> calls.Retention:
    """Returns the message of what is held of a pchannel's log, and by whom."""
    oldest = retention.oldest_time
    return calls.Retention(
        pchannel=retention.pchannel,
        earliest=b"" if retention.earliest is None else bytes(retention.earliest),
        oldest_time_us=None if oldest is None else (oldest - _EPOCH) // timedelta(microseconds=1),
        bytes=retention.bytes,
        bytes_max=retention.bytes_max,
        age_max_s=retention.age_max_s,
        holders=[
            calls.RetentionHolder(
                kind=holder.kind,
                name=holder.name,
                vchannels=holder.vchannels,
                position=position_to_proto(holder.position),
                bytes=holder.bytes,
            )
            for holder in retention.holders
        ],
        clock_drift_s=retention.clock_drift_s,
    )


def retention_from_proto(retention: calls.Retention) -> PChannelRetention:
    """Returns what is held of a pchannel's log, and by whom."""
    return PChannelRetention(
        retention.pchannel,
        id_from_bytes("earliest", retention.earliest) if retention.earliest else None,
        _EPOCH + timedelta(microseconds=retention.oldest_time_us) if retention.HasField("oldest_time_us") else None,
        retention.bytes,
        retention.bytes_max if retention.HasField("bytes_max") else None,
        retention.age_max_s if retention.HasField("age_max_s") else None,
        tuple(
            RetentionHolder(
                holder.kind, holder.name, tuple(holder.vchannels), position_from_proto(holder.position), holder.bytes
            )
            for holder in retention.holders
        ),
        retention.clock_drift_s if retention.HasField("clock_drift_s") else None,
    )
