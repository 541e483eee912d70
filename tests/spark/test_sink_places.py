"""The sink has the same guarantees for other logs as for a journal. See `place`."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.place import Place
from tests.spark.sink_child import Attempt
from tests.spark.sink_tasks import QUERY, Sink, files_below, of, rows_of
from wal.spark.sink import pending, recover

NAMES = ("v0", "v1", "v2")
SMALL_CHUNKS = "txn_bodies_max = 8\nproducers_max = 4\npchannels = 2\n"
"""A chunk has 8 rows, and a producer two chunks."""


class PlaceSink(Sink):
    """A query or job that stages in `staging` and writes to the log at `place`."""

    def __init__(self, place: Place, staging: Path, *, query_id: str | None = QUERY, **options: str) -> None:
        super().__init__(staging, query_id=query_id, **place.options, **options)
        self.options = self._options

    def attempt(self, label: str, batch_id: int, point: str, nth: int) -> Attempt:
        """Returns the task of a child that writes a batch here."""
        options = {name: value for name, value in self.options.items() if name != "staging"}
        return Attempt(str(self.journal), self.query_id, label, batch_id, point, nth, options)


def held(place: Place) -> dict[str, list[bytes]]:
    """Returns the payloads of each vchannel in the log."""
    found: dict[str, list[bytes]] = {}
    for row in place.expected(*NAMES):
        found.setdefault(row["vchannel"], []).append(row["payload"])
    return found


def producers(place: Place) -> list[str]:
    with place.open() as log:
        return [info.name for info in log.producers()]


@pytest.fixture
def small_chunks(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "settings.toml"
    path.write_text(SMALL_CHUNKS)
    return {"settings": str(path)}


@pytest.mark.on_pulsar
def test_each_batch_gets_in_once_and_in_order(place: Place, tmp_path: Path, small_chunks: dict[str, str]) -> None:
    sink = PlaceSink(place, tmp_path / "staging", **small_chunks)
    sink.run(rows_of("first"), batch_id=3)
    sink.run(rows_of("other"), batch_id=3, attempt=9)
    sink.run(rows_of("older"), batch_id=1, attempt=20)
    PlaceSink(place, tmp_path / "staging", query_id=None, **small_chunks).run(rows_of("job"))
    assert held(place) == of("first", "job")
    assert files_below(sink.journal) == []
    assert pending(**sink.options) == []
    assert producers(place) == []


@pytest.mark.on_pulsar
@pytest.mark.parametrize(
    ("point", "nth"),
    [
        ("publishing: after a commit", 3),
        *[
            pytest.param(point, 1, marks=pytest.mark.soak("test_sink_kill.py kills at every point, on a journal"))
            for point in ("staging: a task is done", "manifest: stored", "publishing: a producer forgotten", "done: the mark stored")
        ],
    ],
)
def test_batch_whose_driver_is_killed_gets_in_once(
    place: Place, tmp_path: Path, small_chunks: dict[str, str], ended: Callable[[Attempt], int], point: str, nth: int
) -> None:
    sink = PlaceSink(place, tmp_path / "staging", **small_chunks)
    assert ended(sink.attempt("first", 5, point, nth)) == -signal.SIGKILL
    decided = not point.startswith("staging")
    assert bool(pending(**sink.options)) == (decided and not point.startswith("done"))
    sink.run(rows_of("replayed"), batch_id=5)
    sink.run(rows_of("after"), batch_id=6)
    assert held(place) == of("first" if decided else "replayed", "after")
    assert files_below(sink.journal) == []
    assert producers(place) == []


def test_killed_job_is_finished_by_recover(
    place: Place, tmp_path: Path, small_chunks: dict[str, str], ended: Callable[[Attempt], int]
) -> None:
    sink = PlaceSink(place, tmp_path / "staging", query_id=None, **small_chunks)
    assert ended(sink.attempt("job", 0, "publishing: after a commit", 2)) == -signal.SIGKILL
    (found,) = pending(**sink.options)
    assert [one.write_id for one in recover(**sink.options)] == [found.write_id]
    assert held(place) == of("job")
    assert producers(place) == []


def test_staging_directories_have_separate_producers(
    place: Place, tmp_path: Path, small_chunks: dict[str, str], ended: Callable[[Attempt], int]
) -> None:
    """If a sink forgot the producer of another one, the chunks in the log would be written once more."""
    killed = PlaceSink(place, tmp_path / "one", **small_chunks)
    assert ended(killed.attempt("first", 5, "publishing: after a commit", 2)) == -signal.SIGKILL
    PlaceSink(place, tmp_path / "two", query_id=None, **small_chunks).run(rows_of("job"))
    assert len(producers(place)) == 1
    killed.run(rows_of("replayed"), batch_id=5)
    found = held(place)
    assert {name: sorted(payloads) for name, payloads in found.items()} == {
        name: sorted(payloads) for name, payloads in of("first", "job").items()
    }
    assert producers(place) == []
