"""The sink on a real Pulsar, its metadata in a real etcd: the cases special to Pulsar. The rest is in test_sink_places.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.pulsar_place import PulsarPlace
from tests.spark.sink_tasks import of, rows_of
from tests.spark.test_sink_places import PlaceSink, held
from wal import Message
from wal.errors import InvalidArgumentError, LockedError
from wal.spark.sink import pending


@pytest.fixture
def place(pulsar_place: PulsarPlace) -> PulsarPlace:
    """Returns an empty place on Pulsar."""
    return pulsar_place


def test_log_with_a_writer_is_left_alone(place: PulsarPlace, tmp_path: Path) -> None:
    sink = PlaceSink(place, tmp_path / "staging")
    job = PlaceSink(place, tmp_path / "staging", query_id=None)
    staged = sink.stage(sink.writer(), rows_of("first"))
    with place.open() as log:
        log.raw_append(Message("v0", b"mine"))
        with pytest.raises(LockedError, match="is open for writing: its topics have a producer"):
            sink.stage(sink.writer(), rows_of("late"))
        with pytest.raises(LockedError, match="is open for writing"):
            job.writer()
        with pytest.raises(LockedError, match="is open for writing"):
            sink.commit(sink.writer(), staged)
        assert pending(**sink.options) == []
        log.raw_append(Message("v0", b"still mine"))
    sink.commit(sink.writer(), staged)
    wanted = of("first")
    assert held(place) == {**wanted, "v0": [b"mine", b"still mine", *wanted["v0"]]}


def test_metadata_in_a_file_belongs_to_one_process(place: PulsarPlace, tmp_path: Path) -> None:
    inside = PulsarPlace(place.address, str(tmp_path / "meta.sqlite3"))
    sink = PlaceSink(inside, tmp_path / "staging")
    sink.run(rows_of("first"))
    staged = sink.stage(sink.writer(), rows_of("second"), batch_id=1)
    with inside.open(), pytest.raises(LockedError):
        sink.commit(sink.writer(), staged, batch_id=1)
    sink.commit(sink.writer(), staged, batch_id=1)
    assert held(inside) == of("first", "second")


def test_wrong_options_are_refused_where_they_are_given(place: PulsarPlace, tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    sink = PlaceSink(place, staging)
    without = {name: value for name, value in sink.options.items() if name != "staging"}
    with pytest.raises(InvalidArgumentError, match="give the option staging, a directory that the driver and all"):
        pending(**without)
    with pytest.raises(InvalidArgumentError, match=r"staging=.* goes with address or service\.url"):
        pending(str(tmp_path), staging=str(staging))
    with pytest.raises(InvalidArgumentError, match="give the option kv=etcd"):
        pending(**{name: value for name, value in sink.options.items() if name != "kv"})
    sink.run(rows_of("first"))
    other = PlaceSink(place, staging)
    other.options["service.url"] = place.location.rpartition("/")[0] + "/default"
    other.options["kv"] = place.kv + "-other"
    with pytest.raises(InvalidArgumentError, match="give each log a staging directory of its own"):
        other.run(rows_of("other"), batch_id=1)
