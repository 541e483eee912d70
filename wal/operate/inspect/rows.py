"""The rows that `wal info`, `wal ls` and the other commands print, and that the status service serves as JSON.

A row is a frozen struct whose fields are numbers, texts, times in UTC, and tuples of texts or rows. None means unknown or absent; the
docstring of the field states which. Sizes are in bytes, and durations in seconds. `as_json` is the one JSON form of a row: an object with
`"version"` (VERSION) and `"row"` (the kind of the row), then its fields. A later version only adds fields, or raises VERSION. Pure: nothing
here waits, reads a clock or opens a file.

`json_of` encodes every JSON for users, of a command or of the status service. Ticks, ids, positions and incarnations have up to 128 bits,
and jq and JavaScript round numbers above 2^53. So these fields are texts of decimal digits in JSON; see `_EXACT`.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec

VERSION: Final = 1
"""The version of the JSON form."""
_EXACT: Final = re.compile(r"(.+_)?(tick|id|position|incarnation)|end|checkpoint")
"""The names of the fields whose numbers are texts in JSON: ticks, ids, positions (`end` and `checkpoint` are two) and incarnations."""


class Row(msgspec.Struct, frozen=True, kw_only=True, tag_field="row"):
    """A row. Its class names the kind of the row, which is its tag in JSON."""


RowT = TypeVar("RowT", bound=Row)


class LogRow(Row, frozen=True, kw_only=True, tag="log"):
    """A log as a whole.

    `writer` is "open" (a process has it open for writing), "closed", "killed" (the last writer did not close it, and no process has it
    open) or "unknown". `writer_pid` is None if no process writes it, or the process is not visible from here. `status_address` is that of
    the writer's status service, None without one. `bytes` is the present size. `oldest` is the time of the first event that is not
    truncated. The rates are those of the last minute, None if they are not known.
    """

    release: str
    location: str
    backend: str
    writer: str
    writer_pid: int | None
    status_address: str | None
    pchannels: int
    vchannels: int
    bytes: int
    oldest: datetime | None
    messages_per_s: float | None
    bytes_per_s: float | None


class PChannelRow(Row, frozen=True, kw_only=True, tag="pchannel"):
    """One pchannel of a log.

    `end` is the durable end, as the bytes of a position; None for a client that has not read it. `promised` is the time of the promised
    tick: no later event is older. `segments`, `checkpoint` (the position where recovery begins), `replay_bytes` (the log from there to the
    end), `checkpoint_age_s` and `scheduled` (the number of delayed messages) are None where they are not known.
    """

    pchannel: str
    term: int
    earliest: str | None
    end: int | None
    bytes: int
    oldest: datetime | None
    promised: datetime | None
    segments: int | None
    checkpoint: int | None
    checkpoint_age_s: float | None
    replay_bytes: int | None
    scheduled: int | None = None


class VChannelRow(Row, frozen=True, kw_only=True, tag="vchannel"):
    """One vchannel: its messages that are not truncated, plain ones and bodies of transactions, and their `bytes` in the log.

    Counts that were not taken are absent (None). `last_append` is the time of its last event, `last_id` its id.
    """

    vchannel: str
    pchannel: str
    incarnation: int
    messages: int | None
    bytes: int | None
    last_append: datetime | None
    last_id: str | None


class CursorRow(Row, frozen=True, kw_only=True, tag="cursor"):
    """One cursor and its lag.

    `position` is None if it was saved before any message was passed. `lag_messages` and `lag_bytes` are those of its vchannels. `lag_s` is
    the age of the oldest unread message (0 without any). `held_bytes` is the size of the log that retention keeps for it. `idle_s` is the
    time since its last save. All are None where they are not known. A `stale` cursor does not hold the log. The cursor of a family has its
    `pattern`, and no `vchannels`.
    """

    cursor: str
    vchannels: tuple[str, ...]
    position: str | None
    lag_messages: int | None
    lag_bytes: int
    lag_s: float | None
    held_bytes: int
    idle_s: float | None
    stale: bool
    pattern: str = ""


class MemberRow(Row, frozen=True, kw_only=True, tag="member"):
    """One member of a shared cursor; see `wal.CursorMember`. `lease_s` is None in the process of the cursor's home."""

    cursor: str
    member: str
    process: str
    since: datetime | None
    lease_s: float | None
    in_hand: int
    handled: int
    messages_per_s: float


