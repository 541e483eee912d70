"""`write_path` runs a test of crashes on both ways of a frame to the disk; the processes that the test starts inherit the setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.journals import loop_can_write


@pytest.fixture(params=["thread", "loop"])
def write_path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns the write path of this run of the test, for this process and those that it starts."""
    path: str = request.param
    if path == "loop" and not loop_can_write(tmp_path):
        pytest.skip("the loop cannot write on this machine or file system")
    monkeypatch.setenv("WAL_WRITE_PATH", path)
    return path
