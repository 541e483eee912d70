"""The sink on a real Pulsar, its metadata in a real etcd: it gives the same guarantees as for a journal."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.docs.snippets import ROOT
from tests.spark.pulsar_place import Place
from tests.spark.sink_child import Attempt
from tests.spark.sink_tasks import QUERY, Sink, files_below, rows_of
from wal import Message
from wal.errors import InvalidArgumentError, LockedError
from wal.spark.sink import pending, recover

NAMES = ("v0", "v1", "v2")
SMALL_CHUNKS = "txn_bodies_max = 8\nproducers_max = 4\npchannels = 2\n"
"""A chunk has 8 rows, and a producer two chunks."""


class PulsarSink(Sink):
    """A query or job that stages in `staging` and writes to the log at `place`."""

    def __init__(self, place: Place, staging: Path, *, query_id: str | None = QUERY, **options: str) -> None:
        super().__init__(staging, query_id=query_id, **place.options, **options)
        self.options = self._options


def held(place: Place) -> dict[str, list[bytes]]:
    """Returns the payloads of each vchannel in the log."""
    found: dict[str, list[bytes]] = {}
    for row in place.expected(*NAMES):
        found.setdefault(row["vchannel"], []).append(row["payload"])
    return found


def of(*labels: str) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for label in labels:
        for rows in rows_of(label):
            for name, payload in rows:
                found.setdefault(name, []).append(payload)
    return found


def producers(place: Place) -> list[str]:
    with place.open() as log:
        return [info.name for info in log.producers()]


@pytest.fixture
def small_chunks(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "settings.toml"
    path.write_text(SMALL_CHUNKS)
    return {"settings": str(path)}


@pytest.fixture(scope="module")
def ended() -> Iterator[Callable[[PulsarSink, Attempt], int]]:
    """Runs an attempt of this sink in a separate process, and returns its exit status."""
    command = [sys.executable, "-m", "tests.spark.sink_child"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        stdin, stdout = server.stdin, server.stdout
        assert stdin is not None
        assert stdout is not None

        def run(sink: PulsarSink, attempt: Attempt) -> int:
            options = {name: value for name, value in sink.options.items() if name != "staging"}
            attempt = msgspec.structs.replace(attempt, journal=str(sink.journal), options=options)
            stdin.write(msgspec.json.encode(attempt) + b"\n")
            stdin.flush()
            return int(stdout.readline())

        yield run
        stdin.close()


def test_each_batch_gets_in_once_and_in_order(place: Place, tmp_path: Path, small_chunks: dict[str, str]) -> None:
    sink = PulsarSink(place, tmp_path / "staging", **small_chunks)
    sink.run(rows_of("first"), batch_id=3)
    sink.run(rows_of("other"), batch_id=3, attempt=9)
    sink.run(rows_of("older"), batch_id=1, attempt=20)
    PulsarSink(place, tmp_path / "staging", query_id=None, **small_chunks).run(rows_of("job"))
    assert held(place) == of("first", "job")
    assert files_below(sink.journal) == []
    assert pending(**sink.options) == []
    assert producers(place) == []


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        ("staging: a task is done", 1),
        ("manifest: stored", 1),
        ("publishing: after a commit", 3),
        ("publishing: a producer forgotten", 1),
        ("done: the mark stored", 1),
    ],
)
def test_a_batch_whose_driver_is_killed_gets_in_once(
    place: Place,
    tmp_path: Path,
    small_chunks: dict[str, str],
    ended: Callable[[PulsarSink, Attempt], int],
    point: str,
    nth: int,
) -> None:
    sink = PulsarSink(place, tmp_path / "staging", **small_chunks)
    assert ended(sink, Attempt("", QUERY, "first", 5, point, nth)) == -signal.SIGKILL
    decided = not point.startswith("staging")
    assert bool(pending(**sink.options)) == (decided and not point.startswith("done"))
    sink.run(rows_of("replayed"), batch_id=5)
    sink.run(rows_of("after"), batch_id=6)
    assert held(place) == of("first" if decided else "replayed", "after")
    assert files_below(sink.journal) == []
    assert producers(place) == []


def test_a_killed_job_is_finished_by_recover(
    place: Place, tmp_path: Path, small_chunks: dict[str, str], ended: Callable[[PulsarSink, Attempt], int]
) -> None:
    sink = PulsarSink(place, tmp_path / "staging", query_id=None, **small_chunks)
    assert ended(sink, Attempt("", None, "job", 0, "publishing: after a commit", 2)) == -signal.SIGKILL
    (found,) = pending(**sink.options)
    assert [one.write_id for one in recover(**sink.options)] == [found.write_id]
    assert held(place) == of("job")
    assert producers(place) == []


def test_sinks_with_other_staging_directories_leave_each_other_their_producers(
    place: Place, tmp_path: Path, small_chunks: dict[str, str], ended: Callable[[PulsarSink, Attempt], int]
) -> None:
    """A producer that another sink forgot would let the chunks in the log in once more."""
    killed = PulsarSink(place, tmp_path / "one", **small_chunks)
    assert ended(killed, Attempt("", QUERY, "first", 5, "publishing: after a commit", 2)) == -signal.SIGKILL
    PulsarSink(place, tmp_path / "two", query_id=None, **small_chunks).run(rows_of("job"))
    assert len(producers(place)) == 1
    killed.run(rows_of("replayed"), batch_id=5)
    found = held(place)
    assert {name: sorted(payloads) for name, payloads in found.items()} == {
        name: sorted(payloads) for name, payloads in of("first", "job").items()
    }
    assert producers(place) == []


def test_a_log_that_is_open_for_writing_is_left_to_its_writer(place: Place, tmp_path: Path) -> None:
    sink = PulsarSink(place, tmp_path / "staging")
    job = PulsarSink(place, tmp_path / "staging", query_id=None)
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


def test_metadata_in_a_file_belongs_to_one_process(place: Place, tmp_path: Path) -> None:
    inside = msgspec.structs.replace(place, kv=str(tmp_path / "meta.sqlite3"))
    sink = PulsarSink(inside, tmp_path / "staging")
    sink.run(rows_of("first"))
    staged = sink.stage(sink.writer(), rows_of("second"), batch_id=1)
    with inside.open(), pytest.raises(LockedError):
        sink.commit(sink.writer(), staged, batch_id=1)
    sink.commit(sink.writer(), staged, batch_id=1)
    assert held(inside) == of("first", "second")


def test_wrong_options_are_refused_where_they_are_given(place: Place, tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    sink = PulsarSink(place, staging)
    without = {name: value for name, value in sink.options.items() if name != "staging"}
    with pytest.raises(InvalidArgumentError, match="give the option staging, a directory that the driver and all"):
        pending(**without)
    with pytest.raises(InvalidArgumentError, match=r"staging=.* goes with service\.url"):
        pending(str(tmp_path), staging=str(staging))
    with pytest.raises(InvalidArgumentError, match="give the option kv=etcd"):
        pending(**{name: value for name, value in sink.options.items() if name != "kv"})
    sink.run(rows_of("first"))
    other = PulsarSink(place, staging)
    other.options["service.url"] = place.location.rpartition("/")[0] + "/default"
    other.options["kv"] = place.kv + "-other"
    with pytest.raises(InvalidArgumentError, match="give each log a staging directory of its own"):
        other.run(rows_of("other"), batch_id=1)
