"""The memory backend: logs that exist as long as their store, with all promises of the other backends except durability.

Files:

* backend:  MemoryBackend, which opens the logs of a store, one writer a term
* log:      MemoryLog, one pchannel that is open for writing
* store:    MemoryStore, the frames and checkpoints of all logs
"""

from wal.backends.memory.backend import MemoryBackend
from wal.backends.memory.store import MemoryStore

__all__ = ["MemoryBackend", "MemoryStore"]
