"""`by_loop` and `by_thread` run a test of crashes on one way of a frame to the disk, in a soak on both.

The processes that the test starts inherit the setting. The tests of each way share the kinds of kills among them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.journal.journals import loop_can_write

_IN_A_SOAK = pytest.mark.soak("by default the test runs on the other write path, and tests of other kills on this one")
by_loop = pytest.mark.parametrize("write_path", ["loop", pytest.param("thread", marks=_IN_A_SOAK)], indirect=True)
by_thread = pytest.mark.parametrize("write_path", ["thread", pytest.param("loop", marks=_IN_A_SOAK)], indirect=True)


@pytest.fixture
def write_path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns the write path of this run of the test, for this process and its children."""
    path: str = request.param
    if path == "loop" and not loop_can_write(tmp_path):
        pytest.skip("the loop cannot write on this machine or file system")
    monkeypatch.setenv("WAL_WRITE_PATH", path)
    return path
