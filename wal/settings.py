"""Settings: every value that a user may choose, in one frozen struct.

Everything has a bound (D11); a setting that drops data is None unless a user gives it. `Settings.load` reads a TOML file; `WAL_…`
environment variables override it, and keywords override both. An unknown name or a wrong value is an error that lists what is accepted,
and names the file or the variable that it comes from. Secrets are kept as `Secret`, so that no repr, error or log line shows them.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, Unpack

import msgspec

from wal.errors import InvalidArgumentError, shortened
from wal.location import absolute_path, check_admin_url, check_token
from wal.runtime.secret import Secret, shown
from wal.timestamp.checks import SECONDS_MAX, number_text
from wal.timestamp.timestamp import from_datetime

MIB: Final = 1024 * 1024
IDEMPOTENCY_WINDOW_BYTES: Final = 64 * MIB
"""The memory of a pchannel's plain keys if their number is not set: 150,000 of 36 bytes that came alone, 490,000 in groups."""
ENVIRONMENT_PREFIX: Final = "WAL_"
TEST_PREFIX: Final = "WAL_TEST_"
"""Variables that name servers for the project's own tests; they are not settings."""
SERVER_PREFIX: Final = "WAL_SERVER_"
"""Variables of a process that serves a log to clients: about its service, not about its log."""
SERVER_TABLE: Final = "server"
"""The table of a settings file with the same."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings, with their defaults. Sizes are in bytes, times in seconds."""

    pchannels: int | None = None
    """The number of pchannels; None: as many as the log has, 1 for a new log. It can grow, never shrink."""
    create_vchannels: bool = True
    """Whether an append to a vchannel that does not exist creates it."""
    vchannels_max: int = 65_536
    message_bytes_max: int = MIB
    """The payload plus the properties of one message."""
    txn_bytes_max: int = 4 * MIB
    """The size of a transaction: `estimate_size()` plus 32 for each body, over all its vchannels."""
    txn_bodies_max: int = 4096
    txn_keepalive: float = 10.0
    """The keepalive of a transaction that does not name its own."""
    open_txn_bytes_max: int = 256 * MIB
    """The bodies of all open transactions of a pchannel."""
    in_flight_bytes_max: int = 64 * MIB
    """The appends that are not durable yet; over this bound `raw_append` waits and `append_nowait` raises WouldBlockError."""
    segment_bytes: int = 64 * MIB
    """The size of a full-grown segment file of the journal."""
    group_readable: bool | None = None
    """Whether the group of a journal's files may read them; None: unchanged, and only the owner for a new journal."""
    write_path: Literal["auto", "loop", "thread"] = "auto"
    """The writer of a journal's frames: the event loop, a thread, or ("auto") the loop where it can and is faster."""
    compression: Literal["none", "zstd"] | None = None
    """Whether the blocks of new frames are compressed. It is saved with the log, for every later writer; None: as saved, else "none"."""
    time_tick_interval_s: float = 0.2
    """The interval at which the promised tick of an idle pchannel advances."""
    idempotency_window_count: int | None = None
    """The plain keys that a pchannel remembers; None: all of `idempotency_window_s`, as far as IDEMPOTENCY_WINDOW_BYTES allow."""
    idempotency_window_s: float = 3600.0
    producers_max: int = 4096
    scheduled_max: int = 65_536
    """The messages of a pchannel that wait for their delivery time, …"""
    scheduled_bytes_max: int = 32 * MIB
    """… and their bytes: they are in memory, and in each checkpoint."""
    broadcast_tasks_max: int = 65_536
    broadcast_vchannels_max: int = 16_384
    kv: str | Secret | None = None
    """The location of the metadata, if not the log's directory. A text with a password is kept as a `Secret`."""
    pulsar_admin_url: str | None = None
    """The admin REST address of Pulsar; None: the host of the location, at Pulsar's default port (8080, with TLS 8443)."""
    pulsar_token: str | Secret | None = None
    """A JSON Web Token for Pulsar. It is kept as a `Secret`."""
    pulsar_tls_authority: str | None = None
    """The path of the certificates (PEM) that Pulsar's certificate is checked against; None: those of the system."""
    token: str | Secret | None = None
    """The token that a server of a log on the network (`wal://…`) asks its clients for. It is kept as a `Secret`."""
    allow_message_ttl: bool = False
    """Opens a log on Pulsar although a policy there may delete its messages by age."""
    allow_backlog_quota: bool = False
    """Opens a log on Pulsar although a quota there may block its writer or delete its messages."""
    retention_bytes: int | None = None
    retention_s: float | None = None
    cursor_lag_bytes_max: int | None = None
    cursor_age_max_s: float | None = None
    archive: str | None = None
    """A directory or the URL of an object store, where a journal archives itself while it is open; None: nowhere.

    With `read_only=True`: where the archive of the journal is now, if it was moved.
    """
    archive_poll_s: float = 1.0
    """How often a reader of an archive looks for a newer manifest."""
    as_of: int | datetime | None = None
    """The tick, or the time, as of which an archive is read; None: as of its newest manifest, and onwards. It is kept as a tick."""

    def __post_init__(self) -> None:
        if isinstance(self.as_of, datetime):
            msgspec.structs.force_setattr(self, "as_of", from_datetime(self.as_of))
        for name, value in msgspec.structs.asdict(self).items():
            _check(name, value)
        if isinstance(self.pulsar_token, str):
            msgspec.structs.force_setattr(self, "pulsar_token", Secret(self.pulsar_token))
        if isinstance(self.token, str):
            msgspec.structs.force_setattr(self, "token", Secret(self.token))
        if isinstance(self.kv, str) and shown(self.kv) != self.kv:
            msgspec.structs.force_setattr(self, "kv", Secret.of_url(self.kv))

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None, **overrides: Unpack[SettingsOverrides]) -> Settings:
        """Returns settings from a TOML file, overridden by `WAL_…` variables (WAL_PCHANNELS=4), overridden by keywords.

        A missing file, an unknown name, a wrong type or a wrong value in the file or in a variable raises an InvalidArgumentError that
        names the file or the variable. Sizes and times there may have units, as for `setting_from_text`. Keywords are checked as by
        `Settings(…)`: a wrong type raises TypeError.
        """
        values: dict[str, Any] = {}
        if path is not None:
            file = absolute_path(os.fspath(path), "the settings file")
            where = f"settings file {str(file)!r}"
            entries = _from_file(file, where)
            entries.pop(SERVER_TABLE, None)
            values |= {name: _from_toml(where, name, value) for name, value in entries.items()}
        for variable, text in os.environ.items():
            if variable.startswith(ENVIRONMENT_PREFIX) and not variable.startswith((TEST_PREFIX, SERVER_PREFIX)):
                name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
                values[name] = setting_from_text(f"environment variable {variable}", name, text)
        return cls()._with({**values, **overrides})

    def replace(self, **overrides: Unpack[SettingsOverrides]) -> Settings:
        """Returns these settings with some changed; an unknown name raises an InvalidArgumentError that lists the known ones."""
        return self._with(overrides)

    def _with(self, overrides: Mapping[str, Any]) -> Settings:
        unknown = [name for name in overrides if name not in self.__struct_fields__]
        if unknown:
            raise InvalidArgumentError(_unknown(unknown[0]))
        return msgspec.structs.replace(self, **overrides)


class ServerBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of what the clients of a server may have under way, together and (`client_…`) each. Sizes are in bytes, times in seconds.

    They are passed like the other options of a server; `SERVER_BOUNDS` explains each.
    """

    connections_max: int = 8_192
    idle_connection_s: float = 300.0
    handshake_s: float = 10.0
    calls_max: int = 16_384
    client_calls_max: int = 1_024
    answer_bytes_max: int = 512 * MIB
    client_answer_bytes_max: int = 128 * MIB
    upload_bytes_max: int = 1024 * MIB
    client_upload_bytes_max: int = 128 * MIB
    produce_streams_max: int = 8_192
    client_produce_streams_max: int = 256
    client_open_txns_max: int = 8_192
    client_open_txn_bytes_max: int = 64 * MIB
    txn_keepalive_s_max: float = 3_600.0
    consumer_grace_s: float = 1.0

    @classmethod
    def of(cls, values: Mapping[str, tuple[str, Any]]) -> ServerBounds:
        """Returns the bounds of these values: each name maps to the value's source and the value, perhaps as a text with a unit.

        Raises InvalidArgumentError that begins with the source of a wrong value.
        """
        return cls(**{name: cls._checked(where, name, value) for name, (where, value) in values.items()})

    @staticmethod
    def _checked(where: str, name: str, value: Any) -> Any:
        is_time, is_size = name.endswith(("_s", "_s_max")), "bytes" in name
        raw_value = value
        try:
            if isinstance(value, str):
                value = _seconds(value) if is_time else _size(value) if is_size else int(value)
            if isinstance(value, bool) or not isinstance(value, int | float if is_time else int):
                raise ValueError(value)
        except ValueError:
            accepted = "a time, such as 30s" if is_time else "a size, such as 64MiB" if is_size else "a whole number"
            raise InvalidArgumentError(f"{where}: {name}={_value_text(raw_value)} is not {accepted}") from None
        least, most = (0.001, 1e6) if is_time else (1, 1 << (50 if is_size else 30))
        if not least <= value <= most:
            raise InvalidArgumentError(f"{where}: {name}={_value_text(raw_value)} is out of range: {least} to {most:.0f}")
        return value


class SettingsOverrides(TypedDict, total=False):
    """The settings as keywords, each of them optional: the type of `**overrides` for functions that call `open_wal` with them."""

    pchannels: int | None
    create_vchannels: bool
    vchannels_max: int
    message_bytes_max: int
    txn_bytes_max: int
    txn_bodies_max: int
    txn_keepalive: float
    open_txn_bytes_max: int
    in_flight_bytes_max: int
    segment_bytes: int
    group_readable: bool | None
    write_path: Literal["auto", "loop", "thread"]
    compression: Literal["none", "zstd"] | None
    time_tick_interval_s: float
    idempotency_window_count: int | None
    idempotency_window_s: float
    producers_max: int
    scheduled_max: int
    scheduled_bytes_max: int
    broadcast_tasks_max: int
    broadcast_vchannels_max: int
    kv: str | Secret | None
    pulsar_admin_url: str | None
    pulsar_token: str | Secret | None
    pulsar_tls_authority: str | None
    token: str | Secret | None
    allow_message_ttl: bool
    allow_backlog_quota: bool
    retention_bytes: int | None
    retention_s: float | None
    cursor_lag_bytes_max: int | None
    cursor_age_max_s: float | None
    archive: str | None
    archive_poll_s: float
    as_of: int | datetime | None


def setting_from_text(where: str, name: str, text: str) -> Any:
    """Returns the value of a setting that was given as text: a size in bytes or as `8MiB`, a time in seconds or as `7d`.

    Raises InvalidArgumentError, beginning with `where`, for a wrong one.
    """
    return _checked(where, name, _from_text(where, name, text))


def seconds_from_text(what: str, text: str, least: float = 0.0, most: float = SECONDS_MAX) -> float:
    """Returns a time in seconds that was given as text, perhaps with a unit. Raises InvalidArgumentError, beginning with `what`."""
    try:
        value = _seconds(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise InvalidArgumentError(
            f"{what} {shortened(text)} is out of range: write a time from {least:g} to {most:g} seconds, also with a unit "
            f"({', '.join(_TIME_UNITS)}), for example 30s".lstrip()
        )
    return value


def server_table(path: str | os.PathLike[str]) -> tuple[str, Mapping[str, Any]]:
    """Returns the table of a settings file about the server, empty if it has none, and the beginning of errors about it."""
    file = absolute_path(os.fspath(path), "the settings file")
    where = f"settings file {str(file)!r}"
    table = _from_file(file, where).get(SERVER_TABLE, {})
    if not isinstance(table, dict):
        raise InvalidArgumentError(f"{where}: {SERVER_TABLE} must be a table: write [{SERVER_TABLE}]")
    return where, table


_INTEGER_MAX: Final = (1 << 63) - 1
_INTEGERS: Final[Mapping[str, int]] = {
    "pchannels": 1,
    "vchannels_max": 1,
    "message_bytes_max": 1,
    "txn_bytes_max": 1,
    "txn_bodies_max": 1,
    "open_txn_bytes_max": 1,
    "in_flight_bytes_max": 1,
    "segment_bytes": MIB,
    "idempotency_window_count": 0,
    "producers_max": 1,
    "scheduled_max": 1,
    "scheduled_bytes_max": 1,
    "broadcast_tasks_max": 1,
    "broadcast_vchannels_max": 1,
    "retention_bytes": 0,
    "cursor_lag_bytes_max": 0,
    "as_of": 1,
}
"""Integer settings and the smallest value of each."""
_SECONDS: Final[Mapping[str, float]] = {
    "txn_keepalive": 0.001,
    "time_tick_interval_s": 0.001,
    "idempotency_window_s": 0.0,
    "retention_s": 0.0,
    "cursor_age_max_s": 0.0,
    "archive_poll_s": 0.01,
}
"""Settings in seconds and the smallest value of each."""
_SIZES: Final = frozenset(name for name in _INTEGERS if "bytes" in name)
"""Integer settings that are sizes in bytes."""
_SIZE_UNITS: Final[Mapping[str, int]] = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_TIME_UNITS: Final[Mapping[str, float]] = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_SIZE: Final = re.compile(rf"([0-9]+) ?({'|'.join(_SIZE_UNITS)})")
_TIME: Final = re.compile(rf"([0-9]+(?:\.[0-9]+)?) ?({'|'.join(_TIME_UNITS)})")
_BOOLEANS: Final = frozenset(("create_vchannels", "group_readable", "allow_message_ttl", "allow_backlog_quota"))
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {"write_path": ("auto", "loop", "thread"), "compression": ("none", "zstd")}
"""Settings with a few possible values."""
_SECRETS: Final = frozenset(("kv", "pulsar_token", "token"))
_OPTIONAL: Final = frozenset(
    name for name, default in zip(Settings.__struct_fields__, Settings.__struct_defaults__, strict=True) if default is None
)


def _check(name: str, value: object) -> None:
    if value is None and name in _OPTIONAL:
        return
    if name in _INTEGERS:
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"setting {name} must be an int, not {type(value).__name__}")
        if value < _INTEGERS[name]:
            raise InvalidArgumentError(f"setting {name}={number_text(value)} is too small: at least {_INTEGERS[name]}")
        if value > _INTEGER_MAX:
            raise InvalidArgumentError(f"setting {name}={number_text(value)} is too large: at most {_INTEGER_MAX}")
    elif name in _SECONDS:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise TypeError(f"setting {name} must be a number of seconds, not {type(value).__name__}")
        if not _SECONDS[name] <= value <= sys.float_info.max:
            raise InvalidArgumentError(f"setting {name}={number_text(value)} is out of range: at least {_SECONDS[name]} seconds")
    elif name in _BOOLEANS:
        if not isinstance(value, bool):
            raise TypeError(f"setting {name} must be a bool, not {type(value).__name__}")
    elif not isinstance(value, str) and not (name in _SECRETS and isinstance(value, Secret)):
        raise TypeError(f"setting {name} must be a str, not {type(value).__name__}")
    elif name in _CHOICES:
        if value not in _CHOICES[name]:
            raise InvalidArgumentError(f"setting {name}={value!r} is unknown: one of {', '.join(_CHOICES[name])}")
    elif name == "pulsar_admin_url" and isinstance(value, str):
        check_admin_url("setting pulsar_admin_url", value)
    elif name in ("pulsar_token", "token"):
        check_token(f"setting {name}", Secret.of(value))


def _checked(where: str, name: str, value: Any) -> Any:
    """Returns a value from outside the program. A wrong name, type or value raises an InvalidArgumentError that begins with `where`."""
    if name not in Settings.__struct_fields__:
        raise InvalidArgumentError(f"{where}: {_unknown(name)}")
    try:
        _check(name, value)
    except (TypeError, InvalidArgumentError) as error:
        raise InvalidArgumentError(f"{where}: {error}") from error
    return value


def _from_toml(where: str, name: str, value: Any) -> Any:
    """Returns the value of a setting in a file, where only a size or a time with a unit is a text instead of a number."""
    if isinstance(value, str) and (name in _SECONDS or name in _SIZES):
        return setting_from_text(f"{where}: {name}", name, value)
    return _checked(where, name, value)


def _from_file(path: Path, where: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise InvalidArgumentError(f"{where} cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgumentError(f"{where} is not TOML: {error}") from error
    except UnicodeDecodeError as error:
        wrong = f"{where} is not TOML: byte {error.start} is not UTF-8"
    raise InvalidArgumentError(wrong)  # after the handler: the codec's error contains the whole file


def _from_text(where: str, name: str, text: str) -> Any:
    try:
        if name in _INTEGERS:
            return _size(text) if name in _SIZES else int(text)
        if name in _SECONDS:
            seconds = _seconds(text)
        if name in _BOOLEANS:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    except (ValueError, KeyError) as error:
        raise InvalidArgumentError(f"{where}={shortened(text)} is not {_accepted(name)}") from error
    if name not in _SECONDS:
        return text
    if not math.isfinite(seconds):
        raise InvalidArgumentError(f"{where}={shortened(text)} is out of range: at least {_SECONDS[name]} seconds")
    return seconds


def _accepted(name: str) -> str:
    """Returns which texts are values of a setting."""
    if name in _SIZES:
        return "a size: write bytes, or a whole number and one of " + ", ".join(_SIZE_UNITS) + ", for example 8MiB"
    if name in _SECONDS:
        return "a time: write seconds, or a number and one of " + ", ".join(_TIME_UNITS) + ", for example 7d"
    return "a whole number" if name in _INTEGERS else "true or false"


def _value_text(value: object) -> str:
    return shortened(value) if isinstance(value, str) else number_text(value) if isinstance(value, int) else repr(value)


def _size(text: str) -> int:
    matched = _SIZE.fullmatch(text)
    return int(text) if matched is None else int(matched[1]) * _SIZE_UNITS[matched[2]]


def _seconds(text: str) -> float:
    matched = _TIME.fullmatch(text)
    return float(text) if matched is None else float(matched[1]) * _TIME_UNITS[matched[2]]


def _unknown(name: str) -> str:
    accepted = sorted(Settings.__struct_fields__)
    close = difflib.get_close_matches(name.lower(), accepted, n=1)
    meant = f"; did you mean {close[0]!r}? Accepted" if close else "; accepted"
    return f"no setting {name!r}{meant} are: {', '.join(accepted)}"


MEANINGS: Final[Mapping[str, str]] = {
    "pchannels": "number of pchannels; it can grow, never shrink; default: as many as the log has, 1 for a new log",
    "create_vchannels": "whether an append to a vchannel that does not exist creates it",
    "vchannels_max": "most vchannels of the log",
    "message_bytes_max": "largest message: payload and properties",
    "txn_bytes_max": "largest transaction",
    "txn_bodies_max": "most bodies of a transaction",
    "txn_keepalive": "time without an append after which a transaction expires, unless it names its own",
    "open_txn_bytes_max": "most bytes of the bodies of all open transactions of a pchannel",
    "in_flight_bytes_max": "most bytes of appends that are not durable yet; beyond it appends wait",
    "segment_bytes": "size of a full-grown segment file",
    "group_readable": "whether the group of a journal's files may read them; default: unchanged",
    "write_path": "what writes a journal's frames: auto, loop or thread",
    "compression": "whether the blocks of new frames are compressed: none or zstd, saved with the log; default: as saved",
    "time_tick_interval_s": "how often the promised tick of an idle pchannel advances",
    "idempotency_window_count": "how many idempotency keys a pchannel remembers; default: those of idempotency_window_s, in 64 MiB",
    "idempotency_window_s": "how long an idempotency key is remembered",
    "producers_max": "how many producers a pchannel remembers",
    "scheduled_max": "most messages of a pchannel that wait for their time",
    "scheduled_bytes_max": "most bytes that these messages take",
    "broadcast_tasks_max": "most broadcasts in progress",
    "broadcast_vchannels_max": "most vchannels of a broadcast",
    "kv": "where the metadata is, if not in the log's directory: a sqlite file or etcd://HOST:PORT/ROOT",
    "pulsar_admin_url": "admin REST address of Pulsar; default: the location's host",
    "pulsar_token": "token for Pulsar",
    "pulsar_tls_authority": "certificates (PEM) to check Pulsar's against; default: those of the system",
    "token": "token that a client shows to the server of a log",
    "allow_message_ttl": "opens a log on Pulsar although a policy there may delete its messages by age",
    "allow_backlog_quota": "opens a log on Pulsar although a quota there may block its writer or delete its messages",
    "retention_bytes": "most bytes that each pchannel keeps; beyond it the oldest messages are dropped; default: no limit",
    "retention_s": "age after which messages are dropped; default: never",
    "cursor_lag_bytes_max": "held bytes beyond which a cursor turns stale and holds nothing back; default: no limit",
    "cursor_age_max_s": "time since its last save after which a cursor turns stale; default: never",
    "archive": "where a journal archives itself: a directory, or s3://BUCKET/PATH; retention drops what is archived alone",
    "archive_poll_s": "how often a reader of an archive looks for a newer manifest",
    "as_of": "tick as of which an archive is read; default: the newest, and onwards",
}
"""The meaning of each setting in a line, for the help of commands."""
SERVER_BOUNDS: Final[Mapping[str, str]] = {
    "connections_max": "most connections; a new one above it is closed",
    "idle_connection_s": "time after which a connection without a call is closed",
    "handshake_s": "time that a new connection has to begin with HTTP/2, and with TLS",
    "calls_max": "most calls and streams under way",
    "client_calls_max": "the same, of one connection",
    "answer_bytes_max": "most bytes of answers that clients have not read",
    "client_answer_bytes_max": "the same, of one connection",
    "upload_bytes_max": "most bytes of requests that may be arriving, each counted as the largest",
    "client_upload_bytes_max": "the same, of one connection",
    "produce_streams_max": "most streams on which clients append; a client of ours has one for each pchannel",
    "client_produce_streams_max": "the same, of one connection",
    "client_open_txns_max": "most open transactions of one client on a pchannel",
    "client_open_txn_bytes_max": "most bytes of their bodies that the server keeps, of one client on a pchannel",
    "txn_keepalive_s_max": "longest keepalive that a client may give a transaction",
    "consumer_grace_s": "time after which a consumer that has lost its connection loses its cursor",
}
"""The meaning of each bound of a server, in a line."""
