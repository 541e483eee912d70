"""The local log: the engine whose pchannels are written by this process."""

from wal.engine.local.log import LocalLog

__all__ = ["LocalLog"]
