"""The report of a client of the kill tests to its parent: its calls with their outcomes, and the messages that its readers got.

A payload names its call, so that every message of the log can be judged: `client call index count`.
"""

from __future__ import annotations

import enum

import msgspec


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The task of a client: it loads the log at `address` until a command to stop. `sides` are vchannels, one list for each pchannel."""

    address: str
    client: int
    seed: int
    sides: list[list[str]]
    uvloop: bool


class Outcome(enum.StrEnum):
    """The outcome of a call, as its caller got it."""

    DONE = "done"
    UNKNOWN = "unknown"
    NOTHING = "nothing"
    """An error that says that nothing was written."""


class Call(msgspec.Struct, frozen=True, array_like=True):
    """A call that writes `count` bodies to these vchannels: an append, a transaction, or a broadcast."""

    number: int
    vchannels: list[str]
    count: int
    transaction: bool
    broadcast: bool
    ordered: bool
    """Whether its number is its place in the order of the calls that write to these vchannels."""
    outcome: Outcome
    ids: list[str]
    """The message ids of the results."""
    why: str = ""
    """The error, if there is no result."""


class Session(msgspec.Struct, array_like=True):
    """One reader with a cursor, from its beginning to its end: the ids that it got, and how many of them its last save covered."""

    side: int
    ids: list[str]
    saved: int


class Report(msgspec.Struct):
    """`scanned` has the ids that a reader of each side got, from the first to the last."""

    calls: list[Call]
    scanned: list[list[str]]
    sessions: list[Session]


def payload(client: int, call: int, index: int, count: int, filler: bytes = b"") -> bytes:
    """Returns the payload of one body of a call."""
    return f"{client} {call} {index} {count}\n".encode() + filler


def claims_of(payload: bytes) -> tuple[int, int, int, int]:
    """Returns client, call, index and count of a payload."""
    client, call, index, count = map(int, payload.partition(b"\n")[0].split())
    return client, call, index, count
