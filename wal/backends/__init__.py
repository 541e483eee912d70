"""Backends: where frames are kept. They know frames and nothing above them."""

from wal.backends.base import (
    FRAME_BYTES_MAX,
    REFUSALS,
    AppendDone,
    FramePage,
    LogBackend,
    LogState,
    ObservableLog,
    ObservedState,
    PChannelLog,
    ReadableLog,
    StoredFrame,
    Stretch,
)

__all__ = [
    "FRAME_BYTES_MAX",
    "REFUSALS",
    "AppendDone",
    "FramePage",
    "LogBackend",
    "LogState",
    "ObservableLog",
    "ObservedState",
    "PChannelLog",
    "ReadableLog",
    "StoredFrame",
    "Stretch",
]
