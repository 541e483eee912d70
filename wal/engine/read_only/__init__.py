"""The read-only log: the engine that reads what another process writes."""

from wal.engine.read_only.log import ReadOnlyLog

__all__ = ["ReadOnlyLog"]
