"""The acceptance tests of the accesser on a real Pulsar: `location` is a namespace for each test, and `open_wal` gets the settings that a
log there needs.

Each file in this folder imports the tests of the file of that name; tests that do not depend on where the log lies run unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

import wal
from tests.accesser import conftest as accesser
from tests.conftest import SOAK
from tests.pulsar.conftest import location_of
from wal import WALAccesser
from wal.api.opening import LogOpening
from wal.storage.pulsar.address import PulsarAddress

watchdog = accesser.watchdog
data = accesser.data

collect_ignore = (
    []
    if SOAK
    else [
        f"test_{name}.py"
        for name in (
            "append_many",
            "barriers",
            "broadcast",
            "cancellation",
            "checkpoint",
            "cursors",
            "idempotency",
            "reopening",
            "resume",
            "scanner",
            "vchannels",
        )
    ]
)
"""Tests that take minutes and run only in a soak."""
_VIRTUAL = "runs by a virtual clock, in memory"
NOT_HERE: Final = {
    "test_running_reader_of_a_stale_cursor_hears_of_it_at_its_save": _VIRTUAL,
    "test_age_counts_from_the_last_save": _VIRTUAL,
    "test_wall_clock_that_jumps_makes_none_stale": _VIRTUAL,
    "test_expired_one_leaves_its_key_free": _VIRTUAL,
    "test_append_that_waits_for_its_barrier_is_pending_and_is_not_overtaken": _VIRTUAL,
    "test_window_is_bounded_by_count_and_by_age": _VIRTUAL,
    "test_sequences_after_a_failed_one_fail_wherever_they_wait": "counts on two frames in flight",
    "test_wrong_ids": "makes ids in the journal's form",
    "test_statistics": "names the backends",
    "test_memory_of_a_slow_reader_is_bounded_by_pages": "asks for the bytes of a lag more exactly than Pulsar counts them",
}
"""Tests of those files that do not hold for a log on Pulsar, with the reason."""


@pytest.fixture
def settings(address: PulsarAddress, tmp_path: Path) -> dict[str, Any]:
    """The settings that `open_wal` gets in addition to the location."""
    return location_of(address, tmp_path / "meta.sqlite3")[1]


@pytest.fixture
def location(address: PulsarAddress, tmp_path: Path) -> str:
    """A location where a log may be opened."""
    return location_of(address, tmp_path / "meta.sqlite3")[0]


@pytest.fixture(autouse=True)
def on_pulsar(request: pytest.FixtureRequest, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives the `open_wal` of the test's module the settings of a log on Pulsar."""
    if request.function.__name__ in NOT_HERE:
        pytest.skip(NOT_HERE[request.function.__name__])

    def open_wal(location: Any, **overrides: Any) -> LogOpening:
        return wal.open_wal(location, **({**settings, **overrides} if str(location).startswith("pulsar") else overrides))

    module = sys.modules[request.function.__module__]
    if hasattr(module, "open_wal"):
        monkeypatch.setattr(module, "open_wal", open_wal)


@pytest.fixture
async def log(location: str, settings: dict[str, Any]) -> AsyncIterator[WALAccesser]:
    async with wal.open_wal(location, **settings) as opened:
        yield opened


@pytest.fixture
async def log4(location: str, settings: dict[str, Any]) -> AsyncIterator[WALAccesser]:
    """Yields an open log with four pchannels."""
    async with wal.open_wal(location, pchannels=4, **settings) as opened:
        yield opened
