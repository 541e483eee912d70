"""In every test of a backend, a blocking call of the product on the loop is an error. `write_path` runs a test on both write paths."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from blockbuster import BlockBuster, blockbuster_ctx

from tests.storage.journal.journals import loop_can_write
from wal.storage.journal import log_tail, loop_path
from wal.storage.journal.loop_path import WritePath


@pytest.fixture(autouse=True)
def blockbuster() -> Iterator[BlockBuster]:
    with blockbuster_ctx("wal", excluded_modules=["wal.testing"]) as found:
        yield found


@pytest.fixture
def always_by_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the write path "loop", every frame goes from the loop, however slow the test, except the first frame of the log and of a
    segment.
    """
    if not loop_can_write(tmp_path):
        pytest.skip("the loop cannot write on this machine or file system")
    monkeypatch.setattr(log_tail, "PAUSE_S", 3600.0)
    monkeypatch.setattr(loop_path, "YIELD_S", 3600.0)


@pytest.fixture(params=["thread", "loop"])
def write_path(request: pytest.FixtureRequest) -> WritePath:
    """Returns the write path of this run of the test."""
    path: WritePath = request.param
    if path == "loop":
        request.getfixturevalue("always_by_loop")
    return path
