"""The source of a log on Pulsar, without a Pulsar: what it makes of the metadata."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from wal.engine.read_only.pulsar import ReadOnlyPulsarSource
from wal.engine.read_only.pulsar_metadata import KnownVChannels
from wal.location import parse_location
from wal.settings import Settings


class Metadata:
    def __init__(self) -> None:
        self.known = KnownVChannels({"a": ("p0", 1), "b": ("p1", 2)}, 3)

    def vchannels(self) -> KnownVChannels:
        return self.known


@pytest.fixture
def metadata() -> Metadata:
    return Metadata()


@pytest.fixture
def source(metadata: Metadata) -> Any:
    location = parse_location("pulsar://localhost:1/public/default").pulsar
    assert location is not None
    source: Any = ReadOnlyPulsarSource(location, Settings(kv="etcd://localhost:1/root"))
    source._metadata = metadata
    source._logs["p0"] = SimpleNamespace(incarnation=7)
    return source


def test_the_view_is_made_again_only_when_something_is_new(source: Any, metadata: Metadata) -> None:
    """A reader asks every 50 ms, and there may be 65,536 vchannels."""
    view = source.vchannels()
    assert source.vchannels() is view
    metadata.known = KnownVChannels({"a": ("p0", 1)}, 3)
    assert list(source.vchannels().records) == ["a"]


def test_a_log_that_was_opened_since_has_a_map(source: Any) -> None:
    assert list(source.vchannels().maps) == ["p0"]
    source._logs["p1"] = SimpleNamespace(incarnation=8)
    view = source.vchannels()
    assert view.maps["p1"].records == {"b": 2}
    assert view.is_over("p1", "b", 1)
