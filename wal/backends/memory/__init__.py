"""The memory backend: logs that live as long as their store, with the promises of the others but for the disk."""

from wal.backends.memory.backend import MemoryBackend
from wal.backends.memory.store import MemoryStore

__all__ = ["MemoryBackend", "MemoryStore"]
