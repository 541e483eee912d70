"""kill -9 at every point between the first staged chunk and the last removed file: each row once, or none of them.

A stored manifest decides a write: then exactly its rows are in the log in the end, and not the rows of a replay. Without one, exactly the
replay's rows are.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.spark.sink_child import POINTS, Attempt
from tests.spark.sink_tasks import QUERY, Sink, files_below, held, of, producers, rows_of
from wal.spark.sink import pending, recover

NTH = 3
LATER: Final = pytest.mark.soak("the first call there shows the same")
ALIKE: Final = pytest.mark.soak("streaming batches are killed at every point")
KILLS: Final = [
    *[(point, 1) for point in POINTS],
    *[pytest.param(point, NTH, marks=LATER) for point in POINTS if point.startswith(("staging: before a", "publishing"))],
]
JOB_KILLS: Final = ("staging: a task is done", "publishing: after a commit", "done: the manifest gone")
"""Points before, in and after the publishing of a batch job."""
SETTINGS = "txn_bodies_max = 8\nproducers_max = 4\npchannels = 2\n"
"""Chunks of 8 rows, two of them under a producer."""


def in_the_log(journal: Path) -> dict[str, list[bytes]]:
    if not (journal / "FORMAT").exists():
        return {}
    return {name: [row for event in events for row in event] for name, events in held(journal).items()}


def settings_file(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "settings.toml"
    path.write_text(SETTINGS)
    return {"settings": str(path)}


@pytest.mark.parametrize(("point", "nth"), KILLS, ids=lambda value: str(value))
def test_streaming_batch_gets_in_once(tmp_path: Path, ended: Callable[[Attempt], int], point: str, nth: int) -> None:
    journal, options = tmp_path / "log", settings_file(tmp_path)
    sink = Sink(journal, **options)
    attempt = Attempt(str(journal), QUERY, "first", 5, point, nth, options)
    assert ended(attempt) == -signal.SIGKILL
    decided = bool(pending(str(journal))) or point.startswith("done")
    if point.startswith(("publishing", "manifest: stored", "manifest: renamed")):
        assert decided
    if point.startswith("staging"):
        assert not decided
    partial = in_the_log(journal)
    sink.run(rows_of("replayed"), batch_id=5)
    won = "first" if decided else "replayed"
    sink.run(rows_of("after"), batch_id=6)
    whole = of(won, "after")
    assert in_the_log(journal) == whole
    for name, rows in partial.items():
        assert rows == whole[name][: len(rows)]  # visible rows keep their positions
    assert files_below(journal) == []
    assert producers(journal) == []


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        pytest.param(point, NTH if "commit" in point else 1, marks=() if point in JOB_KILLS else ALIKE)
        for point in POINTS
        if "mark" not in point
    ],
)
def test_next_write_finishes_a_killed_batch_job(tmp_path: Path, ended: Callable[[Attempt], int], point: str, nth: int) -> None:
    journal, options = tmp_path / "log", settings_file(tmp_path)
    attempt = Attempt(str(journal), None, "first", 0, point, nth, options)
    assert ended(attempt) == -signal.SIGKILL
    decided = bool(pending(str(journal))) or point.startswith("done")
    assert decided != point.startswith(("staging", "manifest: before", "manifest: written"))
    if nth == 1:
        recover(str(journal), **options)
        assert in_the_log(journal) == (of("first") if decided else {})
    Sink(journal, query_id=None, orphanAgeMs="0", **options).run(rows_of("next"))
    assert in_the_log(journal) == (of("first", "next") if decided else of("next"))
    assert files_below(journal) == []
    assert producers(journal) == []


def test_driver_that_is_killed_again_and_again(tmp_path: Path, ended: Callable[[Attempt], int], soak: int) -> None:
    """The same batch, killed at a later commit each time, with other rows each time."""
    journal, options = tmp_path / "log", settings_file(tmp_path)
    for batch_id in range(soak):
        decided = None
        for number in range(6):
            label = f"b{batch_id}-{number}"
            attempt = Attempt(str(journal), QUERY, label, batch_id, "publishing: after a commit", 2, options)
            code = ended(attempt)
            decided = decided or label
            if code == 0:
                break
            assert code == -signal.SIGKILL
        else:
            Sink(journal, **options).run(rows_of("last"), batch_id=batch_id)
        assert in_the_log(journal) == of(*(f"b{before}-0" for before in range(batch_id + 1)))
    assert files_below(journal) == []
    assert producers(journal) == []
