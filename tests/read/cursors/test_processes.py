"""Cursor files shared by processes: a process that is stopped or killed in the middle of a save does no lasting harm to others."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.processes import Child
from tests.read.cursors.samples import cursor
from wal.errors import WouldBlockError
from wal.read.cursors.cursor import Cursor
from wal.read.cursors.files import CursorFiles

ROOT: Final = Path(__file__).parents[3]


@contextmanager
def child(program: str, directory: Path) -> Iterator[Child]:
    """Starts a process that runs this program with `files` on the directory, and has printed its first line."""
    source = f"""
import sys
from pathlib import Path
from tests.read.cursors.samples import cursor
from wal.read.cursors.files import CursorFiles
files = CursorFiles(Path({str(directory)!r}))
{program}
"""
    with Child("-c", source) as process:
        assert process.line_now() == "ready"
        yield process


HOLDER: Final = """
import signal
with files.locked():
    print("ready", flush=True)
    signal.pause()
"""
SAVER: Final = """
files.save(cursor(start=(0, 0)), earliest=lambda: (0, 0))
print("ready", flush=True)
step = 0
while True:
    step += 1
    files.save(cursor(start=(step, step)), earliest=lambda: (0, 0))
"""


def test_save_waits_a_bounded_time_for_a_stopped_process(tmp_path: Path) -> None:
    files = CursorFiles(tmp_path)
    with child(HOLDER, tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(WouldBlockError, match="another process"), files.locked(0.05):
            raise AssertionError("two hold it")
        assert files.load_all() == [], "looking takes no lock"
    files.save(cursor(), earliest=lambda: (0, 0))
    assert files.load_all() == [cursor()]


def test_killed_save_leaves_the_old_or_the_new(tmp_path: Path, soak: int) -> None:
    files = CursorFiles(tmp_path)
    for _ in range(3 * soak):
        with child(SAVER, tmp_path) as process:
            before = 0
            while before < 20:  # so the child is at work
                (found,) = files.load_all()
                assert isinstance(found, Cursor)
                assert found.start[0] >= before
                before = found.start[0]
            process.kill_now()
        (found,) = files.load_all()
        assert isinstance(found, Cursor)
        assert found == cursor(start=(found.start[0], found.start[0]))
        files.save(cursor(start=(7, 7)), earliest=lambda: (0, 0))
        assert len(os.listdir(tmp_path / "cursors")) == 1, "the next save leaves nothing half done"


def test_processes_that_save_and_one_that_truncates_agree(tmp_path: Path, soak: int) -> None:
    """The earliest event is a file in this test; it never passes a cursor whose save has returned."""
    (tmp_path / "earliest").write_text("0")
    program = f"""
import random
random.seed({random.getrandbits(32)})
path = Path({str(tmp_path / "earliest")!r})
print("ready", flush=True)
from wal.errors import TruncatedError
for step in range({200 * soak}):
    at = int(path.read_text()) + random.randrange(1, 4)
    try:
        files.save(cursor(str(random.randrange(4)), start=(at, 0)), earliest=lambda: (int(path.read_text()), 0))
    except TruncatedError:
        continue
print("done", flush=True)
"""
    files = CursorFiles(tmp_path)
    with child(program, tmp_path) as one, child(program, tmp_path) as other:
        while one.runs or other.runs:
            with files.locked():
                pins = [found.start[0] for found in files.load_all() if isinstance(found, Cursor)]
                earliest = int((tmp_path / "earliest").read_text())
                assert all(pin >= earliest for pin in pins)
                if pins and min(pins) > earliest:
                    temporary = tmp_path / "new"
                    temporary.write_text(str(min(pins)))
                    temporary.rename(tmp_path / "earliest")
        one.end_now()
        other.end_now()
    assert int((tmp_path / "earliest").read_text()) > 0
