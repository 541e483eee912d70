"""Engines: the names of what the benchmarks compare, beside the plain `wal`, `sqlite` and `floor`."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ALONE_FULL",
    "ALONE_SAME",
    "APART",
    "APPEND_TXN",
    "ASYNCIO",
    "ECHO",
    "JETSTREAM",
    "AS_IT_COMES",
    "KEYS",
    "LOOP_FLOOR",
    "NO_KEYS",
    "ONE_MESSAGE",
    "PRODUCER",
    "REMOTE",
]

LOOP_FLOOR: Final = "loop floor"
"""The floor with callers: `loop_floor.py`."""
ASYNCIO: Final = "wal, asyncio"
"""The log on asyncio's own loop; every other engine runs on uvloop."""
AS_IT_COMES: Final = "sqlite as it comes"
"""SQLite with its default page size and checkpoint."""
APART: Final = "sqlite, each by itself"
"""Transactions that do not share a commit, so that one of them can be rolled back alone."""
APPEND_TXN: Final = "wal, append_txn"
"""Whole transactions, each by one call."""
NO_KEYS: Final = "wal, no keys"
KEYS: Final = "wal, keys"
PRODUCER: Final = "wal, a producer"
"""One producer whose sequences all writers take in turn, so that as many as there are writers are in flight."""
ALONE_SAME: Final = "wal alone, same frames"
ALONE_FULL: Final = "wal alone, full frames"
"""W7: a log of the wanted vchannel alone, in frames as in the shared log, and in frames of many messages."""
REMOTE: Final = "remote"
"""W11: the log by a client of a server; `wal` is the same in the caller's process."""
ONE_MESSAGE: Final = "remote, one message"
"""A client of Milvus' form, with a request for each message."""
ECHO: Final = "gRPC echo"
"""A bare stream of grpc.aio that sends back the bytes of those requests."""
JETSTREAM: Final = "JetStream"
"""nats-server, which syncs each message before its ack, by its asyncio client."""
