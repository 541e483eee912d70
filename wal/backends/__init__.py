"""Backends store frames. A backend knows nothing above them.

Files:

* base:      the interface of every backend: LogBackend, PChannelLog, ReadableLog, and the values that they return
* journal/:  segment files in a directory, the default
* memory/:   logs in the memory of this process
* pulsar/:   topics of a Pulsar namespace
"""

from wal.backends.base import (
    FRAME_BYTES_MAX,
    REFUSALS,
    AppendDone,
    Extent,
    FramePage,
    LogBackend,
    LogState,
    PChannelLog,
    ReadableLog,
    StoredFrame,
)
from wal.backends.read_only import LogSnapshot, ReadOnlyPChannelLog, ReadOnlyStoredLog

__all__ = [
    "FRAME_BYTES_MAX",
    "REFUSALS",
    "AppendDone",
    "Extent",
    "FramePage",
    "LogBackend",
    "LogSnapshot",
    "LogState",
    "PChannelLog",
    "ReadOnlyPChannelLog",
    "ReadOnlyStoredLog",
    "ReadableLog",
    "StoredFrame",
]
