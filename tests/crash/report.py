"""Reports of a child to its parent, a line of JSON each, and the plan that the parent gives it.

An `Acked` is sent only after the append has returned; the events that the parent reads in it are therefore durable, whatever happens to the
child next.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import msgspec


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A child's task: it opens the log in `directory` and loads it, as `seed` and `round` say, until it is killed."""

    directory: str
    seed: int
    round: int
    settings: dict[str, Any]
    uvloop: bool
    workers: int = 8
    filler_bytes_max: int = 2000


class Content(msgspec.Struct, frozen=True, array_like=True):
    """The content of one body: its vchannel, its type, its payload's length and CRC32, its properties."""

    vchannel: str
    message_type: int
    length: int
    crc: int
    properties: dict[str, str]


class AckedEvent(msgspec.Struct, frozen=True, array_like=True):
    """An acknowledged event: its id (text), its tick, and the contents that were appended."""

    message_id: str
    time_tick: int
    bodies: list[Content]


class Opening(msgspec.Struct, frozen=True, tag=True):
    """`open_wal` is about to be called."""


class Opened(msgspec.Struct, frozen=True, tag=True):
    """The log is open and the load begins."""


class Acked(msgspec.Struct, frozen=True, tag=True):
    """Events of one operation, in the order of the calls."""

    round: int
    worker: int
    op: int
    events: list[AckedEvent]


class Absent(msgspec.Struct, frozen=True, tag=True):
    """An operation that ended without being written, and its error."""

    round: int
    worker: int
    op: int
    why: str


class Delivered(msgspec.Struct, frozen=True, tag=True):
    """The messages that a follower in the child got: (id, tick) of each, and the scanner's position after them."""

    events: list[tuple[str, int]]
    position: str


class Closing(msgspec.Struct, frozen=True, tag=True):
    """`close` is about to be called, under load."""


class Closed(msgspec.Struct, frozen=True, tag=True):
    """`close` returned."""


class LeasePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The task of `tests.crash.lease`. Times are in seconds."""

    directory: str
    time_tick_interval_s: float
    control_keepalive_s: float
    keepalive_s: float


class RanOut(msgspec.Struct, frozen=True, tag=True):
    """The control transaction, left idle by a running process, expired after this many seconds."""

    seconds: float


class TxnOpen(msgspec.Struct, frozen=True, tag=True):
    """The transaction is open and has its first body."""


class Committed(msgspec.Struct, frozen=True, tag=True):
    """Whether the transaction could be committed, this many monotonic seconds after its last body; else the error's text."""

    committed: bool
    idle_s: float
    error: str


Report = Opening | Opened | Acked | Absent | Delivered | Closing | Closed | RanOut | TxnOpen | Committed


def content(vchannel: str, message_type: int, payload: bytes, properties: Mapping[str, str]) -> Content:
    """Returns the content of a body that was appended, or delivered by a scanner."""
    return Content(vchannel, int(message_type), len(payload), zlib.crc32(payload), dict(properties))
