"""RocksMQSettings: the limits of a RocksMQ, and what retention may drop."""

from __future__ import annotations

from typing import Final

import msgspec

from wal.errors import InvalidArgumentError

BATCH_MESSAGES_MAX: Final = 65_536
"""The maximum number of messages of one `produce`. They are one write batch of RocksDB, which holds the interpreter for about 2 µs a
message.
"""


class RocksMQSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes, times in seconds. A wrong value raises InvalidArgumentError when the struct is created.

    `message_bytes_max` limits a payload, and `batch_bytes_max` the payloads of one `produce`. `in_flight_bytes_max` limits the payloads
    that wait for their write; above it `produce` raises WouldBlockError. `calls_max` limits the waiting calls; above it the caller waits.
    `consume_bytes_max` is about the most that one `consume` returns (at least one message).

    `page_bytes` is the unit of retention, 64 MiB as in Milvus. `retention_bytes` and `retention_s` (None: no limit) bound a channel: the
    oldest pages above this size, or this long after they were filled, are dropped. Messages that a group has not consumed stay, and so does
    all of a channel without groups, unless `retention_unconsumed`. `retention_interval_s` is the interval of these checks.

    `write_buffer_bytes` is the size of RocksDB's memtable. Opening after a crash replays about as much, 64 MiB in about 0.4 s.
    """

    message_bytes_max: int = 1024 * 1024
    batch_bytes_max: int = 16 * 1024 * 1024
    in_flight_bytes_max: int = 64 * 1024 * 1024
    calls_max: int = 65_536
    consume_bytes_max: int = 4 * 1024 * 1024
    page_bytes: int = 64 * 1024 * 1024
    retention_bytes: int | None = None
    retention_s: float | None = None
    retention_unconsumed: bool = False
    retention_interval_s: float = 60.0
    write_buffer_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        for name in ("message_bytes_max", "batch_bytes_max", "in_flight_bytes_max", "calls_max", "consume_bytes_max", "page_bytes"):
            self._at_least(name, 1)
        self._at_least("write_buffer_bytes", 65_536)
        self._at_least("retention_bytes", 0)
        self._at_least("retention_s", 0)
        if not self.retention_interval_s > 0:
            raise InvalidArgumentError(
                f"retention_interval_s={self.retention_interval_s} is out of range: it is the time between two looks, more than 0 s"
            )
        if self.message_bytes_max > self.batch_bytes_max or self.batch_bytes_max > self.in_flight_bytes_max:
            raise InvalidArgumentError(
                f"message_bytes_max={self.message_bytes_max}, batch_bytes_max={self.batch_bytes_max}, "
                f"in_flight_bytes_max={self.in_flight_bytes_max}: each must hold the one before it"
            )

    def _at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if value is not None and not value >= least:
            raise InvalidArgumentError(f"{name}={value} is out of range: at least {least}")
