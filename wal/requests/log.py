"""DescribeLog, the first request of every client: the pchannels of the log, its limits and its settings."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from wal.message import Lineage, Origin, Restore
from wal.requests.request import LogRequest
from wal.settings import Settings

VERSION: Final = 1
"""The version of the requests and of the streams. A server refuses a request, a field and a value that it does not know."""


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that belong to a log and not to a process: a client takes them from its server. `Settings` has their meaning."""

    create_vchannels: bool
    vchannels_max: int
    message_bytes_max: int
    txn_bytes_max: int
    txn_bodies_max: int
    txn_keepalive: float
    open_txn_bytes_max: int
    in_flight_bytes_max: int
    time_tick_interval_s: float
    idempotency_window_count: int | None
    idempotency_window_s: float
    producers_max: int
    broadcast_tasks_max: int
    broadcast_vchannels_max: int
    retention_bytes: int | None
    retention_s: float | None
    cursor_lag_bytes_max: int | None
    cursor_age_max_s: float | None
    scheduled_max: int
    scheduled_bytes_max: int

    @classmethod
    def of(cls, settings: Settings) -> LogSettings:
        """Returns those of these settings."""
        return cls(**{name: getattr(settings, name) for name in cls.__struct_fields__})

    def settings(self) -> Settings:
        """Returns the settings of the log; the settings of a process have their defaults."""
        values: dict[str, Any] = msgspec.structs.asdict(self)
        return Settings(**values)


class PChannelIdentity(msgspec.Struct, frozen=True):
    """The identity of the log of a pchannel, and the term in which it is written. `form` is that of its message ids."""

    name: str
    term: int
    incarnation: int
    form: int
    restores: tuple[Restore, ...] = ()

    @property
    def origin(self) -> Origin:
        """The origin of the first frame of this log."""
        return Origin(self.name, self.incarnation, 0, self.form)

    @property
    def lineage(self) -> Lineage:
        """The incarnations of this log."""
        return Lineage(self.incarnation, self.restores)


class LogDescription(msgspec.Struct, frozen=True):
    """A log. `version` is that of its server, `wal_name` the backend, `log_id` what identifies the log wherever it is served."""

    version: int
    wal_name: str
    pchannels: tuple[PChannelIdentity, ...]
    frame_bytes_max: int
    settings: LogSettings
    log_id: int


class DescribeLog(LogRequest[LogDescription], frozen=True):
    """Asks what the log is. `version` is that of the client."""

    saying: ClassVar[str] = "opening the log"

    version: int = VERSION
