"""Backends: where frames are kept. A backend knows frames and nothing above them.

Files:

* base:      what every backend promises: LogBackend, PChannelLog, ReadableLog, and what they answer with
* journal/:  segment files in a directory, the embedded default
* memory/:   logs in this process
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
from wal.backends.read_only import LogSnapshot, ReadOnlyPChannelLog

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
    "ReadableLog",
    "StoredFrame",
]
