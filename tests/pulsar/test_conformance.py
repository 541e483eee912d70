"""The conformance suite of every backend, for the Pulsar backend on a real Pulsar."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.conformance import BackendConformance
from tests.pulsar.conftest import new_namespace
from wal.backends import LogBackend
from wal.backends.pulsar import PulsarBackend
from wal.kv import MemoryKV
from wal.pulsar import PulsarAddress


class TestPulsarBackend(BackendConformance):
    @pytest.fixture(autouse=True)
    def places(self, pulsar_server: PulsarAddress) -> None:
        self.server = pulsar_server
        self.made: dict[Path, tuple[PulsarAddress, MemoryKV]] = {}

    def make(self, place: Path) -> LogBackend:
        if place not in self.made:
            self.made[place] = (new_namespace(self.server), MemoryKV())
        return PulsarBackend(*self.made[place])
