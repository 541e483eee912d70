"""Backends: where frames are kept. They know frames and nothing above them."""

from wal.backends.base import (
    FRAME_BYTES_MAX,
    REFUSALS,
    AppendDone,
    FramePage,
    LogBackend,
    LogState,
    ObservableLog,
    PChannelLog,
    ReadableLog,
    ReadOnlyState,
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
    "PChannelLog",
    "ReadOnlyState",
    "ReadableLog",
    "StoredFrame",
    "Stretch",
]
