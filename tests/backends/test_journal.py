"""The journal backend keeps the guarantees of every backend: with many small segments and with large ones, and on either write path."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.conformance import BackendConformance
from wal.storage.base import LogBackend
from wal.storage.journal.backend import JournalBackend


class TestJournalBackend(BackendConformance):
    def make(self, place: Path) -> LogBackend:
        return JournalBackend(place / "journal", write_path="thread")


class TestJournalBackendWithSmallSegments(BackendConformance):
    def make(self, place: Path) -> LogBackend:
        return JournalBackend(place / "journal", first_segment_bytes=8 << 10, segment_bytes=64 << 10)


@pytest.mark.usefixtures("always_by_loop")
class TestJournalBackendOnTheLoop(BackendConformance):
    def make(self, place: Path) -> LogBackend:
        return JournalBackend(place / "journal", first_segment_bytes=64 << 10, segment_bytes=64 << 10, write_path="loop")
