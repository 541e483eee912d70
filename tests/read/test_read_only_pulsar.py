"""The source of a log on Pulsar, tested without a Pulsar: how it reads the metadata."""

from __future__ import annotations

import concurrent.futures
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from wal.channels.directory import RecordCounter, SavedVChannels
from wal.channels.vchannels import VChannelInfo
from wal.errors import ClosedError, StorageError, UnavailableError
from wal.location import parse_location
from wal.read.pulsar_source import ReadOnlyPulsarSource
from wal.settings import Settings
from wal.storage.pulsar import read_only_topic
from wal.storage.pulsar.address import PulsarAddress
from wal.storage.pulsar.connection import PulsarConnection
from wal.storage.pulsar.read_only_topic import ReadOnlyTopic


def saved(*infos: VChannelInfo) -> SavedVChannels:
    return SavedVChannels({info.name: info for info in infos}, {}, RecordCounter(3))


class Metadata:
    def __init__(self) -> None:
        self.known = saved(VChannelInfo("a", "p0", 1), VChannelInfo("b", "p1", 2))

    def vchannels(self, *, newest: bool = False) -> SavedVChannels:
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


def test_view_is_rebuilt_only_after_changes(source: Any, metadata: Metadata) -> None:
    """A reader looks every 50 ms, and there may be 65,536 vchannels."""
    view = source.vchannels()
    assert source.vchannels() is view
    metadata.known = saved(VChannelInfo("a", "p0", 1))
    assert list(source.vchannels().records) == ["a"]


def test_log_that_was_opened_since_has_a_map(source: Any) -> None:
    assert list(source.vchannels().maps) == ["p0"]
    source._logs["p1"] = SimpleNamespace(incarnation=8)
    view = source.vchannels()
    assert view.maps["p1"].records == {"b": 2}
    assert view.is_over("p1", "b", 1)


def test_closing_ends_the_wait_for_a_broker() -> None:
    asked = threading.Event()

    def last(_: str) -> None:
        asked.set()
        raise StorageError("as if the broker were away")

    connection = PulsarConnection(PulsarAddress("pulsar://localhost:1", "public", "default"))
    admin: Any = SimpleNamespace(last=last)
    topic = ReadOnlyTopic(connection, admin, pytest.fail, pchannel="p0", incarnation=1)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reaching = pool.submit(topic.reach)
        assert asked.wait(10)
        topic.close()
        with pytest.raises(ClosedError):
            reaching.result(timeout=10)
    connection.abandon()


def test_metadata_that_do_not_answer_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that follows a log survives a restart of etcd, as it survives a restart of the broker."""
    monkeypatch.setattr(read_only_topic, "RETRY_S", 0.01)
    answers = [UnavailableError("as if etcd were away"), UnavailableError("and still"), ClosedError("it was asked again")]

    def look() -> Any:
        raise answers.pop(0)

    connection = PulsarConnection(PulsarAddress("pulsar://localhost:1", "public", "default"))
    admin: Any = SimpleNamespace(last=lambda _: None)
    with pytest.raises(ClosedError, match="asked again"):
        ReadOnlyTopic(connection, admin, look, pchannel="p0", incarnation=1).reach()
    assert answers == []
    connection.abandon()
