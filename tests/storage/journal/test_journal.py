"""The journal backend keeps the guarantees of every backend: on either write path, and in a soak with large segments as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.conformance import BackendConformance
from wal.storage.base import LogBackend
from wal.storage.journal.backend import JournalBackend


class TestJournalBackend(BackendConformance):
    def make(self, place: Path) -> LogBackend:
        return JournalBackend(place / "journal", first_segment_bytes=8 << 10, segment_bytes=64 << 10, write_path="thread")


@pytest.mark.soak("the same with small segments; the logs of other tests have segments of this size")
class TestJournalBackendWithLargeSegments(BackendConformance):
    def make(self, place: Path) -> LogBackend:
        return JournalBackend(place / "journal", write_path="thread")


@pytest.mark.usefixtures("always_by_loop")
class TestJournalBackendOnTheLoop(BackendConformance):
    def make(self, place: Path) -> LogBackend:
        return JournalBackend(place / "journal", first_segment_bytes=64 << 10, segment_bytes=64 << 10, write_path="loop")
