"""Transactions: one that is appended as a whole, and one whose bodies follow. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from wal.message import Message, MessageID
from wal.requests.appends import NOT_EXPECTED
from wal.timestamp.checks import check_tick
from wal.write.idempotency.keys import Key


class BeginTxn(msgspec.Struct, frozen=True):
    """Begins a transaction on vchannels of one pchannel. A `keepalive_s` of 0 means the setting; the commit judges `expected_last`.

    `expected_last` is by name, for some or all of the vchannels. The key is that of the commit; `key_bytes` is the size of one that only
    the commit will name.
    """

    vchannels: tuple[str, ...]
    keepalive_s: float = 0.0
    key: Key | None = None
    expected_last: Mapping[str, MessageID | None] = NOT_EXPECTED
    key_bytes: int = 0


class AppendTxn(msgspec.Struct, frozen=True):
    """Appends a transaction as a whole, on vchannels of one pchannel. `bytes` are an INSERT on its only vchannel.

    Raises TypeError or InvalidArgumentError for a barrier that is no tick.
    """

    vchannels: tuple[str, ...]
    bodies: Sequence[Message | bytes]
    barrier_time_tick: int = 0
    key: Key | None = None
    expected_last: Mapping[str, MessageID | None] = NOT_EXPECTED

    def __post_init__(self) -> None:
        if self.barrier_time_tick is not _NO_BARRIER:
            check_tick("barrier_time_tick", self.barrier_time_tick)


_NO_BARRIER = 0
"""The default, compared by identity: every other value, also `False` and 0.0, is checked."""
