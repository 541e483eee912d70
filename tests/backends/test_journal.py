"""The journal backend keeps the guarantees of every backend, with many small segments and with large ones."""

from __future__ import annotations

from pathlib import Path

from tests.backends.conformance import BackendConformance
from wal.backends import LogBackend
from wal.backends.journal import JournalBackend


class TestJournalBackend(BackendConformance):
    def make(self, place: Path) -> LogBackend:
        return JournalBackend(place / "journal")


class TestJournalBackendWithSmallSegments(BackendConformance):
    def make(self, place: Path) -> LogBackend:
        return JournalBackend(place / "journal", first_segment_bytes=8 << 10, segment_bytes=64 << 10)
