"""Streams whose log was replaced by an older copy of itself: a batch neither skips new events nor repeats read ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.spark.queries import StreamQuery
from tests.spark.test_stream import put, texts
from wal import Message, bridge
from wal.errors import LogWentBackError
from wal.operate.cli.main import main


@pytest.mark.parametrize("new", [1, 2, 40])
def test_stream_learns_it(data_dir: Path, new: int) -> None:
    """The restored log is shorter than the part that the query has read, or has grown past it."""
    place, copied = data_dir / "log", data_dir / "copy"
    with bridge.blocking(place) as log:
        put(log, *range(5))
        last_common = log.raw_append(Message("a", b"5")).message_id
    shutil.copytree(place, copied)
    with bridge.blocking(place) as log:
        put(log, *range(20))
    query = StreamQuery(place, startingOffsets="earliest")
    assert query.step() == []
    assert len(texts(query.step())) == 26
    shutil.rmtree(place)
    copied.rename(place)
    with bridge.blocking(place) as log:
        put(log, *(f"new {number}" for number in range(new)))
    for _ in range(2):
        with pytest.raises(LogWentBackError) as raised:
            query.step()
        assert raised.value.last_common == last_common
        query.start()


def test_reopened_log_goes_on(data_dir: Path) -> None:
    """A stream at the end of the log continues after restarts of its writer, clean ones and others."""
    with bridge.blocking(data_dir) as log:
        put(log, *range(5))
    query = StreamQuery(data_dir, startingOffsets="earliest")
    assert query.step() == []
    assert len(texts(query.step())) == 5
    for number in range(3):
        with bridge.blocking(data_dir) as log:
            assert query.step() is None
            put(log, number)
            assert texts(query.step()) == [str(number)]
        assert query.step() is None


def test_stream_goes_on_after_marked_restore(data_dir: Path) -> None:
    """The copy has all events that the stream has read, so it continues. A stream that has read more gets an error, however long the log
    is.
    """
    place, copied = data_dir / "log", data_dir / "copy"
    with bridge.blocking(place) as log:
        put(log, *range(5))
    ahead, query = (StreamQuery(place, startingOffsets="earliest") for _ in range(2))
    for one in (ahead, query):
        assert one.step() == []
        assert len(texts(one.step())) == 5
    shutil.copytree(place, copied)
    with bridge.blocking(place) as log:
        put(log, *range(20))
    assert len(texts(ahead.step())) == 20
    shutil.rmtree(place)
    copied.rename(place)
    assert main(["mark-restored", str(place)]) == 0
    assert query.step() is None
    with pytest.raises(LogWentBackError):
        ahead.step()
    with bridge.blocking(place) as log:
        put(log, *(f"new {number}" for number in range(40)))
    assert texts(query.step()) == [f"new {number}" for number in range(40)]
    with pytest.raises(LogWentBackError):
        ahead.step()
