"""The conformance suite of every backend, for the Pulsar backend on a real Pulsar."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.conformance import BackendConformance
from tests.storage.pulsar.conftest import new_namespace
from wal.storage.base import LogBackend
from wal.storage.kv import MemoryKV
from wal.storage.pulsar.address import PulsarAddress
from wal.storage.pulsar.backend import PulsarBackend


class TestPulsarBackend(BackendConformance):
    @pytest.fixture(autouse=True)
    def places(self, pulsar_server: PulsarAddress) -> None:
        self.server = pulsar_server
        self.made: dict[Path, tuple[PulsarAddress, MemoryKV]] = {}

    def make(self, place: Path) -> LogBackend:
        if place not in self.made:
            self.made[place] = (new_namespace(self.server), MemoryKV())
        return PulsarBackend(*self.made[place])
