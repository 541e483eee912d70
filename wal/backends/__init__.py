"""Backends: where frames are kept. They know frames and nothing above them."""

from wal.backends.base import (
    FRAME_BYTES_MAX,
    REFUSALS,
    AppendDone,
    FramePage,
    LogBackend,
    LogState,
    PChannelLog,
    ReadableLog,
    StoredFrame,
    Stretch,
)
from wal.backends.read_only import LogSnapshot, ReadOnlyPChannelLog

__all__ = [
    "FRAME_BYTES_MAX",
    "REFUSALS",
    "AppendDone",
    "FramePage",
    "LogBackend",
    "LogSnapshot",
    "LogState",
    "PChannelLog",
    "ReadOnlyPChannelLog",
    "ReadableLog",
    "StoredFrame",
    "Stretch",
]