class ConsumerRow(Row, frozen=True, kw_only=True, tag="consumer"):
    """One consumer of this process, or all consumers that share a cursor; see `wal.ConsumerInfo` for its counts.

    `error` is the error that ended it, or made it trip, empty while it runs. `pattern` is set instead of `vchannels` for a family.
    """

    cursor: str
    vchannels: tuple[str, ...]
    state: str
    fence: int
    handled: int
    failed: int
    retried: int
    dead_lettered: int
    in_hand: int
    pending: int
    lag_messages: int
    lag_bytes: int
    lag_s: float
    idle_s: float
    held_by: str
    error: str = ""
    message_id: str | None = None
    stopped_at: datetime | None = None
    pattern: str = ""
    members: tuple[MemberRow, ...] = ()


class ScheduledRow(Row, frozen=True, kw_only=True, tag="scheduled"):
    """A message that waits for its time. `bytes` is the size of its payload and properties, None where it is not known."""

    vchannel: str
    key: str
    deliver_at: datetime
    bytes: int | None = None


class BroadcastRow(Row, frozen=True, kw_only=True, tag="broadcast"):
    """One unfinished broadcast: its state in lower case, and the vchannels whose copy or acknowledgement is missing.

    `age_s` is None if the beginning of the broadcast is not known.
    """

    broadcast_id: int
    state: str
    age_s: float | None
    resource_keys: tuple[str, ...]
    missing_appends: tuple[str, ...]
    missing_acks: tuple[str, ...]
    last_error: str | None


class RetentionRow(Row, frozen=True, kw_only=True, tag="retention"):
    """The size of a pchannel's log, and its bounds: None for no bound, or for a bound that only the writer has."""

    pchannel: str
    earliest: str | None
    oldest: datetime | None
    bytes: int
    bytes_max: int | None
    age_max_s: float | None
    clock_drift_s: float | None


class HolderRow(Row, frozen=True, kw_only=True, tag="holder"):
    """A holder that keeps a part of a pchannel's log, from `position` on: `bytes` up to the end."""

    pchannel: str
    kind: str
    name: str
    vchannels: tuple[str, ...]
    position: int
    bytes: int


class LatencyRow(Row, frozen=True, kw_only=True, tag="latency"):
    """The latencies of appends and syncs of a pchannel, from the status service of its writer; None where they are not known.

    Half of the values are at most p50, and 99 % at most p99, as exact as the bounds of the histogram. The counts are those since the
    previous row, or since the opening.
    """

    pchannel: str
    frames: int | None = None
    append_p50_s: float | None = None
    append_p99_s: float | None = None
    sync_p50_s: float | None = None
    sync_p99_s: float | None = None


class SettingRow(Row, frozen=True, kw_only=True, tag="setting"):
    """One setting: its value as text (a secret as `***`, None: not set), and its source.

    The source is "default", "environment", "file", "flag", "log" (stored in the log) or "unknown".
    """

    setting: str
    value: str | None
    source: str
    meaning: str


class HealthRow(Row, frozen=True, kw_only=True, tag="health"):
    """One check of a log's health, its result, and the reason in words."""

    check: str
    ok: bool
    detail: str


def row_of(kind: type[RowT], source: object, **fields: Any) -> RowT:
    """Returns a row of this kind with these fields; the others are the attributes of `source` with their names."""
    return kind(**{name: fields[name] if name in fields else getattr(source, name) for name in kind.__struct_fields__})


def as_json(row: Row) -> bytes:
    """Returns the row as one line of JSON, without its end. Times are RFC 3339 in UTC."""
    return json_of(as_dict(row))


def as_dict(row: Row) -> dict[str, Any]:
    """Returns the row as built-in objects, with numbers unchanged."""
    return {"version": VERSION, **msgspec.to_builtins(row)}


def json_of(answer: Any) -> bytes:
    """Returns built-in objects as JSON in which every tick, id, position and incarnation is a text."""
    return msgspec.json.encode(_exact("", answer))


def _exact(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _exact(key, each) for key, each in value.items()}
    if isinstance(value, list):
        return [_exact(name, each) for each in value]
    if isinstance(value, int) and not isinstance(value, bool) and _EXACT.fullmatch(name):
        return str(value)
    return value


def printable(text: str) -> str:
    """Returns the text with control and format characters escaped, which could change a terminal."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character == " "
        else character.encode("unicode_escape", "surrogatepass").decode()
        if unicodedata.category(character) != "Cs"
        else f"\\u{ord(character):04x}"
        for character in text
    )
