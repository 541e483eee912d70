"""MemoryBackend: opens the logs of a MemoryStore, one writer per term."""

from __future__ import annotations

from typing import ClassVar, Final

from wal.backends.base import LogBackend, PChannelLog
from wal.backends.memory.log import MemoryLog
from wal.backends.memory.store import MemoryStore
from wal.errors import ClosedError
from wal.message import FORM_JOURNAL

__all__ = ["MemoryBackend"]

_FRAME_BYTES_LIMIT: Final = 256 * 1024 * 1024
"""The same limit as the journal's, so that every program that runs in memory runs on a journal too."""


class MemoryBackend(LogBackend):
    """Logs in a `MemoryStore`: its own, or a given store that outlives the backend (a restart without a disk)."""

    name: ClassVar[str] = "memory"
    form: ClassVar[int] = FORM_JOURNAL
    frame_bytes_limit: int = _FRAME_BYTES_LIMIT

    def __init__(self, store: MemoryStore | None = None) -> None:
        self._store = MemoryStore() if store is None else store
        self._closed = False

    async def start(self) -> None:
        self._check_open()

    async def create(self, pchannel: str, *, incarnation: int) -> None:
        self._check_open()
        self._store.create(pchannel, incarnation=incarnation)

    async def open(self, pchannel: str, *, incarnation: int, term: int, checkpoint: int | None = None) -> PChannelLog:
        self._check_open()
        channel = self._store.claim(pchannel, incarnation=incarnation, term=term)
        channel.recover_from(checkpoint)
        return MemoryLog(pchannel, channel, term=term, frame_bytes_limit=self.frame_bytes_limit)

    async def close(self) -> None:
        self._closed = True

    def abandon(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this memory backend is closed: make a new one on the same store to go on")
